//! The conformance cases of the API: calls that any client library can make of any server of the conformance service.
//!
//! A library takes part by a [`Connector`], which translates between its own types and the plain ones here. So each case
//! is written once: this library's client plays it in `ttrpc-tests`, those of others in `tests/interop/rust`.

mod bare;
mod cases;
mod connection;
mod message;
mod trial;
mod verdict;

pub use cases::{CASES, Case, Play, unique_key};
pub use connection::{Connection, Connector, Incoming, Options, Outgoing, Result, Upload};
pub use message::{
    Chunk, Collected, DETAIL_TYPE, Detail, Failure, Generate, Inspection, Peer, SERVICE,
    Statistics, Status, codes,
};
pub use trial::{Trial, within};
pub use verdict::{Outcome, Verdict, describe, fail, passed};
