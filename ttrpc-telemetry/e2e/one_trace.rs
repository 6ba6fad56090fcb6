//! One trace through three programs: a Go client with containerd's otelttrpc, this one, and a Go server with
//! otelttrpc. `one-trace PEER`, with the program that `run` builds from `go/`.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use opentelemetry::{
    propagation::TextMapCompositePropagator,
    trace::{SpanKind, Status as SpanStatus},
};
use opentelemetry_sdk::{
    propagation::{BaggagePropagator, TraceContextPropagator},
    trace::{InMemorySpanExporter, SdkTracerProvider, SpanData},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    time::timeout,
};
use ttrpc::{Client, Server, Status, client::ConnectOptions, server::Routes};
use ttrpc_telemetry::Tracing;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SERVICE: &str = "telemetry.v1.Echo";
const PATIENCE: Duration = Duration::from_secs(60);
/// What the Go client says it was called in.
const TRACE: &str = "0123456789abcdef0123456789abcdef";
const ROOT: &str = "0123456789abcdef";
const STATUS_CODE: &str = "rpc.ttrpc.status_code";

/// A span of either language.
#[derive(Debug, PartialEq)]
struct Span {
    name: String,
    kind: &'static str,
    trace: String,
    id: String,
    parent: String,
    state: String,
    attributes: BTreeMap<String, String>,
    is_error: bool,
    message: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let peer = env::args().nth(1).ok_or("usage: one-trace PEER")?;
    let folder = tempfile::tempdir()?;
    let spans = timeout(PATIENCE, relay(peer.as_ref(), folder.path())).await??;
    check(&spans)?;
    println!("one trace through Go, this library and Go, twice: {} spans", spans.len());
    Ok(())
}

/// Runs the Go programs with a relay in between, and returns the spans of all three.
async fn relay(peer: &Path, folder: &Path) -> Result<Vec<Span>> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let tracing = Tracing::new().with_tracer_provider(&provider).with_propagator(
        TextMapCompositePropagator::new(vec![
            Box::new(TraceContextPropagator::new()),
            Box::new(BaggagePropagator::new()),
        ]),
    );
    let (front, back) = (folder.join("front"), folder.join("back"));

    let mut go_server = tokio::process::Command::from(Command::new(peer))
        .arg("server")
        .arg(&back)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut go_server_says = BufReader::new(go_server.stdout.take().ok_or("no output")?);
    let mut line = String::new();
    go_server_says.read_line(&mut line).await?;
    expect(line.trim() == "listening", || format!("the Go server says {line:?}"))?;

    let client = ConnectOptions::new().connect(path(&back)?).await?;
    let relay = Routes::new(SERVICE).unary(
        "Say",
        &Arc::new(tracing.trace_client(client)),
        |backend, _ctx, request: String| Box::pin(call_on(backend, request)),
    );
    let server =
        tracing.trace_server(Server::builder()).add_service(relay).bind(path(&front)?)?.build()?;
    let handle = server.handle();
    let serving = tokio::spawn(async move { server.serve().await });

    let go_client = tokio::process::Command::from(Command::new(peer))
        .arg("client")
        .arg(&front)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    expect(go_client.status.success(), || format!("the Go client: {}", go_client.status))?;
    let go_client_says = String::from_utf8(go_client.stdout)?;
    let answers: Vec<_> =
        go_client_says.lines().filter_map(|line| line.strip_prefix("answer ")).collect();
    // Baggage and trace state have come to the last program; so has its failure to the first one.
    let expected = ["hello; tracestate vendor=value; baggage blue", "NotFound refused as asked"];
    expect(answers == expected, || format!("the Go client was answered {answers:?}"))?;

    handle.shutdown(PATIENCE).await;
    serving.await??;
    drop(go_server.stdin.take());
    let mut rest = String::new();
    go_server_says.read_to_string(&mut rest).await?;
    go_server.wait().await?;

    let own = exporter.get_finished_spans()?;
    let mut spans: Vec<_> = own.iter().map(Span::from_rust).collect();
    for line in go_client_says.lines().chain(rest.lines()) {
        if line.starts_with('{') {
            spans.push(Span::from_go(&serde_json::from_str(line)?)?);
        }
    }
    Ok(spans)
}

