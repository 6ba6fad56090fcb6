//! The sender task: takes frames from the queue and writes them to the socket.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::AsyncWrite;

use super::queue::{Chunk, Queue};

/// Chunks that one system call may write.
const MAX_SLICES: usize = 64;

/// Writes what the queue holds until the queue is closed (`Ok`) or a write fails.
///
/// `stamp` is called before each attempt to write, with every chunk and the offset from which its
/// frames have not begun to be written: it gives frames their stream ids and drops those whose
/// call has been given up. A frame that is half written is always finished.
pub(crate) async fn run<M>(
    mut io: impl AsyncWrite + Unpin,
    queue: &Queue<M>,
    mut stamp: impl FnMut(&mut Chunk<M>, usize),
) -> io::Result<()> {
    while let Some(chunks) = queue.take().await {
        let mut batch = Batch { chunks, written: 0, queue };
        batch.stamp(&mut stamp);
        let mut is_blocked = false;
        poll_fn(|cx| {
            if is_blocked {
                // While the socket was full, callers may have given up on what has not begun.
                batch.stamp(&mut stamp);
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
struct Batch<'a, M> {
    chunks: VecDeque<Chunk<M>>,
    /// Bytes of the first chunk that are written.
    written: usize,
    queue: &'a Queue<M>,
}

impl<M> Batch<'_, M> {
    fn stamp(&mut self, stamp: &mut impl FnMut(&mut Chunk<M>, usize)) {
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            stamp(chunk, if index == 0 { self.written } else { 0 });
        }
        self.advance(0);
    }

    fn poll_write(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.chunks.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let mut len = 0;
            for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
                let skip = if len == 0 { self.written } else { 0 };
                *slice = IoSlice::new(&chunk.bytes[skip..]);
                len += 1;
            }
            let written = ready!(Pin::new(&mut *io).poll_write_vectored(cx, &slices[..len]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
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
