//! Floors: what the runtime and the sockets allow, without a library.
//!
//! The bytes of their unary calls are those of real ttrpc calls. What a library has beside that is
//! missing: dispatch, metadata, deadlines, cancellation, limits, backpressure.
//!
//! - [`Blocking`]: threads and blocking sockets, one call at a time.
//! - [`Batch`]: tokio; all calls in flight are one write and one read, in lockstep.
//! - [`MuxInline`], [`MuxSpawn`], [`MuxDefer`]: tokio; independent callers share a connection, and
//!   one task per side does its reading and writing. The server answers in that task, or in a task
//!   per call; the last one also lets tasks that are about to answer run before it writes.

mod batch;
mod blocking;
mod mux;
mod wire;

pub use batch::Batch;
pub use blocking::Blocking;
pub use mux::{MuxDefer, MuxInline, MuxSpawn};
