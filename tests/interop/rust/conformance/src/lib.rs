//! What the Rust peers have in common: the command line of a conformance client, and the service of a conformance server.
//!
//! The cases themselves are in `ttrpc-conformance`. Each library has its own generated types and its own way to call. A
//! peer translates between those and the plain types of the cases, so that a case and the behaviour of a method are
//! written once.

mod client;
mod service;

pub use client::run_client;
pub use service::{Collecting, Service, as_asked, listen_address, peer_of};
pub use ttrpc_conformance::{
    Chunk, Collected, Connection, Connector, DETAIL_TYPE, Detail, Failure, Generate, Incoming,
    Inspection, Options, Outgoing, Peer, SERVICE, Statistics, Status, Upload,
};
