//! What is counted is what has happened, to the call.

use std::{
    collections::BTreeMap,
    error::Error,
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use tokio::{io::AsyncWriteExt, net::UnixStream, task::JoinSet};
use ttrpc::{
    Client, Code, Connection, Server, ServerConfig, Status, async_trait,
    client::{Backoff, ConnectOptions, Retry},
    server::ConnectionHook,
};
use ttrpc_telemetry::{
    Metrics,
    metrics::{MAX_METHODS, OTHER},
};

use crate::kit::{SERVICE, TestServer, chat, counted::Counted, eventually, say};

fn options(metrics: &Metrics) -> ConnectOptions {
    ConnectOptions::new().observe(metrics.clone())
}

fn start(metrics: &Metrics, config: ServerConfig) -> TestServer {
    TestServer::start(Server::builder().observe(metrics.clone()), config)
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_method_code_and_cause() {
    let (metrics, mut counted) = Counted::new();
    let server = start(&metrics, ServerConfig::default());
    let client = server.client(&options(&metrics)).await;

    assert_eq!(say(&client, "hello").await.unwrap(), "hello");
    for (text, code) in
        [("refuse", Code::NotFound), ("fail", Code::Internal), ("panic", Code::Internal)]
    {
        assert_eq!(say(&client, text).await.unwrap_err().code(), code);
    }
    let late = say(&client, "wait").timeout(Duration::from_millis(5)).await;
    assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
    let unknown = client.unary::<String, String>(SERVICE, "Nothing", String::new()).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);

    counted.is_quiet().await;
    let method = ["method=Say", "service=telemetry.v1.Echo"];
    for (side, labels, count) in [
        ("side=server", ["code=OK", "cause=replied"], 1.0),
        ("side=server", ["code=NOT_FOUND", "cause=failed"], 1.0),
        ("side=server", ["code=INTERNAL", "cause=failed"], 1.0),
        ("side=server", ["code=INTERNAL", "cause=panicked"], 1.0),
        ("side=server", ["code=DEADLINE_EXCEEDED", "cause=deadline_here"], 1.0),
        ("side=client", ["code=OK", "cause=replied"], 1.0),
        ("side=client", ["code=NOT_FOUND", "cause=failed"], 1.0),
        ("side=client", ["code=INTERNAL", "cause=failed"], 2.0),
    ] {
        let all = [&[side], &labels[..], &method[..]].concat();
        assert_eq!(counted.ended(&all), count, "{all:?}");
    }
    // Either side may be the first to say so.
    assert_eq!(counted.ended(&["side=client", "code=DEADLINE_EXCEEDED"]), 1.0);
    let nothing = ["side=server", "code=UNIMPLEMENTED", "cause=unimplemented"];
    assert_eq!(counted.ended(&nothing), 1.0);
    assert_eq!(counted.ended(&["side=server", &format!("method={OTHER}")]), 1.0);
    assert_eq!(counted.ended(&["side=client", "method=Nothing"]), 1.0);
    for side in ["side=client", "side=server"] {
        assert_eq!(counted.sum("ttrpc_calls_in_flight", &[side]), 0.0);
        assert_eq!(counted.sum("ttrpc_call_duration_seconds", &[side]), 6.0);
    }
    server.close().await;
}

#[tokio::test]
async fn messages_and_bytes_of_both_sides_are_the_same() {
    let (metrics, mut counted) = Counted::new();
    let server = start(&metrics, ServerConfig::default());
    let client = server.client(&options(&metrics)).await;

    let (mut requests, mut replies) = chat(&client).await.unwrap();
    for number in 0..10 {
        requests.send(format!("message {number}")).await.unwrap();
        assert_eq!(replies.recv().await.unwrap(), Some(format!("message {number}")));
    }
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);
    say(&client, "hello").await.unwrap();

    counted.is_quiet().await;
    for (sent_by, received_by) in [("side=client", "side=server"), ("side=server", "side=client")] {
        for method in ["method=Say", "method=Chat"] {
            let messages = counted.sum("ttrpc_messages_sent_total", &[sent_by, method]);
            assert_eq!(messages, if method == "method=Say" { 1.0 } else { 10.0 });
            let received = counted.sum("ttrpc_messages_received_total", &[received_by, method]);
            assert_eq!(received, messages, "{sent_by} {method}");
            let bytes = counted.sum("ttrpc_bytes_sent_total", &[sent_by, method]);
            assert!(bytes > 0.0);
            let received = counted.sum("ttrpc_bytes_received_total", &[received_by, method]);
            assert_eq!(received, bytes, "{sent_by} {method}");
        }
    }
    server.close().await;
}

