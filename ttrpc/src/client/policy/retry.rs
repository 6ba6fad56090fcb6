//! Which calls are made again, when, and how often.

use std::{mem, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::RetryBudget;
use crate::{
    Code, Status,
    client::{
        Answer, Backoff, Next, OutgoingCall,
        meta::{CallHead, CallOptions},
    },
    trace,
};

/// Makes calls again that have failed.
///
/// ```
/// # use ttrpc::{Client, client::Retry};
/// # fn example(client: Client) -> Client {
/// // Three attempts of each call for which that is safe, if the server is not available.
/// client.with_retry(Retry::new())
/// # }
/// ```
///
/// # What is made again
///
/// - A call that no server can have seen, if its failure has one of the [codes](Retry::codes): UNAVAILABLE where there was no
///   connection, RESOURCE_EXHAUSTED where too many calls were in flight on this side. One whose request is too long is not.
/// - A unary call that is idempotent, if its failure has one of the codes. It is so if the .proto says it with
///   `option idempotency_level = NO_SIDE_EFFECTS` or `IDEMPOTENT`, if the program says it with
///   [`Call::idempotent`](crate::client::Call::idempotent), or if [`CallDefaults::idempotent`](super::CallDefaults::idempotent) says
///   it of the method.
/// - Nothing else. Another call that a server may have seen fails as without a policy; so does a call with streams, whose failure its
///   streams report. On a client that does not [reconnect](crate::client::ConnectOptions::reconnect) no call is made again once
///   the connection is lost.
///
/// # When, and how often
///
/// Between two attempts the call waits for a random pause, as [`Retry::backoff`] says. Its deadline covers all attempts, and no
/// pause goes beyond it: the call fails with the last attempt's status in place of that. A [`RetryBudget`] limits how many
/// calls are made again while a server fails. A call that is made again needs a tokio runtime with time.
///
/// [Interceptors](crate::client::Interceptor) run around each attempt. [Observers](crate::observer) see one call, with its
/// [attempts](crate::observer::CallEnd::attempts).
#[derive(Clone, Debug)]
#[must_use = "a client gets it with `Client::with_retry` or `MethodDefaults`"]
pub struct Retry {
    max_attempts: u32,
    codes: Vec<Code>,
    backoff: Backoff,
    budget: RetryBudget,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            max_attempts: 3,
            codes: vec![Code::Unavailable],
            backoff: Backoff::new().longest(Duration::from_secs(1)),
            budget: RetryBudget::default(),
        }
    }
}

impl Retry {
    /// Makes a policy of three attempts in all, after UNAVAILABLE, with pauses of up to 100 ms and 200 ms, and a budget of its own.
    pub fn new() -> Self {
        Retry::default()
    }

    /// Makes no call again, for methods or calls that are an exception.
    pub fn none() -> Self {
        Retry::new().max_attempts(1)
    }

    /// Makes so many attempts in all, at least one. Default 3.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Makes calls again that fail with one of these codes. Default UNAVAILABLE alone.
    pub fn codes(mut self, codes: impl IntoIterator<Item = Code>) -> Self {
        self.codes = codes.into_iter().collect();
        self
    }

    /// Waits like this between attempts. Its limits count as well, from the call's start: the one that is reached first ends the
    /// call. Default: up to 100 ms at first, and up to 1 s at last.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Shares a budget with other policies.
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Returns whether any call is made again.
    pub(super) fn is_any(&self) -> bool {
        self.max_attempts > 1
    }

    /// Makes a call, and again as long as that is allowed.
    pub(in crate::client) async fn run(
        self: &Arc<Self>,
        call: &mut OutgoingCall,
        next: Next<'_>,
    ) -> Result<Answer, Status> {
        let options = call.pending.head.options.clone();
        loop {
            let was_seen = mem::take(&mut call.may_be_seen);
            let result = next.run(call).await;
            let is_seen = call.may_be_seen;
            call.may_be_seen |= was_seen;
            let status = match result {
                Ok(answer) => {
                    if !call.is_stream() {
                        self.budget.succeeded();
                    }
                    return Ok(answer);
                }
                Err(status) => status,
            };
            let pause = self.pause(&status, call, is_seen, &options);
            // There may be a connection again, unless it was the client's only one.
            let pause = pause.filter(|_| next.link.close_reason().is_none());
            let Some(pause) = pause else { return Err(status) };
            trace::debug!(attempt = call.attempt(), %status, ?pause, "the call is made again");
            if let Some(record) = &call.record {
                record.end_attempt();
            }
            sleep(pause).await;
            call.begin_again(options.clone());
        }
    }

    /// Returns the pause before the next attempt, if there is one. No server can have seen the last one unless `is_seen`: then
    /// its failure says nothing of a server, and the budget stays as it is.
    fn pause(
        &self,
        status: &Status,
        call: &OutgoingCall,
        is_seen: bool,
        options: &CallOptions,
    ) -> Option<Duration> {
        if !self.codes.contains(&status.code()) {
            return None;
        }
        let has_budget = !is_seen || self.budget.failed();
        let failures = call.attempt();
        let is_exhausted = failures >= self.max_attempts
            || self.backoff.is_exhausted(failures, options.started())
            || !has_budget;
        if is_exhausted || !call.is_safe_again() {
            return None;
        }
        let pause = self.backoff.pause(failures);
        let is_in_time = options.deadline.is_none_or(|deadline| Instant::now() + pause < deadline);
        is_in_time.then_some(pause)
    }
}

impl OutgoingCall {
    /// Returns whether the call does no harm if it is made again: it awaits one reply to one message, and no server can have
    /// seen it, or it may be executed more than once. A request that fits in no frame is not made again.
    fn is_safe_again(&self) -> bool {
        let CallHead { kind, options, .. } = &self.pending.head;
        let is_idempotent = options.is_idempotent || options.is_method_idempotent;
        let is_safe = is_idempotent && kind.is_unary() || !self.may_be_seen;
        is_safe && self.pending.frame().is_ok()
    }

    /// Begins another attempt, with the options that the call had at first.
    fn begin_again(&mut self, options: CallOptions) {
        if let Some(record) = &self.record {
            record.stats.begin_again();
        }
        self.pending.head.options = options;
        self.on_message = None;
        self.attempt += 1;
        self.is_made = false;
    }
}
