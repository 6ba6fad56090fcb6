//! Replies that wait for capacity in the outgoing queue, and the handlers that have to wait for them.
//!
//! No call begins while its connection's queue is full. But handlers that have begun, and have been
//! waiting for something, may go on together, and each of them makes a reply, which waits as a value
//! until it has capacity. And calls for long replies begin while the queue has capacity for short ones. What waits is
//! counted, by its encoded length, for each connection ([`reply_bytes_per_connection`]) and in all
//! ([`reply_bytes`]); replies and messages of streams alike. When as much waits as may, no call begins.
//!
//! A handler that goes on after a wait may be about to reply. It does so freely while a quarter of the limit is free,
//! and waits in a queue for the connection's one permit then. What it replies is counted in the step that polls it, in
//! which it has returned the permit. So there wait no more replies than the limit allows, and one for each thread that
//! polls a handler.
//!
//! Streams of a client that reads may fill the limit at all times. So the handler that holds the permit starts or
//! resumes, whatever the limit says, as soon as all frames that waited for the queue before it have capacity.
//!
//! The client blocks such handlers, and they may hold what others need. So they wait only while the client reads.
//! When it has read nothing for a whole [`stall_timeout`], those that have begun resume, and replies that exceed
//! the limit are dropped, until a frame has been written to its end.
//!
//! [`reply_bytes_per_connection`]: field@crate::ServerConfig::reply_bytes_per_connection
//! [`reply_bytes`]: field@crate::ServerConfig::reply_bytes
//! [`stall_timeout`]: field@crate::ServerConfig::stall_timeout

use std::future::pending;

use crate::server::call::{
    shared::{Connection, ReplyPermit},
    state::{Call, HandlerWait},
    task::give_way,
};
use crate::{
    Status,
    observer::CallStats,
    snapshot::{CallWait, ReceiverWait},
    sync::spawn,
    transport::{
        limiter::{Closed, Load},
        registry::CallInfo,
    },
};

/// The part of the limit that is free while handlers go on freely.
const FREE_PART: usize = 4;

impl Connection {
    /// Returns whether a reply of this length may wait too. The only reply of a connection always may.
    fn may_wait_too(&self, len: usize) -> bool {
        let waiting = self.limits().replies.load().cost;
        waiting == 0
            || (waiting + len <= self.limits().replies.limit().cost
                && !self.server.replies.is_full())
    }

    /// Waits for capacity for a frame of a call, or of the receiver.
    pub(in crate::server) async fn reserve(
        &self,
        len: usize,
        call: Option<CallInfo>,
    ) -> Result<ReplyPermit<'_>, Closed> {
        if let Some(permit) = self.queue.try_reserve(len)? {
            return Ok(permit);
        }
        let _held_up = call.is_none().then(|| self.stall(ReceiverWait::SendQueue));
        let _waiting = call.map(|call| self.registry.enter(call, CallWait::Capacity));
        self.queue.reserve(len).await
    }
}

/// A reply, or a message, that waits for capacity. It counts until this is dropped.
#[derive(Debug)]
pub(in crate::server) struct WaitingReply<'a> {
    call: &'a Call,
    _wait: HandlerWait<'a>,
    load: Load,
}

impl<'a> WaitingReply<'a> {
    /// # Errors
    /// RESOURCE_EXHAUSTED if the client reads nothing and others take all capacity.
    pub(in crate::server) fn new(call: &'a Call, len: usize) -> Result<Self, Status> {
        let connection = &call.connection;
        if connection.queue.has_stalled() && !connection.may_wait_too(len) {
            return Err(Status::resource_exhausted(
                "too many replies wait for a client that does not read them",
            ));
        }
        Ok(WaitingReply::of_any_length(call, len))
    }

    /// A reply that waits whatever the limit says: for the few bytes of a status that takes a reply's place.
    pub(in crate::server) fn of_any_length(call: &'a Call, len: usize) -> Self {
        let load = Load::cost(len);
        call.connection.limits().replies.force(load);
        call.connection.server.replies.force(load);
        WaitingReply { call, _wait: call.end.wait(), load }
    }

    /// Waits for capacity in the queue.
    pub(in crate::server) async fn permit(&self) -> Result<ReplyPermit<'a>, Closed> {
        let _observed = self.call.stats.as_ref().map(CallStats::wait_for_capacity);
        self.call.connection.reserve(self.load.cost, Some(self.call.info())).await
    }
}

