//! The load itself.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
    task::JoinSet,
};
use ttrpc::{Client, Status};

use crate::{
    failure::Failure,
    output,
    raw::{self, Options, Raw, Target},
};

/// Latencies are kept with three digits, up to an hour, in nanoseconds.
const MAX_LATENCY_NANOS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// How often the progress is told.
const TICK: Duration = Duration::from_millis(100);

/// When calls begin.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Each when one before it has ended.
    Closed,
    /// At fixed times.
    Open {
        /// Calls a second.
        rate: f64,
    },
}

/// What is to be done.
#[derive(Debug)]
pub struct Plan {
    pub target: Target,
    pub name: String,
    pub is_client_streaming: bool,
    pub is_server_streaming: bool,
    pub requests: Vec<Bytes>,
    /// Requests that a stream has.
    pub messages: usize,
    pub options: Options,
    pub concurrency: usize,
    pub connections: usize,
    pub pace: Pace,
    pub duration: Duration,
    pub calls: u64,
}

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    pub plan: Arc<Plan>,
    /// From the first call to the end of the last one.
    pub elapsed: Duration,
    /// Of calls that succeeded, in nanoseconds: from when each was due, or began in a closed loop.
    pub latency: Histogram<u64>,
    /// The same from when each began.
    pub service_time: Histogram<u64>,
    /// Calls that failed, by code.
    pub errors: BTreeMap<&'static str, u64>,
    pub last_failure: Option<Status>,
    /// Messages of streams.
    pub sent: u64,
    pub received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Calls that were due and had not begun at the end: the server, or this program, was too slow.
    pub not_begun: u64,
}

impl Measured {
    fn new(plan: Arc<Plan>) -> Self {
        let histogram = || {
            Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, DIGITS).expect("the bounds are valid")
        };
        Measured {
            plan,
            elapsed: Duration::ZERO,
            latency: histogram(),
            service_time: histogram(),
            errors: BTreeMap::new(),
            last_failure: None,
            sent: 0,
            received: 0,
            bytes_sent: 0,
            bytes_received: 0,
            not_begun: 0,
        }
    }

    pub fn succeeded(&self) -> u64 {
        self.latency.len()
    }

    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    fn record(&mut self, due: Instant, began: Instant, ended: Instant, outcome: Outcome) {
        self.sent += outcome.sent;
        self.received += outcome.received;
        self.bytes_sent += outcome.bytes_sent;
        self.bytes_received += outcome.bytes_received;
        match outcome.failure {
            None => {
                let nanos = |since| u64::try_from(ended.duration_since(since).as_nanos());
                self.latency.saturating_record(nanos(due).unwrap_or(u64::MAX).max(1));
                self.service_time.saturating_record(nanos(began).unwrap_or(u64::MAX).max(1));
            }
            Some(status) => {
                *self.errors.entry(status.code().name()).or_insert(0) += 1;
                self.last_failure = Some(status);
            }
        }
    }

    fn add(&mut self, other: Measured) {
        self.latency.add(other.latency).expect("the bounds are the same");
        self.service_time.add(other.service_time).expect("the bounds are the same");
        for (code, count) in other.errors {
            *self.errors.entry(code).or_insert(0) += count;
        }
        self.last_failure = other.last_failure.or(self.last_failure.take());
        self.sent += other.sent;
        self.received += other.received;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

/// What became of one call.
#[derive(Debug, Default)]
struct Outcome {
    sent: u64,
    received: u64,
    bytes_sent: u64,
    bytes_received: u64,
    failure: Option<Status>,
}

/// Shared by all who call.
#[derive(Debug, Default)]
struct Progress {
    begun: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
}

/// Makes the calls. Ctrl-C ends them early.
///
/// # Errors
/// If signals cannot be handled.
pub async fn measure(
    plan: Arc<Plan>,
    clients: Vec<Client>,
    shows_progress: bool,
) -> Result<Measured, Failure> {
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::Other(format!("Ctrl-C cannot be handled: {error}")))?;
    let progress = Arc::new(Progress::default());
    let start = Instant::now();
    let end = start.checked_add(plan.duration).unwrap_or(start + Duration::from_secs(86_400 * 365));
    let stop = Arc::new(Stop { end, interrupted: AtomicU64::new(0) });
    let told = shows_progress.then(|| tell(plan.clone(), progress.clone(), start));
    let measuring = async {
        match plan.pace {
            Pace::Closed => closed_loop(&plan, clients, &progress, &stop).await,
            Pace::Open { rate } => open_loop(&plan, clients, &progress, &stop, rate, start).await,
        }
    };
    let mut measuring = std::pin::pin!(measuring);
    let mut measured = loop {
        tokio::select! {
            measured = &mut measuring => break measured,
            _ = interrupts.recv() => stop.interrupted.store(1, Relaxed),
        }
    };
    measured.elapsed = start.elapsed();
    if let Some(told) = told {
        told.abort();
        let _ = told.await;
    }
    Ok(measured)
}

