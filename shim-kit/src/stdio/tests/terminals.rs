//! Terminals: both directions, and children that keep one.

use super::*;

/// A terminal's master and its other side.
fn terminal() -> (OwnedFd, File) {
    let (master, process) = console::open().unwrap();
    (master, process.into())
}

/// Both directions share the terminal's descriptor.
#[tokio::test(flavor = "current_thread")]
async fn what_is_typed_reaches_the_terminal_and_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let paths = Paths {
        stdin: fifo(&folder, "stdin"),
        stdout: fifo(&folder, "stdout"),
        terminal: true,
        ..Paths::default()
    };
    let mut screen = client(&paths.stdout);
    let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: false });
    let (master, mut process) = terminal();
    io.open_terminal(&paths, master, None).await.unwrap();
    io.made();
    let reader = io.start_input(Arc::default());
    io.terminal.with(|master| assert_eq!(Arc::strong_count(master.as_ref().unwrap()), 3));

    reader.await;
    let mut keyboard = open(&paths.stdin, OFlags::WRONLY).unwrap();
    nonblocking(&process.as_fd().try_clone_to_owned().unwrap()).unwrap();
    for round in ["one", "two"] {
        keyboard.write_all(format!("{round}\n").as_bytes()).unwrap();
        assert_eq!(heard(&mut process, round).await, format!("{round}\n"));
        process.write_all(b"heard").unwrap();
        // The terminal shows what is typed.
        assert_eq!(heard(&mut screen, "heard").await, format!("{round}\r\nheard"));
    }
    let tasks = io.copies.tasks.clone();
    drop((io, process));
    tasks.close();
    timeout(LONG, tasks.wait()).await.expect("a copy goes on");
}

/// What is said until it ends with this.
async fn heard(file: &mut File, end: &str) -> String {
    let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&heard).trim_end().ends_with(end) {
        match file.read(&mut buffer) {
            Ok(read) => heard.extend_from_slice(&buffer[..read]),
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    }
    String::from_utf8(heard).unwrap()
}

/// The exit was held back for as long as a child had the terminal and wrote, or 10 s if not.
#[tokio::test(flavor = "current_thread")]
async fn a_child_that_keeps_the_terminal_does_not_hold_back_the_exit() {
    for writes in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(&folder, "stdout");
        let mut reader = client(&path);
        let mut io = Io::new(Copies::default(), Manner { patience: HOUR, is_lasting: false });
        let (master, mut slave) = terminal();
        let paths = Paths { stdout: path, terminal: true, ..Paths::default() };
        io.open_terminal(&paths, master, None).await.unwrap();
        io.made();
        slave.write_all(b"the leader's last words").unwrap();
        let reads = thread::spawn(move || {
            let mut heard = Vec::new();
            let mut buffer = [0; 4096];
            while !String::from_utf8_lossy(&heard).contains("last words") {
                match reader.read(&mut buffer) {
                    Ok(read) => heard.extend_from_slice(&buffer[..read]),
                    Err(_) => thread::yield_now(),
                }
            }
            // It goes on to read until the end.
            while !matches!(reader.read(&mut buffer), Ok(0)) {
                thread::yield_now();
            }
        });
        let child = writes.then(|| {
            let mut slave = slave.try_clone().unwrap();
            thread::spawn(move || while slave.write_all(b"child\n").is_ok() {})
        });
        timeout(LONG, io.ended()).await.expect("the exit is held back");
        // Deleted: the child is hung up.
        let tasks = io.copies.tasks.clone();
        drop(io);
        tasks.close();
        timeout(LONG, tasks.wait()).await.expect("a copy goes on");
        reads.join().unwrap();
        if let Some(child) = child {
            child.join().unwrap();
        }
        drop(slave);
    }
}