impl Drop for WaitingReply<'_> {
    fn drop(&mut self) {
        self.call.connection.limits().replies.release(self.load);
        self.call.connection.server.replies.release(self.load);
    }
}

/// Returns whether a handler that has begun may be polled again.
pub(in crate::server) fn may_resume(call: &Call) -> bool {
    let connection = &call.connection;
    // One that has been granted something for which others wait must be polled.
    if connection.has_no_replies() || call.end.has_waits() {
        return true;
    }
    let limits = connection.limits();
    let part = limits.replies.limit().cost.div_ceil(FREE_PART);
    connection.may_wait_too(part) && !limits.permit.is_full()
}

/// Waits until a handler may be polled: for the first time, or again, while the client reads. It returns in the step
/// that polls the handler, without the permit: a handler that blocks its thread blocks no other.
///
/// Endless streams may hold more than the limit at any time, and handlers that have not begun have no other way: calls
/// that were spawned earlier have filled the queue since these were admitted.
pub(in crate::server) async fn wait_for_permit(call: &Call, has_begun: bool) {
    let connection = &*call.connection;
    let _waiting = connection.registry.enter(call.info(), CallWait::Capacity);
    let _wait = call.end.wait();
    let (limits, stall_timeout) = (connection.limits(), connection.server.config.stall_timeout);
    let granted = async {
        let _permit = limits.permit.acquire(Load::one(0)).await?;
        connection.wait_for_capacity().await?;
        // The tasks that were woken meanwhile run first.
        give_way().await;
        Ok::<_, Closed>(())
    };
    tokio::select! {
        biased;
        Ok(()) = granted => {}
        () = connection.queue.stall(stall_timeout), if has_begun => {}
        // A connection that has ended drops its handlers.
        else => pending().await,
    }
    // The runtime keeps the task that was woken last for this thread, which the handler may block. So that is not the next
    // handler's, which has been woken with the permit.
    spawn(async {});
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        mem,
        pin::pin,
        sync::{Arc, Condvar, Mutex},
        task::{Context, Waker},
        time::Duration,
    };

    use tokio::{sync::mpsc, task::yield_now};

    use super::*;
    use crate::{
        ServerConfig,
        server::{
            call::handler::{self, boxed},
            tests::{idle_connection, start, unary_call},
        },
    };

    const PATIENCE: Duration = Duration::from_secs(10);

    fn config() -> ServerConfig {
        ServerConfig {
            reply_bytes_per_connection: 100,
            reply_bytes: 150,
            ..ServerConfig::default()
        }
    }

    #[tokio::test]
    async fn a_reply_may_wait_if_both_limits_allow_all_or_it_is_the_only_one() {
        let (_server, connection) = idle_connection(config());
        assert!(connection.may_wait_too(1000), "it is the only one");
        let call = unary_call(connection.clone(), 1);
        let waiting = WaitingReply::of_any_length(&call, 60);
        assert!(connection.may_wait_too(40) && !connection.may_wait_too(41));
        // Those of other connections.
        connection.server.replies.force(Load::cost(89));
        assert!(connection.may_wait_too(40));
        connection.server.replies.force(Load::cost(1));
        assert!(!connection.may_wait_too(1));
        drop(waiting);
        assert_eq!(connection.server.replies.load(), Load::cost(90));
    }

    #[tokio::test]
    async fn a_handler_goes_on_freely_while_a_quarter_is_free_or_its_own_reply_waits() {
        let (_server, connection) = idle_connection(config());
        let [of_call, of_another] = [1, 3].map(|id| unary_call(connection.clone(), id));
        assert!(may_resume(&of_call));
        let waiting = WaitingReply::of_any_length(&of_another, 75);
        assert!(may_resume(&of_call) && may_resume(&of_another));
        drop(waiting);
        let waiting = WaitingReply::of_any_length(&of_another, 76);
        assert!(!may_resume(&of_call) && may_resume(&of_another));
        assert!(!connection.is_full());
        drop(waiting);
        assert!(may_resume(&of_call));
    }

    #[tokio::test]
    async fn a_handler_does_not_overtake_one_that_waits_for_its_permit() {
        let config = ServerConfig { send_queue_frames: 1, ..config() };
        let (_server, connection) = idle_connection(config);
        let [of_call, of_another, of_third] =
            [1, 3, 5].map(|id| unary_call(connection.clone(), id));
        let _waiting = WaitingReply::of_any_length(&of_another, 1);
        let capacity = connection.queue.try_reserve(1).ok().flatten().expect("the queue is empty");
        let mut first = pin!(wait_for_permit(&of_call, true));
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(!may_resume(&of_third));
        drop(capacity);
        first.await;
        // The handler is polled in this step. If it blocks its thread, nobody waits behind it.
        assert!(may_resume(&of_third));
    }

    /// Starts so many handlers while the queue is full, each of which blocks until all of them run.
    async fn meet(count: usize, block: fn(&mut dyn FnMut())) {
        let config = ServerConfig { send_queue_frames: 1, ..ServerConfig::default() };
        let (_server, connection) = idle_connection(config);
        let capacity = connection.queue.try_reserve(1).ok().flatten().expect("the queue is empty");
        let (met, mut have_met) = mpsc::unbounded_channel();
        let arrived = Arc::new((Mutex::new(0), Condvar::new()));
        for number in 0..count {
            let (arrived, met) = (arrived.clone(), met.clone());
            let handler = boxed(move |ctx: handler::Context, ()| {
                assert!(
                    !ctx.call().end.has_waits(),
                    "it would be excused for as long as it blocks"
                );
                block(&mut || {
                    let (number, changed) = &*arrived;
                    let mut number = number.lock().expect("nothing panics");
                    *number += 1;
                    changed.notify_all();
                    let all = changed.wait_timeout_while(number, PATIENCE, |here| *here < count);
                    let _ = met.send(!all.expect("nothing panics").1.timed_out());
                });
                pending::<Result<(), Status>>()
            });
            start(unary_call(connection.clone(), 2 * number as u32 + 1), handler);
        }
        while connection.registry.callers().len() < count {
            yield_now().await;
        }
        drop(capacity);
        for _ in 0..count {
            assert_eq!(
                have_met.recv().await,
                Some(true),
                "one waits for a permit, or for a thread"
            );
        }
        drop(connection.queue.streams(mem::take));
    }

    /// A handler that held the permit on its thread would wait for one that waits for the permit.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn handlers_that_block_their_threads_hold_up_no_others_while_there_are_threads() {
        meet(2, |block| block()).await;
    }

    /// Of these there may be any number.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn handlers_that_block_in_place_hold_up_no_others() {
        meet(20, |block| tokio::task::block_in_place(block)).await;
    }

    /// It has returned its permit, and cleans up in the same step.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_handler_that_blocks_as_it_cleans_up_does_not_hold_up_the_next_one() {
        let config = ServerConfig { send_queue_frames: 1, ..config() };
        let (_server, connection) = idle_connection(config);
        let another = unary_call(connection.clone(), 5);
        let (steps, mut next_step) = mpsc::unbounded_channel();
        let met = Arc::new((Mutex::new(false), Condvar::new()));
        let [first, next] = [1, 3].map(|id| (unary_call(connection.clone(), id), Arc::default()));
        for (number, (call, goes_on)) in [&first, &next].into_iter().enumerate() {
            let goes_on: Arc<tokio::sync::Notify> = Arc::clone(goes_on);
            let (steps, met) = (steps.clone(), met.clone());
            let handler = boxed(move |ctx: handler::Context, ()| async move {
                let _has_grace = ctx.cancellation_token();
                steps.send(None).expect("the test listens");
                goes_on.notified().await;
                let (has_met, changed) = &*met;
                if number == 1 {
                    *has_met.lock().expect("nothing panics") = true;
                    changed.notify_all();
                } else {
                    steps.send(Some(true)).expect("the test listens");
                    let waits = has_met.lock().expect("nothing panics");
                    let waited = changed.wait_timeout_while(waits, PATIENCE, |has_met| !*has_met);
                    let has_met = !waited.expect("nothing panics").1.timed_out();
                    steps.send(Some(has_met)).expect("the test listens");
                }
                pending::<Result<(), Status>>().await
            });
            start(call.clone(), handler);
            assert_eq!(next_step.recv().await, Some(None));
        }
        let _waiting = WaitingReply::of_any_length(&another, 100);
        let capacity = connection.queue.try_reserve(1).ok().flatten().expect("the queue is empty");
        for (waiting, (_, goes_on)) in [&first, &next].into_iter().enumerate() {
            goes_on.notify_one();
            while connection.registry.callers().len() <= waiting {
                yield_now().await;
            }
        }
        first.0.end.fire();
        assert_eq!(next_step.recv().await, Some(Some(true)), "it cleans up");
        drop(capacity);
        assert_eq!(next_step.recv().await, Some(Some(true)), "the next one waits for its thread");
        drop(connection.queue.streams(mem::take));
    }
}
