//! A process's stdin, stdout and stderr: pipes on its side, FIFOs on containerd's, copied between.
//!
//! Why copies, when a FIFO could be handed to the process as it is: the process outlives the FIFO's
//! reader (containerd restarts, clients come and go), must not be killed by SIGPIPE meanwhile, and
//! what it leaves running in the background must not keep the FIFO open for ever.
//!
//! # Every byte before the exit
//!
//! A process that has ended has written all that it will, so what is in its pipe at that moment is
//! what is left. The exit is reported when a client has read those bytes, since clients stop to read
//! when they know of it; or when there is nobody to read them: no reader, or one that has taken
//! nothing for [`PATIENCE`].

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, OpenOptionsExt},
    },
    path::Path,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::OFlags,
    pipe::PipeFlags,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Notify, oneshot, watch},
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;
use ttrpc::Status;

use crate::{descriptors, log, runc::Descriptors};

/// How long an exit is held back for a reader that takes nothing.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long an exit is held back for a reader who has never been there, if there is something to be
/// read. On a busy machine a client may be slow to open its end.
const GRACE: Duration = Duration::from_secs(5);
/// The pauses between looks at what nothing else tells of. They double up to the longest: for what
/// a reader has left, and for a reader, who may never come.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(50);
const LONGEST_LOOK_FOR_READER: Duration = Duration::from_secs(1);
/// Bytes that are copied at a time; a quarter of what a pipe holds. On the stack, so that a process
/// that says nothing costs no buffer.
const CHUNK: usize = 16 << 10;

/// Where a process's stdio goes, as containerd said it.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    pub stdin: String,
    pub stdout: String,
    pub stderr: String,
    pub terminal: bool,
}

/// How far a process is, for its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    /// The process has ended; others may hold its stdout.
    Ended,
    /// Nobody is interested in what those others write.
    Deleted,
}

/// Waits until a process is so far. Cancel safe.
async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    // Whoever gives the stage up has said the last one before.
    let _ = stage.wait_for(|stage| *stage >= wanted).await;
}

/// A process's copies. Dropping it ends them as soon as what the process itself wrote is delivered.
#[derive(Debug)]
pub struct Io {
    stage: watch::Sender<Stage>,
    /// Each resolves when a copy has delivered what the process wrote.
    delivered: Vec<oneshot::Receiver<()>>,
    /// Where stdin comes from and goes to, until the process is started.
    input: Option<(String, OwnedFd)>,
    /// Where the copies run.
    copies: TaskTracker,
}

impl Io {
    /// No copies yet. They are counted in `copies`, so that the shim can wait for the last.
    pub fn new(copies: TaskTracker) -> Io {
        Io { stage: watch::Sender::new(Stage::Running), delivered: Vec::new(), input: None, copies }
    }

    /// Makes pipes for a process without a terminal, and starts to copy.
    ///
    /// # Errors
    /// If a FIFO cannot be opened, or a descriptor is not to be had.
    pub fn open_pipes(&mut self, paths: &Paths, owner: (u32, u32)) -> Result<Descriptors, Status> {
        let stdin = match paths.stdin.as_str() {
            "" => Stdio::null(),
            path => {
                let (reader, writer) = pipe(owner)?;
                nonblocking(&writer)?;
                self.input = Some((path.to_owned(), writer));
                reader.into()
            }
        };
        let mut output = |path: &str| -> Result<Stdio, Status> {
            if path.is_empty() {
                return Ok(Stdio::null());
            }
            let (reader, writer) = pipe(owner)?;
            nonblocking(&reader)?;
            self.copy_output(reader, Sink::open(path)?, Rest::InPipe)?;
            Ok(writer.into())
        };
        let (stdout, stderr) = (output(&paths.stdout)?, output(&paths.stderr)?);
        Ok(Descriptors { stdin, stdout, stderr })
    }

