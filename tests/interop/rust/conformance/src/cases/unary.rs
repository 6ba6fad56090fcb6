//! Single calls: what they carry, how they fail, and how they are given up.

use super::{
    LONG_TIMEOUT, ORDERED, PATIENCE, SHORT_DEADLINE, pattern, plausible_timeout, unique_key,
    want_code, within,
};
use super::{
    Outcome, Trial, Verdict, alive, check_deadline, describe, echo, fail, ordered_metadata, passed,
};
use crate::connection::{Connection, Connector, Options};
use crate::message::{Detail, Failure, Peer, Status};
use crate::{DETAIL_TYPE, SERVICE, codes};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub async fn empty_unary<C: Connector>(trial: &Trial<C>) -> Outcome {
    trial.connect().await?.sleep(&Options::default(), 0).await?;
    passed()
}

pub async fn zero_length_payload<C: Connector>(trial: &Trial<C>) -> Outcome {
    echo(&trial.connect().await?, Vec::new()).await?;
    passed()
}

pub async fn status_code_and_message<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    for code in 1..=16 {
        let message = format!("failure {code}: größer als geplant, 失敗");
        let outcome = connection.fail(code, &message, Vec::new()).await;
        match &outcome {
            Err(Failure::Status(status)) if status.code == code && status.message == message => {}
            _ => {
                return fail(format!(
                    "wanted status {code} {message:?}, got {}",
                    describe(&outcome)
                ));
            }
        }
    }
    passed()
}

pub async fn status_details<C: Connector>(trial: &Trial<C>) -> Outcome {
    let value = pattern(1000, 2);
    let connection = trial.connect().await?;
    let outcome = connection.fail(codes::FAILED_PRECONDITION, "with a detail", value.clone()).await;
    want_code(&outcome, codes::FAILED_PRECONDITION)?;
    let details = match outcome {
        Err(Failure::Status(Status { details, .. })) => details,
        _ => Vec::new(),
    };
    match details.as_slice() {
        [detail] if *detail == (Detail { type_url: DETAIL_TYPE.to_owned(), value }) => passed(),
        [detail] => fail(format!(
            "a detail of type {:?} and {} bytes arrived",
            detail.type_url,
            detail.value.len()
        )),
        _ => fail(format!("{} details arrived", details.len())),
    }
}

pub async fn unimplemented_method<C: Connector>(trial: &Trial<C>) -> Outcome {
    unimplemented(trial, SERVICE, "NoSuchMethod").await
}

pub async fn unimplemented_service<C: Connector>(trial: &Trial<C>) -> Outcome {
    unimplemented(trial, "ttrpc.conformance.v1.NoSuchService", "Echo").await
}

async fn unimplemented<C: Connector>(trial: &Trial<C>, service: &str, method: &str) -> Outcome {
    let connection = trial.connect().await?;
    let outcome = within(PATIENCE, "the call", connection.call_unknown(service, method)).await?;
    want_code(&outcome, codes::UNIMPLEMENTED)?;
    alive(&connection, "after that").await?;
    Ok(describe(&outcome))
}

pub async fn metadata_order<C: Connector>(trial: &Trial<C>) -> Outcome {
    let inspection = trial.connect().await?.inspect(&ordered_metadata()).await?;
    let seen = inspection.metadata;
    let values = |wanted: &str| -> Vec<&str> {
        seen.iter().filter(|(key, _)| key == wanted).map(|(_, value)| value.as_str()).collect()
    };
    if values("tag") != ["first", "second", "third"]
        || values("other") != ["one"]
        || seen.len() != ORDERED.len()
    {
        return fail(format!("the handler saw {seen:?}"));
    }
    passed()
}

pub async fn timeout_is_seen<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let with = connection.inspect(&Options::timeout(LONG_TIMEOUT)).await?.timeout_nano;
    let without = connection.inspect(&Options::default()).await?.timeout_nano;
    let seen = format!("{with} ns of {LONG_TIMEOUT:?}, and {without} ns where none was given");
    if plausible_timeout(with) && without == 0 { Ok(seen) } else { fail(seen) }
}

pub async fn peer_credentials<C: Connector>(trial: &Trial<C>) -> Outcome {
    let seen = trial.connect().await?.inspect(&Options::default()).await?.peer;
    if seen.pid == 0 {
        return Err(Verdict::Unsupported("this server does not know its peer".to_owned()));
    }
    let own = Peer {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: rustix::process::getpid().as_raw_nonzero().get(),
    };
    if seen == own { passed() } else { fail(format!("the handler saw {seen:?} of {own:?}")) }
}

pub async fn deadline_on_sleeping_server<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let began = Instant::now();
    let outcome = connection.sleep(&Options::timeout(SHORT_DEADLINE), 10_000).await;
    check_deadline(&outcome, began.elapsed())?;
    alive(&connection, "after the deadline").await?;
    Ok(describe(&outcome))
}

/// Returns once the server says that another call is in flight beside the question itself.
async fn until_call_in_flight(connection: &Arc<dyn Connection>) -> Result<(), Verdict> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if connection.stats().await?.calls_in_flight >= 2 {
            return Ok(());
        }
    }
    fail("Stats never showed the call in flight")
}

pub async fn cancel_after_begin<C: Connector>(trial: &Trial<C>) -> Outcome {
    if !C::CANCELS {
        return Err(Verdict::Unsupported("this client can't cancel a call".to_owned()));
    }
    let connection = trial.connect().await?;
    let key = unique_key("cancel");
    let call = {
        let (connection, key) = (Arc::clone(&connection), key.clone());
        tokio::spawn(async move { connection.wait(&key).await })
    };
    trial.step("until the call is in flight");
    until_call_in_flight(&connection).await?;
    call.abort();
    let ended = within(PATIENCE, "the cancelled call", call).await?;
    if let Ok(outcome) = ended {
        return fail(format!("the call ended before it was cancelled: {}", describe(&outcome)));
    }
    connection.release(&key).await?;
    alive(&connection, "after the cancellation").await?;
    Ok("dropping the call is the cancellation, so there is no status".to_owned())
}

pub async fn calls_after_cancel<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..100 {
        let connection = Arc::clone(&connection);
        // Some calls are given up before they are written, some while their handlers sleep.
        let patience = Duration::from_micros(200 * number);
        calls.spawn(async move {
            if C::CANCELS {
                let options = Options::default();
                tokio::time::timeout(patience, connection.sleep(&options, 50)).await.is_ok()
            } else {
                connection
                    .sleep(&Options::timeout(patience.max(Duration::from_micros(1))), 50)
                    .await
                    .is_ok()
            }
        });
    }
    trial.step("giving up 100 calls");
    calls.join_all().await;
    for seed in 0..100 {
        trial.step(format!("call {seed} after those that were given up"));
        echo(&connection, pattern(64, seed)).await?;
    }
    passed()
}

pub async fn panic_is_internal<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let outcome = match within(PATIENCE, "Panic", connection.panic()).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::Other("Panic: no answer within 5s".to_owned())),
    };
    let mut right = want_code(&outcome, codes::INTERNAL).is_ok();
    let mut observed = describe(&outcome);
    if alive(&connection, "on this connection").await.is_err() {
        right = false;
        observed += "; the connection did not live on";
    }
    let server_lives = match trial.connect().await {
        Ok(other) => alive(&other, "on another connection").await.is_ok(),
        Err(_) => false,
    };
    if !server_lives {
        right = false;
        observed += "; the server did not live on";
    }
    if right { Ok(observed) } else { fail(observed) }
}
