//! containerd's interface as `build.rs` generated it, nested as its packages are.

#![allow(missing_docs, reason = "the .proto files say what there is to say")]

pub mod containerd {
    pub mod task {
        ttrpc::include_proto!("containerd.task");

        pub mod v2 {
            ttrpc::include_proto!("containerd.task.v2");
        }
        pub mod v3 {
            ttrpc::include_proto!("containerd.task.v3");
        }
    }
    pub mod types {
        ttrpc::include_proto!("containerd.types");
    }
    pub mod events {
        ttrpc::include_proto!("containerd.events");
    }
    pub mod services {
        pub mod events {
            pub mod ttrpc {
                pub mod v1 {
                    ::ttrpc::include_proto!("containerd.services.events.ttrpc.v1");
                }
            }
        }
    }
    pub mod runc {
        pub mod v1 {
            ttrpc::include_proto!("containerd.runc.v1");
        }
    }
    pub mod runtime {
        pub mod sandbox {
            pub mod v1 {
                ttrpc::include_proto!("containerd.runtime.sandbox.v1");
            }
        }
        pub mod bootstrap {
            pub mod v1 {
                ttrpc::include_proto!("containerd.runtime.bootstrap.v1");
            }
        }
    }
}

pub mod cri {
    ttrpc::include_proto!("runtime.v1");
}

pub mod runtimeoptions {
    ttrpc::include_proto!("runtimeoptions.v1");
}

pub mod io {
    pub mod containerd {
        pub mod cgroups {
            pub mod v1 {
                ttrpc::include_proto!("io.containerd.cgroups.v1");
            }
            pub mod v2 {
                ttrpc::include_proto!("io.containerd.cgroups.v2");
            }
        }
    }
}

pub use containerd::{
    events,
    runc::v1 as runc,
    runtime::{bootstrap::v1 as bootstrap, sandbox::v1 as sandbox},
    services::events::ttrpc::v1 as publish,
    task::{self, v2, v3},
    types,
};
pub use io::containerd::cgroups;
use ttrpc::{
    Any,
    prost::{Message, Name},
};

/// Packs a message under its bare name, as containerd does.
pub fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::full_name(), value: message.encode_to_vec() }
}

#[cfg(test)]
/// Unpacks a message if it is of type `M`, under its bare name or behind a domain.
pub fn unpack<M: Message + Name + Default>(any: &Any) -> Option<M> {
    let name = any.type_url.rsplit('/').next()?;
    (name == M::full_name()).then(|| M::decode(any.value.as_slice()).ok()).flatten()
}
