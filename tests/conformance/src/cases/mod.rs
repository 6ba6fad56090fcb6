//! The cases: what they are called, what they need and expect, and what their steps have in common.

mod given_up;
mod limits;
mod load;
mod streams;
mod unary;
mod unread;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    connection::{Connection, Options},
    message::{Failure, codes},
    trial::Trial,
    verdict::{Outcome, Verdict, describe, fail},
};

/// A case in execution.
pub type Play = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A case of the API.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What a client and a server that pass do.
    pub expected: &'static str,
    /// Whether a peer that speaks unary calls alone can't pass.
    pub needs_streams: bool,
    /// Plays it.
    pub play: fn(Trial) -> Play,
}

macro_rules! cases {
    ($($needs:ident $module:ident::$name:ident $expected:literal)*) => {
        &[$(Case {
            name: stringify!($name),
            expected: $expected,
            needs_streams: needs::$needs,
            play: |trial| Box::pin($module::$name(trial)),
        }),*]
    };
}

/// What a case needs of the peer.
#[allow(non_upper_case_globals, reason = "the words of the table")]
mod needs {
    pub(super) const unary: bool = false;
    pub(super) const streams: bool = true;
}

/// All cases: what they need, where they are, and what they expect. `tests/interop/cases.json` has those that clients in
/// other languages play, too.
#[rustfmt::skip]
pub const CASES: &[Case] = cases! {
    unary   unary::empty_unary                 "a call whose request and reply are both empty succeeds"
    unary   unary::zero_length_payload         "an empty payload comes back empty"
    unary   limits::large_unary                "a request frame of exactly 4 MiB and a reply within 12 bytes of it arrive whole"
    unary   unary::status_code_and_message     "each code from 1 to 16 arrives with its message, non-ASCII text included"
    unary   unary::status_of_unknown_code      "a code outside gRPC's list arrives as it was sent"
    unary   unary::status_details              "the detail of the status arrives with its type and its bytes"
    unary   unary::unimplemented_method        "UNIMPLEMENTED, and the connection lives on"
    unary   unary::unimplemented_service       "UNIMPLEMENTED, and the connection lives on"
    unary   unary::service_and_method_are_seen "the handler sees the full name of the service and the bare name of the method"
    unary   unary::metadata_order              "three values of one key arrive in order, beside another key"
    unary   unary::metadata_keys_are_lower     "a key that was given in upper case arrives in lower case"
    unary   unary::timeout_is_seen             "the handler sees at most the timeout that was given, and 0 where none was given"
    unary   unary::peer_credentials            "the handler sees uid, gid and pid of this client"
    unary   given_up::deadline_on_sleeping_server "DEADLINE_EXCEEDED after 300 ms while the handler sleeps 10 s; the connection lives on"
    unary   given_up::deadline_ends_the_handler "the handler of a call whose deadline has passed ends, too"
    unary   given_up::cancel_after_begin       "a call cancelled while its handler waits returns CANCELLED; the connection lives on"
    unary   given_up::calls_after_cancel       "after 100 calls that were given up, 100 calls on the same connection get their own replies"
    unary   given_up::disconnect_ends_handlers "the handlers of a client that has gone away end"
    unary   load::wait_and_release             "Release on the same connection ends Wait"
    unary   load::wait_and_release_over_limit  "with 1000 Waits in flight, Release on the same connection is read; each Wait succeeds or gets RESOURCE_EXHAUSTED"
    unary   limits::oversize_refused_locally   "a request over 4 MiB fails before a byte of it is written; the connection lives on"
    unary   limits::oversize_reply             "a reply over 4 MiB becomes an error status of that call; the connection lives on"
    unary   given_up::pending_call_at_disconnect "a call that is pending when the server closes the connection fails"
    unary   load::many_connections             "100 connections, open at once, each get their own replies"
    unary   load::concurrent_unary             "64 callers with 1000 calls each on one connection get their own replies"
    streams streams::server_streaming          "1000 chunks arrive in order, and the stream ends cleanly"
    streams streams::client_streaming          "100 chunks are counted, in order, and the one reply arrives"
    streams streams::ping_pong                 "100 chunks come back one by one, and the stream ends cleanly after our close"
    streams streams::empty_stream              "streams without any message end cleanly, in all three kinds"
    streams streams::empty_messages            "messages that encode to zero bytes are messages, in all three kinds"
    streams streams::large_stream_messages     "8 chunks of 4 MiB less 16 bytes come back whole"
    streams streams::oversize_message_in_stream "a message over 4 MiB is refused locally, and the stream goes on"
    streams streams::stream_order              "20000 chunks sent without a pause reach the handler in order"
    streams streams::stream_fails_half_way     "10 chunks arrive, then FAILED_PRECONDITION"
    streams streams::metadata_in_stream        "three values of one key reach a streaming handler in order"
    streams streams::timeout_in_stream_is_seen "a streaming handler sees at most the timeout that was given"
    streams streams::deadline_in_stream        "DEADLINE_EXCEEDED after 300 ms in the midst of a stream; the connection lives on"
    streams streams::dropped_stream            "a stream whose receiver is dropped half way harms no other call"
    streams load::concurrent_streams           "32 streams with 100 round trips each on one connection get their own chunks"
    streams unread::unread_stream_on_server    "while a handler leaves 16 MiB of its stream unread, an Echo on the same connection is answered; the stream ends after Release"
    streams unread::unread_stream_on_client    "while this client leaves 20 MiB of a stream unread, an Echo on the same connection is answered; the stream then goes on in order or fails"
    unary   unary::panic_is_internal           "INTERNAL, and both the connection and the server live on"
};

