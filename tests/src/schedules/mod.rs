//! Random schedules: connections to one server, their limits and the calls on them, drawn at random and run on
//! in-memory pipes under tokio's paused clock.
//!
//! Under that clock a run in which every task is idle jumps straight to the watchdog, so that a
//! deadlock is reported in microseconds and never mistaken for slowness.
//!
//! An observer watches: whenever nothing is under way, each call that has begun has ended, once.
//!
//! The same schedules are run with clients and servers that are wrong on purpose, each in one of the
//! ways of ttrpc's history: a test that does not catch them shows nothing.

mod caller;
pub mod client;
mod frames;
mod ledger;
mod model;
mod play;
mod run;
mod schedule;
mod server;

pub use ledger::LedgerFault;
pub use run::{Design, Violation, run};
pub use schedule::{CallKind, Consumer, Limits, Messages, PlannedCall, Schedule};
pub use server::ServerFault;
