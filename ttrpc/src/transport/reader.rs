//! Reading frames from the socket.

use std::{future::poll_fn, io, pin::Pin, task::Poll, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::io::poll_read_buf;

use super::io::ReadHalf;
use crate::proto::codec::{Decoded, Decoder};

/// How often a receiver that is blocked looks whether its peer has gone.
const HANG_UP_INTERVAL: Duration = Duration::from_millis(50);

/// How reading ended.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    /// The peer closed its side after a whole frame.
    Eof,
    /// The peer closed its side inside of a frame.
    Truncated,
    /// The socket failed.
    Failed(io::Error),
}

/// Cuts what arrives on a socket into frames.
///
/// It reads straight into the buffer that frames are decoded from. The buffer is pooled, and returned when nothing
/// is there to be read, so an idle connection has none.
pub(crate) struct FrameReader<R> {
    io: R,
    decoder: Decoder,
    /// When what is decoded now was read, once that has been asked for.
    read_at: Option<Instant>,
}

/// Waits until the peer has gone, for a receiver that is blocked and does not read meanwhile.
pub(crate) async fn hung_up(io: &mut impl ReadHalf) {
    while !io.is_hung_up() {
        sleep(HANG_UP_INTERVAL).await;
    }
}

impl<R: ReadHalf> FrameReader<R> {
    pub(crate) fn new(io: R) -> Self {
        FrameReader { io, decoder: Decoder::default(), read_at: None }
    }

    /// The next frame's header; its data is in [`FrameReader::decoder`].
    ///
    /// Cancel safe: nothing that was read is lost.
    pub(crate) async fn next(&mut self) -> Result<Decoded, ReadEnd> {
        loop {
            if let Some(decoded) = self.decoder.decode() {
                return Ok(decoded);
            }
            let read = poll_fn(|cx| {
                let read = poll_read_buf(Pin::new(&mut self.io), cx, &mut self.decoder.spare());
                match read {
                    Poll::Ready(Ok(_)) => self.decoder.drop_skipped(),
                    _ => self.decoder.release_spare(),
                }
                read
            });
            let read = read.await;
            self.read_at = None;
            match read {
                Ok(0) if self.decoder.is_between_frames() => return Err(ReadEnd::Eof),
                Ok(0) => return Err(ReadEnd::Truncated),
                Ok(_) => {}
                Err(error) => return Err(ReadEnd::Failed(error)),
            }
        }
    }

    /// The next frame's header if it has arrived, without a look at the socket.
    pub(crate) fn try_next(&mut self) -> Option<Decoded> {
        self.decoder.decode()
    }

    /// Returns whether the peer has closed its side, see [`ReadHalf::is_hung_up`].
    pub(crate) fn is_hung_up(&mut self) -> bool {
        self.io.is_hung_up()
    }

    /// When the frames that are decoded now were read, or a little later. Looks at the clock once
    /// per read.
    pub(crate) fn read_at(&mut self) -> Instant {
        *self.read_at.get_or_insert_with(Instant::now)
    }

    pub(crate) fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// The decoder, and the half that it is fed from.
    pub(crate) fn parts(&mut self) -> (&mut Decoder, &mut R) {
        (&mut self.decoder, &mut self.io)
    }
}
