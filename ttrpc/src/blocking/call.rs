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

    forward! { call:
        /// Ends the call with DEADLINE_EXCEEDED when it takes longer than this, as
        /// [the asynchronous one](client::Call::timeout) does. The time runs from `call` on.
        fn timeout(timeout: Duration);

        /// Ends the call at this moment. The earliest of all ends that are said counts, the
        /// [timeout's](Call::timeout) included.
        fn deadline(deadline: Instant);

        /// Ends the call no later than the one that a handler is about, for a server that calls on.
        fn within(ctx: &Context);

        /// Adds a pair of metadata, after the values that the key already has.
        fn metadata(key: impl Into<String>, value: impl Into<String>);

        /// Replaces all metadata of the call.
        fn with_metadata(metadata: Metadata);

        /// Makes the call again as this policy says, in place of the client's and the method's.
        fn retry(retry: Retry);

        /// Says that the call may be executed more than once, as [the asynchronous one](client::Call::idempotent) does.
        fn idempotent();

        /// Says that the .proto declares the method idempotent. Generated clients call this.
        fn declared_idempotent();

        /// Sets whether the call waits for a connection, as [the asynchronous one](client::Call::wait_for_ready) does.
        fn wait_for_ready(waits: bool);
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
        self.driver.call(self.call)
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
        let replies = driver.call(async {
            let replies = call.await?;
            replies.request_flushed().await?;
            Ok(replies)
        })?;
        Ok(StreamReceiver { receiver: replies, driver })
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
        let (requests, reply) = driver.call(async {
            let (requests, reply) = call.await?;
            requests.flushed().await?;
            Ok((requests, reply))
        })?;
        let sender = StreamSender { sender: requests, driver: driver.clone() };
        Ok((sender, Reply { reply, driver }))
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
        let (requests, replies) = driver.call(async {
            let (requests, replies) = call.await?;
            requests.flushed().await?;
            Ok((requests, replies))
        })?;
        let sender = StreamSender { sender: requests, driver: driver.clone() };
        Ok((sender, StreamReceiver { receiver: replies, driver }))
    }
}
