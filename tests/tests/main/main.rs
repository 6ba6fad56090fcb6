//! What users of the library notice, a module for each subject. A test's name begins with its modules.
//!
//! Here is what any number of tests may do at the same time in one process. What needs a process of its own
//! is a test binary of its own beside this one. `tests/README.md` says where a new test goes.

mod addresses;
mod arbitrary_bytes;
mod cancellation;
mod client;
mod conformance;
mod deadlines;
mod ends;
mod handlers;
mod metadata;
mod oversized;
mod payloads;
mod peers;
mod processes;
mod races;
mod readme;
mod schedules;
mod shutdown;
mod snapshots;
mod stalls;
mod thread_locals;
mod wakers;
mod wire;
