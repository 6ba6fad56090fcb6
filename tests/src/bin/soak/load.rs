//! What well-behaved clients do. Whatever else happens to the server, none of this may fail.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use ttrpc::{Client, Code, Status};
use ttrpc_tests::{
    conformance::*,
    harness::{key, patient_client},
};

/// How long a call may take on a machine that does other things, too.
pub(crate) const GENEROUS: Duration = Duration::from_secs(600);

/// Actions on one connection.
const ACTIONS_PER_CONNECTION: usize = 200;

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    calls: AtomicU64,
    messages: AtomicU64,
    connections: AtomicU64,
    deadlines: AtomicU64,
    /// How much later than its deadline a call returned, at most, in microseconds.
    latest: AtomicU64,
}

impl Tally {
    pub(crate) fn summary(&self) -> String {
        let of = |count: &AtomicU64| count.load(Relaxed);
        format!(
            "{} calls and {} stream messages on {} connections; {} deadlines passed, the latest \
             call {:.1} ms after",
            of(&self.calls),
            of(&self.messages),
            of(&self.connections),
            of(&self.deadlines),
            of(&self.latest) as f64 / 1000.0
        )
    }
}

/// A failure that must not be, with what was being done.
pub(crate) fn unexpected(what: &str) -> impl Fn(Status) -> String {
    move |status| format!("{what}: {status:?}")
}

fn check(what: &str, holds: bool) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{what} went wrong")) }
}

/// Works on one connection after the other until the time has come.
///
/// # Errors
/// With what was seen that must not be.
pub(crate) async fn work(address: &str, until: Instant, tally: &Tally) -> Result<(), String> {
    while Instant::now() < until {
        let client = Client::connect_with(address, patient_client())
            .await
            .map_err(|error| error.to_string())?;
        tally.connections.fetch_add(1, Relaxed);
        let worker = Worker { conformance: ConformanceClient::new(client), tally };
        for _ in 0..fastrand::usize(1..ACTIONS_PER_CONNECTION) {
            let action = timeout(GENEROUS, worker.act()).await;
            action.map_err(|_| "an action did not end".to_owned())??;
            if Instant::now() >= until {
                break;
            }
            // Steady work, not as much as the machine can do.
            sleep(Duration::from_millis(fastrand::u64(0..20))).await;
        }
        // Every third connection ends with calls under way.
        if fastrand::usize(0..3) == 0 {
            worker.leave_pending().await?;
        }
    }
    Ok(())
}

struct Worker<'a> {
    conformance: ConformanceClient,
    tally: &'a Tally,
}

