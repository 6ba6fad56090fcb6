//! containerd's protocols under the names by which this crate calls them.

#[cfg(test)]
pub use ttrpc_containerd::any::unpack;
pub use ttrpc_containerd::{
    any::pack,
    bootstrap, cgroups, cri, events, runc, runtimeoptions, sandbox,
    task::{v2, v3, v3 as task},
};

/// Types that requests, replies and events share.
pub mod types {
    pub use ttrpc_containerd::{
        task::types::{ProcessInfo, Status},
        types::*,
    };
}
