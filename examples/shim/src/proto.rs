//! runc's options, as `build.rs` generated them.

#![allow(missing_docs, reason = "the .proto file says what there is to say")]

pub use containerd::{
    linux::runc as legacy,
    runc::v1::{CheckpointOptions, Options},
};

pub mod containerd {
    pub mod linux {
        pub mod runc {
            ttrpc::include_proto!("containerd.linux.runc");
        }
    }
    pub mod runc {
        pub mod v1 {
            ttrpc::include_proto!("containerd.runc.v1");
        }
    }
}
