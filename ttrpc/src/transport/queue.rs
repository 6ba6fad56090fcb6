//! The outgoing queue of a connection: frames on their way to the sender.
//!
//! A producer first reserves room, which waits in turn while the queue is full, and then pushes,
//! which never waits. Room is taken from the reservation until the frame has been written to the
//! socket, so the limits bound everything that is encoded and not yet sent, the sender's own batch
//! included.
//!
//! Small frames lie back to back in shared chunks, so that the sender writes many of them with one
//! system call; a large frame is a chunk of its own and is not copied.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, TryAcquireError},
    time::Instant,
};

use super::lock;
use crate::{
    proto::spare::{self, Spare},
    snapshot::{Fill, QueueSnapshot},
};

thread_local! {
    static SPARE: Spare<Vec<u8>> = const { Spare::new() };
}

/// Frames up to this many bytes are copied into a shared chunk, longer ones are chunks themselves.
const SHARED_FRAME_LEN: usize = 16 << 10;

/// Bytes after which a shared chunk is full.
const SHARED_CHUNK_LEN: usize = 64 << 10;

/// For how long the sender steps back behind tasks that are about to push, not counting the last step:
/// what a few hundred short handlers take.
const MAX_STEP_BACK: Duration = Duration::from_micros(300);

/// Marks of frames for which an idle queue keeps room.
const IDLE_MARKS: usize = 64;

/// The queue is closed: its connection has ended.
#[derive(Debug, PartialEq)]
pub(crate) struct Closed;

/// Room in the queue for one frame, given back when dropped unused.
#[derive(Debug)]
pub(crate) struct Room<'a, M> {
    queue: &'a Queue<M>,
    permits: u32,
}

/// An encoded frame, header and data.
pub(crate) enum FrameBytes<'a> {
    /// To be copied.
    Small(&'a [u8]),
    /// To be queued as it is.
    Large(Vec<u8>),
}

/// Frames that lie back to back, with the room that they take.
#[derive(Debug)]
pub(crate) struct Chunk<M> {
    pub(crate) bytes: Vec<u8>,
    marks: Vec<Mark<M>>,
    room: RoomTaken,
    is_shared: bool,
}

/// What frames take until they are written.
#[derive(Clone, Copy, Debug, Default)]
struct RoomTaken {
    frames: usize,
    bytes: usize,
    permits: usize,
}

/// Where a frame lies in its chunk, and what its producer said of it.
#[derive(Debug)]
struct Mark<M> {
    start: usize,
    len: usize,
    tag: M,
}

impl<M> Chunk<M> {
    /// Looks at each tagged frame that starts at or behind `from` and drops those for which `keep`
    /// says no. `keep` may write into the frame, to give it its stream id. Every frame is tagged, or
    /// none is.
    pub(crate) fn retain(&mut self, from: usize, mut keep: impl FnMut(&M, &mut [u8]) -> bool) {
        if self.marks.is_empty() {
            return;
        }
        let bytes = &mut self.bytes;
        // Where the next frame that is kept goes; behind the last one only if any was dropped.
        let mut end = 0;
        self.marks.retain_mut(|mark| {
            let range = mark.start..mark.start + mark.len;
            let is_kept = mark.start < from || keep(&mark.tag, &mut bytes[range.clone()]);
            if is_kept {
                if end < mark.start {
                    bytes.copy_within(range, end);
                    mark.start = end;
                }
                end = mark.start + mark.len;
            }
            is_kept
        });
        bytes.truncate(end);
    }

    /// The tags of the chunk's frames.
    pub(crate) fn into_tags(self) -> impl Iterator<Item = M> {
        self.marks.into_iter().map(|mark| mark.tag)
    }
}

/// The queue. `M` is what a producer may attach to a frame for the sender to look at.
///
/// Both limits are one semaphore: a frame takes a permit for each of its bytes, and at least as many
/// as there are for one frame. So neither limit is passed, and a queue of both short and long frames
/// is full a little before either is reached.
#[derive(Debug)]
pub(crate) struct Queue<M> {
    max_frames: usize,
    max_bytes: usize,
    min_permits: u32,
    permits: Semaphore,
    state: Mutex<State<M>>,
    /// Tasks that have been woken and are about to push; see [`Queue::announce`].
    about_to_push: AtomicUsize,
    blocked: Mutex<Blocked>,
}

