//! Spans as an exporter gets them.

use std::{sync::Arc, time::Duration};

use opentelemetry::{
    Context as OtelContext, KeyValue, Value,
    baggage::BaggageExt,
    context::FutureExt,
    propagation::TextMapCompositePropagator,
    trace::{
        Event, SpanContext, SpanId, SpanKind, Status as SpanStatus, TraceContextExt, TraceFlags,
        TraceId, TraceState,
    },
};
use opentelemetry_sdk::{
    propagation::{BaggagePropagator, TraceContextPropagator},
    trace::{InMemorySpanExporter, SdkTracerProvider, SpanData},
};
use ttrpc::{
    Client, Code, Context, Server, ServerConfig, Status, async_trait,
    client::ConnectOptions,
    server::{Interceptor, Next, Routes},
};
use ttrpc_telemetry::Tracing;

use crate::kit::{SERVICE, TestServer, chat, eventually, say};

const TRACE: TraceId = TraceId::from_bytes([7; 16]);

/// Where spans go.
struct Spans {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
}

impl Spans {
    fn new() -> (Tracing, Self) {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let propagator = TextMapCompositePropagator::new(vec![
            Box::new(TraceContextPropagator::new()),
            Box::new(BaggagePropagator::new()),
        ]);
        let tracing = Tracing::new().with_tracer_provider(&provider).with_propagator(propagator);
        (tracing, Spans { exporter, provider })
    }

    fn now(&self) -> Vec<SpanData> {
        self.provider.force_flush().expect("it exports");
        self.exporter.get_finished_spans().expect("the exporter works")
    }

    /// Waits until so many spans have ended.
    async fn ended(&self, count: usize) -> Vec<SpanData> {
        eventually("the spans end", || self.now().len() >= count).await;
        let spans = self.now();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }

    /// Waits until one call's spans have ended, and returns them, the client's first.
    async fn of_a_call(&self) -> [SpanData; 2] {
        let mut spans = self.ended(2).await;
        spans.sort_by_key(|span| span.span_kind == SpanKind::Server);
        self.exporter.reset();
        spans.try_into().expect("there are two")
    }
}

fn attribute<'a>(span: &'a SpanData, key: &str) -> Option<&'a Value> {
    let mut found = span.attributes.iter().filter(|pair| pair.key.as_str() == key);
    let value = found.next().map(|KeyValue { value, .. }| value);
    assert!(found.next().is_none(), "{key} is there once");
    value
}

fn code(span: &SpanData) -> Code {
    match attribute(span, "rpc.ttrpc.status_code") {
        Some(Value::I64(code)) => Code::from_i32(i32::try_from(*code).expect("a small number")),
        other => panic!("an integer, not {other:?}"),
    }
}

fn is_error(span: &SpanData) -> bool {
    matches!(span.status, SpanStatus::Error { .. })
}

/// The context of a caller elsewhere, with a trace state and baggage.
fn caller() -> OtelContext {
    let state: TraceState = TraceState::from_key_value([("vendor", "value")]).expect("it is valid");
    let span =
        SpanContext::new(TRACE, SpanId::from_bytes([3; 8]), TraceFlags::SAMPLED, true, state);
    OtelContext::new()
        .with_baggage([KeyValue::new("tenant", "blue")])
        .with_remote_span_context(span)
}

async fn connected(tracing: &Tracing) -> (TestServer, Client) {
    let server =
        TestServer::start(tracing.trace_server(Server::builder()), ServerConfig::default());
    let client = tracing.trace_client(server.client(&ConnectOptions::new()).await);
    (server, client)
}

