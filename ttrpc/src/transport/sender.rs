//! The sender task: takes frames from the queue and writes them to the socket.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::AsyncWrite;

use super::{chunk::Chunk, queue::Queue};

/// Chunks that one system call may write.
const MAX_SLICES: usize = 64;

/// Writes what the queue holds until the queue is closed (`Ok`) or a write fails.
///
/// A frame that is half written is always finished. What has not begun to be written is dropped if
/// its call is given up while the socket is full.
pub(crate) async fn run<T>(mut io: impl AsyncWrite + Unpin, queue: &Queue<T>) -> io::Result<()> {
    let mut batch = WriteBatch { chunks: VecDeque::new(), written: 0, queue };
    while queue.take(&mut batch.chunks).await {
        let mut is_blocked = false;
        poll_fn(|cx| {
            if is_blocked {
                queue.drop_withdrawn(&mut batch.chunks, batch.written);
            }
            let result = batch.poll_write(&mut io, cx);
            if result.is_pending() != is_blocked {
                is_blocked = !is_blocked;
                queue.note_blocked(is_blocked);
            }
            result
        })
        .await?;
        poll_fn(|cx| Pin::new(&mut io).poll_flush(cx)).await?;
    }
    Ok(())
}

/// Chunks that are being written.
struct WriteBatch<'a, T> {
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that are written.
    written: usize,
    queue: &'a Queue<T>,
}

impl<T> WriteBatch<'_, T> {
    fn poll_write(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.chunks.is_empty() {
            let io = Pin::new(&mut *io);
            let written = match &self.chunks {
                chunks if chunks.len() == 1 => io.poll_write(cx, &chunks[0].bytes[self.written..]),
                _ => self.poll_write_vectored(io, cx),
            };
            let written = ready!(written)?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        &self,
        io: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut len = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            let skip = if len == 0 { self.written } else { 0 };
            *slice = IoSlice::new(&chunk.bytes[skip..]);
            len += 1;
        }
        io.poll_write_vectored(cx, &slices[..len])
    }

    /// Counts bytes as written and frees the room of chunks that are done.
    fn advance(&mut self, written: usize) {
        self.written += written;
        while let Some(chunk) = self.chunks.front()
            && chunk.bytes.len() <= self.written
        {
            self.written -= chunk.bytes.len();
            self.queue.release(self.chunks.pop_front().expect("there is a first chunk"));
        }
    }
}
