//! Spans of a server's calls: begun by an interceptor, in which the handler runs, and ended by an observer,
//! which knows how every call ends.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use async_trait::async_trait;
use opentelemetry::context::FutureExt;
use ttrpc::{
    Context, Status,
    observer::{CallEnd, CallInfo, MessageInfo, Observer, Side},
    server::{Interceptor, Next},
};

use super::{
    Tracing,
    span::{CallSpan, Outcome, Start},
};

/// Traces a server's calls.
pub(super) struct ServerTracing {
    tracing: Tracing,
}

/// What a call carries from its begin to its end.
struct ServerSpan {
    begun: SystemTime,
    state: Mutex<State>,
}

/// As many events as a span has, unless its provider is told otherwise.
const MAX_WAITING_MESSAGES: usize = 128;

enum State {
    /// The call waits to be let in. Messages may have come.
    Waiting(Vec<(SystemTime, MessageInfo)>),
    Running(CallSpan),
    Ended(Outcome),
}

impl ServerTracing {
    pub(super) fn new(tracing: Tracing) -> Self {
        ServerTracing { tracing }
    }
}

impl Observer for ServerTracing {
    fn call_begun(&self, call: &CallInfo<'_>) {
        let begun = SystemTime::now() - call.started.elapsed();
        call.extensions.insert(ServerSpan { begun, state: Mutex::new(State::Waiting(Vec::new())) });
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        if let Some(span) = call.extensions.get::<ServerSpan>() {
            span.end(end.into());
        }
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn message(&self, call: &CallInfo<'_>, message: &MessageInfo) {
        if call.is_stream
            && let Some(span) = call.extensions.get::<ServerSpan>()
        {
            span.message(message);
        }
    }
}

#[async_trait]
impl Interceptor for ServerTracing {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        let Some(span) = ctx.extensions().get::<ServerSpan>() else {
            return next.run(ctx).await;
        };
        let call = self.tracing.begin(Start {
            side: Side::Server,
            service: ctx.service(),
            method: ctx.method(),
            parent: self.tracing.propagator.extract(ctx.metadata()),
            time: Some(span.begun),
        });
        let context = call.context().clone();
        #[cfg(feature = "tracing")]
        let tracing_span = call.tracing_span();
        span.run(call);
        let run = next.run(ctx);
        #[cfg(feature = "tracing")]
        let run = tracing::Instrument::instrument(run, tracing_span);
        run.with_context(context).await
    }
}

impl ServerSpan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler begins. The call may have ended just before: then so does the span.
    fn run(&self, call: CallSpan) {
        let mut state = self.state();
        let outcome = match &*state {
            State::Ended(outcome) => outcome.clone(),
            State::Waiting(messages) => {
                for (time, message) in messages {
                    call.message(message, *time);
                }
                *state = State::Running(call);
                return;
            }
            State::Running(_) => return,
        };
        drop(state);
        call.end(outcome);
    }

    fn message(&self, message: &MessageInfo) {
        let now = SystemTime::now();
        match &mut *self.state() {
            State::Waiting(messages) if messages.len() < MAX_WAITING_MESSAGES => {
                messages.push((now, *message));
            }
            State::Running(call) => call.message(message, now),
            State::Waiting(_) | State::Ended(_) => {}
        }
    }

    fn end(&self, outcome: Outcome) {
        let before = mem::replace(&mut *self.state(), State::Ended(outcome.clone()));
        if let State::Running(call) = before {
            call.end(outcome);
        }
    }
}
