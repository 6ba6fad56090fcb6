//! A handler that has not finished in its first step: polls it until it has, or the call is over.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    task::Poll,
};

use tokio::{
    task::coop::unconstrained,
    time::{Sleep, sleep, sleep_until},
};

use crate::server::call::{
    handler::{BoxHandler, Context},
    reasons::Refusal,
    replies::{WaitingReply, may_resume, wait_for_permit},
    state::{Call, Unsent},
    task::{CallOwner, CallTask, Step, give_way, panicked, poll_handler},
};
use crate::{
    contain::{Panicked, contain},
    observer::EndCause,
};

impl CallTask {
    /// Runs a handler that has not finished in its first step, until it has or the call is over.
    pub(super) async fn go_on(mut self, first: Option<Poll<Step>>) {
        let CallTask { handler, owner } = &mut self;
        let ended = {
            let mut runs = pin!(run_handler(&owner.ctx, handler, first));
            // Without a part in the task's budget: a handler that always has something to do uses that up.
            let mut time = pin!(unconstrained(time_is_over(owner.ctx.call())));
            poll_fn(|cx| match runs.as_mut().poll(cx) {
                Poll::Pending => time.as_mut().poll(cx).map(Err),
                ended => ended,
            })
            .await
        };
        if let Err(refusal) = ended {
            // The next handler may have got this one's permit. Its task runs first: the runtime keeps it for this thread,
            // which the handler may block as it cleans up.
            give_way().await;
            self.abort(refusal).await;
        }
    }

    /// Ends a call whose handler has not ended it, and sends the status. The handler has time to clean up if it has asked
    /// for its token.
    async fn abort(self, failure: Refusal) {
        let CallTask { mut handler, owner: CallOwner { ref ctx, .. } } = self;
        let call = ctx.call();
        let has_grace = failure.cause != EndCause::Panicked && call.end.is_graceful();
        let is_taken = call.take_end(&failure);
        let clean_up = async move {
            if has_grace {
                // The handler is polled before it is dropped, so that it sees its token. What it returns comes too late.
                tokio::select! {
                    biased;
                    _ = poll_fn(|cx| poll_handler(ctx, &mut handler, cx)) => {}
                    () = unconstrained(grace(call)) => {}
                }
            }
            drop(handler);
        };
        let send_status = async {
            if is_taken {
                call.connection.send_status(call.head.stream_id, &failure, Some(call)).await;
            }
        };
        tokio::join!(clean_up, unconstrained(send_status));
    }
}

/// Polls the handler whenever it has a permit, see [`replies`](super::replies), and sends its last frame.
async fn run_handler(
    ctx: &Context,
    handler: &mut BoxHandler,
    mut first: Option<Poll<Step>>,
) -> Step {
    let (call, mut is_granted) = (ctx.call(), false);
    if first.is_none() {
        unconstrained(wait_for_permit(call, false)).await;
        call.check_time()?;
        is_granted = true;
    }
    let step = loop {
        let polled = poll_fn(|cx| {
            // It may have been polled just now.
            if let Some(polled) = first.take() {
                return polled.map(Some);
            }
            if !mem::take(&mut is_granted) && !may_resume(call) {
                return Poll::Ready(None);
            }
            poll_handler(ctx, handler, cx).map(Some)
        });
        if let Some(step) = polled.await {
            break step;
        }
        unconstrained(wait_for_permit(call, true)).await;
        is_granted = true;
    };
    let Some(mut unsent) = step? else { return Ok(None) };
    // It counts from now on, in the step that has polled the handler.
    let waiting = match WaitingReply::new(call, unsent.len) {
        Ok(waiting) => waiting,
        Err(status) => {
            contain(|| handler.as_mut().clear()).map_err(|Panicked| panicked(call))?;
            unsent = Unsent::failure(Refusal { cause: EndCause::Limit, status });
            WaitingReply::of_any_length(call, unsent.len)
        }
    };
    // A connection that has ended drops its handlers.
    let Ok(permit) = waiting.permit().await else { return Ok(None) };
    contain(|| call.send_last(unsent.failure, handler, Some(permit)))
        .map_err(|Panicked| panicked(call))
}

/// Waits until the call is over or its deadline has passed, which an interceptor may shorten meanwhile.
async fn time_is_over(call: &Call) -> Refusal {
    let token = call.end.token();
    let (mut cancelled, mut time) = (pin!(token.cancelled()), pin!(None::<Sleep>));
    poll_fn(|cx| {
        if cancelled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Refusal::over());
        }
        let deadline = call.deadline();
        if time.as_ref().as_pin_ref().map(|time| time.deadline()) != deadline {
            time.set(deadline.map(sleep_until));
        }
        match time.as_mut().as_pin_mut() {
            Some(time) => time.poll(cx).map(|()| Refusal::too_late("the call's deadline passed")),
            None => Poll::Pending,
        }
    })
    .await
}

/// The time that a handler has to clean up. When the server has ended, or the limit of its shutdown has passed, the
/// handler is polled once more and dropped.
async fn grace(call: &Call) {
    let server = &call.connection.server;
    tokio::select! {
        biased;
        () = server.lifecycle.limit_passed() => {}
        () = sleep(server.config.cancellation_grace) => {}
    }
}