    /// Starts to copy between a terminal's master and the FIFOs.
    ///
    /// # Errors
    /// If a FIFO cannot be opened, or a descriptor is not to be had.
    pub fn open_terminal(&mut self, paths: &Paths, master: &OwnedFd) -> Result<(), Status> {
        nonblocking(master)?;
        if !paths.stdin.is_empty() {
            self.input = Some((paths.stdin.clone(), duplicate(master)?));
        }
        if !paths.stdout.is_empty() {
            self.copy_output(duplicate(master)?, Sink::open(&paths.stdout)?, Rest::UntilEnd)?;
        }
        Ok(())
    }

    /// Starts to copy stdin, until its last writer has closed it after `close` fired. Not before the
    /// process is started: clients that find a reader write and close, and may be so fast that they
    /// cannot name yet whose stdin is to be closed.
    ///
    /// # Errors
    /// If the FIFO cannot be opened.
    pub fn start_input(&mut self, close: Arc<Notify>) -> Result<(), Status> {
        match self.input.take() {
            Some((path, sink)) => self.copy_input(&path, sink, close),
            None => Ok(()),
        }
    }

    /// Says that the process has ended. What is returned waits until its output is delivered.
    pub fn ended(&mut self) -> impl Future<Output = ()> + Send + use<> {
        self.stage.send_replace(Stage::Ended);
        let delivered = std::mem::take(&mut self.delivered);
        async move {
            for copy in delivered {
                // A copy that is gone has copied all there was.
                let _ = copy.await;
            }
        }
    }

    fn copy_input(&mut self, path: &str, sink: OwnedFd, close: Arc<Notify>) -> Result<(), Status> {
        let failed = |error| failed_to_open(path, error);
        let source = Fifo::open(path, End::Read)
            .map_err(failed)?
            .ok_or_else(|| Status::invalid_argument(format!("stdin is not a FIFO: {path}")))?;
        let sink = descriptors::watch(File::from(sink), Interest::WRITABLE).map_err(failed)?;
        let copy = Copy { source, sink: Sink::Pipe(sink), pending: vec![], copied: 0 };
        self.copies.spawn(copy.input(self.stage.subscribe(), close));
        Ok(())
    }

    fn copy_output(&mut self, source: OwnedFd, sink: Sink, rest: Rest) -> Result<(), Status> {
        let source = descriptors::watch(File::from(source), Interest::READABLE)
            .map_err(|error| Status::internal(format!("cannot watch an output: {error}")))?;
        let copy = Copy { source: Fifo::pipe(source), sink, pending: vec![], copied: 0 };
        let (deliver, delivered) = oneshot::channel();
        self.delivered.push(delivered);
        self.copies.spawn(copy.output(self.stage.subscribe(), rest, deliver));
        Ok(())
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        self.stage.send_replace(Stage::Deleted);
    }
}

/// How it is known what a process that has ended has left to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// It is in the pipe already.
    InPipe,
    /// A terminal passes bytes on later, but ends for all when its session's leader does.
    UntilEnd,
}

/// Which end of a FIFO is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Read,
    Write,
}

impl End {
    fn interest(self) -> Interest {
        match self {
            End::Read => Interest::READABLE,
            End::Write => Interest::WRITABLE,
        }
    }
}

/// A FIFO, or one end of a pipe.
///
/// A FIFO is first held: open for reading and writing, so that it neither ends nor fails while
/// containerd's side is not there.
#[derive(Debug)]
struct Fifo {
    file: AsyncFd<File>,
    end: End,
    is_held: bool,
    /// Whether the other side was there already when the FIFO was opened.
    was_met: bool,
}

impl Fifo {
    /// Opens and holds a FIFO; none if the path is something else.
    fn open(path: &str, end: End) -> io::Result<Option<Fifo>> {
        // Opening for writing alone fails without a reader. It stays open until the FIFO is held: a
        // reader who was met and left alone again would take that for the end.
        let writer = (end == End::Write).then(|| open(path, OpenOptions::new().write(true)));
        let was_met = matches!(&writer, Some(Ok(_)));
        let file = open(path, OpenOptions::new().read(true).write(true))?;
        if !file.metadata()?.file_type().is_fifo() {
            return Ok(None);
        }
        Ok(Some(Fifo {
            file: descriptors::watch(file, end.interest())?,
            end,
            is_held: true,
            was_met,
        }))
    }

