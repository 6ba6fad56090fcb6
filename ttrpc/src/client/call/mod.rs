//! A call on one connection: from the request that a caller has to the end that it takes.
//!
//! A [`PendingCall`] is queued, at once or after a wait, and becomes a [`CallOwner`], which the parts of a
//! stream share. A call that is not queued yet belongs to no connection: who queues it chooses one.

mod admission;
pub(super) mod owner;
pub(super) mod stream;

use std::{sync::Arc, task::Waker};

use prost::Message;

use self::owner::CallOwner;
use super::{
    connection::{
        ConnectionTasks,
        calls::{CallEntry, Calls, Messages},
        observe::ObservedConnection,
        record::CallRecord,
    },
    meta::{CallHead, is_over, too_late},
};
use crate::{
    Extensions, Raw, Status,
    proto::{
        frame::{Flags, FrameType},
        message::{Measured, RequestParts},
        payload,
    },
    trace,
    transport::{
        frames::Frame,
        limiter::{Closed, Load, Permit},
        queue::{PushDecision, PushPermit, Pushed},
    },
};

/// A call that is not queued yet.
pub(super) struct PendingCall<Req> {
    pub(super) head: CallHead,
    pub(super) request: Option<Req>,
}

impl<Req: Message> PendingCall<Req> {
    /// Reports that the call begins. Returns its record, or `None` if nobody observes it. One that is intercepted has
    /// extensions that observers see.
    pub(super) fn begin(
        &self,
        connection: &Arc<ObservedConnection>,
        intercepted: Option<&Extensions>,
    ) -> Option<Arc<CallRecord>> {
        let CallHead { service, method, .. } = &self.head;
        let span = trace::span!("call", service = &**service, method = &**method);
        let is_observed = !connection.observers.is_empty() || !span.is_none();
        (is_observed || intercepted.is_some())
            .then(|| CallRecord::begin(connection, &self.head, span, intercepted))
    }

    /// Encodes the request.
    pub(super) fn into_raw(self) -> PendingCall<Raw> {
        let request = self.request.map(|request| Raw(payload::encode(&request)));
        PendingCall { head: self.head, request }
    }

    /// Queues the Request if the connection's limits allow it now; returns `None` if the call is left to
    /// [`admit`](Self::admit). A caller that passes
    /// its waker waits for the reply from then on. A failure is left to its caller to report.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED for a request that is too long, UNAVAILABLE without a connection, DEADLINE_EXCEEDED for a call
    /// that has no time at all.
    pub(super) fn try_queue(
        &self,
        tasks: &Arc<ConnectionTasks>,
        record: Option<&Arc<CallRecord>>,
        caller: Option<&Waker>,
    ) -> Result<Option<CallOwner>, Status> {
        if is_over(self.head.options.deadline) {
            return Err(too_late());
        }
        let connection = &tasks.connection;
        let frame = self.frame()?;
        let Some(permit) = connection.calls.try_acquire(Load::one(0)) else { return Ok(None) };
        // Its Request is reported before its reply can be.
        let capacity = match record.map(|_| connection.queue.try_reserve(frame.len())) {
            Some(Ok(None) | Err(Closed)) => return Ok(None),
            Some(Ok(reserved)) => reserved,
            None => None,
        };
        self.push(tasks, &frame, permit, capacity, record, caller)
    }

    /// Returns the Request's frame; its timeout is what is left now.
    pub(super) fn frame(&self) -> Result<Frame<RequestParts<'_, Req>>, Status> {
        let CallHead { kind, service, method, options } = &self.head;
        let parts = RequestParts {
            service,
            method,
            payload: self.request.as_ref().map(Measured::new),
            timeout_nano: options.timeout_nano(),
            metadata: options.metadata(),
        };
        // The queue gives the stream its id.
        Frame::new(FrameType::Request, kind.flags, 0, parts)
    }

    /// Puts the Request into the queue and the call into the table, in one step; without a permit of the queue's, with the
    /// capacity that there is. `None` if the queue is full. The only call in flight is refused in a child of the process that
    /// has made the connection: nobody would ever write it.
    fn push(
        &self,
        tasks: &Arc<ConnectionTasks>,
        frame: &Frame<RequestParts<'_, Req>>,
        permit: Permit<'_>,
        capacity: Option<PushPermit<'_, Calls>>,
        record: Option<&Arc<CallRecord>>,
        caller: Option<&Waker>,
    ) -> Result<Option<CallOwner>, Status> {
        let connection = &tasks.connection;
        if let Some(record) = record {
            record.count_request(frame.len(), self.has_message());
        }
        let kind = self.head.kind;
        let messages = (!kind.is_unary()).then(Arc::<Messages>::default);
        let entry = CallEntry::new(&self.head, caller.cloned(), messages.clone(), record.cloned());
        let mut entry = Some(Box::new(entry));
        let mut checked = Ok(());
        let claim = |calls: &mut Calls| {
            // With others in flight, the system call would cost more than the rest.
            if calls.is_empty() {
                checked = connection.origin.check();
                checked.as_ref().ok()?;
            }
            let stream_id = calls.open_call(&mut entry)?;
            Some(PushDecision { stream_id, is_only: calls.len() == 1 })
        };
        let stream_id = match connection.queue.send(frame, capacity, claim) {
            Pushed::Queued(stream_id) => stream_id,
            Pushed::Full => return Ok(None),
            Pushed::Refused => return checked.and_then(|()| Err(connection.no_id())),
        };
        // The owner releases it.
        permit.into_load();
        let (tasks, deadline) = (tasks.clone(), self.head.options.deadline);
        let record = record.cloned();
        Ok(Some(CallOwner {
            tasks,
            stream_id,
            kind,
            deadline,
            messages,
            record,
            is_finished: false,
        }))
    }

    /// Returns whether the payload of the Request is a message, as the server sees it.
    fn has_message(&self) -> bool {
        let is_open = self.head.kind.flags.contains(Flags::REMOTE_OPEN);
        self.request.as_ref().is_some_and(|request| !is_open || request.encoded_len() > 0)
    }
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
