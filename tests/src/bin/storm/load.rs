//! The clients of the storm, and what they count.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use ttrpc::{
    Client, Code, ConnectionError, Status,
    client::{Backoff, ConnectOptions, Keepalive},
};
use ttrpc_tests::conformance::*;

/// Clients, each with a connection of its own.
pub const CLIENTS: usize = 4;

/// Tasks of a client that make one call after another.
pub const CALLERS: usize = 8;

/// The time of each call.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The ids that there may be in a run: a bit each.
const MAX_IDS: u64 = 1 << 28;

/// What the calls have come to.
pub struct Tally {
    next_id: AtomicU64,
    /// Calls that were answered well, a bit for each id.
    answered: Vec<AtomicU64>,
    lateness_limit: Duration,
    ok: AtomicU64,
    given_up: AtomicU64,
    unavailable: AtomicU64,
    /// Calls of clients that do not wait for a connection, while there was none.
    not_connected: AtomicU64,
    deadline_exceeded: AtomicU64,
    /// How late the latest call has ended, in milliseconds.
    latest: AtomicU64,
    fault: Mutex<Option<String>>,
}

impl Tally {
    pub fn new(lateness_limit: Duration) -> Self {
        Tally {
            next_id: AtomicU64::new(0),
            answered: (0..MAX_IDS / 64).map(|_| AtomicU64::new(0)).collect(),
            lateness_limit,
            ok: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            unavailable: AtomicU64::new(0),
            not_connected: AtomicU64::new(0),
            deadline_exceeded: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            fault: Mutex::new(None),
        }
    }

    pub fn fault(&self) -> Option<String> {
        self.fault.lock().expect("nobody panics").clone()
    }

    fn note_fault(&self, fault: String) {
        self.fault.lock().expect("nobody panics").get_or_insert(fault);
    }

    /// What is wrong about the ids that were executed: one twice, or one that is missing though its call was answered.
    pub fn wrong(&self, executed: &[u64]) -> Option<String> {
        let mut seen = vec![0_u64; self.answered.len()];
        for id in executed {
            let (word, bit) = ((id / 64) as usize, 1 << (id % 64));
            if seen.get(word).is_none_or(|seen| seen & bit != 0) {
                return Some(format!("call {id} was executed twice, or never made"));
            }
            seen[word] |= bit;
        }
        let lost = self
            .answered
            .iter()
            .zip(&seen)
            .position(|(answered, seen)| answered.load(Relaxed) & !seen != 0);
        lost.map(|word| format!("a call from {} on was answered and not executed", word * 64))
    }

    fn note_end(&self, began: Instant, waits: bool, result: &Result<EchoResponse, Status>) {
        let took = began.elapsed();
        let late = took.saturating_sub(TIMEOUT);
        self.latest.fetch_max(late.as_millis() as u64, Relaxed);
        if late > self.lateness_limit {
            self.note_fault(format!("a call took {took:?}: {result:?}"));
        }
        let count = match result {
            Ok(_) => &self.ok,
            Err(status) => match status.code() {
                Code::DeadlineExceeded if took >= TIMEOUT => &self.deadline_exceeded,
                // One that waits for a connection has no need to be lost because there is none.
                Code::Unavailable if is_unconnected(status) && !waits => &self.not_connected,
                Code::Unavailable if is_outage(status) => &self.unavailable,
                _ => return self.note_fault(format!("after {took:?}: {result:?}")),
            },
        };
        count.fetch_add(1, Relaxed);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls answered, {} given up, {} lost that may have been seen, {} not made for want of a connection, {} late; the latest ended {} ms after its deadline",
            self.ok.load(Relaxed),
            self.given_up.load(Relaxed),
            self.unavailable.load(Relaxed),
            self.not_connected.load(Relaxed),
            self.deadline_exceeded.load(Relaxed),
            self.latest.load(Relaxed)
        )
    }
}

/// Whether there was no connection, so that the call was never sent.
fn is_unconnected(status: &Status) -> bool {
    matches!(status.connection_error(), Some(ConnectionError::NoConnection(_)))
}

/// Whether the connection was lost, or the server that was told to end says so.
fn is_outage(status: &Status) -> bool {
    let is_lost = status.connection_error().is_some() && !is_unconnected(status);
    is_lost || status.message().contains("shutting down")
}

/// One client.
pub struct Worker {
    nth: usize,
    address: String,
    tally: Arc<Tally>,
}

impl Worker {
    pub fn new(nth: usize, address: String, tally: Arc<Tally>) -> Self {
        Worker { nth, address, tally }
    }

    /// Half of the clients connect at once when they have no connection, half of them wait for one.
    fn connect(&self) -> Client {
        let backoff =
            Backoff::new().first(Duration::from_millis(5)).longest(Duration::from_millis(200));
        let keepalive = Keepalive::new(Duration::from_millis(100), Duration::from_millis(400));
        let options =
            ConnectOptions::new().reconnect(backoff).keepalive(keepalive).cancel_at_server();
        let options = if self.nth.is_multiple_of(2) { options.keep_connected() } else { options };
        let client = options.connect_lazy(&self.address).expect("it is an address");
        client.with_timeout(TIMEOUT).with_wait_for_ready(self.waits())
    }

    fn waits(&self) -> bool {
        self.nth < CLIENTS / 2
    }

    pub async fn work(self, until: Instant) {
        let client = self.connect();
        let waits = self.waits();
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            callers.spawn(call_until(until, client.clone(), waits, self.tally.clone()));
        }
        while callers.join_next().await.is_some() {}
    }
}

async fn call_until(until: Instant, client: Client, waits: bool, tally: Arc<Tally>) {
    let conformance = ConformanceClient::new(client);
    while Instant::now() < until {
        let id = tally.next_id.fetch_add(1, Relaxed);
        if id >= MAX_IDS {
            return tally.note_fault("the run is too long for its ids".to_owned());
        }
        let mut payload = id.to_le_bytes().to_vec();
        payload.resize(if fastrand::u8(..) < 4 { fastrand::usize(8..1 << 20) } else { 64 }, 7);
        let request = EchoRequest { payload, ..EchoRequest::default() };
        let began = Instant::now();
        let is_given_up = match fastrand::u8(..) {
            0..16 => {
                let patience = Duration::from_micros(fastrand::u64(0..20_000));
                let call = conformance.wait(KeyRequest { key: "never".to_owned() });
                timeout(patience, call).await.is_err()
            }
            16..32 => {
                let patience = Duration::from_micros(fastrand::u64(0..1000));
                match timeout(patience, conformance.echo(request.clone())).await {
                    Ok(result) => {
                        tally.check(id, began, waits, &request, &result);
                        false
                    }
                    Err(_) => true,
                }
            }
            _ => {
                let result = conformance.echo(request.clone()).await;
                tally.check(id, began, waits, &request, &result);
                // One that does not wait for a connection would only spin.
                if result.is_err() {
                    sleep(Duration::from_millis(fastrand::u64(0..20))).await;
                }
                false
            }
        };
        tally.given_up.fetch_add(is_given_up.into(), Relaxed);
    }
}

impl Tally {
    fn check(
        &self,
        id: u64,
        began: Instant,
        waits: bool,
        request: &EchoRequest,
        result: &Result<EchoResponse, Status>,
    ) {
        self.note_end(began, waits, result);
        if let Ok(reply) = result {
            if reply.payload != request.payload {
                self.note_fault(format!("call {id} has another one's reply"));
            }
            self.answered[(id / 64) as usize].fetch_or(1 << (id % 64), Relaxed);
        }
    }
}
