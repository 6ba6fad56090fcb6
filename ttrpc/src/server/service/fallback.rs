//! Calls that no service takes.

use std::{fmt, sync::Arc};

use async_trait::async_trait;

use crate::server::call::{
    handler::{Context, MakeHandler, Reply, maker},
    stream::{StreamReceiver, StreamSender},
};
use crate::{
    Raw, RawEnd, Status,
    proto::{frame::Flags, message::DynMessage},
};

/// Handles every call that no service of a server takes, for proxies and recorders.
///
/// [`ServerBuilder::fallback`](crate::server::ServerBuilder::fallback) adds one.
///
/// Its calls are like any others: they count for the limits, end with their deadlines, and are cancelled
/// with their connection. [`Context::service`] and [`Context::method`] tell what is called.
///
/// ```
/// use ttrpc::{Context, RawEnd, Status, async_trait, server::{Fallback, FallbackCall}};
///
/// /// Answers each unary call with its own request.
/// struct Echo;
///
/// #[async_trait]
/// impl Fallback for Echo {
///     async fn call(&self, _ctx: &Context, call: FallbackCall) -> Result<RawEnd, Status> {
///         match call.replies {
///             None => Ok(RawEnd::Reply(call.payload)),
///             Some(_) => Err(Status::unimplemented("streams")),
///         }
///     }
/// }
/// # let _ = ttrpc::Server::builder().fallback(Echo);
/// ```
#[async_trait]
pub trait Fallback: Send + Sync + 'static {
    /// Handles one call. What it returns is sent as the end of the call.
    ///
    /// A call that is not a stream ends with a reply or a status; [`RawEnd::Closed`] makes INTERNAL of it.
    async fn call(&self, ctx: &Context, call: FallbackCall) -> Result<RawEnd, Status>;
}

/// A call as it came, raw.
#[non_exhaustive]
pub struct FallbackCall {
    /// Those of the Request, which say what the client is about to send; see
    /// [`Client::raw`](crate::Client::raw).
    pub flags: Flags,
    /// The Request's payload.
    pub payload: Raw,
    /// Receives the messages after the Request; `None` if the client has said that nothing follows.
    pub requests: Option<StreamReceiver<Raw>>,
    /// Sends messages before the end; `None` if the call is unary.
    pub replies: Option<StreamSender<Raw>>,
}

/// Without the payload.
impl fmt::Debug for FallbackCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackCall")
            .field("flags", &self.flags)
            .field("payload_len", &self.payload.0.len())
            .finish_non_exhaustive()
    }
}

/// Makes the handlers of calls that go to the fallback.
pub(in crate::server) fn make_fallback(fallback: impl Fallback) -> Box<MakeHandler> {
    maker(&Arc::new(fallback), |fallback, ctx, payload: Raw| async move {
        let flags = ctx.call().head.flags;
        let requests = || StreamReceiver::new(ctx.call().clone());
        let replies = || StreamSender::new(ctx.call().clone());
        let requests = flags.contains(Flags::REMOTE_OPEN).then(requests);
        let replies = flags.open_a_stream().then(replies);
        let call = FallbackCall { flags, payload, requests, replies };
        match fallback.call(&ctx, call).await? {
            RawEnd::Closed if !flags.open_a_stream() => {
                Err(Status::internal("the fallback closed a call that is not a stream"))
            }
            end => Ok(end),
        }
    })
}

impl Reply for RawEnd {
    fn message(&self) -> Option<&dyn DynMessage> {
        match self {
            RawEnd::Reply(reply) => Some(reply),
            RawEnd::Closed => None,
        }
    }
}
