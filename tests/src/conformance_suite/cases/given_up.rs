//! Calls that do not end by themselves: deadlines, cancellation, connections that go away.

use std::{future::IntoFuture, time::Duration};

use tokio::{
    io::AsyncReadExt,
    net::UnixStream,
    task::JoinSet,
    time::{Instant, timeout},
};
use ttrpc::{Client, ClientConfig, Code};

use super::{SHORT_DEADLINE, check_deadline, echo, pattern, unique_key, want_code};
use crate::{
    conformance::*,
    conformance_suite::{Outcome, Trial, fail, passed, verdict::describe},
};

pub(super) async fn deadline_on_sleeping_server(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let began = Instant::now();
    // This library's server ends the handler at the deadline, however long it would go on.
    let millis = if trial.is_strict { 3_600_000 } else { 10_000 };
    let result = conformance.sleep(SleepRequest { millis }).timeout(SHORT_DEADLINE).await;
    check_deadline(&trial, &result, began.elapsed())?;
    trial.alive(&conformance, "after the deadline").await?;
    Ok(describe(&result))
}

pub(super) async fn deadline_ends_the_handler(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let before = conformance.stats(Empty {}).await?.calls_cancelled;
    let key = unique_key("deadline");
    let result = conformance.wait(KeyRequest { key }).timeout(SHORT_DEADLINE).await;
    want_code(&result, Code::DeadlineExceeded)?;
    trial
        .until("Stats counts the handler as cancelled", || async {
            Ok(conformance.stats(Empty {}).await?.calls_cancelled > before)
        })
        .await?;
    passed()
}

async fn until_in_flight(
    trial: &Trial,
    conformance: &ConformanceClient,
    calls: u64,
) -> Outcome<()> {
    trial
        .until("Stats shows the calls in flight", || async {
            Ok(conformance.stats(Empty {}).await?.calls_in_flight >= calls)
        })
        .await
}

pub(super) async fn cancel_after_begin(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let key = unique_key("cancel");
    let mut call = JoinSet::new();
    call.spawn(conformance.wait(KeyRequest { key: key.clone() }).into_future());
    trial.step("until the call is in flight");
    until_in_flight(&trial, &conformance, 2).await?;
    call.abort_all();
    if let Some(Ok(result)) = trial.within("the cancelled call", call.join_next()).await? {
        return fail(format!("the call ended before it was cancelled: {}", describe(&result)));
    }
    conformance.release(KeyRequest { key }).await?;
    trial.alive(&conformance, "after the cancellation").await?;
    Ok("dropping the call is the cancellation, so there is no status".to_owned())
}

pub(super) async fn calls_after_cancel(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    trial.step("giving up 100 calls");
    // Some calls are given up before they are written, some while their handlers sleep.
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let patience = Duration::from_micros(200 * number);
        let call = conformance.sleep(SleepRequest { millis: 50 }).into_future();
        calls.spawn(async move { timeout(patience, call).await.is_ok() });
    }
    calls.join_all().await;
    for seed in 0..100 {
        trial.step(format!("call {seed} after those that were given up"));
        echo(&conformance, pattern(64, seed)).await?;
    }
    passed()
}

pub(super) async fn disconnect_ends_handlers(trial: Trial) -> Outcome {
    let observer = trial.connect().await?;
    // What other cases have given up may still end, and must not be taken for this one's.
    trial
        .until("Stats shows no call but itself", || async {
            Ok(observer.stats(Empty {}).await?.calls_in_flight <= 1)
        })
        .await?;
    let before = observer.stats(Empty {}).await?;
    let client = trial.client().await?;
    let conformance = ConformanceClient::new(client.clone());
    let key = unique_key("disconnect");
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        calls.spawn(conformance.wait(KeyRequest { key: key.clone() }).into_future());
    }
    until_in_flight(&trial, &observer, 4).await?;
    client.close();
    trial
        .until("Stats counts the handlers as cancelled", || async {
            Ok(observer.stats(Empty {}).await?.calls_cancelled >= before.calls_cancelled + 3)
        })
        .await?;
    while let Some(result) = calls.join_next().await {
        want_code(&result.map_err(|error| error.to_string())?, Code::Unavailable)?;
    }
    trial
        .until("Stats shows that the connection is closed", || async {
            Ok(observer.stats(Empty {}).await?.connections <= before.connections)
        })
        .await?;
    passed()
}

/// What the client does has nothing to do with the server here: a bare socket plays it.
pub(super) async fn pending_call_at_disconnect(trial: Trial) -> Outcome {
    let (here, mut there) = UnixStream::pair().map_err(|error| error.to_string())?;
    let bare = ConformanceClient::new(Client::from_unix_stream(here, ClientConfig::default()));
    let mut call = JoinSet::new();
    call.spawn(bare.wait(KeyRequest { key: "never".to_owned() }).into_future());
    trial.step("the frame of the call");
    there.read_exact(&mut [0; 10]).await.map_err(|error| error.to_string())?;
    drop(there);
    match trial.within("the pending call", call.join_next()).await? {
        Some(Ok(result)) => {
            want_code(&result, Code::Unavailable)?;
            Ok(describe(&result))
        }
        _ => fail("the call panicked"),
    }
}
