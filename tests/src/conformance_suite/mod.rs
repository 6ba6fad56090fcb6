//! The conformance suite: named cases that a ttrpc server has to pass, and cases for our own client.
//!
//! - [`ttrpc_conformance::CASES`] go through this library's public API, so they judge the server and the client.
//! - [`wire_cases`] play a client frame by frame with a codec of their own, so they judge a server
//!   alone. They are data: a line a case.
//! - [`client_cases`] play a server frame by frame, so they judge this library's client alone. They
//!   are data too, and run in this process.
//! - Those of calls that are given up need this library's client, and judge what any server makes of it.
//! - [`answers`] play a server, too, in a process of its own for the client of any implementation.
//!
//! The cases of the API, the flags and the lines of JSON are those of the foreign peers
//! under `tests/interop`, so that each client can be put in another one's place.

pub mod answers;
pub mod client_cases;
mod command;
mod given_up;
mod own;
mod payload;
mod report;
mod run;
mod server;
pub mod wire_cases;

pub use command::{ClientArguments, ServerArguments, run_client, run_server};
pub use own::trial;
pub use report::{Report, Row};
pub use run::{Case, all_cases, matches, run_case};
pub use ttrpc_conformance::{Outcome, Play, Trial, Verdict, fail, passed};
