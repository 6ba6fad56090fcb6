//! The blocking client: threads that share one, what they drive for each other, and what is in the socket
//! while none of them waits.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::runtime::Runtime;
use ttrpc::{
    ClientConfig, Code, ConnectionError, Context, Error, Metadata, Server, Status, async_trait,
    blocking,
    client::ConnectOptions,
    server::{Interceptor, Next},
    testing,
};
use ttrpc_tests::{
    conformance::*,
    harness::{DecodeFrom, PATIENCE, chunk, echo_request, key, patient_client, patient_server},
    service::ConformanceService,
    wire::{DATA, Request},
};

/// A server on a runtime of its own, and a blocking client that is connected to it.
pub struct Setup {
    pub client: ConformanceBlockingClient,
    pub service: Arc<ConformanceService>,
    pub runtime: Runtime,
}

pub fn connected() -> Setup {
    let runtime = Runtime::new().unwrap();
    let service = Arc::<ConformanceService>::default();
    let (here, there) = UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    let serving = service.clone();
    runtime.spawn(async {
        let there = tokio::net::UnixStream::from_std(there).unwrap();
        let server = Server::builder().config(patient_server()).unix_stream(there);
        server.add_service(ConformanceServer::from_arc(serving)).serve().await
    });
    let client = blocking::Client::from_unix_stream(here, patient_client()).unwrap();
    Setup { client: ConformanceBlockingClient::new(client), service, runtime }
}

/// A client whose server is played by the test, with system calls that wait.
pub fn played(config: ClientConfig) -> (ConformanceBlockingClient, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    let client = blocking::Client::from_unix_stream(here, config).unwrap();
    (client.into(), there)
}

/// A frame's id, type, flags and data.
pub fn read_frame(socket: &mut UnixStream) -> (u32, u8, u8, Vec<u8>) {
    let mut header = [0; 10];
    socket.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    let mut data = vec![0; word(0) as usize];
    socket.read_exact(&mut data).unwrap();
    (word(4), header[8], header[9], data)
}

#[test]
fn all_four_kinds_of_calls_are_made_without_a_runtime() {
    let setup = connected();
    let client = &setup.client;
    assert_eq!(client.echo(echo_request([1, 2])).call().unwrap().payload, [1, 2]);

    let replies = client.generate(GenerateRequest { count: 3, ..Default::default() }).call();
    let sequence: Vec<_> = replies.unwrap().map(|chunk| chunk.unwrap().sequence).collect();
    assert_eq!(sequence, [0, 1, 2]);

    let (mut requests, reply) = client.collect().call().unwrap();
    (0..3).for_each(|sequence| requests.send(chunk(sequence)).unwrap());
    requests.finish().unwrap();
    assert_eq!(reply.wait().unwrap().chunks, 3);

    let (mut requests, mut replies) = client.exchange().call().unwrap();
    requests.send(chunk(7)).unwrap();
    assert_eq!(replies.recv().unwrap().unwrap().sequence, 7);
    drop(requests);
    assert_eq!(replies.recv().unwrap(), None);
    assert!(replies.next().is_none());
}

#[test]
fn a_call_takes_its_metadata_and_its_timeout_along() {
    let setup = connected();
    let client = &setup.client;
    let metadata = Metadata::from_iter([("user", "ann")]);
    let call = client.inspect(Empty {}).with_metadata(metadata).metadata("user", "ben");
    let seen = call.timeout(Duration::from_secs(3600)).call().unwrap();
    let values: Vec<_> = seen.metadata.iter().map(|entry| entry.value.as_str()).collect();
    assert_eq!(values, ["ann", "ben"]);
    assert!(seen.timeout_nano > 0 && seen.timeout_nano <= 3_600_000_000_000);
}

#[test]
fn a_call_fails_with_the_servers_status() {
    let setup = connected();
    let client = &setup.client;
    let request = FailRequest { code: 5, message: "gone".to_owned(), ..Default::default() };
    let status = client.fail(request).call().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "gone"));
    let request = GenerateRequest { count: 1, fail_code: 9, ..Default::default() };
    let ends: Vec<_> = client.generate(request).call().unwrap().collect();
    assert_eq!(ends.len(), 2);
    assert_eq!(ends[1].as_ref().unwrap_err().code(), Code::FailedPrecondition);
}

