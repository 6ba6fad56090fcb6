//! What calls of a client have unless they say something else, by method.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::Retry;
use crate::{Metadata, client::meta::CallOptions};

/// The timeout of calls without one, where others have one.
const NO_TIMEOUT: Duration = Duration::MAX;

/// What calls have unless they say something else. A field that is not set is left to what is less specific.
#[derive(Clone, Debug, Default)]
#[must_use = "a client gets it with `MethodDefaults`"]
pub struct CallDefaults {
    timeout: Option<Duration>,
    pub(super) retry: Option<Arc<Retry>>,
    metadata: Metadata,
    is_idempotent: Option<bool>,
}

impl CallDefaults {
    /// Makes defaults that set nothing.
    pub fn new() -> Self {
        CallDefaults::default()
    }

    /// Sets the time of a call, as [`Call::timeout`](crate::client::Call::timeout) sets it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets no limit of time, for a method that may wait for ever among others that may not.
    pub fn no_timeout(self) -> Self {
        self.timeout(NO_TIMEOUT)
    }

    /// Sets how a call that fails is made again; [`Retry::none`] for never.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry.into());
        self
    }

    /// Adds a pair of metadata. A key that a call has itself is left as the call has it.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.add_metadata(key, value);
        self
    }

    pub(super) fn has_metadata(&self, key: &str) -> bool {
        self.metadata.get(key).is_some()
    }

    pub(super) fn add_metadata(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.metadata.append(key, value);
    }

    /// Says whether a call may be executed more than once, in place of what the .proto says. A [`Retry`] makes a unary
    /// call that a server may have seen again only if it is idempotent. What a call says
    /// [itself](crate::client::Call::idempotent) comes before it.
    pub fn idempotent(mut self, is_idempotent: bool) -> Self {
        self.is_idempotent = Some(is_idempotent);
        self
    }

    /// Sets the fields that the other one has.
    fn merge(&mut self, other: CallDefaults) {
        self.timeout = other.timeout.or(self.timeout);
        self.retry = other.retry.or(self.retry.take());
        self.is_idempotent = other.is_idempotent.or(self.is_idempotent);
        let mut metadata = other.metadata;
        add_missing(&mut metadata, &self.metadata);
        self.metadata = metadata;
    }
}

/// The [`CallDefaults`] of a client's methods: of all, of each service, and of each method. The most specific one that has a field
/// wins, field by field, and what a call sets itself wins over all.
///
/// ```
/// # use std::time::Duration; use ttrpc::{Client, client::{CallDefaults, MethodDefaults, Retry}};
/// # fn example(client: Client) -> Client {
/// let defaults = MethodDefaults::new()
///     .all(CallDefaults::new().timeout(Duration::from_secs(10)))
///     .service("agent.v1.Agent", CallDefaults::new().metadata("tenant", "blue"))
///     .method("agent.v1.Agent", "Get", CallDefaults::new().retry(Retry::new()))
///     .method("agent.v1.Agent", "Wait", CallDefaults::new().no_timeout());
/// client.with_method_defaults(defaults)
/// # }
/// ```
///
/// # As a text
///
/// The same, and more, as a text that comes with the program's configuration. A line has a pattern, `*`, `Service/*` or
/// `Service/Method`, and fields; `#` begins a comment.
///
/// ```
/// # use ttrpc::client::MethodDefaults;
/// # fn main() -> Result<(), ttrpc::client::DefaultsError> {
/// let defaults: MethodDefaults = r#"
///     *                  timeout=10s
///     agent.v1.Agent/*   retry=3 idempotent=yes metadata.tenant=blue
///     agent.v1.Agent/Get retry=5 retry.codes=UNAVAILABLE,ABORTED retry.backoff=10ms..2s
///     agent.v1.Agent/Wait timeout=none retry=none metadata.note="two words"
///     budget tokens=50 ratio=0.2
/// "#.parse()?;
/// # Ok(()) }
/// ```
///
/// | field | value |
/// |---|---|
/// | `timeout` | a whole number and `us`, `ms`, `s`, `m` or `h`, or `none` |
/// | `retry` | the number of attempts in all, or `none` |
/// | `retry.codes` | names of codes, separated by commas; with `retry` on the same line |
/// | `retry.backoff` | the bound of the first pause, `..`, and that of the longest; with `retry` on the same line |
/// | `idempotent` | `yes` or `no` |
/// | `metadata.KEY` | a value, in double quotes if it has spaces; it cannot have such quotes itself |
///
/// The line `budget` is that of the [`RetryBudget`](super::RetryBudget) which all lines with `retry` share; without it they share a
/// default one.
#[derive(Clone, Debug, Default)]
#[must_use = "a client gets it with `Client::with_method_defaults`"]
pub struct MethodDefaults {
    all: CallDefaults,
    services: HashMap<String, ServiceDefaults>,
}

#[derive(Clone, Debug, Default)]
struct ServiceDefaults {
    all: CallDefaults,
    methods: HashMap<String, CallDefaults>,
}

impl MethodDefaults {
    /// Makes defaults that set nothing for any method.
    pub fn new() -> Self {
        MethodDefaults::default()
    }

    /// Sets what calls of all methods have. Fields that were set before and are not set here stay.
    pub fn all(mut self, defaults: CallDefaults) -> Self {
        self.all.merge(defaults);
        self
    }

    /// Sets what calls of a service's methods have, by its full protobuf name.
    pub fn service(mut self, service: impl Into<String>, defaults: CallDefaults) -> Self {
        self.services.entry(service.into()).or_default().all.merge(defaults);
        self
    }

    /// Sets what calls of one method have, by the full protobuf name of the service and the bare one of the method.
    pub fn method(
        mut self,
        service: impl Into<String>,
        method: impl Into<String>,
        defaults: CallDefaults,
    ) -> Self {
        let service = self.services.entry(service.into()).or_default();
        service.methods.entry(method.into()).or_default().merge(defaults);
        self
    }

    /// Returns what a method's calls have.
    pub(super) fn find(&self, service: &str, method: &str) -> Found<'_> {
        let service = self.services.get(service);
        let method = service.and_then(|service| service.methods.get(method));
        Found([method, service.map(|service| &service.all), Some(&self.all)])
    }
}

/// The defaults of a method, the most specific ones first.
pub(super) struct Found<'a>([Option<&'a CallDefaults>; 3]);

impl<'a> Found<'a> {
    pub(super) fn retry(&self) -> Option<&'a Arc<Retry>> {
        self.field(|defaults| defaults.retry.as_ref())
    }

    /// Sets what a call has not set itself.
    pub(super) fn complete(&self, options: &mut CallOptions) {
        if options.timeout.is_none() && !options.has_own_deadline {
            let timeout = self.field(|defaults| defaults.timeout);
            options.timeout = timeout.filter(|timeout| *timeout != NO_TIMEOUT);
        }
        if let Some(is_idempotent) = self.field(|defaults| defaults.is_idempotent) {
            options.is_method_idempotent = is_idempotent;
        }
        for defaults in self.0.into_iter().flatten() {
            if !defaults.metadata.is_empty() {
                add_missing(options.metadata_mut(), &defaults.metadata);
            }
        }
    }

    fn field<T>(&self, field: impl Fn(&'a CallDefaults) -> Option<T>) -> Option<T> {
        self.0.into_iter().flatten().find_map(field)
    }
}

/// Adds the values of keys that are missing.
fn add_missing(metadata: &mut Metadata, others: &Metadata) {
    let missing: Vec<_> = others.iter().filter(|(key, _)| metadata.get(key).is_none()).collect();
    for (key, value) in missing {
        metadata.append(key, value);
    }
}