/// When no more calls are to begin.
#[derive(Debug)]
struct Stop {
    end: Instant,
    interrupted: AtomicU64,
}

impl Stop {
    fn is_over(&self) -> bool {
        self.interrupted.load(Relaxed) > 0 || Instant::now() >= self.end
    }
}

async fn closed_loop(
    plan: &Arc<Plan>,
    clients: Vec<Client>,
    progress: &Arc<Progress>,
    stop: &Arc<Stop>,
) -> Measured {
    let mut workers = JoinSet::new();
    for index in 0..plan.concurrency {
        let client = clients[index % clients.len()].clone();
        let (plan, progress, stop) = (plan.clone(), progress.clone(), stop.clone());
        workers.spawn(async move {
            let mut measured = Measured::new(plan.clone());
            while !stop.is_over() && progress.begun.fetch_add(1, Relaxed) < plan.calls {
                let began = Instant::now();
                let outcome = call(&plan, &client).await;
                progress.ended.fetch_add(1, Relaxed);
                progress.failed.fetch_add(u64::from(outcome.failure.is_some()), Relaxed);
                measured.record(began, began, Instant::now(), outcome);
            }
            measured
        });
    }
    let mut all = Measured::new(plan.clone());
    while let Some(measured) = workers.join_next().await {
        all.add(measured.expect("no worker panics"));
    }
    all
}

async fn open_loop(
    plan: &Arc<Plan>,
    clients: Vec<Client>,
    progress: &Arc<Progress>,
    stop: &Arc<Stop>,
    rate: f64,
    start: Instant,
) -> Measured {
    let places = Arc::new(Semaphore::new(plan.concurrency));
    let all = Arc::new(Mutex::new(Measured::new(plan.clone())));
    let begin = {
        let (plan, progress, stop) = (plan.clone(), progress.clone(), stop.clone());
        let (places, all, runtime) = (places.clone(), all.clone(), Handle::current());
        // The runtime's timers are no finer than a millisecond; a thread's are.
        move || {
            let mut not_begun = 0;
            for index in 0..plan.calls {
                let due = start + Duration::from_secs_f64(index as f64 / rate);
                if due >= stop.end {
                    break;
                }
                thread::sleep(due.saturating_duration_since(Instant::now()));
                // A call that finds no place waits, and its latency runs.
                let place = runtime.block_on(places.clone().acquire_owned());
                if stop.is_over() {
                    let until = stop.end.min(Instant::now());
                    let due_by_now = (until - start).as_secs_f64() * rate;
                    not_begun = (due_by_now.ceil() as u64).min(plan.calls).saturating_sub(index);
                    break;
                }
                progress.begun.fetch_add(1, Relaxed);
                let client = clients[index as usize % clients.len()].clone();
                let (plan, progress, all) = (plan.clone(), progress.clone(), all.clone());
                runtime.spawn(async move {
                    let began = Instant::now();
                    let outcome = call(&plan, &client).await;
                    let ended = Instant::now();
                    progress.ended.fetch_add(1, Relaxed);
                    progress.failed.fetch_add(u64::from(outcome.failure.is_some()), Relaxed);
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.record(due, began, ended, outcome);
                    drop(all);
                    drop(place);
                });
            }
            not_begun
        }
    };
    let not_begun = tokio::task::spawn_blocking(begin).await.expect("the thread does not panic");
    // All places are free when all calls have ended.
    let count = u32::try_from(plan.concurrency).unwrap_or(u32::MAX);
    let _ = places.acquire_many(count).await;
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    let mut measured = std::mem::replace(&mut *all, Measured::new(plan.clone()));
    measured.not_begun = not_begun;
    measured
}

