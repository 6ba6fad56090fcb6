//! Events for containerd: an outbox, emptied in order over ttrpc, that outlives containerd.
//!
//! # What is promised
//!
//! Events reach containerd in the order in which they happened, and each at least once. An event is
//! published when the fate of the one before is known: containerd has answered, or its connection
//! has ended. So a containerd that stands still gets nothing twice, however long it does. Only an
//! event that was under way when containerd died may come a second time, to the next containerd: it
//! is not known whether the first has taken it.
//!
//! Two things are given up, and logged with the event's number: an event that containerd refuses,
//! and the oldest when the outbox is full.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{sync::Notify, time::sleep};
use ttrpc::{Client, Code, Raw, Status, prost::Message, snapshot::ClientSnapshot};

use super::{
    Envelope, Event,
    publish::{EventsClient, ForwardRequest},
};
use crate::{any::pack, namespace, unix};

/// Events that wait for containerd. At some 250 bytes each, less than a mebibyte. When it is full
/// the oldest is lost: of a container's life the end matters most.
const CAPACITY: usize = 4096;
/// The pause after a failed attempt. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Events in the order in which they happened, as many as fit.
#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<(u64, Envelope)>,
    /// The number of the next event.
    next: u64,
    lost: u64,
    /// Whether the shim ends, and what happens from here on is not its to tell.
    is_closed: bool,
}

impl Queue {
    fn push(&mut self, event: Envelope) {
        if self.is_closed {
            return;
        }
        if self.events.len() == CAPACITY
            && let Some((number, event)) = self.events.pop_front()
        {
            self.lost += 1;
            let topic = event.topic;
            tracing::warn!("event {number}, {topic}, is lost: {CAPACITY} others wait");
        }
        self.events.push_back((self.next, event));
        self.next += 1;
    }

    /// Removes an event that was delivered, unless it had to make room meanwhile.
    fn delivered(&mut self, number: u64) {
        if self.events.front().is_some_and(|(first, _)| *first == number) {
            self.events.pop_front();
        }
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
    }
}

/// Takes events and keeps them until containerd has them. Clones are the same outbox.
#[derive(Clone, Debug)]
pub struct Outbox {
    namespace: String,
    queue: Arc<Mutex<Queue>>,
    /// Fires when something was put in, and when the last was taken out.
    changed: Arc<Notify>,
    /// The connection to containerd, while there is one.
    connection: Arc<Mutex<Option<Client>>>,
}

impl Outbox {
    /// Returns an empty outbox for events of a namespace.
    pub fn new(namespace: &str) -> Outbox {
        Outbox {
            namespace: namespace.to_owned(),
            queue: Arc::default(),
            changed: Arc::default(),
            connection: Arc::default(),
        }
    }

    fn connection(&self) -> MutexGuard<'_, Option<Client>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an event in, behind all that happened before. Never waits.
    pub fn publish<E: Event>(&self, event: &E) {
        let envelope = Envelope {
            timestamp: Some(SystemTime::now().into()),
            namespace: self.namespace.clone(),
            topic: E::TOPIC.to_owned(),
            event: Some(pack(event)),
        };
        self.queue().push(envelope);
        self.changed.notify_waiters();
    }

    /// Events that wait, and events that were lost since the outbox was full.
    pub fn counts(&self) -> (usize, u64) {
        let queue = self.queue();
        (queue.events.len(), queue.lost)
    }

    /// Returns the topics of the events that wait, oldest first.
    pub fn topics(&self) -> Vec<String> {
        self.queue().events.iter().map(|(_, event)| event.topic.clone()).collect()
    }

    /// Returns what the connection to containerd waits for, if there is one.
    pub fn snapshot(&self) -> Option<ClientSnapshot> {
        self.connection().as_ref().map(Client::snapshot)
    }

    /// Waits until all events are delivered.
    pub async fn emptied(&self) {
        self.wait(|queue| queue.events.is_empty().then_some(())).await;
    }

