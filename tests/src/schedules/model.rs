//! How a call may end: what the library promises, said once more and without the library.

use std::time::Duration;

use ttrpc::Code;

use super::{
    play::Ending,
    schedule::{CallKind, Consumer, PlannedCall, Schedule},
};

/// What a timer may be late: tokio's timers go by milliseconds.
const TIMER_GRAIN: Duration = Duration::from_millis(2);

/// Checks how a call ended.
///
/// # Errors
/// A sentence about what may not be.
pub(super) fn check(
    schedule: &Schedule,
    index: usize,
    ending: &Ending,
    took: Duration,
) -> Result<(), String> {
    let call = &schedule.calls[index];
    let is_allowed = match ending {
        Ending::Well => true,
        Ending::Dropped => call.dropped_after.is_some(),
        Ending::With(Code::DeadlineExceeded) => call.deadline.is_some(),
        Ending::With(Code::ResourceExhausted) => may_be_refused(schedule, index),
        Ending::With(_) | Ending::Wrong(_) => false,
    };
    if !is_allowed {
        return Err(format!("{:?} ended with {ending:?}", call.kind));
    }
    match call.deadline {
        Some(deadline) if waits_only_for_the_call(&call.kind) && took > deadline + TIMER_GRAIN => {
            Err(format!("{:?} took {took:?} and its deadline was {deadline:?}", call.kind))
        }
        _ => Ok(()),
    }
}

/// Whether the caller waits for nothing beside the call, so that it sees the deadline at once.
fn waits_only_for_the_call(kind: &CallKind) -> bool {
    match kind {
        CallKind::Generate(_, consumer) | CallKind::Exchange(_, consumer) => {
            *consumer == Consumer::Eager
        }
        _ => true,
    }
}

/// Whether RESOURCE_EXHAUSTED is an answer that the call may get: only where something stands
/// still, and only where that reaches a limit.
fn may_be_refused(schedule: &Schedule, index: usize) -> bool {
    let (limits, calls) = (&schedule.limits, &schedule.calls);
    let kind = &calls[index].kind;
    let keeping = calls.iter().filter(|call| may_keep_its_place(schedule, call)).count();
    let others_keeping = keeping - usize::from(may_keep_its_place(schedule, &calls[index]));
    let all_bytes: usize = calls.iter().map(|call| request_bytes(&call.kind)).sum();
    let at_the_client = keeping > 0 && calls.len() > limits.client_calls;
    let at_the_server = others_keeping >= limits.handlers.min(limits.all_handlers);
    let request_bytes_max = limits.request_bytes.min(limits.all_request_bytes);
    let for_its_bytes = keeping > 0 && all_bytes > request_bytes_max;
    at_the_client
        || at_the_server
        || for_its_bytes
        || kind.may_fill_an_inbox()
        || is_short_of_inboxes(schedule, kind)
}

/// Whether a call may stand still and keep its place among the calls in flight, by itself or since what it sends to
/// its client lies behind messages that a consumer takes slowly.
fn may_keep_its_place(schedule: &Schedule, call: &PlannedCall) -> bool {
    let connection = |call: &PlannedCall| call.connection % schedule.connections.max(1);
    let holds_up = |other: &PlannedCall| {
        connection(other) == connection(call)
            && matches!(other.kind, CallKind::Generate(_, consumer) | CallKind::Exchange(_, consumer)
                if consumer != Consumer::Eager)
    };
    call.kind.may_keep_its_place() || schedule.calls.iter().any(holds_up)
}

/// Whether messages that lie at the server may take the room that the call's messages need.
fn is_short_of_inboxes(schedule: &Schedule, kind: &CallKind) -> bool {
    let kinds = || schedule.calls.iter().map(|call| &call.kind);
    let bytes: usize = kinds().filter(|kind| kind.requests().is_some()).map(request_bytes).sum();
    kind.requests().is_some()
        && kinds().any(CallKind::may_let_requests_lie)
        && bytes > schedule.limits.all_inbox_bytes
}

/// The most bytes that a call's requests may take at the server: those of its messages, and what
/// names the method and carries them.
fn request_bytes(kind: &CallKind) -> usize {
    const HEAD: usize = 128;
    match kind {
        CallKind::Echo { request, .. } => request + HEAD,
        CallKind::Collect(messages)
        | CallKind::Exchange(messages, _)
        | CallKind::Hold(messages) => HEAD + messages.count as usize * (messages.size + HEAD),
        _ => HEAD,
    }
}