#[tokio::test]
async fn calls_that_are_made_again_are_counted_once_with_their_repeats() {
    let (metrics, mut counted) = Counted::new();
    let client = options(&metrics).connect_lazy("/nobody/listens/here.sock").unwrap();
    let backoff = Backoff::new().first(Duration::ZERO);
    let client = client.with_retry(Retry::new().max_attempts(4).backoff(backoff));
    say(&client, "hello").await.unwrap_err();
    say(&client.with_retry(Retry::none()), "hello").await.unwrap_err();
    assert_eq!(counted.sum("ttrpc_calls_repeated_total", &["side=client", "method=Say"]), 3.0);
    assert_eq!(counted.ended(&["side=client", "method=Say", "code=UNAVAILABLE"]), 2.0);
}

#[tokio::test]
async fn connections_are_counted_until_they_have_ended() {
    let (metrics, mut counted) = Counted::new();
    let server = start(&metrics, ServerConfig::default());
    let clients =
        [server.client(&options(&metrics)).await, server.client(&options(&metrics)).await];
    for client in &clients {
        say(client, "hello").await.unwrap();
    }
    for side in ["side=client", "side=server"] {
        assert_eq!(counted.sum("ttrpc_connections_open", &[side]), 2.0);
    }
    let [first, second] = clients;
    drop(first);
    let by_client = ["side=server", "cause=closed_by_peer"];
    eventually("the server sees the end", || {
        counted.sum("ttrpc_connections_closed_total", &by_client) == 1.0
    })
    .await;
    server.close().await;
    second.closed().await;
    eventually("both sides end", || {
        ["side=client", "side=server"].into_iter().all(|side| {
            counted.sum("ttrpc_connections_closed_total", &[side]) == 2.0
                && counted.sum("ttrpc_connections_open", &[side]) == 0.0
                && counted.sum("ttrpc_connection_duration_seconds", &[side]) == 2.0
        })
    })
    .await;
}

#[tokio::test]
async fn frames_that_the_protocol_does_not_allow_are_counted() {
    let (metrics, mut counted) = Counted::new();
    let server = start(&metrics, ServerConfig::default());
    let (mut here, there) = tokio::net::UnixStream::pair().unwrap();
    server.handle.serve_connection(there).await.unwrap();
    // Data of a stream that no Request has opened, twice.
    here.write_all(&[0, 0, 0, 0, 0, 0, 0, 7, 3, 0].repeat(2)).await.unwrap();
    let violations = ["side=server"];
    eventually("both are counted", || {
        counted.sum("ttrpc_protocol_violations_total", &violations) == 2.0
    })
    .await;
    assert_eq!(counted.ended(&violations), 0.0);
    server.close().await;
}

/// What the load has seen of its calls.
#[derive(Default)]
struct Seen {
    made: u64,
    dropped: u64,
    by_code: BTreeMap<&'static str, u64>,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.made += other.made;
        self.dropped += other.dropped;
        for (code, count) in other.by_code {
            *self.by_code.entry(code).or_default() += count;
        }
    }

    fn result<T>(&mut self, result: Result<T, Status>) {
        let code = result.map_or_else(|status| status.code(), |_| Code::Ok);
        *self.by_code.entry(code.name()).or_default() += 1;
    }
}

