//! The load itself.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
    task::JoinSet,
};
use ttrpc::Client;

use super::{
    call::call,
    measured::Measured,
    progress::{Progress, show},
};
use crate::{failure::Failure, session::Target};

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
    pub concurrency: usize,
    pub connections: usize,
    pub pace: Pace,
    pub duration: Duration,
    pub calls: u64,
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
    let stop = Arc::new(Stop { end, is_interrupted: AtomicBool::new(false) });
    let shown = shows_progress.then(|| show(plan.clone(), progress.clone(), start));
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
            _ = interrupts.recv() => stop.is_interrupted.store(true, Relaxed),
        }
    };
    measured.elapsed = start.elapsed();
    if let Some(shown) = shown {
        shown.abort();
        let _ = shown.await;
    }
    Ok(measured)
}

/// When no more calls are to begin.
#[derive(Debug)]
struct Stop {
    end: Instant,
    is_interrupted: AtomicBool,
}

impl Stop {
    fn is_over(&self) -> bool {
        self.is_interrupted.load(Relaxed) || Instant::now() >= self.end
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
