//! Calls that have not been made.

use std::{fmt, sync::Arc, time::Duration};

use prost::Message;
use tokio::time::Instant;

use super::{
    driver::Driver,
    stream::{Reply, StreamReceiver, StreamSender},
};
use crate::{
    Context, Metadata, Status,
    client::{self, BidiStreaming, ClientStreaming, Retry, ServerStreaming, Unary},
};

/// One request, one reply.
pub type UnaryCall<Req, Resp> = Call<Unary, Req, Resp>;

/// One request, many replies.
pub type ServerStreamingCall<Req, Resp> = Call<ServerStreaming, Req, Resp>;

/// Many requests, one reply.
pub type ClientStreamingCall<Req, Resp> = Call<ClientStreaming, Req, Resp>;

/// Many requests, many replies.
pub type BidiStreamingCall<Req, Resp> = Call<BidiStreaming, Req, Resp>;

/// A call of the kind `K`. It is made by `call`, and what is said of it before, its metadata and its time,
/// goes with the Request.
#[must_use = "a call is made by `call`"]
pub struct Call<K, Req, Resp> {
    call: client::Call<K, Req, Resp>,
    // Dropped last: what is dropped before it may need its runtime.
    driver: Arc<Driver>,
}

impl<K, Req, Resp> Call<K, Req, Resp> {
    pub(super) fn new(call: client::Call<K, Req, Resp>, driver: &Arc<Driver>) -> Self {
        Call { call, driver: driver.clone() }
    }

    /// Ends the call with DEADLINE_EXCEEDED when it takes longer than this, as
    /// [the asynchronous one](client::Call::timeout) does. The time runs from `call` on.
    pub fn timeout(self, timeout: Duration) -> Self {
        Call { call: self.call.timeout(timeout), ..self }
    }

    /// Ends the call at this moment. The earliest of all ends that are said counts, the
    /// [timeout's](Call::timeout) included.
    pub fn deadline(self, deadline: Instant) -> Self {
        Call { call: self.call.deadline(deadline), ..self }
    }

    /// Ends the call no later than the one that a handler is about, for a server that calls on.
    pub fn within(self, ctx: &Context) -> Self {
        Call { call: self.call.within(ctx), ..self }
    }

    /// Adds a pair of metadata, after the values that the key already has.
    pub fn metadata(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        Call { call: self.call.metadata(key, value), ..self }
    }

    /// Replaces all metadata of the call.
    pub fn with_metadata(self, metadata: Metadata) -> Self {
        Call { call: self.call.with_metadata(metadata), ..self }
    }

    /// Makes the call again as this policy says, in place of the client's and the method's.
    pub fn retry(self, retry: Retry) -> Self {
        Call { call: self.call.retry(retry), ..self }
    }

    /// Says that the call may be executed more than once, as [the asynchronous one](client::Call::idempotent) does.
    pub fn idempotent(self) -> Self {
        Call { call: self.call.idempotent(), ..self }
    }

    /// Says that the .proto declares the method idempotent. Generated clients call this.
    pub fn declared_idempotent(self) -> Self {
        Call { call: self.call.declared_idempotent(), ..self }
    }

    /// Sets whether the call waits for a connection, as [the asynchronous one](client::Call::wait_for_ready) does.
    pub fn wait_for_ready(self, waits: bool) -> Self {
        Call { call: self.call.wait_for_ready(waits), ..self }
    }
}

impl<K, Req, Resp> fmt::Debug for Call<K, Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.call, f)
    }
}

impl<Req: Message + 'static, Resp: Message + Default> UnaryCall<Req, Resp> {
    /// Makes the call and waits for its reply.
    ///
    /// # Errors
    /// The call's status, see [How a call ends](crate::client#how-a-call-ends).
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn call(self) -> Result<Resp, Status> {
        let Call { call, driver } = self;
        driver.check_process()?;
        driver.wait(call)
    }
}

impl<Req: Message + 'static, Resp: Message + Default> ServerStreamingCall<Req, Resp> {
    /// Opens the stream of replies, and returns when the request is in the socket.
    ///
    /// # Errors
    /// UNAVAILABLE, DEADLINE_EXCEEDED, or RESOURCE_EXHAUSTED for a request that is too long.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn call(self) -> Result<StreamReceiver<Resp>, Status> {
        let Call { call, driver } = self;
        driver.check_process()?;
        let replies = driver.wait(async {
            let replies = call.await?;
            replies.request_flushed().await?;
            Ok::<_, Status>(replies)
        })?;
        Ok(StreamReceiver::new(replies, driver))
    }
}

impl<Req: Message + 'static, Resp: Message + Default> ClientStreamingCall<Req, Resp> {
    /// Opens the stream of requests, and returns when the server can see it.
    ///
    /// # Errors
    /// UNAVAILABLE or DEADLINE_EXCEEDED.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn call(self) -> Result<(StreamSender<Req>, Reply<Resp>), Status> {
        let Call { call, driver } = self;
        driver.check_process()?;
        let (requests, reply) = driver.wait(async {
            let (requests, reply) = call.await?;
            requests.flushed().await?;
            Ok::<_, Status>((requests, reply))
        })?;
        Ok((StreamSender::new(requests, driver.clone()), Reply::new(reply, driver)))
    }
}

impl<Req: Message + 'static, Resp: Message + Default> BidiStreamingCall<Req, Resp> {
    /// Opens both streams, and returns when the server can see it. The two ends may be used by different
    /// threads.
    ///
    /// # Errors
    /// UNAVAILABLE or DEADLINE_EXCEEDED.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn call(self) -> Result<(StreamSender<Req>, StreamReceiver<Resp>), Status> {
        let Call { call, driver } = self;
        driver.check_process()?;
        let (requests, replies) = driver.wait(async {
            let (requests, replies) = call.await?;
            requests.flushed().await?;
            Ok::<_, Status>((requests, replies))
        })?;
        Ok((StreamSender::new(requests, driver.clone()), StreamReceiver::new(replies, driver)))
    }
}