/// Polls a future this often, and then drops it.
async fn poll_times<F: Future>(future: F, times: u64) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// Calls of all kinds in turn, some of which are dropped.
async fn load(client: Client, seed: u64) -> Seen {
    let mut seen = Seen::default();
    for turn in 0..60 {
        seen.made += 1;
        match (turn + seed) % 8 {
            0 => seen.result(say(&client, "hello").await),
            1 => seen.result(say(&client, "refuse").await),
            2 => seen.result(say(&client, "panic").await),
            3 => seen.result(say(&client, "wait").timeout(Duration::from_millis(turn % 4)).await),
            4 => match poll_times(say(&client, "hello"), turn % 5).await {
                Some(result) => seen.result(result),
                None => seen.dropped += 1,
            },
            5 => {
                let nothing = client.unary::<String, String>(SERVICE, "Nothing", String::new());
                seen.result(nothing.await);
            }
            6 => match chat(&client).await {
                Ok(_streams) => seen.dropped += 1,
                Err(status) => seen.result(Err::<(), _>(status)),
            },
            _ => {
                let whole = async {
                    let (mut requests, mut replies) = chat(&client).await?;
                    requests.send("hello".into()).await?;
                    replies.recv().await?;
                    requests.finish();
                    replies.recv().await
                };
                seen.result(whole.await);
            }
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sums_are_those_of_the_load_under_drops_deadlines_refusals_and_lost_connections() {
    let (metrics, mut counted) = Counted::new();
    // With few places, calls wait for one, and some may be refused.
    let config = ServerConfig::default().max_calls(4).stall_timeout(Duration::from_millis(5));
    let server = start(&metrics, config);
    let mut loads = JoinSet::new();
    for seed in 0..16 {
        let client = server.client(&options(&metrics)).await;
        if seed % 4 == 3 {
            // Ends somewhere in the middle of the load.
            let connection = client.clone();
            loads.spawn(async move {
                let ended = connection.shutdown();
                poll_times(std::future::pending::<()>(), seed * 20).await;
                ended.await;
                Seen::default()
            });
        }
        loads.spawn(load(client, seed));
    }
    let mut seen = Seen::default();
    while let Some(part) = loads.join_next().await {
        seen.add(part.expect("a load has run"));
    }
    // Requests of calls that were dropped may be in the sockets still: until their connections have ended, the server
    // may begin more.
    eventually("the connections end", || server.handle.connections() == 0).await;
    counted.is_quiet().await;

    assert_eq!(seen.made, 16 * 60);
    assert_eq!(counted.sum("ttrpc_calls_begun_total", &["side=client"]), seen.made as f64);
    // A call may have ended when it is dropped: then its code is told, which nobody has seen.
    let mut unseen = 0.0;
    for (code, count) in &seen.by_code {
        let ended = counted.ended(&["side=client", &format!("code={code}")]);
        assert!(ended >= *count as f64, "{code}: {ended} of {count}");
        unseen += ended - *count as f64;
    }
    let all: f64 = counted.ended(&["side=client"]);
    let only_dropped = all - seen.by_code.values().sum::<u64>() as f64;
    assert_eq!(only_dropped, seen.dropped as f64);
    assert!(unseen <= only_dropped);
    let server_begun = counted.sum("ttrpc_calls_begun_total", &["side=server"]);
    assert!(server_begun <= seen.made as f64);
    for side in ["side=client", "side=server"] {
        assert_eq!(counted.sum("ttrpc_calls_in_flight", &[side]), 0.0);
        assert_eq!(counted.sum("ttrpc_call_duration_seconds", &[side]), counted.ended(&[side]));
    }
    server.close().await;
}

#[tokio::test(start_paused = true)]
async fn refusals_by_a_limit_are_begun_and_ended() {
    let (metrics, mut counted) = Counted::new();
    let config = ServerConfig::default().max_calls(2).stall_timeout(Duration::from_millis(5));
    let server = start(&metrics, config);
    let client = server.client(&options(&metrics)).await;
    let mut waiting = JoinSet::new();
    for _ in 0..2 {
        waiting.spawn(say(&client, "wait"));
    }
    eventually("both have a place", || server.handle.snapshot().calls.used == 2).await;
    for _ in 0..10 {
        let refused = say(&client, "hello").await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
    let limit = ["side=server", "method=Say", "code=RESOURCE_EXHAUSTED", "cause=limit"];
    eventually("the server has told of all", || counted.ended(&limit) == 10.0).await;
    assert_eq!(counted.sum("ttrpc_calls_in_flight", &["side=server"]), 2.0);
    assert_eq!(counted.ended(&["side=client", "code=RESOURCE_EXHAUSTED", "cause=failed"]), 10.0);
    server.close().await;
    waiting.join_all().await;
    counted.is_quiet().await;
    assert_eq!(counted.ended(&["side=server", "cause=shutdown"]), 2.0);
}

#[tokio::test]
async fn dropped_calls_are_given_up() {
    let (metrics, mut counted) = Counted::new();
    let server = start(&metrics, ServerConfig::default());
    let client = server.client(&options(&metrics)).await;
    for polls in 0..5 {
        assert!(poll_times(say(&client, "wait"), polls).await.is_none());
    }
    assert_eq!(
        counted.ended(&["side=client", "method=Say", "code=CANCELLED", "cause=given_up"]),
        5.0
    );
    drop(client);
    counted.is_quiet().await;
    server.close().await;
}

#[tokio::test]
async fn names_behind_the_limit_have_one_label() {
    let (metrics, mut counted) = Counted::new();
    let server = start(&metrics, ServerConfig::default());
    let client = server.client(&options(&metrics)).await;
    for number in 0..MAX_METHODS + 5 {
        let method = format!("Nothing{number}");
        let _ = client.unary::<String, String>(SERVICE, method, String::new()).await;
    }
    counted.is_quiet().await;
    let other = format!("method={OTHER}");
    assert_eq!(counted.ended(&["side=client", &other]), 5.0);
    // A client can make up names, a server's series do not follow.
    assert_eq!(counted.ended(&["side=server", &other]), (MAX_METHODS + 5) as f64);
    server.close().await;
}

#[tokio::test]
async fn a_connection_at_the_hook_fills_its_place() {
    struct Waits;
    #[async_trait]
    impl ConnectionHook for Waits {
        async fn connected(&self, _: &mut Connection) -> Result<(), Box<dyn Error + Send + Sync>> {
            std::future::pending().await
        }
    }
    let (metrics, mut counted) = Counted::new();
    let builder = Server::builder().on_connection(Waits, Duration::from_secs(3600));
    let server = TestServer::start(builder, ServerConfig::default().max_connections(4));
    let (handle, (_here, there)) = (server.handle.clone(), UnixStream::pair().unwrap());
    let waiting = tokio::spawn(async move { handle.serve_connection(there).await });
    let snapshot = || server.handle.snapshot();
    eventually("the hook has it", || snapshot().hooked_connections == 1).await;
    metrics.sample_server(&snapshot());
    assert_eq!(counted.sum("ttrpc_server_fill_ratio", &["of=connections"]), 0.25);
    server.close().await;
    waiting.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn samples_show_fill_and_what_stands_still() {
    let (metrics, mut counted) = Counted::new();
    // Nobody gives up while the test looks.
    let config = ServerConfig::default().stall_timeout(Duration::from_secs(3600));
    let server = start(&metrics, config.max_calls(2).max_connections(4));
    let client = server.client(&options(&metrics)).await;
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let call = say(&client, "wait");
            tokio::spawn(call)
        })
        .collect();
    // Two calls have the places, and the third holds the receiver up.
    eventually("the receiver is stalled", || {
        server.handle.snapshot().connections.iter().any(|connection| connection.receiver.is_some())
    })
    .await;
    metrics.sample_server(&server.handle.snapshot());
    metrics.sample_clients([&client.snapshot()]);
    assert_eq!(counted.sum("ttrpc_server_fill_ratio", &["of=calls"]), 1.0);
    assert_eq!(counted.sum("ttrpc_server_fill_ratio", &["of=connections"]), 0.25);
    assert_eq!(counted.sum("ttrpc_connections_stalled", &["side=server", "by=admission"]), 1.0);
    assert_eq!(counted.sum("ttrpc_connections_stalled", &["side=client"]), 0.0);
    assert_eq!(counted.sum("ttrpc_queue_frames", &["side=client"]), 0.0);
    // It is told how long it was when it is over.
    let stalled = ["side=server", "by=admission"];
    assert_eq!(counted.sum("ttrpc_receiver_stalled_seconds", &stalled), 0.0);
    for call in waiting {
        call.abort();
    }
    server.close().await;
    assert_eq!(counted.sum("ttrpc_receiver_stalled_seconds", &stalled), 1.0);
}