#[tokio::test]
async fn a_unary_call_has_one_span_on_each_side_in_its_callers_trace() {
    let (tracing, spans) = Spans::new();
    let (server, client) = connected(&tracing).await;
    say(&client, "hello").with_context(caller()).await.unwrap();
    let [client_span, server_span] = spans.of_a_call().await;
    assert_eq!(client_span.span_kind, SpanKind::Client);
    assert_eq!(server_span.span_kind, SpanKind::Server);
    assert_eq!(client_span.parent_span_id, SpanId::from_bytes([3; 8]));
    assert_eq!(server_span.parent_span_id, client_span.span_context.span_id());
    assert!(server_span.parent_span_is_remote);
    for span in [&client_span, &server_span] {
        assert_eq!(span.name, "telemetry.v1.Echo/Say");
        assert_eq!(span.span_context.trace_id(), TRACE);
        assert_eq!(span.span_context.trace_state().get("vendor"), Some("value"));
        assert_eq!(attribute(span, "rpc.system"), Some(&Value::from("ttrpc")));
        assert_eq!(attribute(span, "rpc.service"), Some(&Value::from(SERVICE)));
        assert_eq!(attribute(span, "rpc.method"), Some(&Value::from("Say")));
        assert_eq!(attribute(span, "rpc.ttrpc.status_code"), Some(&Value::I64(0)));
        assert_eq!(span.attributes.len(), 4);
        assert_eq!(span.status, SpanStatus::Unset);
        assert!(span.start_time <= span.end_time);
    }
    server.close().await;
}

#[tokio::test]
async fn a_failure_is_the_clients_error_always_and_the_servers_for_some_codes() {
    let (tracing, spans) = Spans::new();
    let failing =
        Routes::new("telemetry.v1.Failing").unary("Fail", &Arc::new(()), |(), _ctx, code: i32| {
            Box::pin(async move { Err::<(), _>(Status::new(Code::from_i32(code), "as asked")) })
        });
    let builder = tracing.trace_server(Server::builder()).add_service(failing);
    let server = TestServer::start(builder, ServerConfig::default());
    let client = tracing.trace_client(server.client(&ConnectOptions::new()).await);
    for number in 1..=16 {
        let call = client.unary::<i32, ()>("telemetry.v1.Failing", "Fail", number);
        assert_eq!(call.await.unwrap_err().code(), Code::from_i32(number));
        let [client_span, server_span] = spans.of_a_call().await;
        assert_eq!(code(&client_span), Code::from_i32(number));
        assert_eq!(code(&server_span), Code::from_i32(number));
        assert_eq!(client_span.status, SpanStatus::error("as asked"));
        // UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
        let expected = match number {
            2 | 4 | 12 | 13 | 14 | 15 => SpanStatus::error("as asked"),
            _ => SpanStatus::Unset,
        };
        assert_eq!(server_span.status, expected, "{number}");
    }
    server.close().await;
}

#[tokio::test(start_paused = true)]
async fn spans_end_with_panics_deadlines_and_dropped_calls() {
    let (tracing, spans) = Spans::new();
    let (server, client) = connected(&tracing).await;

    assert!(say(&client, "panic").await.is_err());
    let [client_span, server_span] = spans.of_a_call().await;
    assert_eq!((code(&client_span), code(&server_span)), (Code::Internal, Code::Internal));
    assert!(is_error(&server_span));

    assert!(say(&client, "wait").timeout(Duration::from_millis(50)).await.is_err());
    let [client_span, server_span] = spans.of_a_call().await;
    let late = Code::DeadlineExceeded;
    assert_eq!((code(&client_span), code(&server_span)), (late, late));
    assert!(is_error(&client_span) && is_error(&server_span));

    // The server hears of it when the connection ends.
    let waiting = tokio::spawn(say(&client, "wait"));
    eventually("the call has come", || server.handle.snapshot().calls.used == 1).await;
    waiting.abort();
    let dropped = spans.ended(1).await;
    assert_eq!(code(&dropped[0]), Code::Cancelled);
    assert!(is_error(&dropped[0]));
    drop(client);
    let [_, server_span] = spans.of_a_call().await;
    assert_eq!(code(&server_span), Code::Cancelled);
    assert!(!is_error(&server_span));
    server.close().await;
}

#[tokio::test]
async fn a_call_that_finds_no_connection_has_a_clients_span() {
    let (tracing, spans) = Spans::new();
    let (server, client) = connected(&tracing).await;
    server.close().await;
    client.closed().await;
    assert_eq!(say(&client, "hello").await.unwrap_err().code(), Code::Unavailable);
    let ended = spans.ended(1).await;
    assert_eq!(code(&ended[0]), Code::Unavailable);
}

