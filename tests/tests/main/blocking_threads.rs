//! Many threads that share a blocking client: the time is kept when the thread that drives leaves, and none
//! waits for what the others wait for. `tests/drivers` shows that these tests notice drivers that are wrong.

use std::{
    collections::VecDeque,
    io::Write,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use tokio::time::Instant;
use ttrpc::{ClientConfig, Code, Status, blocking};
use ttrpc_tests::{
    conformance::*,
    harness::{DecodeFrom, chunk, echo_request, key, patient_client},
    process::Process,
    wire::{Frame, Request},
};

use crate::blocking_client::{connected, played, read_frame};

/// As many as the benchmark has.
const THREADS: usize = 64;

/// Reads a call of [`ConformanceBlockingClient::echo`]: its id, and the first byte of its payload.
fn read_echo(there: &mut UnixStream) -> (u32, u8) {
    let (id, _, _, data) = read_frame(there);
    let request = EchoRequest::decode_from(&Request::decode_from(&data).payload);
    (id, request.payload[0])
}

fn answer(there: &mut UnixStream, id: u32) {
    there.write_all(&Frame::reply(id, &EchoResponse::default()).to_bytes()).unwrap();
}

/// The others' deadlines pass one after the other, and each thread that leaves may be the one that drives.
#[test]
fn deadlines_hold_when_the_driving_thread_leaves() {
    // Where the machine was too slow for the driver to leave before the first deadline, it is tried with later ones.
    for round in 0.. {
        let (client, mut there) = played(ClientConfig::default());
        let caller = client.clone();
        let driving = thread::spawn(move || caller.echo(echo_request([0])).call().unwrap());
        // It drives: nobody else could have written this.
        let (id, _) = read_echo(&mut there);
        let first_deadline = Instant::now() + Duration::from_millis(20 << round);
        let waiting: Vec<_> = (0..8)
            .map(|number| {
                let call = client.wait(key("never"));
                let call = call.deadline(first_deadline + Duration::from_millis(number));
                thread::spawn(move || call.call().unwrap_err().code())
            })
            .collect();
        while client.client().calls_in_flight() < 9 && Instant::now() < first_deadline {
            thread::yield_now();
        }
        answer(&mut there, id);
        driving.join().unwrap();
        let has_left_in_time = Instant::now() < first_deadline;
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), Code::DeadlineExceeded);
        }
        if has_left_in_time {
            return;
        }
    }
}

