//! What the tasks of a connection share behind one lock: its streams, and the outgoing queue of
//! frames on their way to the sender.
//!
//! A push never waits. It fails while the queue is full; a producer then waits for capacity ([`Queue::reserve`]) and
//! pushes with that. A push changes the table of streams in the same step: a Request takes its
//! stream id and its entry as it enters the queue, so ids rise in the order in which Requests enter
//! the socket, as servers demand; a handler's last frame takes the entry out, and is not pushed if the entry
//! has gone before. A status for a call that was refused or taken out has no entry and needs none. Capacity is
//! taken until the chunk with the frame has been written to the socket, so the limits bound everything that is
//! encoded and not yet sent, the sender's own batch included.
//!
//! Frames longer than [`LONG_FRAME_LEN`] have a capacity and waiters of their own. A frame cannot be stopped once
//! it is being written, but those that wait for capacity block no shorter one: it waits for the long frames
//! that have been pushed, as many as take the queue's bytes, and for none that comes later.

mod gate;
mod unsent;

use std::{
    collections::{BTreeSet, VecDeque},
    future::poll_fn,
    io, mem,
    task::{Poll, Waker},
    time::Duration,
};

use self::{
    gate::{Gate, StepBack},
    unsent::Unsent,
};
use super::{
    blocked::Blocked,
    frames::{Capacity, Chunk, Chunks, Frame, IDLE_CHUNKS, SHARED_FRAME_LEN},
    io::Writer,
    limiter::{Closed, Limited, Load, Oversubscribe, Quota, Wakers, acquire},
    lock,
    stall::stalled,
    withdrawn::drop_frames,
};
use crate::{
    contain::wake_all,
    proto::{
        frame::{FrameType, Header},
        message::FrameData,
    },
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Longer frames are long: they take many times as long to write as a short one, which would wait for
/// all that came before it.
const LONG_FRAME_LEN: usize = 128 << 10;

/// The shared state of a connection. `T` is its table of streams.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    /// The limit of short frames and of long ones.
    limit: Load,
}

#[derive(Debug)]
struct QueueState<T> {
    streams: T,
    /// Frames that are not yet written, and their bytes: short ones, and those longer than [`LONG_FRAME_LEN`].
    quotas: [Quota; 2],
    /// As many as there were when a wait for the peer last timed out, see [`Queue::stall`].
    releases_at_stall: Option<u64>,
    chunks: Chunks,
    /// Streams that were given up and whose frames may still be dropped.
    withdrawn: BTreeSet<u32>,
    gate: Gate,
    blocked: Blocked,
    unsent: Unsent,
    is_closed: bool,
}

/// A frame may be pushed: the table of streams has been changed for it.
pub(crate) struct PushDecision {
    /// The stream of the frame.
    pub(crate) stream_id: u32,
    /// No other stream is open, or about to be, whose task could push next.
    pub(crate) is_only: bool,
}

impl From<u32> for PushDecision {
    fn from(stream_id: u32) -> Self {
        PushDecision { stream_id, is_only: false }
    }
}

/// How a push went.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "the frame may not be queued"]
pub(crate) enum Pushed {
    /// The frame is queued, or written.
    Queued(u32),
    /// There is no capacity.
    Full,
    /// The table of streams does not allow it, or the queue is closed.
    Refused,
}

#[cfg(test)]
impl Pushed {
    pub(crate) fn is_queued(self) -> bool {
        matches!(self, Pushed::Queued(_))
    }
}

/// Capacity for one frame. Dropped unused, it is returned, which is no progress.
#[derive(Debug)]
pub(crate) struct PushPermit<'a, T> {
    queue: &'a Queue<T>,
    /// The length of frame that it is for; 0 once it is used.
    len: usize,
}

