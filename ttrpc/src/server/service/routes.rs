//! The methods of services, and the way from the names in a Request to the handler that takes it.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use prost::Message;

use crate::server::{
    call::{
        handler::{BoxHandler, Context, EndOfStream, Reply, boxed},
        interceptor::{Chain, Interceptor, SharedInterceptor},
        reasons::Refusal,
        stream::{StreamReceiver, StreamSender},
    },
    service::fallback::{Fallback, make_fallback},
};
use crate::{
    Error, Name, Status,
    contain::Contained,
    observer::EndCause,
    proto::{
        control,
        frame::Flags,
        message::{Malformed, Request},
        stream::Kind,
    },
    transport::BoxFuture,
};

/// Makes the handler of a call.
pub(in crate::server) type MakeHandler = dyn Fn() -> BoxHandler + Send + Sync;

/// One method, its types forgotten.
pub(in crate::server) struct Method {
    /// See [`CallInfo::method_id`](crate::observer::CallInfo::method_id).
    id: u64,
    name: Name,
    kind: Kind,
    make: Contained<Box<MakeHandler>>,
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
    service: Name,
    methods: Vec<Method>,
    interceptors: Vec<SharedInterceptor>,
    /// The server's interceptors and these, if there are any.
    chain: Option<Chain>,
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
        self.unary_unboxed(method, service, move |service: Arc<T>, ctx, request| async move {
            handler(&service, &ctx, request).await
        })
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
        let service = service.clone();
        let make = move || {
            let service = service.clone();
            boxed(move |ctx, request: Req| handler(service, ctx, request))
        };
        self.add(method.into(), Kind::Unary, Box::new(make))
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
        self.add_stream(
            method.into(),
            Kind::ServerStreaming,
            service,
            move |service, ctx| async move {
                let request = StreamReceiver::new(ctx.call().clone()).only_message().await?;
                let replies = StreamSender::new(ctx.call().clone());
                handler(&service, &ctx, request, replies).await.map(|()| EndOfStream)
            },
        )
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
        self.add_stream(
            method.into(),
            Kind::ClientStreaming,
            service,
            move |service, ctx| async move {
                let requests = StreamReceiver::new(ctx.call().clone());
                handler(&service, &ctx, requests).await
            },
        )
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
        self.add_stream(
            method.into(),
            Kind::Bidirectional,
            service,
            move |service, ctx| async move {
                let requests = StreamReceiver::new(ctx.call().clone());
                let replies = StreamSender::new(ctx.call().clone());
                handler(&service, &ctx, requests, replies).await.map(|()| EndOfStream)
            },
        )
    }

    /// Adds a method with streams.
    fn add_stream<T, F, R>(
        self,
        name: Name,
        kind: Kind,
        service: &Arc<T>,
        run: impl Fn(Arc<T>, Context) -> F + Copy + Send + Sync + 'static,
    ) -> Self
    where
        T: Send + Sync + 'static,
        F: Future<Output = Result<R, Status>> + Send + 'static,
        R: Reply + 'static,
    {
        let service = service.clone();
        let make = move || {
            let service = service.clone();
            boxed(move |ctx, ()| run(service, ctx))
        };
        self.add(name, kind, Box::new(make))
    }

    /// Runs this around each call of the service, inside of what was added before and of the server's
    /// interceptors.
    #[must_use]
    pub fn intercept(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Contained::new(Arc::new(interceptor)));
        self
    }

    fn add(mut self, name: Name, kind: Kind, make: Box<MakeHandler>) -> Self {
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

/// Where a Request goes: a method of a service, or the fallback.
#[derive(Clone, Copy)]
pub(in crate::server) struct Target<'a> {
    routes: &'a Routes,
    method: &'a Method,
    /// It is a method that the server has.
    is_known: bool,
}

impl<'a> Target<'a> {
    /// Returns what identifies the method, if the server has it.
    pub(in crate::server) fn method_id(self) -> Option<u64> {
        self.is_known.then_some(self.method.id)
    }

