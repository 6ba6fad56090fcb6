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
//! a stream after its entry has gone, but the last frame of whoever took it. [`EndSignal`] tells
//! everybody who holds a part of the call that it is over.

use std::{
    sync::{Arc, Mutex, atomic::AtomicUsize},
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{connection::Connection, replies::WaitingReply};
use crate::{
    Code, Metadata, Name, Status,
    proto::{
        frame::{Flags, FrameType},
        message::{FrameData, ResponseParts},
        table::ServerTable,
    },
    snapshot::{CallSnapshot, CallWait},
    transport::{
        BoxFuture,
        chunk::FrameBytes,
        encode::Frame,
        inbox::{Inbox, Phase},
        limiter::Closed,
        lock,
        queue::PushPermit,
        registry::CallInfo,
    },
};

/// Room in a connection's outgoing queue.
pub(super) type ReplyRoom<'a> = PushPermit<'a, ServerTable<Arc<Call>>>;

/// Pushes a call's last frame into its room. The code that waits is compiled once, whatever the reply is.
type PushLast = Box<dyn FnOnce(&Call, ReplyRoom<'_>) + Send>;

fn push_bytes(frame: Vec<u8>, code: Code) -> PushLast {
    Box::new(move |call, room| call.push_last(room, FrameBytes::Large(frame), code))
}

/// One call, shared by its handler, its driver and the connection's receiver.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) connection: Arc<Connection>,
    pub(super) head: CallHead,
    /// Of the messages that the client streams; unary calls have none.
    pub(super) inbox: Option<Box<Inbox<RequestStream>>>,
    pub(super) end: EndSignal,
    /// Its replies that wait for room: the last one, or messages of a stream.
    pub(super) waiting_replies: AtomicUsize,
}

/// What a Request says of its call.
#[derive(Debug)]
pub(super) struct CallHead {
    pub(super) stream_id: u32,
    pub(super) service: Name,
    pub(super) method: Name,
    pub(super) metadata: Metadata,
    pub(super) timeout: Option<Duration>,
    pub(super) started: Instant,
    pub(super) deadline: Option<Instant>,
}

/// The state of the messages that a client streams.
#[derive(Debug, Default)]
pub(super) enum RequestStream {
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
    pub(super) fn close(&mut self) -> bool {
        let is_open = self.is_open();
        if is_open {
            *self = RequestStream::Closed;
        }
        is_open
    }

    /// The stream breaks off. Returns whether that changes anything.
    pub(super) fn fail(&mut self, status: Status) -> bool {
        let is_open = self.is_open();
        if is_open {
            *self = RequestStream::Failed(status);
        }
        is_open
    }
}

impl Phase for RequestStream {
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

/// How everybody who holds a part of a call hears that it is over, in whatever way.
#[derive(Debug, Default)]
pub(super) struct EndSignal(Mutex<EndState>);

#[derive(Debug, Default)]
struct EndState {
    is_over: bool,
    has_begun: bool,
    /// Made for the first one who waits.
    token: Option<CancellationToken>,
    /// The program has asked for the token, which earns the handler its grace.
    is_graceful: bool,
}

impl EndSignal {
    /// The call is over.
    pub(super) fn fire(&self) {
        let mut state = lock(&self.0);
        state.is_over = true;
        let token = state.token.clone();
        drop(state);
        if let Some(token) = token {
            token.cancel();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.0).is_over
    }

    /// The handler is about to begin. `false` if the call is over already.
    pub(super) fn begin(&self) -> bool {
        let mut state = lock(&self.0);
        state.has_begun = true;
        !state.is_over
    }

    fn has_begun(&self) -> bool {
        lock(&self.0).has_begun
    }

    /// A token that fires when the call is over, for the library itself.
    pub(super) fn token(&self) -> CancellationToken {
        let mut state = lock(&self.0);
        let is_over = state.is_over;
        let token = state.token.get_or_insert_default().clone();
        drop(state);
        if is_over {
            token.cancel();
        }
        token
    }

    /// The same for the program.
    pub(super) fn graceful_token(&self) -> CancellationToken {
        lock(&self.0).is_graceful = true;
        self.token()
    }

    pub(super) fn is_graceful(&self) -> bool {
        lock(&self.0).is_graceful
    }
}

impl Call {
    pub(super) fn new(connection: Arc<Connection>, head: CallHead, has_inbox: bool) -> Self {
        let inbox = has_inbox.then(Box::default);
        let waiting_replies = AtomicUsize::new(0);
        Call { connection, head, inbox, end: EndSignal::default(), waiting_replies }
    }

    /// The inbox of a call whose method streams requests.
    pub(super) fn inbox(&self) -> &Inbox<RequestStream> {
        self.inbox.as_ref().expect("a stream has an inbox")
    }

    pub(super) fn info(&self) -> CallInfo {
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
    pub(super) fn snapshot(&self) -> CallSnapshot {
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
    pub(super) fn take_end(&self, code: Code) -> bool {
        let id = self.head.stream_id;
        let is_taken = self.connection.queue.streams(|table| table.remove(id)).is_some();
        if is_taken {
            self.trace_end(code);
            self.end.fire();
        }
        is_taken
    }

    /// The call has been taken out of the table, since it failed with this code.
    pub(super) fn taken_out(&self, code: Code) {
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
    pub(super) fn respond<M: Message + 'static>(
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
    pub(super) fn finish_stream(
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
        let data = super::connection::encode_failure(status);
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
            let (waiting, push) = match WaitingReply::new(&call, len) {
                Ok(waiting) => (waiting, push),
                Err(status) => {
                    drop(push);
                    let data = super::connection::encode_failure(&status);
                    let frame = call.response(&data[..]).expect("it is short").to_vec();
                    let waiting = WaitingReply::of_any_length(&call, frame.len());
                    (waiting, push_bytes(frame, status.code()))
                }
            };
            if let Ok(room) = waiting.room().await {
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
