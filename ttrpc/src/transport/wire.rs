//! Frames from the socket, and to it: the [`FrameReader`] of a receiver, and the task that writes what the queue holds.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tokio_util::io::poll_read_buf;

use super::{
    frames::{Capacity, Chunk},
    io::{ReadHalf, Writer},
    queue::Queue,
};
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

/// The time that a writer has for its shutdown. A Unix socket needs none of it. A stream that wraps
/// another one (TLS) has something to write, for which a peer that does not read leaves no capacity.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);

/// The sender's end of the signal that a connection has ended. The other end is dropped to give it, when
/// the queue has been closed.
pub(crate) type Ended = oneshot::Receiver<()>;

/// Writes what the queue holds, until the queue is closed or the connection has
/// ended. Then it shuts the writer down.
///
/// # Errors
/// If a write fails. `ended` has not completed then.
pub(crate) async fn send_all<T>(
    writer: Writer,
    queue: &Queue<T>,
    ended: &mut Ended,
) -> io::Result<()> {
    let mut sender = Sender::new(writer, queue);
    tokio::select! {
        biased;
        _ = ended => {}
        written = sender.run() => written?,
    }
    // Boxed: an idle connection needs no memory for what happens at its end.
    Box::pin(async { shut_down(sender.closed_writer().await).await }).await;
    Ok(())
}

/// Shuts a writer down, if it can be in a bounded time. Whether it works makes no difference any more.
pub(crate) async fn shut_down(io: &mut (impl AsyncWrite + Unpin)) {
    let _ = timeout(SHUTDOWN_TIMEOUT, io.shutdown()).await;
}

/// Chunks that one system call may write.
const MAX_SLICES: usize = 64;

/// Writes what a queue holds.
pub(crate) struct Sender<'a, T> {
    queue: &'a Queue<T>,
    /// The queue has it while there is nothing to write, see [`queue`](super::queue).
    writer: Option<Writer>,
    /// Chunks that are being written.
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that are written.
    written: usize,
}

impl<'a, T> Sender<'a, T> {
    pub(crate) fn new(writer: Writer, queue: &'a Queue<T>) -> Self {
        Sender { queue, writer: Some(writer), chunks: VecDeque::new(), written: 0 }
    }

    /// Writes what the queue holds until the queue is closed (`Ok`) or a write fails.
    ///
    /// A frame that is half written is always finished. What has not begun to be written is dropped if
    /// its call is given up while the socket is full.
    pub(crate) async fn run(&mut self) -> io::Result<()> {
        while let Some(written) = self.queue.take(&mut self.chunks, &mut self.writer).await {
            self.written = written?;
            let mut is_blocked = false;
            poll_fn(|cx| {
                if is_blocked {
                    self.drop_withdrawn();
                }
                // A stream that wraps another one may take all of it and not be able to pass it on.
                let result = match self.poll_write(cx) {
                    Poll::Ready(Ok(())) => held(&mut self.writer).poll_flush(cx),
                    result => result,
                };
                // What it has not begun to write may be sent by another connection.
                if self.is_rest_unsent(&result) {
                    self.queue.note_paused(&self.chunks, self.written);
                }
                if result.is_pending() != is_blocked {
                    is_blocked = !is_blocked;
                    self.queue.note_blocked(is_blocked);
                }
                result
            })
            .await?;
        }
        Ok(())
    }

    /// Returns whether nobody can have seen what is left of the batch. A socket that fails has taken nothing of that write. Any
    /// other stream may have passed on all that it was offered before it failed, as TLS does.
    fn is_rest_unsent(&self, result: &Poll<io::Result<()>>) -> bool {
        match result {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(_)) => self.writer.as_ref().is_some_and(|writer| writer.is_socket()),
        }
    }

    /// The writer of a queue that is closed.
    pub(super) async fn closed_writer(&mut self) -> &mut Writer {
        // There is nothing else to take.
        self.queue.take(&mut self.chunks, &mut self.writer).await;
        self.writer.as_mut().expect("it came with the queue's end")
    }

    /// Drops the frames of calls that were given up. What is written of the first chunk may be all that is left of
    /// it then: a write of nothing would look like a socket that has failed.
    fn drop_withdrawn(&mut self) {
        self.queue.drop_withdrawn(&mut self.chunks, self.written);
        self.advance(0);
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.chunks.is_empty() {
            let written = ready!(self.poll_write_some(cx))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Sender { writer, chunks, written, .. } = self;
        let writer = held(writer);
        if chunks.len() == 1 {
            return writer.poll_write(cx, &chunks[0].bytes[*written..]);
        }
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut len = 0;
        for (slice, chunk) in slices.iter_mut().zip(chunks) {
            let skip = if len == 0 { *written } else { 0 };
            *slice = IoSlice::new(&chunk.bytes[skip..]);
            len += 1;
        }
        writer.poll_write_vectored(cx, &slices[..len])
    }

    /// Counts bytes as written and releases the capacity of chunks that are done.
    fn advance(&mut self, written: usize) {
        self.written += written;
        let mut freed = Capacity::default();
        while self.chunks.front().is_some_and(|chunk| chunk.bytes.len() <= self.written)
            && let Some(chunk) = self.chunks.pop_front()
        {
            self.written -= chunk.bytes.len();
            freed += chunk.recycle();
        }
        self.queue.note_write(written > 0, freed);
    }
}

