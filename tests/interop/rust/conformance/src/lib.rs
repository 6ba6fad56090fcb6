//! What the Rust peers have in common: the cases of a conformance client, and the service of a conformance server.
//!
//! Each library has its own generated types and its own way to call. A peer translates between those and the plain
//! types here, so that a case and the behaviour of a method are written once.

mod cases;
mod client;
mod connection;
mod message;
mod service;

pub use client::run_client;
pub use connection::{Connection, Connector, Incoming, Options, Outgoing, Upload};
pub use message::{
    Chunk, Collected, DETAIL_TYPE, Detail, Failure, Generate, Inspection, Peer, SERVICE,
    Statistics, Status, codes,
};
pub use service::{Collecting, Service, as_asked, listen_address, peer_of};