/// One call, of whatever kind.
async fn call(plan: &Plan, client: &Client) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.failure = try_call(plan, client, &mut outcome).await.err();
    outcome
}

async fn try_call(plan: &Plan, client: &Client, outcome: &mut Outcome) -> Result<(), Status> {
    let (target, options) = (plan.target, &plan.options);
    if !plan.is_client_streaming {
        let request = plan.requests.first().cloned().unwrap_or_default();
        outcome.sent = 1;
        outcome.bytes_sent = request.len() as u64;
        if !plan.is_server_streaming {
            let reply = raw::unary(client, target, request, options).await?;
            outcome.take(&reply);
            return Ok(());
        }
        let mut replies = raw::server_streaming(client, target, request, options).await?;
        while let Some(reply) = replies.recv().await? {
            outcome.take(&reply.0);
        }
        return Ok(());
    }
    let mut messages = plan.requests.iter().cycle().take(plan.messages);
    if !plan.is_server_streaming {
        let (mut sender, reply) = raw::client_streaming(client, target, options).await?;
        for message in messages {
            // Why it failed is for the reply to say.
            if sender.send(Raw(message.clone())).await.is_err() {
                break;
            }
            outcome.sent += 1;
            outcome.bytes_sent += message.len() as u64;
        }
        sender.finish();
        outcome.take(&reply.await?.0);
        return Ok(());
    }
    let (sender, mut replies) = raw::bidi_streaming(client, target, options).await?;
    let (mut sent, mut bytes_sent) = (0, 0);
    let sending = async {
        let mut sender = sender;
        for message in &mut messages {
            if sender.send(Raw(message.clone())).await.is_err() {
                break;
            }
            sent += 1;
            bytes_sent += message.len() as u64;
        }
        sender.finish();
    };
    let receiving = async {
        while let Some(reply) = replies.recv().await? {
            outcome.take(&reply.0);
        }
        Ok(())
    };
    let ((), received) = tokio::join!(sending, receiving);
    outcome.sent = sent;
    outcome.bytes_sent = bytes_sent;
    received
}

impl Outcome {
    fn take(&mut self, reply: &Bytes) {
        self.received += 1;
        self.bytes_received += reply.len() as u64;
    }
}

/// Shows on a terminal how far the load is.
fn tell(plan: Arc<Plan>, progress: Arc<Progress>, start: Instant) -> tokio::task::JoinHandle<()> {
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is valid"));
    tokio::spawn(async move {
        let _cleared = Cleared(bar.clone());
        let mut ticks = tokio::time::interval(TICK);
        let (mut last, mut last_time) = (0, start);
        loop {
            ticks.tick().await;
            let (ended, failed) = (progress.ended.load(Relaxed), progress.failed.load(Relaxed));
            let now = Instant::now();
            let rate = (ended - last) as f64 / (now - last_time).as_secs_f64().max(1e-9);
            (last, last_time) = (ended, now);
            bar.set_message(format!(
                "{}: {:.0?} of {:.0?}, {ended} calls, {rate:.0}/s, {failed} failed, {} in flight",
                plan.name,
                start.elapsed(),
                plan.duration,
                progress.begun.load(Relaxed).saturating_sub(ended).min(plan.concurrency as u64),
            ));
            bar.tick();
        }
    })
}

/// Takes the progress off the terminal when it is dropped.
struct Cleared(ProgressBar);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Times as the report has them.
pub fn nanos(value: u64) -> String {
    output::duration(Duration::from_nanos(value))
}
