//! The locks and atomics of this crate: the standard library's, or those of shuttle, under which
//! `tests/interleavings` tries the orders in which threads may run.

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
