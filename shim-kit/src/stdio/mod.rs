//! A process's stdin, stdout and stderr: pipes on its side, FIFOs on containerd's, copied between.
//!
//! Why copies, when a FIFO could be handed to the process as it is: the process outlives the FIFO's
//! reader (containerd restarts, clients come and go), must not be killed by SIGPIPE meanwhile, and
//! what it leaves running in the background must not keep the FIFO open for ever.
//!
//! # Output and exit
//!
//! What a process has written when it ends is in its pipe or terminal. The exit is told when a
//! client has read those bytes, since some clients stop to read when they know of it. Output holds
//! the exit back for one patience in total ([`crate::Runtime::PATIENCE`]), whatever readers do, and
//! not at all if there is nobody who could read. After the exit the copies go on until the process
//! is deleted.
//!
//! # Output that nobody reads
//!
//! A container's output waits for its next reader: containerd may be away. An exec's output is read
//! by the client that started it. When that has left and the FIFO has been full for
//! [`LET_GO_AFTER`], or when the process has ended, the output is let go, and a process that still
//! writes is told by SIGPIPE.

mod copy;
mod fifo;
mod file;
mod input;
pub(crate) mod logger;
mod output;
mod sink;
pub(crate) mod uri;

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileTypeExt},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    pipe::PipeFlags,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use ttrpc::Status;

use self::{
    copy::Copy,
    fifo::{End, Fifo, Held, Opened, Place},
    output::{Output, Rest},
    sink::{Sink, Target},
};
use crate::{
    console, descriptors,
    inotify::Inotify,
    log,
    reaper::Child,
    tasks::{self, blocking_unless},
};

/// How long an exec's output waits for a reader while nobody has its FIFO open.
pub(crate) const LET_GO_AFTER: Duration = Duration::from_secs(10);

/// Where a process's stdio goes, as containerd said it.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// A FIFO or a file; empty for none.
    pub stdin: String,
    /// A FIFO, a file, or a URI: `file://`, `binary://`, `binary-v2://`. Empty for none.
    pub stdout: String,
    /// The same for stderr. Unused with a terminal.
    pub stderr: String,
    /// Whether the process gets a terminal.
    pub terminal: bool,
}

/// The descriptors that a process is started with.
#[derive(Debug)]
pub struct Descriptors {
    /// Its stdin. As all of these, [`Command`](std::process::Command) takes it as it is.
    pub stdin: OwnedFd,
    /// Its stdout.
    pub stdout: OwnedFd,
    /// Its stderr.
    pub stderr: OwnedFd,
}

impl Descriptors {
    /// Nothing at all: for a program that makes a terminal of its own.
    ///
    /// # Errors
    /// If a descriptor is not to be had.
    pub fn null() -> Result<Descriptors, Status> {
        Ok(Descriptors { stdin: null()?, stdout: null()?, stderr: null()? })
    }
}

/// How far a process is, for its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is being made. What the program that makes it says may be for nobody.
    Making,
    /// It could not be made.
    Failed,
    Running,
    /// The process has ended; others may hold its stdout. The exit is told at the deadline.
    Ended {
        deadline: Instant,
    },
    /// Nobody is interested in what those others write.
    Deleted,
}

/// Waits until the process is made. Says whether it was.
async fn made(stage: &mut watch::Receiver<Stage>) -> bool {
    let stage = stage.wait_for(|stage| *stage != Stage::Making).await;
    stage.is_ok_and(|stage| *stage != Stage::Failed)
}

/// Waits until the process has ended. Cancel safe.
async fn ended(stage: &mut watch::Receiver<Stage>) {
    // Whoever gives the stage up has said the last one before.
    let _ = stage.wait_for(|stage| !matches!(stage, Stage::Making | Stage::Running)).await;
}

/// Waits until the process is deleted. Cancel safe.
async fn deleted(stage: &mut watch::Receiver<Stage>) {
    let _ = stage.wait_for(|stage| *stage == Stage::Deleted).await;
}

/// What the copies of a shim share. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    /// Where they run, so that the shim can wait for the last.
    pub tasks: TaskTracker,
    /// Tells of readers who come.
    pub readers: Inotify,
}