    async fn front(&self) -> (u64, Envelope) {
        self.wait(|queue| queue.events.front().cloned()).await
    }

    async fn wait<T>(&self, mut found: impl FnMut(&Queue) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let now = found(&self.queue());
            match now {
                Some(found) => return found,
                None => changed.await,
            }
        }
    }

    /// Takes no more events.
    pub fn close(&self) {
        self.queue().is_closed = true;
    }

    /// Says which events will not be delivered, since the shim ends.
    pub fn give_up(&self) {
        for (number, event) in std::mem::take(&mut self.queue().events) {
            tracing::warn!("event {number}, {}, is lost: the program ends", event.topic);
        }
    }

    /// Delivers events for ever to the containerd whose Unix socket this is, as the module says.
    pub async fn deliver(self, address: String) {
        let mut pause = FIRST_PAUSE;
        loop {
            let (number, envelope) = self.front().await;
            let topic = envelope.topic.clone();
            match self.forward(&address, envelope).await {
                Ok(()) => {}
                Err(error) if is_worth_another_try(&error) => {
                    tracing::debug!("event {number}, {topic}, waits: {error}");
                    self.connection().take();
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
                Err(error) => {
                    tracing::warn!("containerd refused event {number}, {topic}: {error}");
                }
            }
            pause = FIRST_PAUSE;
            self.queue().delivered(number);
            self.changed.notify_waiters();
        }
    }

    /// Publishes one event over the connection that is there, or a new one. Returns when its fate is
    /// known, which has no time limit.
    async fn forward(&self, address: &str, envelope: Envelope) -> Result<(), Status> {
        let present = self.connection().clone();
        let client = match present {
            Some(client) => client,
            None => {
                let client = unix::connect(address)
                    .await
                    .map_err(|error| Status::unavailable(error.to_string()))?;
                self.connection().insert(client).clone()
            }
        };
        let namespace = envelope.namespace.clone();
        // A call of one type, whatever it carries: each type of calls costs a program kilobytes.
        let request = Raw(ForwardRequest { envelope: Some(envelope) }.encode_to_vec().into());
        let call = client.unary::<Raw, Raw>(EventsClient::NAME, "Forward", request);
        call.metadata(namespace::KEY, namespace).await.map(drop)
    }
}

