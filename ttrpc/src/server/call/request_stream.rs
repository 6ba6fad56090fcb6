//! The state of the messages that a client streams.

use bytes::Bytes;

use crate::{Status, transport::inbox::StreamState};

/// The state of the messages that a client streams.
#[derive(Debug, Default)]
pub(in crate::server) enum RequestStream {
    /// More may come.
    #[default]
    Open,
    /// The client has said that nothing more comes.
    Closed,
    /// It broke off: the call is over, or the handler stood still.
    Failed(Status),
}

impl RequestStream {
    /// Nothing more comes. Returns whether that changes anything.
    pub(in crate::server) fn close(&mut self) -> bool {
        let is_open = self.is_open();
        if is_open {
            *self = RequestStream::Closed;
        }
        is_open
    }

    /// The stream breaks off. Returns whether that changes anything.
    pub(in crate::server) fn fail(&mut self, status: Status) -> bool {
        let is_open = self.is_open();
        if is_open {
            *self = RequestStream::Failed(status);
        }
        is_open
    }
}

impl StreamState for RequestStream {
    fn end(&mut self) -> Option<Result<Option<Bytes>, Status>> {
        match self {
            RequestStream::Open => None,
            RequestStream::Closed => Some(Ok(None)),
            RequestStream::Failed(status) => Some(Err(status.clone())),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self, RequestStream::Open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_end_of_the_requests_counts() {
        let mut stream = RequestStream::default();
        assert!(stream.is_open() && stream.end().is_none());
        assert!(stream.close() && !stream.is_open());
        assert!(!stream.close() && !stream.fail(Status::cancelled("the call is over")));
        assert_eq!(stream.end(), Some(Ok(None)));

        let (mut stream, status) = (RequestStream::default(), Status::cancelled("first"));
        assert!(stream.fail(status.clone()) && !stream.is_open());
        assert!(!stream.fail(Status::internal("second")) && !stream.close());
        assert_eq!(stream.end(), Some(Err(status)));
    }
}
