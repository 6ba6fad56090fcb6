//! The observers of one client or server, and what a call counts for them.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    CallEnd, CallInfo, ConnectionEnd, ConnectionInfo, Direction, EndCause, MessageInfo, Observer,
    Traffic,
};
use crate::{Code, Status, snapshot::HeldUp, trace};

/// All observers of a client or a server: most have none, which costs a branch.
#[derive(Clone, Default)]
pub(crate) struct Observers {
    all: Vec<Arc<dyn Observer>>,
    /// Those that are told of messages.
    of_messages: Vec<Arc<dyn Observer>>,
}

impl Observers {
    pub(crate) fn add(&mut self, observer: impl Observer) {
        let observer: Arc<dyn Observer> = Arc::new(observer);
        if observer.wants_messages() {
            self.of_messages.push(observer.clone());
        }
        self.all.push(observer);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether messages are to be told.
    pub(crate) fn want_messages(&self) -> bool {
        !self.of_messages.is_empty()
    }

    pub(crate) fn connection_opened(&self, connection: &ConnectionInfo<'_>) {
        self.tell(|observer| observer.connection_opened(connection));
    }

    pub(crate) fn connection_closed(
        &self,
        connection: &ConnectionInfo<'_>,
        end: &ConnectionEnd<'_>,
    ) {
        self.tell(|observer| observer.connection_closed(connection, end));
    }

    pub(crate) fn connection_refused(&self, connection: &ConnectionInfo<'_>, reason: &str) {
        self.tell(|observer| observer.connection_refused(connection, reason));
    }

    pub(crate) fn protocol_violation(&self, connection: &ConnectionInfo<'_>, rule: &str) {
        self.tell(|observer| observer.protocol_violation(connection, rule));
    }

    pub(crate) fn receiver_held_up(&self, connection: &ConnectionInfo<'_>, held_up: &HeldUp) {
        self.tell(|observer| observer.receiver_held_up(connection, held_up));
    }

    pub(crate) fn message(&self, call: &CallInfo<'_>, message: &MessageInfo) {
        tell(&self.of_messages, |observer| observer.message(call, message));
    }

    pub(crate) fn call_begun(&self, call: &CallInfo<'_>) {
        self.tell(|observer| observer.call_begun(call));
    }

    pub(crate) fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        self.tell(|observer| observer.call_ended(call, end));
    }

    fn tell(&self, event: impl Fn(&dyn Observer)) {
        tell(&self.all, event);
    }
}

/// Tells each observer. A panic of one does not reach the others.
fn tell(observers: &[Arc<dyn Observer>], event: impl Fn(&dyn Observer)) {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    for observer in observers {
        let told = catch_unwind(AssertUnwindSafe(|| event(&**observer)));
        if told.is_err() && !IS_LOGGED.swap(true, SeqCst) {
            trace::warn!("an observer panicked; it is not said again");
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.all.len())
    }
}

/// How a call ends: why, and with which status if not well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallOutcome<'a> {
    pub(crate) cause: EndCause,
    pub(crate) status: Option<&'a Status>,
}

impl<'a> CallOutcome<'a> {
    /// A good end.
    pub(crate) const REPLIED: CallOutcome<'static> =
        CallOutcome { cause: EndCause::Replied, status: None };

    pub(crate) fn code(self) -> Code {
        self.status.map_or(Code::Ok, Status::code)
    }

    pub(crate) fn message(self) -> &'a str {
        self.status.map_or("", Status::message)
    }
}

/// What is counted of one call.
#[derive(Debug)]
pub(crate) struct CallStats {
    started: Instant,
    messages_sent: AtomicU64,
    messages_received: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    for_place: WaitedTime,
    for_room: WaitedTime,
    /// Nanoseconds from the start to when the answer was read; 0 if there is none.
    answered: AtomicU64,
}

impl CallStats {
    pub(crate) fn new(started: Instant) -> Self {
        CallStats {
            started,
            messages_sent: AtomicU64::new(0),
            messages_received: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
            for_place: WaitedTime::default(),
            for_room: WaitedTime::default(),
            answered: AtomicU64::new(0),
        }
    }

    /// The answer that ends the call was read at this moment.
    pub(crate) fn answered(&self, read_at: Instant) {
        let after = nanos(read_at.saturating_duration_since(self.started));
        self.answered.store(after.max(1), Relaxed);
    }

    /// A frame with so many messages and bytes of data is queued. Returns its message.
    pub(crate) fn sent(&self, messages: u64, bytes: usize) -> MessageInfo {
        let before = self.messages_sent.fetch_add(messages, Relaxed);
        self.bytes_sent.fetch_add(bytes as u64, Relaxed);
        MessageInfo { direction: Direction::Sent, number: before + 1, bytes }
    }

    /// A frame with so many messages and bytes of data has come. Returns its message.
    pub(crate) fn received(&self, messages: u64, bytes: usize) -> MessageInfo {
        let before = self.messages_received.fetch_add(messages, Relaxed);
        self.bytes_received.fetch_add(bytes as u64, Relaxed);
        MessageInfo { direction: Direction::Received, number: before + 1, bytes }
    }