/// Whether containerd has not taken the event and may do so later; else it stands in the way of all others.
fn is_worth_another_try(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Cancelled
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::timeout;
    use ttrpc::{Context, Server, async_trait};

    use super::*;
    use crate::{
        any::unpack,
        events::{
            TaskStart,
            publish::{Events, EventsServer},
        },
    };

    /// Far more than anything here takes, on a machine that is busy with other things.
    const LONG: Duration = Duration::from_secs(600);

    fn numbered(number: u32) -> TaskStart {
        TaskStart { container_id: "c1".to_owned(), pid: number }
    }

    fn number(envelope: &Envelope) -> u32 {
        unpack::<TaskStart>(envelope.event.as_ref().unwrap()).unwrap().unwrap().pid
    }

    #[test]
    fn a_full_outbox_loses_the_oldest_and_keeps_the_order() {
        let outbox = Outbox::new("default");
        let count = CAPACITY as u32 + 10;
        (0..count).for_each(|number| outbox.publish(&numbered(number)));
        assert_eq!(outbox.counts(), (CAPACITY, 10));
        let queue = outbox.queue();
        let numbers: Vec<u32> = queue.events.iter().map(|(_, event)| number(event)).collect();
        assert_eq!(numbers, (10..count).collect::<Vec<_>>());
    }

    #[test]
    fn an_event_that_made_room_while_it_was_delivered_takes_no_other_with_it() {
        let outbox = Outbox::new("default");
        outbox.publish(&numbered(0));
        let delivering = outbox.queue().events[0].0;
        (1..=CAPACITY as u32).for_each(|number| outbox.publish(&numbered(number)));
        outbox.queue().delivered(delivering);
        assert_eq!(outbox.counts(), (CAPACITY, 1));
    }

    /// Stands in for containerd: hands events to the test, or fails as one that is going down.
    struct Containerd {
        seen: tokio::sync::mpsc::UnboundedSender<(String, u32)>,
        is_failing: Arc<AtomicBool>,
    }

    #[async_trait]
    impl Events for Containerd {
        async fn forward(&self, ctx: &Context, request: ForwardRequest) -> Result<(), Status> {
            if self.is_failing.load(Ordering::Relaxed) {
                return Err(Status::unavailable("going down"));
            }
            let envelope = request.envelope.unwrap();
            let namespace = crate::namespace::of(ctx).unwrap();
            assert_eq!(namespace, envelope.namespace);
            self.seen.send((envelope.topic.clone(), number(&envelope))).unwrap();
            Ok(())
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn events_are_kept_while_containerd_is_away_and_come_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let address = folder.path().join("c.sock.ttrpc").to_str().unwrap().to_owned();
        let (seen, mut events) = tokio::sync::mpsc::unbounded_channel();
        let is_failing = Arc::new(AtomicBool::new(false));
        let containerd = || {
            let service = Containerd { seen: seen.clone(), is_failing: is_failing.clone() };
            Server::builder().add_service(EventsServer::new(service)).bind(&address).unwrap()
        };
        let outbox = Outbox::new("default");
        let delivery = tokio::spawn(outbox.clone().deliver(address.clone()));

        (0..5).for_each(|number| outbox.publish(&numbered(number)));
        let server = tokio::spawn(containerd().serve());
        outbox.emptied().await;

        // It refuses, it goes away, it comes back.
        is_failing.store(true, Ordering::Relaxed);
        (5..10).for_each(|number| outbox.publish(&numbered(number)));
        tokio::task::yield_now().await;
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        is_failing.store(false, Ordering::Relaxed);
        let server = tokio::spawn(containerd().serve());
        timeout(LONG, outbox.emptied()).await.unwrap();

        for number in 0..10 {
            assert_eq!(events.try_recv().unwrap(), ("/tasks/start".to_owned(), number));
        }
        assert!(events.try_recv().is_err());
        delivery.abort();
        server.abort();
    }

    /// containerd stood still for 20 s, and each event was sent again every 5 s meanwhile: it then
    /// took all of them, side by side.
    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_containerd_that_stands_still_gets_each_event_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let address = folder.path().join("c.sock.ttrpc").to_str().unwrap().to_owned();
        let (seen, mut events) = tokio::sync::mpsc::unbounded_channel();
        let still = Arc::new(tokio::sync::Semaphore::new(0));
        let service = StandsStill { seen, goes_on: still.clone() };
        let server = Server::builder().add_service(EventsServer::new(service));
        let server = tokio::spawn(server.bind(&address).unwrap().serve());
        let outbox = Outbox::new("default");
        let delivery = tokio::spawn(outbox.clone().deliver(address));

        (0..3).for_each(|number| outbox.publish(&numbered(number)));
        assert_eq!(events.recv().await, Some(0));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(events.try_recv().is_err(), "something was published before the first was taken");
        still.add_permits(3);
        outbox.emptied().await;
        assert_eq!((events.try_recv(), events.try_recv()), (Ok(1), Ok(2)));
        assert!(events.try_recv().is_err());
        delivery.abort();
        server.abort();
    }

    /// Stands in for a containerd that takes an event and answers later.
    struct StandsStill {
        seen: tokio::sync::mpsc::UnboundedSender<u32>,
        goes_on: Arc<tokio::sync::Semaphore>,
    }

    #[async_trait]
    impl Events for StandsStill {
        async fn forward(&self, _: &Context, request: ForwardRequest) -> Result<(), Status> {
            self.seen.send(number(&request.envelope.unwrap())).unwrap();
            self.goes_on.acquire().await.unwrap().forget();
            Ok(())
        }
    }
}
