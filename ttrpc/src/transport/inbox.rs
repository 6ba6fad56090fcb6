//! The inbox of a stream: messages that arrived and that the consumer has not taken yet, and the
//! state of what they belong to.
//!
//! Bounded in messages and in bytes. Its one producer is the connection's receiver, which waits for
//! room only as long as the consumer moves (see [`stall`](super::stall)).
//!
//! The state, a [`Phase`] of the owner's choice, stands behind the same lock as the messages: on the
//! client it is the state of the whole call, on the server that of the stream of requests. Whoever
//! changes it does so in [`Inbox::change`], which wakes those who wait for the change.
//!
//! A consumer takes several small messages at once, as a [`Batch`], and uses them without a lock;
//! until then they count as not taken.

use std::{
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    sync::Notify,
    task::{coop::poll_proceed, yield_now},
    time::timeout,
};

use super::{
    lock,
    messages::{Batch, Fill, Gathered, InboxLimits, Messages},
    stall::{Condition, Patience, stands_still},
    wait_until,
};
use crate::{
    Status,
    proto::payload::Payload,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

/// The state of what the messages belong to.
pub(crate) trait Phase {
    /// What the consumer gets behind all messages: a last one, `None` at a good end, or how the
    /// stream failed. `None` as long as more may come.
    fn end(&mut self) -> Option<Result<Option<Bytes>, Status>>;

    /// Whether more messages may come.
    fn is_open(&self) -> bool;
}

/// The inbox of one stream.
#[derive(Debug, Default)]
pub(crate) struct Inbox<P> {
    state: Mutex<State<P>>,
    /// What the consumer has not taken, in its batch too: a packed [`Fill`].
    fill: AtomicU64,
    /// When the consumer last took a message, or the first of these came; see [`Patience`].
    moved_at: AtomicU64,
    /// The consumer has taken a message.
    is_read: AtomicBool,
    /// Nanoseconds for which the consumer was waited for until it moved; see [`Patience`].
    credit: AtomicU64,
    /// The receiver is woken when no more than this is left: a packed [`Fill`], 0 if it does not
    /// wait.
    wake_at: AtomicU64,
    /// Notified when there is room again, when the consumer goes away, and of every change of the
    /// phase, if `State::is_watched`.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State<P> {
    phase: P,
    messages: Messages,
    consumer: Consumer,
    /// Somebody waits for changes.
    is_watched: bool,
}

/// The one who takes messages.
#[derive(Debug, Default)]
enum Consumer {
    /// Does something else.
    #[default]
    Busy,
    /// Waits for a message or the end.
    Waiting(Waker),
    /// Takes no more; what arrives is dropped.
    Gone,
}

impl Consumer {
    /// Takes the waker of a consumer that waits.
    fn take_waker(&mut self) -> Option<Waker> {
        match std::mem::take(self) {
            Consumer::Waiting(waker) => Some(waker),
            Consumer::Busy => None,
            Consumer::Gone => {
                *self = Consumer::Gone;
                None
            }
        }
    }

    /// Notes the waker of a consumer that waits. Returns what it had before, which is to be dropped
    /// without the lock: dropping a waker runs code of the program's.
    fn wait(&mut self, cx: &Context<'_>) -> Consumer {
        match self {
            Consumer::Waiting(waker) if waker.will_wake(cx.waker()) => Consumer::Busy,
            _ => std::mem::replace(self, Consumer::Waiting(cx.waker().clone())),
        }
    }
}

impl<P: Phase> State<P> {
    /// Whether further messages are dropped.
    fn is_closed(&self) -> bool {
        matches!(self.consumer, Consumer::Gone) || !self.phase.is_open()
    }
}

impl<P: Phase + Send> Inbox<P> {
    fn load(&self) -> Fill {
        Fill::unpack(self.fill.load(SeqCst))
    }

    /// Reads the phase, or changes of it what nobody waits for.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut P) -> R) -> R {
        act(&mut lock(&self.state).phase)
    }

    /// Whether a message of this many bytes has room, or would be dropped since nobody waits for it
    /// any more. Room stays until the producer uses it.
    pub(crate) fn has_room(&self, bytes: usize, limits: InboxLimits) -> bool {
        self.load().has_room(bytes, limits) || self.is_closed()
    }

    /// Waits for room for a message of this many bytes, as long as the consumer moves. `false` if it
    /// does not, or if it has stood still while another inbox of the connection was waited for.
    pub(crate) async fn wait_for_room(
        &self,
        bytes: usize,
        limits: InboxLimits,
        patience: &Patience,
        stall_timeout: Duration,
        is_paused: Condition<'_, bool>,
    ) -> bool {
        if patience.stood_still_since(self.moved_at.load(SeqCst)) {
            return self.has_room(bytes, limits);
        }
        let wake_at = Fill::wake_at(bytes, limits).pack().max(1);
        let has_room = || {
            // Set before it looks: what the consumer takes afterwards wakes it.
            self.wake_at.store(wake_at, SeqCst);
            self.has_room(bytes, limits)
        };
        let moves = || self.fill.load(SeqCst);
        let credit = self.credit.load(SeqCst);
        let wait =
            patience.begin(stall_timeout, self.is_read.load(SeqCst), Duration::from_nanos(credit));
        let unnoticed = if wait.time.is_zero() {
            // A consumer that was just woken gets its turn.
            yield_now().await;
            has_room().then_some(Duration::ZERO)
        } else {
            tokio::select! {
                biased;
                unnoticed = self.room(wait.time, &has_room) => Some(unnoticed),
                _ = stands_still(wait.time, &moves, is_paused) => has_room().then_some(wait.time),
            }
        };
        self.wake_at.store(0, SeqCst);
        let Some(unnoticed) = unnoticed else {
            patience.note_in_vain(wait, stall_timeout);
            return false;
        };
        let earned = patience.note_move(wait, unnoticed, stall_timeout).as_nanos();
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        self.credit.store(credit.saturating_add(earned), SeqCst);
        true
    }

    /// Waits for room, and looks for it now and then, at longer and longer intervals: room for one
    /// message alone wakes nobody. Returns how long there may have been room unnoticed.
    async fn room(&self, stall: Duration, has_room: Condition<'_, bool>) -> Duration {
        let mut pause = stall / 64;
        while timeout(pause, wait_until(self.changed(), has_room)).await.is_err() {
            if has_room() {
                return pause;
            }
            pause = (2 * pause).min(stall / 4);
        }
        Duration::ZERO
    }

    /// Whether what arrives is dropped.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed()
    }

    /// Adds a message, for which there is room. `false` if nobody waits for it any more.
    pub(crate) fn push(&self, message: Payload<'_>, patience: &Patience) -> bool {
        let fill = Fill::one(message.remaining());
        self.append(fill, patience, |messages| messages.push(message))
    }

    /// Adds a message to those that go into this inbox together. `false` if it is to be added by
    /// itself: it is too long, or there is no room.
    pub(crate) fn gather(
        &self,
        gathered: &mut Gathered,
        bytes: &[u8],
        limits: InboxLimits,
    ) -> bool {
        gathered.add(bytes, self.load(), limits)
    }

    /// Adds what was gathered.
    pub(crate) fn push_all(&self, gathered: &mut Gathered, patience: &Patience) {
        let fill = gathered.fill();
        if fill.messages > 0 {
            let gathered = std::mem::take(gathered);
            self.append(fill, patience, |messages| messages.push_all(gathered));
        }
    }

    fn append(&self, fill: Fill, patience: &Patience, append: impl FnOnce(&mut Messages)) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed() {
            return false;
        }
        if self.fill.fetch_add(fill.pack(), SeqCst) == 0 {
            self.moved_at.store(patience.date(), SeqCst);
        }
        append(&mut state.messages);
        let consumer = state.consumer.take_waker();
        drop(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
        true
    }

    /// Notified when the receiver may find room again, when the consumer goes away, and of changes
    /// of the phase.
    pub(crate) fn changed(&self) -> &Notify {
        lock(&self.state).is_watched = true;
        &self.changed
    }

    /// Changes the phase. `change` is told whether the consumer waits, and says whether it changed
    /// anything; if it did, those who wait are woken.
    pub(crate) fn change(&self, change: impl FnOnce(&mut P, bool) -> bool) -> bool {
        let mut state = lock(&self.state);
        let consumer_waits = matches!(state.consumer, Consumer::Waiting(_));
        let is_changed = change(&mut state.phase, consumer_waits);
        if is_changed {
            self.wake(state);
        }
        is_changed
    }

    /// Changes the phase to a failure. It overtakes what is in the inbox, unless more could not have
    /// come anyway. Returns the cost of what this frees, `None` if nothing changed.
    pub(crate) fn fail(&self, change: impl FnOnce(&mut P) -> bool) -> Option<usize> {
        let mut state = lock(&self.state);
        let was_open = state.phase.is_open();
        if !change(&mut state.phase) {
            return None;
        }
        let freed = if was_open { self.clear(&mut state) } else { 0 };
        self.wake(state);
        Some(freed)
    }

    fn wake(&self, mut state: MutexGuard<'_, State<P>>) {
        let (consumer, is_watched) = (state.consumer.take_waker(), state.is_watched);
        drop(state);
        if is_watched {
            self.changed.notify_waiters();
        }
        if let Some(consumer) = consumer {
            consumer.wake();
        }
    }

    /// The consumer goes away, with the messages that it has at hand. Returns the cost of what this
    /// frees.
    pub(crate) fn abandon(&self, batch: &mut Batch) -> usize {
        let at_hand = std::mem::take(batch).fill();
        self.fill.fetch_sub(at_hand.pack(), SeqCst);
        let mut state = lock(&self.state);
        let freed = self.clear(&mut state);
        let waker = std::mem::replace(&mut state.consumer, Consumer::Gone);
        self.wake(state);
        drop(waker);
        at_hand.cost() + freed
    }

    /// Drops what the consumer has not at hand. Returns what it cost.
    fn clear(&self, state: &mut State<P>) -> usize {
        let fill = state.messages.clear();
        self.fill.fetch_sub(fill.pack(), SeqCst);
        fill.cost()
    }

    /// Drops all messages; for an inbox that nobody can use any more. Returns what they cost.
    pub(crate) fn drop_messages(&self) -> usize {
        let mut state = lock(&self.state);
        self.clear(&mut state)
    }

    /// What is not taken, and whether the consumer waits for the next message.
    pub(crate) fn fill(&self) -> (Fill, bool) {
        let consumer_waits = matches!(lock(&self.state).consumer, Consumer::Waiting(_));
        (self.load(), consumer_waits)
    }

    /// The next message, for the one consumer, who keeps `batch` from one call to the next:
    /// `Ok(None)` at a good end, and from then on.
    pub(crate) fn poll_take(
        &self,
        batch: &mut Batch,
        cx: &mut Context<'_>,
        patience: &Patience,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        // A consumer that is always behind lets other tasks run now and then.
        let budget = ready!(poll_proceed(cx));
        let polled = self.poll_take_now(batch, cx, patience);
        if polled.is_ready() {
            budget.made_progress();
        }
        polled
    }

    fn poll_take_now(
        &self,
        batch: &mut Batch,
        cx: &mut Context<'_>,
        patience: &Patience,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        if let Some(message) = batch.next() {
            self.count_out(&message, patience);
            return Poll::Ready(Ok(Some(message)));
        }
        let mut state = lock(&self.state);
        let Some(message) = state.messages.pop(batch) else {
            return Self::poll_state(state, cx, P::end);
        };
        drop(state);
        self.count_out(&message, patience);
        Poll::Ready(Ok(Some(message)))
    }

    /// What the phase says to a consumer that has no messages to take before it.
    pub(crate) fn poll_phase<R>(
        &self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut P) -> Option<R>,
    ) -> Poll<R> {
        Self::poll_state(lock(&self.state), cx, read)
    }

    fn poll_state<R>(
        mut state: MutexGuard<'_, State<P>>,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut P) -> Option<R>,
    ) -> Poll<R> {
        if let Some(end) = read(&mut state.phase) {
            return Poll::Ready(end);
        }
        let before = state.consumer.wait(cx);
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// The consumer has taken a message.
    fn count_out(&self, message: &Bytes, patience: &Patience) {
        let taken = Fill::one(message.len()).pack();
        let left = self.fill.fetch_sub(taken, SeqCst) - taken;
        self.moved_at.store(patience.date(), SeqCst);
        if !self.is_read.load(SeqCst) {
            self.is_read.store(true, SeqCst);
        }
        let wake_at = self.wake_at.load(SeqCst);
        if wake_at > 0 && Fill::unpack(left).is_within(Fill::unpack(wake_at)) {
            // Once: the receiver asks again if it has to.
            self.wake_at.store(0, SeqCst);
            self.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_core::future::BoxFuture;
    use std::{future::poll_fn, pin::pin};

    use super::{
        super::messages::{CHUNK_LEN, message_cost},
        *,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> InboxLimits {
        InboxLimits::new(100, 1000)
    }

    /// Open, or the end that the consumer gets.
    #[derive(Debug, Default)]
    struct TestPhase(Option<Result<Option<Bytes>, Status>>);

    impl Phase for TestPhase {
        fn end(&mut self) -> Option<Result<Option<Bytes>, Status>> {
            let end = self.0.clone();
            if let Some(Ok(last)) = &mut self.0 {
                *last = None;
            }
            end
        }

        fn is_open(&self) -> bool {
            self.0.is_none()
        }
    }

    type Inbox = super::Inbox<TestPhase>;

    fn take<'a>(
        inbox: &'a Inbox,
        batch: &'a mut Batch,
        patience: &'a Patience,
    ) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(async { poll_fn(|cx| inbox.poll_take(batch, cx, patience)).await.unwrap() })
    }

    fn push(inbox: &Inbox, bytes: &[u8], patience: &Patience) -> bool {
        inbox.push(Payload::borrowed(bytes), patience)
    }

    #[tokio::test]
    async fn messages_come_out_as_they_went_in_whatever_their_lengths() {
        let (inbox, patience, mut batch) =
            (Inbox::default(), Patience::default(), Batch::default());
        let lens = [0, 1, 64, 0, CHUNK_LEN, CHUNK_LEN + 1, 10, CHUNK_LEN - 10, 1, 100_000, 0, 7];
        for round in 0..3 {
            for len in lens {
                assert!(push(&inbox, &vec![round; len], &patience));
            }
            for len in lens {
                let message = take(&inbox, &mut batch, &patience).await.unwrap();
                assert_eq!(message, vec![round; len]);
            }
            assert_eq!(inbox.fill().0, Fill::default());
        }
        push(&inbox, b"last", &patience);
        inbox.change(|phase, _| {
            phase.0 = Some(Ok(Some(Bytes::from_static(b"reply"))));
            true
        });
        assert_eq!(take(&inbox, &mut batch, &patience).await.unwrap(), "last");
        assert_eq!(take(&inbox, &mut batch, &patience).await.unwrap(), "reply");
        assert_eq!(take(&inbox, &mut batch, &patience).await, None);
    }

    #[tokio::test]
    async fn what_the_consumer_has_at_hand_counts_until_it_is_taken_or_given_up() {
        let (inbox, patience, mut batch) =
            (Inbox::default(), Patience::default(), Batch::default());
        for _ in 0..10 {
            push(&inbox, &[1; 10], &patience);
        }
        for left in [9, 8] {
            take(&inbox, &mut batch, &patience).await.unwrap();
            assert_eq!(inbox.fill().0, Fill { messages: left, bytes: left * 10 });
        }
        push(&inbox, &[1; 10], &patience);
        let fail = |phase: &mut TestPhase| {
            phase.0 = Some(Err(Status::internal("")));
            true
        };
        assert_eq!(inbox.fail(fail), Some(message_cost(10)), "the one that is not at hand");
        assert!(take(&inbox, &mut batch, &patience).await.is_some(), "one that is");
        assert!(!push(&inbox, &[1; 10], &patience));
        assert_eq!(inbox.abandon(&mut batch), 7 * message_cost(10));
        assert_eq!(inbox.fill().0, Fill::default());
    }

    #[tokio::test]
    async fn a_failure_overtakes_messages_unless_they_had_ended_well() {
        for (has_ended, left) in [(false, 0), (true, 1)] {
            let (inbox, patience) = (Inbox::default(), Patience::default());
            push(&inbox, &[1; 10], &patience);
            if has_ended {
                inbox.with(|phase| phase.0 = Some(Ok(None)));
            }
            inbox.fail(|_| true);
            assert_eq!(inbox.fill().0.messages, left);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moves_slowly_is_waited_for_and_one_that_stands_still_is_not() {
        let (inbox, patience, mut batch) =
            (Inbox::default(), Patience::default(), Batch::default());
        while inbox.has_room(10, limits()) {
            push(&inbox, &[1; 10], &patience);
        }
        assert_eq!(inbox.fill().0, Fill { messages: 100, bytes: 1000 });
        {
            let mut room = pin!(inbox.wait_for_room(500, limits(), &patience, SECOND, &|| false));
            for _ in 0..50 {
                let waited = tokio::time::timeout(SECOND * 9 / 10, room.as_mut()).await;
                assert!(waited.is_err(), "there is no room yet");
                take(&inbox, &mut batch, &patience).await.unwrap();
            }
            assert!(room.await);
        }
        assert!(push(&inbox, &[1; 500], &patience));
        assert!(!inbox.wait_for_room(10, limits(), &patience, SECOND, &|| false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn room_for_one_message_is_used_before_long() {
        let (inbox, patience, mut batch) =
            (Inbox::default(), Patience::default(), Batch::default());
        while inbox.has_room(1, limits()) {
            push(&inbox, &[1], &patience);
        }
        let start = tokio::time::Instant::now();
        let room = inbox.wait_for_room(1, limits(), &patience, SECOND, &|| false);
        let (room, _) = tokio::join!(room, take(&inbox, &mut batch, &patience));
        assert!(room && start.elapsed() < SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_is_woken_when_a_quarter_is_free() {
        let (inbox, patience, mut batch) =
            (Inbox::default(), Patience::default(), Batch::default());
        while inbox.has_room(1, limits()) {
            push(&inbox, &[1], &patience);
        }
        let start = tokio::time::Instant::now();
        let taking = async {
            for _ in 0..25 {
                take(&inbox, &mut batch, &patience).await;
            }
        };
        let room = inbox.wait_for_room(1, limits(), &patience, SECOND, &|| false);
        assert!(tokio::join!(room, taking).0);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_was_woken_too_early_is_woken_again() {
        let (inbox, patience, mut batch) =
            (Inbox::default(), Patience::default(), Batch::default());
        for len in [1000, 0, 0] {
            push(&inbox, &vec![1; len], &patience);
        }
        let start = tokio::time::Instant::now();
        let taking = async {
            for _ in 0..3 {
                // In between the receiver finds that there is no room yet for what it has.
                tokio::task::yield_now().await;
                take(&inbox, &mut batch, &patience).await;
            }
        };
        let room = inbox.wait_for_room(2000, limits(), &patience, SECOND, &|| false);
        assert!(tokio::join!(room, taking).0);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moved_while_another_stood_still_is_given_its_own_time() {
        let (still, moving, patience) = (Inbox::default(), Inbox::default(), Patience::default());
        let mut batch = Batch::default();
        for inbox in [&still, &moving] {
            while inbox.has_room(500, limits()) {
                push(inbox, &[1; 500], &patience);
            }
        }
        let wait = still.wait_for_room(500, limits(), &patience, SECOND, &|| false);
        let (room, _) = tokio::join!(wait, take(&moving, &mut batch, &patience));
        assert!(!room);
        push(&moving, &[1; 500], &patience);
        let wait = moving.wait_for_room(500, limits(), &patience, SECOND, &|| false);
        let (room, _) = tokio::join!(wait, take(&moving, &mut batch, &patience));
        assert!(room);
    }
}
