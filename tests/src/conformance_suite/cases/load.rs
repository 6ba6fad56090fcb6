//! Many calls, many streams, many connections.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use tokio::task::JoinSet;
use ttrpc::Code;

use super::{echo, pattern, streams, unique_key};
use crate::{
    conformance::*,
    conformance_suite::{Outcome, Trial, Verdict, passed},
};

const OVER_LIMIT_WAITS: usize = 1000;
const CALLERS: u64 = 64;
const CALLS_PER_CALLER: u64 = 1000;
const CONNECTIONS: u64 = 100;
const STREAMS: u64 = 32;

pub(super) async fn wait_and_release(trial: Trial) -> Outcome {
    waits(trial, 1).await
}

pub(super) async fn wait_and_release_over_limit(trial: Trial) -> Outcome {
    waits(trial, OVER_LIMIT_WAITS).await
}

async fn waits(trial: Trial, count: usize) -> Outcome {
    let conformance = trial.connect().await?;
    let key = KeyRequest { key: unique_key("wait") };
    let mut calls = JoinSet::new();
    for _ in 0..count {
        calls.spawn(conformance.wait(key.clone()).into_future());
    }
    let released = release_until_all_end(&conformance, &key, calls.join_all());
    let results = trial.within("the end of the waiting calls", released).await??;
    let mut refused = 0;
    for result in results {
        match result {
            Ok(Empty {}) => {}
            Err(status) if count > 1 && status.code() == Code::ResourceExhausted => refused += 1,
            Err(status) => return Err(Verdict::from(status).in_part("Wait")),
        }
    }
    Ok(format!("{refused} of {count} refused"))
}

/// Releases a key again and again: there are servers on which a release frees those who wait at that
/// moment and is forgotten then, and nothing tells when the handler of a Wait has come so far.
async fn release_until_all_end<T>(
    conformance: &ConformanceClient,
    key: &KeyRequest,
    calls: impl Future<Output = T>,
) -> Outcome<T> {
    let mut calls = std::pin::pin!(calls);
    loop {
        conformance.release(key.clone()).await?;
        tokio::select! {
            results = &mut calls => return Ok(results),
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
        }
    }
}

async fn all(mut tasks: JoinSet<Outcome<()>>) -> Outcome {
    while let Some(task) = tasks.join_next().await {
        task.map_err(|error| format!("a caller panicked: {error}"))??;
    }
    passed()
}

pub(super) async fn many_connections(trial: Trial) -> Outcome {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(trial.connect().await?);
    }
    let mut tasks = JoinSet::new();
    for (number, conformance) in (0..).zip(connections) {
        tasks.spawn(async move {
            for round in 0..5 {
                echo(&conformance, pattern(100, 5 * number + round)).await?;
            }
            Ok(())
        });
    }
    all(tasks).await
}

pub(super) async fn concurrent_unary(trial: Trial) -> Outcome {
    let conformance = Arc::new(trial.connect().await?);
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let conformance = conformance.clone();
        tasks.spawn(async move {
            for call in 0..CALLS_PER_CALLER {
                let seed = caller * CALLS_PER_CALLER + call;
                echo(&conformance, pattern(16 + (call % 256) as usize, seed)).await?;
            }
            Ok(())
        });
    }
    all(tasks).await
}

pub(super) async fn concurrent_streams(trial: Trial) -> Outcome {
    let conformance = Arc::new(trial.connect().await?);
    let mut tasks = JoinSet::new();
    for number in 0..STREAMS {
        let conformance = conformance.clone();
        tasks.spawn(async move {
            let chunks = streams::numbered(100, 64, 1000 * number);
            let exchanged = streams::exchange(&conformance, chunks).await;
            exchanged.map_err(|verdict| verdict.in_part(&format!("stream {number}")))
        });
    }
    all(tasks).await
}