#[tokio::test]
async fn a_reply_that_does_not_decode_is_the_clients_error() {
    let (tracing, spans) = Spans::new();
    let (server, client) = connected(&tracing).await;
    // The reply is a string.
    let call = client.unary::<String, u64>(SERVICE, "Say", "hello".into());
    assert_eq!(call.await.unwrap_err().code(), Code::Internal);
    let [client_span, server_span] = spans.of_a_call().await;
    assert_eq!((code(&client_span), code(&server_span)), (Code::Internal, Code::Ok));
    assert!(is_error(&client_span) && !is_error(&server_span));
    server.close().await;
}

#[tokio::test]
async fn calls_that_come_to_no_handler_have_no_servers_span() {
    let (tracing, spans) = Spans::new();
    let (server, client) = connected(&tracing).await;
    let unknown = client.unary::<String, String>(SERVICE, "Nothing", String::new());
    assert!(unknown.await.is_err());
    say(&client, "hello").await.unwrap();
    let ended = spans.ended(3).await;
    let servers: Vec<_> = ended.iter().filter(|span| span.span_kind == SpanKind::Server).collect();
    assert_eq!(servers.len(), 1);
    assert_eq!(servers[0].name, "telemetry.v1.Echo/Say");
    server.close().await;
}

#[tokio::test]
async fn a_streams_spans_end_when_the_stream_does() {
    let (tracing, spans) = Spans::new();
    let (server, client) = connected(&tracing).await;
    let (mut requests, mut replies) = chat(&client).await.unwrap();
    requests.send("hello".into()).await.unwrap();
    assert_eq!(replies.recv().await.unwrap().as_deref(), Some("hello"));
    assert!(spans.now().is_empty());
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);
    let [client_span, server_span] = spans.of_a_call().await;
    assert_eq!(client_span.name, "telemetry.v1.Echo/Chat");
    assert_eq!((code(&client_span), code(&server_span)), (Code::Ok, Code::Ok));
    assert_eq!(server_span.parent_span_id, client_span.span_context.span_id());

    let (mut requests, mut replies) = chat(&client).await.unwrap();
    requests.send("fail".into()).await.unwrap();
    assert_eq!(replies.recv().await.unwrap_err().code(), Code::DataLoss);
    let [client_span, server_span] = spans.of_a_call().await;
    for span in [&client_span, &server_span] {
        assert_eq!(code(span), Code::DataLoss);
        assert_eq!(span.status, SpanStatus::error("failed as asked"));
    }

    // The client gives its stream up, which the server takes for its good end.
    let (mut requests, mut replies) = chat(&client).await.unwrap();
    requests.send("hello".into()).await.unwrap();
    replies.recv().await.unwrap();
    drop((requests, replies));
    let [client_span, server_span] = spans.of_a_call().await;
    assert_eq!((code(&client_span), code(&server_span)), (Code::Cancelled, Code::Ok));
    server.close().await;
}

/// Calls on, within the handler of another call.
/// The directions and numbers of a span's messages, in order.
fn messages(span: &SpanData) -> Vec<(String, i64)> {
    let one = |event: &Event| {
        assert_eq!(event.name, "rpc.message");
        let find = |key: &str| {
            let mut pairs = event.attributes.iter();
            pairs.find(|pair| pair.key.as_str() == key).expect("it is there").value.clone()
        };
        assert!(matches!(find("rpc.message.compressed_size"), Value::I64(1..)));
        let Value::I64(number) = find("rpc.message.id") else { panic!("a number") };
        (find("rpc.message.type").to_string(), number)
    };
    span.events.iter().map(one).collect()
}

