//! The multiplexer: several ttrpc connections over one, as NRI has them.
//!
//! A runtime and a plugin share one socket, the trunk, and each is the other's client. So there are two logical
//! connections: on [`ConnId::PLUGIN`] the runtime calls the plugin, on [`ConnId::RUNTIME`] the plugin calls the runtime.
//! A mux frame is the number of its logical connection and the length of its payload, 4 bytes each in network order, and
//! the payload. There is neither flow control nor a frame that closes a logical connection.
//!
//! ```
//! # use ttrpc::{Client, ClientConfig, Connection, Error, Server, server::{Routes, Service}};
//! # use ttrpc_nri::mux::{ConnId, Mux, MuxConfig};
//! # struct Plugin;
//! # impl Service for Plugin { fn into_routes(self) -> Routes { Routes::new("p") } }
//! # async fn example(trunk: Connection) -> Result<(), Error> {
//! let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
//! let (mux, [plugin, runtime]) = Mux::start(trunk, MuxConfig::default(), ids);
//! let server = Server::builder().add_service(Plugin).connection(plugin).build()?;
//! let client = Client::from_connection(runtime, ClientConfig::default());
//! // … until the peer hangs up:
//! server.serve().await?;
//! let why = mux.closed().await;
//! # Ok(()) }
//! ```
//!
//! # Who waits for whom
//!
//! The order of waits that keeps ttrpc from deadlocks holds for each logical connection. A multiplexer puts two tasks
//! between it and the socket:
//!
//! ```text
//! sender of a logical connection → trunk writer → (socket) → trunk reader → nobody
//! ```
//!
//! - The trunk reader waits for the socket alone. It appends what it reads to the queue of its logical connection, and
//!   never waits for capacity there. Otherwise there would be a cycle. A server stops reading at its limits while its
//!   handlers wait for replies. It would keep the trunk reader from these replies on the other logical connection.
//! - The trunk writer waits for the socket alone. It takes whole mux frames from the logical connections in rotation.
//!   So a logical connection that ends within a message, or has nothing to write, blocks no other.
//! - A sender waits for the trunk writer, while more than [`MuxConfig::unsent_bytes`] of its own wait to be written. That is
//!   the backpressure that a sender on a socket of its own would get.
//!
//! So each wait is for what stands to its right, and the last one waits for nobody: there is no cycle.
//!
//! # Memory
//!
//! A queue that nobody waits for needs a bound. [`MuxConfig::unread_bytes`] bounds each logical connection's. The trunk
//! ends when it is exceeded, with [`MuxError::Unread`], which names the logical connection and the bound. Bytes cannot
//! be left out of a stream, and the peer would never hear that one logical connection has ended. In NRI a runtime has
//! one request in flight to each plugin, and a plugin's replies are bounded by its calls. So only a peer that violates
//! the protocol, or a program that has stopped reading, reaches a bound of several messages.
//!
//! For each logical connection a multiplexer holds at most twice `unread_bytes` (queues double as they grow),
//! `unsent_bytes`, and two messages of 4 MiB on their way out. Two buffers of 64 KiB come on top.
//!
//! # What is written
//!
//! A peer in Go takes a mux frame whole or fails with ENOMEM. Its ttrpc reads into a buffer of 4,096 bytes, or, when
//! that is empty, the rest of one message's payload directly. It holds 256 frames for a logical connection and ends the
//! trunk at the next one. So this multiplexer follows the ttrpc frames that are written through it, and never cuts them
//! otherwise:
//!
//! - A ttrpc frame of up to 4,096 bytes with its header shares a mux frame of up to 4,096 bytes with its neighbours.
//! - Of a longer one the header is in a mux frame of up to 4,096 bytes, and the payload in a mux frame of its own.
//!
//! Every message takes two mux frames at most, and those that are sent together fewer. Read is any cut up to what Go's
//! multiplexer takes: 4,194,314 bytes, the longest ttrpc frame.

mod layout;
mod logical;
mod queue;
#[cfg(test)]
mod schedules;
mod trunk;

