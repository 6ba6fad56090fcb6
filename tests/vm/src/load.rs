//! Callers that load a guest until it stands still, and each meet their deadlines then.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::JoinHandle, time::sleep};
use ttrpc::{Client, Code, Status};
use ttrpc_tests::{
    conformance::*,
    harness::{echo_request, key},
};

use crate::Tried;

/// Callers that call again and again, each call with a deadline.
pub(crate) struct Load {
    client: Client,
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
        let (tell, told) = watch::channel(false);
        let conformance = ConformanceClient::new(client.clone());
        let caller = |_| tokio::spawn(call_on(conformance.clone(), call, told.clone()));
        let callers = (0..Load::CALLERS).map(caller).collect();
        for _ in 0..5 {
            conformance.echo(echo_request([])).await?;
        }
        Ok(Load { client: client.clone(), tell, callers })
    }

    /// Goes on until the socket is full and each caller has met its deadline three more times, which a
    /// guest that stands still lets nobody miss. Says what came of it.
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
        Ok(format!(
            "{answered} calls answered, {expired} ended at their deadline of {:?}, the last {latest:.0?} \
             after its begin; socket full",
            Load::DEADLINE
        ))
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
