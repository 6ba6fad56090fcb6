//! Calls that come at a rate of their own. A call's time counts from when it was due, so that what waits behind a slow
//! call is slow as well. In a closed loop it would come later instead, and the slow call would count once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use crate::{Connection, Options};

/// How often calls are found to be due.
const TICK: Duration = Duration::from_micros(100);

/// Which calls are due: the one with number `n` is due `n / rate` seconds after the start.
struct Schedule {
    start: Instant,
    rate: f64,
    /// A permit for each call that is due and that no caller has taken yet. Closed behind the last one.
    due: Semaphore,
    next: AtomicU64,
}

/// As many callers as calls may be in flight take those that are due. Gives back how long each call took.
pub(crate) async fn make_calls<C: Connection>(connection: &C, options: &Options) -> Vec<u32> {
    let schedule = Arc::new(Schedule {
        start: Instant::now(),
        rate: options.rate,
        due: Semaphore::new(0),
        next: AtomicU64::new(0),
    });
    let callers: Vec<_> = (0..options.in_flight)
        .map(|_| {
            let payload = vec![7; options.size];
            tokio::spawn(take_calls(connection.clone(), payload, schedule.clone()))
        })
        .collect();
    // A timer of the runtime would be too coarse, and the runtime has the load to carry.
    let duration = options.duration;
    let pacer = thread::spawn(move || schedule.keep(duration));
    let mut nanos = Vec::new();
    for caller in callers {
        nanos.append(&mut caller.await.expect("a call does not panic"));
    }
    pacer.join().expect("keeping time does not panic");
    nanos
}

impl Schedule {
    /// Adds permits as time goes by.
    fn keep(&self, duration: Duration) {
        let mut added = 0;
        loop {
            let elapsed = self.start.elapsed().min(duration);
            let due = (elapsed.as_secs_f64() * self.rate) as usize;
            self.due.add_permits(due - added);
            added = due;
            if elapsed == duration {
                break;
            }
            thread::sleep(TICK);
        }
        // The last ones are taken before anybody sees that it is closed.
        while (self.next.load(Relaxed) as usize) < added {
            thread::sleep(TICK);
        }
        self.due.close();
    }

    /// When the next call was due; `None` behind the last one.
    async fn next(&self) -> Option<Instant> {
        self.due.acquire().await.ok()?.forget();
        let number = self.next.fetch_add(1, Relaxed);
        Some(self.start + Duration::from_secs_f64(number as f64 / self.rate))
    }
}

async fn take_calls<C: Connection>(
    connection: C,
    payload: Vec<u8>,
    schedule: Arc<Schedule>,
) -> Vec<u32> {
    let mut nanos = Vec::with_capacity(4096);
    while let Some(due) = schedule.next().await {
        let reply = connection.echo(payload.clone()).await;
        assert_eq!(reply.len(), payload.len());
        nanos.push(due.elapsed().as_nanos().min(u32::MAX.into()) as u32);
    }
    nanos
}