/// For how long the socket has been full.
#[derive(Debug, Default)]
struct Blocked {
    since: Option<Instant>,
    /// Without the time since `since`.
    total: Duration,
}

#[derive(Debug)]
struct State<M> {
    chunks: VecDeque<Chunk<M>>,
    /// What is not yet written, the sender's batch included.
    room: RoomTaken,
    /// An empty chunk's buffers, for the next shared chunk.
    spare: (Vec<u8>, Vec<Mark<M>>),
    sender: Option<Waker>,
    is_writing: bool,
    is_closed: bool,
    idle_waiters: Vec<Waker>,
}

impl<M> Queue<M> {
    /// A queue for this many frames and bytes, both at least 1. A frame that is longer than
    /// `max_bytes` is let in when the queue is empty.
    pub(crate) fn new(max_frames: usize, max_bytes: usize) -> Self {
        let max_frames = max_frames.max(1);
        let max_bytes = max_bytes.clamp(1, (u32::MAX as usize).min(Semaphore::MAX_PERMITS));
        Queue {
            max_frames,
            max_bytes,
            min_permits: max_bytes.div_ceil(max_frames) as u32,
            permits: Semaphore::new(max_bytes),
            state: Mutex::new(State {
                chunks: VecDeque::new(),
                room: RoomTaken::default(),
                spare: (Vec::new(), Vec::new()),
                sender: None,
                is_writing: false,
                is_closed: false,
                idle_waiters: Vec::new(),
            }),
            about_to_push: AtomicUsize::new(0),
            blocked: Mutex::default(),
        }
    }

