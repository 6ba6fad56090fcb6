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

use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc, watch},
    time::sleep_until,
};
use ttrpc::Client;

use super::{
    call::call,
    measured::Measured,
    plan::{Pace, Plan},
    progress::{Progress, show},
    schedule::Schedule,
};
use crate::{failure::Failure, output};

/// Later than anybody waits for.
const FAR: Duration = Duration::from_secs(86_400 * 365);

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
    match &plan.pace {
        Pace::Closed => closed_loop(&load, clients, running),
        Pace::Open { rate } => open_loop(&load, clients, running, rate.clone()),
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
    /// Wakes workers that are not needed yet.
    stopped: watch::Sender<bool>,
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
        let recorders = (0..processors.min(plan.max_concurrency())).map(recorder).collect();
        Load {
            progress: Arc::default(),
            start,
            end: later(start, plan.duration),
            is_stopped: AtomicBool::new(false),
            stopped: watch::Sender::new(false),
            pacer: Condvar::new(),
            pacer_lock: Mutex::new(()),
            places: Arc::new(Semaphore::new(plan.max_concurrency())),
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
        self.stopped.send_replace(true);
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

    /// Waits until a worker of a closed loop is needed; whether it is before the load's end.
    async fn needs(&self, worker: usize) -> bool {
        let whole = self.plan.duration;
        loop {
            if self.is_over() {
                return false;
            }
            let now = self.start.elapsed();
            match self.plan.concurrency.next_above(worker as f64, now, whole) {
                None => return false,
                Some(time) if time <= now => return true,
                Some(time) => {
                    let mut stopped = self.stopped.subscribe();
                    tokio::select! {
                        () = sleep_until(later(self.start, time).into()) => {}
                        _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
                    }
                }
            }
        }
    }

    /// Makes a call and records it. `due` is when it should have begun; at once without.
    async fn call(&self, client: &Client, due: Option<Instant>, number: u64, index: usize) {
        self.progress.begun.fetch_add(1, Relaxed);
        let began = Instant::now();
        let outcome = call(&self.plan, client, number).await;
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
    for index in 0..load.plan.max_concurrency() {
        let client = clients[index % clients.len()].clone();
        let (load, running) = (load.clone(), running.clone());
        tokio::spawn(async move {
            while load.needs(index).await {
                let number = load.taken.fetch_add(1, Relaxed);
                if number >= load.plan.calls {
                    // Nobody waits to be needed for nothing.
                    load.stop();
                    break;
                }
                load.call(&client, None, number, index).await;
            }
            drop(running);
        });
    }
}

fn open_loop(
    load: &Arc<Load>,
    clients: Vec<Client>,
    running: mpsc::Sender<Infallible>,
    rate: Schedule,
) {
    let (load, runtime) = (load.clone(), Handle::current());
    // The runtime's timers are no finer than a millisecond; a thread's are.
    tokio::task::spawn_blocking(move || {
        let whole = load.plan.duration;
        for number in 0..load.plan.calls {
            let due = later(load.start, rate.time_of(number, whole).unwrap_or(FAR));
            if due >= load.end {
                break;
            }
            load.sleep_until(due);
            // A call that finds no capacity waits, and its latency counts. There is none after the end.
            let place = runtime.block_on(load.places.clone().acquire_owned());
            let (Ok(place), false) = (place, load.is_over()) else {
                let until = load.end.min(Instant::now());
                let due_by_now = rate.count_by(until - load.start, whole);
                let not_begun = due_by_now.min(load.plan.calls).saturating_sub(number);
                load.not_begun.store(not_begun, Relaxed);
                break;
            };
            let index = number as usize;
            let client = clients[index % clients.len()].clone();
            let (load, running) = (load.clone(), running.clone());
            runtime.spawn(async move {
                load.call(&client, Some(due), number, index).await;
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
            methods: Vec::new(),
            turns: Vec::new(),
            concurrency: Schedule::Constant(65_536.0),
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
