//! Sizes and numbers: the largest frames, many calls, many connections.

use super::raw_server::{RawServer, read_frame, read_frame_start};
use super::{
    Outcome, PATIENCE, Trial, Verdict, alive, describe, echo, fail, passed, pattern, release_until,
    unique_key, within,
};
use crate::codes;
use crate::connection::{Connector, Options};
use crate::message::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

pub const FRAME_MAX: usize = 4 << 20;
/// What a Request for Echo adds to its payload: service (2 + 32 bytes), method (2 + 4), and two headers of 5 bytes, for
/// the payload of the Request and for the payload of the EchoRequest therein.
const ECHO_REQUEST_OVERHEAD: usize = 50;
/// What a Response adds: two headers of 5 bytes, and 2 bytes for an empty status, which some servers send.
const ECHO_RESPONSE_OVERHEAD: usize = 12;

const OVER_LIMIT_WAITS: usize = 1000;
const CALLERS: u64 = 64;
const CALLS_PER_CALLER: u64 = 1000;

pub async fn large_unary<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    trial.step("a request of 4 MiB");
    echo(&connection, pattern(FRAME_MAX - ECHO_REQUEST_OVERHEAD, 1)).await?;
    trial.step("a reply of 4 MiB");
    let size = FRAME_MAX - ECHO_RESPONSE_OVERHEAD;
    match connection.echo(&Options::default(), Vec::new(), size as u32).await {
        Ok(payload) if payload.len() == size => passed(),
        Ok(payload) => fail(format!("a reply of {size} bytes came with {}", payload.len())),
        Err(failure) => fail(format!("a reply of {size} bytes: {failure}")),
    }
}

pub async fn wait_and_release<C: Connector>(trial: &Trial<C>) -> Outcome {
    waits(trial, 1).await
}

pub async fn wait_and_release_over_limit<C: Connector>(trial: &Trial<C>) -> Outcome {
    waits(trial, OVER_LIMIT_WAITS).await
}

async fn waits<C: Connector>(trial: &Trial<C>, count: usize) -> Outcome {
    let connection = trial.connect().await?;
    let key = unique_key("wait");
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let (connection, key) = (Arc::clone(&connection), key.clone());
        calls.spawn(async move { connection.wait(&key).await });
    }
    trial.step("Release");
    let outcomes = release_until(&connection, &key, calls.join_all(), PATIENCE).await?;
    let mut refused = 0;
    for outcome in &outcomes {
        match outcome {
            Ok(()) => {}
            Err(failure) if count > 1 && failure.code() == Some(codes::RESOURCE_EXHAUSTED) => {
                refused += 1
            }
            Err(failure) => return fail(format!("Wait: {failure}")),
        }
    }
    Ok(format!("{refused} of {count} refused"))
}

/// Sends a request over the limit to a bare socket, to see whether any of it is written, then to the server.
pub async fn oversize_refused_locally<C: Connector>(trial: &Trial<C>) -> Outcome {
    let server = RawServer::listen()?;
    let connection = trial.connect_to(&server.address()).await?;
    let mut socket = server.accept().await?;
    trial.step("a request over 4 MiB towards a bare socket");
    let mut call = {
        let connection = Arc::clone(&connection);
        tokio::spawn(
            async move { connection.echo(&Options::default(), vec![0; FRAME_MAX], 0).await },
        )
    };
    let refusal = tokio::select! {
        refusal = &mut call => refusal.map_err(|error| format!("the call panicked: {error}"))?,
        start = read_frame_start(&mut socket) => {
            return fail(format!("a frame of {} bytes was begun; {}", start?.length, remote_refusal(trial).await));
        }
    };
    if refusal.is_ok() {
        return fail("success");
    }
    // The next frame on the wire shows that nothing of the refused one went before it.
    trial.step("the frame after the refused one");
    let next =
        tokio::spawn(async move { connection.echo(&Options::default(), Vec::new(), 0).await });
    let start = read_frame_start(&mut socket).await?;
    next.abort();
    if start.length as usize > FRAME_MAX {
        return fail(format!(
            "a frame of {} bytes was begun after {}",
            start.length,
            describe(&refusal)
        ));
    }
    trial.step("the same with the server");
    let connection = trial.connect().await?;
    if connection.echo(&Options::default(), vec![0; FRAME_MAX], 0).await.is_ok() {
        return fail("success");
    }
    alive(&connection, "after the refusal").await?;
    Ok(format!("{}; the next call has stream id {}", describe(&refusal), start.stream_id))
}

