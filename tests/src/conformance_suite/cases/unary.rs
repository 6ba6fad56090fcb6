//! Single calls: what they carry and how they fail.

use ttrpc::{Code, Metadata, Status};

use super::{LONG_TIMEOUT, ORDERED, echo, is_plausible_timeout, pattern, want_code};
use crate::{
    conformance::*,
    conformance_suite::{Outcome, Trial, Verdict, fail, passed, verdict::describe},
};

/// The type of the detail that [`Conformance::fail`] attaches.
const DETAIL_TYPE: &str = "type.googleapis.com/ttrpc.conformance.v1.EchoResponse";

pub(super) async fn empty_unary(trial: Trial) -> Outcome {
    trial.connect().await?.sleep(SleepRequest { millis: 0 }).await?;
    passed()
}

pub(super) async fn zero_length_payload(trial: Trial) -> Outcome {
    echo(&trial.connect().await?, Vec::new()).await?;
    passed()
}

async fn failing(conformance: &ConformanceClient, code: i32, text: &str) -> Outcome<()> {
    let request = FailRequest { code, message: text.to_owned(), detail: Vec::new() };
    let result = conformance.fail(request).await;
    match &result {
        Err(status) if (status.raw_code(), status.message()) == (code, text) => Ok(()),
        _ => fail(format!("wanted status {code} {text:?}, got {}", describe(&result))),
    }
}

pub(super) async fn status_code_and_message(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    for code in 1..=16 {
        failing(&conformance, code, &format!("failure {code}: größer als geplant, 失敗")).await?;
    }
    passed()
}

pub(super) async fn status_of_unknown_code(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    failing(&conformance, 1234, "outside the list").await?;
    passed()
}

pub(super) async fn status_details(trial: Trial) -> Outcome {
    let value = pattern(1000, 2);
    let code = Code::FailedPrecondition;
    let request = FailRequest {
        code: code as i32,
        message: "with a detail".to_owned(),
        detail: value.clone(),
    };
    let result = trial.connect().await?.fail(request).await;
    want_code(&result, code)?;
    let details = result.err().map(|status| status.details().to_vec()).unwrap_or_default();
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
    unimplemented(trial, ConformanceClient::NAME, "NoSuchMethod").await
}

pub(super) async fn unimplemented_service(trial: Trial) -> Outcome {
    unimplemented(trial, "ttrpc.conformance.v1.NoSuchService", "Echo").await
}

async fn unimplemented(trial: Trial, service: &'static str, method: &'static str) -> Outcome {
    let client = trial.client().await?;
    let call = client.unary(service, method, Empty {});
    let result: Result<Empty, Status> = trial.within("the call", call).await?;
    want_code(&result, Code::Unimplemented)?;
    trial.alive(&ConformanceClient::new(client), "after that").await?;
    Ok(describe(&result))
}

pub(super) async fn service_and_method_are_seen(trial: Trial) -> Outcome {
    let seen = trial.connect().await?.inspect(Empty {}).await?;
    if seen.service.is_empty() && seen.method.is_empty() {
        let reason = "this server's handlers do not learn what they are called by";
        return Err(Verdict::Unsupported(reason.to_owned()));
    }
    if (&seen.service[..], &seen.method[..]) != (ConformanceClient::NAME, "Inspect") {
        return fail(format!("the handler saw {:?} and {:?}", seen.service, seen.method));
    }
    passed()
}

pub(super) async fn metadata_order(trial: Trial) -> Outcome {
    let metadata = Metadata::from_iter(ORDERED);
    let seen = trial.connect().await?.inspect(Empty {}).with_metadata(metadata).await?.metadata;
    let values = |wanted: &str| -> Vec<&str> {
        let of_key = seen.iter().filter(|entry| entry.key == wanted);
        of_key.map(|entry| entry.value.as_str()).collect()
    };
    // How different keys stand to each other is not said, and lost where a server has a map.
    let is_right = values("tag") == ["first", "second", "third"]
        && values("other") == ["one"]
        && seen.len() == ORDERED.len();
    if is_right { passed() } else { fail(format!("the handler saw {seen:?}")) }
}

pub(super) async fn metadata_keys_are_lower(trial: Trial) -> Outcome {
    let call = trial.connect().await?.inspect(Empty {}).metadata("X-Trace-Id", "Ab");
    let seen = call.await?.metadata;
    match &seen[..] {
        [entry] if (&entry.key[..], &entry.value[..]) == ("x-trace-id", "Ab") => passed(),
        _ => fail(format!("the handler saw {seen:?}")),
    }
}

pub(super) async fn timeout_is_seen(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let with = conformance.inspect(Empty {}).timeout(LONG_TIMEOUT).await?.timeout_nano;
    let without = conformance.inspect(Empty {}).await?.timeout_nano;
    let seen = format!("{with} ns of {LONG_TIMEOUT:?}, and {without} ns where none was given");
    if is_plausible_timeout(with) && without == 0 { Ok(seen) } else { fail(seen) }
}

pub(super) async fn peer_credentials(trial: Trial) -> Outcome {
    let seen = trial.connect().await?.inspect(Empty {}).await?;
    if seen.peer_pid == 0 {
        return Err(Verdict::Unsupported("this server does not know its peer".to_owned()));
    }
    let seen = (seen.peer_uid, seen.peer_gid, seen.peer_pid);
    let own = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        rustix::process::getpid().as_raw_nonzero().get(),
    );
    if seen == own {
        return passed();
    }
    fail(format!("the handler saw uid, gid and pid {seen:?} of {own:?}"))
}

pub(super) async fn panic_is_internal(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let mut observed = match trial.within("Panic", conformance.panic(Empty {})).await {
        Ok(Err(status)) if status.code() == Code::Internal => String::new(),
        Ok(result) => describe(&result),
        Err(_) => "Panic: no answer".to_owned(),
    };
    if trial.alive(&conformance, "on this connection").await.is_err() {
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
