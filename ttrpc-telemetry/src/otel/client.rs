//! Spans of a client's calls.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use async_trait::async_trait;
use opentelemetry::{Context, context::FutureExt};
use tokio::time::Instant;
use ttrpc::{
    Status,
    client::{Answer, Interceptor, Next, OutgoingCall},
    observer::Side,
};

use super::{
    Tracing,
    span::{CallSpan, Outcome, Start},
};

/// Traces a client's calls.
pub(super) struct ClientTracing {
    tracing: Tracing,
}

impl ClientTracing {
    pub(super) fn new(tracing: Tracing) -> Self {
        ClientTracing { tracing }
    }
}

#[async_trait]
impl Interceptor for ClientTracing {
    async fn intercept(&self, call: &mut OutgoingCall, next: Next<'_>) -> Result<Answer, Status> {
        let span = self.tracing.begin(Start {
            side: Side::Client,
            service: call.service(),
            method: call.method(),
            parent: Context::current(),
            time: None,
        });
        let context = span.context().clone();
        self.tracing.propagator.inject(&context, call.metadata_mut());
        #[cfg(feature = "tracing")]
        let tracing_span = span.tracing_span();
        let span = ClientSpan { span: Arc::new(Mutex::new(Some(span))), deadline: call.deadline() };
        if call.is_stream() {
            let span = span.span.clone();
            call.on_message(move |message| {
                if let Some(span) = &*lock(&span) {
                    span.message(message, SystemTime::now());
                }
            });
        }
        let run = next.run(call);
        #[cfg(feature = "tracing")]
        let run = tracing::Instrument::instrument(run, tracing_span);
        match run.with_context(context).await {
            Ok(answer) => {
                answer.on_end(move |end| span.end(end.into()));
                Ok(answer)
            }
            Err(status) => {
                span.end((&status).into());
                Err(status)
            }
        }
    }
}

fn lock(span: &Mutex<Option<CallSpan>>) -> MutexGuard<'_, Option<CallSpan>> {
    span.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The span of a call; dropped, the call is given up.
struct ClientSpan {
    /// Shared with what adds messages to it, which must not keep it.
    span: Arc<Mutex<Option<CallSpan>>>,
    deadline: Option<Instant>,
}

impl ClientSpan {
    fn end(self, outcome: Outcome) {
        let span = lock(&self.span).take();
        if let Some(span) = span {
            span.end(outcome);
        }
    }
}

impl Drop for ClientSpan {
    fn drop(&mut self) {
        let Some(span) = lock(&self.span).take() else { return };
        // At its deadline the library drops the call before this hears of it.
        let is_late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        span.end(if is_late { Outcome::too_late() } else { Outcome::given_up() });
    }
}
