//! A server with all that a service needs around it: a token before the first frame, authorization by method, a policy
//! on the requests' bytes, spans and metrics. What is counted is what the load has seen, to the call.

use std::{collections::BTreeMap, error::Error, time::Duration};

use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    task::JoinSet,
};
use ttrpc::{
    Client, Connection, Context, Server, ServerConfig, Status, async_trait,
    client::ConnectOptions,
    interceptors::Authorize,
    server::{ConnectionHook, Interceptor, Next, PeerPolicy},
};
use ttrpc_telemetry::Tracing;

use crate::kit::{SERVICE, TestServer, chat, counted::Counted, eventually, say};

const TOKEN: [u8; 4] = *b"open";

/// Reads a token before the first frame.
struct Token;

#[async_trait]
impl ConnectionHook for Token {
    async fn connected(
        &self,
        connection: &mut Connection,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut token = [0; TOKEN.len()];
        connection.read_exact(&mut token).await?;
        if token == TOKEN { Ok(()) } else { Err("the token is wrong".into()) }
    }
}

/// Refuses requests that say a word.
struct Policy;

#[async_trait]
impl Interceptor for Policy {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        if next.request_bytes().windows(6).any(|bytes| bytes == b"secret") {
            return Err(Status::failed_precondition("the policy does not allow it"));
        }
        next.run(ctx).await
    }
}

/// What a load has seen: how often each code, by method.
type Seen = BTreeMap<(&'static str, &'static str), u64>;

/// Every kind of end that both sides agree upon.
async fn load(client: Client) -> Seen {
    let mut seen = Seen::new();
    let mut note = |method, result: Result<(), Status>| {
        let code = result.err().map_or("OK", |status| status.code().name());
        *seen.entry((method, code)).or_default() += 1;
    };
    for turn in 0..50 {
        let text = ["hello", "a secret", "refuse", "fail", "panic"][turn % 5];
        note("Say", say(&client, text).await.map(drop));
        if turn % 7 == 0 {
            note("Chat", async { chat(&client).await?.1.recv().await.map(drop) }.await);
        }
        if turn % 10 == 0 {
            let nothing = client.unary::<String, String>(SERVICE, "Nothing", String::new());
            note("_OTHER", nothing.await.map(drop));
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sums_of_a_guarded_server_are_those_of_its_load() {
    let (metrics, mut counted) = Counted::new();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let tracing = Tracing::new().with_tracer_provider(&provider);
    let nobody = PeerPolicy::custom(|_| false);
    let authorize = Authorize::deny_all().allow(PeerPolicy::same_user());
    let builder = Server::builder()
        .on_connection(Token, Duration::from_secs(60))
        .observe(metrics.clone())
        .intercept(authorize.allow_method(SERVICE, "Chat", nobody))
        .intercept(Policy);
    let server = TestServer::start(tracing.trace_server(builder), ServerConfig::default());
    let options = ConnectOptions::new().observe(metrics.clone());

    let mut loads = JoinSet::new();
    for number in 0..12 {
        let (mut here, there) = UnixStream::pair().unwrap();
        let is_right = number % 3 != 0;
        here.write_all(if is_right { &TOKEN } else { b"none" }).await.unwrap();
        let served = server.handle.serve_connection(there).await;
        assert_eq!(served.is_ok(), is_right);
        if is_right {
            loads.spawn(load(options.from_connection(here)));
        }
    }
    let mut seen = Seen::new();
    while let Some(part) = loads.join_next().await {
        for (what, count) in part.unwrap() {
            *seen.entry(what).or_default() += count;
        }
    }
    counted.is_quiet().await;

    assert_eq!(counted.sum("ttrpc_connections_refused_total", &["side=server"]), 4.0);
    for side in ["side=client", "side=server"] {
        assert_eq!(counted.sum("ttrpc_connections_opened_total", &[side]), 8.0);
        let all: u64 = seen.values().sum();
        assert_eq!(counted.ended(&[side]), all as f64);
        assert_eq!(counted.sum("ttrpc_calls_in_flight", &[side]), 0.0);
        for ((method, code), count) in &seen {
            // A client knows the names of the methods that it calls.
            let method =
                if side == "side=client" && *method == "_OTHER" { "Nothing" } else { *method };
            let labels = [side, &format!("method={method}"), &format!("code={code}")];
            assert_eq!(counted.ended(&labels), *count as f64, "{labels:?}");
        }
    }
    let count = |method, code| seen[&(method, code)];
    for (method, code, cause) in [
        ("Say", "OK", "replied"),
        ("Say", "FAILED_PRECONDITION", "refused"),
        ("Say", "NOT_FOUND", "failed"),
        ("Say", "INTERNAL", "failed"),
        ("Chat", "PERMISSION_DENIED", "refused"),
        ("_OTHER", "UNIMPLEMENTED", "unimplemented"),
    ] {
        let labels = [format!("method={method}"), format!("cause={cause}")];
        let labels = ["side=server", &labels[0], &labels[1]];
        let expected = match code {
            // Half of these are panics.
            "INTERNAL" => {
                let panics = counted.ended(&["side=server", "cause=panicked"]);
                assert_eq!(panics * 2.0, count(method, code) as f64);
                count("Say", "NOT_FOUND") as f64 + panics
            }
            "NOT_FOUND" => continue,
            _ => count(method, code) as f64,
        };
        assert_eq!(counted.ended(&labels), expected, "{labels:?}");
    }

    // Tracing was added last, so what was refused before it has no span.
    let let_through: u64 =
        ["OK", "NOT_FOUND", "INTERNAL"].into_iter().map(|code| count("Say", code)).sum();
    eventually("the spans end", || {
        exporter.get_finished_spans().unwrap().len() as u64 == let_through
    })
    .await;
    let spans = exporter.get_finished_spans().unwrap();
    assert!(spans.iter().all(|span| span.span_kind == SpanKind::Server));
    server.close().await;
}
