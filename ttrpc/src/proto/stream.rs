//! The life of one stream, as a state machine.
//!
//! ```text
//!                    ┌─ local closes ── remote may still send ── remote closes ─┐
//!      both open ────┼─ remote closes ─ local may still send ─── local closes ──┼── closed
//!                    └─────────────────────── a Response ───────────────────────┘
//! ```
//!
//! Each side closes with its last frame, and a Response closes both at any time. Both sides of a connection use the same machine, each from its own point of view: a client's unary stream is born with its
//! own side closed, a server's with the remote side closed. Data after the remote has closed, or in a direction that
//! carries none, is a [`Violation`]; what becomes of one is for the [`table`](super::table) to say.

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
    is_local_closed: bool,
    is_remote_closed: bool,
    /// The remote side may send messages: the method streams in that direction.
    remote_sends_data: bool,
}

impl Stream {
    /// A stream that this side opens as a client.
    pub fn opened_by_us(kind: Kind) -> Self {
        Stream {
            is_local_closed: !kind.client_streams(),
            is_remote_closed: false,
            remote_sends_data: kind.server_streams(),
        }
    }

    /// A stream that a client opened with a Request whose flags were these.
    pub fn opened_by_remote(flags: Flags) -> Self {
        Stream {
            is_local_closed: false,
            is_remote_closed: !flags.contains(Flags::REMOTE_OPEN),
            remote_sends_data: flags.open_a_stream(),
        }
    }

    /// A Data frame arrived.
    ///
    /// # Errors
    /// If the remote has closed its side before, or sends no Data on streams of this kind.
    pub fn receive_data(&mut self, flags: Flags) -> Result<DataEvent, Violation> {
        if !self.remote_sends_data {
            return Err(Violation("Data on a stream that carries none in this direction"));
        }
        if self.is_remote_closed {
            return Err(Violation("Data after remote closed"));
        }
        self.is_remote_closed = flags.contains(Flags::REMOTE_CLOSED);
        Ok(DataEvent {
            has_message: !flags.contains(Flags::NO_DATA),
            remote_closed: self.is_remote_closed,
        })
    }

    /// Returns whether Data with these flags repeats that the remote side of a stream is closed.
    pub fn is_repeated_close(&self, flags: Flags) -> bool {
        self.remote_sends_data && self.is_remote_closed && flags.contains(Flags::END)
    }

    /// A Response arrived, or is sent: the stream is over for both sides.
    pub fn end(&mut self) {
        (self.is_local_closed, self.is_remote_closed) = (true, true);
    }

    /// This side is done sending.
    pub fn close_local(&mut self) {
        self.is_local_closed = true;
    }

    /// Returns whether the remote may still send on this stream.
    pub fn is_remote_open(&self) -> bool {
        !self.is_remote_closed
    }

    /// Returns whether both sides are done.
    pub fn is_closed(&self) -> bool {
        self.is_local_closed && self.is_remote_closed
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
