//! NRI plugins in Rust, and the runtime's side of NRI.
//!
//! NRI is containerd's and CRI-O's Node Resource Interface: plugins see pods and containers come and go, and change
//! containers as they are made: CPU pinning, devices, hooks, limits. Plugin and runtime speak ttrpc, each calling the
//! other over one connection, through a [multiplexer](mux).

pub mod mux;

/// NRI's protocol as it is on the wire, of version 0.12.5: messages, clients and servers.
#[allow(
    missing_docs,
    reason = "the protocol's messages are described where the .proto file has a comment"
)]
pub mod proto {
    ttrpc::include_proto!("nri.pkg.api.v1alpha1");

    /// The descriptors of the protocol, for tools that print messages: an encoded `google.protobuf.FileDescriptorSet`.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nri.bin"));
}