impl<T> PushPermit<'_, T> {
    /// Adds the frame if `claim` allows it. `claim` runs under the lock, and not at all once the queue is closed.
    pub(super) fn push(
        mut self,
        frame: &mut Vec<u8>,
        claim: impl FnOnce(&mut T) -> Option<PushDecision>,
    ) -> Pushed {
        let len = mem::take(&mut self.len);
        self.queue.push(frame, Some(len), claim)
    }
}

impl<T> Drop for PushPermit<'_, T> {
    fn drop(&mut self) {
        if self.len > 0 {
            let (load, kind) = self.queue.load_of(self.len);
            let wakers = lock(&self.queue.state).quotas[kind].return_capacity(load);
            wake_all(wakers);
        }
    }
}

/// The quota of a queue's short frames (0), or of its long ones (1).
struct QuotaOf<'a, T>(&'a Queue<T>, usize);

impl<T> Limited for QuotaOf<'_, T> {
    fn quota<R>(&self, act: impl FnOnce(&mut Quota) -> R) -> R {
        act(&mut lock(&self.0.state).quotas[self.1])
    }
}

impl<T> Queue<T> {
    /// A queue for this many frames and bytes, both at least 1, and for as many of long frames. A frame that is
    /// longer than `max_bytes` is admitted when there is no other of its kind.
    pub(crate) fn new(max_frames: usize, max_bytes: usize, streams: T) -> Self {
        let limit = Load::limit(max_frames, max_bytes);
        let quota = || Quota::new(limit, Oversubscribe::OnlyWhenEmpty);
        Queue {
            limit,
            state: Mutex::new(QueueState {
                streams,
                quotas: [quota(), quota()],
                releases_at_stall: None,
                chunks: Chunks::default(),
                withdrawn: BTreeSet::new(),
                gate: Gate::default(),
                blocked: Blocked::default(),
                unsent: Unsent::default(),
                is_closed: false,
            }),
        }
    }

