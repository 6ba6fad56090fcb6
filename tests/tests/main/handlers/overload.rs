//! More calls than the runtime can run at once: how many tasks they are, and how long others wait.
//!
//! Each turn of the runtime takes a millisecond here, by the paused clock: a task of its own moves it
//! whenever it is polled.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, duplex},
    sync::{Notify, Semaphore},
    task::yield_now,
    time::advance,
};
use ttrpc::{
    Server, ServerConfig, Status,
    server::{Routes, ServerHandle},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, Peer},
};

/// Calls of a burst: the limit of one connection.
const CALLS: u32 = 1024;

/// Tasks that one connection may have beside those whose handlers wait.
const TASKS: usize = 64;

/// Makes the runtime busy: each of its turns is long.
fn busy() {
    tokio::spawn(async {
        loop {
            advance(Duration::from_millis(1)).await;
        }
    });
}

/// What the handlers saw.
struct Seen {
    begun: AtomicUsize,
    /// Tasks that were alive when a handler began, at most.
    most_tasks: AtomicUsize,
    /// Calls that had begun when the polite client's did.
    before_polite: AtomicUsize,
    /// Told when so many calls have begun.
    tell_at: usize,
    some_have_begun: Notify,
    may_end: Semaphore,
}

impl Seen {
    fn new(tell_at: usize) -> Arc<Self> {
        Arc::new(Seen {
            begun: AtomicUsize::new(0),
            most_tasks: AtomicUsize::new(0),
            before_polite: AtomicUsize::new(usize::MAX),
            tell_at,
            some_have_begun: Notify::new(),
            may_end: Semaphore::new(0),
        })
    }

    fn begin(&self) {
        self.most_tasks.fetch_max(alive_tasks(), SeqCst);
        if self.begun.fetch_add(1, SeqCst) + 1 == self.tell_at {
            self.some_have_begun.notify_one();
        }
    }
}

/// `Short` ends at once, `Long` when it may, `Polite` at once and notes how many came before it.
fn routes(seen: &Arc<Seen>) -> Routes {
    Routes::new(SERVICE)
        .unary("Short", seen, |seen: &Seen, _, Empty {}| {
            Box::pin(async {
                seen.begin();
                Ok(Empty {})
            })
        })
        .unary("Long", seen, |seen: &Seen, _, Empty {}| {
            Box::pin(async {
                seen.begin();
                seen.may_end.acquire().await.expect("it is never closed").forget();
                Ok(Empty {})
            })
        })
        .unary("Polite", seen, |seen: &Seen, _, Empty {}| {
            Box::pin(async {
                seen.before_polite.store(seen.begun.load(SeqCst), SeqCst);
                Ok::<_, Status>(Empty {})
            })
        })
}

/// Serves this many connections, which are played.
fn start(seen: &Arc<Seen>, connections: usize) -> (ServerHandle, Vec<Played>) {
    let config = ServerConfig { max_calls: 1 << 20, ..ServerConfig::default() };
    let mut builder = Server::builder().config(config).add_service(Handmade(routes(seen)));
    let mut peers = Vec::new();
    for _ in 0..connections {
        let (here, there) = duplex(PIPE_LEN);
        builder = builder.io(there);
        peers.push(Peer::new(here));
    }
    let server = builder.build().unwrap();
    let handle = server.handle();
    tokio::spawn(server.serve());
    (handle, peers)
}

/// Calls that are read together.
fn burst(methods: &[&str]) -> Vec<u8> {
    let method = |nth: u32| methods[nth as usize % methods.len()];
    (0..CALLS).flat_map(|nth| call(2 * nth + 1, method(nth), &Empty {}).to_bytes()).collect()
}

/// Reads the empty replies of a burst.
async fn read_replies(peer: &mut Played) {
    peer.io().read_exact(&mut vec![0; CALLS as usize * 10]).await.expect("the server lives");
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_connection_stay_few_however_late_the_runtime_is() {
    let seen = Seen::new(usize::MAX);
    let (_handle, mut peers) = start(&seen, 1);
    busy();
    settle().await;
    let before = alive_tasks();
    peers[0].send_bytes(&burst(&["Short"])).await;
    read_replies(&mut peers[0]).await;
    let most = seen.most_tasks.load(SeqCst) - before;
    assert!(most <= TASKS, "{most} tasks for {CALLS} calls that do not wait");
}

/// The runtime's turns are long, by the machine's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tasks_of_a_connection_stay_few_on_a_runtime_of_several_threads() {
    let seen = Seen::new(usize::MAX);
    let before = alive_tasks();
    let (_handle, mut peers) = start(&seen, 1);
    tokio::spawn(async {
        loop {
            thread::sleep(Duration::from_millis(1));
            yield_now().await;
        }
    });
    peers[0].send_bytes(&burst(&["Short"])).await;
    read_replies(&mut peers[0]).await;
    let most = seen.most_tasks.load(SeqCst) - before;
    assert!(most <= TASKS, "{most} tasks for {CALLS} calls that do not wait");
}

/// Each handler that waits keeps its task, and holds up none of the others.
#[tokio::test(start_paused = true)]
async fn tasks_of_a_connection_stay_few_beside_handlers_that_wait() {
    let seen = Seen::new(usize::MAX);
    let (_handle, mut peers) = start(&seen, 1);
    busy();
    settle().await;
    let before = alive_tasks();
    peers[0].send_bytes(&burst(&["Long", "Short", "Short", "Short"])).await;
    let waiting = CALLS as usize / 4;
    peers[0].io().read_exact(&mut vec![0; 3 * waiting * 10]).await.expect("the others end");
    let most = seen.most_tasks.load(SeqCst) - before;
    assert!(most <= waiting + TASKS, "{most} tasks, {waiting} handlers wait");
    seen.may_end.add_permits(waiting);
    peers[0].io().read_exact(&mut vec![0; waiting * 10]).await.expect("they end, too");
}

#[tokio::test(start_paused = true)]
async fn a_polite_client_is_answered_before_most_calls_of_greedy_ones() {
    const GREEDY: usize = 16;
    // The greedy clients' calls have all been read when the polite one makes its call.
    let seen = Seen::new(2 * GREEDY);
    let (handle, mut peers) = start(&seen, GREEDY + 1);
    busy();
    settle().await;
    let mut polite = peers.pop().expect("there are several");
    for greedy in &mut peers {
        greedy.send_bytes(&burst(&["Short"])).await;
    }
    seen.some_have_begun.notified().await;
    polite.send(call(1, "Polite", &Empty {})).await;
    assert_eq!(polite.receive().await, Frame::new(1, 2, 0, []));
    let before = seen.before_polite.load(SeqCst);
    // The first turn lets it be sent, the second has it read, the third makes its task, the fourth runs it.
    let most = 4 * GREEDY * TASKS;
    assert!(before <= most, "{before} calls began before the polite one, {most} are four turns");
    for greedy in &mut peers {
        read_replies(greedy).await;
    }
    eventually("no call is left", || handle.calls_in_flight() == 0).await;
}
