//! The inbox of a stream: messages that arrived and that the consumer has not taken yet.
//!
//! Bounded in messages and in bytes. Its one producer is the connection's receiver, which waits for
//! room only as long as the consumer moves (see [`stall`](super::stall)).
//!
//! Small messages lie back to back in chunks. The consumer takes a whole chunk in its hands, as a
//! [`Batch`], and its messages from there without a lock; until then they count as not taken.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
    vec,
};

use bytes::{Buf, Bytes};
use tokio::{sync::Notify, task::coop::poll_proceed};

use super::{
    lock,
    stall::{Ask, Stalls},
};
use crate::{Status, proto::payload::Payload};

/// Bytes after which a chunk is full; what a consumer may keep alive beyond its messages.
const CHUNK_LEN: usize = 16 << 10;

/// What a message in an inbox costs beside its bytes, at most: its place there, and what allocation
/// adds. A peer that sends very short messages would else cost many times what the limits on bytes
/// say.
const MESSAGE_COST: usize = 64;

/// What a message of this many bytes costs while it is in an inbox.
pub(crate) fn cost(bytes: usize) -> usize {
    Fill::one(bytes).cost()
}

/// The inbox of one stream.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// What the consumer has not taken, in the state and in its hands: a packed [`Fill`].
    fill: AtomicU64,
    /// When the consumer last took a message, or the first of these came; see [`Stalls`].
    moved_at: AtomicU64,
    /// The consumer notifies `changed` when no more than this is left: a packed [`Fill`], 0 if the
    /// receiver does not wait.
    notify_at: AtomicU64,
    /// The stream has failed, and what the consumer has in its hands counts no more.
    is_overtaken: AtomicBool,
    /// Notified when there is room again, when the consumer goes away, and at the stream's end, if
    /// `State::is_watched`.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Chunk>,
    /// The payload of a Response, behind all messages. Kept apart since most calls have nothing else.
    last: Option<Bytes>,
    /// Set once nothing more comes: the stream ended well, or how it failed.
    end: Option<Result<(), Status>>,
    /// The consumer is gone; what arrives is dropped.
    is_abandoned: bool,
    consumer: Option<Waker>,
    /// Somebody waits for changes.
    is_watched: bool,
}

#[derive(Debug)]
enum Chunk {
    /// The only message that is there, or a long one.
    One(Bytes),
    /// Small ones, back to back, with their lengths.
    Many(Vec<u8>, Vec<u32>),
}

/// Small messages of one stream that have arrived together and go into its inbox together, so that
/// its lock is taken once for all of them.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    bytes: Vec<u8>,
    lens: Vec<u32>,
}

/// Messages that the consumer has in its hands.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Bytes,
    lens: vec::IntoIter<u32>,
}

/// How much an inbox holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboxLimits {
    messages: usize,
    bytes: usize,
}