#[tokio::test]
async fn messages_of_streams_are_events_of_their_spans() {
    let (tracing, spans) = Spans::new();
    let (server, client) = connected(&tracing).await;
    let (mut requests, mut replies) = chat(&client).await.unwrap();
    for text in ["a", "b"] {
        requests.send(text.to_owned()).await.unwrap();
        assert_eq!(replies.recv().await.unwrap().as_deref(), Some(text));
    }
    requests.finish();
    assert_eq!(replies.recv().await.unwrap(), None);
    let [client_span, server_span] = spans.of_a_call().await;
    let of = |here: &str, there: &str| {
        [(here, 1), (there, 1), (here, 2), (there, 2)].map(|(kind, id)| (kind.to_owned(), id))
    };
    assert_eq!(messages(&client_span), of("SENT", "RECEIVED"));
    assert_eq!(messages(&server_span), of("RECEIVED", "SENT"));

    // A unary call has none, as with `otelttrpc`.
    say(&client, "hello").await.unwrap();
    for span in spans.of_a_call().await {
        assert_eq!(messages(&span), []);
    }
    server.close().await;
}

async fn call_on(backend: &Client, request: String) -> Result<String, Status> {
    let tenant = OtelContext::current().baggage().get("tenant").map(ToString::to_string);
    let reply = say(backend, &request).await?;
    Ok(format!("{reply} for {}", tenant.unwrap_or_default()))
}

#[tokio::test]
async fn a_handler_that_calls_on_stays_in_the_trace() {
    let (tracing, spans) = Spans::new();
    let (back, to_back) = connected(&tracing).await;
    let relay = Routes::new("telemetry.v1.Relay").unary(
        "Say",
        &Arc::new(to_back),
        |backend, _ctx, request: String| Box::pin(call_on(backend, request)),
    );
    let builder = tracing.trace_server(Server::builder()).add_service(relay);
    let front = TestServer::start(builder, ServerConfig::default());
    let client = tracing.trace_client(front.client(&ConnectOptions::new()).await);

    let call = client.unary::<String, String>("telemetry.v1.Relay", "Say", "hello".into());
    assert_eq!(call.with_context(caller()).await.unwrap(), "hello for blue");
    let mut ended = spans.ended(4).await;
    ended.sort_by_key(|span| span.start_time);
    let mut parent = SpanId::from_bytes([3; 8]);
    for _ in 0..4 {
        let next = ended.iter().find(|span| span.parent_span_id == parent);
        let next = next.expect("each span is the parent of the next");
        assert_eq!(next.span_context.trace_id(), TRACE);
        assert_eq!(next.span_context.trace_state().get("vendor"), Some("value"));
        parent = next.span_context.span_id();
    }
    front.close().await;
    back.close().await;
}

/// Answers with the metadata that come.
struct Metadata;

#[async_trait]
impl Interceptor for Metadata {
    async fn intercept(&self, ctx: &mut Context, _next: Next<'_>) -> Result<(), Status> {
        let pairs: Vec<_> =
            ctx.metadata().iter().map(|(key, value)| format!("{key}={value}")).collect();
        Err(Status::aborted(pairs.join("; ")))
    }
}

#[tokio::test]
async fn context_replaces_stale_values_and_leaves_the_others() {
    let (tracing, spans) = Spans::new();
    let builder = Server::builder().intercept(Metadata);
    let server = TestServer::start(builder, ServerConfig::default());
    let client = tracing.trace_client(server.client(&ConnectOptions::new()).await);
    let call = say(&client, "hello").metadata("Traceparent", "stale").metadata("user", "ann");
    let status = call.with_context(caller()).await.unwrap_err();
    let ended = spans.ended(1).await;
    let context = &ended[0].span_context;
    let expected = format!(
        "user=ann; traceparent=00-{}-{}-01; tracestate=vendor=value; baggage=tenant=blue",
        context.trace_id(),
        context.span_id()
    );
    assert_eq!(status.message(), expected);
    server.close().await;
}

/// As `otelttrpc` does it; the propagator would write an empty one.
#[tokio::test]
async fn a_trace_without_state_and_baggage_sends_its_parent_alone() {
    let (tracing, _spans) = Spans::new();
    let builder = Server::builder().intercept(Metadata);
    let server = TestServer::start(builder, ServerConfig::default());
    let client = tracing.trace_client(server.client(&ConnectOptions::new()).await);
    let status = say(&client, "hello").metadata("tracestate", "stale=1").await.unwrap_err();
    let message = status.message();
    assert!(message.starts_with("traceparent=") && !message.contains(';'), "{message}");
    server.close().await;
}

