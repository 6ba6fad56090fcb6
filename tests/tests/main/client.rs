//! A client's connection: its clones, its end, and what it leaves.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use futures_core::Stream;
use tokio::{io::duplex, net::UnixStream, time::timeout};
use ttrpc::{
    Client, ClientConfig, Code, ConnectionError, Metadata, Status,
    server::{Routes, StreamReceiver, StreamSender},
    testing,
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, RESPONSE},
};

const SECOND: Duration = Duration::from_secs(1);

fn cause(status: &Status) -> &ConnectionError {
    let source = std::error::Error::source(status).expect("there is a cause");
    source.downcast_ref().expect("the cause is the connection's")
}

#[tokio::test(start_paused = true)]
async fn clones_share_one_connection_and_keep_it_alive() {
    let (server, client, conformance) = connected_by_default();
    let clone = client.clone();
    drop((client, conformance));
    let conformance = ConformanceClient::new(clone.clone());
    conformance.echo(echo_request([])).await.expect("the connection lives");
    assert_eq!(server.handle.connections(), 1);
    assert!(clone.close_reason().is_none());
    drop((clone, conformance));
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_keeps_its_connection_alive_without_a_client() {
    let (server, client, conformance) = connected_by_default();
    let request = GenerateRequest { count: 10, interval_micros: 10_000, ..Default::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    let wait = conformance.wait(key("a")).into_future();
    drop((client, conformance));
    for sequence in 0..10 {
        assert_eq!(replies.recv().await.unwrap().unwrap().sequence, sequence);
    }
    server.service.release("a");
    wait.await.unwrap();
    assert_eq!(server.handle.connections(), 1);
    drop(replies);
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn closing_ends_pending_and_later_calls_with_the_cause() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let pending = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let (mut requests, reply) = conformance.collect().await.unwrap();
    peer.receive().await;
    peer.receive().await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.closed().await }
    });
    settle().await;
    client.close();
    client.close();
    for status in [
        pending.await.unwrap().unwrap_err(),
        reply.await.unwrap_err(),
        requests.send(chunk(0)).await.unwrap_err(),
        conformance.echo(echo_request([])).await.unwrap_err(),
        conformance.generate(GenerateRequest::default()).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unavailable);
        assert!(matches!(cause(&status), ConnectionError::ClosedLocally), "{status:?}");
    }
    assert!(matches!(waiting.await.unwrap(), ConnectionError::ClosedLocally));
    assert!(matches!(client.close_reason(), Some(ConnectionError::ClosedLocally)));
    assert_eq!(peer.try_receive().await, None, "the server sees the end");
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_first_cause_of_an_end_counts() {
    let (client, _conformance, peer) = played_server(ClientConfig::default());
    drop(peer);
    assert!(matches!(client.closed().await, ConnectionError::ClosedByServer));
    client.close();
    assert!(matches!(client.closed().await, ConnectionError::ClosedByServer));
}