    /// Reads or changes the streams under the lock.
    pub(crate) fn streams<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut lock(&self.state).streams)
    }

    /// The load that a frame of this length is, and in which of the quotas; none for no length.
    fn load_of(&self, len: usize) -> (Load, usize) {
        let load = if len == 0 { Load::default() } else { Load::one(len.min(self.limit.cost)) };
        (load, usize::from(len > LONG_FRAME_LEN))
    }

    /// Encodes the frame and adds it if `claim` allows it, which runs under the lock. Uses `permit`, one of this queue, if there
    /// is one. Without one it needs capacity that is free now and for which no task waits; else the result is `Full`.
    pub(crate) fn send(
        &self,
        frame: &Frame<impl FrameData>,
        permit: Option<PushPermit<'_, T>>,
        claim: impl FnOnce(&mut T) -> Option<PushDecision>,
    ) -> Pushed {
        // A frame that takes long to encode is not encoded when the queue is full.
        let checks_first = permit.is_none() && frame.len() > SHARED_FRAME_LEN;
        if checks_first && matches!(self.try_reserve(frame.len()), Ok(None)) {
            return Pushed::Full;
        }
        frame.encode(|bytes| match permit {
            Some(permit) => permit.push(bytes, claim),
            None => self.push(bytes, None, claim),
        })
    }

    /// Reserves capacity for a frame of `len` bytes if there is some now and no task waits for it. `Ok(None)` when
    /// the queue is full.
    pub(crate) fn try_reserve(&self, len: usize) -> Result<Option<PushPermit<'_, T>>, Closed> {
        let (load, kind) = self.load_of(len);
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(Closed);
        }
        let is_granted = state.quotas[kind].try_acquire(load);
        Ok(is_granted.then(|| PushPermit { queue: self, len }))
    }

    /// Waits for capacity for a frame of `len` bytes, first come, first served among those that are long, and
    /// among those that are not.
    ///
    /// Cancel safe: dropped, it leaves the queue and releases what it had reserved.
    pub(crate) async fn reserve(&self, len: usize) -> Result<PushPermit<'_, T>, Closed> {
        let (load, kind) = self.load_of(len);
        acquire(QuotaOf(self, kind), load).await?;
        Ok(PushPermit { queue: self, len })
    }

    /// Waits until a short frame would have capacity, after those that wait for it already.
    pub(crate) async fn wait_for_short_capacity(&self) -> Result<(), Closed> {
        self.reserve(1).await.map(drop)
    }

    /// Waits like [`Queue::wait_for_short_capacity`], for a long frame.
    pub(crate) async fn wait_for_long_capacity(&self) -> Result<(), Closed> {
        self.reserve(LONG_FRAME_LEN + 1).await.map(drop)
    }

    /// Returns whether a short frame would have to wait now.
    pub(crate) fn is_full_for_short(&self) -> bool {
        lock(&self.state).quotas[0].is_full()
    }

    /// A condition that holds if anything has been written since the last evaluation, be it a part of a frame: the peer
    /// reads.
    pub(crate) fn is_moving(&self) -> impl Fn() -> bool {
        changed_since_last_check(|| lock(&self.state).gate.writes)
    }

    /// A condition that holds while a frame, short or long, would have to wait and none has been written to its end
    /// since the last evaluation: it is the peer who blocks those that wait.
    pub(crate) fn is_stuck(&self) -> impl Fn() -> bool {
        let is_written = changed_since_last_check(|| lock(&self.state).releases());
        move || !is_written() && lock(&self.state).quotas.iter().any(Quota::is_full)
    }

    /// Returns whether the queue was full after a [`Queue::stall`], and no frame has been written to its end since.
    pub(crate) fn has_stalled(&self) -> bool {
        let state = lock(&self.state);
        state.releases_at_stall == Some(state.releases())
    }

    /// Waits until nothing has been written for `stall_timeout`, be it a part of a frame. Completes at once while the queue
    /// [has stalled](Queue::has_stalled).
    pub(crate) async fn stall(&self, stall_timeout: Duration)
    where
        T: Send,
    {
        let writes = || lock(&self.state).gate.writes;
        if !self.has_stalled() {
            let writes = stalled(stall_timeout, &writes, &|| false).await;
            let mut state = lock(&self.state);
            if state.gate.writes == writes && state.quotas.iter().any(Quota::is_full) {
                state.releases_at_stall = Some(state.releases());
            }
        }
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed
    }

    /// Adds a frame if `claim` allows it, with the capacity that is reserved for so many bytes or with what there is.
    fn push(
        &self,
        frame: &mut Vec<u8>,
        reserved: Option<usize>,
        claim: impl FnOnce(&mut T) -> Option<PushDecision>,
    ) -> Pushed {
        let (load, kind) = self.load_of(reserved.unwrap_or(frame.len()));
        let mut state = lock(&self.state);
        if state.is_closed {
            return Pushed::Refused;
        }
        if reserved.is_none() && !state.quotas[kind].try_acquire(load) {
            return Pushed::Full;
        }
        let Some(PushDecision { stream_id, is_only }) = claim(&mut state.streams) else {
            let wakers = state.quotas[kind].return_capacity(load);
            drop(state);
            wake_all(wakers);
            return Pushed::Refused;
        };
        if is_only
            && state.chunks.0.is_empty()
            && frame.len() <= SHARED_FRAME_LEN
            && let Some(borrowed) = state.gate.borrow_writer()
        {
            let asks_first = state.unsent.is_kept;
            drop(state);
            Header::set_stream_id(frame, stream_id);
            self.write_inline(borrowed, frame, Capacity::of(load, kind), asks_first);
            return Pushed::Queued(stream_id);
        }
        state.chunks.push(frame, stream_id, load, kind);
        let sender = state.gate.take_waker();
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
        Pushed::Queued(stream_id)
    }

    /// Adds a frame that takes no capacity: for the few bytes that close a stream, of which there is at
    /// most one per call.
    pub(crate) fn push_without_capacity(
        &self,
        frame: &Frame<impl FrameData>,
        claim: impl FnOnce(&mut T) -> Option<u32>,
    ) {
        let claim = |streams: &mut T| claim(streams).map(PushDecision::from);
        let _ = frame.encode(|bytes| self.push(bytes, Some(0), claim));
    }

    /// Gives a stream up: `remove` takes it out of the table and returns its id. Its frames are
    /// dropped if its Request has not begun to be written. Returns the id if it has, for a queue that
    /// [knows](Queue::follow_requests).
    pub(crate) fn withdraw(&self, remove: impl FnOnce(&mut T) -> Option<u32>) -> Option<u32> {
        let mut state = lock(&self.state);
        let id = remove(&mut state.streams)?;
        if state.has_begun(id) {
            return Some(id);
        }
        if !(state.gate.is_idle() && state.chunks.0.is_empty()) {
            state.withdrawn.insert(id);
        }
        None
    }

    /// Waits until there are frames and moves them all into `batch`, which is empty. Returns how many bytes of the
    /// first chunk are written already; `None` once the queue is closed.
    ///
    /// # Errors
    /// If a task could not write its lone frame.
    ///
    /// For the one sender, whose `writer` is lent to the queue meanwhile; see [`gate`] for what it
    /// waits for. Not cancel safe: the writer stays in the queue until the next call, or until the sender has ended.
    pub(super) async fn take(
        &self,
        batch: &mut VecDeque<Chunk>,
        writer: &mut Option<Writer>,
    ) -> Option<io::Result<usize>> {
        let mut steps = StepBack::default();
        poll_fn(|cx| {
            // Wakers are copied and dropped without the lock.
            let waker = cx.waker().clone();
            let _unused_waker;
            let mut state = lock(&self.state);
            _unused_waker = state.gate.reclaim(writer);
            if writer.is_none() {
                // Another task writes a lone frame. It wakes this one if anything is left to do.
                return Poll::Pending;
            }
            let flushed = state.gate.end_batch();
            if !flushed.is_empty() {
                drop(state);
                wake_all(flushed);
                state = lock(&self.state);
            }
            if state.is_closed {
                return Poll::Ready(None);
            }
            if state.chunks.0.is_empty()
                && let Some(writer) = writer.take()
            {
                state.become_idle(waker, writer);
                drop(state);
                batch.shrink_to(IDLE_CHUNKS);
                return Poll::Pending;
            }
            // Those that are about to be pushed count as well.
            if steps.is_due(state.quotas.iter().map(|quota| quota.used().count).sum()) {
                drop(state);
                // Unlike [`tokio::task::yield_now`], this leaves the task where other workers find
                // it: a handler that blocks this one does not hold it up.
                waker.wake();
                return Poll::Pending;
            }
            let written = state.gate.begin_batch();
            mem::swap(&mut state.chunks.0, batch);
            let wakers = state.drop_withdrawn(batch, *written.as_ref().unwrap_or(&0));
            state.unsent.note_taken(written.is_err().then_some(&*batch));
            drop(state);
            wake_all(wakers);
            Poll::Ready(Some(written))
        })
        .await
    }

    /// Drops the frames of streams that were given up and whose Request has not begun to be written,
    /// from the sender's batch, of whose first chunk so many bytes are written, and from the queue.
    pub(super) fn drop_withdrawn(&self, batch: &mut VecDeque<Chunk>, written: usize) {
        let mut state = lock(&self.state);
        let wakers = match state.unsent.resume() {
            true => state.drop_withdrawn(batch, written),
            false => {
                let freed = drop_frames([batch], written, |_| true);
                state.release(freed)
            }
        };
        drop(state);
        wake_all(wakers);
    }

    /// The socket has taken something for the sender, or nothing, and this capacity is free.
    pub(super) fn note_write(&self, has_written: bool, freed: Capacity) {
        let mut state = lock(&self.state);
        state.gate.writes += u64::from(has_written);
        let wakers = state.release(freed);
        drop(state);
        wake_all(wakers);
    }

    /// A chunk has been written.
    #[cfg(test)]
    pub(super) fn release(&self, chunk: Chunk) {
        self.note_write(true, chunk.capacity);
    }

    /// The sender found the socket full, or no longer so.
    pub(super) fn note_blocked(&self, is_blocked: bool) {
        lock(&self.state).blocked.set(is_blocked);
    }

    /// The capacity that short frames take and that long ones do, the limit of either, and how long the socket has been
    /// full.
    pub(crate) fn fill(&self) -> (Load, Load, Load, Blocked) {
        let state = lock(&self.state);
        (state.quotas[0].used(), state.quotas[1].used(), self.limit, state.blocked)
    }

    /// The streams whose Request is queued, rising.
    pub(crate) fn unsent_requests(&self) -> Vec<u32> {
        let state = lock(&self.state);
        let headers = state.chunks.0.iter().flat_map(Chunk::headers).map(|(_, header)| header);
        let is_request = |header: &Header| header.frame_type == FrameType::Request;
        headers.filter(is_request).map(|header| header.stream_id).collect()
    }

    /// Closes the queue: all waits for capacity end, and no frame is pushed or taken any more.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        if !state.is_closed {
            state.note_unsent();
        }
        state.is_closed = true;
        state.blocked.set(false);
        let mut wakers = state.gate.close();
        state.quotas.iter_mut().for_each(|quota| wakers.append(&mut quota.close()));
        let chunks = mem::take(&mut state.chunks);
        drop(state);
        drop(chunks);
        wake_all(wakers);
    }
}