#[tokio::test]
async fn a_client_that_says_nothing_gets_a_trace_of_its_own() {
    let (tracing, spans) = Spans::new();
    let server =
        TestServer::start(tracing.trace_server(Server::builder()), ServerConfig::default());
    let client = server.client(&ConnectOptions::new()).await;
    say(&client, "hello").metadata("traceparent", "nonsense").await.unwrap();
    let ended = spans.ended(1).await;
    assert_eq!(ended[0].parent_span_id, SpanId::INVALID);
    assert!(ended[0].span_context.is_valid());
    server.close().await;
}

#[cfg(feature = "tracing")]
mod tracing_spans {
    use std::future::Future;

    use opentelemetry::trace::TracerProvider;
    use tracing::{Instrument, instrument::WithSubscriber};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Runs with a subscriber whose layer exports, on this thread.
    async fn run<F>(spans: &Spans, is_activating: bool, test: F)
    where
        F: Future<Output = ()>,
    {
        let layer = tracing_opentelemetry::layer()
            .with_tracer(spans.provider.tracer("layer"))
            .with_context_activation(is_activating)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        let filter = tracing_subscriber::filter::LevelFilter::INFO;
        let subscriber = tracing_subscriber::registry().with(layer).with(filter);
        let _default = tracing::subscriber::set_default(subscriber);
        test.with_current_subscriber().await;
    }

    /// The parents of all spans by name, from the root.
    fn path(spans: &[SpanData]) -> Vec<(String, SpanKind)> {
        let mut path = Vec::new();
        let mut parent = SpanId::INVALID;
        while let Some(span) = spans.iter().find(|span| span.parent_span_id == parent) {
            path.push((span.name.to_string(), span.span_kind.clone()));
            parent = span.span_context.span_id();
        }
        path
    }

    async fn one_trace(tracing: Tracing, spans: Spans, is_activating: bool) {
        run(&spans, is_activating, async {
            let working = Routes::new("telemetry.v1.Working").unary(
                "Work",
                &Arc::new(()),
                |(), _ctx, (): ()| {
                    Box::pin(async {}.instrument(tracing::info_span!("work")).map_ok())
                },
            );
            let builder = tracing.trace_server(Server::builder()).add_service(working);
            let server = TestServer::start(builder, ServerConfig::default());
            let client = tracing.trace_client(server.client(&ConnectOptions::new()).await);
            let call = client.unary::<(), ()>("telemetry.v1.Working", "Work", ());
            async { call.await.unwrap() }.instrument(tracing::info_span!("program")).await;
            let ended = spans.ended(4).await;
            let method = "telemetry.v1.Working/Work".to_owned();
            let expected = [
                ("program".into(), SpanKind::Internal),
                (method.clone(), SpanKind::Client),
                (method, SpanKind::Server),
                ("work".into(), SpanKind::Internal),
            ];
            assert_eq!(path(&ended), expected, "{ended:#?}");
            for span in ended.iter().filter(|span| span.span_kind != SpanKind::Internal) {
                assert_eq!(code(span), Code::Ok);
                assert_eq!(attribute(span, "rpc.system"), Some(&Value::from("ttrpc")));
            }
            server.close().await;
        })
        .await;
    }

    /// `Ok(())` behind a future.
    trait MapOk: Future<Output = ()> + Sized {
        fn map_ok(self) -> impl Future<Output = Result<(), Status>> {
            async move {
                self.await;
                Ok(())
            }
        }
    }

    impl<F: Future<Output = ()>> MapOk for F {}

    #[tokio::test]
    async fn a_programs_spans_and_the_calls_are_one_trace() {
        let (tracing, spans) = Spans::new();
        one_trace(tracing, spans, true).await;
    }

    #[tokio::test]
    async fn calls_are_spans_of_tracing_if_asked_for() {
        let (tracing, spans) = Spans::new();
        one_trace(tracing.with_tracing_spans(), spans, true).await;
    }

    #[tokio::test]
    async fn calls_are_spans_of_tracing_under_a_layer_that_sets_no_current_context() {
        let (tracing, spans) = Spans::new();
        one_trace(tracing.with_tracing_spans(), spans, false).await;
    }
}
