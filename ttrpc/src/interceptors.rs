//! Interceptors and an observer that most servers need: deadlines, limits, who may call what, an access log.
//!
#![cfg_attr(feature = "tracing", doc = "```")]
#![cfg_attr(not(feature = "tracing"), doc = "```ignore")]
//! use std::time::Duration;
//! use ttrpc::{
//!     Server,
//!     interceptors::{AccessLog, Authorize, ConcurrencyLimit, Deadlines},
//!     server::PeerPolicy,
//! };
//!
//! let server = Server::builder()
//!     .observe(AccessLog::default())
//!     .intercept(
//!         Authorize::deny_all()
//!             .allow(PeerPolicy::same_user().or(PeerPolicy::root()))
//!             .allow_service("grpc.health.v1.Health", PeerPolicy::anybody()),
//!     )
//!     .intercept(Deadlines::default().default_timeout(Duration::from_secs(10)))
//!     .intercept(ConcurrencyLimit::new(100));
//! # drop(server);
//! ```

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::{
    Context, Status,
    observer::EndCause,
    server::{Interceptor, Next, PeerPolicy},
};

/// Sets a default deadline for calls that have none, and a maximum for all. The handler sees it, and the call ends
/// with DEADLINE_EXCEEDED when it passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadlines {
    default: Option<Duration>,
    max: Option<Duration>,
}

impl Deadlines {
    /// Sets the timeout of calls whose client sent none. It runs from the moment when the interceptor starts.
    #[must_use]
    pub fn default_timeout(mut self, timeout: Duration) -> Self {
        self.default = Some(timeout);
        self
    }

    /// Sets the longest timeout of any call, counted in the same way. It also holds for calls whose client sent none.
    #[must_use]
    pub fn max_timeout(mut self, timeout: Duration) -> Self {
        self.max = Some(timeout);
        self
    }
}

#[async_trait]
impl Interceptor for Deadlines {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        let default = self.default.filter(|_| ctx.deadline().is_none());
        let limit = [default, self.max].into_iter().flatten().min();
        if let Some(deadline) = limit.and_then(|limit| Instant::now().checked_add(limit)) {
            ctx.shorten_deadline(deadline);
        }
        next.run(ctx).await
    }
}

/// Limits the calls that run at a time, of the server or the service that it is added to.
///
/// Further calls are refused with RESOURCE_EXHAUSTED, at once or after a wait. Waiting is first come, first served.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    permits: Semaphore,
    patience: Duration,
}

impl ConcurrencyLimit {
    /// Makes a limit of so many calls at a time. Further ones are refused at once.
    pub fn new(calls: usize) -> Self {
        let permits = Semaphore::new(calls.min(Semaphore::MAX_PERMITS));
        ConcurrencyLimit { permits, patience: Duration::ZERO }
    }

    /// Makes further calls wait for this long, within their deadlines, before they are refused. A call that waits
    /// counts for [`ServerConfig::max_calls`](crate::ServerConfig::max_calls).
    #[must_use]
    pub fn wait_for(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

#[async_trait]
impl Interceptor for ConcurrencyLimit {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        let permit = match self.patience.is_zero() {
            true => self.permits.try_acquire().ok(),
            false => timeout(self.patience, self.permits.acquire()).await.ok().and_then(Result::ok),
        };
        let Some(_permit) = permit else {
            ctx.set_failure_cause(EndCause::Limit);
            return Err(Status::resource_exhausted("too many calls run already"));
        };
        next.run(ctx).await
    }
}

/// Decides which peers may call what, by their credentials or addresses.
///
/// A rule for a method comes before one for its service, and that before the rule for everything. Peers that are not
/// allowed get PERMISSION_DENIED.
#[derive(Clone, Debug, Default)]
pub struct Authorize {
    all: Option<PeerPolicy>,
    services: HashMap<String, ServiceRules>,
}

#[derive(Clone, Debug, Default)]
struct ServiceRules {
    all: Option<PeerPolicy>,
    methods: HashMap<String, PeerPolicy>,
}

impl Authorize {
    /// Refuses every call, except those that later rules allow.
    pub fn deny_all() -> Self {
        Authorize::default()
    }