/// A condition that holds if the count has changed since the last evaluation.
fn changed_since_last_check(count: impl Fn() -> u64) -> impl Fn() -> bool {
    let seen = AtomicU64::new(count());
    move || {
        let now = count();
        seen.swap(now, Relaxed) != now
    }
}

impl<T> QueueState<T> {
    /// Returns how often capacity has been released: frames have been written to their end, or dropped.
    fn releases(&self) -> u64 {
        self.quotas.iter().map(Quota::releases).sum()
    }

    /// Releases capacity, and returns the wakers of those that get it.
    fn release(&mut self, Capacity(loads): Capacity) -> Wakers {
        let mut wakers = Wakers::new();
        for (quota, load) in self.quotas.iter_mut().zip(loads) {
            if load != Load::default() {
                wakers.extend(quota.release(load));
            }
        }
        wakers
    }

    /// There is nothing to write, and nobody does.
    fn become_idle(&mut self, waker: Waker, writer: Writer) {
        self.gate.park(waker, writer);
        self.chunks.release_idle_memory();
        self.withdrawn = BTreeSet::new();
    }

    /// Releases the capacity that is free now. Returns the wakers of those that get it.
    fn drop_withdrawn(&mut self, batch: &mut VecDeque<Chunk>, written: usize) -> Wakers {
        if self.withdrawn.is_empty() {
            return Wakers::new();
        }
        let withdrawn = mem::take(&mut self.withdrawn);
        let freed = self.chunks.drop_withdrawn(batch, written, &withdrawn);
        self.release(freed)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::{Pin, pin},
        sync::Arc,
        task::Context,
        time::Duration,
    };

