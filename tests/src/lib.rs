//! What the tests share: the conformance service, a peer that is played frame by frame, and set-up.

pub mod conformance_suite;
pub mod gate;
pub mod harness;
pub mod process;
pub mod schedules;
pub mod service;
pub mod trend;
pub mod wire;

/// The conformance service, generated.
pub mod conformance {
    ttrpc::include_proto!("ttrpc.conformance.v1");
    /// The package's descriptor set, encoded.
    pub const FILE_DESCRIPTOR_SET: &[u8] = ttrpc_reflection::include_descriptor_set!("conformance");
}
