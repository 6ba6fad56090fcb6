//! Events of containerd and its shims: the messages, their topics, and the service that takes them.

mod outbox;

use ttrpc::prost::{Message, Name};

pub use self::outbox::Outbox;
#[doc(inline)]
pub use crate::proto::containerd::{
    events::*,
    services::{events::ttrpc::v1 as publish, images::v1 as images},
    types::Envelope,
};

/// A message that is an event. A shim may have events of its own.
pub trait Event: Message + Name {
    /// The topic under which it is published, such as `/tasks/exit`.
    const TOPIC: &str;
}

macro_rules! topics {
    ($($($event:ident)::+ => $topic:literal,)*) => {
        $(impl Event for $($event)::+ {
            const TOPIC: &str = $topic;
        })*
    };
}

topics! {
    ContainerCreate => "/containers/create",
    ContainerUpdate => "/containers/update",
    ContainerDelete => "/containers/delete",
    ContentCreate => "/content/create",
    ContentDelete => "/content/delete",
    images::ImageCreate => "/images/create",
    images::ImageUpdate => "/images/update",
    images::ImageDelete => "/images/delete",
    NamespaceCreate => "/namespaces/create",
    NamespaceUpdate => "/namespaces/update",
    NamespaceDelete => "/namespaces/delete",
    SandboxCreate => "/sandboxes/create",
    SandboxStart => "/sandboxes/start",
    SandboxExit => "/sandboxes/exit",
    SnapshotPrepare => "/snapshot/prepare",
    SnapshotCommit => "/snapshot/commit",
    SnapshotRemove => "/snapshot/remove",
    TaskCreate => "/tasks/create",
    TaskStart => "/tasks/start",
    TaskDelete => "/tasks/delete",
    TaskExit => "/tasks/exit",
    TaskOom => "/tasks/oom",
    TaskExecAdded => "/tasks/exec-added",
    TaskExecStarted => "/tasks/exec-started",
    TaskPaused => "/tasks/paused",
    TaskResumed => "/tasks/resumed",
    TaskCheckpointed => "/tasks/checkpointed",
}