#[tokio::test(start_paused = true)]
async fn the_last_answers_of_a_server_that_goes_away_are_delivered() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let echo_id = peer.receive().await.id;
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let stream_id = peer.receive().await.id;
    peer.send(Frame::message(stream_id, &chunk(7))).await;
    peer.send(Frame::reply(echo_id, &EchoResponse::default())).await;
    drop(peer);
    client.closed().await;
    echo.await.unwrap().expect("its reply had arrived");
    assert_eq!(replies.recv().await, Ok(Some(chunk(7))));
    assert_eq!(replies.recv().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(replies.recv().await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_ends_the_connection_after_what_has_arrived_was_read() {
    // The pipe breaks for the writer only: the reader still has a reply to find.
    let (client, conformance, mut peer) = played_server_over(ClientConfig::default(), 100);
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let id = peer.receive().await.id;
    let large = tokio::spawn(conformance.echo(echo_request(vec![0; 1000])).into_future());
    settle().await;
    peer.send(Frame::reply(id, &EchoResponse::default())).await;
    drop(peer);
    echo.await.unwrap().expect("its reply had arrived");
    assert_eq!(large.await.unwrap().unwrap_err().code(), Code::Unavailable);
    client.closed().await;
}

#[tokio::test(start_paused = true)]
async fn calls_over_the_limit_wait_for_others_to_end() {
    let config = ClientConfig::default().max_calls(2);
    let (client, conformance, mut peer) = played_server(config);
    let calls: Vec<_> =
        (0..6).map(|_| tokio::spawn(conformance.echo(echo_request([])).into_future())).collect();
    for round in 0..3 {
        let frames = [peer.receive().await, peer.receive().await];
        assert!(peer.is_quiet().await, "no more than two at a time, in round {round}");
        assert_eq!(client.calls_in_flight(), 2);
        for frame in frames {
            peer.send(Frame::reply(frame.id, &EchoResponse::default())).await;
        }
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn calls_over_the_limit_are_refused_when_none_of_the_others_ends() {
    let config = ClientConfig::default().max_calls(1);
    let (client, conformance, mut peer) = played_server(config);
    let wait = tokio::spawn(conformance.wait(key("a")).into_future());
    let id = peer.receive().await.id;
    // This one would end the other, if it got through.
    let release = conformance.release(key("a")).await;
    assert_eq!(release.unwrap_err().code(), Code::ResourceExhausted);
    peer.send(Frame::new(id, RESPONSE, 0, [])).await;
    wait.await.unwrap().unwrap();
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    answer_echo(&mut peer).await;
    echo.await.unwrap().expect("something has moved");
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test]
async fn a_client_that_outlives_its_runtime_fails_its_calls() {
    let (client, pending) = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (here, there) = duplex(PIPE_LEN);
            std::mem::forget(there);
            let client = Client::from_io(here, ClientConfig::default());
            let pending = client.unary::<(), ()>("a.B", "C", ()).into_future();
            tokio::task::yield_now().await;
            (client, pending)
        })
    })
    .join()
    .unwrap();
    let status = timeout(PATIENCE, pending).await.expect("it ends").unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(matches!(client.closed().await, ConnectionError::ClosedLocally));
}

#[tokio::test]
async fn connecting_to_nothing_names_the_address_and_the_cause() {
    let error = Client::connect("unix:///nowhere/at/all.sock").await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("unix:///nowhere/at/all.sock") && text.contains("No such file"),
        "{text}"
    );
    let error = Client::connect("http://localhost").await.unwrap_err();
    assert!(error.to_string().contains("http://localhost"), "{error}");
}

