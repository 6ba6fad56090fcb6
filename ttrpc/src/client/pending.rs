//! A call before it is queued: waiting for a permit and for room, and encoding.

use std::{sync::Arc, task::Waker};

use prost::Message;
use tokio::time::timeout_at;

use super::{
    connection::ClientConnection,
    entry::CallEntry,
    head::{CallHead, CallShape, Times, too_late},
    observe::CallRecord,
    options::CallOptions,
    owner::CallOwner,
    tasks::ConnectionTasks,
};
use crate::{
    Name, Raw, Status,
    proto::{
        frame::{Flags, FrameType},
        message::{Measured, RequestParts},
        payload,
    },
    transport::{
        encode::Frame,
        limiter::{Closed, Load, Permit, Refused},
        queue::Claim,
        registry::{CallInfo, CallWait},
    },
};

/// All that is needed to make a call.
pub(super) struct PendingCall<Req> {
    pub(super) shape: CallShape,
    pub(super) service: Name,
    pub(super) method: Name,
    pub(super) request: Option<Req>,
    pub(super) options: CallOptions,
}

impl<Req> PendingCall<Req> {
    pub(super) fn head(&self, times: Times) -> CallHead<'_> {
        let PendingCall { shape, service, method, options, .. } = self;
        CallHead { shape: *shape, service, method, metadata: options.metadata(), times }
    }

    fn info(&self, Times { started, deadline }: Times) -> CallInfo {
        let (service, method) = (self.service.clone(), self.method.clone());
        CallInfo { service, method, stream_id: None, started, deadline }
    }
}

impl<Req: Message> PendingCall<Req> {
    /// The same call with its request encoded.
    pub(super) fn into_raw(self) -> PendingCall<Raw> {
        let PendingCall { shape, service, method, request, options } = self;
        let request = request.map(|request| Raw(payload::encode(&request)));
        PendingCall { shape, service, method, request, options }
    }

    /// Queues the Request if there is room for it now. A caller that gives its waker waits for the reply from then
    /// on.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED for a request that is too long, UNAVAILABLE without a connection,
    /// DEADLINE_EXCEEDED for a call that has no time at all. The record has the end then.
    pub(super) fn try_queue(
        &self,
        connection: &ClientConnection,
        times: Times,
        record: Option<Box<CallRecord>>,
        caller: Option<&Waker>,
    ) -> Result<Attempt, Status> {
        let frame = match check_time(times).and_then(|()| self.frame(times)) {
            Ok(frame) => frame,
            Err(status) => return Err(not_queued(record, status)),
        };
        let Some(permit) = connection.calls.try_acquire(Load::one(0)) else {
            return match connection.calls.is_closed() {
                true => Err(not_queued(record, connection.unavailable())),
                false => Ok(Attempt::Full(record)),
            };
        };
        let room = match connection.queue.try_reserve(frame.len()) {
            Ok(Some(room)) => room,
            Ok(None) => return Ok(Attempt::Full(record)),
            Err(Closed) => return Err(not_queued(record, connection.unavailable())),
        };
        let (entry, stream_id) = frame.encode(|bytes| {
            let entry = self.entry(times, frame.len(), record, caller.cloned());
            let stream_id = room.push_or_write(bytes, |table| {
                let stream_id = table.open(self.shape.kind, entry.clone())?;
                Some(Claim { stream_id, is_lone: table.len() == 1 })
            });
            (entry, stream_id)
        });
        QueuedCall::new(connection, permit, entry, stream_id).map(Attempt::Queued)
    }

    /// Queues the Request of a call with interceptors, at once or when there is room.
    pub(super) async fn queue_at_once(
        &self,
        tasks: &Arc<ConnectionTasks>,
        times: Times,
        record: Option<Box<CallRecord>>,
    ) -> Result<CallOwner, Status> {
        match self.try_queue(tasks.connection(), times, record, None)? {
            Attempt::Queued(call) => Ok(call.owned(tasks.clone())),
            Attempt::Full(record) => Box::pin(self.queue(tasks, times, record)).await,
        }
    }

    /// Waits for room, within the call's deadline, and queues the Request.
    pub(super) async fn queue(
        &self,
        tasks: &Arc<ConnectionTasks>,
        times: Times,
        mut record: Option<Box<CallRecord>>,
    ) -> Result<CallOwner, Status> {
        check_time(times)?;
        let queue = self.queue_in_turn(tasks, times, &mut record);
        let result = match times.deadline {
            Some(deadline) => timeout_at(deadline, queue).await.unwrap_or_else(|_| Err(too_late())),
            None => queue.await,
        };
        result.map_err(|status| not_queued(record, status))
    }

    async fn queue_in_turn(
        &self,
        tasks: &Arc<ConnectionTasks>,
        times: Times,
        record: &mut Option<Box<CallRecord>>,
    ) -> Result<CallOwner, Status> {
        let connection = tasks.connection();
        let len = self.frame(times)?.len();
        let waiting = connection.registry.enter(self.info(times), CallWait::Place);
        let observed = record.as_ref().map(|record| record.stats.wait_for_place());
        let permit = call_permit(connection).await?;
        drop(observed);
        waiting.now_for(CallWait::Room);
        let observed = record.as_ref().map(|record| record.stats.wait_for_room());
        let room =
            connection.queue.reserve(len).await.map_err(|Closed| connection.unavailable())?;
        drop(observed);
        // The deadline has come nearer meanwhile; a smaller number is not longer.
        let frame = self.frame(times)?;
        let (entry, stream_id) = frame.encode(|bytes| {
            let entry = self.entry(times, frame.len(), record.take(), None);
            let stream_id = room.push(bytes, |table| table.open(self.shape.kind, entry.clone()));
            (entry, stream_id)
        });
        QueuedCall::new(connection, permit, entry, stream_id).map(|call| call.owned(tasks.clone()))
    }

