//! The premises of the module, each as a test with real pipes, FIFOs and terminals.

mod terminals;

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{fd::AsFd, unix::fs::MetadataExt},
    pin::pin,
    thread,
};

use rustix::{
    fs::{CWD, FileType, Mode},
    pipe::fcntl_getpipe_size,
};
use tokio::time::{sleep, timeout};

use super::*;

/// Far more than anything here takes, on a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(600);
/// A patience that must not have been waited for.
const HOUR: Duration = Duration::from_secs(3600);

fn fifo(folder: &tempfile::TempDir, name: &str) -> String {
    let path = folder.path().join(name).to_str().unwrap().to_owned();
    rustix::fs::mknodat(CWD, path.as_str(), FileType::Fifo, Mode::RWXU, 0).unwrap();
    path
}

fn client(path: &str) -> File {
    open(path, OFlags::RDONLY).unwrap()
}

/// A FIFO in a folder of its own, and the copies of a process's stdout into it.
struct Stdout {
    path: String,
    _folder: tempfile::TempDir,
    io: Io,
    process: Option<File>,
}

impl Stdout {
    async fn new(patience: Duration, is_lasting: bool) -> Stdout {
        Stdout::with_reader(patience, is_lasting, |_| ()).await.0
    }

    /// With a reader who is there before the FIFO is opened.
    async fn with_reader<T>(
        patience: Duration,
        is_lasting: bool,
        reader: impl FnOnce(&str) -> T,
    ) -> (Stdout, T) {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(&folder, "stdout");
        let reader = reader(&path);
        let mut io = Io::new(Copies::default(), Manner { patience, is_lasting });
        let (source, writer) = pipe((0, 0)).unwrap();
        nonblocking(&source).unwrap();
        let source = watched(source, Interest::READABLE).unwrap();
        io.copy_output(source, Sink::open(&path).await.unwrap(), Rest::InPipe);
        io.made();
        (Stdout { path, _folder: folder, io, process: Some(writer.into()) }, reader)
    }

