//! Names that clients make up, in the output of `ttrpc trace` and `ttrpc show`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::Stdio,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::*;

/// A Request for `C` of a service with this name.
fn request(stream: u8, service: &str) -> Vec<u8> {
    let mut data = vec![0x0a, service.len() as u8];
    data.extend(service.as_bytes());
    data.extend([0x12, 1, b'C']);
    let mut frame = vec![0, 0, 0, data.len() as u8, 0, 0, 0, stream, 1, 0];
    frame.extend(data);
    frame
}

#[test]
fn names_that_clients_make_up_do_not_reach_the_terminal() {
    let server = conformance();
    let path_of = |name| server.folder.path().join(name).display().to_string();
    let (listen, file) = (path_of("t.sock"), path_of("a.trace"));
    let arguments = ["--listen", &listen, "--upstream", &server.address, "--record", &file];
    let mut trace = ttrpc(&[&["trace", "--color", "always"], &arguments[..]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(trace.stderr.take().unwrap());
    let mut told = String::new();
    while !told.contains("are shown") {
        assert_ne!(stderr.read_line(&mut told).unwrap(), 0, "{told}");
    }
    let mut client = UnixStream::connect(&listen).unwrap();
    client.write_all(&request(1, "ev\u{1b}]0;title\u{7}\nil")).unwrap();
    let mut header = [0; 10];
    client.read_exact(&mut header).unwrap();
    drop(client);
    kill_process(Pid::from_child(&trace), Signal::INT).unwrap();
    let mut text = String::new();
    trace.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(trace.wait().unwrap().success());
    let shown = run(&["show", &file, "--color", "always"]).ok();
    for text in [text, shown] {
        // In the call's line and in the table.
        assert!(text.matches("title").count() > 1, "{text:?}");
        assert!(!text.contains("\u{1b}]") && !text.contains("\nil"), "{text:?}");
    }
}
