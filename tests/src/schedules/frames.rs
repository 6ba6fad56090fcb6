//! Frames over a pipe, for the small clients and servers that are wrong on purpose.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::wire::Frame;

/// Bytes of a frame header.
const HEADER_LEN: usize = 10;

/// Bytes asked for with one read.
const READ_LEN: usize = 64 << 10;

/// Cuts what arrives into frames.
#[derive(Debug)]
pub struct FrameReader<R> {
    io: R,
    arrived: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from here.
    pub fn new(io: R) -> Self {
        FrameReader { io, arrived: BytesMut::new() }
    }

    /// The next frame, or `None` at the end of the connection.
    ///
    /// Cancel safe: nothing that was read is lost.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.cut() {
                return Ok(Some(frame));
            }
            self.arrived.reserve(READ_LEN);
            if self.io.read_buf(&mut self.arrived).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The first frame of what has arrived, if it is there as a whole.
    fn cut(&mut self) -> Option<Frame> {
        let header: [u8; HEADER_LEN] = *self.arrived.first_chunk()?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let end = HEADER_LEN + word(0) as usize;
        if self.arrived.len() < end {
            return None;
        }
        let frame = Frame::new(word(4), header[8], header[9], &self.arrived[HEADER_LEN..end]);
        self.arrived.advance(end);
        Some(frame)
    }
}