    fn say(&mut self, bytes: &[u8]) {
        self.process.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Fills the FIFO and the pipe behind it, and gives back how many bytes they hold. A system may give a user who has
    /// many of them short ones.
    async fn say_much(&mut self) -> usize {
        let process = self.process.as_ref().unwrap();
        nonblocking(&process.as_fd().try_clone_to_owned().unwrap()).unwrap();
        // The copy has its turn as long as it goes on.
        let (mut full, mut written) = (0, 0);
        while full < 10 {
            match (&mut &*process).write(&[b'x'; 4096]) {
                Ok(count) => (full, written) = (0, written + count),
                Err(_) => full += 1,
            }
            sleep(Duration::from_millis(1)).await;
        }
        let room = fcntl_getpipe_size(process).unwrap();
        assert!(
            written > room,
            "the copy has taken something: {written} bytes, {room} in the pipe"
        );
        written
    }

    /// Waits until all copies are over.
    async fn copies_end(&self) {
        self.io.copies.tasks.close();
        timeout(LONG, self.io.copies.tasks.wait()).await.expect("a copy goes on");
    }
}

/// Clients that read nothing more when they knew of the exit lost what they had not read.
#[tokio::test(flavor = "current_thread")]
async fn everything_is_read_before_the_exit_is_told() {
    let mut output = Stdout::new(HOUR, true).await;
    let mut client = client(&output.path);
    let said = vec![b'x'; output.say_much().await];
    drop(output.process.take());
    let mut ended = std::pin::pin!(output.io.ended());
    let mut heard = Vec::new();
    let mut buffer = [0; 1000];
    while heard.len() < said.len() {
        tokio::select! {
            biased;
            () = &mut ended => panic!("the exit came after {} bytes", heard.len()),
            () = sleep(Duration::from_millis(1)) => {}
        }
        if let Ok(read) = client.read(&mut buffer) {
            heard.extend_from_slice(&buffer[..read]);
        }
    }
    ended.await;
    assert_eq!(heard, said);
}

/// A reader that took nothing held the exit back for 10 s twice, and longer if it took a little.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_reader_that_stands_still_or_drips_holds_back_the_exit_for_one_patience() {
    let patience = Duration::from_secs(2);
    for drips in [false, true] {
        let (mut output, mut client) = Stdout::with_reader(patience, true, client).await;
        output.say_much().await;
        // The process ends with bytes in its pipe and in the FIFO.
        let begin = Instant::now();
        let mut ended = std::pin::pin!(output.io.ended());
        let mut byte = [0];
        loop {
            tokio::select! {
                () = &mut ended => break,
                () = sleep(Duration::from_millis(100)), if drips => drop(client.read(&mut byte)),
            }
        }
        let held_back = begin.elapsed();
        assert!(
            held_back <= patience + Duration::from_millis(100),
            "drips: {drips}: {held_back:?}"
        );
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_reader_that_stood_still_before_the_end_has_used_up_its_patience() {
    let patience = Duration::from_secs(2);
    let (mut output, client) = Stdout::with_reader(patience, true, client).await;
    output.say_much().await;
    sleep(patience).await;
    let begin = Instant::now();
    output.io.ended().await;
    assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
    drop(client);
}

/// `run -d` whose output nobody reads.
#[tokio::test(flavor = "current_thread")]
async fn an_exit_does_not_wait_for_a_reader_who_has_left() {
    let (mut output, client) = Stdout::with_reader(HOUR, true, client).await;
    drop(client);
    output.say(b"nobody hears this");
    timeout(LONG, output.io.ended()).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_child_in_the_background_does_not_hold_back_the_exit_and_loses_nothing() {
    let mut output = Stdout::new(HOUR, true).await;
    let reader = client(&output.path);
    let mut child = output.process.take().unwrap();
    writeln!(child, "parent").unwrap();
    let ended = output.io.ended();
    let mut client = BufReader::new(reader);
    let mut line = String::new();
    while client.read_line(&mut line).is_err() {
        tokio::task::yield_now().await;
    }
    timeout(LONG, ended).await.unwrap();
    assert_eq!(line, "parent\n");

    writeln!(child, "child").unwrap();
    drop(child);
    output.copies_end().await;
    line.clear();
    client.read_line(&mut line).unwrap();
    assert_eq!(line, "child\n");
}

/// A client whose thread came late found neither output nor end, and waited for ever.
#[tokio::test(flavor = "current_thread")]
async fn a_reader_who_comes_late_gets_output_and_end() {
    let mut output = Stdout::new(HOUR, true).await;
    output.say(b"said early");
    drop(output.process.take());
    let ended = output.io.ended();
    let path = output.path.clone();
    // As containerd's clients open it: blocking, in a thread of its own.
    let client = thread::spawn(move || std::fs::read(path).unwrap());
    timeout(LONG, ended).await.unwrap();
    output.copies_end().await;
    assert_eq!(client.join().unwrap(), b"said early");
}

/// After containerd was away: the exit was told long ago.
#[tokio::test(flavor = "current_thread")]
async fn a_reader_who_comes_after_the_exit_gets_output_and_end_of_a_container() {
    let mut output = Stdout::new(Duration::ZERO, true).await;
    output.say(b"last words");
    drop(output.process.take());
    output.io.ended().await;
    let path = output.path.clone();
    let client = thread::spawn(move || std::fs::read(path).unwrap());
    output.copies_end().await;
    assert_eq!(client.join().unwrap(), b"last words");
}

/// The FIFO was opened for writing, closed, and opened again: a client that waited for a writer
/// could take the pause for the end.
#[tokio::test(flavor = "current_thread")]
async fn a_reader_who_waits_for_a_writer_sees_no_end_before_the_output() {
    for _ in 0..100 {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(&folder, "stdout");
        let reader = path.clone();
        let client = thread::spawn(move || std::fs::read(reader).unwrap());
        let mut sink = Sink::open(&path).await.unwrap();
        assert_eq!(sink.write(b"said").unwrap(), 4);
        sink.reader_comes(&Inotify::default()).await;
        drop(sink);
        assert_eq!(client.join().unwrap(), b"said");
    }
}

/// What clients that were killed had left behind were tasks that looked for a reader for ever, and
/// the descriptors of a pipe and a FIFO each.
#[tokio::test(flavor = "current_thread")]
async fn an_ended_exec_whose_client_was_killed_leaves_nothing() {
    let (mut output, client) = Stdout::with_reader(HOUR, false, client).await;
    output.say(b"said");
    drop(client);
    // A child in the background has the pipe, and is silent.
    timeout(LONG, output.io.ended()).await.unwrap();
    output.copies_end().await;
    let error = output.process.take().unwrap().write_all(b"x").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test(flavor = "current_thread")]
async fn a_client_that_is_killed_after_the_exit_of_its_exec_is_noticed() {
    let (mut output, client) = Stdout::with_reader(HOUR, false, client).await;
    timeout(LONG, output.io.ended()).await.unwrap();
    // The child in the background writes nothing, so that nothing fails.
    assert_eq!(output.io.copies.tasks.len(), 1);
    drop(client);
    output.copies_end().await;
}

/// Processes of killed clients stood still for ever when their FIFO was full.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_running_exec_whose_client_was_killed_is_told_when_nobody_reads() {
    let (mut output, client) = Stdout::with_reader(HOUR, false, client).await;
    drop(client);
    output.say_much().await;
    output.copies_end().await;
    assert!(output.io.let_go.is_cancelled());
    let error = output.process.take().unwrap().write_all(b"x").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_running_exec_whose_client_is_slow_is_not_let_go() {
    let (mut output, mut client) = Stdout::with_reader(HOUR, false, client).await;
    let said = output.say_much().await;
    sleep(10 * LET_GO_AFTER).await;
    assert_eq!(output.io.copies.tasks.len(), 1);
    // It reads on, and everything is there.
    let mut heard = 0;
    drop(output.process.take());
    let ended = output.io.ended();
    let mut buffer = [0; 4096];
    while let Ok(read) = client.read(&mut buffer) {
        heard += read;
        sleep(Duration::from_millis(1)).await;
        if read == 0 {
            break;
        }
    }
    ended.await;
    assert_eq!(heard, said);
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_containers_output_waits_for_the_next_reader() {
    let (mut output, client_before) = Stdout::with_reader(HOUR, true, client).await;
    drop(client_before);
    output.say_much().await;
    sleep(100 * LET_GO_AFTER).await;
    assert_eq!(output.io.copies.tasks.len(), 1);
    let mut next = client(&output.path);
    let mut buffer = [0; 4096];
    assert!(next.read(&mut buffer).unwrap() > 0);
}

/// runc's own complaints came with what a client's exec said, beside the error.
#[tokio::test(flavor = "current_thread")]
async fn what_is_said_while_a_process_is_made_is_its_own_or_for_nobody() {
    for is_made in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(&folder, "stderr");
        let mut reader = client(&path);
        let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: false });
        let (source, writer) = pipe((0, 0)).unwrap();
        nonblocking(&source).unwrap();
        let source = watched(source, Interest::READABLE).unwrap();
        io.copy_output(source, Sink::open(&path).await.unwrap(), Rest::InPipe);
        File::from(writer).write_all(b"it fails").unwrap();
        // The copy has its turn.
        tokio::task::yield_now().await;
        let mut heard = Vec::new();
        if is_made {
            io.made();
            let delivered = io.ended();
            while heard.len() < b"it fails".len() {
                let _ = reader.read_to_end(&mut heard);
                sleep(Duration::from_millis(1)).await;
            }
            timeout(LONG, delivered).await.unwrap();
        }
        let tasks = io.copies.tasks.clone();
        drop(io);
        tasks.close();
        timeout(LONG, tasks.wait()).await.unwrap();
        let _ = reader.read_to_end(&mut heard);
        assert_eq!(heard, if is_made { b"it fails".as_slice() } else { b"" });
    }
}

#[tokio::test(flavor = "current_thread")]
async fn stdin_ends_only_when_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(&folder, "stdin");
    let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: true });
    // The process's end is inside of what it is given; another is made to look at it.
    let (reader, writer) = pipe((0, 0)).unwrap();
    nonblocking(&writer).unwrap();
    io.input = Some((path.clone(), Sink::pipe(writer).unwrap()));
    let close = Arc::new(Notify::new());
    io.start_input(close.clone()).await;
    // Two clients come and go.
    for word in ["one ", "two"] {
        std::fs::write(&path, word).unwrap();
    }
    close.notify_one();
    io.copies.tasks.close();
    timeout(LONG, io.copies.tasks.wait()).await.unwrap();
    let mut heard = String::new();
    File::from(reader).read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "one two");
}