#[test]
fn a_deadline_ends_a_call_whose_server_never_answers() {
    let setup = connected();
    let client = &setup.client;
    let call = client.wait(key("never")).timeout(Duration::from_millis(1));
    assert_eq!(call.call().unwrap_err().code(), Code::DeadlineExceeded);
    let (mut requests, mut replies) = client.exchange().timeout(PATIENCE).call().unwrap();
    requests.send(chunk(0)).unwrap();
    assert!(replies.recv().unwrap().is_some());
    let stream = || -> Result<_, Status> {
        let (_requests, mut replies) =
            client.exchange().timeout(Duration::from_millis(20)).call()?;
        replies.recv()
    };
    assert_eq!(stream().unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(client.echo(echo_request([1])).call().unwrap().payload, [1]);
}

#[test]
fn a_send_to_a_peer_that_does_not_read_ends_at_its_deadline() {
    let (client, _there) = played(ClientConfig::default());
    let send = || -> Result<(), Status> {
        let (mut requests, _reply) = client.collect().timeout(Duration::from_millis(50)).call()?;
        loop {
            requests.send(Chunk { sequence: 0, payload: vec![0; 1 << 20] })?;
        }
    };
    assert_eq!(send().unwrap_err().code(), Code::DeadlineExceeded);
}

/// Whichever thread drives, the others' calls are answered, and it is relieved when its own call is done.
#[test]
fn threads_that_wait_for_each_other_drive_one_connection() {
    let setup = connected();
    let (client, service) = (&setup.client, &setup.service);
    let waiting: Vec<_> = (0..100)
        .map(|number| {
            let client = client.clone();
            thread::spawn(move || client.wait(key(&number.to_string())).call())
        })
        .collect();
    while service.calls_total() < 100 {
        client.echo(echo_request([1])).call().unwrap();
    }
    for (number, waiting) in waiting.into_iter().enumerate() {
        client.release(key(&number.to_string())).call().unwrap();
        waiting.join().unwrap().unwrap();
    }
}

#[test]
fn the_ends_of_a_stream_may_be_used_by_two_threads() {
    let setup = connected();
    let client = &setup.client;
    let (mut requests, replies) = client.exchange().call().unwrap();
    let sending = thread::spawn(move || {
        (0..3000).for_each(|sequence| requests.send(chunk(sequence)).unwrap());
        requests.finish().unwrap();
    });
    let sequence: Vec<_> = replies.map(|chunk| chunk.unwrap().sequence).collect();
    assert!(sequence.into_iter().eq(0..3000));
    sending.join().unwrap();
}

/// The server is this thread, so nobody drives the client while it reads.
#[test]
fn what_was_sent_is_in_the_socket_when_the_function_returns() {
    let (client, mut there) = played(ClientConfig::default());
    let _replies = client.generate(GenerateRequest::default()).call().unwrap();
    let (_, _, _, data) = read_frame(&mut there);
    assert_eq!(Request::decode_from(&data).method, "Generate");

    let (mut requests, _reply) = client.collect().call().unwrap();
    let (id, _, _, data) = read_frame(&mut there);
    assert_eq!(Request::decode_from(&data).method, "Collect");
    requests.send(chunk(5)).unwrap();
    assert_eq!(read_frame(&mut there).0, id);
    requests.finish().unwrap();
    let (last_id, kind, flags, _) = read_frame(&mut there);
    assert_eq!((last_id, kind, flags), (id, DATA, 5));
}

/// While this thread does something else, its stream's replies wait in the socket.
#[test]
fn replies_that_came_while_nobody_waited_are_read_later() {
    let (client, mut there) = played(ClientConfig::default());
    let mut replies = client.generate(GenerateRequest::default()).call().unwrap();
    let id = read_frame(&mut there).0;
    for flags in [0, 5] {
        there.write_all(&[0, 0, 0, 0]).unwrap();
        there.write_all(&id.to_be_bytes()).unwrap();
        there.write_all(&[DATA, flags]).unwrap();
    }
    drop(there);
    assert!(client.client().close_reason().is_none(), "nobody has looked");
    assert_eq!(replies.recv().unwrap(), Some(Chunk::default()));
    assert_eq!(replies.recv().unwrap(), None);
    let reason = client.client().closed();
    assert!(matches!(reason, ConnectionError::ClosedByServer), "{reason}");
}

#[test]
fn every_thread_is_told_that_the_connection_is_gone() {
    let (client, there) = played(ClientConfig::default());
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            thread::spawn(move || client.echo(echo_request([])).call().unwrap_err())
        })
        .collect();
    drop(there);
    for call in calls {
        assert_eq!(call.join().unwrap().code(), Code::Unavailable);
    }
    client.client().closed();
    assert_eq!(client.echo(echo_request([])).call().unwrap_err().code(), Code::Unavailable);
}

