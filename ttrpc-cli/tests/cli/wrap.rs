//! `ttrpc trace --wrap`, ended in every way.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::common::*;

/// A trace in a process group of its own, as a shell has it.
fn wrap(address: &str) -> Child {
    use std::os::unix::process::CommandExt;
    let mut command = ttrpc(&["trace", "--wrap", address, "--schema", "builtin"]);
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("are shown"), "{line}");
    // It may write to it until it ends.
    thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    process
}

fn aside(address: &str) -> PathBuf {
    format!("{address}.traced").into()
}

#[track_caller]
fn assert_answers(address: &str) {
    assert_eq!(run(&["call", address, "grpc.health.v1.Health/Check"]).code, 0);
}

#[test]
fn a_trace_that_is_ended_in_any_way_leaves_the_servers_socket() {
    let server = conformance();
    let inode = |path: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let own = inode(&server.address);
    for signal in [
        Signal::HUP,
        Signal::QUIT,
        Signal::INT,
        Signal::TERM,
        Signal::KILL,
        Signal::ABORT,
        Signal::ALARM,
    ] {
        for is_group in [false, true] {
            let mut trace = wrap(&server.address);
            assert_ne!(inode(&server.address), own);
            assert_answers(&server.address);
            let pid = Pid::from_child(&trace);
            match is_group {
                true => kill_process_group(pid, signal).unwrap(),
                false => kill_process(pid, signal).unwrap(),
            }
            trace.wait().unwrap();
            let what = format!("the socket is put back after {signal:?} (group: {is_group})");
            eventually(&what, || !aside(&server.address).exists());
            assert_eq!(inode(&server.address), own, "{what}");
            assert_answers(&server.address);
        }
    }
}

/// There is a name at any time, and somebody listens, though traces come and go.
#[test]
fn clients_find_a_socket_at_any_time() {
    let server = conformance();
    let (is_over, connected) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let address = server.address.clone();
            let (is_over, connected) = (is_over.clone(), connected.clone());
            thread::spawn(move || {
                while !is_over.load(Relaxed) {
                    drop(UnixStream::connect(&address).unwrap());
                    connected.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    for signal in [Signal::INT, Signal::HUP, Signal::QUIT, Signal::TERM] {
        let mut trace = wrap(&server.address);
        let before = connected.load(Relaxed);
        eventually("clients connect to the trace", || connected.load(Relaxed) > before + 10);
        kill_process(Pid::from_child(&trace), signal).unwrap();
        eventually("the socket is put back", || !aside(&server.address).exists());
        // It has connections to pass on, perhaps, which its clients have closed.
        let _ = kill_process(Pid::from_child(&trace), Signal::TERM);
        trace.wait().unwrap();
    }
    is_over.store(true, Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_server_that_has_started_again_keeps_its_socket() {
    for signal in [Signal::INT, Signal::KILL] {
        let server = conformance();
        let mut trace = wrap(&server.address);
        fs::remove_file(&server.address).unwrap();
        let anew = UnixListener::bind(&server.address).unwrap();
        let pid = Pid::from_child(&trace);
        kill_process(pid, signal).unwrap();
        trace.wait().unwrap();
        eventually("nothing stands beside it", || !aside(&server.address).exists());
        let _client = UnixStream::connect(&server.address).unwrap();
        anew.accept().unwrap();
    }
}

#[test]
fn a_socket_that_was_removed_comes_back_while_its_server_lives() {
    let server = conformance();
    let mut trace = wrap(&server.address);
    fs::remove_file(&server.address).unwrap();
    kill_process(Pid::from_child(&trace), Signal::INT).unwrap();
    trace.wait().unwrap();
    assert_answers(&server.address);
    let mut trace = wrap(&server.address);
    fs::remove_file(&server.address).unwrap();
    kill_process(Pid::from_child(&trace), Signal::KILL).unwrap();
    trace.wait().unwrap();
    eventually("the socket is back", || Path::new(&server.address).exists());
    assert_answers(&server.address);
}

#[test]
fn a_socket_behind_a_link_is_wrapped_and_the_link_stays() {
    let server = conformance();
    let link = server.folder.path().join("link.sock");
    std::os::unix::fs::symlink(&server.address, &link).unwrap();
    let mut trace = wrap(link.to_str().unwrap());
    assert_answers(link.to_str().unwrap());
    kill_process(Pid::from_child(&trace), Signal::KILL).unwrap();
    trace.wait().unwrap();
    eventually("the socket is put back", || !aside(&server.address).exists());
    assert!(link.is_symlink());
    assert_answers(link.to_str().unwrap());
}
