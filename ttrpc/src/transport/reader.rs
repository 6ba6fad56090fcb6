//! Reading frames from the socket.

use std::{cell::Cell, future::poll_fn, io, pin::Pin, task::Poll, time::Duration};

use tokio::{
    io::ReadBuf,
    time::{Instant, sleep},
};
use tokio_util::io::poll_read_buf;

use super::io::ReadHalf;
use crate::proto::codec::{Decoded, Decoder};

/// Bytes asked for with one read between frames: enough for hundreds of small frames.
const READ_LEN: usize = 64 << 10;

/// How often a receiver that is held up looks whether its peer has gone.
const HANG_UP_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// What is read goes through here. On the stack it would have to be touched, page by page, for each read.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

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
/// Between frames it reads into a buffer of its thread's and copies what came, so that a connection
/// needs a buffer only while it has something to put into it. The rest of a long frame is read
/// straight into place.
pub(crate) struct FrameReader<R> {
    io: R,
    decoder: Decoder,
    /// When what is decoded now was read, once that has been asked for.
    read_at: Option<Instant>,
}

/// Waits until the peer has gone, for a receiver that is held up and does not read meanwhile.
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
            self.decoder.release_idle_memory();
            let read = poll_fn(|cx| {
                let missing = self.decoder.missing();
                if missing > READ_LEN {
                    return self.poll_read_in_place(missing, cx);
                }
                self.poll_read_through_scratch(cx)
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

    fn poll_read_through_scratch(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<io::Result<usize>> {
        // Not borrowed meanwhile: the stream may be the program's. A thread that is ending has none.
        let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
        scratch.reserve_exact(READ_LEN);
        let mut buffer = ReadBuf::uninit(&mut scratch.spare_capacity_mut()[..READ_LEN]);
        let polled = Pin::new(&mut self.io).poll_read(cx, &mut buffer).map_ok(|()| {
            self.decoder.feed(buffer.filled());
            buffer.filled().len()
        });
        let _ = SCRATCH.try_with(|kept| kept.set(scratch));
        polled
    }

    /// Reserves no more than has arrived already, so that memory grows with what a peer sends and
    /// not with what it announces.
    fn poll_read_in_place(
        &mut self,
        missing: usize,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let buffer = self.decoder.buffer_mut();
        if buffer.capacity() == buffer.len() {
            buffer.reserve(missing.min(buffer.len().max(READ_LEN)));
        }
        poll_read_buf(Pin::new(&mut self.io), cx, buffer)
    }
}