async fn call_on(backend: &Client, request: String) -> std::result::Result<String, Status> {
    backend.unary(SERVICE, "Say", request).await
}

/// Four spans for each of the two calls, each the parent of the next.
fn check(spans: &[Span]) -> Result<()> {
    expect(spans.len() == 8, || format!("8 spans, not {spans:#?}"))?;
    let mut codes = Vec::new();
    for first in spans.iter().filter(|span| span.parent == ROOT) {
        let mut chain = vec![first];
        while let Some(next) = chain.last().and_then(|last| child(spans, last)) {
            chain.push(next);
        }
        let (kinds, last) = (["client", "server", "client", "server"], chain[chain.len() - 1]);
        let code = last.attributes.get(STATUS_CODE).ok_or("the last span has a code")?;
        expect(chain.len() == kinds.len(), || format!("a chain of four spans, not {chain:#?}"))?;
        for (at, (kind, span)) in kinds.into_iter().zip(chain).enumerate() {
            // Go's client asks for the outcome before the reply's status has become an error.
            let code = if at == 0 { "0" } else { code };
            let attributes = [
                ("rpc.method", "Say"),
                ("rpc.service", SERVICE),
                ("rpc.system", "ttrpc"),
                (STATUS_CODE, code),
            ];
            let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
            // NOT_FOUND is a client's error and not a server's.
            let is_error = code != "0" && kind == "client";
            let expected = Span {
                name: "telemetry.v1.Echo/Say".into(),
                kind,
                trace: TRACE.into(),
                id: span.id.clone(),
                parent: span.parent.clone(),
                state: "vendor=value".into(),
                attributes: attributes.into(),
                is_error,
                message: if is_error { "refused as asked".into() } else { String::new() },
            };
            expect(*span == expected, || format!("{expected:#?}, not {span:#?}"))?;
        }
        codes.push(code.clone());
    }
    codes.sort();
    expect(codes == ["0", "5"], || format!("the two calls have the codes {codes:?}"))
}

fn child<'a>(spans: &'a [Span], parent: &Span) -> Option<&'a Span> {
    spans.iter().find(|span| span.parent == parent.id)
}

impl Span {
    fn from_rust(span: &SpanData) -> Self {
        let context = &span.span_context;
        let (is_error, message) = match &span.status {
            SpanStatus::Error { description } => (true, description.to_string()),
            _ => (false, String::new()),
        };
        let attributes = span.attributes.iter();
        Span {
            name: span.name.to_string(),
            kind: match span.span_kind {
                SpanKind::Client => "client",
                SpanKind::Server => "server",
                _ => "other",
            },
            trace: context.trace_id().to_string(),
            id: context.span_id().to_string(),
            parent: span.parent_span_id.to_string(),
            state: context.trace_state().header(),
            attributes: attributes
                .map(|pair| (pair.key.to_string(), pair.value.to_string()))
                .collect(),
            is_error,
            message,
        }
    }

    /// From what Go's exporter writes.
    fn from_go(span: &Value) -> Result<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let attributes = span["Attributes"].as_array().ok_or("attributes are a list")?;
        let attribute = |pair: &Value| {
            let value = &pair["Value"]["Value"];
            (text(&pair["Key"]), value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        Ok(Span {
            name: text(&span["Name"]),
            kind: match span["SpanKind"].as_u64() {
                Some(2) => "server",
                Some(3) => "client",
                _ => "other",
            },
            trace: text(&span["SpanContext"]["TraceID"]),
            id: text(&span["SpanContext"]["SpanID"]),
            parent: text(&span["Parent"]["SpanID"]),
            state: text(&span["SpanContext"]["TraceState"]),
            attributes: attributes.iter().map(attribute).collect(),
            is_error: span["Status"]["Code"] == "Error",
            message: text(&span["Status"]["Description"]),
        })
    }
}

fn path(path: &Path) -> Result<&str> {
    Ok(path.to_str().ok_or("the path is not UTF-8")?)
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