/// Tells what the server makes of a frame over the limit.
async fn remote_refusal<C: Connector>(trial: &Trial<C>) -> String {
    let verdict = async {
        let connection = trial.connect().await?;
        let options = Options::default();
        let call = connection.echo(&options, vec![0; FRAME_MAX], 0);
        let outcome = within(PATIENCE, "Echo", call).await?;
        alive(&connection, "after that").await?;
        Ok(format!(
            "the server answered it with {}, and the connection lived on",
            describe(&outcome)
        ))
    };
    match verdict.await {
        Ok(text) | Err(Verdict::Fail(text) | Verdict::Unsupported(text)) => text,
    }
}

pub async fn oversize_reply<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let options = Options::default();
    let call = connection.echo(&options, Vec::new(), 5 << 20);
    let failure = match within(PATIENCE, "Echo", call).await? {
        Ok(payload) => return fail(format!("success, with {} bytes", payload.len())),
        Err(failure) => failure,
    };
    if matches!(failure, Failure::Other(_)) {
        return fail(failure.to_string());
    }
    match alive(&connection, "after that").await {
        Ok(()) => Ok(failure.to_string()),
        Err(Verdict::Fail(text) | Verdict::Unsupported(text)) => {
            fail(format!("{failure}; then {text}"))
        }
    }
}

pub async fn pending_call_at_disconnect<C: Connector>(trial: &Trial<C>) -> Outcome {
    let server = RawServer::listen()?;
    let connection = trial.connect_to(&server.address()).await?;
    let call = tokio::spawn(async move { connection.wait("never").await });
    let mut socket = server.accept().await?;
    trial.step("the frame of the call");
    read_frame(&mut socket).await?;
    drop(socket);
    let outcome = within(PATIENCE, "the pending call", call)
        .await?
        .map_err(|error| format!("the call panicked: {error}"))?;
    if outcome.is_ok() { fail("success") } else { Ok(describe(&outcome)) }
}

pub async fn many_connections<C: Connector>(trial: &Trial<C>) -> Outcome {
    let mut connections = Vec::new();
    for _ in 0..100 {
        connections.push(trial.connect().await?);
    }
    let mut calls = JoinSet::new();
    for (number, connection) in (0..).zip(&connections) {
        let connection = Arc::clone(connection);
        calls.spawn(async move {
            for round in 0..5 {
                echo(&connection, pattern(100, 5 * number + round)).await?;
            }
            Ok(())
        });
    }
    calls.join_all().await.into_iter().collect::<Result<(), Verdict>>()?;
    passed()
}

pub async fn concurrent_unary<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let done = Arc::new(AtomicU64::new(0));
    let mut calls = JoinSet::new();
    for caller in 0..CALLERS {
        let (connection, done) = (Arc::clone(&connection), Arc::clone(&done));
        calls.spawn(async move {
            for call in 0..CALLS_PER_CALLER {
                let seed = caller * CALLS_PER_CALLER + call;
                echo(&connection, pattern(16 + (call % 256) as usize, seed)).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), Verdict>(())
        });
    }
    let mut progress = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            ended = calls.join_next() => match ended {
                Some(Ok(outcome)) => outcome?,
                Some(Err(error)) => return fail(format!("a caller panicked: {error}")),
                None => return passed(),
            },
            _ = progress.tick() => trial.step(format!("{} calls done", done.load(Ordering::Relaxed))),
        }
    }
}