use std::{fmt, io, sync::Arc};

use tokio::task::JoinSet;
use ttrpc::Connection;

use logical::Logical;
use queue::Queues;

/// Bytes of the longest ttrpc frame: a header and 4 MiB. Go's multiplexer sends and takes no longer payload.
pub const MAX_PAYLOAD: usize = layout::TTRPC_HEADER + (4 << 20);

/// The number of a logical connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(u32);

impl ConnId {
    /// The runtime calls, the plugin serves.
    pub const PLUGIN: ConnId = ConnId(1);
    /// The plugin calls, the runtime serves.
    pub const RUNTIME: ConnId = ConnId(2);

    /// Names a logical connection. `None` for 0, which is reserved.
    pub fn new(number: u32) -> Option<ConnId> {
        (number != 0).then_some(ConnId(number))
    }

    /// The number on the wire.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ConnId::PLUGIN => f.write_str("the plugin's connection (1)"),
            ConnId::RUNTIME => f.write_str("the runtime's connection (2)"),
            ConnId(number) => write!(f, "connection {number}"),
        }
    }
}

/// Limits of a multiplexer, for each logical connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MuxConfig {
    /// Bytes that have arrived and were not read. When there are more the trunk ends, with [`MuxError::Unread`].
    ///
    /// 32 MiB by default: eight of the longest messages. Less than one of them, [`MAX_PAYLOAD`], counts as that.
    pub unread_bytes: usize,
    /// Bytes that wait to be written to the trunk. While there are more the logical connection takes no more.
    ///
    /// 64 KiB by default: as much as a sender writes together.
    pub unsent_bytes: usize,
}

impl Default for MuxConfig {
    fn default() -> Self {
        MuxConfig { unread_bytes: 32 << 20, unsent_bytes: 64 << 10 }
    }
}

impl MuxConfig {
    /// Sets [`MuxConfig::unread_bytes`].
    #[must_use]
    pub fn unread_bytes(mut self, bytes: usize) -> Self {
        self.unread_bytes = bytes;
        self
    }

    /// Sets [`MuxConfig::unsent_bytes`].
    #[must_use]
    pub fn unsent_bytes(mut self, bytes: usize) -> Self {
        self.unsent_bytes = bytes;
        self
    }
}

/// Why a multiplexer ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MuxError {
    /// The peer closed the trunk after a whole mux frame.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer closed the trunk inside of a mux frame.
    #[error("the peer closed the connection in the middle of a frame")]
    Truncated,
    /// The trunk could not be read.
    #[error("reading from the connection failed: {0}")]
    Read(#[source] Arc<io::Error>),
    /// The trunk could not be written.
    #[error("writing to the connection failed: {0}")]
    Write(#[source] Arc<io::Error>),
    /// More was left unread than [`MuxConfig::unread_bytes`] allows.
    #[error(
        "{connection} has more than {limit} unread bytes, the bound `MuxConfig::unread_bytes`: its reader has stopped"
    )]
    Unread {
        /// The logical connection that nobody reads.
        connection: ConnId,
        /// The bound.
        limit: usize,
    },
    /// A mux frame is longer than [`MAX_PAYLOAD`]: the peer does not speak this protocol.
    #[error(
        "a mux frame of {len} bytes for connection number {connection} exceeds {MAX_PAYLOAD}: the peer is no NRI multiplexer"
    )]
    FrameTooLong {
        /// The bytes in the place of the logical connection's number.
        connection: u32,
        /// The length that the frame claims.
        len: u32,
    },
    /// The program closed or dropped the multiplexer.
    #[error("the connection was closed here")]
    ClosedLocally,
}

impl MuxError {
    fn kind(&self) -> io::ErrorKind {
        match self {
            MuxError::Closed | MuxError::ClosedLocally => io::ErrorKind::BrokenPipe,
            MuxError::Truncated => io::ErrorKind::UnexpectedEof,
            MuxError::Read(error) | MuxError::Write(error) => error.kind(),
            MuxError::Unread { .. } => io::ErrorKind::OutOfMemory,
            MuxError::FrameTooLong { .. } => io::ErrorKind::InvalidData,
        }
    }
}

