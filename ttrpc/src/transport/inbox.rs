//! The inbox of a stream: messages that have arrived and that the consumer has not taken yet, and whether more may come.
//!
//! An inbox is bounded in messages and in bytes. Its one producer is the connection's receiver, which waits for capacity
//! only while the consumer takes messages ([`Inbox::wait_for_capacity`], and see [`stall`](super::stall)).
//!
//! A consumer takes a run of small messages at once, as a [`Batch`], for which it needs the lock once. From then on
//! they no longer count against the inbox's limits; a server's `inbox_bytes` and `inbox_bytes_per_connection` count
//! each until it is decoded. Each message that the consumer uses is progress.

use std::{
    mem,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Buf;
use tokio::{sync::Notify, task::yield_now};

use super::{
    limiter::Load,
    lock,
    messages::{Batch, Messages, Run, cost, fits},
    stall::{Condition, InboxLimit, StallBudget, stalled},
    wait_until,
};
use crate::{
    Status,
    contain::{notify_waiters, wake},
    proto::payload::Payload,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The inbox of one stream.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    /// When the consumer last used a message, or the first of those that are there came; see [`StallBudget`].
    moved_at: AtomicU64,
    /// Notified when the receiver may find capacity again, when the consumer goes away, and when the stream ends.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct InboxState {
    messages: Messages,
    /// How the stream has ended; `None` while more may come.
    end: Option<Result<(), Status>>,
    /// The consumer waits for a message or the end.
    consumer: Option<Waker>,
    /// The consumer takes no more; what arrives is dropped.
    is_abandoned: bool,
    /// Messages that the consumer has not taken.
    fill: Load,
    /// The consumer has taken messages.
    is_read: bool,
    /// For how long the consumer was waited for until it took a message; see [`StallBudget`].
    credit: Duration,
    /// The receiver waits for capacity for a message of so many bytes within these limits.
    awaited: Option<(usize, Load)>,
}

impl InboxState {
    /// Returns whether further messages are dropped.
    fn is_closed(&self) -> bool {
        self.is_abandoned || self.end.is_some()
    }

    /// Returns whether a message of this many bytes fits, or would be dropped.
    fn has_capacity(&self, bytes: usize, limits: Load) -> bool {
        fits(self.fill, bytes, limits) || self.is_closed()
    }

    /// Drops all messages that are not in the consumer's batch. Returns what they cost.
    fn clear(&mut self) -> usize {
        self.messages = Messages::default();
        cost(mem::take(&mut self.fill))
    }
}

impl Inbox {
    /// Returns whether what arrives is dropped.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed()
    }

    /// Adds a message, for which there is capacity. `false` if it is dropped: the inbox is closed.
    pub(crate) fn push(&self, message: Payload<'_>, budget: &StallBudget) -> bool {
        let load = Load::one(message.remaining());
        self.append(load, budget, |messages| messages.push(message))
    }

    /// Adds messages of this load, at least one, that lie in frames back to back, and for which there is capacity.
    pub(crate) fn push_frames(&self, frames: &[u8], load: Load, budget: &StallBudget) {
        let run = Run::Many(frames.to_vec(), load.count);
        self.append(load, budget, |messages| messages.0.push_back(run));
    }

    fn append(&self, load: Load, budget: &StallBudget, append: impl FnOnce(&mut Messages)) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed() {
            return false;
        }
        if state.fill == Load::default() {
            self.moved_at.store(budget.date(), Relaxed);
        }
        state.fill += load;
        append(&mut state.messages);
        let consumer = state.consumer.take();
        drop(state);
        if let Some(consumer) = consumer {
            wake(consumer);
        }
        true
    }

    /// Ends the stream, unless it has ended: the consumer receives this after all messages, which are dropped if
    /// `drops_messages`. Wakes all tasks that wait. Returns the cost of what this frees.
    pub(crate) fn end(&self, end: Result<(), Status>, drops_messages: bool) -> usize {
        let mut state = lock(&self.state);
        let mut freed = 0;
        if state.end.is_none() {
            state.end = Some(end);
            freed = if drops_messages { state.clear() } else { 0 };
        }
        self.wake(state);
        freed
    }

    fn wake(&self, mut state: MutexGuard<'_, InboxState>) {
        let consumer = state.consumer.take();
        drop(state);
        notify_waiters(&self.changed);
        if let Some(consumer) = consumer {
            wake(consumer);
        }
    }

    /// The consumer goes away, with the messages of its batch. Returns the cost of all that this frees.
    pub(crate) fn abandon(&self, batch: &mut Batch) -> usize {
        let taken = mem::take(batch).load();
        let mut state = lock(&self.state);
        let freed = state.clear() + cost(taken);
        state.is_abandoned = true;
        let waker = state.consumer.take();
        self.wake(state);
        drop(waker);
        freed
    }

    /// Drops all messages of an inbox that is about to be dropped itself. Returns what they cost.
    pub(crate) fn drop_messages(&self) -> usize {
        lock(&self.state).clear()
    }

    /// Returns what is not taken, and whether the consumer waits for the next message.
    pub(crate) fn fill(&self) -> (Load, bool) {
        let state = lock(&self.state);
        (state.fill, state.consumer.is_some())
    }

    /// Returns what `read` makes of the next message. For the one consumer, which keeps `batch` from one call to the next:
    /// `Ok(None)` at a good end, and from then on. The message is read where it lies.
    pub(crate) fn poll_take<R>(
        &self,
        batch: &mut Batch,
        cx: &mut Context<'_>,
        budget: &StallBudget,
        read: impl FnOnce(&mut Payload<'_>) -> R,
    ) -> Poll<Result<Option<R>, Status>> {
        // A consumer that always lags lets other tasks run now and then.
        ready!(batch.budget.poll_spend(cx));
        if batch.is_empty() && !ready!(self.poll_refill(batch, cx))? {
            return Poll::Ready(Ok(None));
        }
        let mut message = batch.next();
        let bytes = message.remaining();
        self.moved_at.store(budget.date(), Relaxed);
        let message = read(&mut message);
        batch.budget.spend_bytes(bytes);
        if batch.is_empty() {
            batch.release();
        }
        Poll::Ready(Ok(Some(message)))
    }

    /// Takes the first run of messages. `false` if the stream has ended well.
    fn poll_refill(&self, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        // Wakers are copied and dropped without the lock.
        let waker = cx.waker().clone();
        let mut state = lock(&self.state);
        if let Some(run) = state.messages.0.pop_front() {
            state.fill -= run.load();
            state.is_read = true;
            self.wake_receiver(state);
            batch.refill(run);
            return Poll::Ready(Ok(true));
        }
        if let Some(end) = &state.end {
            return Poll::Ready(end.clone().map(|()| false));
        }
        let _before = state.consumer.replace(waker);
        drop(state);
        Poll::Pending
    }

    /// Wakes the receiver if the message that it waits with fits now. Once: it asks again if it has to.
    fn wake_receiver(&self, mut state: MutexGuard<'_, InboxState>) {
        let fill = state.fill;
        let awaited = state.awaited.take_if(|(bytes, limits)| fits(fill, *bytes, *limits));
        drop(state);
        if awaited.is_some() {
            notify_waiters(&self.changed);
        }
    }

    /// Returns whether a message of this many bytes fits, or would be dropped since the inbox is closed.
    /// Capacity stays until the producer uses it.
    pub(crate) fn has_capacity(&self, bytes: usize, limits: Load) -> bool {
        lock(&self.state).has_capacity(bytes, limits)
    }

    /// Returns whether there is capacity. If not, what the consumer takes wakes the receiver when there is.
    pub(in crate::transport) fn awaits_capacity(&self, bytes: usize, limits: Load) -> bool {
        let mut state = lock(&self.state);
        let has_capacity = state.has_capacity(bytes, limits);
        state.awaited = (!has_capacity).then_some((bytes, limits));
        has_capacity
    }

    /// Returns whether the consumer holds messages and has stalled at a shared limit: it has used none since a whole wait
    /// began there that timed out.
    pub(crate) fn has_stalled(&self, budget: &StallBudget) -> bool {
        let moved_at = self.moved_at.load(Relaxed);
        self.fill().0 != Load::default() && budget.has_timed_out_since(InboxLimit::Shared, moved_at)
    }

    /// Waits for capacity for a message of this many bytes, while the consumer takes messages. `false` if it
    /// does not, or if it has stalled while another inbox of the connection was waited for.
    pub(crate) async fn wait_for_capacity(
        &self,
        bytes: usize,
        limits: Load,
        budget: &StallBudget,
        is_paused: Condition<'_, bool>,
    ) -> bool {
        let (is_read, credit) = {
            let state = lock(&self.state);
            (state.is_read, state.credit)
        };
        let moved_at = || self.moved_at.load(Relaxed);
        if budget.has_timed_out_since(InboxLimit::Own, moved_at()) {
            return self.has_capacity(bytes, limits);
        }
        let wait = budget.begin(InboxLimit::Own, is_read, credit);
        if wait.time.is_zero() {
            // A consumer that was just woken runs first.
            yield_now().await;
        } else {
            let has_capacity = || self.awaits_capacity(bytes, limits);
            let moves = || {
                let moved_at = moved_at();
                // What moves from now on has another date.
                budget.advance_date();
                moved_at
            };
            tokio::select! {
                biased;
                () = wait_until(&self.changed, &has_capacity) => {}
                _ = stalled(wait.time, &moves, is_paused) => {}
            }
        }
        let mut state = lock(&self.state);
        state.awaited = None;
        let has_capacity = state.has_capacity(bytes, limits);
        if has_capacity {
            state.credit = state.credit.saturating_add(wait.began.elapsed());
        } else {
            drop(state);
            budget.note_timeout(wait);
        }
        has_capacity
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_core::future::BoxFuture;
    use std::{future::poll_fn, pin::pin, time::Duration};

    use super::{
        super::messages::{RUN_LEN, message_cost},
        *,
    };

    use crate::proto::frame::HEADER_LEN;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Load {
        Load::limit(100, 1000)
    }

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
        let lens = [0, 1, 64, 0, RUN_LEN, RUN_LEN + 1, 10, RUN_LEN - 10, 1, 100_000, 0, 7];
        for round in 0..3 {
            for len in lens {
                assert!(push(&inbox, &vec![round; len], &budget));
            }
            for len in lens {
                let message = take(&inbox, &mut batch, &budget).await.unwrap();
                assert_eq!(message, vec![round; len]);
            }
            assert_eq!(inbox.fill().0, Load::default());
        }
        push(&inbox, b"last", &budget);
        inbox.end(Ok(()), false);
        assert_eq!(take(&inbox, &mut batch, &budget).await.unwrap(), "last");
        assert_eq!(take(&inbox, &mut batch, &budget).await, None);
    }

    #[tokio::test]
    async fn what_the_consumer_has_at_hand_counts_no_more_and_is_freed_when_it_is_given_up() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        for _ in 0..10 {
            push(&inbox, &[1; 10], &budget);
        }
        // The first message by itself, and all others.
        for left in [9, 0] {
            take(&inbox, &mut batch, &budget).await.unwrap();
            assert_eq!(inbox.fill().0, Load { count: left, cost: left * 10 });
        }
        push(&inbox, &[1; 10], &budget);
        let freed = inbox.end(Err(Status::internal("")), true);
        assert_eq!(freed, message_cost(10), "the one that is not at hand");
        assert!(take(&inbox, &mut batch, &budget).await.is_some(), "one that is");
        assert!(!push(&inbox, &[1; 10], &budget));
        assert_eq!(inbox.abandon(&mut batch), 7 * message_cost(10));
        assert_eq!(inbox.fill().0, Load::default());
    }

    #[tokio::test]
    async fn a_failure_overtakes_messages_unless_they_had_ended_well() {
        for (has_ended, left) in [(false, 0), (true, 1)] {
            let (inbox, budget) = (Inbox::default(), StallBudget::new(SECOND));
            push(&inbox, &[1; 10], &budget);
            if has_ended {
                inbox.end(Ok(()), false);
            }
            inbox.end(Err(Status::internal("")), true);
            assert_eq!(inbox.fill().0.count, left);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_wakes_all_tasks_that_wait_for_it() {
        let inbox = Inbox::default();
        let has_failed = || inbox.is_closed();
        let mut waits =
            [0; 3].map(|_| Box::pin(super::super::wait_until(&inbox.changed, &has_failed)));
        for wait in &mut waits {
            assert!(poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await.is_pending());
        }
        inbox.end(Err(Status::internal("it fails")), true);
        for wait in waits {
            assert_eq!(tokio::time::timeout(SECOND, wait).await, Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moves_slowly_is_waited_for_and_one_that_stalled_is_not() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        while inbox.has_capacity(10, limits()) {
            push(&inbox, &[1; 10], &budget);
        }
        assert_eq!(inbox.fill().0, Load { count: 100, cost: 1000 });
        for _ in 0..2 {
            take(&inbox, &mut batch, &budget).await.unwrap();
        }
        let fill = || {
            while inbox.has_capacity(10, limits()) {
                push(&inbox, &[1; 10], &budget);
            }
        };
        fill();
        {
            let mut capacity = pin!(inbox.wait_for_capacity(500, limits(), &budget, &|| false));
            // It has 98 messages at hand.
            for _ in 0..98 {
                let waited = tokio::time::timeout(SECOND * 9 / 10, capacity.as_mut()).await;
                assert!(waited.is_err(), "there is no capacity yet");
                take(&inbox, &mut batch, &budget).await.unwrap();
            }
            for _ in 0..2 {
                take(&inbox, &mut batch, &budget).await.unwrap();
            }
            assert!(capacity.await);
        }
        fill();
        assert!(!inbox.wait_for_capacity(10, limits(), &budget, &|| false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn capacity_for_one_message_is_used_at_once() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        while inbox.has_capacity(1, limits()) {
            push(&inbox, &[1], &budget);
        }
        let start = tokio::time::Instant::now();
        let capacity = inbox.wait_for_capacity(1, limits(), &budget, &|| false);
        assert!(tokio::join!(capacity, take(&inbox, &mut batch, &budget)).0);
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
        let capacity = inbox.wait_for_capacity(2000, limits(), &budget, &|| false);
        assert!(tokio::join!(capacity, taking).0);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moved_while_it_was_waited_for_is_waited_for_when_others_spent_the_budget()
     {
        let (slow, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        let fill = |inbox: &Inbox| {
            while inbox.has_capacity(500, limits()) {
                push(inbox, &[1; 500], &budget);
            }
        };
        fill(&slow);
        for (others, pause) in [(0, SECOND * 3 / 4), (10, SECOND / 2)] {
            for _ in 0..others {
                let still = Inbox::default();
                fill(&still);
                assert!(!still.wait_for_capacity(500, limits(), &budget, &|| false).await);
            }
            take(&slow, &mut batch, &budget).await;
            fill(&slow);
            let taking = async {
                tokio::time::sleep(pause).await;
                take(&slow, &mut batch, &budget).await
            };
            let wait = slow.wait_for_capacity(500, limits(), &budget, &|| false);
            assert!(tokio::join!(wait, taking).0, "behind {others} others");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moved_while_another_stood_still_is_given_its_own_time() {
        let (still, moving, budget) =
            (Inbox::default(), Inbox::default(), StallBudget::new(SECOND));
        let mut batch = Batch::default();
        for inbox in [&still, &moving] {
            while inbox.has_capacity(500, limits()) {
                push(inbox, &[1; 500], &budget);
            }
        }
        let wait = still.wait_for_capacity(500, limits(), &budget, &|| false);
        let (room, _) = tokio::join!(wait, take(&moving, &mut batch, &budget));
        assert!(!room);
        push(&moving, &[1; 500], &budget);
        let wait = moving.wait_for_capacity(500, limits(), &budget, &|| false);
        let (room, _) = tokio::join!(wait, take(&moving, &mut batch, &budget));
        assert!(room);
    }

    #[test]
    fn an_inbox_is_closed_when_its_stream_has_ended_or_its_consumer_is_gone() {
        let (ended, gone) = (Inbox::default(), Inbox::default());
        assert!(!ended.is_closed());
        ended.end(Ok(()), false);
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
        let cost = messages.iter().map(|message| message.len()).sum();
        inbox.push_frames(&frames, Load { count: messages.len(), cost }, budget);
    }

    #[test]
    fn messages_that_are_pushed_together_are_freed_with_the_others() {
        let (inbox, budget) = (Inbox::default(), StallBudget::new(SECOND));
        push(&inbox, &[1; 10], &budget);
        push_together(&inbox, &[&[1; 10], &[1; 10]], &budget);
        assert_eq!(inbox.fill().0, Load { count: 3, cost: 30 });
        assert_eq!(inbox.drop_messages(), 3 * message_cost(10));
        assert_eq!(inbox.fill().0, Load::default());
    }

    /// Else a consumer that waits, or does something else, would keep a chunk of messages that count no longer.
    #[tokio::test]
    async fn a_batch_whose_messages_are_used_keeps_no_bytes() {
        let (inbox, budget, mut batch) =
            (Inbox::default(), StallBudget::new(SECOND), Batch::default());
        push_together(&inbox, &[&[1; 10], &[2; 10]], &budget);
        assert_eq!(take(&inbox, &mut batch, &budget).await.unwrap(), [1; 10][..]);
        let last = take(&inbox, &mut batch, &budget).await.unwrap();
        assert_eq!(inbox.fill().0, Load::default());
        assert!(last == [2; 10][..] && last.is_unique(), "nobody else holds it");
    }

    #[tokio::test]
    async fn the_first_end_of_a_stream_counts() {
        for (first, other) in
            [(Ok(()), Err(Status::internal("second"))), (Err(Status::cancelled("first")), Ok(()))]
        {
            let (inbox, budget, mut batch) =
                (Inbox::default(), StallBudget::new(SECOND), Batch::default());
            inbox.end(first.clone(), false);
            inbox.end(other, true);
            let taken = poll_fn(|cx| inbox.poll_take(&mut batch, cx, &budget, |_| ())).await;
            assert_eq!(taken, first.map(|()| None));
        }
    }
}
