//! What only real sockets and several threads show: late readiness, calls that race with each other
//! and with the end of the connection.

use std::{
    collections::BTreeSet,
    io::Write,
    net::Shutdown,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{net::UnixStream, time::timeout};
use ttrpc::{
    Client, ClientConfig, Code, ConnectionError, Server, ServerConfig, Status,
    server::{Routes, StreamReceiver, StreamSender},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    service::ConformanceService,
    wire::{Frame, Peer},
};

#[tokio::test]
async fn a_reply_that_has_arrived_is_taken_though_a_write_fails_first() {
    for _ in 0..20 {
        let (here, there) = UnixStream::pair().unwrap();
        let client = Client::from_unix_stream(here, ClientConfig::default());
        let conformance = ConformanceClient::new(client);
        let mut peer = Peer::new(there);
        let answered = tokio::spawn(conformance.echo(echo_request([])).into_future());
        let id = peer.receive().await.id;
        // From here on the runtime has no chance to see that the socket became readable before the
        // client's next write finds out that it is closed.
        let mut there = peer.into_inner().into_std().unwrap();
        there.write_all(&Frame::reply(id, &EchoResponse::default()).to_bytes()).unwrap();
        drop(there);
        let lost = conformance.echo(echo_request([])).await;
        assert_eq!(lost.unwrap_err().code(), Code::Unavailable);
        answered.await.unwrap().expect("the reply was there before the connection broke");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_nothing_more_and_says_nothing_ends_the_connection_too() {
    let (here, there) = UnixStream::pair().unwrap();
    let client = Client::from_unix_stream(here, ClientConfig::default());
    let there = there.into_std().unwrap();
    there.shutdown(Shutdown::Read).unwrap();
    let call = client.unary::<(), ()>(SERVICE, "Echo", ());
    assert_eq!(call.await.unwrap_err().code(), Code::Unavailable);
    assert!(matches!(client.closed().await, ConnectionError::Write(_)));
    drop(there);
}

/// A small generator of numbers, from a seed.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// One call of some kind that is answered, given up or timed out.
async fn some_call(conformance: &ConformanceClient, random: u64) -> Result<(), Status> {
    let size = [0, 10, 1000, 50_000][random as usize % 4];
    let limit = Duration::from_micros(random / 4 % 400);
    match random / 16 % 6 {
        0 | 1 => drop(conformance.echo(echo_request(vec![1; size])).await?),
        2 => {
            let call = conformance.echo(echo_request(vec![1; size])).into_future();
            if let Ok(ended) = timeout(limit, call).await {
                ended?;
            }
        }
        3 => match conformance.echo(echo_request(vec![1; size])).timeout(limit).await {
            Err(status) if status.code() != Code::DeadlineExceeded => return Err(status),
            _ => {}
        },
        4 => {
            let request = GenerateRequest { count: 20, size: 100, ..Default::default() };
            let mut replies = conformance.generate(request).await?;
            for _ in 0..random / 64 % 25 {
                replies.recv().await?;
            }
        }
        _ => {
            let (mut requests, mut replies) = conformance.exchange().await?;
            for sequence in 0..random / 64 % 10 {
                requests.send(Chunk { sequence, payload: vec![2; size] }).await?;
                let reply = replies.recv().await?.expect("it is sent back");
                assert_eq!((reply.sequence, reply.payload.len()), (sequence, size));
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn calls_of_many_threads_that_end_in_all_ways_do_not_disturb_each_other() {
    // Small queues, so that callers wait, and are given up while they do.
    let client_config =
        ClientConfig { send_queue_frames: 8, send_queue_bytes: 60_000, ..patient_client() };
    let server_config = ServerConfig {
        send_queue_frames: 8,
        send_queue_bytes: 60_000,
        max_calls_per_connection: 16,
        ..patient_server()
    };
    let (here, there) = UnixStream::pair().unwrap();
    let server = TestServer::start(server_config, [there]);
    let client = Client::from_unix_stream(here, client_config);
    let conformance = ConformanceClient::new(client.clone());
    let caller = |seed: u64| {
        let conformance = conformance.clone();
        tokio::spawn(async move {
            let mut state = seed;
            for _ in 0..150 {
                // An id out of order would be refused by the server with INVALID_ARGUMENT.
                some_call(&conformance, next(&mut state)).await.expect("the call goes well");
            }
        })
    };
    for caller in (0..16).map(caller).collect::<Vec<_>>() {
        let ended = timeout(PATIENCE, caller).await.expect("every call ends");
        ended.expect("no caller fails");
    }
    conformance.echo(echo_request([])).await.expect("the connection lives");
    eventually("the client's table is empty", || client.calls_in_flight() == 0).await;
    server.is_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_a_handler_has_answered_before_the_shutdown_arrives() {
    for round in 0..20 {
        let served = Arc::new(AtomicU64::new(0));
        let routes = Routes::new("test.Count").unary("Add", &served, |served, _ctx, (): ()| {
            Box::pin(async {
                tokio::task::yield_now().await;
                served.fetch_add(1, SeqCst);
                Ok(())
            })
        });
        let (here, there) = UnixStream::pair().unwrap();
        let server = Server::builder().add_service(Handmade(routes)).unix_stream(there);
        let server = server.build().unwrap();
        let handle = server.handle();
        let serving = tokio::spawn(server.serve());
        let client = Client::from_unix_stream(here, ClientConfig::default());
        let caller = |_| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut answered = 0;
                loop {
                    match client.unary::<(), ()>("test.Count", "Add", ()).await {
                        Ok(()) => answered += 1,
                        Err(status) => break (answered, status.code()),
                    }
                }
            })
        };
        let callers: Vec<_> = (0..8).map(caller).collect();
        eventually("some calls are answered", || served.load(SeqCst) > 50).await;
        handle.shutdown(PATIENCE).await;
        let mut answered = 0;
        for caller in callers {
            let ended = timeout(PATIENCE, caller).await.expect("every call ends");
            let (count, code) = ended.unwrap();
            assert_eq!(code, Code::Unavailable, "in round {round}");
            answered += count;
        }
        assert_eq!(answered, served.load(SeqCst), "in round {round}, no reply is lost");
        serving.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn calls_that_race_with_the_end_of_their_connection_all_end() {
    for round in 0..100u64 {
        let (here, there) = UnixStream::pair().unwrap();
        let service = ConformanceServer::new(ConformanceService::default());
        let server = Server::builder().add_service(service).unix_stream(there).build().unwrap();
        let handle = server.handle();
        let serving = tokio::spawn(server.serve());
        let client = Client::from_unix_stream(here, ClientConfig::default());
        let conformance = ConformanceClient::new(client.clone());
        let caller = |number: u64| {
            let conformance = conformance.clone();
            tokio::spawn(async move {
                let mut state = round * 100 + number;
                loop {
                    if let Err(status) = some_call(&conformance, next(&mut state)).await {
                        break status.code();
                    }
                }
            })
        };
        let callers: Vec<_> = (0..4).map(caller).collect();
        tokio::task::yield_now().await;
        match round % 3 {
            0 => client.close(),
            1 => handle.close().await,
            _ => serving.abort(),
        }
        for caller in callers {
            let ended = timeout(PATIENCE, caller).await.expect("every call ends");
            assert_eq!(ended.expect("no caller fails"), Code::Unavailable, "in round {round}");
        }
        timeout(PATIENCE, client.closed()).await.expect("the connection ends");
        assert_eq!(client.calls_in_flight(), 0);
    }
}

/// The server ends each stream with NOT_FOUND while its client sends. No send may say that the connection is gone,
/// since a caller that believes it ends a connection which is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_stream_that_the_server_fails_says_how_it_failed_and_never_that_the_connection_is_gone() {
    const CALLERS: u64 = 4;
    const STREAMS: usize = 500;
    let routes = Routes::new("test.Fails").bidi_streaming(
        "Fail",
        &Arc::new(()),
        |(), _, _: StreamReceiver<Chunk>, _: StreamSender<Chunk>| {
            Box::pin(async { Err(Status::not_found("as asked")) })
        },
    );
    let (here, there) = UnixStream::pair().unwrap();
    let server = Server::builder().config(patient_server()).add_service(Handmade(routes));
    let serving = tokio::spawn(server.unix_stream(there).serve());
    let client = Client::from_unix_stream(here, patient_client());
    let caller = |number: u64| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut codes = BTreeSet::new();
            for stream in 0..STREAMS {
                let call = client.bidi_streaming::<Chunk, Chunk>("test.Fails", "Fail");
                let (mut requests, mut replies) = call.await.expect("the connection is well");
                // Until a send fails, as one must when the server has ended the stream.
                let failed = loop {
                    let payload = vec![0; (number as usize + stream) % 50];
                    if let Err(status) = requests.send(Chunk { sequence: 0, payload }).await {
                        break status;
                    }
                };
                codes.insert(failed.code().name());
                codes.insert(replies.recv().await.expect_err("it has failed").code().name());
            }
            codes
        })
    };
    for caller in (0..CALLERS).map(caller).collect::<Vec<_>>() {
        assert_eq!(caller.await.unwrap(), BTreeSet::from([Code::NotFound.name()]));
    }
    // `close` could cut the frame that is being written, which the server would report.
    client.shutdown().await;
    serving.await.unwrap().unwrap();
}
