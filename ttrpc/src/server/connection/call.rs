//! One call on the server, and the ways in which it can end.
//!
//! A call is in its connection's table from its Request to its end, and the entry is the right to end
//! it. There are two ways to take it out:
//!
//! ```text
//!            ┌─ the handler replies: the last frame enters the queue in the same step ─┐
//!     open ──┤                                                                         ├─► over
//!            └─ anything else: the entry goes, and a status follows when there is room ─┘
//! ```
//!
//! | who | ends a call |
//! |---|---|
//! | its handler | with its reply or its status |
//! | its driver | when its deadline has passed, when its handler has panicked |
//! | the receiver | when the client breaks the protocol, sends an oversized frame, or fills an inbox that nobody empties |
//! | the connection's end | all that are left |
//!
//! A reply that waits for room leaves its call open: the deadline may still pass. Nothing is sent on
//! a stream after its entry has gone, but the last frame of the task that took it. [`EndSignal`] tells
//! all holders of a part of the call that it is over.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;

use super::{
    Connection, ReplyRoom, encode_failure,
    replies::{WaitingReplies, WaitingReply},
};
use crate::{
    Code, Metadata, Name, Status,
    proto::{
        frame::{Flags, FrameType},
        message::{FrameData, ResponseParts},
    },
    server::end_signal::EndSignal,
    snapshot::{CallSnapshot, CallWait},
    transport::{
        BoxFuture,
        chunk::FrameBytes,
        encode::Frame,
        inbox::{Inbox, StreamState},
        limiter::Closed,
        registry::CallInfo,
    },
};