    /// The read end of a pipe, or a terminal's master.
    fn pipe(file: AsyncFd<File>) -> Fifo {
        Fifo { file, end: End::Read, is_held: false, was_met: true }
    }

    /// Lets the other side decide from now on when the FIFO ends. The way over the descriptor works
    /// also when the client has removed the path.
    fn let_go(&mut self) {
        if !self.is_held {
            return;
        }
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mut options = OpenOptions::new();
        options.read(self.end == End::Read).write(self.end == End::Write);
        let reopened = open(&path, &mut options)
            .and_then(|file| descriptors::watch(file, self.end.interest()));
        match reopened {
            Ok(file) => {
                self.file = file;
                self.is_held = false;
            }
            Err(error) => log::warn(format_args!("cannot reopen a FIFO: {error}")),
        }
    }

    /// Whether somebody has the other end open, for a FIFO that is not held.
    fn has_reader(&self) -> bool {
        let mut fds = [PollFd::new(&self.file, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&at_once)).is_ok()
            && !fds[0].revents().contains(PollFlags::ERR)
    }
}

/// Where bytes go.
#[derive(Debug)]
enum Sink {
    /// containerd's.
    Fifo(Fifo),
    /// The process's.
    Pipe(AsyncFd<File>),
    File(File),
}

impl Sink {
    /// Opens a FIFO, a file, or the file that a `file://` URI names.
    fn open(path: &str) -> Result<Sink, Status> {
        let failed = |error| failed_to_open(path, error);
        if let Some(file) = path.strip_prefix("file://") {
            if let Some(folder) = Path::new(file).parent() {
                std::fs::create_dir_all(folder).map_err(failed)?;
            }
            let file = OpenOptions::new().append(true).create(true).open(file).map_err(failed)?;
            return Ok(Sink::File(file));
        }
        if let Some((scheme, _)) = path.split_once("://") {
            let message = format!("output cannot go to {scheme}://, only to FIFOs and file://");
            return Err(Status::unimplemented(message));
        }
        Ok(match Fifo::open(path, End::Write).map_err(failed)? {
            Some(fifo) => Sink::Fifo(fifo),
            None => Sink::File(OpenOptions::new().append(true).open(path).map_err(failed)?),
        })
    }

    /// The descriptor that may have to be waited for. A file never has to be.
    fn waits_for(&self) -> Option<&AsyncFd<File>> {
        match self {
            Sink::Fifo(fifo) => Some(&fifo.file),
            Sink::Pipe(pipe) => Some(pipe),
            Sink::File(_) => None,
        }
    }

    /// Writes what can be written now.
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Fifo(fifo) => fifo.file.get_ref().write(bytes),
            Sink::Pipe(pipe) => pipe.get_ref().write(bytes),
            Sink::File(file) => {
                if let Err(error) = (&*file).write_all(bytes) {
                    log::warn(format_args!("output is lost: {error}"));
                }
                Ok(bytes.len())
            }
        }
    }

    /// Whether there is somebody to take what is written. The FIFO is not held from now on, so that
    /// a reader who leaves is noticed by a failing write.
    fn has_reader(&mut self) -> bool {
        match self {
            Sink::Fifo(fifo) => {
                fifo.let_go();
                fifo.has_reader()
            }
            Sink::Pipe(_) | Sink::File(_) => true,
        }
    }

    /// Whether a reader who is not there may still be on the way: one that was there has left.
    fn may_be_late(&self) -> bool {
        matches!(self, Sink::Fifo(fifo) if !fifo.was_met)
    }

    /// Waits until there is somebody. Cancel safe.
    async fn reader_comes(&mut self) {
        let mut pause = FIRST_LOOK;
        while !self.has_reader() {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_LOOK_FOR_READER);
        }
    }

    /// Bytes that were written and not yet taken.
    fn left(&self) -> u64 {
        match self {
            Sink::Fifo(fifo) => rustix::io::ioctl_fionread(fifo.file.get_ref()).unwrap_or(0),
            Sink::Pipe(_) | Sink::File(_) => 0,
        }
    }
}

