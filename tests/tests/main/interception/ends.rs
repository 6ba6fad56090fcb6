//! Ends whose cause is not that of the status: what a handler never saw is not its failure. And connections whose
//! tasks never run.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{self, Waker},
    time::Duration,
};

use tokio::runtime::Builder;
use ttrpc::{
    Connection, Context, Raw, Status, async_trait,
    client::{self, Answer, OutgoingCall},
    server::{Interceptor, Next, Routes, StreamReceiver, blocking},
};

use ttrpc_tests::gate::Gate;

use super::*;

/// Every connection that is told to be closed was told to be open before.
#[test]
fn a_connection_whose_runtime_ends_before_it_is_served_is_told_as_opened_and_closed() {
    let recorder = Recorder::default();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (here, there) = duplex(PIPE_LEN);
    let server = runtime.block_on(async {
        let server = TestServer::start_with(ServerConfig::default(), |builder| {
            builder.observe(recorder.clone()).keep_open()
        });
        // Returns before the connection's tasks have run.
        server.handle.serve_connection(Connection::new(there)).await.unwrap();
        server
    });
    drop(runtime);
    recorder.told(|told| assert_eq!((told.opened, told.closed.len()), (1, 1), "{told:?}"));
    drop((server, here));
}

/// What panics for that leaves nothing behind, not even in the sums of an observer.
#[test]
fn connections_that_are_made_outside_of_a_runtime_are_told_as_closed() {
    let (at_server, at_client) = (Recorder::default(), Recorder::default());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(async {
        let config = patient_server().max_connections(1);
        let server = TestServer::start_with(config, |builder| {
            builder.observe(at_server.clone()).keep_open()
        });
        settle().await;
        server
    });
    let (here, there) = duplex(PIPE_LEN);
    let mut serving = pin!(server.handle.serve_connection(Connection::new(there)));
    let mut cx = task::Context::from_waker(Waker::noop());
    catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(&mut cx))).unwrap_err();
    let client = || observed_client(here, patient_client(), &at_client);
    catch_unwind(AssertUnwindSafe(client)).unwrap_err();
    for recorder in [&at_server, &at_client] {
        recorder.told(|told| assert_eq!((told.opened, told.closed.len()), (1, 1), "{told:?}"));
    }
    // The only connection that may be open.
    let (_here, there) = duplex(PIPE_LEN);
    runtime.block_on(server.handle.serve_connection(Connection::new(there))).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_that_answers_nothing_has_refused_the_call() {
    struct Silent;
    #[async_trait]
    impl Interceptor for Silent {
        async fn intercept(&self, _: &mut Context, _: Next<'_>) -> Result<(), Status> {
            Ok(())
        }
    }
    let all = observed_with(ServerConfig::default(), ClientConfig::default(), |builder| {
        builder.intercept(Silent)
    });
    all.conformance.echo(echo_request([])).await.unwrap_err();
    all.at_server.expect("Echo", Code::Internal, EndCause::Refused).await;
}

#[tokio::test]
async fn a_call_that_gets_no_thread_is_told_as_ended_by_a_limit() {
    const NAME: &str = "test.Blocking";
    let gate = Arc::new(Gate::default());
    let routes = Routes::new(NAME).unary("Wait", &Arc::new(gate.clone()), |gate, ctx, ()| {
        let gate = gate.clone();
        blocking::run(ctx, move |_| {
            gate.wait();
            Ok(())
        })
    });
    let config = ServerConfig::default().stall_timeout(Duration::from_millis(1));
    let all = observed_with(config.max_blocking_calls(1), patient_client(), |builder| {
        builder.add_service(Handmade(routes))
    });
    let first = tokio::spawn(all.client.unary::<(), ()>(NAME, "Wait", ()));
    gate.has_come(1).await;
    let status = all.client.unary::<(), ()>(NAME, "Wait", ()).await.unwrap_err();
    eventually("its end is told", || all.at_server.told(|told| !told.ends.is_empty())).await;
    let refused = all.at_server.told(|told| told.ends[0].clone());
    // Before anything may fail: the runtime waits for the thread.
    gate.open();
    first.await.unwrap().unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!((refused.code, refused.cause), (Code::ResourceExhausted, EndCause::Limit));
}

/// The handler ends with the status that it is given.
#[tokio::test(start_paused = true)]
async fn a_message_of_a_stream_that_does_not_decode_is_told_as_the_clients_violation() {
    const NAME: &str = "test.Stream";
    let service = Arc::new(());
    let routes = Routes::new(NAME).client_streaming("Take", &service, |_, _, mut requests| {
        let take = async |requests: &mut StreamReceiver<Chunk>| {
            while requests.recv().await?.is_some() {}
            Ok(())
        };
        Box::pin(async move { take(&mut requests).await })
    });
    let all = observed_with(ServerConfig::default(), ClientConfig::default(), |builder| {
        builder.add_service(Handmade(routes))
    });
    let (mut requests, reply) = all.client.client_streaming::<Raw, ()>(NAME, "Take").await.unwrap();
    requests.send(Raw::from(Vec::new())).await.unwrap();
    requests.send(Raw::from(vec![0xff; 3])).await.unwrap();
    assert_eq!(reply.await.unwrap_err().code(), Code::InvalidArgument);
    all.at_server.expect("Take", Code::InvalidArgument, EndCause::ProtocolViolation).await;
}

/// Makes each stream twice, and keeps the second.
#[tokio::test(start_paused = true)]
async fn a_stream_that_a_client_interceptor_makes_twice_is_told_twice() {
    struct Twice;
    #[async_trait]
    impl client::Interceptor for Twice {
        async fn intercept(
            &self,
            call: &mut OutgoingCall,
            next: client::Next<'_>,
        ) -> Result<Answer, Status> {
            let _first = next.run(call).await?;
            next.run(call).await
        }
    }
    let all = observed();
    let conformance = ConformanceClient::new(all.client.clone().with_interceptor(Twice));
    let (mut requests, mut replies) = conformance.exchange().await.unwrap();
    requests.send(chunk(7)).await.unwrap();
    assert_eq!(replies.recv().await.unwrap().unwrap().sequence, 7);
    requests.finish();
    assert!(replies.recv().await.unwrap().is_none());
    all.server.is_idle().await;
    // The first Request may never have been written.
    all.at_server.told(|told| assert_eq!(told.begun.len(), told.ends.len()));
    all.at_client.told(|told| {
        let causes: Vec<_> = told.ends.iter().map(|end| end.cause).collect();
        assert_eq!((told.begun.len(), causes), (2, vec![EndCause::GivenUp, EndCause::Replied]));
    });
    assert_eq!(all.client.calls_in_flight(), 0);
}
