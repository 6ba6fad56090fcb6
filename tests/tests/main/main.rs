//! What users of the library notice, a module for each subject. A test's name begins with its modules.
//!
//! Here is what any number of tests may do at the same time in one process. What needs a process of its own
//! is a test binary of its own beside this one. `tests/README.md` says where a new test goes.

mod accepting;
mod addresses;
mod arbitrary_bytes;
mod blocking_client;
mod blocking_handlers;
mod blocking_threads;
mod cancellation;
mod client;
mod codegen;
mod conformance;
mod connecting;
mod deadlines;
mod debug;
mod ends;
mod given_up;
mod guide;
mod handlers;
mod hybrid_vsock;
mod idle;
mod interception;
mod keepalive;
mod key_provider;
mod metadata;
mod method_defaults;
mod migration;
mod outside_of_a_runtime;
mod oversized;
mod pages;
mod payloads;
mod peers;
mod processes;
mod proto;
mod races;
mod raw;
mod readme;
mod reconnecting;
mod retries;
mod schedules;
mod shutdown;
mod snapshots;
mod stalls;
mod testing;
mod thread_locals;
mod tls;
mod transports;
mod wakers;
mod wire;
mod writer_shutdown;