#[tokio::test]
async fn unix_streams_that_the_program_has_are_used_on_both_sides() {
    let (here, there) = UnixStream::pair().unwrap();
    let service = ConformanceServer::new(ttrpc_tests::service::ConformanceService::default());
    let serving =
        tokio::spawn(ttrpc::Server::builder().add_service(service).unix_stream(there).serve());
    let client = Client::from_unix_stream(here, ClientConfig::default());
    let conformance = ConformanceClient::new(client.clone());
    let large = conformance.echo(echo_request(vec![3; 1_000_000])).await.unwrap();
    assert_eq!(large.payload, vec![3; 1_000_000]);
    client.close();
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_defaults_hold_for_one_clone_and_give_way_to_what_a_call_says() {
    let (client, plain, mut peer) = played_server(ClientConfig::default());
    let client =
        client.with_timeout(SECOND).with_metadata("user", "ann").with_metadata("trace", "a");
    let conformance = ConformanceClient::new(client);
    let calls = [
        (tokio::spawn(conformance.echo(echo_request([]))), Some(1), vec!["user ann", "trace a"]),
        (
            tokio::spawn(
                conformance.echo(echo_request([])).metadata("trace", "b").timeout(2 * SECOND),
            ),
            Some(2),
            vec!["user ann", "trace a", "trace b"],
        ),
        (
            tokio::spawn(conformance.echo(echo_request([])).with_metadata(Metadata::new())),
            Some(1),
            vec![],
        ),
        (tokio::spawn(plain.echo(echo_request([]))), None, vec![]),
    ];
    for (call, timeout, metadata) in calls {
        let request = peer.receive().await.as_request();
        let sent = request.metadata.iter().map(|pair| format!("{} {}", pair.key, pair.value));
        assert_eq!(sent.collect::<Vec<_>>(), metadata);
        assert_eq!(request.timeout_nano, timeout.map_or(0, |seconds: i64| seconds * 1_000_000_000));
        drop(call);
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_shuts_down_lets_what_is_queued_leave() {
    const MESSAGES: u64 = 500;
    // The pipe takes a few bytes at a time, so that nearly all is queued when the shutdown begins.
    let (client, conformance, mut peer) = played_server_over(ClientConfig::default(), 16);
    let (mut requests, reply) = conformance.collect().await.unwrap();
    for sequence in 0..MESSAGES {
        requests.send(chunk(sequence)).await.unwrap();
    }
    requests.finish();
    let shutdown = tokio::spawn({
        let client = client.clone();
        async move { client.shutdown().await }
    });
    settle().await;
    let refused = conformance.echo(echo_request([])).await.unwrap_err();
    assert!(matches!(refused.connection_error(), Some(ConnectionError::ClosedLocally)));
    let stream = peer.receive().await;
    for sequence in 0..MESSAGES {
        assert_eq!(peer.receive().await, Frame::message(stream.id, &chunk(sequence)));
    }
    assert_eq!(peer.receive().await, Frame::end(stream.id));
    shutdown.await.unwrap();
    assert_eq!(peer.try_receive().await, None);
    assert!(reply.await.unwrap_err().connection_error().is_some());
}

#[tokio::test(start_paused = true)]
async fn client_whose_shutdown_is_dropped_goes_on_with_what_is_pending() {
    let (client, conformance, mut peer) = played_server_over(ClientConfig::default(), 16);
    let call = tokio::spawn(conformance.echo(echo_request([1; 1000])));
    settle().await;
    assert!(timeout(SECOND, client.shutdown()).await.is_err(), "the server does not read");
    answer_echo(&mut peer).await;
    assert_eq!(call.await.unwrap().unwrap().payload, [1; 1000]);
}

#[tokio::test(start_paused = true)]
async fn status_tells_a_lost_connection_from_a_server_that_says_unavailable() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let call = tokio::spawn(conformance.echo(echo_request([])));
    let id = peer.receive().await.id;
    peer.send(Frame::failure(id, code::UNAVAILABLE, "draining")).await;
    let said = call.await.unwrap().unwrap_err();
    assert_eq!(said.code(), Code::Unavailable);
    assert!(said.connection_error().is_none() && said.is_from_peer());

    let call = tokio::spawn(conformance.echo(echo_request([])));
    peer.receive().await;
    drop(peer);
    let lost = call.await.unwrap().unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable);
    assert!(matches!(lost.connection_error(), Some(ConnectionError::ClosedByServer)));
    assert!(!lost.is_from_peer());
}

#[tokio::test]
async fn calls_of_every_kind_are_joined_and_spawned_as_they_are() {
    let (_server, _client, conformance) = connected_by_default();
    let echo = |byte| conformance.echo(echo_request([byte]));
    let (first, second) = tokio::join!(echo(1), echo(2));
    assert_eq!((first.unwrap().payload, second.unwrap().payload), (vec![1], vec![2]));

    let mut calls = tokio::task::JoinSet::new();
    for byte in 0..10 {
        calls.spawn(echo(byte));
    }
    let mut bytes: Vec<_> =
        calls.join_all().await.into_iter().map(|reply| reply.unwrap().payload[0]).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, (0..10).collect::<Vec<_>>());

    let generate =
        tokio::spawn(conformance.generate(GenerateRequest { count: 1, ..Default::default() }));
    let (collect, exchange) =
        (tokio::spawn(conformance.collect()), tokio::spawn(conformance.exchange()));
    assert!(generate.await.unwrap().unwrap().recv().await.unwrap().is_some());
    let (requests, reply) = collect.await.unwrap().unwrap();
    requests.finish();
    assert_eq!(reply.await.unwrap().chunks, 0);
    let (requests, mut replies) = exchange.await.unwrap().unwrap();
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

#[tokio::test(start_paused = true)]
async fn messages_can_be_taken_as_from_any_stream_on_both_sides() {
    let routes = Routes::new("test.Streams").bidi_streaming(
        "Echo",
        &Arc::new(()),
        |_, _, mut requests: StreamReceiver<String>, mut replies: StreamSender<String>| {
            Box::pin(async move {
                while let Some(request) = next(&mut requests).await {
                    replies.send(request?).await?;
                }
                Err(Status::aborted("no more"))
            })
        },
    );
    let client = testing::connect(Handmade(routes));
    let call = client.bidi_streaming::<String, String>("test.Streams", "Echo");
    let (mut requests, mut replies) = call.await.unwrap();
    for word in ["one", "two"] {
        requests.send(word.to_owned()).await.unwrap();
        assert_eq!(next(&mut replies).await, Some(Ok(word.to_owned())));
    }
    requests.finish();
    let end = next(&mut replies).await.expect("an error is an item");
    assert_eq!(end.unwrap_err().code(), Code::Aborted);
    assert_eq!(next(&mut replies).await, None);
}