/// How a process's output is treated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// How long output may hold back the exit, in total.
    pub patience: Duration,
    /// Whether output waits for the next reader however long it takes.
    pub is_lasting: bool,
}

/// A process's copies. Dropping it ends them as soon as what the process itself wrote is delivered.
#[derive(Debug)]
pub(crate) struct Io {
    copies: Copies,
    manner: Manner,
    stage: watch::Sender<Stage>,
    /// Each resolves when a copy has delivered what the process wrote.
    delivered: Vec<oneshot::Receiver<()>>,
    /// Each resolves to what a program wrote that could not make the process.
    last_words: Vec<oneshot::Receiver<Vec<u8>>>,
    /// Where stdin comes from and goes to, until the process is started.
    input: Option<(String, Sink)>,
    /// Fires when nobody will read the output.
    let_go: CancellationToken,
    terminal: Terminal,
}

/// A descriptor that can be waited for. Both directions of a terminal share one.
type Watched = Arc<AsyncFd<File>>;

/// A terminal's master, until its output is let go. Clones are the same.
#[derive(Clone, Debug, Default)]
struct Terminal(Arc<Mutex<Option<Watched>>>);

impl Terminal {
    fn with<T>(&self, act: impl FnOnce(&mut Option<Watched>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Io {
    /// No copies yet.
    pub fn new(copies: Copies, manner: Manner) -> Io {
        Io {
            copies,
            manner,
            stage: watch::Sender::new(Stage::Making),
            delivered: Vec::new(),
            last_words: Vec::new(),
            input: None,
            let_go: CancellationToken::new(),
            terminal: Terminal::default(),
        }
    }

    /// Says that the process is made, so that its output is copied.
    pub fn made(&self) {
        self.stage.send_replace(Stage::Running);
    }

    /// Says that the process could not be made. Returns the end of what was written to its outputs, for the error.
    pub async fn last_words(&mut self) -> String {
        self.stage.send_replace(Stage::Failed);
        let mut all = Vec::new();
        for words in std::mem::take(&mut self.last_words) {
            all.extend(words.await.unwrap_or_default());
        }
        String::from_utf8_lossy(&all).trim().to_owned()
    }

    /// Makes pipes for a process without a terminal, which are copied when it is made.
    ///
    /// # Errors
    /// If a FIFO cannot be opened, or a descriptor is not to be had.
    pub async fn open_pipes(
        &mut self,
        paths: &Paths,
        owner: (u32, u32),
    ) -> Result<Descriptors, Status> {
        let (input, stdout, stderr) =
            (input(&paths.stdin), target(&paths.stdout)?, target(&paths.stderr)?);
        let at_hand = |target: &Option<Target>| target.as_ref().is_none_or(Target::is_at_hand);
        let is_quick = is_at_hand(&input) && at_hand(&stdout) && at_hand(&stderr);
        // All in one: an output that is opened and given up would end for its reader.
        let open = |target: Option<Target>| target.map(|target| target.open());
        let opened =
            blocking_unless(is_quick, move || Ok((open_input(input), open(stdout), open(stderr))));
        let (input, stdout, stderr) = opened.await.map_err(|error| failed_to_open("", error))?;
        let stdin = self.stdin(&paths.stdin, input, owner)?;
        let stdout = self.output(&paths.stdout, stdout, owner)?;
        let stderr = self.output(&paths.stderr, stderr, owner)?;
        Ok(Descriptors { stdin, stdout, stderr })
    }

    /// A pipe from a FIFO, or a file as it is. The FIFO itself is not opened yet.
    pub async fn open_stdin(&mut self, path: &str, owner: (u32, u32)) -> Result<OwnedFd, Status> {
        let input = input(path);
        let opened = blocking_unless(is_at_hand(&input), move || open_input(input)).await;
        self.stdin(path, opened, owner)
    }

    fn stdin(
        &mut self,
        path: &str,
        input: io::Result<Input>,
        owner: (u32, u32),
    ) -> Result<OwnedFd, Status> {
        match input.map_err(|error| failed_to_open(path, error))? {
            Input::Nothing => return null(),
            Input::File(file) => return Ok(file.into()),
            Input::Fifo => {}
        }
        let (reader, writer) = pipe(owner)?;
        nonblocking(&writer)?;
        self.input = Some((path.to_owned(), Sink::pipe(writer)?));
        Ok(reader)
    }

    fn output(
        &mut self,
        path: &str,
        opened: Option<io::Result<Opened>>,
        owner: (u32, u32),
    ) -> Result<OwnedFd, Status> {
        let Some(opened) = opened else { return null() };
        let sink = opened.and_then(Sink::of).map_err(|error| failed_to_open(path, error))?;
        let (reader, writer) = pipe(owner)?;
        nonblocking(&reader)?;
        self.copy_output(watched(reader, Interest::READABLE)?, sink, Rest::InPipe);
        Ok(writer)
    }

    /// Connects a terminal's master and the FIFOs, which are copied when the process is made.
    ///
    /// # Errors
    /// If a FIFO cannot be opened, or a descriptor is not to be had.
    pub async fn open_terminal(
        &mut self,
        paths: &Paths,
        master: OwnedFd,
        sink: Option<OwnedFd>,
    ) -> Result<(), Status> {
        nonblocking(&master)?;
        let master = watched(master, Interest::READABLE | Interest::WRITABLE)?;
        if !paths.stdin.is_empty() {
            self.input = Some((paths.stdin.clone(), Sink::Pipe(master.clone())));
        }
        let sink = match sink {
            Some(pipe) => {
                nonblocking(&pipe)?;
                Some(Sink::pipe(pipe)?)
            }
            None if paths.stdout.is_empty() => None,
            None => Some(Sink::open(&paths.stdout).await?),
        };
        if let Some(sink) = sink {
            self.copy_output(master.clone(), sink, Rest::OfTerminal);
        }
        self.terminal.with(|terminal| *terminal = Some(master));
        Ok(())
    }

    /// Starts to copy stdin, until its last writer has closed it after `close` fired. Not before the
    /// process is started: clients that find a reader write and close, and may be so fast that they
    /// cannot name yet whose stdin is to be closed. What is returned waits until it has a reader, or will have none: a FIFO
    /// that cannot be opened is a warning.
    pub fn start_input(&mut self, close: Arc<Notify>) -> impl Future<Output = ()> + Send + use<> {
        let (tell, told) = oneshot::channel::<()>();
        if let Some((path, sink)) = self.input.take() {
            let place = Place::find(path.clone().into());
            let (mut stage, let_go) = (self.stage.subscribe(), self.let_go.clone());
            let copy = async move {
                let open = blocking_unless(place.is_at_hand(), move || Held::input(&place));
                let opened = tokio::select! {
                    biased;
                    () = ended(&mut stage) => return,
                    () = let_go.cancelled() => return,
                    opened = open => opened.and_then(|held| held.watch(End::Read)),
                };
                drop(tell);
                match opened {
                    Ok(source) => input::run(Copy::new(source, sink), stage, close, let_go).await,
                    Err(error) => log::warn(failed_to_open(&path, error)),
                }
            };
            tasks::spawn(self.copies.tasks.track_future(copy));
        }
        async move {
            // The other end is dropped.
            let _ = told.await;
        }
    }

    /// Says that the process has ended. What is returned waits until its output is delivered, for
    /// the patience at most.
    pub fn ended(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let deadline = Instant::now() + self.manner.patience;
        self.stage.send_replace(Stage::Ended { deadline });
        let delivered = std::mem::take(&mut self.delivered);
        async move {
            for copy in delivered {
                // A copy that is gone has copied all there was.
                let _ = copy.await;
            }
        }
    }

    /// Takes care that the program which takes the output ends after the process.
    pub fn see_off(&self, logger: Child) {
        let seen_off = logger::see_off(logger, self.stage.subscribe());
        tasks::spawn(self.copies.tasks.track_future(seen_off));
    }

    /// Sets the size of the terminal, in characters, if there is one.
    ///
    /// # Errors
    /// Those of the ioctl.
    pub fn resize(&self, width: u32, height: u32) -> io::Result<()> {
        self.terminal.with(|terminal| match terminal {
            Some(terminal) => console::resize(terminal, width, height),
            None => Ok(()),
        })
    }

    fn copy_output(&mut self, source: Watched, sink: Sink, rest: Rest) {
        let (deliver, delivered) = oneshot::channel();
        self.delivered.push(delivered);
        let (words, last_words) = oneshot::channel();
        self.last_words.push(last_words);
        let output = Output {
            copy: Copy::new(Fifo::pipe(source), sink),
            stage: self.stage.subscribe(),
            rest,
            manner: self.manner,
            readers: self.copies.readers.clone(),
        };
        let (let_go, terminal) = (self.let_go.clone(), self.terminal.clone());
        tasks::spawn(self.copies.tasks.track_future(async move {
            if output.run(deliver, words).await == output::Fate::LetGo {
                // Who holds the terminal is hung up, and nobody waits for its stdin.
                terminal.with(|terminal| drop(terminal.take()));
                let_go.cancel();
            }
        }));
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        self.stage.send_modify(|stage| {
            *stage = if *stage == Stage::Making { Stage::Failed } else { Stage::Deleted };
        });
    }
}

/// What a path for stdin turned out to be.
enum Input {
    Nothing,
    Fifo,
    File(File),
}

/// A path for stdin; empty for none.
fn input(path: &str) -> Option<Place> {
    Some(path).filter(|path| !path.is_empty()).map(|path| Place::find(path.into()))
}

fn is_at_hand(input: &Option<Place>) -> bool {
    input.as_ref().is_none_or(Place::is_at_hand)
}

/// Looks what a path for stdin is. May block the thread unless it is at hand.
fn open_input(input: Option<Place>) -> io::Result<Input> {
    let Some(input) = input else { return Ok(Input::Nothing) };
    let path = input.path();
    match input.is_at_hand() || std::fs::metadata(&path)?.file_type().is_fifo() {
        true => Ok(Input::Fifo),
        false => File::open(path).map(Input::File),
    }
}

/// A path for output; empty for none.
fn target(path: &str) -> Result<Option<Target>, Status> {
    Some(path).filter(|path| !path.is_empty()).map(Target::parse).transpose()
}

/// What takes everything, and gives nothing.
fn null() -> Result<OwnedFd, Status> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed_to_open("/dev/null", error.into()))
}

/// Opens a file that never blocks who reads or writes it.
fn open(path: impl AsRef<Path>, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let file = rustix::io::retry_on_intr(|| rustix::fs::open(path.as_ref(), flags, mode))?;
    Ok(file.into())
}

fn is_fifo(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.file_type().is_fifo())
}

