//! The program `ttrpc` as a user runs it. One file for each subject; together they link it once.

mod call;
mod common;
mod completion;
mod docs;
mod escapes;
mod explore;
mod greeter;
mod kernel;
mod learning;
mod load;
mod lying;
mod metrics;
mod refusal;
mod repl;
mod shims;
mod terminal;
mod texts;
mod top;
mod trace;
mod wrap;
