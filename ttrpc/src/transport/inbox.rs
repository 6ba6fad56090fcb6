//! The inbox of a stream: messages that have arrived and that the consumer has not taken yet, and the
//! state of the stream.
//!
//! An inbox is bounded in messages and in bytes. Its one producer is the connection's receiver, which
//! waits for capacity only while the consumer takes messages (`capacity`, and see [`stall`](super::stall)).
//!
//! The stream's state is behind the same lock as the messages. On the client it is the state of the
//! whole call, on the server that of the stream of requests; [`StreamState`] is what the inbox needs to
//! know of it. [`Inbox::change`] and [`Inbox::fail`] change it, and wake the tasks that wait for that.
//!
//! A consumer takes several small messages at once, as a [`Batch`], and uses them without a lock;
//! until then they count as not taken.

mod capacity;

use std::{
    mem,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::sync::Notify;

use super::{
    lock,
    messages::{Batch, Fill, MessageChunk, Messages},
    stall::StallBudget,
};
use crate::{
    Status,
    contain::{notify_waiters, wake},
    proto::payload::Payload,
    sync::{Mutex, MutexGuard},
};

/// The state of the stream whose messages an inbox holds.
pub(crate) trait StreamState {
    /// Returns what the consumer receives after all messages: a last one, `Ok(None)` at a good end, or how the
    /// stream failed. `None` while more may come.
    fn end(&mut self) -> Option<Result<Option<Bytes>, Status>>;

    /// Returns whether more messages may come.
    fn is_open(&self) -> bool;
}

/// The inbox of one stream.
#[derive(Debug, Default)]
pub(crate) struct Inbox<S> {
    state: Mutex<InboxState<S>>,
    /// Notified when there is capacity again, when the consumer goes away, and of every change of the
    /// stream's state, if `InboxState::is_watched`.
    changed: Notify,
}

#[derive(Debug, Default)]
struct InboxState<S> {
    stream: S,
    messages: Messages,
    consumer: Consumer,
    /// A task waits for changes.
    is_watched: bool,
    /// Messages that the consumer has not taken, its batch included.
    fill: Fill,
    /// When the consumer last took a message, or the first of these came; see [`StallBudget`].
    moved_at: u64,
    /// Messages that the consumer has taken.
    takes: u64,
    /// For how long the consumer was waited for until it took a message; see [`StallBudget`].
    credit: Duration,
    /// The receiver waits, and is woken when no more than this is left.
    wake_at: Option<Fill>,
}

/// The state of the consumer.
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

/// Where the consumer's next message is.
enum Refill {
    /// In its batch, with others.
    Batch,
    /// Here: a long one, one that was alone, or the last one, which came with the stream's end.
    One(Bytes),
    /// Nowhere: the stream has ended.
    End,
}

impl<S: StreamState> InboxState<S> {
    /// Returns whether further messages are dropped.
    fn is_closed(&self) -> bool {
        matches!(self.consumer, Consumer::Gone) || !self.stream.is_open()
    }

    /// Drops all messages that are not in the consumer's batch. Returns what they cost.
    fn clear(&mut self) -> usize {
        let fill = self.messages.clear();
        self.fill.remove(fill);
        fill.cost()
    }
}

impl Consumer {
    /// Takes the waker of a consumer that waits.
    fn take_waker(&mut self) -> Option<Waker> {
        match mem::take(self) {
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
            _ => mem::replace(self, Consumer::Waiting(cx.waker().clone())),
        }
    }
}

impl<S: StreamState + Send> Inbox<S> {
    /// Reads the stream's state, or makes a change of it for which no task waits.
    #[cfg(test)]
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut S) -> R) -> R {
        act(&mut lock(&self.state).stream)
    }

    /// Returns whether what arrives is dropped.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed()
    }

    /// Adds a message, for which there is capacity. `false` if it is dropped: the inbox is closed.
    pub(crate) fn push(&self, message: Payload<'_>, budget: &StallBudget) -> bool {
        let fill = Fill::one(message.remaining());
        self.append(fill, budget, |messages| messages.push(message))
    }

    /// Adds so many messages, at least one, that lie in frames back to back, and for which there is capacity.
    pub(crate) fn push_frames(&self, frames: &[u8], count: usize, budget: &StallBudget) {
        let fill = Fill::of_frames(count, frames.len());
        let frames = frames.to_vec();
        self.append(fill, budget, |messages| messages.push_frames(frames, count));
    }

    /// Returns the capacity that is left.
    pub(crate) fn free(&self, limits: Fill) -> Fill {
        lock(&self.state).fill.free(limits)
    }

    fn append(&self, fill: Fill, budget: &StallBudget, append: impl FnOnce(&mut Messages)) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed() {
            return false;
        }
        if state.fill == Fill::default() {
            state.moved_at = budget.date();
        }
        state.fill.add(fill);
        append(&mut state.messages);
        let consumer = state.consumer.take_waker();
        drop(state);
        if let Some(consumer) = consumer {
            wake(consumer);
        }
        true
    }

    /// Notified when the receiver may find capacity again, when the consumer goes away, and of changes
    /// of the stream's state.
    pub(crate) fn changed(&self) -> &Notify {
        lock(&self.state).is_watched = true;
        &self.changed
    }

    /// Changes the stream's state. `change` returns whether it has changed anything; if so, all tasks
    /// that wait are woken.
    pub(crate) fn change(&self, change: impl FnOnce(&mut S) -> bool) -> bool {
        let mut state = lock(&self.state);
        let is_changed = change(&mut state.stream);
        if is_changed {
            self.wake(state);
        }
        is_changed
    }

    /// Changes the stream's state to a failure. It overtakes what is in the inbox, unless more could not have
    /// come anyway. Returns the cost of what this frees, `None` if nothing changed.
    pub(crate) fn fail(&self, change: impl FnOnce(&mut S) -> bool) -> Option<usize> {
        let mut state = lock(&self.state);
        let was_open = state.stream.is_open();
        if !change(&mut state.stream) {
            return None;
        }
        let freed = if was_open { state.clear() } else { 0 };
        self.wake(state);
        Some(freed)
    }

    fn wake(&self, mut state: MutexGuard<'_, InboxState<S>>) {
        let (consumer, is_watched) = (state.consumer.take_waker(), state.is_watched);
        drop(state);
        if is_watched {
            notify_waiters(&self.changed);
        }
        if let Some(consumer) = consumer {
            wake(consumer);
        }
    }

    /// The consumer goes away, with the messages of its batch. Returns the cost of all that this frees.
    pub(crate) fn abandon(&self, batch: &mut Batch) -> usize {
        let in_batch = mem::take(batch).fill();
        let mut state = lock(&self.state);
        state.fill.remove(in_batch);
        let freed = state.clear();
        let waker = mem::replace(&mut state.consumer, Consumer::Gone);
        self.wake(state);
        drop(waker);
        in_batch.cost() + freed
    }

    /// Drops all messages of an inbox that is about to be dropped itself. Returns what they cost.
    pub(crate) fn drop_messages(&self) -> usize {
        lock(&self.state).clear()
    }

    /// Returns what is not taken, and whether the consumer waits for the next message.
    pub(crate) fn fill(&self) -> (Fill, bool) {
        let state = lock(&self.state);
        (state.fill, matches!(state.consumer, Consumer::Waiting(_)))
    }

    /// Returns what `read` makes of the next message. For the one consumer, which keeps `batch` from one call to the next:
    /// `Ok(None)` at a good end, and from then on. The message is read where it lies.
    pub(crate) fn poll_take<R>(
        &self,
        batch: &mut Batch,
        cx: &mut Context<'_>,
        budget: &StallBudget,
        read: impl FnOnce(Payload<'_>) -> R,
    ) -> Poll<Result<Option<R>, Status>> {
        // A consumer that always lags lets other tasks run now and then.
        ready!(batch.budget.poll_spend(cx));
        let mut one = None;
        if batch.is_empty() {
            match ready!(self.poll_refill(batch, cx, budget))? {
                Refill::Batch => {}
                Refill::One(message) => one = Some(message),
                Refill::End => return Poll::Ready(Ok(None)),
            }
        }
        // It is read in one place, so that what the program's type makes of it is compiled there.
        let message = match &one {
            Some(message) => Payload::shared(message, message),
            None => {
                let message = batch.next().expect("it is not empty");
                self.count_out(message.remaining(), budget);
                message
            }
        };
        let bytes = message.remaining();
        let message = read(message);
        batch.budget.spend_bytes(bytes);
        if batch.is_empty() {
            batch.release();
        }
        Poll::Ready(Ok(Some(message)))
    }

    /// Takes the first message, with those that lie in one chunk with it.
    fn poll_refill(
        &self,
        batch: &mut Batch,
        cx: &mut Context<'_>,
        budget: &StallBudget,
    ) -> Poll<Result<Refill, Status>> {
        let mut state = lock(&self.state);
        Poll::Ready(Ok(match state.messages.pop() {
            Some(MessageChunk::Many(frames, count)) => {
                drop(state);
                batch.refill(frames, count);
                Refill::Batch
            }
            Some(MessageChunk::One(message)) => {
                drop(state);
                self.count_out(message.len(), budget);
                Refill::One(message)
            }
            None => {
                let end = ready!(Self::poll_state(state, cx, S::end));
                end?.map_or(Refill::End, Refill::One)
            }
        }))
    }

    fn poll_state<R>(
        mut state: MutexGuard<'_, InboxState<S>>,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut S) -> Option<R>,
    ) -> Poll<R> {
        if let Some(end) = read(&mut state.stream) {
            return Poll::Ready(end);
        }
        let before = state.consumer.wait(cx);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures_core::future::BoxFuture;
    use std::{
        future::poll_fn,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
        time::Duration,
    };

    use super::{
        super::messages::{CHUNK_LEN, message_cost},
        *,
    };

    use crate::proto::frame::HEADER_LEN;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Fill {
        Fill::limit(100, 1000)
    }

    /// Open, or the end that the consumer gets.
    #[derive(Debug, Default)]
    struct TestState(Option<Result<Option<Bytes>, Status>>);

    impl StreamState for TestState {
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

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    type Inbox = super::Inbox<TestState>;

    fn take<'a>(
        inbox: &'a Inbox,
        batch: &'a mut Batch,
        budget: &'a StallBudget,
    ) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(async {
            poll_fn(|cx| inbox.poll_take(batch, cx, budget, |message| message.to_bytes()))
                .await
                .unwrap()
        })
    }

    fn push(inbox: &Inbox, bytes: &[u8], budget: &StallBudget) -> bool {
        inbox.push(Payload::borrowed(bytes), budget)
    }

    #[tokio::test]
    async fn messages_come_out_as_they_went_in_whatever_their_lengths() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        let lens = [0, 1, 64, 0, CHUNK_LEN, CHUNK_LEN + 1, 10, CHUNK_LEN - 10, 1, 100_000, 0, 7];
        for round in 0..3 {
            for len in lens {
                assert!(push(&inbox, &vec![round; len], &budget));
            }
            for len in lens {
                let message = take(&inbox, &mut batch, &budget).await.unwrap();
                assert_eq!(message, vec![round; len]);
            }
            assert_eq!(inbox.fill().0, Fill::default());
        }
        push(&inbox, b"last", &budget);
        inbox.change(|stream| {
            stream.0 = Some(Ok(Some(Bytes::from_static(b"reply"))));
            true
        });
        assert_eq!(take(&inbox, &mut batch, &budget).await.unwrap(), "last");
        assert_eq!(take(&inbox, &mut batch, &budget).await.unwrap(), "reply");
        assert_eq!(take(&inbox, &mut batch, &budget).await, None);
    }

    #[tokio::test]
    async fn what_the_consumer_has_at_hand_counts_until_it_is_taken_or_given_up() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        for _ in 0..10 {
            push(&inbox, &[1; 10], &budget);
        }
        for left in [9, 8] {
            take(&inbox, &mut batch, &budget).await.unwrap();
            assert_eq!(inbox.fill().0, Fill { messages: left, bytes: left * 10 });
        }
        push(&inbox, &[1; 10], &budget);
        let fail = |stream: &mut TestState| {
            stream.0 = Some(Err(Status::internal("")));
            true
        };
        assert_eq!(inbox.fail(fail), Some(message_cost(10)), "the one that is not at hand");
        assert!(take(&inbox, &mut batch, &budget).await.is_some(), "one that is");
        assert!(!push(&inbox, &[1; 10], &budget));
        assert_eq!(inbox.abandon(&mut batch), 7 * message_cost(10));
        assert_eq!(inbox.fill().0, Fill::default());
    }

    #[tokio::test]
    async fn a_failure_overtakes_messages_unless_they_had_ended_well() {
        for (has_ended, left) in [(false, 0), (true, 1)] {
            let (inbox, budget) = (Inbox::default(), StallBudget::new(SECOND));
            push(&inbox, &[1; 10], &budget);
            if has_ended {
                inbox.with(|stream| stream.0 = Some(Ok(None)));
            }
            inbox.fail(|_| true);
            assert_eq!(inbox.fill().0.messages, left);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_wakes_all_tasks_that_wait_for_it() {
        let inbox = Inbox::default();
        let has_failed = || inbox.is_closed();
        let mut waits =
            [0; 3].map(|_| Box::pin(super::super::wait_until(inbox.changed(), &has_failed)));
        for wait in &mut waits {
            assert!(poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await.is_pending());
        }
        inbox.fail(|stream| {
            stream.0 = Some(Err(Status::internal("it fails")));
            true
        });
        for wait in waits {
            assert_eq!(tokio::time::timeout(SECOND, wait).await, Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moves_slowly_is_waited_for_and_one_that_stalled_is_not() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        while inbox.has_room(10, limits()) {
            push(&inbox, &[1; 10], &budget);
        }
        assert_eq!(inbox.fill().0, Fill { messages: 100, bytes: 1000 });
        {
            let mut room = pin!(inbox.wait_for_room(500, limits(), &budget, &|| false));
            for _ in 0..50 {
                let waited = tokio::time::timeout(SECOND * 9 / 10, room.as_mut()).await;
                assert!(waited.is_err(), "there is no room yet");
                take(&inbox, &mut batch, &budget).await.unwrap();
            }
            assert!(room.await);
        }
        assert!(push(&inbox, &[1; 500], &budget));
        assert!(!inbox.wait_for_room(10, limits(), &budget, &|| false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn room_for_one_message_is_used_before_long() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        while inbox.has_room(1, limits()) {
            push(&inbox, &[1], &budget);
        }
        let start = tokio::time::Instant::now();
        let room = inbox.wait_for_room(1, limits(), &budget, &|| false);
        let (room, _) = tokio::join!(room, take(&inbox, &mut batch, &budget));
        assert!(room && start.elapsed() < SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_is_woken_when_a_quarter_is_free() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        while inbox.has_room(1, limits()) {
            push(&inbox, &[1], &budget);
        }
        let start = tokio::time::Instant::now();
        let taking = async {
            for _ in 0..25 {
                take(&inbox, &mut batch, &budget).await;
            }
        };
        let room = inbox.wait_for_room(1, limits(), &budget, &|| false);
        assert!(tokio::join!(room, taking).0);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_was_woken_too_early_is_woken_again() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        for len in [1000, 0, 0] {
            push(&inbox, &vec![1; len], &budget);
        }
        let start = tokio::time::Instant::now();
        let taking = async {
            for _ in 0..3 {
                // In between the receiver finds that there is no capacity yet for what it has.
                tokio::task::yield_now().await;
                take(&inbox, &mut batch, &budget).await;
            }
        };
        let room = inbox.wait_for_room(2000, limits(), &budget, &|| false);
        assert!(tokio::join!(room, taking).0);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moved_while_it_was_waited_for_is_waited_for_when_others_spent_the_budget()
     {
        let (slow, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        let fill = |inbox: &Inbox| {
            while inbox.has_room(500, limits()) {
                push(inbox, &[1; 500], &budget);
            }
        };
        fill(&slow);
        for (others, pause) in [(0, SECOND * 3 / 4), (10, SECOND / 2)] {
            for _ in 0..others {
                let still = Inbox::default();
                fill(&still);
                assert!(!still.wait_for_room(500, limits(), &budget, &|| false).await);
            }
            take(&slow, &mut batch, &budget).await;
            fill(&slow);
            let taking = async {
                tokio::time::sleep(pause).await;
                take(&slow, &mut batch, &budget).await
            };
            let wait = slow.wait_for_room(500, limits(), &budget, &|| false);
            assert!(tokio::join!(wait, taking).0, "behind {others} others");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moved_while_another_stood_still_is_given_its_own_time() {
        let (still, moving, budget) =
            (Inbox::default(), Inbox::default(), StallBudget::new(SECOND));
        let mut batch = Batch::default();
        for inbox in [&still, &moving] {
            while inbox.has_room(500, limits()) {
                push(inbox, &[1; 500], &budget);
            }
        }
        let wait = still.wait_for_room(500, limits(), &budget, &|| false);
        let (room, _) = tokio::join!(wait, take(&moving, &mut batch, &budget));
        assert!(!room);
        push(&moving, &[1; 500], &budget);
        let wait = moving.wait_for_room(500, limits(), &budget, &|| false);
        let (room, _) = tokio::join!(wait, take(&moving, &mut batch, &budget));
        assert!(room);
    }

    #[test]
    fn an_inbox_is_closed_when_its_stream_has_ended_or_its_consumer_is_gone() {
        let (ended, gone) = (Inbox::default(), Inbox::default());
        assert!(!ended.is_closed());
        ended.with(|stream| stream.0 = Some(Ok(None)));
        gone.abandon(&mut Batch::default());
        assert!(ended.is_closed() && gone.is_closed());
    }

    /// Adds these messages together, as a receiver does that has read them together.
    fn push_together(inbox: &Inbox, messages: &[&[u8]], budget: &StallBudget) {
        let mut frames = Vec::new();
        for message in messages {
            frames.extend((message.len() as u32).to_be_bytes());
            frames.extend([0; HEADER_LEN - 4]);
            frames.extend(*message);
        }
        inbox.push_frames(&frames, messages.len(), budget);
    }

    #[test]
    fn messages_that_are_pushed_together_are_freed_with_the_others() {
        let (inbox, budget) = (Inbox::default(), StallBudget::new(SECOND));
        push(&inbox, &[1; 10], &budget);
        push_together(&inbox, &[&[1; 10], &[1; 10]], &budget);
        assert_eq!(inbox.fill().0, Fill { messages: 3, bytes: 30 });
        assert_eq!(inbox.drop_messages(), 3 * message_cost(10));
        assert_eq!(inbox.fill().0, Fill::default());
    }

    /// Else a consumer that waits, or does something else, would keep a chunk of messages that count no longer.
    #[tokio::test]
    async fn a_batch_whose_messages_are_used_keeps_no_bytes() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        push_together(&inbox, &[&[1; 10], &[2; 10]], &budget);
        assert_eq!(take(&inbox, &mut batch, &budget).await.unwrap(), [1; 10][..]);
        assert_eq!(batch.fill(), Fill { messages: 1, bytes: 10 });
        let last = take(&inbox, &mut batch, &budget).await.unwrap();
        assert_eq!(batch.fill(), Fill::default());
        assert!(last == [2; 10][..] && last.is_unique(), "nobody else holds it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_is_not_woken_before_a_quarter_is_free() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        while inbox.has_room(1, limits()) {
            push(&inbox, &[1], &budget);
        }
        let wakes = Arc::new(Wakes::default());
        let mut room = pin!(inbox.wait_for_room(1, limits(), &budget, &|| false));
        let waker = wakes.clone().into();
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        for taken in 1..=25 {
            take(&inbox, &mut batch, &budget).await.unwrap();
            assert_eq!(wakes.0.load(Ordering::SeqCst) > 0, taken == 25, "after {taken}");
        }
    }
}
