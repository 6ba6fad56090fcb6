//! One call's span.

use std::time::SystemTime;

use opentelemetry::{
    Context, KeyValue,
    trace::{SpanBuilder, SpanKind, Status, TraceContextExt, Tracer},
};
use ttrpc::{
    Code,
    observer::{CallEnd, Direction, MessageInfo, Side},
};

use super::Tracing;

/// Which spans are made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spans {
    OpenTelemetry,
    #[cfg(feature = "tracing")]
    Tracing,
}

/// The event for a message.
const MESSAGE: &str = "rpc.message";

const STATUS_CODE: &str = "rpc.ttrpc.status_code";

/// The span of a call that has not ended.
#[derive(Debug)]
pub(super) struct CallSpan {
    side: Side,
    context: Context,
    #[cfg(feature = "tracing")]
    span: Option<tracing::Span>,
}

/// Where a span begins.
pub(super) struct Start<'a> {
    pub(super) side: Side,
    pub(super) service: &'a str,
    pub(super) method: &'a str,
    pub(super) parent: Context,
    /// Now, if it is not said.
    pub(super) time: Option<SystemTime>,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) code: Code,
    pub(super) message: String,
}

impl Outcome {
    /// The caller has dropped the call.
    pub(super) fn given_up() -> Self {
        Outcome { code: Code::Cancelled, message: "the caller has given the call up".into() }
    }

    /// The call's time was over when it was dropped.
    pub(super) fn too_late() -> Self {
        Outcome { code: Code::DeadlineExceeded, message: "the deadline has passed".into() }
    }
}

impl From<&CallEnd<'_>> for Outcome {
    fn from(end: &CallEnd<'_>) -> Self {
        Outcome { code: end.code, message: end.message.to_owned() }
    }
}

impl From<&ttrpc::Status> for Outcome {
    fn from(status: &ttrpc::Status) -> Self {
        Outcome { code: status.code(), message: status.message().to_owned() }
    }
}

impl Tracing {
    /// Begins a call's span.
    pub(super) fn begin(&self, start: Start<'_>) -> CallSpan {
        match self.spans {
            Spans::OpenTelemetry => self.begin_otel(start),
            #[cfg(feature = "tracing")]
            Spans::Tracing => begin_tracing(start),
        }
    }

    fn begin_otel(&self, start: Start<'_>) -> CallSpan {
        let Start { side, service, method, parent, time } = start;
        let mut builder = SpanBuilder::from_name(format!("{service}/{method}"))
            .with_kind(match side {
                Side::Client => SpanKind::Client,
                Side::Server => SpanKind::Server,
            })
            .with_attributes([
                KeyValue::new("rpc.system", "ttrpc"),
                KeyValue::new("rpc.service", service.to_owned()),
                KeyValue::new("rpc.method", method.to_owned()),
            ]);
        builder.start_time = time;
        let span = self.tracer.build_with_context(builder, &parent);
        CallSpan {
            side,
            context: parent.with_span(span),
            #[cfg(feature = "tracing")]
            span: None,
        }
    }
}

#[cfg(feature = "tracing")]
fn begin_tracing(start: Start<'_>) -> CallSpan {
    use tracing::{Span, field::Empty};
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    let Start { side, service, method, mut parent, time: _ } = start;
    // A server's call is no part of what surrounds it there, which is its connection.
    let surrounding = match side {
        Side::Client => Span::current(),
        Side::Server => Span::none(),
    };
    // The layer can be told not to set the current context of OpenTelemetry.
    if !parent.has_active_span() && !surrounding.is_none() {
        parent = surrounding.context();
    }
    let span = tracing::info_span!(
        target: "ttrpc_telemetry",
        parent: surrounding.id(),
        "call",
        otel.name = format!("{service}/{method}"),
        otel.kind = side.name(),
        rpc.system = "ttrpc",
        rpc.service = service,
        rpc.method = method,
        { STATUS_CODE } = Empty,
    );
    // Fails where the span is filtered out or there is no layer: then the context is handed on as it is.
    let context = match span.set_parent(parent.clone()) {
        Ok(()) => span.context(),
        Err(_) => parent,
    };
    CallSpan { side, context, span: Some(span) }
}

impl CallSpan {
    /// The context in which the call runs.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The span of `tracing` in which the call runs; none if it has none.
    #[cfg(feature = "tracing")]
    pub(super) fn tracing_span(&self) -> tracing::Span {
        self.span.clone().unwrap_or_else(tracing::Span::none)
    }

    /// A message of a stream was sent or has come.
    pub(super) fn message(&self, message: &MessageInfo, time: SystemTime) {
        let attributes = vec![
            KeyValue::new(
                "rpc.message.type",
                match message.direction {
                    Direction::Sent => "SENT",
                    Direction::Received => "RECEIVED",
                },
            ),
            KeyValue::new("rpc.message.id", message.number as i64),
            KeyValue::new("rpc.message.compressed_size", message.bytes as i64),
        ];
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            use tracing_opentelemetry::OpenTelemetrySpanExt;
            span.add_event_with_timestamp(MESSAGE, time, attributes);
            return;
        }
        self.context.span().add_event_with_timestamp(MESSAGE, time, attributes);
    }

    /// The call has ended.
    pub(super) fn end(self, outcome: Outcome) {
        let Outcome { code, message } = outcome;
        let status_code = code as i64;
        let is_error = match self.side {
            Side::Client => code != Code::Ok,
            Side::Server => is_server_error(code),
        };
        #[cfg(feature = "tracing")]
        if let Some(span) = self.span {
            use tracing_opentelemetry::OpenTelemetrySpanExt;
            span.record(STATUS_CODE, status_code);
            if is_error {
                span.set_status(Status::error(message));
            }
            // It ends when nobody holds it any more: a handler may run on for its grace.
            return;
        }
        let span = self.context.span();
        span.set_attribute(KeyValue::new(STATUS_CODE, status_code));
        if is_error {
            span.set_status(Status::error(message));
        }
        span.end();
    }
}

/// Whether a server is to blame. The other codes are the client's doing.
fn is_server_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}
