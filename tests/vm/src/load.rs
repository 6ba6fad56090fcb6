//! Callers that load a guest until it stands still, and each meet their deadlines then.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::JoinHandle, time::sleep};
use ttrpc::{Client, Code, Status};
use ttrpc_tests::{
    conformance::*,
    harness::{echo_request, key},
};

use crate::{Tried, check};

/// How late a call may end after its deadline. What timers alone are late by comes on top.
const LATENESS: Duration = Duration::from_secs(1);

/// How late timers are on this computer, which may be busy with other things.
pub(crate) struct Timers {
    latest_ms: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Timers {
    pub(crate) fn start() -> Self {
        const PERIOD: Duration = Duration::from_millis(100);
        let latest_ms = Arc::new(AtomicU64::new(0));
        let noted = latest_ms.clone();
        let task = tokio::spawn(async move {
            loop {
                let start = Instant::now();
                sleep(PERIOD).await;
                noted.fetch_max((start.elapsed() - PERIOD).as_millis() as u64, Relaxed);
            }
        });
        Timers { latest_ms, task }
    }

    /// The latest that a timer was since the start.
    pub(crate) fn latest(&self) -> Duration {
        Duration::from_millis(self.latest_ms.load(Relaxed))
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Callers that call again and again, each call with a deadline.
pub(crate) struct Load {
    client: Client,
    timers: Timers,
    tell: watch::Sender<bool>,
    callers: Vec<JoinHandle<Result<Tally, Status>>>,
}

/// A call of a load.
pub(crate) type LoadCall = fn(&ConformanceClient) -> BoxFuture<Result<(), Status>>;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Default)]
struct Tally {
    answered: usize,
    expired: usize,
    latest: Duration,
}

impl Load {
    const CALLERS: usize = 64;
    const DEADLINE: Duration = Duration::from_millis(500);
    const PAYLOAD: usize = 16 << 10;

    /// Fills both directions.
    pub(crate) fn echoes(conformance: &ConformanceClient) -> BoxFuture<Result<(), Status>> {
        let call = conformance.echo(echo_request(vec![0; Load::PAYLOAD])).timeout(Load::DEADLINE);
        Box::pin(async move { call.await.map(drop) })
    }

    /// Fills the way to the guest alone: the replies are empty.
    pub(crate) fn releases(conformance: &ConformanceClient) -> BoxFuture<Result<(), Status>> {
        let call = conformance.release(key(&"k".repeat(Load::PAYLOAD))).timeout(Load::DEADLINE);
        Box::pin(async move { call.await.map(drop) })
    }

    /// Returns when the guest has answered for a while.
    pub(crate) async fn start(client: &Client, call: LoadCall) -> Tried<Self> {
        let timers = Timers::start();
        let (tell, told) = watch::channel(false);
        let conformance = ConformanceClient::new(client.clone());
        let caller = |_| tokio::spawn(call_on(conformance.clone(), call, told.clone()));
        let callers = (0..Load::CALLERS).map(caller).collect();
        for _ in 0..5 {
            conformance.echo(echo_request([])).await?;
        }
        Ok(Load { client: client.clone(), timers, tell, callers })
    }

    /// Goes on until the socket is full and each caller has met its deadline three more times, which a
    /// guest that stands still lets nobody miss. Says what came of it, or fails if a call ended too late.
    pub(crate) async fn end(self) -> Tried<String> {
        while self.client.snapshot().queue.blocked.is_none() {
            sleep(Duration::from_millis(20)).await;
        }
        self.tell.send(true)?;
        let mut all = Tally::default();
        for caller in self.callers {
            let one = caller.await??;
            all.answered += one.answered;
            all.expired += one.expired;
            all.latest = all.latest.max(one.latest);
        }
        let Tally { answered, expired, latest } = all;
        let timers = self.timers.latest();
        let outcome = format!(
            "{answered} calls answered, {expired} ended at their deadline of {:?}, the last {latest:.0?} \
             after its begin; socket full; timers at most {timers:.0?} late",
            Load::DEADLINE
        );
        check(latest <= Load::DEADLINE + LATENESS + timers, || format!("too late: {outcome}"))?;
        Ok(outcome)
    }
}

/// Calls again and again until it is told to end, and then until three more calls are too late.
async fn call_on(
    conformance: ConformanceClient,
    call: LoadCall,
    told: watch::Receiver<bool>,
) -> Result<Tally, Status> {
    let mut tally = Tally::default();
    let mut expired_since = 0;
    while expired_since < 3 {
        let start = Instant::now();
        match call(&conformance).await {
            Ok(()) => tally.answered += 1,
            Err(status) if status.code() == Code::DeadlineExceeded => {
                tally.expired += 1;
                expired_since += usize::from(*told.borrow());
            }
            Err(status) => return Err(status),
        }
        tally.latest = tally.latest.max(start.elapsed());
    }
    Ok(tally)
}
