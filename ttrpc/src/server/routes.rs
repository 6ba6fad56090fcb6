//! From the names in a Request to a handler.

use std::{fmt, future::Future, sync::Arc};

use prost::Message;

use super::{
    context::Context,
    driver::AdmittedCall,
    fallback::{Fallback, start_fallback},
    stream::{StreamReceiver, StreamSender, decode_request},
};
use crate::{
    Error, Name, Status,
    proto::{frame::Flags, message::Request, payload::Payload, stream::Kind},
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
        Routes { service: service.into(), methods: Vec::new() }
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
            let request = decode_request(payload)?;
            let service = service.clone();
            admitted.begin(|call| async move {
                let ctx = Context::new(call);
                let result = handler(&service, &ctx, request).await;
                if let Some(rest) = ctx.call().respond(result) {
                    rest.await;
                }
            });
            Ok(())
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
            move |service, ctx| async move {
                let result = match StreamReceiver::new(ctx.call().clone()).only_message().await {
                    Ok(request) => {
                        let replies = StreamSender::new(ctx.call().clone());
                        handler(&service, &ctx, request, replies).await
                    }
                    Err(status) => Err(status),
                };
                ctx.call().finish_stream(result)
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
                ctx.call().respond(handler(&service, &ctx, requests).await)
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
            move |service, ctx| async move {
                let requests = StreamReceiver::new(ctx.call().clone());
                let replies = StreamSender::new(ctx.call().clone());
                ctx.call().finish_stream(handler(&service, &ctx, requests, replies).await)
            },
        )
    }

    /// Adds a method with streams. `run` returns what is left to do when there is no room for the end.
    fn add_stream<T, F>(
        self,
        name: Name,
        kind: Kind,
        service: &Arc<T>,
        run: impl Fn(Arc<T>, Context) -> F + Send + Sync + 'static,
    ) -> Self
    where
        T: Send + Sync + 'static,
        F: Future<Output = Option<BoxFuture<'static, ()>>> + Send + 'static,
    {
        let service = service.clone();
        self.add(name, kind, move |admitted, payload| {
            admitted.fill_inbox(payload, !kind.client_streams());
            let service = service.clone();
            admitted.begin(|call| {
                let run = run(service, Context::new(call));
                async move {
                    if let Some(rest) = run.await {
                        rest.await;
                    }
                }
            });
            Ok(())
        })
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
    /// A method, of the service with this name.
    Method(&'a Name, &'a Method),
    Fallback(&'a Start),
}

impl Target<'_> {
    /// Whether a Request with these flags can call the method.
    ///
    /// # Errors
    /// INVALID_ARGUMENT.
    pub(super) fn check_flags(self, flags: Flags) -> Result<(), Status> {
        let Target::Method(service, method) = self else { return Ok(()) };
        let is_stream = flags.contains(Flags::REMOTE_OPEN) || flags.contains(Flags::REMOTE_CLOSED);
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
    pub(super) fn names(self, request: &Request<'_>) -> (Name, Name) {
        match self {
            Target::Method(service, method) => (service.clone(), method.name.clone()),
            Target::Fallback(_) => {
                (Arc::<str>::from(request.service).into(), Arc::<str>::from(request.method).into())
            }
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
            Target::Fallback(start) => start(admitted, payload),
        }
    }
}

/// All services of a server. There are few, with a few dozen methods at most: comparing names takes
/// less time than to hash them.
#[derive(Default)]
pub(super) struct Services {
    services: Vec<Routes>,
    /// Takes what no service does.
    fallback: Option<Box<Start>>,
    /// The first name that was added twice.
    duplicate: Option<Name>,
}

impl Services {
    pub(super) fn add(&mut self, routes: Routes) {
        if self.service(&routes.service).is_some() {
            self.duplicate.get_or_insert_with(|| routes.service.clone());
        }
        self.services.push(routes);
    }

    pub(super) fn set_fallback(&mut self, fallback: impl Fallback) {
        self.fallback = Some(start_fallback(fallback));
    }

    /// # Errors
    /// [`Error::DuplicateService`].
    pub(super) fn check(&self) -> Result<(), Error> {
        self.duplicate.clone().map_or(Ok(()), |name| Err(Error::DuplicateService(name)))
    }

    /// Finds what takes calls of a method.
    ///
    /// # Errors
    /// UNIMPLEMENTED, in the words of containerd's implementation.
    pub(super) fn find(&self, service: &str, method: &str) -> Result<Target<'_>, Status> {
        let routes = self.service(service);
        let known = routes.and_then(|routes| {
            let method = routes.methods.iter().find(|known| known.name == *method)?;
            Some(Target::Method(&routes.service, method))
        });
        let fallback = || self.fallback.as_deref().map(Target::Fallback);
        known.or_else(fallback).ok_or_else(|| {
            Status::unimplemented(match routes {
                None => format!("service {service}"),
                Some(_) => format!("method {method}"),
            })
        })
    }

    fn service(&self, name: &str) -> Option<&Routes> {
        self.services.iter().find(|routes| routes.service == *name)
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.iter().map(|routes| &routes.service)).finish()
    }
}