#[test]
fn closing_ends_the_calls_of_other_threads_and_closes_the_socket() {
    let (client, mut there) = played(ClientConfig::default());
    let other = client.clone();
    let call = thread::spawn(move || other.echo(echo_request([])).call().unwrap_err());
    read_frame(&mut there);
    client.client().close();
    assert_eq!(call.join().unwrap().code(), Code::Unavailable);
    assert_eq!(there.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_shutdown_lets_the_end_of_a_stream_leave_whose_sender_was_dropped() {
    let (client, mut there) = played(ClientConfig::default());
    let (requests, reply) = client.collect().call().unwrap();
    let id = read_frame(&mut there).0;
    drop(requests);
    client.client().shutdown(PATIENCE);
    let (last_id, kind, flags, _) = read_frame(&mut there);
    assert_eq!((last_id, kind, flags), (id, DATA, 5));
    assert_eq!(there.read(&mut [0]).unwrap(), 0);
    assert_eq!(reply.wait().unwrap_err().code(), Code::Unavailable);
}

#[test]
fn what_a_client_says_of_all_its_calls_goes_with_each() {
    let setup = connected();
    let client = setup.client.client().clone().with_metadata("user", "ann").with_timeout(PATIENCE);
    let seen = ConformanceBlockingClient::new(client).inspect(Empty {}).call().unwrap();
    assert_eq!(seen.metadata[0].value, "ann");
    assert!(seen.timeout_nano > 0);
}

/// A thread that waits for the end drives the connection for a program that does not want to.
#[test]
fn a_thread_that_waits_for_the_end_notices_it_for_all() {
    let (client, there) = played(ClientConfig::default());
    let watched = client.client().clone();
    let watching = thread::spawn(move || watched.closed());
    drop(there);
    assert!(matches!(watching.join().unwrap(), ConnectionError::ClosedByServer));
    assert!(client.client().close_reason().is_some());
}

#[test]
fn functions_that_wait_panic_in_a_task_and_dropping_does_not() {
    let Setup { client, runtime, service: _ } = connected();
    let (mut requests, replies) = client.exchange().call().unwrap();
    let client = runtime.block_on(async move {
        let panics = |action: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(action)).is_err();
        assert!(panics(&mut || drop(client.echo(echo_request([])).call())));
        assert!(panics(&mut || drop(requests.send(chunk(0)))));
        assert!(panics(&mut || drop(blocking::Client::connect("unix:///dev/null"))));
        drop((requests, replies));
        // There is a place for it in a runtime as well.
        let calling = tokio::task::spawn_blocking(move || {
            client.echo(echo_request([1])).call().unwrap();
            client
        });
        calling.await.unwrap()
    });
    let (drops, dropped) = mpsc::channel();
    runtime.block_on(async {
        drop(client);
        drops.send(()).unwrap();
    });
    dropped.recv().unwrap();
}

#[test]
fn connecting_succeeds_or_says_why_it_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix://{}", folder.path().join("a.sock").display());
    let Err(Error::Connect { .. }) = blocking::Client::connect(&address) else {
        panic!("nobody listens")
    };
    let options = ConnectOptions::new().retry_for(Duration::from_millis(1));
    let Err(Error::ConnectTimeout { .. }) = options.connect_blocking(&address) else {
        panic!("nobody listens")
    };
    let runtime = Runtime::new().unwrap();
    let service = ConformanceServer::new(ConformanceService::default());
    let server = Server::builder().add_service(service).bind(&address).unwrap();
    runtime.spawn(server.serve());
    let client = blocking::Client::connect_with(&address, patient_client()).unwrap();
    let client = ConformanceBlockingClient::new(client);
    assert_eq!(client.echo(echo_request([3])).call().unwrap().payload, [3]);
}

/// Hands out the context of each call, whose time is over then.
struct EndsAtOnce(mpsc::Sender<Context>);

#[async_trait]
impl Interceptor for EndsAtOnce {
    async fn intercept(&self, ctx: &mut Context, _: Next<'_>) -> Result<(), Status> {
        ctx.shorten_deadline(tokio::time::Instant::now());
        self.0.send(ctx.clone()).unwrap();
        Err(Status::aborted("its context is what was wanted"))
    }
}

#[test]
fn a_call_within_another_ends_with_that() {
    let setup = connected();
    let (sender, contexts) = mpsc::channel();
    let server = Server::builder().intercept(EndsAtOnce(sender));
    let service = ConformanceServer::from_arc(setup.service.clone());
    let client = testing::Setup::new(server.add_service(service)).connect_blocking();
    let outer = ConformanceBlockingClient::new(client);
    outer.echo(echo_request([])).call().unwrap_err();
    let call = setup.client.echo(echo_request([])).within(&contexts.recv().unwrap());
    assert_eq!(call.call().unwrap_err().code(), Code::DeadlineExceeded);
}