/// While one thread makes its calls all the others wait, whether it is the one that drives or not.
#[test]
fn a_thread_returns_with_its_reply_though_the_calls_of_all_others_go_on() {
    const CALLS: usize = 8;
    let (client, mut there) = played(ClientConfig::default());
    let callers: Vec<_> = (0..THREADS as u8)
        .map(|number| {
            let client = client.clone();
            thread::spawn(move || {
                for _ in 0..CALLS {
                    client.echo(echo_request([number])).call().unwrap();
                }
            })
        })
        .collect();
    let mut waiting: VecDeque<_> = (0..THREADS).map(|_| read_echo(&mut there)).collect();
    let mut calls = [1; THREADS];
    // Of those that wait, now the first is answered and now the last.
    for takes_first in [true, false, false].into_iter().cycle() {
        let next = if takes_first { waiting.pop_front() } else { waiting.pop_back() };
        let Some((id, number)) = next else { break };
        answer(&mut there, id);
        let calls = &mut calls[usize::from(number)];
        if *calls < CALLS {
            *calls += 1;
            let next = read_echo(&mut there);
            assert_eq!(next.1, number, "nobody else has got a reply");
            waiting.push_back(next);
        }
    }
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

/// Each goes on until all have made their calls: one that starved would have no end.
#[test]
fn of_many_threads_that_never_pause_each_makes_its_calls() {
    let setup = connected();
    let unfinished = Arc::new(AtomicUsize::new(THREADS));
    let callers: Vec<_> = (0..THREADS as u8)
        .map(|number| {
            let (client, unfinished) = (setup.client.clone(), unfinished.clone());
            thread::spawn(move || {
                let mut calls = 0;
                while unfinished.load(SeqCst) > 0 {
                    let reply = client.echo(echo_request([number])).call().unwrap();
                    assert_eq!(reply.payload, [number]);
                    calls += 1;
                    if calls == 50 {
                        unfinished.fetch_sub(1, SeqCst);
                    }
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    assert_eq!(setup.client.client().calls_in_flight(), 0);
}

/// What a thread of a tool does, by the kind of its calls.
#[derive(Clone, Copy)]
enum Role {
    Unary,
    Replies,
    Requests,
    Both,
}

impl Role {
    /// A call that does not end before this time is over.
    fn late_call(
        self,
        client: &ConformanceBlockingClient,
        timeout: Duration,
    ) -> Result<(), Status> {
        match self {
            Role::Unary => client.wait(key("never")).timeout(timeout).call().map(drop),
            Role::Replies => {
                let hour = 3_600_000_000;
                let request = GenerateRequest { count: 2, interval_micros: hour, ..<_>::default() };
                client
                    .generate(request)
                    .timeout(timeout)
                    .call()?
                    .try_for_each(|reply| reply.map(drop))
            }
            Role::Requests => {
                let (requests, reply) = client.hold().timeout(timeout).call()?;
                requests.finish()?;
                reply.wait().map(drop)
            }
            Role::Both => {
                let (_requests, mut replies) = client.exchange().timeout(timeout).call()?;
                replies.recv().map(drop)
            }
        }
    }

    /// A call that is given up, or ends with the server's CANCELLED where it cannot be.
    fn abandoned_call(self, client: &ConformanceBlockingClient) -> Result<(), Status> {
        match self {
            Role::Unary => {
                let request = FailRequest { code: Code::Cancelled as i32, ..<_>::default() };
                assert_eq!(client.fail(request).call().unwrap_err().code(), Code::Cancelled);
            }
            Role::Replies => {
                let request = GenerateRequest { count: u64::MAX, size: 9, ..<_>::default() };
                client.generate(request).call()?.recv()?;
            }
            Role::Requests => client.collect().call()?.0.send(chunk(0))?,
            Role::Both => {
                let (mut requests, mut replies) = client.exchange().call()?;
                requests.send(chunk(0))?;
                replies.recv()?;
            }
        }
        Ok(())
    }

    /// A call that has no end but its connection's. Says when it is under way.
    fn endless_call(
        self,
        client: &ConformanceBlockingClient,
        begun: mpsc::Sender<()>,
    ) -> Result<(), Status> {
        let is_under_way = |begun: mpsc::Sender<()>| begun.send(()).unwrap();
        match self {
            Role::Unary => {
                is_under_way(begun);
                client.wait(key("never")).call().map(drop)
            }
            Role::Replies => {
                let request = GenerateRequest { count: u64::MAX, size: 900, ..<_>::default() };
                let mut replies = client.generate(request).call()?;
                replies.recv()?;
                is_under_way(begun);
                replies.try_for_each(|reply| reply.map(drop))
            }
            Role::Requests => {
                let (mut requests, _reply) = client.collect().call()?;
                requests.send(chunk(0))?;
                is_under_way(begun);
                (1..).try_for_each(|sequence| requests.send(chunk(sequence)))
            }
            Role::Both => {
                let (mut requests, mut replies) = client.exchange().call()?;
                requests.send(chunk(0))?;
                replies.recv()?;
                is_under_way(begun);
                (1..).try_for_each(|sequence| {
                    requests.send(chunk(sequence))?;
                    assert_eq!(replies.recv()?, Some(chunk(sequence)));
                    Ok(())
                })
            }
        }
    }
}

#[test]
fn a_tool_with_a_hundred_threads_is_told_of_deadlines_and_of_the_death_of_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix://{}", folder.path().join("a.sock").display());
    let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_ttrpc-conformance-server"));
    server.args(["--listen", &address, "--stall-timeout", "600"]);
    let mut server = Process::start_server(&mut server).unwrap();
    let client = blocking::Client::connect_with(&address, patient_client()).unwrap();
    let client = ConformanceBlockingClient::new(client);

    let (begun, under_way) = mpsc::channel();
    let roles = [Role::Unary, Role::Replies, Role::Requests, Role::Both];
    let threads: Vec<_> = (0..100)
        .map(|number: u8| {
            let (client, begun) = (client.clone(), begun.clone());
            let role = roles[usize::from(number) % roles.len()];
            thread::spawn(move || {
                let timeout = Duration::from_millis(number.into());
                let late = role.late_call(&client, timeout).unwrap_err();
                assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
                role.abandoned_call(&client).unwrap();
                let reply = client.echo(echo_request([number])).call().unwrap();
                assert_eq!(reply.payload, [number]);

                let lost = role.endless_call(&client, begun).unwrap_err();
                let later = role.late_call(&client, Duration::from_secs(3600)).unwrap_err();
                for status in [lost, later] {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                    assert!(status.connection_error().is_some(), "{status}");
                }
            })
        })
        .collect();
    drop(begun);
    // Fewer come where a thread has failed.
    assert_eq!(under_way.iter().count(), 100);
    server.kill();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    client.client().closed();
    assert_eq!(client.client().calls_in_flight(), 0);
}