    /// Returns the interceptors around its calls.
    pub(in crate::server) fn chain(self) -> Option<&'a Chain> {
        self.routes.chain.as_ref()
    }

    /// Checks whether a Request with these flags can call the method.
    ///
    /// # Errors
    /// INVALID_ARGUMENT.
    pub(in crate::server) fn check_flags(self, flags: Flags) -> Result<(), Refusal> {
        let is_unary = self.method.kind == Kind::Unary;
        let wrong = match self.is_known {
            true if is_unary && flags.contains(Flags::REMOTE_OPEN) => {
                "is unary and was called as a stream"
            }
            true if !is_unary && !flags.open_a_stream() => "is a stream and was called as unary",
            _ => return Ok(()),
        };
        let (service, method) = (&self.routes.service, &self.method.name);
        Err(Refusal::violation(format!("method {service}/{method} {wrong}")))
    }

    /// Returns the names of service and method, as the program knows them.
    ///
    /// # Errors
    /// [`Malformed::NotUtf8`].
    pub(in crate::server) fn names(self, request: &Request<'_>) -> Result<(Name, Name), Malformed> {
        if self.is_known {
            return Ok((self.routes.service.clone(), self.method.name.clone()));
        }
        let (service, method) = request.names()?;
        Ok((Arc::<str>::from(service).into(), Arc::<str>::from(method).into()))
    }

    /// Returns whether messages of the client's have somewhere to go.
    pub(in crate::server) fn has_inbox(self, flags: Flags) -> bool {
        if self.is_known {
            self.method.kind != Kind::Unary
        } else {
            flags.contains(Flags::REMOTE_OPEN)
        }
    }

    /// Returns whether the payload of a Request with these flags is a message. If not, the client streams its messages, and
    /// all of them follow.
    pub(in crate::server) fn has_message(self, payload: &[u8], flags: Flags) -> bool {
        let may_stream = self.method.kind.client_streams() || flags.contains(Flags::REMOTE_OPEN);
        !(payload.is_empty() && may_stream)
    }

    /// Makes the handler of a call, for a method of this kind.
    pub(in crate::server) fn handler(self) -> (BoxHandler, Kind) {
        ((self.method.make)(), self.method.kind)
    }
}

/// All services of a server. There are few, with a few dozen methods at most: comparing names takes
/// less time than to hash them.
#[derive(Default)]
pub(in crate::server) struct Services {
    services: Vec<Routes>,
    /// Takes what no service does, by its one method.
    fallback: Option<Routes>,
    /// Those of the whole server, outermost first.
    interceptors: Vec<SharedInterceptor>,
    /// The first name that was added twice.
    duplicate: Option<Name>,
}

impl Services {
    pub(in crate::server) fn add(&mut self, routes: Routes) {
        if self.service(routes.service.as_bytes()).is_some() {
            self.duplicate.get_or_insert_with(|| routes.service.clone());
        }
        self.services.push(routes);
    }

    pub(in crate::server) fn set_fallback(&mut self, fallback: impl Fallback) {
        let make = make_fallback(fallback);
        self.fallback = Some(Routes::new("").add("".into(), Kind::Unary, make));
    }

    pub(in crate::server) fn intercept(&mut self, interceptor: impl Interceptor) {
        self.interceptors.push(Contained::new(Arc::new(interceptor)));
    }

    /// No service is added any more: chooses what runs around the calls of each.
    ///
    /// # Errors
    /// [`Error::DuplicateService`].
    pub(in crate::server) fn finish(mut self) -> Result<Self, Error> {
        if let Some(name) = self.duplicate {
            return Err(Error::DuplicateService(name));
        }
        for routes in self.services.iter_mut().chain(&mut self.fallback) {
            let all: Vec<_> =
                self.interceptors.iter().chain(&routes.interceptors).cloned().collect();
            routes.chain = (!all.is_empty()).then(|| all.into());
        }
        Ok(self)
    }

    /// Finds what takes calls of a method.
    ///
    /// # Errors
    /// UNIMPLEMENTED, in the words of containerd's implementation.
    pub(in crate::server) fn find(
        &self,
        service: &str,
        method: &str,
    ) -> Result<Target<'_>, Refusal> {
        if let Some(known) = self.find_method(service.as_bytes(), method.as_bytes()) {
            return Ok(known);
        }
        // What the two sides of a connection use for themselves is not passed on: stream ids are those of the connection.
        match &self.fallback {
            Some(routes) if service != control::SERVICE => {
                Ok(Target { routes, method: &routes.methods[0], is_known: false })
            }
            _ => {
                let status = Status::unimplemented(match self.service(service.as_bytes()) {
                    None => format!("service {service}"),
                    Some(_) => format!("method {method}"),
                });
                Err(Refusal { cause: EndCause::Unimplemented, status })
            }
        }
    }

    /// Finds a service's method by the bytes of the names.
    pub(in crate::server) fn find_method(
        &self,
        service: &[u8],
        method: &[u8],
    ) -> Option<Target<'_>> {
        let routes = self.service(service)?;
        let method = routes.methods.iter().find(|known| known.name.as_bytes() == method)?;
        Some(Target { routes, method, is_known: true })
    }

    fn service(&self, name: &[u8]) -> Option<&Routes> {
        self.services.iter().find(|routes| routes.service.as_bytes() == name)
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.iter().map(|routes| &routes.service)).finish()
    }
}
