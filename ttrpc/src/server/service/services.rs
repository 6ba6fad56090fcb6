//! From the names in a Request to what takes it.

use std::{fmt, sync::Arc};

use crate::server::{
    call::{
        handler::OwnedHandler,
        interceptor::{Chain, Interceptor, SharedInterceptor},
        reasons::Refusal,
        start::AdmittedCall,
    },
    service::{
        fallback::{Fallback, make_fallback},
        routes::{MakeHandler, Method, Routes},
    },
};
use crate::{
    Error, Name, Status,
    contain::Contained,
    proto::{
        control,
        frame::Flags,
        message::{Malformed, Request},
        payload::Payload,
        stream::Kind,
    },
};

/// Where a Request goes.
#[derive(Clone, Copy)]
pub(in crate::server) enum Target<'a> {
    Method(&'a Routes, &'a Method),
    Fallback(&'a FallbackRoute),
}

impl<'a> Target<'a> {
    /// Whether it is a method that the server has.
    pub(in crate::server) fn is_known(self) -> bool {
        matches!(self, Target::Method(..))
    }

    /// The interceptors around its calls.
    pub(in crate::server) fn chain(self) -> Option<&'a Chain> {
        match self {
            Target::Method(routes, _) => routes.chain.as_ref(),
            Target::Fallback(fallback) => fallback.chain.as_ref(),
        }
    }

    /// Returns whether a Request with these flags can call the method.
    ///
    /// # Errors
    /// INVALID_ARGUMENT.
    pub(in crate::server) fn check_flags(self, flags: Flags) -> Result<(), Status> {
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
    pub(in crate::server) fn names(self, request: &Request<'_>) -> Result<(Name, Name), Malformed> {
        Ok(match self {
            Target::Method(routes, method) => (routes.service.clone(), method.name.clone()),
            Target::Fallback(_) => {
                let (service, method) = request.names()?;
                (Arc::<str>::from(service).into(), Arc::<str>::from(method).into())
            }
        })
    }

    /// Whether messages of the client's have somewhere to go.
    pub(in crate::server) fn has_inbox(self, flags: Flags) -> bool {
        match self {
            Target::Method(_, method) => method.kind != Kind::Unary,
            Target::Fallback(_) => flags.contains(Flags::REMOTE_OPEN),
        }
    }

    /// Has the call's handler begin.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the payload is not a request of the method's, INTERNAL if the method's code panics.
    pub(in crate::server) fn start(
        self,
        admitted: AdmittedCall<'_>,
        payload: Payload<'_>,
    ) -> Result<(), Refusal> {
        let (make, kind) = match self {
            Target::Method(_, method) => (&method.make, method.kind),
            Target::Fallback(fallback) => (&fallback.make, Kind::Unary),
        };
        let (is_stream, needs_message) = (kind != Kind::Unary, !kind.client_streams());
        if is_stream {
            admitted.fill_inbox(payload, needs_message);
        }
        admitted.begin(payload, needs_message, OwnedHandler::new(make(), is_stream))
    }
}

/// What takes the calls that no service does.
pub(in crate::server) struct FallbackRoute {
    make: Contained<Box<MakeHandler>>,
    chain: Option<Chain>,
}

/// All services of a server. There are few, with a few dozen methods at most: comparing names takes
/// less time than to hash them.
#[derive(Default)]
pub(in crate::server) struct Services {
    services: Vec<Routes>,
    /// Takes what no service does.
    fallback: Option<FallbackRoute>,
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
        self.fallback =
            Some(FallbackRoute { make: Contained::new(make_fallback(fallback)), chain: None });
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
        let chain = |own: &[SharedInterceptor]| {
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

    /// Returns whether a service has this method.
    pub(in crate::server) fn has_method(&self, service: &str, method: &str) -> bool {
        self.find_method(service.as_bytes(), method.as_bytes()).is_some()
    }

    /// Finds what takes calls of a method.
    ///
    /// # Errors
    /// UNIMPLEMENTED, in the words of containerd's implementation.
    pub(in crate::server) fn find(
        &self,
        service: &str,
        method: &str,
    ) -> Result<Target<'_>, Status> {
        // What the two sides of a connection use for themselves is not passed on: stream ids are those of the connection.
        let fallback = || {
            let fallback = self.fallback.as_ref().filter(|_| service != control::SERVICE);
            fallback.map(Target::Fallback)
        };
        let known = self.find_method(service.as_bytes(), method.as_bytes());
        known.or_else(fallback).ok_or_else(|| {
            Status::unimplemented(match self.service(service.as_bytes()) {
                None => format!("service {service}"),
                Some(_) => format!("method {method}"),
            })
        })
    }

    /// Finds a service's method by the bytes of the names.
    pub(in crate::server) fn find_method(
        &self,
        service: &[u8],
        method: &[u8],
    ) -> Option<Target<'_>> {
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
