#![doc = include_str!("../README.md")]

mod files;
mod ids;

pub use self::{files::FILES, ids::is_identifier};

/// Everything but the .proto files: there where some protocol is.
macro_rules! with_protocols {
    ($($item:item)*) => {
        $(#[cfg(any(
            feature = "bootstrap",
            feature = "cgroups",
            feature = "cri",
            feature = "events",
            feature = "runc",
            feature = "sandbox",
            feature = "task"
        ))]
        $item)*
    };
}

with_protocols! {
    pub mod any;
    pub mod namespace;

    /// Generated code, nested as the packages are: paths such as `containerd::task::v3`. The other modules of this
    /// crate have shorter names for it.
    #[allow(missing_docs, reason = "the .proto files say what there is to say")]
    pub mod proto {
        ttrpc::include_proto!("containerd");
    }

    /// The descriptors of all protocols whose features are on, imports included: for reflection and for JSON.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/containerd.bin"));

    /// The descriptors of what a shim serves, for its reflection: those of [`FILE_DESCRIPTOR_SET`] but bootstrap and
    /// events, and without the fields' names in JSON where these are the usual ones. A third smaller.
    pub const SHIM_FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim.bin"));
}

#[cfg(feature = "events")]
pub mod events;
#[cfg(feature = "shims")]
pub mod shims;
#[cfg(feature = "task")]
pub mod task;
#[cfg(feature = "unix")]
pub mod unix;

#[cfg(feature = "bootstrap")]
pub use proto::containerd::runtime::bootstrap::v1 as bootstrap;
#[cfg(feature = "sandbox")]
pub use proto::containerd::runtime::sandbox::v1 as sandbox;
#[cfg(any(feature = "events", feature = "sandbox", feature = "task"))]
pub use proto::containerd::types;
#[cfg(feature = "runc")]
pub use proto::containerd::{linux::runc as legacy_runc, runc::v1 as runc};
#[cfg(feature = "cgroups")]
pub use proto::io::containerd::cgroups;
#[cfg(feature = "cri")]
pub use proto::runtime::v1 as cri;
#[cfg(feature = "runc")]
pub use proto::runtimeoptions::v1 as runtimeoptions;