/// A deadline that passes within a case.
const SHORT_DEADLINE: Duration = Duration::from_millis(300);

/// The most data of a frame.
const FRAME_BYTES_MAX: usize = 4 << 20;

fn want_code<T>(result: &Result<T, Failure>, code: i32) -> Outcome<()> {
    match result {
        Err(Failure::Unsupported(reason)) => Err(Verdict::Unsupported((*reason).to_owned())),
        Err(failure) if failure.code() == Some(code) => Ok(()),
        _ => fail(format!("wanted status {code}, got {}", describe(result))),
    }
}

async fn echo(connection: &Arc<dyn Connection>, payload: Vec<u8>) -> Outcome<()> {
    let sent_bytes = payload.len();
    match connection.echo(&Options::default(), payload.clone(), 0).await {
        Ok(back) if back == payload => Ok(()),
        Ok(back) => fail(format!("Echo of {sent_bytes} bytes brought {} other ones", back.len())),
        Err(failure) => Err(Verdict::from(failure).in_part(&format!("Echo of {sent_bytes} bytes"))),
    }
}

/// Fills a payload so that bytes that moved or got lost show up.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

/// Keeps runs against the same server apart.
pub fn unique_key(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{name}-{}-{nanos}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed))
}

/// Judges a call that got [`SHORT_DEADLINE`]. How late it may end on a machine that is busy depends on
/// the machine: a strict trial does not look at it, since this library's tests do, on a clock of their own.
fn check_deadline<T>(trial: &Trial, result: &Result<T, Failure>, took: Duration) -> Outcome<()> {
    let millis = took.as_millis();
    want_code(result, codes::DEADLINE_EXCEEDED)
        .map_err(|verdict| verdict.in_part(&format!("after {millis} ms")))?;
    let earliest = SHORT_DEADLINE - Duration::from_millis(10);
    let latest = SHORT_DEADLINE + Duration::from_secs(5);
    if took < earliest || (took > latest && !trial.is_strict()) {
        return fail(format!("DEADLINE_EXCEEDED after {millis} ms"));
    }
    Ok(())
}

/// A timeout that no case lives to see.
const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

/// [`LONG_TIMEOUT`], as a handler sees it: less what has passed, which is little.
fn is_plausible_timeout(nanos: i64) -> bool {
    let long = LONG_TIMEOUT.as_nanos() as i64;
    (long / 2..=long).contains(&nanos)
}

/// Metadata in which the order tells.
const ORDERED: [(&str, &str); 4] =
    [("tag", "first"), ("tag", "second"), ("tag", "third"), ("other", "one")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }
}
