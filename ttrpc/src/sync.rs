//! The locks and atomics of this crate, and what makes the tasks of its calls: the standard library's and
//! tokio's, or those of shuttle, under which `tests/interleavings` tries the orders in which threads may run.

#[cfg(shuttle)]
pub(crate) use shuttle::{
    future::spawn,
    sync::{Mutex, MutexGuard, atomic},
};
#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(shuttle))]
pub(crate) use tokio::spawn;
