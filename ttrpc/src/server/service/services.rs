//! All services of a server, and the way from the names in a Request to the method that takes it.

use std::{fmt, sync::Arc};

use crate::server::{
    call::{
        handler::BoxHandler,
        interceptor::{Chain, Interceptor, SharedInterceptor},
        reasons::Refusal,
    },
    service::{
        fallback::{Fallback, make_fallback},
        routes::{Method, Routes},
    },
};
use crate::{
    Error, Name, Status,
    contain::Contained,
    observer::EndCause,
    proto::{control, frame::Flags, message::Request, stream::Kind},
};

/// Where a Request goes: a method of a service, or the fallback.
pub(in crate::server) struct Target<'a> {
    method: &'a Method,
    /// The interceptors around its calls.
    pub(in crate::server) chain: Option<&'a Chain>,
    /// The names of service and method that were called.
    pub(in crate::server) names: (Name, Name),
    /// Identifies the method, if the server has it.
    pub(in crate::server) method_id: Option<u64>,
}

impl Target<'_> {
    /// Checks whether a Request with these flags can call the method.
    ///
    /// # Errors
    /// INVALID_ARGUMENT.
    pub(in crate::server) fn check_flags(&self, flags: Flags) -> Result<(), Refusal> {
        let is_unary = self.method.kind == Kind::Unary;
        let wrong = match self.method_id {
            Some(_) if is_unary && flags.contains(Flags::REMOTE_OPEN) => {
                "is unary and was called as a stream"
            }
            Some(_) if !is_unary && !flags.open_a_stream() => "is a stream and was called as unary",
            _ => return Ok(()),
        };
        let (service, method) = &self.names;
        Err(Refusal::violation(format!("method {service}/{method} {wrong}")))
    }

    /// Returns whether messages of the client's have somewhere to go.
    pub(in crate::server) fn has_inbox(&self, flags: Flags) -> bool {
        match self.method_id {
            Some(_) => self.method.kind != Kind::Unary,
            None => flags.contains(Flags::REMOTE_OPEN),
        }
    }

    /// Returns whether the payload of a Request with these flags is a message. If not, the client streams its messages, and
    /// all of them follow.
    pub(in crate::server) fn has_message(&self, payload: &[u8], flags: Flags) -> bool {
        let may_stream = self.method.kind.client_streams() || flags.contains(Flags::REMOTE_OPEN);
        !(payload.is_empty() && may_stream)
    }

    /// Makes the handler of a call, for a method of this kind.
    pub(in crate::server) fn handler(&self) -> (BoxHandler, Kind) {
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

    /// Finds what takes the call of a Request.
    ///
    /// # Errors
    /// UNIMPLEMENTED, in the words of containerd's implementation; INVALID_ARGUMENT if a name is not UTF-8.
    pub(in crate::server) fn find(&self, request: &Request<'_>) -> Result<Target<'_>, Refusal> {
        if let Some(known) = self.find_method(request.service, request.method) {
            return Ok(known);
        }
        let (service, method) = request.names()?;
        // What the two sides of a connection use for themselves is not passed on: stream ids are those of the connection.
        match &self.fallback {
            Some(routes) if service != control::SERVICE => {
                let names = [service, method].map(|name| Name::from(Arc::<str>::from(name))).into();
                let (method, chain) = (&routes.methods[0], routes.chain.as_ref());
                Ok(Target { method, chain, names, method_id: None })
            }
            _ => {
                let status = Status::unimplemented(match self.service(request.service) {
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
        let names = (routes.service.clone(), method.name.clone());
        Some(Target { method, chain: routes.chain.as_ref(), names, method_id: Some(method.id) })
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
