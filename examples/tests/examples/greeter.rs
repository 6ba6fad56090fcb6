//! Runs the greeter's two programs.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use ttrpc_tests::harness::PATIENCE;

/// A server that does not outlive the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_client_gets_every_kind_of_greeting_from_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix://{}", folder.path().join("greeter.sock").display());
    let mut server = Command::new(env!("CARGO_BIN_EXE_greeter-server"))
        .arg(&address)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map(Server)
        .unwrap();
    let (log, logged) = mpsc::channel();
    let stderr = server.0.stderr.take().unwrap();
    thread::spawn(move || {
        BufReader::new(stderr).lines().try_for_each(|line| log.send(line.unwrap()))
    });
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("listening on {address}\n"));

    let client = Command::new(env!("CARGO_BIN_EXE_greeter-client")).arg(&address).output().unwrap();
    let stderr = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success(), "{stderr}");
    let expected = "\
        Hello, Ann!\n\
        Good morning, Ben!\n\
        refused: whom shall I greet?\n\
        3…\n2…\n1…\nHello, Cleo!\n\
        Hello, Dan and Eve! (2 people)\n\
        Hello, Fay!\n\
        Hello, Gus!\n";
    assert_eq!(String::from_utf8_lossy(&client.stdout), expected);

    // The server's access log has a line for each call, in whatever order.
    let refused = r#"error="whom shall I greet?""#;
    let mut missing = vec![["SayHello", refused], ["Countdown", "cause=replied"]];
    while !missing.is_empty() {
        let line = logged.recv_timeout(PATIENCE);
        let line = line.unwrap_or_else(|_| panic!("lines with {missing:?} are logged"));
        missing.retain(|parts| !parts.iter().all(|part| line.contains(part)));
    }
}

#[test]
fn the_server_ends_well_on_sigterm_and_removes_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("greeter.sock");
    let mut server = Command::new(env!("CARGO_BIN_EXE_greeter-server"))
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map(Server)
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let second = Command::new(env!("CARGO_BIN_EXE_greeter-server")).arg(&socket).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(stderr.contains("greeter-server: ") && !stderr.contains("AddressInUse"), "{stderr}");

    let killed = Command::new("kill").arg(server.0.id().to_string()).status().unwrap();
    assert!(killed.success());
    let ended = server.0.wait().unwrap();
    assert!(ended.success(), "{ended}");
    assert!(!socket.exists());
}

#[test]
fn the_client_says_what_it_could_not_connect_to() {
    let client =
        Command::new(env!("CARGO_BIN_EXE_greeter-client")).arg("/no/such.sock").output().unwrap();
    assert!(!client.status.success());
    let stderr = String::from_utf8_lossy(&client.stderr);
    assert!(stderr.contains("/no/such.sock"), "{stderr}");
}
