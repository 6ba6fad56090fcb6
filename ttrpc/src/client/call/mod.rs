//! A call on one connection: from the request that a caller has to the end that it takes.
//!
//! A [`PendingCall`] is queued, at once or after a wait, and becomes a [`CallOwner`], which the parts of a
//! stream share. A call that is not queued yet belongs to no connection: who queues it chooses one.

pub(super) mod owner;
pub(super) mod stream;

use std::{sync::Arc, task::Waker};

use prost::Message;

use self::owner::CallOwner;
use super::{
    connection::{
        ClientConnection, ConnectionTasks,
        calls::{CallEntry, Calls, Messages},
        record::CallRecord,
        state::CallState,
    },
    meta::{CallMeta, CallOptions, CallTimes, MethodKind, within},
};
use crate::{
    Name, Raw, Status,
    proto::{
        frame::{Flags, FrameType},
        message::{Measured, RequestParts},
        payload,
    },
    transport::{
        frames::Frame,
        limiter::{Closed, Load, Permit, Refused},
        queue::{PushDecision, PushPermit, Pushed},
        registry::{CallInfo, CallWait},
    },
};

/// A call that is not queued yet.
pub(super) struct PendingCall<Req> {
    pub(super) kind: MethodKind,
    pub(super) service: Name,
    pub(super) method: Name,
    pub(super) request: Option<Req>,
    pub(super) options: CallOptions,
}

/// A call's share of its connection's limits: a permit among the calls in flight, and capacity of the send queue.
struct Capacity<'a> {
    permit: Permit<'a>,
    /// `None` for what there is when the Request is pushed.
    queue: Option<PushPermit<'a, Calls>>,
}

impl<Req> PendingCall<Req> {
    pub(super) fn meta(&self, times: CallTimes) -> CallMeta<'_> {
        let PendingCall { kind, service, method, options, .. } = self;
        CallMeta { kind: *kind, service, method, metadata: options.metadata(), times }
    }

    pub(super) fn info(&self, CallTimes { started, deadline }: CallTimes) -> CallInfo {
        let (service, method) = (self.service.clone(), self.method.clone());
        CallInfo { service, method, stream_id: None, started, deadline }
    }
}

impl<Req: Message> PendingCall<Req> {
    /// Encodes the request.
    pub(super) fn into_raw(self) -> PendingCall<Raw> {
        let PendingCall { kind, service, method, request, options } = self;
        let request = request.map(|request| Raw(payload::encode(&request)));
        PendingCall { kind, service, method, request, options }
    }

    /// Queues the Request if the connection's limits allow it now; returns `None` if the call has to wait. A caller that passes
    /// its waker waits for the reply from then on. A failure is left to its caller to report.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED for a request that is too long, UNAVAILABLE without a connection, DEADLINE_EXCEEDED for a call
    /// that has no time at all.
    pub(super) fn try_queue(
        &self,
        tasks: &Arc<ConnectionTasks>,
        times: CallTimes,
        record: Option<&Arc<CallRecord>>,
        caller: Option<&Waker>,
    ) -> Result<Option<CallOwner>, Status> {
        times.check()?;
        let connection = tasks.connection();
        let frame = self.frame(times)?;
        let Some(permit) = connection.calls.try_acquire(Load::one(0)) else {
            return match connection.calls.is_closed() {
                true => Err(connection.unavailable()),
                false => Ok(None),
            };
        };
        let queue = match record {
            None => None,
            // Its Request is reported before its reply can be.
            Some(_) => {
                let reserved = connection.queue.try_reserve(frame.len());
                let Some(reserved) = reserved.map_err(|Closed| connection.unavailable())? else {
                    return Ok(None);
                };
                Some(reserved)
            }
        };
        self.push(tasks, times, &frame, Capacity { permit, queue }, record.cloned(), caller)
    }

    /// Queues the Request, at once or after a wait within the call's deadline. A failure is left to its caller to report.
    ///
    /// # Errors
    /// Those of [`PendingCall::try_queue`], and those of [`PendingCall::admit`].
    pub(super) async fn queue(
        &self,
        tasks: &Arc<ConnectionTasks>,
        times: CallTimes,
        record: Option<&Arc<CallRecord>>,
    ) -> Result<CallOwner, Status> {
        match self.try_queue(tasks, times, record, None)? {
            Some(owner) => Ok(owner),
            None => Box::pin(self.admit(tasks, times, record)).await,
        }
    }

