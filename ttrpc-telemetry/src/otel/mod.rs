//! Spans of OpenTelemetry for calls, and their context through metadata, as containerd's `otelttrpc` has them.
//!
//! [`Tracing`] makes a span for each call, on a server and on a client, and hands its context on. A Go
//! program with `otelttrpc` on the other side sees one trace.
//!
//! # What a span has
//!
//! - Its name, `pkg.Service/Method`, and its kind, client or server.
//! - `rpc.system`, which is `ttrpc`, `rpc.service` and `rpc.method`; when it ends, the number
//!   `rpc.ttrpc.status_code`.
//! - The status *error*, with the message of the call's status: a client's span for every code but OK; a
//!   server's for UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS.
//!
//! `otelttrpc` has this for unary calls alone. Here all four kinds are alike: the span of a stream ends when
//! the stream does. Its messages are events `rpc.message`, with `rpc.message.type` (`SENT` or `RECEIVED`), `rpc.message.id` (from
//! 1 in each direction) and `rpc.message.compressed_size`, the bytes of the frame's data.
//!
//! # What goes through metadata
//!
//! What the propagator writes, under keys in lower case, in place of what these keys had: `traceparent` and
//! `tracestate` with a `TraceContextPropagator`, `baggage` with a `BaggagePropagator`, both of which are in
//! `opentelemetry_sdk`. An empty value is not sent. Of several values of a key the first is read.
//!
//! # Where a span ends
//!
//! A server's span begins with its call, so it includes the time in which the call waits to be admitted. It ends
//! with the call, also if the handler was dropped or has panicked. Calls that come to no handler, since there is
//! none or a limit refuses them, have no span on the server. A client's span begins when the call is first
//! polled. If the caller drops the call, its code is CANCELLED.
//!
//! # In handlers
//!
//! A handler runs in the context of its span: what it calls with a traced client goes into the same trace, and
//! so does the baggage. A task that it spawns gets the context by
//! [`with_current_context`](opentelemetry::context::FutureExt::with_current_context).

mod client;
mod propagation;
mod server;
mod span;

use std::sync::Arc;

use opentelemetry::{
    InstrumentationScope, global,
    global::BoxedTracer,
    propagation::TextMapPropagator,
    trace::{Span, Tracer, TracerProvider},
};
use ttrpc::{Client, server::ServerBuilder};

use client::ClientTracing;
use propagation::Propagator;
use server::ServerTracing;
use span::Spans;

/// Makes spans for the calls of servers and clients; see [the module](self).
///
/// ```
/// use opentelemetry::{global, propagation::TextMapCompositePropagator};
/// use opentelemetry_sdk::{
///     propagation::{BaggagePropagator, TraceContextPropagator},
///     trace::SdkTracerProvider,
/// };
/// use ttrpc_telemetry::Tracing;
///
/// // Where spans go: add an exporter.
/// global::set_tracer_provider(SdkTracerProvider::builder().build());
/// global::set_text_map_propagator(TextMapCompositePropagator::new(vec![
///     Box::new(TraceContextPropagator::new()),
///     Box::new(BaggagePropagator::new()),
/// ]));
///
/// let tracing = Tracing::new();
/// let server = tracing.trace_server(ttrpc::Server::builder());
/// # drop(server);
/// # let on = |client: ttrpc::Client|
/// tracing.trace_client(client)
/// # ;
/// ```
#[derive(Clone, Debug)]
pub struct Tracing {
    tracer: Arc<BoxedTracer>,
    propagator: Arc<Propagator>,
    spans: Spans,
}

impl Tracing {
    /// Uses the global tracer provider, as it is now, and the global propagator.
    pub fn new() -> Self {
        Tracing {
            tracer: Arc::new(global::tracer_with_scope(scope())),
            propagator: Arc::new(Propagator::Global),
            spans: Spans::OpenTelemetry,
        }
    }

    /// Uses this provider in place of the global one.
    #[must_use]
    pub fn with_tracer_provider<P>(mut self, provider: &P) -> Self
    where
        P: TracerProvider,
        P::Tracer: Tracer<Span: Span + Send + Sync + 'static> + Send + Sync + 'static,
    {
        let tracer = provider.tracer_with_scope(scope());
        self.tracer = Arc::new(BoxedTracer::new(Box::new(tracer)));
        self
    }

    /// Uses this propagator in place of the global one.
    #[must_use]
    pub fn with_propagator(
        mut self,
        propagator: impl TextMapPropagator + Send + Sync + 'static,
    ) -> Self {
        self.propagator = Arc::new(Propagator::Own(Box::new(propagator)));
        self
    }

    /// Makes spans of `tracing`, which the layer of `tracing-opentelemetry` exports. Log lines then belong to
    /// the call.
    ///
    /// The spans have level INFO and the target `ttrpc_telemetry`. The tracer is the layer's. A call whose span
    /// is filtered out hands on the context in which it is made.
    ///
    /// Without this, spans that a program makes with `tracing` are in the right trace too: the layer
    /// looks at the current context of OpenTelemetry.
    #[cfg(feature = "tracing")]
    #[must_use]
    pub fn with_tracing_spans(mut self) -> Self {
        self.spans = Spans::Tracing;
        self
    }

    /// Traces all calls that come to the services and the fallback of a server. Interceptors that
    /// are added before run outside of the span, those that are added later inside.
    pub fn trace_server(&self, server: ServerBuilder) -> ServerBuilder {
        let tracing = Arc::new(ServerTracing::new(self.clone()));
        server.intercept(tracing.clone()).observe(tracing)
    }

    /// Traces all calls that this client and its later clones make.
    ///
    /// What such a call is a part of is the [context](opentelemetry::Context::current) in which it is first
    /// polled.
    #[must_use]
    pub fn trace_client(&self, client: Client) -> Client {
        client.with_interceptor(ClientTracing::new(self.clone()))
    }
}

impl Default for Tracing {
    fn default() -> Self {
        Tracing::new()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("ttrpc-telemetry").with_version(env!("CARGO_PKG_VERSION")).build()
}
