//! Many calls, many streams, many connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::task::JoinSet;

use super::{echo, pattern, streams, unique_key};
use crate::{
    connection::{Connection, Options},
    message::codes,
    trial::Trial,
    verdict::{Outcome, Verdict, passed},
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
    let connection = trial.connect().await?;
    let key = unique_key("wait");
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let (connection, key) = (connection.clone(), key.clone());
        calls.spawn(async move { connection.wait(&Options::default(), &key).await });
    }
    trial.step("Release");
    let released = release_until_end(&connection, &key, calls.join_all());
    let results = trial.within("the end of the waiting calls", released).await??;
    let mut refused = 0;
    for result in results {
        match result {
            Ok(()) => {}
            Err(failure) if count > 1 && failure.code() == Some(codes::RESOURCE_EXHAUSTED) => {
                refused += 1;
            }
            Err(failure) => return Err(Verdict::from(failure).in_part("Wait")),
        }
    }
    Ok(format!("{refused} of {count} refused"))
}

/// Releases a key again and again: there are servers on which a release frees those who wait at that
/// moment and is forgotten then, and nothing tells when the handler of a Wait has come so far.
pub(super) async fn release_until_end<T>(
    connection: &Arc<dyn Connection>,
    key: &str,
    calls: impl Future<Output = T>,
) -> Outcome<T> {
    let mut calls = std::pin::pin!(calls);
    loop {
        let released = connection.release(key).await;
        released.map_err(|failure| Verdict::from(failure).in_part("Release"))?;
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
    for (number, connection) in (0..).zip(connections) {
        tasks.spawn(async move {
            for round in 0..5 {
                echo(&connection, pattern(100, 5 * number + round)).await?;
            }
            Ok(())
        });
    }
    all(tasks).await
}

pub(super) async fn concurrent_unary(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let (connection, done, trial) = (connection.clone(), done.clone(), trial.clone());
        tasks.spawn(async move {
            for call in 0..CALLS_PER_CALLER {
                let seed = caller * CALLS_PER_CALLER + call;
                echo(&connection, pattern(16 + (call % 256) as usize, seed)).await?;
                trial.step(format!("{} calls done", done.fetch_add(1, Relaxed) + 1));
            }
            Ok(())
        });
    }
    all(tasks).await
}

pub(super) async fn concurrent_streams(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let mut tasks = JoinSet::new();
    for number in 0..STREAMS {
        let connection = connection.clone();
        tasks.spawn(async move {
            let chunks = streams::numbered(100, 64, 1000 * number);
            let exchanged = streams::exchange(&connection, chunks).await;
            exchanged.map_err(|verdict| verdict.in_part(&format!("stream {number}")))
        });
    }
    all(tasks).await
}