impl InboxLimits {
    /// Both at least 1, and no more than half of what can be counted.
    pub(crate) fn new(messages: usize, bytes: usize) -> Self {
        InboxLimits {
            messages: messages.clamp(1, 1 << (u64::BITS - Fill::BYTES_BITS - 1)),
            bytes: bytes.clamp(1, Fill::MAX_BYTES),
        }
    }
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fill {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Fill {
    /// Bits of a packed fill that count bytes; the others count messages.
    const BYTES_BITS: u32 = 40;

    /// Half of the bytes that can be counted, or of those that there can be on a system of 32 bits.
    const MAX_BYTES: usize = if usize::BITS < Self::BYTES_BITS {
        usize::MAX / 2
    } else {
        (1u64 << (Self::BYTES_BITS - 1)) as usize
    };

    fn one(bytes: usize) -> Self {
        Fill { messages: 1, bytes }
    }

    fn cost(self) -> usize {
        self.bytes + self.messages * MESSAGE_COST
    }

    fn plus(self, other: Fill) -> Fill {
        Fill { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }

    /// Both counts in one word, so that they change in one step.
    fn pack(self) -> u64 {
        ((self.messages as u64) << Fill::BYTES_BITS) + self.bytes as u64
    }

    fn unpack(packed: u64) -> Self {
        let bytes = packed & ((1 << Fill::BYTES_BITS) - 1);
        Fill { messages: (packed >> Fill::BYTES_BITS) as usize, bytes: bytes as usize }
    }

    /// Whether a message of this many bytes may come to what is there. One that is longer than the
    /// limit may come to nothing, else it could never be received.
    fn has_room(self, bytes: usize, limits: InboxLimits) -> bool {
        self.messages == 0
            || (self.messages < limits.messages && self.bytes + bytes <= limits.bytes)
    }

    /// The fill at which the receiver, which has a message of this many bytes, is to be woken: there
    /// is room, and where the inbox is large, room for more than one message.
    fn notify_at(bytes: usize, limits: InboxLimits) -> Self {
        let messages = (limits.messages - limits.messages / 4).min(limits.messages - 1);
        Fill { messages, bytes: limits.bytes.saturating_sub(bytes) }
    }

    fn is_within(self, other: Fill) -> bool {
        self.messages == 0 || (self.messages <= other.messages && self.bytes <= other.bytes)
    }
}

impl Inbox {
    fn load(&self) -> Fill {
        Fill::unpack(self.fill.load(SeqCst))
    }

    /// Whether a message of this many bytes has room, or would be dropped since nobody waits for it
    /// any more. Room stays until the producer uses it.
    pub(crate) fn has_room(&self, bytes: usize, limits: InboxLimits) -> bool {
        self.load().has_room(bytes, limits) || lock(&self.state).is_closed()
    }

    /// Waits for room for a message of this many bytes, as long as the consumer moves. `false` if it
    /// does not, or if it has stood still while another inbox of the connection was waited for.
    pub(crate) async fn wait_for_room(
        &self,
        bytes: usize,
        limits: InboxLimits,
        stalls: &Stalls,
        stall_timeout: Duration,
        is_paused: Ask<'_, bool>,
    ) -> bool {
        if stalls.stood_still_since(self.moved_at.load(Relaxed)) {
            return false;
        }
        let notify_at = Fill::notify_at(bytes, limits).pack().max(1);
        let has_room = || {
            // Before it looks: what the consumer takes afterwards is notified.
            self.notify_at.store(notify_at, SeqCst);
            self.has_room(bytes, limits)
        };
        let moves = || self.fill.load(SeqCst);
        let room = stalls.wait(self.changed(), stall_timeout, &has_room, &moves, is_paused).await;
        self.notify_at.store(0, SeqCst);
        room
    }

    /// Whether what arrives is dropped.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed()
    }

    /// Adds a message, for which there is room. `false` if nobody waits for it any more.
    pub(crate) fn push(&self, message: Payload<'_>, stalls: &Stalls) -> bool {
        let fill = Fill::one(message.remaining());
        self.append(fill, stalls, |state| state.append(message))
    }

    /// Adds a message to those that go into this inbox together. `false` if it is to be added by
    /// itself: it is too long, or there is no room.
    pub(crate) fn gather(
        &self,
        arrivals: &mut Arrivals,
        bytes: &[u8],
        limits: InboxLimits,
    ) -> bool {
        let is_short = arrivals.bytes.len() + bytes.len() <= CHUNK_LEN;
        let fits = is_short && self.load().plus(arrivals.fill()).has_room(bytes.len(), limits);
        if fits {
            arrivals.bytes.extend_from_slice(bytes);
            arrivals.lens.push(bytes.len() as u32);
        }
        fits
    }

    /// Adds what was gathered.
    pub(crate) fn push_all(&self, arrivals: &mut Arrivals, stalls: &Stalls) {
        let fill = arrivals.fill();
        if fill.messages > 0 {
            let Arrivals { bytes, lens } = std::mem::take(arrivals);
            self.append(fill, stalls, |state| state.chunks.push_back(Chunk::Many(bytes, lens)));
        }
    }

    fn append(&self, fill: Fill, stalls: &Stalls, append: impl FnOnce(&mut State)) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed() {
            return false;
        }
        if self.fill.fetch_add(fill.pack(), SeqCst) == 0 {
            self.moved_at.store(stalls.now(), Relaxed);
        }
        append(&mut state);
        let consumer = state.consumer.take();
        drop(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
        true
    }

    /// Notified when the receiver may find room again, when the consumer goes away, and at the
    /// stream's end.
    pub(crate) fn changed(&self) -> &Notify {
        lock(&self.state).is_watched = true;
        &self.changed
    }

    fn notify(&self, state: MutexGuard<'_, State>) {
        let is_watched = state.is_watched;
        drop(state);
        if is_watched {
            self.changed.notify_waiters();
        }
    }

    /// Says that nothing more comes after what is in the inbox, and how the stream ended. A last
    /// message, the payload of a Response, needs no room. The first end counts.
    ///
    /// If the consumer waits, `before_wake` runs before it can see the end.
    pub(crate) fn end(
        &self,
        last: Option<Bytes>,
        end: Result<(), Status>,
        before_wake: impl FnOnce(),
    ) {
        let mut state = lock(&self.state);
        if state.end.is_none() {
            state.last = last.filter(|_| !state.is_abandoned);
            state.end = Some(end);
        }
        let consumer = state.consumer.take();
        if consumer.is_some() {
            before_wake();
        }
        self.notify(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
    }

    /// Ends the stream with a failure that overtakes what is in the inbox. Gives back the cost of
    /// what this frees.
    pub(crate) fn fail(&self, status: Status) -> usize {
        let mut state = lock(&self.state);
        let freed = self.clear(&mut state);
        state.end = Some(Err(status));
        self.is_overtaken.store(true, SeqCst);
        let consumer = state.consumer.take();
        self.notify(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
        freed
    }

    /// The consumer goes away. Gives back the cost of what this frees.
    pub(crate) fn abandon(&self) -> usize {
        let mut state = lock(&self.state);
        state.is_abandoned = true;
        state.consumer = None;
        let freed = self.clear(&mut state);
        self.notify(state);
        freed
    }

    /// Drops what nobody can take any more. Gives back what it cost.
    pub(crate) fn drop_rest(&mut self) -> usize {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        fill_of(&std::mem::take(&mut state.chunks)).cost()
    }

    /// Drops what the consumer has in its hands. Gives back what it cost.
    pub(crate) fn give_up(&self, batch: &mut Batch) -> usize {
        let Batch { bytes, lens } = std::mem::take(batch);
        let fill = Fill { messages: lens.len(), bytes: bytes.len() };
        self.fill.fetch_sub(fill.pack(), SeqCst);
        fill.cost()
    }

    /// Drops what the consumer has not in its hands. Gives back what it cost.
    fn clear(&self, state: &mut State) -> usize {
        state.last = None;
        let fill = fill_of(&std::mem::take(&mut state.chunks));
        self.fill.fetch_sub(fill.pack(), SeqCst);
        fill.cost()
    }

    /// How the stream ended, if it has.
    pub(crate) fn end_status(&self) -> Option<Result<(), Status>> {
        lock(&self.state).end.clone()
    }

    /// What is not taken, and whether the consumer waits for the next message.
    pub(crate) fn fill(&self) -> (Fill, bool) {
        let consumer_waits = lock(&self.state).consumer.is_some();
        (self.load(), consumer_waits)
    }

    /// The next message, for the one consumer, who keeps `batch` from one call to the next:
    /// `Ok(None)` at a good end, and from then on.
    pub(crate) fn poll_take(
        &self,
        batch: &mut Batch,
        cx: &mut Context<'_>,
        stalls: &Stalls,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        // A consumer that is always behind lets other tasks run now and then.
        let budget = ready!(poll_proceed(cx));
        let polled = self.poll_take_now(batch, cx, stalls);
        if polled.is_ready() {
            budget.made_progress();
        }
        polled
    }

    fn poll_take_now(
        &self,
        batch: &mut Batch,
        cx: &mut Context<'_>,
        stalls: &Stalls,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        if !self.is_overtaken.load(SeqCst)
            && let Some(message) = batch.next()
        {
            self.count_out(&message, stalls);
            return Poll::Ready(Ok(Some(message)));
        }
        let mut state = lock(&self.state);
        let message = match state.chunks.pop_front() {
            Some(Chunk::One(message)) => message,
            Some(Chunk::Many(bytes, lens)) => {
                *batch = Batch { bytes: bytes.into(), lens: lens.into_iter() };
                batch.next().expect("a chunk holds messages")
            }
            None => return state.poll_end(cx),
        };
        drop(state);
        self.count_out(&message, stalls);
        Poll::Ready(Ok(Some(message)))
    }

    /// The last message of a call that has no others, or its end.
    pub(crate) fn poll_last(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        lock(&self.state).poll_end(cx)
    }

    /// The consumer has taken a message.
    fn count_out(&self, message: &Bytes, stalls: &Stalls) {
        let taken = Fill::one(message.len());
        let before = Fill::unpack(self.fill.fetch_sub(taken.pack(), SeqCst));
        self.moved_at.store(stalls.now(), Relaxed);
        let notify_at = self.notify_at.load(SeqCst);
        if notify_at > 0 {
            let left = Fill {
                messages: before.messages - taken.messages,
                bytes: before.bytes - taken.bytes,
            };
            if left.is_within(Fill::unpack(notify_at)) {
                // Once: the receiver asks again if it has to.
                self.notify_at.store(0, SeqCst);
                self.changed.notify_waiters();
            }
        }
    }
}

impl State {
    /// Whether further messages are dropped.
    fn is_closed(&self) -> bool {
        self.is_abandoned || self.end.is_some()
    }

    fn append(&mut self, message: Payload<'_>) {
        let bytes = message.bytes();
        match self.chunks.back_mut() {
            Some(Chunk::Many(chunk, lens)) if chunk.len() + bytes.len() <= CHUNK_LEN => {
                chunk.extend_from_slice(bytes);
                lens.push(bytes.len() as u32);
            }
            Some(_) if bytes.len() <= CHUNK_LEN => {
                self.chunks.push_back(Chunk::Many(bytes.to_vec(), vec![bytes.len() as u32]));
            }
            _ => self.chunks.push_back(Chunk::One(message.to_bytes())),
        }
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if let Some(message) = self.last.take() {
            return Poll::Ready(Ok(Some(message)));
        }
        match &self.end {
            Some(Ok(())) => Poll::Ready(Ok(None)),
            Some(Err(status)) => Poll::Ready(Err(status.clone())),
            None => {
                match &mut self.consumer {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => self.consumer = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

fn fill_of(chunks: &VecDeque<Chunk>) -> Fill {
    chunks.iter().map(Chunk::fill).fold(Fill::default(), Fill::plus)
}

impl Chunk {
    fn fill(&self) -> Fill {
        match self {
            Chunk::One(message) => Fill::one(message.len()),
            Chunk::Many(bytes, lens) => Fill { messages: lens.len(), bytes: bytes.len() },
        }
    }
}

impl Arrivals {
    fn fill(&self) -> Fill {
        Fill { messages: self.lens.len(), bytes: self.bytes.len() }
    }
}

impl Iterator for Batch {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let len = self.lens.next()?;
        Some(self.bytes.split_to(len as usize))
    }
}

#[cfg(test)]
mod tests {
    use futures_core::future::BoxFuture;
    use std::{future::poll_fn, pin::pin};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: InboxLimits = InboxLimits { messages: 100, bytes: 1000 };

    fn take<'a>(
        inbox: &'a Inbox,
        batch: &'a mut Batch,
        stalls: &'a Stalls,
    ) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(async { poll_fn(|cx| inbox.poll_take(batch, cx, stalls)).await.unwrap() })
    }

    fn push(inbox: &Inbox, bytes: &[u8], stalls: &Stalls) -> bool {
        inbox.push(Payload::borrowed(bytes), stalls)
    }

    #[tokio::test]
    async fn messages_come_out_as_they_went_in_whatever_their_lengths() {
        let (inbox, stalls, mut batch) = (Inbox::default(), Stalls::default(), Batch::default());
        let lens = [0, 1, 64, 0, CHUNK_LEN, CHUNK_LEN + 1, 10, CHUNK_LEN - 10, 1, 100_000, 0, 7];
        for round in 0..3 {
            for len in lens {
                assert!(push(&inbox, &vec![round; len], &stalls));
            }
            for len in lens {
                let message = take(&inbox, &mut batch, &stalls).await.unwrap();
                assert_eq!(message, vec![round; len]);
            }
            assert_eq!(inbox.fill().0, Fill::default());
        }
        push(&inbox, b"last", &stalls);
        inbox.end(Some(Bytes::from_static(b"reply")), Ok(()), || {});
        assert_eq!(take(&inbox, &mut batch, &stalls).await.unwrap(), "last");
        assert_eq!(take(&inbox, &mut batch, &stalls).await.unwrap(), "reply");
        assert_eq!(take(&inbox, &mut batch, &stalls).await, None);
    }

    #[tokio::test]
    async fn what_is_in_the_consumers_hands_counts_until_it_is_taken_or_given_up() {
        let (inbox, stalls, mut batch) = (Inbox::default(), Stalls::default(), Batch::default());
        for _ in 0..10 {
            push(&inbox, &[1; 10], &stalls);
        }
        for left in [9, 8] {
            take(&inbox, &mut batch, &stalls).await.unwrap();
            assert_eq!(inbox.fill().0, Fill { messages: left, bytes: left * 10 });
        }
        push(&inbox, &[1; 10], &stalls);
        assert_eq!(inbox.fail(Status::internal("")), cost(10), "the one that is not in a hand");
        let poll = poll_fn(|cx| inbox.poll_take(&mut batch, cx, &stalls));
        assert_eq!(poll.await, Err(Status::internal("")), "a failure overtakes");
        assert_eq!(inbox.give_up(&mut batch), 8 * cost(10));
        assert_eq!(inbox.fill().0, Fill::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moves_slowly_is_waited_for_and_one_that_stands_still_is_not() {
        let (inbox, stalls, mut batch) = (Inbox::default(), Stalls::default(), Batch::default());
        while inbox.has_room(10, LIMITS) {
            push(&inbox, &[1; 10], &stalls);
        }
        assert_eq!(inbox.fill().0, Fill { messages: 100, bytes: 1000 });
        {
            let mut room = pin!(inbox.wait_for_room(500, LIMITS, &stalls, SECOND, &|| false));
            for _ in 0..50 {
                let waited = tokio::time::timeout(SECOND * 9 / 10, room.as_mut()).await;
                assert!(waited.is_err(), "there is no room yet");
                take(&inbox, &mut batch, &stalls).await.unwrap();
            }
            assert!(room.await);
        }
        assert!(push(&inbox, &[1; 500], &stalls));
        assert!(!inbox.wait_for_room(10, LIMITS, &stalls, SECOND, &|| false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn room_for_one_message_is_used_before_long() {
        let (inbox, stalls, mut batch) = (Inbox::default(), Stalls::default(), Batch::default());
        while inbox.has_room(1, LIMITS) {
            push(&inbox, &[1], &stalls);
        }
        let start = tokio::time::Instant::now();
        let room = inbox.wait_for_room(1, LIMITS, &stalls, SECOND, &|| false);
        let (room, _) = tokio::join!(room, take(&inbox, &mut batch, &stalls));
        assert!(room && start.elapsed() < SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_is_woken_when_a_quarter_is_free() {
        let (inbox, stalls, mut batch) = (Inbox::default(), Stalls::default(), Batch::default());
        while inbox.has_room(1, LIMITS) {
            push(&inbox, &[1], &stalls);
        }
        let start = tokio::time::Instant::now();
        let taking = async {
            for _ in 0..25 {
                take(&inbox, &mut batch, &stalls).await;
            }
        };
        let room = inbox.wait_for_room(1, LIMITS, &stalls, SECOND, &|| false);
        assert!(tokio::join!(room, taking).0);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_was_woken_too_early_is_woken_again() {
        let (inbox, stalls, mut batch) = (Inbox::default(), Stalls::default(), Batch::default());
        for len in [1000, 0, 0] {
            push(&inbox, &vec![1; len], &stalls);
        }
        let start = tokio::time::Instant::now();
        let taking = async {
            for _ in 0..3 {
                // In between the receiver finds that there is no room yet for what it has.
                tokio::task::yield_now().await;
                take(&inbox, &mut batch, &stalls).await;
            }
        };
        let room = inbox.wait_for_room(2000, LIMITS, &stalls, SECOND, &|| false);
        assert!(tokio::join!(room, taking).0);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moved_while_another_stood_still_is_given_its_own_time() {
        let (still, moving, stalls) = (Inbox::default(), Inbox::default(), Stalls::default());
        let mut batch = Batch::default();
        for inbox in [&still, &moving] {
            while inbox.has_room(500, LIMITS) {
                push(inbox, &[1; 500], &stalls);
            }
        }
        let wait = still.wait_for_room(500, LIMITS, &stalls, SECOND, &|| false);
        let (room, _) = tokio::join!(wait, take(&moving, &mut batch, &stalls));
        assert!(!room);
        push(&moving, &[1; 500], &stalls);
        let wait = moving.wait_for_room(500, LIMITS, &stalls, SECOND, &|| false);
        let (room, _) = tokio::join!(wait, take(&moving, &mut batch, &stalls));
        assert!(room);
    }
}