    /// Room for a frame of `len` bytes if there is some now. `Ok(None)` when the queue is full.
    pub(crate) fn try_reserve(&self, len: usize) -> Result<Option<Room<'_, M>>, Closed> {
        let permits = self.permits_for(len);
        match self.permits.try_acquire_many(permits) {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::NoPermits) => return Ok(None),
            Err(TryAcquireError::Closed) => return Err(Closed),
        }
        Ok(Some(Room { queue: self, permits }))
    }

    fn permits_for(&self, len: usize) -> u32 {
        (len.min(self.max_bytes) as u32).max(self.min_permits)
    }

    /// Waits for room for a frame of `len` bytes, in the order in which callers came.
    ///
    /// Cancel safe: dropped, it gives up its place and what it had reserved.
    pub(crate) async fn reserve(&self, len: usize) -> Result<Room<'_, M>, Closed> {
        let permits = self.permits_for(len);
        self.permits.acquire_many(permits).await.map_err(|_| Closed)?.forget();
        Ok(Room { queue: self, permits })
    }

    /// Waits until the queue is not full, behind those that wait for room already.
    pub(crate) async fn has_room(&self) -> Result<(), Closed> {
        self.reserve(1).await.map(drop)
    }

    /// Whether a frame would have to wait now.
    pub(crate) fn is_full(&self) -> bool {
        self.permits.available_permits() < self.min_permits as usize
    }

    /// Says that a task which was just woken or spawned will probably push soon; the sender then
    /// steps back before it writes, so that the frame joins its batch. Taken back with
    /// [`Queue::retract`] as soon as the task has run.
    pub(crate) fn announce(&self) {
        self.about_to_push.fetch_add(1, Relaxed);
    }

    /// Ends an [`Queue::announce`].
    pub(crate) fn retract(&self) {
        self.about_to_push.fetch_sub(1, Relaxed);
    }

    /// Adds a frame, if `is_wanted` says under the queue's lock that it still is. Gives back
    /// whether it was added.
    fn push(
        &self,
        permits: u32,
        frame: FrameBytes<'_>,
        tag: Option<M>,
        is_wanted: impl FnOnce() -> bool,
    ) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed || !is_wanted() {
            drop(state);
            self.permits.add_permits(permits as usize);
            return false;
        }
        state.append(permits as usize, frame, tag);
        let sender = state.sender.take();
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
        true
    }

    /// Adds a frame without room of its own: for the few bytes that close a stream, of which there
    /// is at most one per call.
    pub(crate) fn push_unreserved(&self, frame: &[u8], tag: M) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        state.append(0, FrameBytes::Small(frame), Some(tag));
        let sender = state.sender.take();
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// Waits until there are frames and takes them all. `None` once the queue is closed.
    ///
    /// For the one sender. Before it takes them it steps back behind the tasks that are scheduled, again
    /// and again for a short time, as long as some of them are about to push and their number falls.
    pub(crate) async fn take(&self) -> Option<VecDeque<Chunk<M>>> {
        let mut steps_back = StepsBack::default();
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.is_closed {
                return Poll::Ready(None);
            }
            if state.chunks.is_empty() {
                state.become_idle(cx.waker());
                return Poll::Pending;
            }
            if steps_back.are_worth_it(self.about_to_push.load(Relaxed)) {
                drop(state);
                // Unlike [`tokio::task::yield_now`], this leaves the task where other workers find it: a
                // handler that blocks this one does not hold it up.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            state.is_writing = true;
            Poll::Ready(Some(mem::take(&mut state.chunks)))
        })
        .await
    }

    /// The chunk has been written, or all its frames were dropped: frees its room.
    pub(crate) fn release(&self, chunk: Chunk<M>) {
        let Chunk { mut bytes, mut marks, room, is_shared } = chunk;
        let mut state = lock(&self.state);
        state.room.subtract(room);
        if is_shared && state.spare.0.capacity() < bytes.capacity() {
            bytes.clear();
            marks.clear();
            state.spare = (bytes, marks);
        }
        drop(state);
        self.permits.add_permits(room.permits);
    }

    /// The sender found the socket full, or no longer so.
    pub(crate) fn note_blocked(&self, is_blocked: bool) {
        let mut blocked = lock(&self.blocked);
        if let Some(since) = blocked.since.take() {
            blocked.total += since.elapsed();
        }
        blocked.since = is_blocked.then(Instant::now);
    }

    /// How full the queue is. `waited_total` is for the connection to add.
    pub(crate) fn snapshot(&self, waited_total: Duration) -> QueueSnapshot {
        let RoomTaken { frames, bytes, .. } = lock(&self.state).room;
        let blocked = lock(&self.blocked);
        let now = blocked.since.map(|since| since.elapsed());
        QueueSnapshot {
            frames: Fill { used: frames, limit: self.max_frames },
            bytes: Fill { used: bytes, limit: self.max_bytes },
            blocked: now,
            blocked_total: blocked.total + now.unwrap_or_default(),
            waited_total,
        }
    }

    /// Looks at the tags of all frames that the sender has not taken.
    pub(crate) fn map_tags<R>(&self, map: impl FnMut(&M) -> Option<R>) -> Vec<R> {
        let state = lock(&self.state);
        let marks = state.chunks.iter().flat_map(|chunk| &chunk.marks);
        marks.map(|mark| &mark.tag).filter_map(map).collect()
    }

    /// Waits until every frame has been written.
    pub(crate) async fn flushed(&self) {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.is_closed || (state.chunks.is_empty() && !state.is_writing) {
                return Poll::Ready(());
            }
            if !state.idle_waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) {
                state.idle_waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Closes the queue: whoever waits for room is told, and no frame is taken any more. Gives
    /// back the chunks that were never taken.
    pub(crate) fn close(&self) -> VecDeque<Chunk<M>> {
        self.permits.close();
        self.note_blocked(false);
        let mut state = lock(&self.state);
        state.is_closed = true;
        let wakers = mem::take(&mut state.idle_waiters);
        let sender = state.sender.take();
        let chunks = mem::take(&mut state.chunks);
        drop(state);
        wakers.into_iter().chain(sender).for_each(Waker::wake);
        chunks
    }
}

/// The sender's steps back before one batch.
#[derive(Default)]
struct StepsBack {
    first: Option<Instant>,
    /// Those who were about to push at the last one.
    coming: Option<usize>,
}