/// Pushes a call's last frame into its room. The code that waits is compiled once, whatever the reply is.
type PushLast = Box<dyn FnOnce(&Call, ReplyRoom<'_>) + Send>;

fn push_bytes(frame: Vec<u8>, code: Code) -> PushLast {
    Box::new(move |call, room| call.push_last(room, FrameBytes::Large(frame), code))
}

/// One call, shared by its handler, its driver and the connection's receiver.
#[derive(Debug)]
pub(crate) struct Call {
    pub(in crate::server) connection: Arc<Connection>,
    pub(in crate::server) head: CallHead,
    /// Of the messages that the client streams; unary calls have none.
    pub(in crate::server) inbox: Option<Box<Inbox<RequestStream>>>,
    pub(in crate::server) end: EndSignal,
    pub(in crate::server) waiting_replies: WaitingReplies,
}

/// What a Request says of its call.
#[derive(Debug)]
pub(in crate::server) struct CallHead {
    pub(in crate::server) stream_id: u32,
    pub(in crate::server) service: Name,
    pub(in crate::server) method: Name,
    pub(in crate::server) metadata: Metadata,
    pub(in crate::server) timeout: Option<Duration>,
    pub(in crate::server) started: Instant,
    pub(in crate::server) deadline: Option<Instant>,
}

/// The state of the messages that a client streams.
#[derive(Debug, Default)]
pub(in crate::server) enum RequestStream {
    /// More may come.
    #[default]
    Open,
    /// The client has said that nothing more comes.
    Closed,
    /// It broke off: the call is over, or the handler stood still.
    Failed(Status),
}

impl RequestStream {
    /// Nothing more comes. Returns whether that changes anything.
    pub(in crate::server) fn close(&mut self) -> bool {
        let is_open = self.is_open();
        if is_open {
            *self = RequestStream::Closed;
        }
        is_open
    }

    /// The stream breaks off. Returns whether that changes anything.
    pub(in crate::server) fn fail(&mut self, status: Status) -> bool {
        let is_open = self.is_open();
        if is_open {
            *self = RequestStream::Failed(status);
        }
        is_open
    }
}

impl StreamState for RequestStream {
    fn end(&mut self) -> Option<Result<Option<Bytes>, Status>> {
        match self {
            RequestStream::Open => None,
            RequestStream::Closed => Some(Ok(None)),
            RequestStream::Failed(status) => Some(Err(status.clone())),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self, RequestStream::Open)
    }
}

impl Call {
    pub(in crate::server) fn new(
        connection: Arc<Connection>,
        head: CallHead,
        has_inbox: bool,
    ) -> Self {
        let inbox = has_inbox.then(Box::default);
        let waiting_replies = WaitingReplies::default();
        Call { connection, head, inbox, end: EndSignal::default(), waiting_replies }
    }

    /// The inbox of a call whose method streams requests.
    pub(in crate::server) fn inbox(&self) -> &Inbox<RequestStream> {
        self.inbox.as_ref().expect("a stream has an inbox")
    }

    pub(in crate::server) fn info(&self) -> CallInfo {
        let CallHead { service, method, stream_id, started, deadline, .. } = &self.head;
        CallInfo {
            service: service.clone(),
            method: method.clone(),
            stream_id: Some(*stream_id),
            started: *started,
            deadline: *deadline,
        }
    }

    /// The call at this moment. It does not wait for room: calls that do are registered elsewhere.
    pub(in crate::server) fn snapshot(&self) -> CallSnapshot {
        let (fill, handler_waits) =
            self.inbox.as_ref().map(|inbox| inbox.fill()).unwrap_or_default();
        let wait = match handler_waits {
            true => CallWait::Message,
            // No call begins while the queue is full.
            false if !self.end.has_begun() && self.connection.queue.is_full() => CallWait::Room,
            false => CallWait::Handler,
        };
        CallSnapshot::new(self.info(), wait, fill)
    }

    /// Ends the call for another reason than its handler's reply. `false` if it is over already;
    /// else the caller sends a status.
    pub(in crate::server) fn take_end(&self, code: Code) -> bool {
        let id = self.head.stream_id;
        let is_taken = self.connection.queue.streams(|table| table.remove(id)).is_some();
        if is_taken {
            self.trace_end(code);
            self.end.fire();
        }
        is_taken
    }

    /// The call has been taken out of the table, since it failed with this code.
    pub(in crate::server) fn taken_out(&self, code: Code) {
        self.trace_end(code);
        self.end.fire();
    }

    fn trace_end(&self, code: Code) {
        let CallHead { service, method, stream_id, started, .. } = &self.head;
        let (service, method) = (service.as_str(), method.as_str());
        tracing::debug!(service, method, stream_id, ?code, duration = ?started.elapsed(), "call ended");
    }

    /// Ends the call with its handler's reply: at once, or in the future that it returns.
    ///
    /// That is boxed, so that the futures of calls are small: a full queue is the exception. A reply that
    /// waits is not encoded.
    pub(in crate::server) fn respond<M: Message + 'static>(
        self: &Arc<Self>,
        result: Result<M, Status>,
    ) -> Option<BoxFuture<'static, ()>> {
        let reply = match result {
            Ok(reply) => reply,
            Err(status) => return self.fail(&status),
        };
        let push = |call: &Call, frame: Frame<ResponseParts<'_, M>>, room: ReplyRoom<'_>| {
            frame.encode(|bytes| call.push_last(room, bytes, Code::Ok));
        };
        let frame = match self.response(ResponseParts(&reply)) {
            Ok(frame) => frame,
            Err(status) => return self.fail(&status),
        };
        match self.connection.queue.try_reserve(frame.len()) {
            Ok(Some(room)) => {
                push(self, frame, room);
                None
            }
            Ok(None) => {
                let len = frame.len();
                let push = move |call: &Call, room: ReplyRoom<'_>| {
                    if let Ok(frame) = call.response(ResponseParts(&reply)) {
                        push(call, frame, room);
                    }
                };
                Some(self.send_last_in_turn(len, Box::new(push)))
            }
            Err(Closed) => None,
        }
    }

    /// Ends a stream of replies.
    pub(in crate::server) fn finish_stream(
        self: &Arc<Self>,
        result: Result<(), Status>,
    ) -> Option<BoxFuture<'static, ()>> {
        match result {
            Ok(()) => {
                let end = Frame::new(FrameType::Data, Flags::END, self.head.stream_id, &[][..]);
                self.send_last(&end.expect("no data fits into any frame"), Code::Ok)
            }
            Err(status) => self.fail(&status),
        }
    }

    fn fail(self: &Arc<Self>, status: &Status) -> Option<BoxFuture<'static, ()>> {
        let data = encode_failure(status);
        let frame = self.response(&data[..]).expect("a status is cut to what a frame may hold");
        self.send_last(&frame, status.code())
    }

    fn response<D: FrameData>(&self, data: D) -> Result<Frame<D>, Status> {
        Frame::new(FrameType::Response, Flags::NONE, self.head.stream_id, data)
    }

    /// Ends the call with this frame, once there is room for it.
    fn send_last(
        self: &Arc<Self>,
        frame: &Frame<&[u8]>,
        code: Code,
    ) -> Option<BoxFuture<'static, ()>> {
        match self.connection.queue.try_reserve(frame.len()) {
            Ok(Some(room)) => {
                frame.encode(|bytes| self.push_last(room, bytes, code));
                None
            }
            Ok(None) => Some(self.send_last_in_turn(frame.len(), push_bytes(frame.to_vec(), code))),
            Err(Closed) => None,
        }
    }

    /// Waits for room for the last frame, and pushes it. If it may not wait, a status takes its place.
    fn send_last_in_turn(self: &Arc<Self>, len: usize, push: PushLast) -> BoxFuture<'static, ()> {
        let call = self.clone();
        Box::pin(async move {
            let (connection, replies) = (&*call.connection, &call.waiting_replies);
            let (waiting, push) = match WaitingReply::new(connection, replies, len) {
                Ok(waiting) => (waiting, push),
                Err(status) => {
                    drop(push);
                    let data = encode_failure(&status);
                    let frame = call.response(&data[..]).expect("it is short").to_vec();
                    let waiting = WaitingReply::of_any_length(connection, replies, frame.len());
                    (waiting, push_bytes(frame, status.code()))
                }
            };
            if let Ok(room) = waiting.room(call.info()).await {
                push(&call, room);
            }
        })
    }

    /// Takes the right to end the call and uses it, in one step.
    fn push_last(&self, room: ReplyRoom<'_>, frame: FrameBytes<'_>, code: Code) {
        let id = self.head.stream_id;
        if room.push(frame, |table| table.remove(id).map(|_| id)).is_some() {
            self.trace_end(code);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(inbox) = &self.inbox {
            self.connection.release_messages(inbox.drop_messages());
        }
    }
}