/// A client that found a reader too early wrote, closed, and its bytes were gone.
#[tokio::test(flavor = "current_thread")]
async fn stdin_has_no_reader_before_the_process_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(&folder, "stdin");
    let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: true });
    io.open_stdin(&path, (0, 0)).await.unwrap();
    let client = || open(&path, OFlags::WRONLY);
    assert_eq!(client().unwrap_err().raw_os_error(), Some(libc::ENXIO));
    io.start_input(Arc::default()).await;
    client().unwrap();
}

/// Opens stdin on a file system that does not answer until the third argument is dropped.
fn with_hung_stdin(act: impl AsyncFnOnce(Io, String, std::sync::mpsc::Sender<()>)) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let Some(folder) = folder_elsewhere() else { return };
        let path = fifo(&folder, "stdin");
        let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: true });
        let _process = io.open_stdin(&path, (0, 0)).await.unwrap();
        // The only other thread that there may be.
        let (busy, gate) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || gate.recv());
        act(io, path, busy).await;
    });
}

/// A server that has gone would block all calls of the shim.
#[test]
fn stdin_of_another_file_system_is_opened_by_another_thread() {
    with_hung_stdin(async |mut io, path, busy| {
        let mut reader = pin!(io.start_input(Arc::default()));
        for _ in 0..10 {
            let waited = timeout(Duration::ZERO, reader.as_mut()).await;
            assert!(waited.is_err(), "nothing is opened yet");
        }
        drop(busy);
        reader.await;
        open(&path, OFlags::WRONLY).unwrap();
    });
}