impl Worker<'_> {
    async fn act(&self) -> Result<(), String> {
        match fastrand::u8(0..10) {
            0..3 => self.echo().await,
            3 => self.burst().await,
            4 => self.collect().await,
            5 => self.exchange().await,
            6 => self.generate().await,
            7 => self.give_up().await,
            8 => self.pass_deadline().await,
            _ => self.fail().await,
        }
    }

    async fn echo(&self) -> Result<(), String> {
        let len =
            if fastrand::bool() { fastrand::usize(0..300) } else { fastrand::usize(0..200_000) };
        let payload = vec![fastrand::u8(..); len];
        let request = EchoRequest { payload: payload.clone(), response_size: 0 };
        self.tally.calls.fetch_add(1, Relaxed);
        let reply = self.conformance.echo(request).timeout(GENEROUS).await;
        check("an echo", reply.map_err(unexpected("an echo"))?.payload == payload)
    }

    async fn burst(&self) -> Result<(), String> {
        let mut calls = JoinSet::new();
        for number in 0..fastrand::u32(1..100) {
            let request = EchoRequest { payload: Vec::new(), response_size: number };
            calls.spawn(self.conformance.echo(request).into_future());
        }
        self.tally.calls.fetch_add(calls.len() as u64, Relaxed);
        while let Some(reply) = calls.join_next().await {
            let reply = reply.map_err(|error| error.to_string())?;
            reply.map_err(unexpected("one echo of many"))?;
        }
        Ok(())
    }

    async fn collect(&self) -> Result<(), String> {
        let wrong = unexpected("an upload");
        let (mut requests, reply) = self.conformance.collect().await.map_err(&wrong)?;
        let chunks = fastrand::u64(0..100);
        let payload = vec![0; fastrand::usize(0..3000)];
        for sequence in 0..chunks {
            let chunk = Chunk { sequence, payload: payload.clone() };
            requests.send(chunk).await.map_err(&wrong)?;
        }
        requests.finish();
        self.tally.messages.fetch_add(chunks, Relaxed);
        let bytes = chunks * payload.len() as u64;
        let collected = CollectResponse { chunks, bytes, in_order: true };
        check("an upload", reply.await.map_err(&wrong)? == collected)
    }

    async fn exchange(&self) -> Result<(), String> {
        let wrong = unexpected("an exchange");
        let (mut requests, mut replies) = self.conformance.exchange().await.map_err(&wrong)?;
        let chunks = fastrand::u64(0..100);
        let sending = async {
            for sequence in 0..chunks {
                let chunk = Chunk { sequence, payload: vec![1; 100] };
                requests.send(chunk).await.map_err(&wrong)?;
            }
            requests.finish();
            Ok(())
        };
        let receiving = async {
            let mut expected = 0;
            while let Some(chunk) = replies.recv().await.map_err(&wrong)? {
                check("the order of an exchange", chunk.sequence == expected)?;
                expected += 1;
            }
            check("the number of an exchange's messages", expected == chunks)
        };
        self.tally.messages.fetch_add(2 * chunks, Relaxed);
        tokio::try_join!(sending, receiving).map(drop)
    }

    /// A stream of replies, at first not taken for a while.
    async fn generate(&self) -> Result<(), String> {
        let wrong = unexpected("a stream");
        let count = fastrand::u64(0..3000);
        let request = GenerateRequest { count, size: 500, ..GenerateRequest::default() };
        let mut replies = self.conformance.generate(request).await.map_err(&wrong)?;
        sleep(Duration::from_millis(fastrand::u64(0..50))).await;
        let mut expected = 0;
        while let Some(chunk) = replies.recv().await.map_err(&wrong)? {
            check("the order of a stream", chunk.sequence == expected)?;
            expected += 1;
        }
        self.tally.messages.fetch_add(count, Relaxed);
        check("the number of a stream's messages", expected == count)
    }

    /// Drops calls half way.
    async fn give_up(&self) -> Result<(), String> {
        let wrong = unexpected("a stream to be given up");
        let moment = Duration::from_millis(fastrand::u64(0..5));
        let sleeping = self.conformance.sleep(SleepRequest { millis: 100 }).into_future();
        let _ = timeout(moment, sleeping).await;
        let request = GenerateRequest { count: 50, size: 5000, ..GenerateRequest::default() };
        let mut replies = self.conformance.generate(request).await.map_err(&wrong)?;
        replies.recv().await.map_err(&wrong)?;
        let (mut upload, _reply) = self.conformance.collect().await.map_err(&wrong)?;
        upload.send(Chunk::default()).await.map_err(&wrong)
    }

    async fn pass_deadline(&self) -> Result<(), String> {
        let limit = Duration::from_millis(fastrand::u64(1..50));
        let start = Instant::now();
        let ended = self.conformance.wait(key("never")).timeout(limit).await;
        let late = start.elapsed().saturating_sub(limit);
        self.tally.deadlines.fetch_add(1, Relaxed);
        self.tally.latest.fetch_max(late.as_micros() as u64, Relaxed);
        let code = ended.err().map(|status| status.code());
        check("a deadline", code == Some(Code::DeadlineExceeded))
    }

    async fn fail(&self) -> Result<(), String> {
        let request = FailRequest { code: 5, message: "as asked".to_owned(), detail: Vec::new() };
        let failed = self.conformance.fail(request).await;
        self.tally.calls.fetch_add(1, Relaxed);
        check("a failure", failed.is_err_and(|status| status.code() == Code::NotFound))
    }

    /// Begins calls that end when the client is dropped, which it is next.
    async fn leave_pending(&self) -> Result<(), String> {
        let wrong = unexpected("a call to be left");
        let _upload = self.conformance.collect().await.map_err(&wrong)?;
        let mut waits = JoinSet::new();
        for _ in 0..5 {
            waits.spawn(self.conformance.wait(key("never")).into_future());
        }
        sleep(Duration::from_millis(5)).await;
        Ok(())
    }
}