/// What a copy may run into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Copied,
    /// The source has ended and everything is delivered.
    End,
    /// Nobody reads the sink.
    NoReader,
}

/// One direction.
#[derive(Debug)]
struct Copy {
    source: Fifo,
    sink: Sink,
    /// Read and not yet written; empty unless the sink is full.
    pending: Vec<u8>,
    /// Bytes that were written.
    copied: u64,
}

impl Copy {
    /// Copies input until it ends, its reader is gone, or the process is.
    async fn input(mut self, mut stage: watch::Receiver<Stage>, close: Arc<Notify>) {
        loop {
            tokio::select! {
                biased;
                () = reached(&mut stage, Stage::Ended) => return,
                () = close.notified() => self.source.let_go(),
                step = self.step() => if step != Step::Copied { return },
            }
        }
    }

    /// Copies output through all stages of its process.
    async fn output(
        mut self,
        mut stage: watch::Receiver<Stage>,
        rest: Rest,
        delivered: oneshot::Sender<()>,
    ) {
        let mut last = loop {
            tokio::select! {
                biased;
                () = reached(&mut stage, Stage::Ended) => break self.deliver(rest).await,
                step = self.step() => if step != Step::Copied { break step },
            }
        };
        self.taken().await;
        drop(delivered);
        // Others may write on, and a reader may come yet, until the process is deleted. What is in
        // the FIFO lives as long as somebody has it open.
        loop {
            match last {
                Step::End if self.sink.has_reader() => return,
                Step::Copied => tokio::select! {
                    biased;
                    () = reached(&mut stage, Stage::Deleted) => return,
                    step = self.step() => last = step,
                },
                Step::End | Step::NoReader => {
                    tokio::select! {
                        biased;
                        () = reached(&mut stage, Stage::Deleted) => return,
                        () = self.sink.reader_comes() => {}
                    }
                    if last == Step::NoReader {
                        last = Step::Copied;
                    }
                }
            }
        }
    }

    /// Copies what a process that has ended left, as long as there is somebody to take it.
    async fn deliver(&mut self, rest: Rest) -> Step {
        let in_pipe = match rest {
            Rest::InPipe => rustix::io::ioctl_fionread(self.source.file.get_ref()).unwrap_or(0),
            Rest::UntilEnd => u64::MAX / 2,
        };
        let goal = self.copied + self.pending.len() as u64 + in_pipe;
        if goal > self.copied && !self.reader_is_there().await {
            return Step::NoReader;
        }
        while self.copied < goal {
            match timeout(PATIENCE, self.step()).await {
                Ok(Step::Copied) => {}
                Ok(step) => return step,
                Err(_) => return Step::NoReader,
            }
        }
        Step::Copied
    }

    /// Waits until the reader has taken everything. Clients stop to read when they are told of the
    /// end, and what is in the FIFO then is lost. Nothing tells that a FIFO is empty, so it is looked.
    async fn taken(&mut self) {
        let (mut pause, mut stalled, mut left) = (FIRST_LOOK, Duration::ZERO, self.sink.left());
        while left > 0 && stalled < PATIENCE && self.reader_is_there().await {
            sleep(pause).await;
            let before = std::mem::replace(&mut left, self.sink.left());
            stalled = if left < before { Duration::ZERO } else { stalled + pause };
            pause = (pause * 2).min(LONGEST_LOOK);
        }
    }

    /// Whether there is a reader, or one that was late has come.
    async fn reader_is_there(&mut self) -> bool {
        self.sink.has_reader()
            || (self.sink.may_be_late() && timeout(GRACE, self.sink.reader_comes()).await.is_ok())
    }

    /// Waits until something can be done, and does it.
    ///
    /// Cancel safe: nothing is read before there is something to read, and what is read is kept.
    async fn step(&mut self) -> Step {
        if self.pending.is_empty() { self.read().await } else { self.write().await }
    }

