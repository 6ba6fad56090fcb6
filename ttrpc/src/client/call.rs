//! One call, from the moment when its Request is queued until it is over.
//!
//! [`Call`] is shared by caller, sender and receiver; [`OpenCall`] is the caller's end of it, and
//! the call is given up when it is dropped.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use bytes::Bytes;
use prost::Message;
use tokio::time::{Instant, timeout_at};

use super::{
    connection::{Connection, Handle},
    options::{CallOptions, Times},
    places::{self, NoPlace},
};
use crate::{
    Code, Status,
    proto::{
        frame::{Flags, FrameType, HEADER_LEN, Header},
        message::RequestParts,
        stream::Kind,
        table::ClientTable,
    },
    snapshot::{CallSnapshot, CallWait},
    transport::{
        encode::Frame,
        inbox::Inbox,
        lock,
        queue::{Queue, Room},
        wait_until,
        waits::CallInfo,
    },
};

/// What a queued frame does, for the sender to know when it stamps it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Opens the stream.
    Request,
    /// Carries a message.
    Message,
    /// Closes this side.
    Close,
}

/// A queued frame's call.
#[derive(Debug)]
pub(super) struct Tag {
    pub(super) call: Arc<Call>,
    pub(super) step: Step,
}

impl Tag {
    /// The stream id for the frame; `None` if the frame is not to be sent.
    pub(super) fn stamp(&self, table: &mut ClientTable<Arc<Call>>) -> Option<u32> {
        let mut wire = lock(&self.call.wire);
        match self.step {
            Step::Request if wire.is_given_up => {
                // It may have got an id at an attempt to write that the socket refused.
                if let Some(id) = wire.id.take() {
                    table.remove(id);
                }
                wire.is_silent = true;
                None
            }
            Step::Request => {
                if wire.id.is_none() {
                    wire.id = table.open(self.call.kind, self.call.clone());
                    wire.is_silent = wire.id.is_none();
                }
                if wire.is_silent {
                    drop(wire);
                    let status = "this connection has used up its stream ids; connect anew";
                    self.call.end(Err(Status::unavailable(status)));
                    return None;
                }
                wire.id
            }
            Step::Message | Step::Close if wire.is_silent => None,
            Step::Message => wire.id,
            Step::Close => {
                wire.id.inspect(|&id| table.close_local(id));
                wire.id
            }
        }
    }
}

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    kind: Kind,
    service: &'static str,
    method: &'static str,
    pub(super) times: Times,
    pub(super) inbox: Inbox,
    wire: Mutex<Wire>,
    /// The receiver has told the queue that the caller is about to run.
    is_announced: AtomicBool,
}

/// What the sender has to know of a call.
#[derive(Debug, Default)]
struct Wire {
    id: Option<u32>,
    /// The caller does not want the call any more.
    is_given_up: bool,
    /// Nothing more of this call goes onto the wire: its Request never did, or it is over.
    is_silent: bool,
}

impl Call {
    /// The call is over: answered by the server, or lost with the connection.
    pub(super) fn end(&self, result: Result<Option<Bytes>, Status>) {
        lock(&self.wire).is_silent = true;
        let (last, end) = match result {
            Ok(last) => (last, Ok(())),
            Err(status) => (None, Err(status)),
        };
        self.inbox.end(last, end, || {});
    }

    /// A unary call's answer, after which its caller sends nothing anyway. The caller will probably make
    /// another call: the queue is told.
    pub(super) fn answer(&self, result: Result<Bytes, Status>, queue: &Queue<Tag>) {
        let (last, end) = match result {
            Ok(payload) => (Some(payload), Ok(())),
            Err(status) => (None, Err(status)),
        };
        let announce = || {
            self.is_announced.store(true, Relaxed);
            queue.announce();
        };
        self.inbox.end(last, end, announce);
    }

    /// The call has failed here while the server may go on. Unlike a call that is over, its side of
    /// the stream is still closed when its sender is dropped, so that the server's handler ends.
    pub(super) fn fail(&self, status: Status) {
        self.inbox.fail(status);
    }

    /// The server is done sending on the stream; this side may go on.
    pub(super) fn close_remote(&self) {
        self.inbox.end(None, Ok(()), || {});
    }

    /// Whether a message may still be sent.
    pub(super) fn may_send(&self) -> bool {
        !self.is_silent() && !matches!(self.inbox.end_status(), Some(Err(_)))
    }