    use tokio::{
        io::empty,
        time::{Instant, timeout},
    };

    use super::*;
    use crate::Connection;

    fn queue() -> Queue<()> {
        Queue::new(10, 1000, ())
    }

    /// Takes as a sender does, that has just come.
    async fn take(queue: &Queue<()>) -> VecDeque<Chunk> {
        let mut batch = VecDeque::new();
        let written = queue.take(&mut batch, &mut Some(Connection::new(empty()).writer)).await;
        assert!(matches!(written, Some(Ok(0))), "the queue is open");
        batch
    }

    fn push(queue: &Queue<()>, len: usize, stream_id: u32) {
        let header = Header {
            data_len: len as u32 - 10,
            ..Header::from_bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0])
        };
        let mut frame = [&header.to_bytes()[..], &vec![0; len - 10]].concat();
        let room = queue.try_reserve(len).unwrap().unwrap();
        assert!(room.push(&mut frame, |()| Some(stream_id.into())).is_queued());
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_waits_for_frames_learns_that_the_queue_is_closed() {
        let queue = Arc::new(queue());
        let waiting = queue.clone();
        let sender = tokio::spawn(async move {
            let mut writer = Some(Connection::new(empty()).writer);
            let taken = waiting.take(&mut VecDeque::new(), &mut writer).await;
            assert!(writer.is_some(), "it has its writer again");
            taken
        });
        tokio::task::yield_now().await;
        queue.close();
        let taken = timeout(Duration::from_secs(1), sender).await.expect("it is woken");
        assert!(taken.unwrap().is_none());
    }

    /// Else a peer that sends what needs no answer would cost a waker per frame, while a server that
    /// drains waits for it to read.
    #[tokio::test]
    async fn a_task_that_waits_for_all_to_be_written_is_noted_once_however_often_it_asks() {
        let queue = queue();
        push(&queue, 10, 1);
        let mut flushed = pin!(queue.flushed());
        for _ in 0..1000 {
            let polled = poll_fn(|cx| Poll::Ready(flushed.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
        }
        assert_eq!(queue.flush_waiters(), 1);
    }

    #[tokio::test]
    async fn a_flush_waits_for_what_was_queued_before_it_and_for_nothing_later() {
        let queue = queue();
        fn polled(flushed: &mut Pin<&mut impl Future<Output = ()>>) -> bool {
            flushed.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        }
        assert!(polled(&mut pin!(queue.flushed())), "nothing is queued");
        push(&queue, 10, 1);
        let batch = take(&queue).await;
        push(&queue, 10, 3);
        let mut flushed = pin!(queue.flushed());
        assert!(!polled(&mut flushed));
        batch.into_iter().for_each(|chunk| queue.release(chunk));
        let batch = take(&queue).await;
        push(&queue, 10, 5);
        assert!(!polled(&mut flushed), "the second frame is in the sender's hand");
        batch.into_iter().for_each(|chunk| queue.release(chunk));
        take(&queue).await;
        assert!(polled(&mut flushed), "the third frame came later");
    }

    /// Else a thread of the blocking client would wait for ever for what nobody writes any more.
    #[tokio::test(start_paused = true)]
    async fn a_queue_that_closes_wakes_those_who_wait_for_all_to_be_written() {
        let queue = queue();
        push(&queue, 10, 1);
        let _never_written = take(&queue).await;
        let start = Instant::now();
        let flushed = || timeout(Duration::from_secs(1), queue.flushed());
        let (one, other, ()) = tokio::join!(flushed(), flushed(), async { queue.close() });
        assert_eq!((one, other, start.elapsed()), (Ok(()), Ok(()), Duration::ZERO));
    }

    #[tokio::test]
    async fn room_is_taken_until_a_frame_is_written_and_not_while_it_is_refused() {
        let queue = queue();
        push(&queue, 600, 1);
        let room = queue.try_reserve(400).unwrap().unwrap();
        assert!(queue.try_reserve(10).unwrap().is_none());
        assert_eq!(room.push(&mut vec![0; 10], |()| None), Pushed::Refused);
        assert_eq!(queue.fill().0, Load::one(600));
        let batch = take(&queue).await;
        assert_eq!(queue.fill().0, Load::one(600), "the sender has it");
        batch.into_iter().for_each(|chunk| queue.release(chunk));
        assert_eq!(queue.fill().0, Load::default());
    }

    #[tokio::test]
    async fn a_frame_that_is_longer_than_the_limit_is_let_in_alone() {
        let queue = queue();
        push(&queue, 10, 1);
        assert!(queue.try_reserve(5000).unwrap().is_none());
        take(&queue).await.into_iter().for_each(|chunk| queue.release(chunk));
        push(&queue, 5000, 3);
        assert!(queue.is_full_for_short());
        let len = LONG_FRAME_LEN + 1;
        push(&queue, len, 5);
        assert!(queue.try_reserve(len).unwrap().is_none());
        take(&queue).await.into_iter().for_each(|chunk| queue.release(chunk));
        let (short, long, ..) = queue.fill();
        assert_eq!((short, long), Default::default());
    }

    #[tokio::test]
    async fn long_frames_and_short_ones_do_not_take_room_from_each_other() {
        let limit = 3 * LONG_FRAME_LEN;
        let queue = Queue::new(10, limit, ());
        let is_free = |len| queue.try_reserve(len).expect("it is open").is_some();
        push(&queue, 2 * LONG_FRAME_LEN, 1);
        assert!(
            !is_free(LONG_FRAME_LEN + 1) && is_free(LONG_FRAME_LEN) && !queue.is_full_for_short()
        );
        let mut long = pin!(queue.reserve(2 * LONG_FRAME_LEN));
        assert!(poll_fn(|cx| Poll::Ready(long.as_mut().poll(cx))).await.is_pending());
        for id in [3, 5, 7] {
            push(&queue, LONG_FRAME_LEN, id);
        }
        assert!(!is_free(10) && queue.is_full_for_short());
        let batch = take(&queue).await;
        let (long_chunk, short): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|chunk| chunk.bytes.len() > LONG_FRAME_LEN);
        short.into_iter().for_each(|chunk| queue.release(chunk));
        assert!(is_free(LONG_FRAME_LEN) && !is_free(LONG_FRAME_LEN + 1), "another waits for it");
        long_chunk.into_iter().for_each(|chunk| queue.release(chunk));
        let polled = poll_fn(|cx| Poll::Ready(long.as_mut().poll(cx))).await;
        drop(polled);
        let (short, long, ..) = queue.fill();
        assert_eq!((short, long), Default::default());
    }

    /// Else a peer that does not read long frames would look like handlers that do not move.
    #[tokio::test]
    async fn a_queue_is_stuck_while_long_frames_wait_and_none_is_written() {
        let queue = Queue::new(10, 2 * LONG_FRAME_LEN, ());
        let is_stuck = queue.is_stuck();
        push(&queue, LONG_FRAME_LEN + 1, 1);
        assert!(!is_stuck() && !is_stuck(), "nothing waits");
        let mut long = pin!(queue.reserve(LONG_FRAME_LEN + 1));
        assert!(poll_fn(|cx| Poll::Ready(long.as_mut().poll(cx))).await.is_pending());
        assert!(is_stuck());
        push(&queue, 10, 3);
        take(&queue).await.into_iter().rev().take(1).for_each(|chunk| queue.release(chunk));
        assert!(!is_stuck(), "a short frame has been written");
        assert!(is_stuck());
    }

    /// Else a peer that is owed nothing would be taken for one that does not read.
    #[tokio::test(start_paused = true)]
    async fn a_queue_has_stalled_once_it_is_full_and_until_a_frame_is_written() {
        const SECOND: Duration = Duration::from_secs(1);
        let queue = Queue::new(2, 1000, ());
        // It ends all the same: who waits for the peer may wait for what another task has been granted and does not use.
        timeout(2 * SECOND, queue.stall(SECOND)).await.expect("it has an end");
        assert!(!queue.has_stalled(), "nothing is owed");
        push(&queue, 10, 1);
        push(&queue, 10, 3);
        let mut batch = take(&queue).await;
        let start = Instant::now();
        queue.stall(SECOND).await;
        assert_eq!(start.elapsed(), SECOND);
        queue.note_write(true, Capacity::default());
        queue.stall(SECOND).await;
        assert_eq!(start.elapsed(), SECOND, "only a part of a frame has been written since");
        queue.release(batch.pop_front().expect("a chunk was taken"));
        assert!(!queue.has_stalled());
    }

    /// Else callers would wait, behind a full socket, for capacity that is free.
    #[tokio::test]
    async fn the_room_of_a_large_frame_is_free_as_soon_as_it_is_dropped() {
        for len in [50_000, LONG_FRAME_LEN + 1] {
            let queue = Queue::new(10, 100_000, ());
            push(&queue, 10, 1);
            push(&queue, len, 3);
            let mut batch = take(&queue).await;
            queue.withdraw(|()| Some(3));
            queue.drop_withdrawn(&mut batch, 5);
            let (short, long, ..) = queue.fill();
            assert_eq!((short, long), (Load::one(10), Load::default()));
        }
    }

    /// A shared chunk keeps the capacity of frames that were dropped from it, and may take more of them.
    #[tokio::test]
    async fn room_of_short_frames_is_freed_as_such_however_much_one_chunk_has_taken() {
        let queue = Queue::new(100, 4 * LONG_FRAME_LEN, ());
        push(&queue, 10, 1);
        let mut batch = take(&queue).await;
        push(&queue, 10, 3);
        for id in (5..41).step_by(2) {
            push(&queue, 10_000, id);
            queue.withdraw(|()| Some(id));
            queue.drop_withdrawn(&mut batch, 5);
        }
        assert!(queue.fill().0.cost > LONG_FRAME_LEN);
        batch.into_iter().for_each(|chunk| queue.release(chunk));
        take(&queue).await.into_iter().for_each(|chunk| queue.release(chunk));
        let (short, long, ..) = queue.fill();
        assert_eq!((short, long), Default::default());
    }

    #[tokio::test]
    async fn the_room_of_a_large_frame_is_free_when_it_is_dropped_before_the_sender_had_it() {
        let queue = Queue::new(10, 100_000, ());
        push(&queue, 50_000, 1);
        push(&queue, 10, 3);
        queue.withdraw(|()| Some(1));
        let batch = take(&queue).await;
        assert_eq!((batch.len(), queue.fill().0), (1, Load::one(10)));
    }

    #[tokio::test]
    async fn a_withdrawn_stream_is_not_written_and_one_that_is_written_is_forgotten() {
        let queue = queue();
        push(&queue, 10, 1);
        push(&queue, 10, 3);
        assert_eq!(queue.unsent_requests(), [1, 3]);
        queue.withdraw(|()| Some(1));
        let batch = take(&queue).await;
        assert_eq!(batch.iter().map(|chunk| chunk.bytes.len()).sum::<usize>(), 10);
        queue.withdraw(|()| Some(3));
        batch.into_iter().for_each(|chunk| queue.release(chunk));
        let mut take = pin!(take(&queue));
        assert!(poll_fn(|cx| Poll::Ready(take.as_mut().poll(cx))).await.is_pending());
        assert!(lock(&queue.state).withdrawn.is_empty());
    }

    #[tokio::test]
    async fn a_closed_queue_is_told_from_a_full_one() {
        let queue = Queue::new(1, 1000, ());
        let permit = queue.try_reserve(10).expect("it is open").expect("it is empty");
        assert!(queue.try_reserve(10).expect("it is open").is_none(), "it is full");
        queue.close();
        assert_eq!(queue.try_reserve(10).unwrap_err(), Closed);
        assert_eq!(queue.try_reserve(LONG_FRAME_LEN + 1).unwrap_err(), Closed);
        drop(permit);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_room_learns_that_the_queue_is_closed() {
        for len in [10, LONG_FRAME_LEN + 1] {
            let queue = Queue::new(1, 1000, ());
            push(&queue, len, 1);
            let waiting = timeout(Duration::from_secs(1), queue.reserve(len));
            let (reserved, ()) = tokio::join!(waiting, async { queue.close() });
            assert_eq!(reserved.expect("it is woken").unwrap_err(), Closed);
        }
    }
}
