//! The load itself.

use std::{
    convert::Infallible,
    mem,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc},
};
use ttrpc::Client;

use super::{
    call::call,
    measured::Measured,
    progress::{Progress, show},
};
use crate::{failure::Failure, output, session::Target};

/// Later than anybody waits for.
const FAR: Duration = Duration::from_secs(86_400 * 365);

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

/// How a load came to its end.
#[derive(Debug)]
pub struct Ending {
    pub measured: Measured,
    /// Whether calls in flight were dropped.
    pub is_given_up: bool,
}

/// Makes the calls. With the first Ctrl-C no more begin, the second one drops those in flight. When a connection ends,
/// no more begin, either.
///
/// # Errors
/// If signals cannot be handled.
pub async fn measure(
    plan: Arc<Plan>,
    clients: Vec<Client>,
    shows_progress: bool,
) -> Result<Ending, Failure> {
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::Other(format!("Ctrl-C cannot be handled: {error}")))?;
    let load = Arc::new(Load::new(plan.clone()));
    let shown = shows_progress.then(|| show(plan.clone(), load.progress.clone(), load.start));
    // Each worker and call has a sender, so this ends when all of them have.
    let (running, mut all_ended) = mpsc::channel::<Infallible>(1);
    match plan.pace {
        Pace::Closed => closed_loop(&load, clients, running),
        Pace::Open { rate } => open_loop(&load, clients, running, rate),
    }
    let interrupted = async {
        interrupts.recv().await;
        load.stop();
        output::note("\nno more calls begin; Ctrl-C again drops those in flight");
        interrupts.recv().await;
    };
    let is_given_up = tokio::select! {
        biased;
        _ = all_ended.recv() => false,
        () = interrupted => true,
    };
    let measured = load.measured();
    if let Some(shown) = shown {
        shown.abort();
        let _ = shown.await;
    }
    Ok(Ending { measured, is_given_up })
}

/// A load under way.
#[derive(Debug)]
struct Load {
    plan: Arc<Plan>,
    progress: Arc<Progress>,
    start: Instant,
    /// No call begins after this.
    end: Instant,
    is_stopped: AtomicBool,
    /// Wakes the thread that begins calls at their times.
    pacer: Condvar,
    pacer_lock: Mutex<()>,
    /// Calls that may be in flight, in an open loop.
    places: Arc<Semaphore>,
    /// Calls that workers of a closed loop have taken upon them.
    taken: AtomicU64,
    not_begun: AtomicU64,
    /// As many as there are processors. Each has histograms, which are too large for every call in flight to have some.
    recorders: Vec<Mutex<Measured>>,
}

impl Load {
    fn new(plan: Arc<Plan>) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let start = Instant::now();
        let recorder = |_| Mutex::new(Measured::new(plan.clone(), start));
        let recorders = (0..processors.min(plan.concurrency)).map(recorder).collect();
        Load {
            progress: Arc::default(),
            start,
            end: later(start, plan.duration),
            is_stopped: AtomicBool::new(false),
            pacer: Condvar::new(),
            pacer_lock: Mutex::new(()),
            places: Arc::new(Semaphore::new(plan.concurrency)),
            taken: AtomicU64::new(0),
            not_begun: AtomicU64::new(0),
            recorders,
            plan,
        }
    }

    fn is_over(&self) -> bool {
        self.is_stopped.load(Relaxed) || Instant::now() >= self.end
    }

    /// Begins no more calls.
    fn stop(&self) {
        let lock = self.pacer_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_stopped.store(true, Relaxed);
        self.pacer.notify_all();
        self.places.close();
        drop(lock);
    }

    /// Waits on the pacer's thread until then, or until the load is stopped.
    fn sleep_until(&self, due: Instant) {
        let lock = self.pacer_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let left = due.saturating_duration_since(Instant::now());
        let is_running = |(): &mut ()| !self.is_stopped.load(Relaxed);
        // Poisoned or not: what it locks has no content.
        drop(self.pacer.wait_timeout_while(lock, left, is_running));
    }

    /// Makes a call and records it. `due` is when it should have begun; at once without.
    async fn call(&self, client: &Client, due: Option<Instant>, index: usize) {
        self.progress.begun.fetch_add(1, Relaxed);
        let began = Instant::now();
        let outcome = call(&self.plan, client).await;
        let ended = Instant::now();
        self.progress.ended.fetch_add(1, Relaxed);
        let failure = outcome.failure.as_ref();
        self.progress.failed.fetch_add(u64::from(failure.is_some()), Relaxed);
        // Every further call would fail at once.
        if failure.is_some_and(|status| status.connection_error().is_some()) {
            self.stop();
        }
        let recorder = &self.recorders[index % self.recorders.len()];
        let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        recorder.record(due.unwrap_or(began), began, ended, outcome);
    }

    /// What all recorders have. Calls that end later do not count.
    fn measured(&self) -> Measured {
        let not_ended_at = Instant::now();
        let mut all = Measured::new(self.plan.clone(), self.start);
        for recorder in &self.recorders {
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            all.add(mem::replace(&mut *recorder, Measured::new(self.plan.clone(), self.start)));
        }
        all.not_begun = self.not_begun.load(Relaxed);
        let recorded = all.succeeded() + all.failed();
        all.not_ended = self.progress.begun.load(Relaxed).saturating_sub(recorded);
        let until = match all.last_ended {
            Some(ended) if all.not_ended == 0 => ended,
            _ => not_ended_at,
        };
        all.elapsed = until.saturating_duration_since(self.start);
        all
    }
}

