//! Calls that do not end by themselves: deadlines, cancellation, connections that go away.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::AsyncReadExt,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{SHORT_DEADLINE, check_deadline, echo, pattern, unique_key, want_code};
use crate::{
    bare::read_header,
    connection::{Connection, Options, Result},
    message::codes,
    trial::Trial,
    verdict::{Outcome, Verdict, describe, fail, passed},
};

pub(super) async fn deadline_on_sleeping_server(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let began = Instant::now();
    // This library's server ends the handler at the deadline, however long it would go on.
    let millis = if trial.is_strict() { 3_600_000 } else { 10_000 };
    let result = connection.sleep(&Options::timeout(SHORT_DEADLINE), millis).await;
    check_deadline(&trial, &result, began.elapsed())?;
    trial.alive(&connection, "after the deadline").await?;
    Ok(describe(&result))
}

pub(super) async fn deadline_ends_the_handler(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let before = connection.stats().await?.calls_cancelled;
    let options = Options::timeout(SHORT_DEADLINE);
    let result = connection.wait(&options, &unique_key("deadline")).await;
    want_code(&result, codes::DEADLINE_EXCEEDED)?;
    trial
        .until("Stats counts the handler as cancelled", || async {
            Ok(connection.stats().await?.calls_cancelled > before)
        })
        .await?;
    passed()
}

/// A call that ends when the key is released.
fn spawn_wait(calls: &mut JoinSet<Result<()>>, connection: &Arc<dyn Connection>, key: &str) {
    let (connection, key) = (connection.clone(), key.to_owned());
    calls.spawn(async move { connection.wait(&Options::default(), &key).await });
}

pub(super) async fn cancel_after_begin(trial: Trial) -> Outcome {
    if !trial.connector.cancels() {
        return Err(Verdict::Unsupported("this client can't cancel a call".to_owned()));
    }
    let connection = trial.connect().await?;
    let key = unique_key("cancel");
    let before = connection.stats().await?;
    let mut call = JoinSet::new();
    spawn_wait(&mut call, &connection, &key);
    trial.step("until its handler has begun");
    trial.until_begun(&connection, &before, 1).await?;
    call.abort_all();
    if let Some(Ok(result)) = trial.within("the cancelled call", call.join_next()).await? {
        return fail(format!("the call ended before it was cancelled: {}", describe(&result)));
    }
    connection.release(&key).await?;
    trial.alive(&connection, "after the cancellation").await?;
    Ok("dropping the call is the cancellation, so there is no status".to_owned())
}

pub(super) async fn calls_after_cancel(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    trial.step("giving up 100 calls");
    // Some calls are given up before they are written, some while their handlers sleep.
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let patience = Duration::from_micros(200 * number);
        let (connection, cancels) = (connection.clone(), trial.connector.cancels());
        calls.spawn(async move {
            if cancels {
                timeout(patience, connection.sleep(&Options::default(), 50)).await.is_ok()
            } else {
                let options = Options::timeout(patience.max(Duration::from_micros(1)));
                connection.sleep(&options, 50).await.is_ok()
            }
        });
    }
    calls.join_all().await;
    for seed in 0..100 {
        trial.step(format!("call {seed} after those that were given up"));
        echo(&connection, pattern(64, seed)).await?;
    }
    passed()
}

pub(super) async fn disconnect_ends_handlers(trial: Trial) -> Outcome {
    let observer = trial.connect().await?;
    // What other cases have given up may still end, and must not be taken for this one's.
    trial
        .until("Stats shows no call but itself", || async {
            Ok(observer.stats().await?.calls_in_flight <= 1)
        })
        .await?;
    let before = observer.stats().await?;
    let connection = trial.connect().await?;
    let key = unique_key("disconnect");
    let begun = observer.stats().await?;
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        spawn_wait(&mut calls, &connection, &key);
    }
    trial.until_begun(&observer, &begun, 3).await?;
    connection.close()?;
    trial
        .until("Stats counts the handlers as cancelled", || async {
            Ok(observer.stats().await?.calls_cancelled >= before.calls_cancelled + 3)
        })
        .await?;
    while let Some(result) = calls.join_next().await {
        want_code(&result.map_err(|error| error.to_string())?, codes::UNAVAILABLE)?;
    }
    trial
        .until("Stats shows that the connection is closed", || async {
            Ok(observer.stats().await?.connections <= before.connections)
        })
        .await?;
    passed()
}

/// What the client does has nothing to do with the server here: a bare socket plays it.
pub(super) async fn pending_call_at_disconnect(trial: Trial) -> Outcome {
    let (bare, mut socket) = trial.connect_bare().await?;
    let mut call = JoinSet::new();
    spawn_wait(&mut call, &bare, "never");
    trial.step("the frame of the call");
    let header = read_header(&mut socket).await?;
    let mut data = vec![0; header.len as usize];
    socket.read_exact(&mut data).await.map_err(|error| error.to_string())?;
    drop(socket);
    match trial.within("the pending call", call.join_next()).await? {
        Some(Ok(Ok(()))) => fail("success"),
        Some(Ok(result)) => {
            if trial.is_strict() {
                want_code(&result, codes::UNAVAILABLE)?;
            }
            Ok(describe(&result))
        }
        _ => fail("the call panicked"),
    }
}
