//! The life of one stream, as a state machine.
//!
//! ```text
//!                      ┌────── local closes ──────┐
//!            ┌── Open ─┤                          ├─ Closed
//!            │         └────── remote closes ─────┘    ▲
//!            │  LocalClosed ───── remote closes ───────┤
//!            │  RemoteClosed ──── local closes ────────┤
//!            └──────────── a Response ─────────────────┘
//! ```
//!
//! Both sides use the same machine, each from its own point of view: a client's unary stream is
//! born `LocalClosed`, a server's `RemoteClosed`. Every transition that is not listed is a
//! [`Violation`]; what becomes of one is for the [`table`](super::table) to say.

use super::frame::Flags;

/// The messages that a stream carries, as its Request opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One request, one Response.
    Unary,
    /// One request, many replies.
    ServerStreaming,
    /// Many requests, one Response.
    ClientStreaming,
    /// Many requests, many replies.
    Bidirectional,
}

impl Kind {
    /// Returns whether the client may send Data after its Request.
    pub fn client_streams(self) -> bool {
        matches!(self, Kind::ClientStreaming | Kind::Bidirectional)
    }

    /// Returns whether the server answers with Data frames.
    pub fn server_streams(self) -> bool {
        matches!(self, Kind::ServerStreaming | Kind::Bidirectional)
    }
}

/// Which sides have said that they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    Open,
    LocalClosed,
    RemoteClosed,
    Closed,
}

/// The content of a Data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataEvent {
    /// The frame's data is a message, be it empty.
    pub has_message: bool,
    /// The remote is done with this stream.
    pub remote_closed: bool,
}

/// A frame that the stream's past does not allow; the text says which rule it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub &'static str);

/// One stream's state.
#[derive(Clone, Debug)]
pub struct Stream {
    state: StreamPhase,
    remote_sends_data: bool,
}

impl Stream {
    /// A stream that this side opens as a client.
    pub fn opened_by_us(kind: Kind) -> Self {
        let state =
            if kind.client_streams() { StreamPhase::Open } else { StreamPhase::LocalClosed };
        Stream { state, remote_sends_data: kind.server_streams() }
    }

    /// A stream that a client opened with a Request whose flags were these.
    pub fn opened_by_remote(flags: Flags) -> Self {
        let remote_open = flags.contains(Flags::REMOTE_OPEN);
        let state = if remote_open { StreamPhase::Open } else { StreamPhase::RemoteClosed };
        let remote_sends_data = remote_open || flags.contains(Flags::REMOTE_CLOSED);
        Stream { state, remote_sends_data }
    }

    /// A Data frame arrived.
    ///
    /// # Errors
    /// If the remote has closed its side before, or sends no Data on streams of this kind.
    pub fn receive_data(&mut self, flags: Flags) -> Result<DataEvent, Violation> {
        if !self.remote_sends_data {
            return Err(Violation("Data on a stream that carries none in this direction"));
        }
        let event = DataEvent {
            has_message: !flags.contains(Flags::NO_DATA),
            remote_closed: flags.contains(Flags::REMOTE_CLOSED),
        };
        self.state = match (self.state, event.remote_closed) {
            (StreamPhase::RemoteClosed | StreamPhase::Closed, _) => {
                return Err(Violation("Data after remote closed"));
            }
            (state, false) => state,
            (StreamPhase::Open, true) => StreamPhase::RemoteClosed,
            (StreamPhase::LocalClosed, true) => StreamPhase::Closed,
        };
        Ok(event)
    }

    /// Returns whether Data with these flags repeats that the remote side of a stream is closed.
    pub fn is_repeated_close(&self, flags: Flags) -> bool {
        self.remote_sends_data && !self.is_remote_open() && flags.contains(Flags::END)
    }

    /// A Response arrived, or is sent: the stream is over for both sides.
    pub fn end(&mut self) {
        self.state = StreamPhase::Closed;
    }

    /// This side is done sending.
    pub fn close_local(&mut self) {
        self.state = match self.state {
            StreamPhase::Open | StreamPhase::LocalClosed => StreamPhase::LocalClosed,
            StreamPhase::RemoteClosed | StreamPhase::Closed => StreamPhase::Closed,
        };
    }

    /// Returns whether the remote may still send on this stream.
    pub fn is_remote_open(&self) -> bool {
        matches!(self.state, StreamPhase::Open | StreamPhase::LocalClosed)
    }

    /// Returns whether both sides are done.
    pub fn is_closed(&self) -> bool {
        self.state == StreamPhase::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_closed_when_both_sides_are_done_or_it_has_ended() {
        let open = || Stream::opened_by_us(Kind::Bidirectional);
        let mut stream = open();
        assert!(stream.is_remote_open() && !stream.is_closed());
        stream.close_local();
        assert!(stream.is_remote_open() && !stream.is_closed());
        stream.receive_data(Flags::END).unwrap();
        assert!(!stream.is_remote_open() && stream.is_closed());
        let mut stream = open();
        stream.end();
        assert!(!stream.is_remote_open() && stream.is_closed());
    }
}
