//! A process that forks after its clients have connected: what its child does with its copies of them leaves the parent's
//! connections alone, and calls in the child are refused. Without a harness, which would have threads: a child has only
//! the thread that has forked.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    time::Duration,
};

use fork::{Fork, fork};
use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::runtime::{Builder, Runtime};
use ttrpc::{
    Client, Code, ConnectionError, Status, async_trait, blocking,
    client::{Answer, Backoff, ConnectOptions, Interceptor, Next, OutgoingCall},
};
use ttrpc_tests::{
    conformance::*,
    harness::{chunk, echo_request},
    process::Process,
};

struct Passes;

#[async_trait]
impl Interceptor for Passes {
    async fn intercept(&self, call: &mut OutgoingCall, next: Next<'_>) -> Result<Answer, Status> {
        next.run(call).await
    }
}

/// Runs this in a child, which exits well if it does not panic.
fn in_a_child(run: impl FnOnce()) {
    match fork().expect("a process can be forked") {
        Fork::Child => {
            let result = catch_unwind(AssertUnwindSafe(run));
            process::exit(i32::from(result.is_err()));
        }
        Fork::Parent(child) => {
            let child = Pid::from_raw(child).expect("a child has a number");
            let ended = waitpid(Some(child), WaitOptions::empty()).expect("it is a child");
            let (_, status) = ended.expect("it was waited for");
            assert_eq!(status.exit_status(), Some(0), "the child has failed");
        }
    }
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T, Status>) {
    let status = result.expect_err("it is refused");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(matches!(status.connection_error(), Some(ConnectionError::Forked)), "{status}");
    assert!(status.message().contains("connect after the fork"), "{status}");
}

fn a_child_leaves_the_connection_of_a_blocking_client_to_its_parent(address: &str) {
    let client = blocking::Client::connect(address).unwrap();
    let conformance = ConformanceBlockingClient::new(client.clone());
    let echo = |conformance: &ConformanceBlockingClient, byte| {
        let reply = conformance.echo(echo_request([byte])).call();
        assert_eq!(reply.unwrap().payload, [byte]);
    };
    echo(&conformance, 0);
    let stream = conformance.exchange().call().unwrap();
    // All that there is: a child that takes it drops the last copies.
    let mut all = Some((stream, conformance, client));
    let mut number = 0;
    let mut goes_on = |all: &mut Option<_>| {
        let Some(((requests, replies), conformance, client)) = all else { unreachable!() };
        let requests: &mut blocking::StreamSender<Chunk> = requests;
        let replies: &mut blocking::StreamReceiver<Chunk> = replies;
        let client: &mut blocking::Client = client;
        for _ in 0..50 {
            number += 1;
            echo(conformance, number as u8);
            requests.send(chunk(number)).unwrap();
            assert_eq!(replies.recv().unwrap(), Some(chunk(number)));
        }
        assert!(client.close_reason().is_none());
    };
    goes_on(&mut all);

    in_a_child(|| drop(all.take()));
    goes_on(&mut all);
    // In another order.
    in_a_child(|| {
        let ((requests, replies), conformance, client) = all.take().unwrap();
        drop((client, conformance));
        drop((replies, requests));
    });
    goes_on(&mut all);
    in_a_child(|| {
        let (_, _, client) = all.as_ref().unwrap();
        client.shutdown(Duration::from_secs(1));
        client.close();
        assert!(matches!(client.closed(), ConnectionError::Forked));
    });
    goes_on(&mut all);
    in_a_child(|| {
        let ((mut requests, mut replies), conformance, client) = all.take().unwrap();
        assert_refused(conformance.echo(echo_request([9])).call());
        assert_refused(conformance.generate(GenerateRequest::default()).call());
        assert_refused(conformance.collect().call());
        assert_refused(conformance.exchange().call());
        assert_refused(requests.send(chunk(9)));
        assert_refused(replies.recv());
        assert_refused(requests.finish());
        drop((replies, conformance, client));
        let own = blocking::Client::connect(address).unwrap();
        echo(&ConformanceBlockingClient::new(own), 8);
    });
    goes_on(&mut all);
    let ((requests, mut replies), ..) = all.take().unwrap();
    requests.finish().unwrap();
    assert_eq!(replies.recv().unwrap(), None);
}

fn a_child_leaves_the_connection_of_an_asynchronous_client_to_its_parent(address: &str) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Client::connect(address)).unwrap();
    let mut all = Some((ConformanceClient::new(client), runtime));
    let goes_on = |all: &Option<(ConformanceClient, Runtime)>| {
        let (conformance, runtime) = all.as_ref().unwrap();
        for byte in 0..50 {
            let reply = runtime.block_on(conformance.echo(echo_request([byte])).into_future());
            assert_eq!(reply.unwrap().payload, [byte]);
        }
    };
    goes_on(&all);
    in_a_child(|| drop(all.take()));
    goes_on(&all);
    in_a_child(|| {
        let (conformance, runtime) = all.take().unwrap();
        conformance.client().close();
        drop(runtime);
        drop(conformance);
    });
    goes_on(&all);
    // A runtime of the child's own, in which a call writes nothing to the parent's socket.
    in_a_child(|| {
        let (conformance, _runtime) = all.as_ref().unwrap();
        let own = Builder::new_current_thread().enable_all().build().unwrap();
        let client = conformance.client();
        own.block_on(async {
            // Without a deadline.
            assert_refused(conformance.echo(echo_request([9])).await);
            assert_refused(conformance.generate(GenerateRequest::default()).await);
            assert_refused(conformance.exchange().await);
            assert_refused(
                client.clone().with_interceptor(Passes).unary::<(), ()>("a.B", "C", ()).await,
            );
            client.shutdown().await;
            assert!(matches!(client.closed().await, ConnectionError::Forked));
        });
        let client = own.block_on(Client::connect(address)).unwrap();
        let call = ConformanceClient::new(client).echo(echo_request([8]));
        assert_eq!(own.block_on(call.into_future()).unwrap().payload, [8]);
    });
    goes_on(&all);
}

fn a_child_is_refused_by_a_client_that_reconnects(address: &str) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let options = ConnectOptions::new().reconnect(Backoff::new());
    let client = runtime.block_on(options.connect(address)).unwrap();
    let conformance = ConformanceClient::new(client);
    let echo = || conformance.echo(echo_request([7])).into_future();
    runtime.block_on(echo()).unwrap();
    in_a_child(|| {
        let own = Builder::new_current_thread().enable_all().build().unwrap();
        // Without a deadline.
        assert_refused(own.block_on(echo()));
        assert_refused(own.block_on(conformance.exchange().into_future()).map(drop));
    });
    assert_eq!(runtime.block_on(echo()).unwrap().payload, [7]);
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix://{}", folder.path().join("a.sock").display());
    let server = env!("CARGO_BIN_EXE_ttrpc-conformance-server");
    let mut server = Process::start_conformance_server(server, &address).unwrap();
    a_child_leaves_the_connection_of_a_blocking_client_to_its_parent(&address);
    a_child_leaves_the_connection_of_an_asynchronous_client_to_its_parent(&address);
    a_child_is_refused_by_a_client_that_reconnects(&address);
    server.kill();
    println!("test result: ok. a child leaves its parent's connections alone");
}