/// A pipe that belongs to whom the options say.
pub(crate) fn pipe(owner: (u32, u32)) -> Result<(OwnedFd, OwnedFd), Status> {
    let failed = |error| Status::resource_exhausted(format!("cannot make a pipe: {error}"));
    let (reader, writer) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    for end in [&reader, &writer] {
        give(end, owner).map_err(failed)?;
    }
    Ok((reader, writer))
}

/// Gives a file to a user and a group. It is root's already.
pub(crate) fn give(file: &OwnedFd, (uid, gid): (u32, u32)) -> io::Result<()> {
    if (uid, gid) == (0, 0) {
        return Ok(());
    }
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    Ok(rustix::fs::fchown(file, Some(uid), Some(gid))?)
}

/// Makes our end of a pipe or terminal one that never blocks; the process's end is not touched.
fn nonblocking(fd: &OwnedFd) -> Result<(), Status> {
    rustix::io::ioctl_fionbio(fd, true)
        .map_err(|error| Status::internal(format!("cannot set O_NONBLOCK: {error}")))
}

fn watched(fd: OwnedFd, interest: Interest) -> Result<Watched, Status> {
    let failed = |error| Status::internal(format!("cannot watch a descriptor: {error}"));
    descriptors::watch(File::from(fd), interest).map(Arc::new).map_err(failed)
}

fn failed_to_open(path: &str, error: io::Error) -> Status {
    Status::internal(format!("cannot open {path}: {error}"))
}

#[cfg(test)]
mod tests;
