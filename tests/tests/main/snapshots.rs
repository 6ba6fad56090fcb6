//! A client and a server that seem to hang tell what they are waiting for.

use std::time::Duration;

use tokio::time::sleep;
use ttrpc::{
    ClientConfig, ServerConfig,
    snapshot::{CallSnapshot, CallWait, Fill, ReceiverWait, ServerState},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, REMOTE_CLOSED},
};

const SECOND: Duration = Duration::from_secs(1);

fn methods_and_waits(calls: &[CallSnapshot]) -> Vec<(&str, CallWait)> {
    calls.iter().map(|call| (call.method.as_str(), call.wait)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_client_does_not_read_says_so() {
    let config = ServerConfig::default().send_queue_frames(1);
    let (server, mut peer) = played_client_over(config, 4096);
    peer.send(call(1, "Wait", &key("a"))).await;
    peer.send(open_stream(3, "Collect")).await;
    server.has_begun(2).await;
    // The first message fills the pipe and stays in the queue. The second one waits for capacity, and so does the receiver,
    // with the call that came behind them.
    let replies = GenerateRequest { count: 2, size: 10_000, ..GenerateRequest::default() };
    let generate = Frame::request(5, REMOTE_CLOSED, SERVICE, "Generate", &replies);
    let echo = call(7, "Echo", &echo_request(*b"x"));
    peer.send_bytes(&[generate.to_bytes(), echo.to_bytes()].concat()).await;
    settle().await;
    peer.send(call(9, "Release", &key("a"))).await;
    sleep(3 * SECOND).await;

    let snapshot = server.handle.snapshot();
    assert_eq!(snapshot.state, ServerState::Serving);
    assert_eq!(snapshot.calls.used, 3);
    let [connection] = &snapshot.connections[..] else { panic!("there is one connection") };
    assert_eq!(connection.queue.frames, Fill { used: 1, limit: 1 });
    assert!(connection.queue.blocked >= Some(3 * SECOND));
    assert!(connection.queue.waited_total >= 3 * SECOND);
    let held_up = connection.receiver.expect("the receiver waits for the client to read");
    assert_eq!(held_up.by, ReceiverWait::SendQueue);
    assert!(held_up.duration >= 3 * SECOND);
    let waits = methods_and_waits(&connection.calls);
    let expected = [
        ("Wait", CallWait::Handler),
        ("Collect", CallWait::Message),
        ("Generate", CallWait::Capacity),
    ];
    assert_eq!(waits, expected);
    let text = snapshot.to_string();
    assert_eq!(text.lines().next(), Some("server: serving, 1/16384 connections"));
    for part in ["serving", "1/1 frames", "socket full for 3.0s", "the full send queue", "#5 "] {
        assert!(text.contains(part), "`{part}` in:\n{text}");
    }

    // The order of replies of calls that run at the same time is not a promise.
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(peer.receive().await.id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 5, 5, 5, 7, 9]);
    settle().await;
    let snapshot = server.handle.snapshot();
    let connection = &snapshot.connections[0];
    assert_eq!((connection.queue.blocked, connection.receiver), (None, None));
    assert!(connection.queue.blocked_total >= 3 * SECOND);
}

/// Else it could not be told whether short calls wait.
#[tokio::test(start_paused = true)]
async fn long_frames_in_the_queue_are_told_apart_from_others() {
    let (server, mut peer) = played_client_over(ServerConfig::default(), 4096);
    let request = EchoRequest { payload: Vec::new(), response_size: 1 << 20 };
    peer.send(call(1, "Echo", &request)).await;
    settle().await;
    let snapshot = server.handle.snapshot();
    let queue = &snapshot.connections[0].queue;
    assert_eq!((queue.frames.used, queue.bytes.used, queue.long_frames.used), (0, 0, 1));
    assert!(queue.long_bytes.used > 1 << 20 && queue.long_bytes.limit == queue.bytes.limit);
    let text = snapshot.to_string();
    assert!(text.contains("0/4096 frames, 0/4194304 bytes; 1/4096 long frames, "), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_server_tells_of_streams_and_limits_that_hold_its_receiver_up() {
    let config = ServerConfig::default()
        .max_calls_per_connection(1)
        .stream_inbox_messages(1)
        .stall_timeout(60 * SECOND);
    let (server, mut peer) = played_client(config);
    peer.send(open_stream(1, "Hold")).await;
    for sequence in 1..3 {
        peer.send(Frame::message(1, &chunk(sequence))).await;
    }
    settle().await;
    let held_up = || server.handle.snapshot().connections[0].receiver.map(|held_up| held_up.by);
    assert_eq!(held_up(), Some(ReceiverWait::Stream(1)));
    let call_1 = server.handle.snapshot().connections[0].calls[0].clone();
    assert_eq!((call_1.inbox_messages, call_1.inbox_bytes > 0), (1, true));

    let (server, mut peer) = played_client(
        ServerConfig::default().max_calls_per_connection(1).stall_timeout(60 * SECOND),
    );
    peer.send(call(1, "Wait", &key("a"))).await;
    peer.send(call(3, "Wait", &key("a"))).await;
    settle().await;
    let snapshot = server.handle.snapshot();
    let held_up = snapshot.connections[0].receiver.map(|held_up| held_up.by);
    assert_eq!(held_up, Some(ReceiverWait::Admission));
    assert_eq!(snapshot.connections[0].calls_in_flight, Fill { used: 1, limit: 1 });
}

#[tokio::test(start_paused = true)]
async fn a_client_tells_of_each_call_where_it_is() {
    let config = ClientConfig::default().max_calls(5).send_queue_frames(2);
    let (client, conformance, mut peer) = played_server_over(config, 4096);
    let mut stream = conformance.generate(GenerateRequest::default()).await.unwrap();
    let id = peer.receive().await.id;
    let spawn = |payload: usize, timeout| {
        let call = conformance.echo(echo_request(vec![0; payload])).timeout(timeout);
        tokio::spawn(call.into_future())
    };
    // One call is being written and cannot be, two are queued … the queue holds two frames in all.
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(spawn(10_000, 60 * SECOND));
        settle().await;
    }
    sleep(2 * SECOND).await;
    let snapshot = client.snapshot();
    let expected = [
        ("Generate", CallWait::Consumer),
        ("Echo", CallWait::Reply),
        ("Echo", CallWait::Sender),
        ("Echo", CallWait::Capacity),
        ("Echo", CallWait::Capacity),
        ("Echo", CallWait::Admission),
    ];
    assert_eq!(methods_and_waits(&snapshot.calls), expected);
    let ids: Vec<_> = snapshot.calls.iter().map(|call| call.stream_id).collect();
    assert_eq!(ids, [Some(1), Some(3), None, None, None, None]);
    assert!(snapshot.calls[3].age >= 2 * SECOND);
    assert_eq!(snapshot.calls[3].timeout, Some(60 * SECOND));
    assert!(snapshot.queue.blocked >= Some(2 * SECOND));
    assert!(snapshot.close_reason.is_none());
    let text = snapshot.to_string();
    for part in ["6 calls", "2/2 frames", " of 60s, waits for capacity", "(not sent)", "a permit"] {
        assert!(text.contains(part), "`{part}` in:\n{text}");
    }

    peer.send(Frame::message(id, &chunk(0))).await;
    settle().await;
    assert_eq!(client.snapshot().calls[0].inbox_messages, 1);
    stream.recv().await.unwrap().expect("a message came");
    for _ in &calls {
        answer_echo(&mut peer).await;
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let next = tokio::spawn(async move { stream.recv().await });
    settle().await;
    let snapshot = client.snapshot();
    assert_eq!(methods_and_waits(&snapshot.calls), [("Generate", CallWait::Message)]);
    assert_eq!(snapshot.queue.frames.used, 0);

    client.close();
    next.await.unwrap().unwrap_err();
    let snapshot = client.snapshot();
    assert!(snapshot.close_reason.is_some() && snapshot.calls.is_empty());
    assert!(snapshot.to_string().starts_with("client: closed, "), "{snapshot}");
}

/// One over the limit of the whole server is let in where it is the only one of its connection, and counts.
#[tokio::test(start_paused = true)]
async fn calls_over_the_servers_limit_are_counted_in_the_snapshot() {
    let (first, second) = (tokio::io::duplex(PIPE_LEN), tokio::io::duplex(PIPE_LEN));
    let config = ServerConfig::default().max_calls(1);
    let server = TestServer::start(config, [first.0, second.0]);
    let clients = [first.1, second.1]
        .map(|io| ConformanceClient::new(ttrpc::Client::from_io(io, ClientConfig::default())));
    let mut bytes = 0;
    for (client, calls) in clients.iter().zip(1..) {
        tokio::spawn(client.wait(key("a")).into_future());
        server.has_begun(calls).await;
        let snapshot = server.handle.snapshot();
        assert_eq!(snapshot.calls, Fill { used: calls as usize, limit: 1 });
        bytes = if calls == 1 { snapshot.request_bytes.used } else { bytes };
        assert_eq!(snapshot.request_bytes.used, calls as usize * bytes);
    }
    server.service.release("a");
    server.is_idle().await;
    assert_eq!(server.handle.snapshot().calls.used, 0);
}