    async fn read(&mut self) -> Step {
        loop {
            let Ok(mut guard) = self.source.file.readable().await else { return Step::End };
            let transfer = |source: &AsyncFd<File>| {
                transfer(source.get_ref(), &self.sink, &mut self.pending, &mut self.copied)
            };
            if let Ok(step) = guard.try_io(transfer) {
                // A terminal whose other side is closed reports EIO.
                return step.unwrap_or(Step::End);
            }
        }
    }

    async fn write(&mut self) -> Step {
        loop {
            let Some(sink) = self.sink.waits_for() else { return Step::NoReader };
            let Ok(mut guard) = sink.writable().await else { return Step::NoReader };
            match guard.try_io(|sink| sink.get_ref().write(&self.pending)) {
                Ok(Ok(written)) => {
                    self.copied += written as u64;
                    self.pending.drain(..written);
                    if self.pending.is_empty() {
                        self.pending = Vec::new();
                    }
                    return Step::Copied;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(_)) => return Step::NoReader,
                Err(_would_block) => {}
            }
        }
    }
}

/// Copies what can be read and written now. What cannot be written is left in `pending`.
fn transfer(
    mut source: &File,
    sink: &Sink,
    pending: &mut Vec<u8>,
    copied: &mut u64,
) -> io::Result<Step> {
    let mut buffer = [0; CHUNK];
    let read = match source.read(&mut buffer) {
        Ok(0) => return Ok(Step::End),
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Step::Copied),
        Err(error) => return Err(error),
    };
    let (written, step) = match sink.write(&buffer[..read]) {
        Ok(written) => (written, Step::Copied),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => (0, Step::NoReader),
        // The sink is full; whatever else is wrong with it, the next attempt meets again.
        Err(_) => (0, Step::Copied),
    };
    *copied += written as u64;
    pending.extend_from_slice(&buffer[written..read]);
    Ok(step)
}