    /// The call waits for a place until the result is dropped.
    pub(crate) fn wait_for_place(&self) -> Waiting<'_> {
        Waiting::new(self.started, &self.for_place)
    }

    /// The call waits for room until the result is dropped.
    pub(crate) fn wait_for_room(&self) -> Waiting<'_> {
        Waiting::new(self.started, &self.for_room)
    }

    /// The call has waited from its start until now.
    pub(crate) fn has_waited_for_place(&self) {
        self.for_place.sum.fetch_add(nanos_since(self.started), Relaxed);
    }

    pub(crate) fn end<'a>(&self, outcome: CallOutcome<'a>) -> CallEnd<'a> {
        let took = match self.answered.load(Relaxed) {
            0 => None,
            after => Some(Duration::from_nanos(after)),
        };
        let now = || took.unwrap_or_else(|| self.started.elapsed());
        CallEnd {
            code: outcome.code(),
            message: outcome.message(),
            cause: outcome.cause,
            traffic: Traffic {
                messages_sent: self.messages_sent.load(Relaxed),
                messages_received: self.messages_received.load(Relaxed),
                bytes_sent: self.bytes_sent.load(Relaxed),
                bytes_received: self.bytes_received.load(Relaxed),
            },
            waited_for_place: self.for_place.total(now),
            waited_for_room: self.for_room.total(now),
            started: self.started,
            took,
        }
    }
}

/// The time that a call has waited, for what it may wait for several times at once. Whoever asks meanwhile
/// is told what has passed so far.
#[derive(Debug, Default)]
struct WaitedTime {
    /// Nanoseconds: the ends of all waits less their starts, modulo 2⁶⁴.
    sum: AtomicU64,
    /// Those that wait now.
    waiting: AtomicU64,
}

impl WaitedTime {
    /// The sum at this moment, which like all others is counted from the call's start.
    fn total(&self, now: impl Fn() -> Duration) -> Duration {
        let sum = self.sum.load(Relaxed);
        Duration::from_nanos(match self.waiting.load(Relaxed) {
            0 => sum,
            waiting => sum.wrapping_add(waiting.wrapping_mul(nanos(now()))),
        })
    }
}

/// A call waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    started: Instant,
    waited: &'a WaitedTime,
}

impl<'a> Waiting<'a> {
    fn new(started: Instant, waited: &'a WaitedTime) -> Self {
        waited.sum.fetch_sub(nanos_since(started), Relaxed);
        waited.waiting.fetch_add(1, Relaxed);
        Waiting { started, waited }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waited.waiting.fetch_sub(1, Relaxed);
        self.waited.sum.fetch_add(nanos_since(self.started), Relaxed);
    }
}

fn nanos_since(started: Instant) -> u64 {
    nanos(started.elapsed())
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::{Extensions, Metadata, observer::Side, transport::peer::Peer};

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts the messages that it is told of.
    #[derive(Default)]
    struct Messages<const WANTED: bool>(AtomicU64);

    impl<const WANTED: bool> Observer for Messages<WANTED> {
        fn wants_messages(&self) -> bool {
            WANTED
        }

        fn message(&self, _: &CallInfo<'_>, _: &MessageInfo) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_told_to_those_who_want_them() {
        let mut observers = Observers::default();
        assert!(observers.is_empty());
        let (deaf, keen) = (Arc::<Messages<false>>::default(), Arc::<Messages<true>>::default());
        observers.add(deaf.clone());
        assert!(!observers.is_empty() && !observers.want_messages());
        observers.add(keen.clone());
        assert!(observers.want_messages());
        let call = CallInfo {
            side: Side::Server,
            connection_id: 1,
            peer: &Peer::unknown(),
            stream_id: Some(1),
            service: "a.B",
            method: "C",
            is_known: true,
            is_stream: false,
            metadata: &Metadata::new(),
            started: Instant::now(),
            deadline: None,
            extensions: &Extensions::default(),
        };
        let message = MessageInfo { direction: Direction::Sent, number: 1, bytes: 0 };
        observers.message(&call, &message);
        assert_eq!((deaf.0.load(Relaxed), keen.0.load(Relaxed)), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_counted_while_it_lasts_and_not_behind_its_end() {
        let stats = CallStats::new(Instant::now());
        let waited = || {
            let end = stats.end(CallOutcome::REPLIED);
            (end.waited_for_place, end.waited_for_room)
        };
        let place = stats.wait_for_place();
        advance(SECOND).await;
        assert_eq!(waited(), (SECOND, Duration::ZERO));
        drop(place);
        advance(SECOND).await;
        assert_eq!(waited(), (SECOND, Duration::ZERO));
        let rooms = [stats.wait_for_room(), stats.wait_for_room()];
        advance(SECOND).await;
        drop(rooms);
        advance(SECOND).await;
        assert_eq!(waited(), (SECOND, 2 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_takes_until_its_answer_was_read_or_until_now() {
        let stats = CallStats::new(Instant::now());
        advance(SECOND).await;
        let end = stats.end(CallOutcome::REPLIED);
        advance(SECOND).await;
        assert_eq!(end.duration(), 2 * SECOND);
        stats.answered(Instant::now());
        advance(SECOND).await;
        assert_eq!(stats.end(CallOutcome::REPLIED).duration(), 2 * SECOND);
    }

    #[test]
    fn an_end_without_a_status_is_a_good_one() {
        let stats = CallStats::new(Instant::now());
        assert!(stats.end(CallOutcome::REPLIED).is_ok());
        let status = Status::not_found("gone");
        let failed = CallOutcome { cause: EndCause::Failed, status: Some(&status) };
        let end = stats.end(failed);
        assert_eq!((end.is_ok(), end.code, end.message), (false, Code::NotFound, "gone"));
    }
}