/// The writer of a sender that has taken a batch.
fn held(writer: &mut Option<Writer>) -> Pin<&mut Writer> {
    Pin::new(writer.as_mut().expect("it came with the batch"))
}

impl<T> Drop for Sender<'_, T> {
    fn drop(&mut self) {
        self.queue.retire_sender();
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Arc};

    use tokio::io::{AsyncRead, AsyncReadExt, BufStream};

    use super::{
        super::{
            frames::Frame,
            io::{Connection, WriteHalf},
            limiter::Load,
            lock,
        },
        *,
    };
    use crate::proto::frame::{Flags, FrameType, Header};

    use crate::sync::Mutex;

    fn frame(frame_type: FrameType, data: &[u8]) -> Frame<&[u8]> {
        Frame::new(frame_type, Flags::NONE, 1, data).expect("it is short")
    }

    /// Polls a sender until it waits for others. Before it writes, it gives way once.
    async fn poll<F: Future>(sending: &mut Pin<&mut F>) -> Poll<F::Output> {
        let first = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
        match first {
            Poll::Pending => poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await,
            ready => ready,
        }
    }

    /// Takes so many bytes at once, and notes what it is given.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<PipeState>>);

    #[derive(Default)]
    struct PipeState {
        at_once: usize,
        taken: Vec<u8>,
        vectored: usize,
        flushed: usize,
    }

    impl AsyncWrite for Pipe {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let mut pipe = lock(&self.0);
            let len = bytes.len().min(pipe.at_once);
            pipe.taken.extend_from_slice(&bytes[..len]);
            Poll::Ready(Ok(len))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut pipe = lock(&self.0);
            pipe.vectored += 1;
            let all = slices.iter().map(|slice| &slice[..]).collect::<Vec<_>>().concat();
            let len = all.len().min(pipe.at_once);
            pipe.taken.extend_from_slice(&all[..len]);
            Poll::Ready(Ok(len))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut pipe = lock(&self.0);
            pipe.flushed = pipe.taken.len();
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl WriteHalf for Pipe {}

    /// Else calls that come meanwhile would have the time of the first of them, and no snapshot would say why they wait.
    #[tokio::test]
    async fn a_stream_that_cannot_pass_on_what_it_has_taken_counts_as_full() {
        let queue = Queue::new(10, 1 << 20, ());
        queue.push_without_capacity(&frame(FrameType::Data, &[0; 90]), |()| Some(1));
        let (near, mut far) = tokio::io::duplex(10);
        let writer = writer_of(BufStream::new(near));
        let mut sender = Sender::new(writer, &queue);
        let mut sending = pin!(sender.run());
        assert!(poll(&mut sending).await.is_pending());
        assert!(queue.fill().3.now().is_some());
        let mut taken = [0; 10];
        for _ in 0..10 {
            far.read_exact(&mut taken).await.expect("it was written");
            assert!(poll(&mut sending).await.is_pending());
        }
        assert!(queue.fill().3.now().is_none());
    }

    fn writer_of(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Writer {
        Connection::new(stream).writer
    }

    /// Sends frames of these lengths; what the pipe has taken is what was sent. Returns how many writes had several
    /// parts.
    async fn sent(lens: &[usize], at_once: usize) -> usize {
        let queue = Queue::new(100, 1 << 20, ());
        let mut expected = Vec::new();
        for (number, len) in lens.iter().enumerate() {
            let id = 2 * number as u32 + 1;
            let data = vec![number as u8; *len];
            let frame =
                Frame::new(FrameType::Data, Flags::NONE, id, &data[..]).expect("it is short");
            frame.encode(|bytes| expected.extend_from_slice(bytes));
            let permit = queue.try_reserve(frame.len()).expect("it is open").expect("it has room");
            assert!(queue.send(&frame, Some(permit), |()| Some(id.into())).is_queued());
        }
        let pipe = Pipe::default();
        lock(&pipe.0).at_once = at_once;
        let mut sender = Sender::new(Box::new(pipe.clone()), &queue);
        let polled = {
            let mut sending = pin!(sender.run());
            poll(&mut sending).await
        };
        assert!(polled.is_pending(), "it waits for more");
        let pipe = lock(&pipe.0);
        assert!(pipe.taken == expected);
        assert_eq!(pipe.flushed, expected.len());
        assert_eq!(queue.fill().0, Load::default(), "the room is free again");
        pipe.vectored
    }

    #[tokio::test]
    async fn what_is_written_in_parts_arrives_whole_and_in_order() {
        let lens = [5, 20_000, 3, 17_000, 40_000, 0];
        for at_once in [1000, 20_010, 20_025, 20_026, 50_000, usize::MAX] {
            assert!(sent(&lens, at_once).await > 0);
        }
        assert_eq!(sent(&lens, usize::MAX).await, 1, "all chunks at once");
        for at_once in [1, 7, usize::MAX] {
            assert_eq!(sent(&[5, 6, 0], at_once).await, 0, "one chunk needs no slices");
        }
    }

    #[tokio::test]
    async fn a_call_given_up_behind_the_last_frame_that_fitted_harms_no_other() {
        let queue = Queue::new(10, 1 << 20, ());
        let push = |id| {
            let frame =
                Frame::new(FrameType::Request, Flags::NONE, id, &[7; 30][..]).expect("it is short");
            let permit = queue.try_reserve(frame.len()).expect("it is open").expect("it has room");
            assert!(queue.send(&frame, Some(permit), |()| Some(id.into())).is_queued());
            frame.len()
        };
        let len = push(1);
        push(3);
        // The first frame ends where the socket is full.
        let (near, mut far) = tokio::io::duplex(len);
        let mut sender = Sender::new(writer_of(near), &queue);
        let mut sending = pin!(sender.run());
        assert!(poll(&mut sending).await.is_pending());
        queue.withdraw(|()| Some(3));
        let mut first = vec![0; len];
        far.read_exact(&mut first).await.expect("it was written");
        let polled = poll(&mut sending).await;
        assert!(polled.is_pending(), "it has nothing to write: {polled:?}");
        assert_eq!(queue.fill().0, Load::default(), "the room is free again");
        push(5);
        let polled = poll(&mut sending).await;
        assert!(polled.is_pending(), "it waits for more: {polled:?}");
        let mut next = vec![0; len];
        far.read_exact(&mut next).await.expect("it was written");
        assert_eq!(Header::from_bytes(next.first_chunk().expect("it is whole")).stream_id, 5);
    }

    #[tokio::test]
    async fn a_socket_that_takes_nothing_has_failed() {
        let queue = Queue::new(1, 100, ());
        queue.push_without_capacity(&frame(FrameType::Data, &[]), |()| Some(1));
        let error = Sender::new(Box::new(Pipe::default()), &queue).run().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }

    /// Fails once it has taken what it was offered, as a stream does that wraps another one.
    struct TakesAndFails {
        is_socket: bool,
    }

    impl AsyncWrite for TakesAndFails {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl WriteHalf for TakesAndFails {
        fn is_socket(&self) -> bool {
            self.is_socket
        }
    }

    /// Else a call that its server has seen could be made again on another connection.
    #[tokio::test]
    async fn what_was_offered_to_a_stream_that_fails_counts_as_begun_and_to_a_socket_as_unsent() {
        for (is_socket, first_unsent) in [(true, 1), (false, 5)] {
            let queue = Queue::new(10, 1 << 20, ());
            queue.keep_unsent();
            let push = |id| {
                let request = frame(FrameType::Request, &[]);
                queue.push_without_capacity(&request, |()| Some(id));
            };
            for id in [1, 3] {
                push(id);
            }
            let mut sender = Sender::new(Box::new(TakesAndFails { is_socket }), &queue);
            let failed = poll(&mut pin!(sender.run())).await;
            assert!(matches!(failed, Poll::Ready(Err(_))), "{failed:?}");
            // It has come since the batch was taken.
            push(5);
            queue.close();
            assert_eq!(queue.first_unsent(), Some(first_unsent));
        }
    }
}