    /// Waits until no message may be sent any more.
    pub(super) async fn over(&self) {
        wait_until(self.inbox.changed(), &|| !self.may_send()).await;
    }

    /// What is told of the call.
    pub(super) fn info(&self) -> CallInfo {
        let Call { service, method, times, .. } = *self;
        let Times { started, deadline } = times;
        CallInfo { service, method, stream_id: lock(&self.wire).id, started, deadline }
    }

    /// The call at this moment. It does not wait for room: those that do are known elsewhere.
    pub(super) fn snapshot(&self) -> CallSnapshot {
        let info = self.info();
        let (fill, consumer_waits) = self.inbox.fill();
        let wait = match self.kind {
            _ if info.stream_id.is_none() => CallWait::Sender,
            Kind::Unary | Kind::ClientStreaming => CallWait::Reply,
            Kind::ServerStreaming | Kind::Bidirectional if consumer_waits => CallWait::Message,
            Kind::ServerStreaming | Kind::Bidirectional => CallWait::Consumer,
        };
        CallSnapshot::new(info, wait, fill)
    }

    /// The kind of stream that the call opened.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether nothing more of this call goes onto the wire.
    pub(super) fn is_silent(&self) -> bool {
        lock(&self.wire).is_silent
    }
}

/// The caller's end of a call. Dropped, it gives the call up: its table entry goes, and if its
/// Request has not begun to be written it never is.
#[derive(Debug)]
pub(super) struct OpenCall {
    handle: Arc<Handle>,
    pub(super) call: Arc<Call>,
    /// Its end has been taken: nothing is left to give up.
    is_over: bool,
}

impl OpenCall {
    pub(super) fn connection(&self) -> &Connection {
        self.handle.connection()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.call.times.deadline
    }

    /// The caller has taken the call's end.
    pub(super) fn finish(&mut self) {
        self.retract();
        self.is_over = true;
    }

    /// The caller has run after it was woken with an answer.
    fn retract(&self) {
        if self.call.is_announced.swap(false, Relaxed) {
            self.connection().queue.retract();
        }
    }

    /// Whether the deadline has passed.
    pub(super) fn is_too_late(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Ends the call because its deadline passed. The server knows the deadline and ends the
    /// stream itself, so no close is sent, which it could take for a good end.
    pub(super) fn pass_deadline(&self) -> Status {
        let status = too_late();
        self.give_up();
        lock(&self.call.wire).is_silent = true;
        self.call.inbox.fail(status.clone());
        status
    }

    fn trace_end(&self) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            match self.call.inbox.end_status() {
                Some(end) => trace_end(self.call.info(), &end),
                None => tracing::debug!(call = ?self.call.info(), "call given up"),
            }
        }
    }

    fn give_up(&self) {
        let mut wire = lock(&self.call.wire);
        wire.is_given_up = true;
        // A call that is over has left the table already.
        let id = wire.id.filter(|_| !wire.is_silent);
        drop(wire);
        if let (Some(id), Some(table)) = (id, lock(&self.connection().table).as_mut()) {
            table.remove(id);
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.trace_end();
        if !self.is_over {
            self.call.inbox.abandon();
            self.give_up();
            self.retract();
        }
        self.connection().places.leave();
    }
}

/// A place among the calls in flight, given back unless an open call takes it over.
struct Place<'a>(&'a Connection);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.places.leave();
    }
}

/// All that is needed to open a call.
#[derive(Debug)]
pub(super) struct Opening<Req> {
    pub(super) kind: Kind,
    pub(super) service: &'static str,
    pub(super) method: &'static str,
    pub(super) request: Option<Req>,
    pub(super) options: CallOptions,
}

impl<Req> Opening<Req> {
    /// What is told of a call that is not queued yet.
    pub(super) fn info(&self, Times { started, deadline }: Times) -> CallInfo {
        let Opening { service, method, .. } = *self;
        CallInfo { service, method, stream_id: None, started, deadline }
    }
}

fn too_late() -> Status {
    Status::deadline_exceeded("the call's deadline passed")
}

/// Tells how a call ended.
fn trace_end(call: CallInfo, end: &Result<(), Status>) {
    tracing::debug!(
        service = call.service,
        method = call.method,
        stream_id = call.stream_id,
        code = ?end.as_ref().map_or_else(Status::code, |()| Code::Ok),
        duration = ?call.started.elapsed(),
        "call ended",
    );
}

