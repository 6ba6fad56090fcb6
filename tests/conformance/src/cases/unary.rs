//! Single calls: what they carry and how they fail.

use std::sync::Arc;

use super::{LONG_TIMEOUT, ORDERED, echo, is_plausible_timeout, pattern, want_code};
use crate::{
    connection::{Connection, Options},
    message::{DETAIL_TYPE, Failure, Peer, SERVICE, codes},
    trial::Trial,
    verdict::{Outcome, Verdict, describe, fail, passed},
};

pub(super) async fn empty_unary(trial: Trial) -> Outcome {
    trial.connect().await?.sleep(&Options::default(), 0).await?;
    passed()
}

pub(super) async fn zero_length_payload(trial: Trial) -> Outcome {
    echo(&trial.connect().await?, Vec::new()).await?;
    passed()
}

async fn failing(connection: &Arc<dyn Connection>, code: i32, text: &str) -> Outcome<()> {
    let result = connection.fail(code, text, Vec::new()).await;
    match &result {
        Err(Failure::Status(status)) if status.code == code && status.message == text => Ok(()),
        _ => fail(format!("wanted status {code} {text:?}, got {}", describe(&result))),
    }
}

pub(super) async fn status_code_and_message(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    for code in 1..=16 {
        failing(&connection, code, &format!("failure {code}: größer als geplant, 失敗")).await?;
    }
    passed()
}

pub(super) async fn status_of_unknown_code(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    failing(&connection, 1234, "outside the list").await?;
    passed()
}

pub(super) async fn status_details(trial: Trial) -> Outcome {
    let value = pattern(1000, 2);
    let code = codes::FAILED_PRECONDITION;
    let result = trial.connect().await?.fail(code, "with a detail", value.clone()).await;
    want_code(&result, code)?;
    let details = match result {
        Err(Failure::Status(status)) => status.details,
        _ => Vec::new(),
    };
    match &details[..] {
        [detail] if detail.type_url == DETAIL_TYPE && detail.value == value => passed(),
        [detail] => fail(format!(
            "a detail of type {:?} and {} bytes arrived",
            detail.type_url,
            detail.value.len()
        )),
        _ => fail(format!("{} details arrived", details.len())),
    }
}

pub(super) async fn unimplemented_method(trial: Trial) -> Outcome {
    unimplemented(trial, SERVICE, "NoSuchMethod").await
}

pub(super) async fn unimplemented_service(trial: Trial) -> Outcome {
    unimplemented(trial, "ttrpc.conformance.v1.NoSuchService", "Echo").await
}

async fn unimplemented(trial: Trial, service: &str, method: &str) -> Outcome {
    let connection = trial.connect().await?;
    let result = trial.within("the call", connection.call_unknown(service, method)).await?;
    want_code(&result, codes::UNIMPLEMENTED)?;
    trial.alive(&connection, "after that").await?;
    Ok(describe(&result))
}

pub(super) async fn service_and_method_are_seen(trial: Trial) -> Outcome {
    let seen = trial.connect().await?.inspect(&Options::default()).await?;
    if seen.service.is_empty() && seen.method.is_empty() {
        let reason = "this server's handlers do not learn what they are called by";
        return Err(Verdict::Unsupported(reason.to_owned()));
    }
    if (&seen.service[..], &seen.method[..]) != (SERVICE, "Inspect") {
        return fail(format!("the handler saw {:?} and {:?}", seen.service, seen.method));
    }
    passed()
}

pub(super) async fn metadata_order(trial: Trial) -> Outcome {
    let seen = trial.connect().await?.inspect(&Options::metadata(ORDERED)).await?.metadata;
    let values = |wanted: &str| -> Vec<&str> {
        let of_key = seen.iter().filter(|(key, _)| key == wanted);
        of_key.map(|(_, value)| value.as_str()).collect()
    };
    // How different keys stand to each other is not said, and lost where a server has a map.
    let is_right = values("tag") == ["first", "second", "third"]
        && values("other") == ["one"]
        && seen.len() == ORDERED.len();
    if is_right { passed() } else { fail(format!("the handler saw {seen:?}")) }
}

pub(super) async fn metadata_keys_are_lower(trial: Trial) -> Outcome {
    let options = Options::metadata([("X-Trace-Id", "Ab")]);
    let seen = trial.connect().await?.inspect(&options).await?.metadata;
    match &seen[..] {
        [(key, value)] if (&key[..], &value[..]) == ("x-trace-id", "Ab") => passed(),
        _ => fail(format!("the handler saw {seen:?}")),
    }
}

pub(super) async fn timeout_is_seen(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let with = connection.inspect(&Options::timeout(LONG_TIMEOUT)).await?.timeout_nano;
    let without = connection.inspect(&Options::default()).await?.timeout_nano;
    let seen = format!("{with} ns of {LONG_TIMEOUT:?}, and {without} ns where none was given");
    if is_plausible_timeout(with) && without == 0 { Ok(seen) } else { fail(seen) }
}

pub(super) async fn peer_credentials(trial: Trial) -> Outcome {
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

pub(super) async fn panic_is_internal(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let mut observed = match trial.within("Panic", connection.panic()).await {
        Ok(Err(failure)) if failure.code() == Some(codes::INTERNAL) => String::new(),
        Ok(result) => describe(&result),
        Err(_) => "Panic: no answer".to_owned(),
    };
    if trial.alive(&connection, "on this connection").await.is_err() {
        observed += "; the connection did not live on";
    }
    let server_lives = match trial.connect().await {
        Ok(other) => trial.alive(&other, "on another connection").await.is_ok(),
        Err(_) => false,
    };
    if !server_lives {
        observed += "; the server did not live on";
    }
    if observed.is_empty() { passed() } else { fail(observed) }
}