fn open(path: &str, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// A pipe that belongs to whom the options say.
fn pipe((uid, gid): (u32, u32)) -> Result<(OwnedFd, OwnedFd), Status> {
    let failed = |error| Status::resource_exhausted(format!("cannot make a pipe: {error}"));
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    if (uid, gid) != (0, 0) {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        for end in [&reader, &writer] {
            rustix::fs::fchown(end, Some(uid), Some(gid)).map_err(failed)?;
        }
    }
    Ok((reader, writer))
}

/// Makes our end of a pipe or terminal one that never blocks; the process's end is not touched.
fn nonblocking(fd: &OwnedFd) -> Result<(), Status> {
    rustix::fs::fcntl_getfl(fd)
        .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|error| Status::internal(format!("cannot set O_NONBLOCK: {error}")))
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, Status> {
    fd.try_clone().map_err(|error| {
        Status::resource_exhausted(format!("cannot duplicate a descriptor: {error}"))
    })
}

fn failed_to_open(path: &str, error: io::Error) -> Status {
    Status::internal(format!("cannot open {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::{io::BufRead, thread};

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    /// A FIFO in a folder of its own, and the copies of a process's stdout into it.
    struct Output {
        path: String,
        _folder: tempfile::TempDir,
        io: Io,
        process: File,
    }

    impl Output {
        fn new() -> Output {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("stdout").to_str().unwrap().to_owned();
            rustix::fs::mknodat(CWD, path.as_str(), FileType::Fifo, Mode::RWXU, 0).unwrap();
            let mut io = Io::new(TaskTracker::new());
            let (reader, writer) = pipe((0, 0)).unwrap();
            nonblocking(&reader).unwrap();
            io.copy_output(reader, Sink::open(&path).unwrap(), Rest::InPipe).unwrap();
            Output { path, _folder: folder, io, process: writer.into() }
        }

        /// A client that opens its end as containerd's do: blocking, in a thread of its own.
        fn client(&self) -> thread::JoinHandle<Vec<u8>> {
            let path = self.path.clone();
            thread::spawn(move || std::fs::read(path).unwrap())
        }
    }

    /// Clients that read nothing more when they knew of the exit lost what they had not read.
    #[tokio::test(flavor = "current_thread")]
    async fn everything_is_read_before_the_exit_is_reported() {
        let mut output = Output::new();
        let mut client = open(&output.path, OpenOptions::new().read(true)).unwrap();
        let said = vec![b'x'; 40_000];
        output.process.write_all(&said).unwrap();
        drop(output.process);
        let mut ended = std::pin::pin!(output.io.ended());
        let mut heard = Vec::new();
        let mut buffer = [0; 1000];
        while heard.len() < said.len() {
            tokio::select! {
                biased;
                () = &mut ended => panic!("the exit came after {} bytes", heard.len()),
                () = sleep(FIRST_LOOK) => {}
            }
            if let Ok(read) = client.read(&mut buffer) {
                heard.extend_from_slice(&buffer[..read]);
            }
        }
        ended.await;
        assert_eq!(heard, said);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_child_in_the_background_does_not_hold_up_the_exit_and_loses_nothing() {
        let mut output = Output::new();
        let client = open(&output.path, OpenOptions::new().read(true)).unwrap();
        let mut child = output.process.try_clone().unwrap();
        drop(output.process);
        writeln!(child, "parent").unwrap();
        let ended = output.io.ended();
        let mut client = io::BufReader::new(client);
        let mut line = String::new();
        while client.read_line(&mut line).is_err() {
            tokio::task::yield_now().await;
        }
        ended.await;
        assert_eq!(line, "parent\n");

        writeln!(child, "child").unwrap();
        drop(child);
        let copies = output.io.copies.clone();
        copies.close();
        copies.wait().await;
        line.clear();
        client.read_line(&mut line).unwrap();
        assert_eq!(line, "child\n");
    }

    /// A client whose thread came late found neither output nor end, and waited for ever.
    #[tokio::test(flavor = "current_thread")]
    async fn a_reader_who_comes_late_gets_output_and_end() {
        let mut output = Output::new();
        output.process.write_all(b"said early").unwrap();
        drop(output.process.try_clone().unwrap());
        let ended = output.io.ended();
        let client = output.client();
        drop(std::mem::replace(&mut output.process, File::open("/dev/null").unwrap()));
        ended.await;
        let copies = output.io.copies.clone();
        copies.close();
        copies.wait().await;
        assert_eq!(client.join().unwrap(), b"said early");
    }

    /// The FIFO was opened for writing, closed, and opened again: a client that waited for a writer
    /// could take the pause for the end.
    #[tokio::test(flavor = "current_thread")]
    async fn a_reader_who_waits_for_a_writer_sees_no_end_before_the_output() {
        for _ in 0..100 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("stdout").to_str().unwrap().to_owned();
            rustix::fs::mknodat(CWD, path.as_str(), FileType::Fifo, Mode::RWXU, 0).unwrap();
            let reader = path.clone();
            let client = thread::spawn(move || std::fs::read(reader).unwrap());
            let mut sink = Sink::open(&path).unwrap();
            assert_eq!(sink.write(b"said").unwrap(), 4);
            sink.reader_comes().await;
            drop(sink);
            assert_eq!(client.join().unwrap(), b"said");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_reader_who_has_left_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout").to_str().unwrap().to_owned();
        rustix::fs::mknodat(CWD, path.as_str(), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let client = open(&path, OpenOptions::new().read(true)).unwrap();
        let mut sink = Sink::open(&path).unwrap();
        assert!(!sink.may_be_late());
        assert!(sink.has_reader());
        drop(client);
        assert!(!sink.has_reader());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn stdin_ends_only_when_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdin").to_str().unwrap().to_owned();
        rustix::fs::mknodat(CWD, path.as_str(), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let (reader, writer) = pipe((0, 0)).unwrap();
        nonblocking(&writer).unwrap();
        let mut io = Io::new(TaskTracker::new());
        io.input = Some((path.clone(), writer));
        let close = Arc::new(Notify::new());
        io.start_input(close.clone()).unwrap();
        // Two clients come and go.
        for word in ["one ", "two"] {
            std::fs::write(&path, word).unwrap();
        }
        close.notify_one();
        let copies = io.copies.clone();
        copies.close();
        copies.wait().await;
        let mut heard = String::new();
        File::from(reader).read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "one two");
    }
}