impl<Req: Message> Opening<Req> {
    /// Queues the Request if there is room for it now.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED for a request that is too long, UNAVAILABLE without a connection,
    /// DEADLINE_EXCEEDED for a call that has no time at all.
    pub(super) fn try_open(
        &self,
        handle: &Arc<Handle>,
        times: Times,
    ) -> Result<Option<OpenCall>, Status> {
        let connection = handle.connection();
        self.check_time()?;
        let frame = self.frame(times)?;
        match connection.places.try_take() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(_) => return Err(connection.unavailable()),
        }
        let place = Place(connection);
        match connection.queue.try_reserve(frame.len()) {
            Ok(Some(room)) => self.push(handle, place, room, &frame, times).map(Some),
            Ok(None) => Ok(None),
            Err(_) => Err(connection.unavailable()),
        }
    }

    /// Waits for room, within the call's deadline, and queues the Request.
    pub(super) async fn open(
        &self,
        handle: &Arc<Handle>,
        times: Times,
    ) -> Result<OpenCall, Status> {
        self.check_time()?;
        let open = self.open_in_turn(handle, times);
        let result = match times.deadline {
            Some(deadline) => timeout_at(deadline, open).await.unwrap_or_else(|_| Err(too_late())),
            None => open.await,
        };
        if let Err(status) = &result {
            trace_end(self.info(times), &Err(status.clone()));
        }
        result
    }

    /// A call without any time is not made.
    fn check_time(&self) -> Result<(), Status> {
        match self.options.timeout {
            Some(timeout) if timeout.is_zero() => Err(too_late()),
            _ => Ok(()),
        }
    }

    async fn open_in_turn(&self, handle: &Arc<Handle>, times: Times) -> Result<OpenCall, Status> {
        let connection = handle.connection();
        let len = self.frame(times)?.len();
        let waiting = connection.waits.enter(self.info(times), CallWait::Place);
        let is_paused = || connection.queue.is_full();
        match connection.places.take(connection.config.stall_timeout, &is_paused).await {
            Ok(()) => {}
            Err(NoPlace::Closed) => return Err(connection.unavailable()),
            Err(NoPlace::Stalled) => return Err(places::stalled()),
        }
        let place = Place(connection);
        waiting.now_for(CallWait::Room);
        let Ok(room) = connection.queue.reserve(len).await else {
            return Err(connection.unavailable());
        };
        // The deadline has come nearer meanwhile; a smaller number is not longer.
        self.push(handle, place, room, &self.frame(times)?, times)
    }

    /// The Request's frame; its timeout is what is left now.
    fn frame(&self, times: Times) -> Result<Frame<RequestParts<'_, Req>>, Status> {
        let parts = RequestParts {
            service: self.service,
            method: self.method,
            payload: self.request.as_ref(),
            timeout_nano: self.options.timeout_nano(times),
            metadata: &self.options.metadata,
        };
        let flags = match self.kind {
            Kind::Unary => Flags::NONE,
            Kind::ServerStreaming => Flags::REMOTE_CLOSED,
            Kind::ClientStreaming | Kind::Bidirectional => Flags::REMOTE_OPEN,
        };
        // The sender writes the stream id when the frame's turn has come.
        Frame::new(FrameType::Request, flags, 0, parts)
    }

    fn push(
        &self,
        handle: &Arc<Handle>,
        place: Place<'_>,
        room: Room<'_, Tag>,
        frame: &Frame<RequestParts<'_, Req>>,
        times: Times,
    ) -> Result<OpenCall, Status> {
        let call = Arc::new(Call {
            kind: self.kind,
            service: self.service,
            method: self.method,
            times,
            inbox: Inbox::default(),
            wire: Mutex::default(),
            is_announced: AtomicBool::new(false),
        });
        let tag = Tag { call: call.clone(), step: Step::Request };
        let open = OpenCall { handle: handle.clone(), call, is_over: false };
        // From here on the open call gives the place back.
        std::mem::forget(place);
        if !frame.encode(|bytes| room.push(bytes, Some(tag), || true)) {
            return Err(handle.connection().unavailable());
        }
        Ok(open)
    }
}

/// A Data frame that closes this side; the sender writes the stream id.
pub(super) fn close_frame() -> [u8; HEADER_LEN] {
    let header =
        Header { data_len: 0, stream_id: 0, frame_type: FrameType::Data, flags: Flags::END };
    header.to_bytes()
}