    /// Waits until the connection's limits allow it, within the call's deadline, and queues the Request. A failure is left to
    /// its caller to report.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED, UNAVAILABLE, and RESOURCE_EXHAUSTED if too many calls are in flight and none ends.
    pub(super) async fn admit(
        &self,
        tasks: &Arc<ConnectionTasks>,
        times: CallTimes,
        record: Option<&Arc<CallRecord>>,
    ) -> Result<CallOwner, Status> {
        let connection = tasks.connection();
        let queue = async {
            let len = self.frame(times)?.len();
            let info = self.info(times);
            let capacity = reserve(connection, len, info, record.map(|record| &**record)).await?;
            // The deadline has come nearer meanwhile; a smaller number is not longer.
            let frame = self.frame(times)?;
            let queued = self.push(tasks, times, &frame, capacity, record.cloned(), None);
            Ok(queued?.expect("its capacity is reserved"))
        };
        within(times.deadline, queue).await?
    }

    /// Returns the Request's frame; its timeout is what is left now.
    pub(super) fn frame(&self, times: CallTimes) -> Result<Frame<RequestParts<'_, Req>>, Status> {
        let parts = RequestParts {
            service: &self.service,
            method: &self.method,
            payload: self.request.as_ref().map(Measured::new),
            timeout_nano: self.options.timeout_nano(times),
            metadata: self.options.metadata(),
        };
        // The queue gives the stream its id.
        Frame::new(FrameType::Request, self.kind.flags, 0, parts)
    }

    /// Puts the Request into the queue and the call into the table, in one step. `None` if the queue is full. The only call in
    /// flight is refused in a child of the process that has made the connection: nobody would ever write it.
    fn push(
        &self,
        tasks: &Arc<ConnectionTasks>,
        times: CallTimes,
        frame: &Frame<RequestParts<'_, Req>>,
        Capacity { permit, queue }: Capacity<'_>,
        record: Option<Arc<CallRecord>>,
        caller: Option<&Waker>,
    ) -> Result<Option<CallOwner>, Status> {
        let connection = tasks.connection();
        if let Some(record) = &record {
            record.count_request(frame.len(), self.has_message());
        }
        let messages = (!self.kind.is_unary()).then(Arc::<Messages>::default);
        let mut entry = Some(Box::new(CallEntry {
            kind: self.kind,
            service: self.service.clone(),
            method: self.method.clone(),
            times,
            state: CallState::default(),
            caller: caller.cloned(),
            messages: messages.clone(),
            record: record.clone(),
        }));
        let mut checked = Ok(());
        let claim = |calls: &mut Calls| {
            // With others in flight, the system call would cost more than the rest.
            if calls.open_count() == 0 {
                checked = connection.origin.check();
                checked.as_ref().ok()?;
            }
            let stream_id = calls.open(&mut entry)?;
            Some(PushDecision { stream_id, is_only: calls.open_count() == 1 })
        };
        let pushed = match queue {
            Some(capacity) => capacity.send(frame, claim),
            None => connection.queue.try_send(frame, claim),
        };
        let stream_id = match pushed {
            Pushed::Queued(stream_id) => stream_id,
            Pushed::Full => return Ok(None),
            Pushed::Refused => return checked.and_then(|()| Err(connection.no_id())),
        };
        // The owner releases it.
        permit.into_load();
        Ok(Some(CallOwner::new(tasks.clone(), stream_id, self.kind, times, messages, record)))
    }

    /// Returns whether the payload of the Request is a message, as the server sees it.
    fn has_message(&self) -> bool {
        let is_open = self.kind.flags.contains(Flags::REMOTE_OPEN);
        self.request.as_ref().is_some_and(|request| !is_open || request.encoded_len() > 0)
    }
}

/// Waits for capacity for a Request of this length.
async fn reserve<'a>(
    connection: &'a ClientConnection,
    len: usize,
    info: CallInfo,
    record: Option<&CallRecord>,
) -> Result<Capacity<'a>, Status> {
    let waiting = connection.registry.enter(info, CallWait::Admission);
    let observed = record.map(|record| record.stats.wait_for_admission());
    let permit = call_permit(connection).await?;
    drop(observed);
    waiting.now_for(CallWait::Capacity);
    let _observed = record.map(|record| record.stats.wait_for_capacity());
    let queue = connection.queue.reserve(len).await.map_err(|Closed| connection.unavailable())?;
    Ok(Capacity { permit, queue: Some(queue) })
}

/// Waits for a permit among the calls in flight, while others end. Time during which the queue is full does not count.
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

/// Reports that a call has failed before it was queued. Returns the status with which it has.
pub(super) fn not_queued(record: Option<&CallRecord>, status: Status) -> Status {
    if let Some(record) = record {
        record.not_queued(&status);
    }
    status
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

    use super::*;
    use crate::{
        ClientConfig,
        client::{Client, UnaryCall},
        proto::frame::Header,
    };

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
