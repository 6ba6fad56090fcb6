//! The methods of one service, as generated code lists them.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use prost::Message;

use crate::server::call::{
    handler::{Context, EndOfStream, MakeHandler, maker, unary_maker},
    interceptor::{Chain, Interceptor, SharedInterceptor},
    stream::{StreamReceiver, StreamSender},
};
use crate::{Name, Status, contain::Contained, proto::stream::Kind, transport::BoxFuture};

/// One method, its types forgotten.
pub(in crate::server) struct Method {
    /// See [`CallInfo::method_id`](crate::observer::CallInfo::method_id).
    pub(super) id: u64,
    pub(super) name: Name,
    pub(super) kind: Kind,
    pub(super) make: Contained<Box<MakeHandler>>,
}

/// A service that a server can serve. Generated servers implement it.
pub trait Service {
    /// The service's methods, each with its handler.
    fn into_routes(self) -> Routes;

    /// The service with an [`Interceptor`] around each of its calls, inside of those that were added before.
    ///
    /// ```
    /// # use ttrpc::server::{Interceptor, ServerBuilder, Service};
    /// # fn add(server: ServerBuilder, greeter: impl Service, policy: impl Interceptor) -> ServerBuilder {
    /// server.add_service(greeter.intercept(policy))
    /// # }
    /// ```
    fn intercept(self, interceptor: impl Interceptor) -> Routes
    where
        Self: Sized,
    {
        self.into_routes().intercept(interceptor)
    }
}

impl Service for Routes {
    fn into_routes(self) -> Routes {
        self
    }
}

/// The methods of one service.
///
/// Generated code makes it; by hand it reads so:
///
/// ```
/// use std::sync::Arc;
/// use ttrpc::server::Routes;
///
/// struct Pinger;
/// let routes = Routes::new("example.v1.Pinger")
///     .unary("Ping", &Arc::new(Pinger), |_pinger, _ctx, (): ()| Box::pin(async { Ok(()) }));
/// ```
pub struct Routes {
    pub(super) service: Name,
    pub(super) methods: Vec<Method>,
    pub(super) interceptors: Vec<SharedInterceptor>,
    /// The server's interceptors and these, if there are any.
    pub(super) chain: Option<Chain>,
}

/// A unary handler.
pub type UnaryHandler<T, Req, Resp> =
    for<'a> fn(&'a T, &'a Context, Req) -> BoxFuture<'a, Result<Resp, Status>>;
/// A handler of one request and many replies.
pub type ServerStreamingHandler<T, Req, Resp> =
    for<'a> fn(&'a T, &'a Context, Req, StreamSender<Resp>) -> BoxFuture<'a, Result<(), Status>>;
/// A handler of many requests and one reply.
pub type ClientStreamingHandler<T, Req, Resp> =
    for<'a> fn(&'a T, &'a Context, StreamReceiver<Req>) -> BoxFuture<'a, Result<Resp, Status>>;
/// A handler of many requests and many replies.
pub type BidiStreamingHandler<T, Req, Resp> = for<'a> fn(
    &'a T,
    &'a Context,
    StreamReceiver<Req>,
    StreamSender<Resp>,
) -> BoxFuture<'a, Result<(), Status>>;

impl Routes {
    /// Makes a service without methods. `service` is its full protobuf name, `containerd.task.v2.Task` for example.
    pub fn new(service: impl Into<Name>) -> Self {
        Routes {
            service: service.into(),
            methods: Vec::new(),
            interceptors: Vec::new(),
            chain: None,
        }
    }

    /// Serves these methods under another name, such as that of a later version whose methods are the same: the program
    /// has their code once.
    ///
    /// ```
    /// # use ttrpc::server::{Routes, ServerBuilder};
    /// # fn add(server: ServerBuilder, routes: fn() -> Routes) -> ServerBuilder {
    /// server.add_service(routes()).add_service(routes().renamed("example.v2.Pinger"))
    /// # }
    /// ```
    #[must_use]
    pub fn renamed(self, service: impl Into<Name>) -> Self {
        Routes { service: service.into(), ..self }
    }

    /// Adds a unary method.
    #[must_use]
    pub fn unary<T, Req, Resp>(
        self,
        method: impl Into<Name>,
        service: &Arc<T>,
        handler: UnaryHandler<T, Req, Resp>,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
    {
        self.add(method.into(), Kind::Unary, unary_maker(service, handler))
    }

    /// Adds a unary method whose handler's future need not be boxed. Code that is generated with the option
    /// `async_fn_in_trait` has such handlers.
    #[must_use]
    pub fn unary_unboxed<T, Req, Resp, F>(
        self,
        method: impl Into<Name>,
        service: &Arc<T>,
        handler: impl Fn(Arc<T>, Context, Req) -> F + Copy + Send + Sync + 'static,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
        F: Future<Output = Result<Resp, Status>> + Send + 'static,
    {
        self.add(method.into(), Kind::Unary, maker(service, handler))
    }

    /// Adds a method that answers with a stream.
    #[must_use]
    pub fn server_streaming<T, Req, Resp>(
        self,
        method: impl Into<Name>,
        service: &Arc<T>,
        handler: ServerStreamingHandler<T, Req, Resp>,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
    {
        let make = maker(service, move |service: Arc<T>, ctx, ()| async move {
            let request = StreamReceiver::new(ctx.call().clone()).only_message().await?;
            let replies = StreamSender::new(ctx.call().clone());
            handler(&service, &ctx, request, replies).await.map(|()| EndOfStream)
        });
        self.add(method.into(), Kind::ServerStreaming, make)
    }

    /// Adds a method that takes a stream.
    #[must_use]
    pub fn client_streaming<T, Req, Resp>(
        self,
        method: impl Into<Name>,
        service: &Arc<T>,
        handler: ClientStreamingHandler<T, Req, Resp>,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
    {
        let make = maker(service, move |service: Arc<T>, ctx, ()| async move {
            let requests = StreamReceiver::new(ctx.call().clone());
            handler(&service, &ctx, requests).await
        });
        self.add(method.into(), Kind::ClientStreaming, make)
    }

    /// Adds a method that takes and returns a stream.
    #[must_use]
    pub fn bidi_streaming<T, Req, Resp>(
        self,
        method: impl Into<Name>,
        service: &Arc<T>,
        handler: BidiStreamingHandler<T, Req, Resp>,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
    {
        let make = maker(service, move |service: Arc<T>, ctx, ()| async move {
            let requests = StreamReceiver::new(ctx.call().clone());
            let replies = StreamSender::new(ctx.call().clone());
            handler(&service, &ctx, requests, replies).await.map(|()| EndOfStream)
        });
        self.add(method.into(), Kind::Bidirectional, make)
    }

    /// Runs this around each call of the service, inside of what was added before and of the server's
    /// interceptors.
    #[must_use]
    pub fn intercept(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Contained::new(Arc::new(interceptor)));
        self
    }

    pub(super) fn add(mut self, name: Name, kind: Kind, make: Box<MakeHandler>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Relaxed);
        self.methods.push(Method { id, name, kind, make: Contained::new(make) });
        self
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods: Vec<_> = self.methods.iter().map(|method| &method.name).collect();
        f.debug_struct("Routes").field("service", &self.service).field("methods", &methods).finish()
    }
}
