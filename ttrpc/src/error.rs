//! Errors that are not a call's: connecting, binding, serving, and why a connection ended.
//!
//! A call fails with a [`Status`](crate::Status).

use std::{io, sync::Arc, time::Duration};

use crate::Name;

/// A client could not connect, or a server could not bind or serve.
///
/// Its text is a sentence with the address and the cause, for people: print it with `{}`. A call that fails has a
/// [`Status`](crate::Status).
///
/// ```
/// let error = ttrpc::server::Listener::bind("localhost:1234").unwrap_err();
/// assert!(matches!(error, ttrpc::Error::Address { .. }));
/// assert!(error.to_string().starts_with("address `localhost:1234`: "));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no [address](crate#addresses) that this crate understands.
    #[error("address `{address}`: {reason}")]
    #[non_exhaustive]
    Address {
        /// The text as it was given.
        address: String,
        /// The fault.
        reason: &'static str,
    },
    /// Connecting to a server failed.
    #[error("cannot connect to `{address}`: {source}")]
    #[non_exhaustive]
    Connect {
        /// The address as it was given.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The program's own way to connect failed, see
    /// [`ConnectOptions::connect_through`](crate::client::ConnectOptions::connect_through).
    #[error("cannot connect: {0}")]
    Custom(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The hypervisor of a `hvsock://` address closed the connection: nobody listens on that port of the virtual
    /// machine.
    #[error("cannot connect to `{address}`: nobody listens on this port in the virtual machine")]
    #[non_exhaustive]
    HandshakeRefused {
        /// The address as it was given.
        address: String,
    },
    /// The other side of a `hvsock://` address's socket does not answer as a hypervisor does, with the
    /// line `OK <number>`.
    #[error("cannot connect to `{address}`: the hypervisor answered `{answer}`: {reason}")]
    #[non_exhaustive]
    HandshakeAnswer {
        /// The address as it was given.
        address: String,
        /// The first 32 bytes of the answer at most, escaped, without a line feed.
        answer: String,
        /// The fault: another line, one that is too long, or a part of one.
        reason: &'static str,
    },
    /// The hypervisor of a `hvsock://` address did not answer in time.
    #[error(
        "cannot connect to `{address}`: the hypervisor gave {} within {limit:?}",
        part_of_answer(.answer)
    )]
    #[non_exhaustive]
    HandshakeTimeout {
        /// The address as it was given.
        address: String,
        /// The time that the handshake was given.
        limit: Duration,
        /// The part of the answer that had arrived, escaped. Usually nothing.
        answer: String,
    },
    /// No attempt to connect succeeded in the time that was given.
    #[error(
        "no connection within {limit:?}, after {}{last}{}",
        counted(*.attempts),
        before_that(.before.as_deref())
    )]
    #[non_exhaustive]
    ConnectTimeout {
        /// The time that was given.
        limit: Duration,
        /// How often it was tried.
        attempts: u32,
        /// The error of the last attempt. One that was under way when the time was over has met a timeout: of
        /// connecting ([`Error::Connect`]) or of the handshake ([`Error::HandshakeTimeout`]).
        #[source]
        last: Box<Error>,
        /// If that was a timeout: what the last attempt met that had an answer.
        before: Option<Box<Error>>,
    },
    /// Binding a socket failed.
    #[error("cannot listen on `{address}`: {source}")]
    #[non_exhaustive]
    Bind {
        /// The address as it was given.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another server is alive on the address.
    #[error("cannot listen on `{address}`: another server is listening there")]
    #[non_exhaustive]
    AddressInUse {
        /// The address as it was given.
        address: String,
    },
    /// Something that is not a socket is in the way, and is left alone.
    #[error("cannot listen on `{address}`: the path exists and is not a socket")]
    #[non_exhaustive]
    NotASocket {
        /// The address as it was given.
        address: String,
    },
    /// A listener that the program handed over cannot be used.
    #[error("cannot use the listener: {0}")]
    Listener(#[source] io::Error),
    /// Two services of the same name were added to one server.
    #[error("service `{0}` was added twice")]
    DuplicateService(Name),
    /// The server has neither a listener nor a connection.
    #[error("the server has nothing to serve: bind an address or hand over a connection")]
    NothingToServe,
    /// The server's policy, or its [connection hook](crate::server::ConnectionHook), refuses a connection that was
    /// handed over.
    #[error("the server refuses {peer}: {reason}")]
    #[non_exhaustive]
    PeerRefused {
        /// The peer, as far as it is known.
        peer: String,
        /// The reason of the policy or the hook.
        reason: String,
    },
    /// The server is shutting down or has ended.
    #[error("the server has ended, or is about to")]
    ServerEnded,
    /// The only connection of a server without listeners has failed.
    ///
    /// It ended within a frame, or could not be read or written.
    #[error("the connection of {peer} failed: {reason}")]
    #[non_exhaustive]
    ConnectionFailed {
        /// The peer, as far as it is known.
        peer: String,
        /// The failure.
        reason: String,
    },
}

/// Why a client's connection ended.
///
/// Cheap to clone. Every call that was pending gets it as the source of its status, whose code is
/// UNAVAILABLE.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The server closed the connection between two frames.
    #[error("the server closed the connection")]
    ClosedByServer,
    /// The server closed the connection in the middle of a frame.
    #[error("the server closed the connection in the middle of a frame")]
    Truncated,
    /// This side closed the connection, with `Client::close` or because its runtime ended.
    #[error("the connection was closed by this side")]
    ClosedLocally,
    /// The connection has used all its stream ids (2³¹) and its calls have ended. A new connection
    /// has new ones.
    #[error("the connection has used all its stream ids; connect anew")]
    IdsExhausted,
    /// The process is a child, forked after the connection was made, which is its parent's. The parent's goes on.
    #[error(
        "the connection is that of the process that this one was forked from; connect after the fork"
    )]
    Forked,
    /// A client that [reconnects](crate::client::ConnectOptions::reconnect) has no connection: the last attempt to make one
    /// has failed.
    #[error("{0}")]
    NoConnection(#[source] Arc<Error>),
    /// The server gave no sign of life for as long as [`Keepalive`](crate::client::Keepalive) allows.
    #[error("the server gave no sign of life in the time that the keepalive allows")]
    KeepaliveTimeout,
    /// Reading from the socket failed.
    #[error("reading from the server failed: {0}")]
    Read(#[source] Arc<io::Error>),
    /// Writing to the socket failed.
    #[error("writing to the server failed: {0}")]
    Write(#[source] Arc<io::Error>),
}

fn part_of_answer(answer: &str) -> String {
    match answer {
        "" => "no answer".to_owned(),
        part => format!("only `{part}` of an answer"),
    }
}

/// Separates the number of attempts from the error of the last one.
fn counted(attempts: u32) -> String {
    match attempts {
        1 => "1 attempt: ".to_owned(),
        _ => format!("{attempts} attempts; the last one: "),
    }
}

fn before_that(before: Option<&Error>) -> String {
    before.map(|error| format!("; before that: {error}")).unwrap_or_default()
}
