//! From the names in a Request to a handler.

use std::{fmt, sync::Arc};

use prost::Message;

use super::{
    context::Context,
    driver::AdmittedCall,
    stream::{StreamReceiver, StreamSender, decode_request},
};
use crate::{
    Error, Status,
    proto::{payload::Payload, stream::Kind},
    transport::BoxFuture,
};

/// Starts a call's handler with the Request's payload.
type Start = dyn Fn(AdmittedCall<'_>, Payload<'_>) -> Result<(), Status> + Send + Sync;

/// One method, its types forgotten.
pub(super) struct Method {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) start: Box<Start>,
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
    service: &'static str,
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
    pub fn new(service: &'static str) -> Self {
        Routes { service, methods: Vec::new() }
    }

    /// Adds a unary method.
    #[must_use]
    pub fn unary<T, Req, Resp>(
        self,
        method: &'static str,
        service: &Arc<T>,
        handler: UnaryHandler<T, Req, Resp>,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
    {
        let service = service.clone();
        self.add(method, Kind::Unary, move |admitted, payload| {
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
        method: &'static str,
        service: &Arc<T>,
        handler: ServerStreamingHandler<T, Req, Resp>,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
    {
        let service = service.clone();
        self.add(method, Kind::ServerStreaming, move |admitted, payload| {
            admitted.fill_inbox(payload, true);
            let service = service.clone();
            admitted.begin(|call| async move {
                let ctx = Context::new(call);
                let result = match StreamReceiver::new(ctx.call().clone()).only_message().await {
                    Ok(request) => {
                        let replies = StreamSender::new(ctx.call().clone());
                        handler(&service, &ctx, request, replies).await
                    }
                    Err(status) => Err(status),
                };
                if let Some(rest) = ctx.call().finish_stream(result) {
                    rest.await;
                }
            });
            Ok(())
        })
    }

    /// Adds a method that takes a stream.
    #[must_use]
    pub fn client_streaming<T, Req, Resp>(
        self,
        method: &'static str,
        service: &Arc<T>,
        handler: ClientStreamingHandler<T, Req, Resp>,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
    {
        let service = service.clone();
        self.add(method, Kind::ClientStreaming, move |admitted, payload| {
            admitted.fill_inbox(payload, false);
            let service = service.clone();
            admitted.begin(|call| async move {
                let ctx = Context::new(call);
                let requests = StreamReceiver::new(ctx.call().clone());
                let result = handler(&service, &ctx, requests).await;
                if let Some(rest) = ctx.call().respond(result) {
                    rest.await;
                }
            });
            Ok(())
        })
    }

    /// Adds a method that takes and gives a stream.
    #[must_use]
    pub fn bidi_streaming<T, Req, Resp>(
        self,
        method: &'static str,
        service: &Arc<T>,
        handler: BidiStreamingHandler<T, Req, Resp>,
    ) -> Self
    where
        T: Send + Sync + 'static,
        Req: Message + Default + 'static,
        Resp: Message + 'static,
    {
        let service = service.clone();
        self.add(method, Kind::Bidirectional, move |admitted, payload| {
            admitted.fill_inbox(payload, false);
            let service = service.clone();
            admitted.begin(|call| async move {
                let ctx = Context::new(call);
                let requests = StreamReceiver::new(ctx.call().clone());
                let replies = StreamSender::new(ctx.call().clone());
                let result = handler(&service, &ctx, requests, replies).await;
                if let Some(rest) = ctx.call().finish_stream(result) {
                    rest.await;
                }
            });
            Ok(())
        })
    }

    fn add<F>(mut self, name: &'static str, kind: Kind, start: F) -> Self
    where
        F: Fn(AdmittedCall<'_>, Payload<'_>) -> Result<(), Status> + Send + Sync + 'static,
    {
        self.methods.push(Method { name, kind, start: Box::new(start) });
        self
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods: Vec<_> = self.methods.iter().map(|method| method.name).collect();
        f.debug_struct("Routes").field("service", &self.service).field("methods", &methods).finish()
    }
}

/// All services of a server. There are few, with a few dozen methods at most: comparing names takes
/// less time than to hash them.
#[derive(Default)]
pub(super) struct Services {
    services: Vec<Routes>,
    /// The first name that was added twice.
    duplicate: Option<&'static str>,
}

impl Services {
    pub(super) fn add(&mut self, routes: Routes) {
        if self.service(routes.service).is_some() {
            self.duplicate.get_or_insert(routes.service);
        }
        self.services.push(routes);
    }

    /// # Errors
    /// [`Error::DuplicateService`].
    pub(super) fn check(&self) -> Result<(), Error> {
        self.duplicate.map_or(Ok(()), |name| Err(Error::DuplicateService(name)))
    }

    /// Finds a method, with its service's name as the program knows it.
    ///
    /// # Errors
    /// UNIMPLEMENTED, in the words of containerd's implementation.
    pub(super) fn find(
        &self,
        service: &str,
        method: &str,
    ) -> Result<(&'static str, &Method), Status> {
        let Some(routes) = self.service(service) else {
            return Err(Status::unimplemented(format!("service {service}")));
        };
        let Some(method) = routes.methods.iter().find(|known| known.name == method) else {
            return Err(Status::unimplemented(format!("method {method}")));
        };
        Ok((routes.service, method))
    }

    fn service(&self, name: &str) -> Option<&Routes> {
        self.services.iter().find(|routes| routes.service == name)
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.iter().map(|routes| routes.service)).finish()
    }
}