/// What it leaves behind would never read an end, and the shim's end would wait for it.
#[test]
fn a_stdin_that_is_not_opened_ends_with_its_process() {
    with_hung_stdin(async |mut io, _, _busy| {
        let reader = io.start_input(Arc::default());
        let tasks = io.copies.tasks.clone();
        tasks.close();
        drop(io.ended());
        timeout(LONG, tasks.wait()).await.expect("its copy ends");
        reader.await;
    });
}

#[tokio::test(flavor = "current_thread")]
async fn stdin_may_be_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: true });
    io.open_stdin(file.path().to_str().unwrap(), (0, 0)).await.unwrap();
    assert!(io.input.is_none(), "nothing is to be copied");
}

/// The reason was lost of a program that says it nowhere else, such as one whose library is missing.
#[tokio::test(flavor = "current_thread")]
async fn what_fails_to_make_a_process_is_heard_to_its_end() {
    for length in [0, 100, 60_000] {
        let folder = tempfile::tempdir().unwrap();
        let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: false });
        for name in ["stdout", "stderr"] {
            let path = fifo(&folder, name);
            let (source, writer) = pipe((0, 0)).unwrap();
            nonblocking(&source).unwrap();
            let source = watched(source, Interest::READABLE).unwrap();
            io.copy_output(source, Sink::open(&path).await.unwrap(), Rest::InPipe);
            let mut writer = File::from(writer);
            writer.write_all(&vec![b'x'; length]).unwrap();
            writer.write_all(name.as_bytes()).unwrap();
            if name == "stdout" {
                // Somebody else has the pipe open, and says nothing.
                std::mem::forget(writer);
            }
        }
        let said = timeout(LONG, io.last_words()).await.unwrap();
        assert!(said.contains("stdout") && said.ends_with("stderr"), "{said}");
        assert_eq!(said.len(), 2 * (length + "stdout".len()));
    }
}

/// A runc that complained at length never ended, and the exec neither.
#[tokio::test(flavor = "current_thread")]
async fn what_makes_a_process_may_say_much_and_nothing_of_it_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(&folder, "stderr");
    let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: false });
    let (source, writer) = pipe((0, 0)).unwrap();
    nonblocking(&source).unwrap();
    let source = watched(source, Interest::READABLE).unwrap();
    io.copy_output(source, Sink::open(&path).await.unwrap(), Rest::InPipe);
    let maker = thread::spawn(move || File::from(writer).write_all(&[b'x'; 3_000_000]).unwrap());
    let reader = thread::spawn(move || std::fs::read(path).unwrap());
    let said = async {
        while !maker.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, said).await.unwrap();
    io.made();
    timeout(LONG, io.ended()).await.unwrap();
    drop(io);
    assert_eq!(reader.join().unwrap().len(), 3_000_000);
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn what_makes_a_process_and_says_more_than_is_kept_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = fifo(&folder, "stderr");
    let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: false });
    let (source, writer) = pipe((0, 0)).unwrap();
    nonblocking(&source).unwrap();
    let source = watched(source, Interest::READABLE).unwrap();
    io.copy_output(source, Sink::open(&path).await.unwrap(), Rest::InPipe);
    let maker = thread::spawn(move || File::from(writer).write_all(&[b'x'; 20_000_000]).unwrap());
    while !maker.is_finished() {
        sleep(Duration::from_millis(100)).await;
    }
    drop(io);
}