    /// Allows these peers everything that no other rule is about.
    #[must_use]
    pub fn allow(mut self, peers: PeerPolicy) -> Self {
        self.all = Some(peers);
        self
    }

    /// Allows these peers a service, by its full protobuf name.
    #[must_use]
    pub fn allow_service(mut self, service: impl Into<String>, peers: PeerPolicy) -> Self {
        self.services.entry(service.into()).or_default().all = Some(peers);
        self
    }

    /// Allows these peers a method of a service.
    #[must_use]
    pub fn allow_method(
        mut self,
        service: impl Into<String>,
        method: impl Into<String>,
        peers: PeerPolicy,
    ) -> Self {
        self.services.entry(service.into()).or_default().methods.insert(method.into(), peers);
        self
    }

    /// The rule for a method.
    fn rule(&self, service: &str, method: &str) -> Option<&PeerPolicy> {
        let rules = self.services.get(service);
        let of_method = rules.and_then(|rules| rules.methods.get(method));
        of_method.or_else(|| rules?.all.as_ref()).or(self.all.as_ref())
    }
}

#[async_trait]
impl Interceptor for Authorize {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        let rule = self.rule(ctx.service(), ctx.method());
        if !rule.is_some_and(|peers| peers.allows(ctx.peer())) {
            let (service, method) = (ctx.service(), ctx.method());
            let denied = format!("{} may not call {service}/{method}", ctx.peer());
            return Err(Status::permission_denied(denied));
        }
        next.run(ctx).await
    }
}

/// Logs one line for each call when it has ended, at level INFO with the target `ttrpc::access`. It is an
/// observer, for servers and for clients.
///
/// The line is logged in the call's span, and its field `trace_id` is that of the call's metadata `traceparent` (W3C
/// Trace Context), so logs and traces can be joined. Calls that succeed have no field `error`, and those that were made once no field
/// `attempts`.
///
/// A client can make up the names of methods that a server does not have, and of calls that a fallback takes. Names
/// and message of such calls are cut to 500 characters each.
#[cfg(feature = "tracing")]
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessLog {}

#[cfg(feature = "tracing")]
impl crate::observer::Observer for AccessLog {
    fn call_ended(&self, call: &crate::observer::CallInfo<'_>, end: &crate::observer::CallEnd<'_>) {
        tracing::info!(
            target: "ttrpc::access",
            trace_id = trace_id(call.metadata),
            side = call.side.name(),
            service = cut(call, call.service),
            method = cut(call, call.method),
            peer = %call.peer,
            code = %end.code,
            cause = %end.cause,
            error = (!end.message.is_empty()).then(|| cut(call, end.message)),
            attempts = (end.attempts > 1).then_some(end.attempts),
            duration = ?end.duration(),
            bytes_received = end.traffic.bytes_received,
            bytes_sent = end.traffic.bytes_sent,
        );
    }
}

/// Returns the trace id of a `traceparent`: version, trace id, parent id and flags, in hexadecimal digits.
#[cfg(feature = "tracing")]
fn trace_id(metadata: &crate::Metadata) -> Option<&str> {
    const LEN: usize = 32;
    let trace_id = metadata.get("traceparent")?.split('-').nth(1)?;
    let is_valid = trace_id.len() == LEN && trace_id.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_valid.then_some(trace_id)
}

/// Shortens and escapes a text that a client may have made up, for the log.
#[cfg(feature = "tracing")]
fn cut<'a>(call: &crate::observer::CallInfo<'_>, text: &'a str) -> &'a str {
    const MAX_CHARS: usize = 500;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) if !call.is_known => &text[..end],
        _ => text,
    }
}
