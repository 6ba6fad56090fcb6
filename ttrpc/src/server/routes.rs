//! From the names in a Request to a handler.

use std::{fmt, future::Future, sync::Arc};

use prost::Message;

use super::{
    call::{Call, ReplyRest},
    context::Context,
    driver::AdmittedCall,
    fallback::{Fallback, start_fallback},
    interceptor::{Chain, Interceptor},
    stream::{StreamReceiver, StreamSender, decode_request},
};
use crate::{
    Error, Name, Status,
    proto::{
        frame::Flags,
        message::{Malformed, Request},
        payload::Payload,
        stream::Kind,
    },
    transport::BoxFuture,
};

/// Starts a call's handler with the Request's payload.
pub(super) type Start = dyn Fn(AdmittedCall<'_>, Payload<'_>) -> Result<(), Status> + Send + Sync;

/// One method, its types forgotten.
pub(super) struct Method {
    name: Name,
    kind: Kind,
    start: Box<Start>,
}

/// A service that a server can serve. Generated servers implement it.
pub trait Service {
    /// The service's methods, each with its handler.
    fn into_routes(self) -> Routes;

    /// The service with an [`Interceptor`] around each of its calls, inside of those that were added before.
    ///
    /// ```
    /// # use ttrpc::server::{Interceptor, ServerBuilder, Service};
    /// fn add(server: ServerBuilder, greeter: impl Service, policy: impl Interceptor) -> ServerBuilder {
    ///     server.add_service(greeter.intercept(policy))
    /// }
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
    interceptors: Vec<Arc<dyn Interceptor>>,
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
    /// No methods yet; `service` is the full protobuf name, `containerd.task.v2.Task` for example.
    pub fn new(service: impl Into<Name>) -> Self {
        Routes {
            service: service.into(),
            methods: Vec::new(),
            interceptors: Vec::new(),
            chain: None,
        }
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
        let service = service.clone();
        self.add(method.into(), Kind::Unary, move |admitted, payload| {
            let service = service.clone();
            let handler =
                move |ctx: Context, request| async move { handler(&service, &ctx, request).await };
            admitted.begin(payload, true, decode_request, handler, Call::respond)
        })
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
            Call::finish_stream,
            move |service, ctx| async move {
                let request = StreamReceiver::new(ctx.call().clone()).only_message().await?;
                let replies = StreamSender::new(ctx.call().clone());
                handler(&service, &ctx, request, replies).await
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
            Call::respond,
            move |service, ctx| async move {
                let requests = StreamReceiver::new(ctx.call().clone());
                handler(&service, &ctx, requests).await
            },
        )
    }

    /// Adds a method that takes and gives a stream.
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
            Call::finish_stream,
            move |service, ctx| async move {
                let requests = StreamReceiver::new(ctx.call().clone());
                let replies = StreamSender::new(ctx.call().clone());
                handler(&service, &ctx, requests, replies).await
            },
        )
    }

    /// Adds a method with streams. `finish` ends the call with what `run` returns.
    fn add_stream<T, F, R>(
        self,
        name: Name,
        kind: Kind,
        service: &Arc<T>,
        finish: fn(&Arc<Call>, Result<R, Status>) -> ReplyRest,
        run: impl Fn(Arc<T>, Context) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        T: Send + Sync + 'static,
        F: Future<Output = Result<R, Status>> + Send + 'static,
        R: Send + 'static,
    {
        let service = service.clone();
        let needs_message = !kind.client_streams();
        self.add(name, kind, move |admitted, payload| {
            admitted.fill_inbox(payload, needs_message);
            let (service, run) = (service.clone(), run.clone());
            let handler = move |ctx, ()| run(service, ctx);
            admitted.begin(payload, needs_message, |_| Ok(()), handler, finish)
        })
    }

    /// Runs this around each call of the service, inside of what was added before and of the server's
    /// interceptors.
    #[must_use]
    pub fn intercept(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    fn add<F>(mut self, name: Name, kind: Kind, start: F) -> Self
    where
        F: Fn(AdmittedCall<'_>, Payload<'_>) -> Result<(), Status> + Send + Sync + 'static,
    {
        self.methods.push(Method { name, kind, start: Box::new(start) });
        self
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods: Vec<_> = self.methods.iter().map(|method| &method.name).collect();
        f.debug_struct("Routes").field("service", &self.service).field("methods", &methods).finish()
    }
}

/// Where a Request goes.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Method(&'a Routes, &'a Method),
    Fallback(&'a FallbackRoute),
}

impl<'a> Target<'a> {
    /// Whether it is a method that the server has.
    pub(super) fn is_known(self) -> bool {
        matches!(self, Target::Method(..))
    }

    /// The interceptors around its calls.
    pub(super) fn chain(self) -> Option<&'a Chain> {
        match self {
            Target::Method(routes, _) => routes.chain.as_ref(),
            Target::Fallback(fallback) => fallback.chain.as_ref(),
        }
    }

    /// Whether a Request with these flags can call the method.
    ///
    /// # Errors
    /// INVALID_ARGUMENT.
    pub(super) fn check_flags(self, flags: Flags) -> Result<(), Status> {
        let Target::Method(Routes { service, .. }, method) = self else { return Ok(()) };
        let is_stream = flags.open_a_stream();
        let wrong = match method.kind {
            Kind::Unary if flags.contains(Flags::REMOTE_OPEN) => {
                "is unary and was called as a stream"
            }
            Kind::ServerStreaming | Kind::ClientStreaming | Kind::Bidirectional if !is_stream => {
                "is a stream and was called as unary"
            }
            _ => return Ok(()),
        };
        Err(Status::invalid_argument(format!("method {service}/{} {wrong}", method.name)))
    }

    /// The names of service and method, as the program knows them.
    ///
    /// # Errors
    /// [`Malformed::NotUtf8`].
    pub(super) fn names(self, request: &Request<'_>) -> Result<(Name, Name), Malformed> {
        Ok(match self {
            Target::Method(routes, method) => (routes.service.clone(), method.name.clone()),
            Target::Fallback(_) => {
                let (service, method) = request.names()?;
                (Arc::<str>::from(service).into(), Arc::<str>::from(method).into())
            }
        })
    }

    /// Whether a call has one reply and no messages before it.
    pub(super) fn has_one_reply(self, flags: Flags) -> bool {
        match self {
            Target::Method(_, method) => !method.kind.server_streams(),
            Target::Fallback(_) => !flags.contains(Flags::REMOTE_CLOSED),
        }
    }

    /// Whether messages of the client's have somewhere to go.
    pub(super) fn has_inbox(self, flags: Flags) -> bool {
        match self {
            Target::Method(_, method) => method.kind != Kind::Unary,
            Target::Fallback(_) => flags.contains(Flags::REMOTE_OPEN),
        }
    }

    /// Has the call's handler begin.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the payload is not a request of the method's.
    pub(super) fn start(
        self,
        admitted: AdmittedCall<'_>,
        payload: Payload<'_>,
    ) -> Result<(), Status> {
        match self {
            Target::Method(_, method) => (method.start)(admitted, payload),
            Target::Fallback(fallback) => (fallback.start)(admitted, payload),
        }
    }
}