/// A write to a hung network file system stopped the whole shim.
#[tokio::test(flavor = "current_thread")]
async fn a_file_that_blocks_keeps_nobody_waiting() {
    // A pipe that blocks does what such a file does.
    let (mut reader, writer) = io::pipe().unwrap();
    let mut sink = Sink::File(file::FileSink::new(File::from(OwnedFd::from(writer))));
    let said = vec![b'x'; 200_000];
    assert_eq!(sink.write(&said).unwrap(), said.len());
    assert_eq!(sink.write(b"more").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(sink.left(), 200_000);
    let heard = thread::spawn(move || {
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        heard
    });
    timeout(LONG, sink.idle()).await.unwrap();
    assert_eq!(sink.left(), 0);
    drop(sink);
    assert_eq!(heard.join().unwrap(), said);
}

#[tokio::test(flavor = "current_thread")]
async fn a_file_gets_all_output_before_the_exit_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/log");
    let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: true });
    let (source, writer) = pipe((0, 0)).unwrap();
    nonblocking(&source).unwrap();
    let source = watched(source, Interest::READABLE).unwrap();
    let sink = Sink::open(&format!("file://{}", path.display())).await.unwrap();
    io.copy_output(source, sink, Rest::InPipe);
    io.made();
    let said = vec![b'x'; 1_000_000];
    let process = thread::spawn({
        let said = said.clone();
        move || File::from(writer).write_all(&said).unwrap()
    });
    while !process.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    timeout(LONG, io.ended()).await.unwrap();
    assert!(std::fs::read(&path).unwrap() == said);
}

#[tokio::test(flavor = "current_thread")]
async fn output_may_go_to_a_device_and_not_to_a_socket() {
    assert!(matches!(Sink::open("/dev/null").await.unwrap(), Sink::File(_)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(Sink::open(path.to_str().unwrap()).await.is_err());
    assert!(Sink::open(folder.path().join("missing").to_str().unwrap()).await.is_err());
}

/// A thread more for every exec was a tenth of its processor time.
#[test]
fn fifos_are_opened_without_another_thread() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    let (busy, gate) = std::sync::mpsc::channel::<()>();
    runtime.unwrap().block_on(async {
        // The only other thread that there may be.
        tokio::task::spawn_blocking(move || gate.recv());
        let Some(folder) = folder_in_run() else { return };
        let [stdin, stdout, stderr] = ["stdin", "stdout", "stderr"].map(|name| fifo(&folder, name));
        // What is open stays in the kernel's cache.
        let _held = [&stdin, &stdout, &stderr].map(|path| client(path));
        let paths = Paths { stdin, stdout, stderr, terminal: false };
        let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: false });
        // While something is mounted elsewhere, the kernel does not look into its cache.
        let mut quick = 0;
        for _ in 0..100 {
            quick +=
                usize::from(timeout(Duration::ZERO, io.open_pipes(&paths, (0, 0))).await.is_ok());
        }
        assert!(quick > 0, "each waits for the thread");
        drop(busy);
    });
}

/// A folder where containerd's clients have their FIFOs. Only root may make one.
fn folder_in_run() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/run");
    if folder.is_err() {
        println!("skipped: nothing can be made in /run");
    }
    folder.ok()
}

/// A folder of another file system than that.
fn folder_elsewhere() -> Option<tempfile::TempDir> {
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let folder = tempfile::tempdir_in("/dev/shm").ok();
    let folder = folder.filter(|folder| device(folder.path()) != device(Path::new("/run")));
    if folder.is_none() {
        println!("skipped: nothing can be made in /dev/shm, or that is where /run is");
    }
    folder
}

/// A server that has gone would block the thread as the FIFO is opened.
#[test]
fn a_fifo_of_another_file_system_is_not_at_hand() {
    let is_at_hand = |folder: &tempfile::TempDir| {
        let path = fifo(folder, "fifo");
        let _held = client(&path);
        (0..100).any(|_| Place::find(path.clone().into()).is_at_hand())
    };
    assert!(folder_in_run().is_none_or(|here| is_at_hand(&here)));
    assert!(!folder_elsewhere().is_some_and(|there| is_at_hand(&there)));
}

#[test]
fn what_is_no_fifo_is_not_at_hand() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file, folder.path().join("missing"), folder.path().to_owned()] {
        let place = Place::find(path.clone());
        assert!(!place.is_at_hand());
        assert_eq!(place.path(), path);
    }
}
