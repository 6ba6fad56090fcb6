//! What a client does to its calls beyond making them: interceptors, retries, and defaults by method.
//!
//! A client without any of it has no [`Policies`], and its calls pay a branch. Otherwise a call looks up its method's
//! defaults when it starts. Only calls with a [`Retry`] or an interceptor leave the fast path.

mod budget;
mod defaults;
mod retry;
mod table;

use std::sync::Arc;

pub use self::{
    budget::RetryBudget,
    defaults::{CallDefaults, MethodDefaults},
    retry::Retry,
    table::DefaultsError,
};
use super::{
    Call, Client,
    meta::{Around, CallHead, Policies},
};

impl Policies {
    /// Adds what the call's method has by default to its options. Returns what runs around the call, if anything does.
    pub(super) fn apply(self: Arc<Self>, call: &mut CallHead) -> Option<Around> {
        let mut retry = self.retry.as_ref();
        if let Some(defaults) = &self.defaults {
            let found = defaults.find(&call.service, &call.method);
            found.complete(&mut call.options);
            retry = retry.or(found.retry());
        }
        let retry = retry.filter(|retry| retry.is_any()).cloned();
        let is_direct = retry.is_none() && self.interceptors.is_empty();
        (!is_direct).then_some(Around { policies: self, retry })
    }
}

impl Client {
    /// Makes each call that this client makes from now on again as this policy says, unless the call
    /// [says another one](Call::retry).
    ///
    /// Other clones of the client are as they were; all share the connection, and those with this policy its budget.
    ///
    /// ```
    /// # use ttrpc::{Client, client::Retry};
    /// # fn example(client: Client) {
    /// let persistent = client.clone().with_retry(Retry::new().max_attempts(5));
    /// # }
    /// ```
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        self.with_options(|options| options.policies_mut().retry = Some(retry.into()))
    }

    /// Uses these defaults, by method, for each call that this client makes from now on, in place of those that it had. What the
    /// client sets itself ([`with_timeout`](Client::with_timeout), [`with_metadata`](Client::with_metadata),
    /// [`with_retry`](Client::with_retry)) or the call comes before them.
    ///
    /// Other clones of the client are as they were; all share the connection.
    #[must_use]
    pub fn with_method_defaults(self, defaults: MethodDefaults) -> Self {
        self.with_options(|options| options.policies_mut().defaults = Some(defaults.into()))
    }
}

impl<K, Req, Resp> Call<K, Req, Resp> {
    /// Makes the call again as this policy says, in place of [the client's](super::Client::with_retry) and
    /// [the method's](super::MethodDefaults).
    pub fn retry(self, retry: Retry) -> Self {
        self.with(|options| options.policies_mut().retry = Some(retry.into()))
    }

    /// Marks the call as idempotent: a [`Retry`] may make it again when a server may have seen it.
    ///
    /// It overrides the .proto and [the method's defaults](super::CallDefaults::idempotent).
    pub fn idempotent(self) -> Self {
        self.with(|options| options.is_idempotent = true)
    }

    /// Says that the .proto declares the method idempotent. Generated clients call this.
    pub fn declared_idempotent(self) -> Self {
        self.with(|options| options.is_method_idempotent = true)
    }
}