/// A time that may be too far away to be one.
fn later(start: Instant, duration: Duration) -> Instant {
    start.checked_add(duration).unwrap_or(start + FAR)
}

fn closed_loop(load: &Arc<Load>, clients: Vec<Client>, running: mpsc::Sender<Infallible>) {
    for index in 0..load.plan.concurrency {
        let client = clients[index % clients.len()].clone();
        let (load, running) = (load.clone(), running.clone());
        tokio::spawn(async move {
            while !load.is_over() && load.taken.fetch_add(1, Relaxed) < load.plan.calls {
                load.call(&client, None, index).await;
            }
            drop(running);
        });
    }
}

fn open_loop(load: &Arc<Load>, clients: Vec<Client>, running: mpsc::Sender<Infallible>, rate: f64) {
    let (load, runtime) = (load.clone(), Handle::current());
    // The runtime's timers are no finer than a millisecond; a thread's are.
    tokio::task::spawn_blocking(move || {
        for index in 0..load.plan.calls {
            let since_start = Duration::try_from_secs_f64(index as f64 / rate);
            let due = later(load.start, since_start.unwrap_or(FAR));
            if due >= load.end {
                break;
            }
            load.sleep_until(due);
            // A call that finds no place waits, and its latency runs. There are no places after the end.
            let place = runtime.block_on(load.places.clone().acquire_owned());
            let (Ok(place), false) = (place, load.is_over()) else {
                let until = load.end.min(Instant::now());
                let due_by_now = ((until - load.start).as_secs_f64() * rate).ceil() as u64;
                let not_begun = due_by_now.min(load.plan.calls).saturating_sub(index);
                load.not_begun.store(not_begun, Relaxed);
                break;
            };
            let index = index as usize;
            let client = clients[index % clients.len()].clone();
            let (load, running) = (load.clone(), running.clone());
            runtime.spawn(async move {
                load.call(&client, Some(due), index).await;
                drop((place, running));
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::measured::Outcome;

    fn load() -> Load {
        Load::new(Arc::new(Plan {
            target: Target { service: "a.B".to_owned().into(), method: "C".to_owned().into() },
            name: "a.B/C".to_owned(),
            is_client_streaming: false,
            is_server_streaming: false,
            requests: Vec::new(),
            messages: 0,
            concurrency: 65_536,
            connections: 1,
            pace: Pace::Closed,
            duration: Duration::MAX,
            calls: 1,
        }))
    }

    #[test]
    fn time_counts_until_the_last_call_has_ended() {
        let load = load();
        for (recorder, seconds) in load.recorders.iter().zip([3, 2]) {
            load.progress.begun.fetch_add(1, Relaxed);
            let ended = load.start + Duration::from_secs(seconds);
            recorder.lock().unwrap().record(load.start, load.start, ended, Outcome::default());
        }
        // However long it takes to add them up, and whenever that is done.
        let measured = load.measured();
        assert_eq!((measured.elapsed, measured.not_ended), (Duration::from_secs(3), 0));
    }

    #[test]
    fn recorders_are_no_more_than_processors() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        assert!(load().recorders.len() <= processors);
    }
}