impl StepsBack {
    /// Whether to step back once more, now that so many are about to push.
    fn are_worth_it(&mut self, coming: usize) -> bool {
        coming > 0
            && self.coming.replace(coming).is_none_or(|before| coming < before)
            && self.first.get_or_insert_with(Instant::now).elapsed() <= MAX_STEP_BACK
    }
}

impl RoomTaken {
    fn add(&mut self, other: RoomTaken) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.permits += other.permits;
    }

    fn subtract(&mut self, other: RoomTaken) {
        self.frames -= other.frames;
        self.bytes -= other.bytes;
        self.permits -= other.permits;
    }
}

impl<M> State<M> {
    fn append(&mut self, permits: usize, frame: FrameBytes<'_>, tag: Option<M>) {
        let bytes = match &frame {
            FrameBytes::Small(bytes) => *bytes,
            FrameBytes::Large(bytes) => bytes,
        };
        let len = bytes.len();
        let room = RoomTaken { frames: 1, bytes: len, permits };
        self.room.add(room);
        if len <= SHARED_FRAME_LEN {
            let chunk = self.shared_chunk(len);
            let start = chunk.bytes.len();
            chunk.bytes.extend_from_slice(bytes);
            chunk.room.add(room);
            chunk.marks.extend(tag.map(|tag| Mark { start, len, tag }));
            return;
        }
        let bytes = match frame {
            FrameBytes::Small(bytes) => bytes.to_vec(),
            FrameBytes::Large(bytes) => bytes,
        };
        let marks = tag.into_iter().map(|tag| Mark { start: 0, len, tag }).collect();
        self.chunks.push_back(Chunk { bytes, marks, room, is_shared: false });
    }

    /// The last chunk if it has room for `len` bytes, else a new one.
    fn shared_chunk(&mut self, len: usize) -> &mut Chunk<M> {
        let fits =
            |chunk: &Chunk<M>| chunk.is_shared && chunk.bytes.len() + len <= SHARED_CHUNK_LEN;
        if !self.chunks.back().is_some_and(fits) {
            let (mut bytes, marks) = mem::take(&mut self.spare);
            if bytes.capacity() == 0 {
                bytes = spare::take(&SPARE);
            }
            let room = RoomTaken::default();
            let chunk = Chunk { bytes, marks, room, is_shared: true };
            self.chunks.push_back(chunk);
        }
        self.chunks.back_mut().expect("a chunk was pushed if there was none")
    }

    /// The sender has nothing to write.
    fn become_idle(&mut self, sender: &Waker) {
        self.is_writing = false;
        let (bytes, marks) = &mut self.spare;
        spare::give_back(&SPARE, mem::take(bytes));
        marks.shrink_to(IDLE_MARKS);
        self.chunks.shrink_to(1);
        self.idle_waiters.drain(..).for_each(Waker::wake);
        match &mut self.sender {
            Some(waker) => waker.clone_from(sender),
            None => self.sender = Some(sender.clone()),
        }
    }
}

impl<M> Room<'_, M> {
    /// Adds the frame, if `is_wanted` says under the queue's lock that it still is. Gives back
    /// whether it was added.
    pub(crate) fn push(
        self,
        frame: FrameBytes<'_>,
        tag: Option<M>,
        is_wanted: impl FnOnce() -> bool,
    ) -> bool {
        let Room { queue, permits } = self;
        mem::forget(self);
        queue.push(permits, frame, tag, is_wanted)
    }
}

impl<M> Drop for Room<'_, M> {
    fn drop(&mut self) {
        self.queue.permits.add_permits(self.permits as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin};

    use super::*;

    /// Else a peer that sends what needs no answer would cost a waker per frame, while a server that
    /// drains waits for it to read.
    #[tokio::test]
    async fn whoever_waits_for_all_to_be_written_is_noted_once_however_often_it_asks() {
        let queue = Queue::<()>::new(10, 1000);
        let room = queue.try_reserve(1).unwrap().unwrap();
        assert!(room.push(FrameBytes::Small(&[0]), None, || true));
        let mut flushed = pin!(queue.flushed());
        for _ in 0..1000 {
            let polled = poll_fn(|cx| Poll::Ready(flushed.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
        }
        assert_eq!(lock(&queue.state).idle_waiters.len(), 1);
    }
}
