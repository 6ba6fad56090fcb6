//! A server's connection: what its receiver, its sender and its handlers share.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use crate::server::call::state::Call;
use crate::server::{
    Peer, Shared,
    call::{reasons::EndReason, start::Starts},
};
use crate::{
    Code, Extensions, Status,
    observer::EndCause,
    proto::{
        frame::{Flags, FrameType, MAX_DATA_LEN},
        message::encode_status,
        table::ServerTable,
    },
    snapshot::{CallWait, ConnectionSnapshot, Fill, QueueSnapshot, ReceiverWait, merge_calls},
    transport::{
        frames::{Frame, FrameBytes},
        limiter::{
            Closed, Limiter, Load,
            Oversubscribe::{AnyLast, OnlyWhenEmpty},
        },
        queue::{PushPermit, Queue},
        registry::{CallInfo, Registry},
        stall::StallBudget,
    },
};

/// A permit to push a frame into a connection's outgoing queue.
pub(in crate::server) type ReplyPermit<'a> = PushPermit<'a, ServerTable<Arc<Call>>>;

/// Limits that many connections never come near. They are boxed, so that an idle connection is small.
#[derive(Debug)]
pub(in crate::server) struct RareLimits {
    /// Counts what is in the inboxes of streams: apart from the calls, so that streams which nobody
    /// reads take no call's place.
    pub(super) inboxes: Limiter,
    /// Counts the bytes of replies that wait for capacity in the queue.
    pub(in crate::server) replies: Limiter,
    /// The one handler that goes on beside that limit.
    pub(super) next_resume: Limiter,
    /// The one handler that begins, of those that found the queue full when their tasks started.
    pub(super) next_start: Limiter,
    pub(in crate::server) patience: StallBudget,
}

/// Shared by the connection's receiver, its sender and its handlers.
#[derive(Debug)]
pub(in crate::server) struct Connection {
    pub(in crate::server) server: Arc<Shared>,
    pub(in crate::server) peer: Peer,
    /// The outgoing queue and the calls that may still be answered.
    pub(in crate::server) queue: Queue<ServerTable<Arc<Call>>>,
    /// Counts calls, with what their Requests cost.
    pub(in crate::server) calls: Limiter,
    /// `None` while the connection has had neither a stream of requests nor a handler that waits.
    limits: OnceLock<Box<RareLimits>>,
    pub(in crate::server) starts: Starts,
    pub(in crate::server) registry: Registry,
    pub(in crate::server) id: u64,
    pub(in crate::server) accepted: Instant,
    pub(in crate::server) extensions: Extensions,
    /// Set when it has ended.
    pub(in crate::server) end_reason: OnceLock<EndReason>,
}

impl Connection {
    pub(in crate::server) fn new(
        server: Arc<Shared>,
        peer: Peer,
        extensions: Extensions,
        id: u64,
    ) -> Self {
        let config = &server.config;
        let (count, cost) = (config.max_calls_per_connection, config.request_bytes_per_connection);
        let calls = Load { count, cost };
        Connection {
            peer,
            queue: Queue::new(
                config.send_queue_frames,
                config.send_queue_bytes,
                ServerTable::default(),
            ),
            calls: Limiter::new(calls, AnyLast),
            limits: OnceLock::new(),
            starts: Starts::new(),
            registry: Registry::default(),
            id,
            accepted: Instant::now(),
            extensions,
            end_reason: OnceLock::new(),
            server,
        }
    }

    pub(in crate::server) fn limits(&self) -> &RareLimits {
        let config = &self.server.config;
        self.limits.get_or_init(|| {
            Box::new(RareLimits {
                inboxes: Limiter::new(Load::one(config.inbox_bytes_per_connection), AnyLast),
                replies: Limiter::new(Load::one(config.reply_bytes_per_connection), OnlyWhenEmpty),
                next_resume: Limiter::new(Load::one(1), AnyLast),
                next_start: Limiter::new(Load::one(1), AnyLast),
                patience: StallBudget::new(config.stall_timeout),
            })
        })
    }

    /// Returns whether no reply waits for capacity.
    pub(super) fn has_no_replies(&self) -> bool {
        self.limits.get().is_none_or(|limits| limits.replies.load().cost == 0)
    }