    /// The Request's frame; its timeout is what is left now.
    fn frame(&self, times: Times) -> Result<Frame<RequestParts<'_, Req>>, Status> {
        let parts = RequestParts {
            service: &self.service,
            method: &self.method,
            payload: self.request.as_ref().map(Measured::new),
            timeout_nano: self.options.timeout_nano(times),
            metadata: self.options.metadata(),
        };
        // The queue gives the stream its id.
        Frame::new(FrameType::Request, self.shape.flags, 0, parts)
    }

    fn entry(
        &self,
        times: Times,
        frame_len: usize,
        record: Option<Box<CallRecord>>,
        caller: Option<Waker>,
    ) -> Arc<CallEntry> {
        if let Some(record) = &record {
            record.count_request(frame_len, self.has_message());
        }
        let (service, method) = (self.service.clone(), self.method.clone());
        Arc::new(CallEntry::new(self.shape, service, method, times, record, caller))
    }

    /// Whether the payload of the Request is a message, as the server sees it.
    fn has_message(&self) -> bool {
        let is_open = self.shape.flags.contains(Flags::REMOTE_OPEN);
        self.request.as_ref().is_some_and(|request| !is_open || request.encoded_len() > 0)
    }
}

/// How an attempt to queue a call's Request at once has gone.
pub(super) enum Attempt {
    /// It is queued.
    Queued(QueuedCall),
    /// The queue is full, or too many calls are in flight: the call has to wait, with its record.
    Full(Option<Box<CallRecord>>),
}

/// A call that has been queued and has no owner yet. Its permit is the owner's.
#[must_use = "nobody gives the call up"]
pub(super) struct QueuedCall {
    entry: Arc<CallEntry>,
    stream_id: u32,
}

impl QueuedCall {
    /// The call with its permit, if its Request was queued under an id.
    fn new(
        connection: &ClientConnection,
        permit: Permit<'_>,
        entry: Arc<CallEntry>,
        stream_id: Option<u32>,
    ) -> Result<Self, Status> {
        let Some(stream_id) = stream_id else {
            let status = connection.no_id();
            entry.tell_not_queued(&status);
            return Err(status);
        };
        if let Some(record) = entry.record() {
            record.queued(stream_id);
        }
        // The owner releases it.
        permit.into_load();
        Ok(QueuedCall { entry, stream_id })
    }

    pub(super) fn owned(self, tasks: Arc<ConnectionTasks>) -> CallOwner {
        CallOwner::new(tasks, self.entry, self.stream_id)
    }
}

/// Reports that a call has failed before it was queued. Returns the status with which it has.
fn not_queued(record: Option<Box<CallRecord>>, status: Status) -> Status {
    if let Some(record) = record {
        record.not_queued(&status);
    }
    status
}

/// A call without any time is not made.
fn check_time(Times { started, deadline }: Times) -> Result<(), Status> {
    match deadline {
        Some(deadline) if deadline <= started => Err(too_late()),
        _ => Ok(()),
    }
}

/// Waits for a permit among the calls in flight, as long as others end. Time during which the queue
/// is full does not count.
async fn call_permit(connection: &ClientConnection) -> Result<Permit<'_>, Status> {
    let is_paused = connection.queue.is_stuck();
    let stall_timeout = connection.config.stall_timeout;
    let permit = connection.calls.acquire_while_moving(Load::one(0), stall_timeout, &is_paused);
    permit.await.map_err(|refused| match refused {
        Refused::Closed => connection.unavailable(),
        Refused::Stalled => Status::resource_exhausted(
            "too many calls are in flight on this connection and none ends",
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        io::{ErrorKind, Read},
        os::unix,
        pin::Pin,
        task::Poll,
    };

    use tokio::{net::UnixStream, task::yield_now};

    use super::{
        super::{Client, UnaryCall},
        *,
    };
    use crate::{ClientConfig, proto::frame::Header};

    async fn poll(call: &mut UnaryCall<(), ()>) {
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut *call).poll(cx))).await;
        assert!(polled.is_pending());
    }

    /// Calls that are made together are not: each would cost a system call.
    #[tokio::test]
    async fn a_lone_call_is_sent_by_its_caller() {
        let (here, mut there) = unix::net::UnixStream::pair().expect("descriptors are left");
        for socket in [&here, &there] {
            socket.set_nonblocking(true).expect("it is open");
        }
        let mut sent = || {
            let mut bytes = [0; 100];
            match there.read(&mut bytes) {
                Ok(len) => {
                    let header = Header::from_bytes(bytes.first_chunk().expect("it is long"));
                    assert_eq!(header.frame_type, FrameType::Request);
                    assert!(len >= 10 + header.data_len as usize);
                    Some(header.stream_id)
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(error) => panic!("it is open: {error}"),
            }
        };
        let here = UnixStream::from_std(here).expect("it does not block");
        let client = Client::from_connection(here, ClientConfig::default());
        // The sender begins to wait.
        yield_now().await;
        let call = || client.unary("S", "M", ());
        let [mut first, mut second, mut third] = [(); 3].map(|()| call());
        poll(&mut first).await;
        assert_eq!(sent(), Some(1));
        poll(&mut second).await;
        poll(&mut third).await;
        assert_eq!(sent(), None);
        yield_now().await;
        assert_eq!(sent(), Some(3), "both, with one write");
        assert_eq!(sent(), None);
    }
}
