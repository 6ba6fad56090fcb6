//! containerd's namespaces, which calls carry as metadata.

use ttrpc::{
    Context, Status, async_trait,
    client::{Answer, Interceptor, Next, OutgoingCall},
};

/// The key of the metadata.
pub const KEY: &str = "containerd-namespace-ttrpc";

/// Returns the namespace that a call is for.
pub fn of(ctx: &Context) -> Option<&str> {
    ctx.metadata().get(KEY)
}

/// Has a client say its namespace with each call: `client.with_interceptor(Namespace::new("k8s.io"))`.
#[derive(Clone, Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Makes the namespace of this name.
    pub fn new(name: impl Into<String>) -> Namespace {
        Namespace(name.into())
    }
}

#[async_trait]
impl Interceptor for Namespace {
    async fn intercept(&self, call: &mut OutgoingCall, next: Next<'_>) -> Result<Answer, Status> {
        call.metadata_mut().insert(KEY, self.0.as_str());
        next.run(call).await
    }
}