impl From<MuxError> for io::Error {
    fn from(error: MuxError) -> Self {
        io::Error::new(error.kind(), error)
    }
}

/// The state of a logical connection at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogicalSnapshot {
    /// Which one it is.
    pub id: ConnId,
    /// True while the program has it. What arrives for one that was dropped is dropped.
    pub is_open: bool,
    /// Bytes that have arrived and were not read.
    pub unread_bytes: usize,
    /// Bytes that wait to be written to the trunk or are being written, with the headers of their mux frames.
    pub unsent_bytes: usize,
    /// Bytes of payload that have arrived so far.
    pub received_bytes: u64,
    /// Mux frames that were written so far.
    pub sent_frames: u64,
}

/// One trunk and its logical connections. Owns the two tasks that serve them: when it is dropped they end, and the
/// logical connections with them.
#[derive(Debug)]
#[must_use = "the logical connections end when it is dropped"]
pub struct Mux {
    queues: Arc<Queues>,
    tasks: JoinSet<()>,
}

impl Mux {
    /// Opens these logical connections over a trunk. What arrives for others is dropped.
    ///
    /// Each is a [`Connection`], for a [`Client`](ttrpc::Client) or a [`Server`](ttrpc::Server), with the trunk's peer. Only
    /// ttrpc's frames can be written to it. It ends with the trunk; the peer does not notice when it is dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and if a logical connection is named twice.
    pub fn start<const N: usize>(
        trunk: impl Into<Connection>,
        config: MuxConfig,
        ids: [ConnId; N],
    ) -> (Mux, [Connection; N]) {
        let trunk = trunk.into();
        let peer = trunk.peer().clone();
        let queues = Arc::new(Queues::new(config, &ids));
        let connections =
            ids.map(|id| Connection::new(Logical::new(queues.clone(), id)).with_peer(peer.clone()));
        let (reader, writer) = tokio::io::split(trunk);
        let mut tasks = JoinSet::new();
        tasks.spawn(trunk::read(reader, queues.clone()));
        tasks.spawn(trunk::write(writer, queues.clone()));
        (Mux { queues, tasks }, connections)
    }

    /// Waits until the trunk has ended and returns why.
    ///
    /// Cancel safe.
    pub async fn closed(&self) -> MuxError {
        self.queues.ended().await
    }

    /// Why the trunk has ended, if it has.
    pub fn close_reason(&self) -> Option<MuxError> {
        self.queues.end_reason()
    }

    /// Closes the trunk now, and the logical connections with it.
    pub fn close(&self) {
        self.queues.end(MuxError::ClosedLocally);
    }

    /// Writes what the logical connections have handed over, then closes the trunk.
    ///
    /// A peer that does not read holds this up without end: give it a timeout where that may be. Dropped before, it closes the trunk
    /// at once.
    pub async fn shutdown(mut self) {
        self.queues.finish();
        self.queues.ended().await;
        self.tasks.shutdown().await;
    }

    /// Returns the state of each logical connection, by number.
    pub fn snapshot(&self) -> Vec<LogicalSnapshot> {
        self.queues.snapshot()
    }

    pub(crate) fn monitor(&self) -> MuxMonitor {
        MuxMonitor(self.queues.clone())
    }
}

/// Takes snapshots of a multiplexer that somebody else owns.
#[derive(Clone)]
pub(crate) struct MuxMonitor(Arc<Queues>);

impl MuxMonitor {
    pub(crate) fn snapshot(&self) -> Vec<LogicalSnapshot> {
        self.0.snapshot()
    }

    #[cfg(test)]
    pub(crate) fn of_no_mux() -> Self {
        MuxMonitor(Arc::new(Queues::new(MuxConfig::default(), &[])))
    }
}

impl Drop for Mux {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