/// What takes the calls that no service does.
pub(super) struct FallbackRoute {
    start: Box<Start>,
    chain: Option<Chain>,
}

/// All services of a server. There are few, with a few dozen methods at most: comparing names takes
/// less time than to hash them.
#[derive(Default)]
pub(super) struct Services {
    services: Vec<Routes>,
    /// Takes what no service does.
    fallback: Option<FallbackRoute>,
    /// Those of the whole server, outermost first.
    interceptors: Vec<Arc<dyn Interceptor>>,
    /// The first name that was added twice.
    duplicate: Option<Name>,
}

impl Services {
    pub(super) fn add(&mut self, routes: Routes) {
        if self.service(routes.service.as_bytes()).is_some() {
            self.duplicate.get_or_insert_with(|| routes.service.clone());
        }
        self.services.push(routes);
    }

    pub(super) fn set_fallback(&mut self, fallback: impl Fallback) {
        self.fallback = Some(FallbackRoute { start: start_fallback(fallback), chain: None });
    }

    pub(super) fn intercept(&mut self, interceptor: impl Interceptor) {
        self.interceptors.push(Arc::new(interceptor));
    }

    /// No service is added any more: chooses what runs around the calls of each.
    ///
    /// # Errors
    /// [`Error::DuplicateService`].
    pub(super) fn finish(mut self) -> Result<Self, Error> {
        if let Some(name) = self.duplicate {
            return Err(Error::DuplicateService(name));
        }
        let chain = |own: &[Arc<dyn Interceptor>]| {
            let all: Vec<_> = self.interceptors.iter().chain(own).cloned().collect();
            (!all.is_empty()).then(|| all.into())
        };
        for routes in &mut self.services {
            routes.chain = chain(&routes.interceptors);
        }
        if let Some(fallback) = &mut self.fallback {
            fallback.chain = chain(&[]);
        }
        Ok(self)
    }

    /// Whether a service has this method.
    pub(super) fn has_method(&self, service: &str, method: &str) -> bool {
        self.find_method(service.as_bytes(), method.as_bytes()).is_some()
    }

    /// Finds what takes calls of a method.
    ///
    /// # Errors
    /// UNIMPLEMENTED, in the words of containerd's implementation.
    pub(super) fn find(&self, service: &str, method: &str) -> Result<Target<'_>, Status> {
        let fallback = || self.fallback.as_ref().map(Target::Fallback);
        let known = self.find_method(service.as_bytes(), method.as_bytes());
        known.or_else(fallback).ok_or_else(|| {
            Status::unimplemented(match self.service(service.as_bytes()) {
                None => format!("service {service}"),
                Some(_) => format!("method {method}"),
            })
        })
    }

    /// Finds a service's method by the bytes of the names.
    pub(super) fn find_method(&self, service: &[u8], method: &[u8]) -> Option<Target<'_>> {
        let routes = self.service(service)?;
        let method = routes.methods.iter().find(|known| known.name.as_bytes() == method)?;
        Some(Target::Method(routes, method))
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
