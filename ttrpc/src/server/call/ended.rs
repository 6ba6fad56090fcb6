//! A call that ended before its handler did: its status is sent, and its handler may have time to clean up.

use std::{
    sync::Arc,
    task::{self, Poll},
};

use tokio::time::sleep;

use crate::server::call::task::{Handler, Outcome, beside};
use crate::{
    Status,
    observer::{CallOutcome, EndCause},
    server::call::state::Call,
    trace,
    transport::BoxFuture,
};

/// The rest of a call that ended before its handler did.
pub(in crate::server) struct EndedCall {
    /// Sends the status to the client.
    last_frame: Option<BoxFuture<'static, ()>>,
    /// The time that the handler still has.
    grace: Option<BoxFuture<'static, ()>>,
}

impl EndedCall {
    pub(in crate::server) fn poll(
        &mut self,
        call: &Arc<Call>,
        handler: &mut dyn Handler,
        cx: &mut task::Context<'_>,
    ) -> Poll<()> {
        // The handler is polled before it is dropped, so that it sees its token. What it returns comes too late.
        let is_waiting = |grace: &mut BoxFuture<'static, ()>| {
            handler.poll(call, cx).is_pending() && grace.as_mut().poll(cx).is_pending()
        };
        if !self.grace.as_mut().is_some_and(is_waiting) {
            self.grace = None;
            handler.drop_now();
        }
        let is_waiting = |frame: &mut BoxFuture<'static, ()>| frame.as_mut().poll(cx).is_pending();
        if !self.last_frame.as_mut().is_some_and(is_waiting) {
            self.last_frame = None;
        }
        match self {
            EndedCall { last_frame: None, grace: None } => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

/// Ends the call if it is not over. The handler has time only if it has asked for its token.
pub(in crate::server) fn end(call: &Arc<Call>, outcome: Outcome) -> EndedCall {
    let end = match outcome {
        Outcome::DeadlinePassed => {
            let status = Status::deadline_exceeded("the call's deadline passed");
            Some((EndCause::DeadlineHere, status))
        }
        Outcome::Panicked => {
            let (service, method) = (call.head.service.as_str(), call.head.method.as_str());
            trace::warn!(service, method, "a handler panicked");
            Some((EndCause::Panicked, Status::internal("the handler panicked")))
        }
        Outcome::Finished | Outcome::Cancelled => None,
    };
    let may_go_on = matches!(outcome, Outcome::DeadlinePassed | Outcome::Cancelled);
    let grace = (may_go_on && call.end.is_graceful()).then(|| grace(call.clone()));
    let last_frame = end.filter(|(cause, status)| {
        call.take_end(CallOutcome { cause: *cause, status: Some(status) })
    });
    let last_frame = last_frame.map(|(_, status)| beside(send_status(call.clone(), status)));
    EndedCall { last_frame, grace }
}

/// The time that a handler which has asked for its token has to clean up. When the server has ended, or the
/// limit of its shutdown has passed, the handler is polled once more and dropped.
fn grace(call: Arc<Call>) -> BoxFuture<'static, ()> {
    beside(async move {
        let server = &call.connection.server;
        tokio::select! {
            biased;
            () = server.lifecycle.limit_passed() => {}
            () = sleep(server.config.cancellation_grace) => {}
        }
    })
}

/// Sends the status of a call that has been taken out of the table.
async fn send_status(call: Arc<Call>, status: Status) {
    call.connection.send_status(call.head.stream_id, &status, Some(&call)).await;
}