    /// Returns whether no call may begin and no frame is acted on: the queue is full, or too many replies wait.
    pub(in crate::server) fn is_full(&self) -> bool {
        self.queue.is_full_for_short() || self.has_too_many_replies()
    }

    /// Returns whether pending replies have reached the connection's limit, or the server's while this connection has
    /// some pending. The permits of handlers count, since these may be about to reply; those that wait for one do not.
    fn has_too_many_replies(&self) -> bool {
        self.limits.get().is_some_and(|limits| {
            let (waiting, limit) = (limits.replies.load().cost, limits.replies.limit().cost);
            waiting >= limit || (waiting > 0 && self.server.replies.is_full())
        })
    }

    /// Waits until a call may begin: for capacity for a short frame and then, if too many replies wait, for a long one.
    pub(in crate::server) async fn wait_for_capacity(&self) -> Result<(), Closed> {
        self.queue.wait_for_short_capacity().await?;
        if self.has_too_many_replies() { self.queue.wait_for_long_capacity().await } else { Ok(()) }
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

    /// Returns whether the client learns from this side that a call has ended for this cause.
    pub(in crate::server) fn answers(&self, cause: EndCause) -> bool {
        cause != EndCause::DeadlineHere || self.server.config.answer_late_calls
    }

    /// Sends a Response that carries a failure, of a call that was taken out of the table or is refused; waits
    /// for capacity. A connection that has ended drops it, and so does one that answers no late calls.
    pub(in crate::server) async fn send_status(
        &self,
        stream_id: u32,
        cause: EndCause,
        status: &Status,
        call: Option<&Call>,
    ) {
        if !self.answers(cause) {
            return;
        }
        self.send_response(stream_id, encode_failure(status), call).await;
    }

    /// Sends a Response of which no stream is in the table. A connection that has ended drops it.
    pub(in crate::server) async fn send_response(
        &self,
        stream_id: u32,
        data: Vec<u8>,
        call: Option<&Call>,
    ) {
        let frame = Frame::new(FrameType::Response, Flags::NONE, stream_id, &data[..]);
        let frame = frame.expect("it is no longer than a frame may be").to_vec();
        if let Ok(permit) = self.reserve(frame.len(), call.map(Call::info)).await {
            let _ = permit.push(FrameBytes::Large(frame), |_| Some(stream_id.into()));
        }
    }

    /// A condition that holds while it is the client who holds handlers up, since it does not read: their
    /// time does not count then.
    pub(in crate::server) fn is_unread(&self) -> impl Fn() -> bool {
        self.queue.is_stuck()
    }

    /// Returns what the connection is doing at this moment.
    pub(in crate::server) fn snapshot(&self) -> ConnectionSnapshot {
        let open: Vec<_> = self.queue.streams(|table| table.handles().cloned().collect());
        let limit = self.server.config.max_calls_per_connection;
        ConnectionSnapshot {
            id: self.id,
            peer: self.peer.clone(),
            age: self.accepted.elapsed(),
            calls_in_flight: Fill { used: self.calls.load().count, limit },
            queue: QueueSnapshot::new(&self.queue, self.registry.total()),
            receiver: self.registry.receiver(),
            calls: merge_calls(open.iter().map(|call| call.snapshot()), self.registry.callers()),
        }
    }

    /// Waits until every call is answered, answers written.
    pub(in crate::server) async fn answered(&self) {
        self.calls.at_most(Load::cost(usize::MAX)).await;
        self.queue.flushed().await;
    }
}

/// The data of a Response that carries a failure, no longer than a frame may be. One of code 0 would
/// be a success.
pub(in crate::server) fn encode_failure(status: &Status) -> Vec<u8> {
    let data = match status.raw_code() {
        0 => encode_status(&Status::unknown(format!(
            "the handler failed with a status of code OK: {}",
            status.message()
        ))),
        _ => encode_status(status),
    };
    if data.len() <= MAX_DATA_LEN {
        return data;
    }
    encode_status(&Status::new(
        Code::ResourceExhausted,
        "the call failed with a status that is longer than a frame may be",
    ))
}
