//! A call before it is queued: waiting for a place and for room, and encoding.

use std::sync::Arc;

use prost::Message;
use tokio::time::timeout_at;

use super::{
    call::{Call, CallOwner, too_late, trace_end},
    connection::{Connection, ConnectionOwner},
    options::{CallOptions, Times},
};
use crate::{
    Status,
    proto::{
        frame::{Flags, FrameType},
        message::RequestParts,
        stream::Kind,
    },
    transport::{
        encode::Frame,
        limiter::{Closed, Load, Permit, Refused},
        registry::{CallInfo, CallWait},
    },
};

/// All that is needed to make a call.
#[derive(Debug)]
pub(super) struct PendingCall<Req> {
    pub(super) kind: Kind,
    pub(super) service: &'static str,
    pub(super) method: &'static str,
    pub(super) request: Option<Req>,
    pub(super) options: CallOptions,
}

impl<Req> PendingCall<Req> {
    fn info(&self, Times { started, deadline }: Times) -> CallInfo {
        let PendingCall { service, method, .. } = *self;
        CallInfo { service, method, stream_id: None, started, deadline }
    }

    /// A call without any time is not made.
    fn check_time(&self) -> Result<(), Status> {
        match self.options.timeout {
            Some(timeout) if timeout.is_zero() => Err(too_late()),
            _ => Ok(()),
        }
    }
}

impl<Req: Message> PendingCall<Req> {
    /// Queues the Request if there is room for it now.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED for a request that is too long, UNAVAILABLE without a connection,
    /// DEADLINE_EXCEEDED for a call that has no time at all.
    pub(super) fn try_queue(
        &self,
        owner: &Arc<ConnectionOwner>,
        times: Times,
    ) -> Result<Option<CallOwner>, Status> {
        let connection = owner.connection();
        self.check_time()?;
        let frame = self.frame(times)?;
        let Some(permit) = connection.calls.try_acquire(Load::one(0)) else {
            return if connection.calls.is_closed() {
                Err(connection.unavailable())
            } else {
                Ok(None)
            };
        };
        match connection.queue.try_reserve(frame.len()) {
            Ok(Some(room)) => {
                let call = self.call(times);
                let push = frame
                    .encode(|bytes| room.push(bytes, |table| table.open(self.kind, call.clone())));
                self.own(owner, permit, call, push).map(Some)
            }
            Ok(None) => Ok(None),
            Err(Closed) => Err(connection.unavailable()),
        }
    }

    /// Waits for room, within the call's deadline, and queues the Request.
    pub(super) async fn queue(
        &self,
        owner: &Arc<ConnectionOwner>,
        times: Times,
    ) -> Result<CallOwner, Status> {
        self.check_time()?;
        let queue = self.queue_in_turn(owner, times);
        let result = match times.deadline {
            Some(deadline) => timeout_at(deadline, queue).await.unwrap_or_else(|_| Err(too_late())),
            None => queue.await,
        };
        if let Err(status) = &result {
            trace_end(self.info(times), &Err(status.clone()));
        }
        result
    }

    async fn queue_in_turn(
        &self,
        owner: &Arc<ConnectionOwner>,
        times: Times,
    ) -> Result<CallOwner, Status> {
        let connection = owner.connection();
        let len = self.frame(times)?.len();
        let waiting = connection.registry.enter(self.info(times), CallWait::Place);
        let permit = place(connection).await?;
        waiting.now_for(CallWait::Room);
        let room =
            connection.queue.reserve(len).await.map_err(|Closed| connection.unavailable())?;
        // The deadline has come nearer meanwhile; a smaller number is not longer.
        let frame = self.frame(times)?;
        let call = self.call(times);
        let push =
            frame.encode(|bytes| room.push(bytes, |table| table.open(self.kind, call.clone())));
        self.own(owner, permit, call, push)
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
        // The queue gives the stream its id.
        Frame::new(FrameType::Request, flags, 0, parts)
    }

    fn call(&self, times: Times) -> Arc<Call> {
        Arc::new(Call::new(self.kind, self.service, self.method, times))
    }

    /// The call with the place that it has taken, if its Request was queued under an id.
    fn own(
        &self,
        owner: &Arc<ConnectionOwner>,
        place: Permit<'_>,
        call: Arc<Call>,
        stream_id: Option<u32>,
    ) -> Result<CallOwner, Status> {
        let Some(stream_id) = stream_id else {
            return Err(owner.connection().no_id());
        };
        // From here on the owner releases the place.
        place.into_load();
        Ok(CallOwner::new(owner.clone(), call, stream_id))
    }
}

/// Waits for a place among the calls in flight, as long as others end. Time during which the queue
/// is full does not count.
async fn place(connection: &Connection) -> Result<Permit<'_>, Status> {
    let is_paused = connection.queue.is_stuck();
    let stall_timeout = connection.config.stall_timeout;
    let place = connection.calls.acquire_while_moving(Load::one(0), stall_timeout, &is_paused);
    place.await.map_err(|refused| match refused {
        Refused::Closed => connection.unavailable(),
        Refused::Stalled => Status::resource_exhausted(
            "too many calls are in flight on this connection and none ends",
        ),
    })
}
