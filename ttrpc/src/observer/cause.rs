//! Why connections and calls end.

use std::fmt;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionEndCause {
    /// The peer has closed it.
    ClosedByPeer,
    /// The program has: the last client was dropped, the server was shut down.
    ClosedHere,
    /// Reading or writing has failed, or the peer's bytes end within a frame.
    Failed,
    /// A client has used up its stream ids.
    IdsExhausted,
    /// Client: the server gave no sign of life, see [`Keepalive`](crate::client::Keepalive).
    KeepaliveTimeout,
    /// Server: no call was open and nothing arrived for [`max_idle`](field@crate::ServerConfig::max_idle).
    Idle,
}

impl ConnectionEndCause {
    /// Returns the name in lower case with underscores, for labels of metrics: `closed_by_peer`.
    pub fn name(self) -> &'static str {
        match self {
            ConnectionEndCause::ClosedByPeer => "closed_by_peer",
            ConnectionEndCause::ClosedHere => "closed_here",
            ConnectionEndCause::Failed => "failed",
            ConnectionEndCause::IdsExhausted => "ids_exhausted",
            ConnectionEndCause::KeepaliveTimeout => "keepalive_timeout",
            ConnectionEndCause::Idle => "idle",
        }
    }
}

impl fmt::Display for ConnectionEndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndCause {
    /// The handler has answered.
    Replied,
    /// The handler has failed with a status. On a client: the server has answered with a status other
    /// than DEADLINE_EXCEEDED, whatever its reason was.
    Failed,
    /// An interceptor of this side has refused the call, before it came to its handler or to the connection.
    Refused,
    /// A limit of this side has refused or ended the call.
    ///
    /// The limit is on calls or bytes in flight, threads of blocking handlers, stream ids, or the length of a message. Or
    /// a stream's inbox is full, or a client does not read its replies.
    Limit,
    /// Server: there is no such service or method.
    Unimplemented,
    /// Its deadline has passed on this side. A server's handler may have noticed first, and failed with
    /// DEADLINE_EXCEEDED at that moment.
    DeadlineHere,
    /// Client: the server says that the deadline has passed there.
    DeadlineAtPeer,
    /// The caller has dropped the call before its end. A server knows it from clients that
    /// [say so](crate::client::ConnectOptions::cancel_at_server).
    GivenUp,
    /// The connection has ended first, and not by this side.
    PeerGone,
    /// Server: the handler or an interceptor has panicked.
    Panicked,
    /// This side has closed the connection, or the server does not take calls any more.
    Shutdown,
    /// The peer's frames or messages are not what the protocol or the method's types allow.
    ProtocolViolation,
}

impl EndCause {
    /// Returns the name in lower case with underscores, for labels of metrics: `deadline_here`.
    pub fn name(self) -> &'static str {
        match self {
            EndCause::Replied => "replied",
            EndCause::Failed => "failed",
            EndCause::Refused => "refused",
            EndCause::Limit => "limit",
            EndCause::Unimplemented => "unimplemented",
            EndCause::DeadlineHere => "deadline_here",
            EndCause::DeadlineAtPeer => "deadline_at_peer",
            EndCause::GivenUp => "given_up",
            EndCause::PeerGone => "peer_gone",
            EndCause::Panicked => "panicked",
            EndCause::Shutdown => "shutdown",
            EndCause::ProtocolViolation => "protocol_violation",
        }
    }
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_a_connections_end_print_as_labels() {
        let names = [
            (ConnectionEndCause::ClosedByPeer, "closed_by_peer"),
            (ConnectionEndCause::ClosedHere, "closed_here"),
            (ConnectionEndCause::Failed, "failed"),
            (ConnectionEndCause::IdsExhausted, "ids_exhausted"),
            (ConnectionEndCause::KeepaliveTimeout, "keepalive_timeout"),
            (ConnectionEndCause::Idle, "idle"),
        ];
        for (cause, name) in names {
            assert_eq!((cause.name(), cause.to_string()), (name, name.to_owned()));
        }
    }
}
