//! What all contenders share: the server's process, the client's process, the load, and what is
//! measured.
//!
//! A contender implements [`Contender`] and [`Connection`], or [`BlockingContender`] where it has
//! threads instead of tasks, and gets everything else from here. Errors panic: a benchmark that
//! went on after one would measure something else.

mod blocking;
mod meter;
mod open_loop;
mod options;
mod process;

use std::{
    future::Future,
    path::{Path, PathBuf},
};

pub use blocking::{run_blocking, serve_blocking_alone};
pub use meter::count_allocations_with;
pub use options::{Options, Role, Runtime, Workload};
pub use process::{run, serve_alone};

/// An implementation with tasks.
pub trait Contender: 'static {
    /// Its client.
    type Connection: Connection;

    /// Binds the path and serves until the process is killed.
    fn serve(path: PathBuf) -> impl Future<Output = ()> + Send;

    /// Connects to a server that is up.
    fn connect(path: PathBuf) -> impl Future<Output = Self::Connection> + Send;
}

/// One connection. Clones share it.
pub trait Connection: Clone + Send + Sync + 'static {
    /// Whether [`Connection::count`] and [`Connection::ping_pong`] are there.
    const HAS_STREAMS: bool = true;

    /// Whether calls in flight are made with [`Connection::echo_batch`] instead of one task each.
    const IN_BATCHES: bool = false;

    /// A unary call that gives its payload back.
    fn echo(&self, payload: Vec<u8>) -> impl Future<Output = Vec<u8>> + Send;

    /// Many calls, all written before the first reply is read.
    fn echo_batch(&self, _calls: usize, _payload: &[u8]) -> impl Future<Output = ()> + Send {
        async { unimplemented!("only what sets IN_BATCHES is asked for batches") }
    }

    /// A stream of this many replies of this size. Gives back the messages and bytes received.
    fn count(&self, _messages: u64, _size: u32) -> impl Future<Output = (u64, u64)> + Send {
        async { unimplemented!("only what has streams is asked for them") }
    }

    /// Rounds of one message there and one back on one stream. Adds each round's nanoseconds.
    fn ping_pong(
        &self,
        _rounds: u64,
        _payload: &[u8],
        _nanos: &mut Vec<u32>,
    ) -> impl Future<Output = ()> + Send {
        async { unimplemented!("only what has streams is asked for them") }
    }
}

/// An implementation with threads, of unary calls alone.
pub trait BlockingContender: 'static {
    /// Its client. Clones share the connection.
    type Connection: Clone + Send + 'static;

    /// Whether one connection carries several calls at a time.
    const IS_CONCURRENT: bool = true;

    /// Binds the path and serves until the process is killed.
    fn serve(path: PathBuf);

    /// Connects to a server that is up.
    fn connect(path: &Path) -> Self::Connection;

    /// A unary call that gives its payload back.
    fn echo(connection: &Self::Connection, payload: Vec<u8>) -> Vec<u8>;
}
