//! The cases of the client, written against what any library offers.

mod limits;
mod raw_server;
mod streams;
mod unary;

use crate::connection::{Connection, Connector, Options};
use crate::message::Failure;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What ends a case that did not pass.
pub enum Verdict {
    Fail(String),
    Unsupported(String),
}

impl From<Failure> for Verdict {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsupported(reason) => Verdict::Unsupported(reason.to_owned()),
            failure => Verdict::Fail(failure.to_string()),
        }
    }
}

impl From<String> for Verdict {
    fn from(observed: String) -> Self {
        Verdict::Fail(observed)
    }
}

/// What a case that passed has to tell, or why it did not.
pub type Outcome = Result<String, Verdict>;

fn fail<T>(observed: impl Into<String>) -> Result<T, Verdict> {
    Err(Verdict::Fail(observed.into()))
}

fn passed() -> Outcome {
    Ok(String::new())
}

/// One run of one case.
pub struct Trial<C> {
    connector: Arc<C>,
    address: String,
    at: Mutex<String>,
}

impl<C: Connector> Trial<C> {
    pub fn new(connector: Arc<C>, address: &str) -> Self {
        Trial { connector, address: address.to_owned(), at: Mutex::default() }
    }

    pub fn last_step(&self) -> String {
        self.at.lock().expect("no holder of this lock panics").clone()
    }

    fn step(&self, at: impl Into<String>) {
        *self.at.lock().expect("no holder of this lock panics") = at.into();
    }

    async fn connect(&self) -> Result<Arc<dyn Connection>, Verdict> {
        self.connect_to(&self.address).await
    }

    async fn connect_to(&self, address: &str) -> Result<Arc<dyn Connection>, Verdict> {
        within(PATIENCE, "connect", self.connector.connect(address)).await?.map_err(Verdict::from)
    }
}

pub async fn run<C: Connector>(name: &str, trial: &Trial<C>) -> Outcome {
    match name {
        "empty_unary" => unary::empty_unary(trial).await,
        "zero_length_payload" => unary::zero_length_payload(trial).await,
        "large_unary" => limits::large_unary(trial).await,
        "status_code_and_message" => unary::status_code_and_message(trial).await,
        "status_details" => unary::status_details(trial).await,
        "unimplemented_method" => unary::unimplemented_method(trial).await,
        "unimplemented_service" => unary::unimplemented_service(trial).await,
        "metadata_order" => unary::metadata_order(trial).await,
        "timeout_is_seen" => unary::timeout_is_seen(trial).await,
        "peer_credentials" => unary::peer_credentials(trial).await,
        "deadline_on_sleeping_server" => unary::deadline_on_sleeping_server(trial).await,
        "cancel_after_begin" => unary::cancel_after_begin(trial).await,
        "calls_after_cancel" => unary::calls_after_cancel(trial).await,
        "wait_and_release" => limits::wait_and_release(trial).await,
        "wait_and_release_over_limit" => limits::wait_and_release_over_limit(trial).await,
        "oversize_refused_locally" => limits::oversize_refused_locally(trial).await,
        "oversize_reply" => limits::oversize_reply(trial).await,
        "pending_call_at_disconnect" => limits::pending_call_at_disconnect(trial).await,
        "many_connections" => limits::many_connections(trial).await,
        "concurrent_unary" => limits::concurrent_unary(trial).await,
        "server_streaming" => streams::server_streaming(trial).await,
        "client_streaming" => streams::client_streaming(trial).await,
        "ping_pong" => streams::ping_pong(trial).await,
        "empty_stream" => streams::empty_stream(trial).await,
        "empty_messages" => streams::empty_messages(trial).await,
        "large_stream_messages" => streams::large_stream_messages(trial).await,
        "stream_order" => streams::stream_order(trial).await,
        "stream_fails_half_way" => streams::stream_fails_half_way(trial).await,
        "metadata_in_stream" => streams::metadata_in_stream(trial).await,
        "timeout_in_stream_is_seen" => streams::timeout_in_stream_is_seen(trial).await,
        "deadline_in_stream" => streams::deadline_in_stream(trial).await,
        "concurrent_streams" => streams::concurrent_streams(trial).await,
        "unread_stream_on_server" => streams::unread_stream_on_server(trial).await,
        "unread_stream_on_client" => streams::unread_stream_on_client(trial).await,
        "panic_is_internal" => unary::panic_is_internal(trial).await,
        _ => fail("this client lacks the case"),
    }
}

/// Bounds one step of a case, so that what is reported names the step and not just the case.
async fn within<T>(
    bound: Duration,
    what: &str,
    step: impl Future<Output = T>,
) -> Result<T, Verdict> {
    match tokio::time::timeout(bound, step).await {
        Ok(outcome) => Ok(outcome),
        Err(_) => fail(format!("{what}: no answer within {bound:?}")),
    }
}

/// Makes a call to show that a connection still works.
async fn alive(connection: &Arc<dyn Connection>, when: &str) -> Result<(), Verdict> {
    let payload = format!("still here {when}").into_bytes();
    let options = Options::default();
    let echo = connection.echo(&options, payload.clone(), 0);
    match within(PATIENCE, &format!("Echo {when}"), echo).await? {
        Ok(back) if back == payload => Ok(()),
        Ok(_) => fail(format!("Echo {when} brought another payload")),
        Err(failure) => fail(format!("Echo {when}: {failure}")),
    }
}

async fn echo(connection: &Arc<dyn Connection>, payload: Vec<u8>) -> Result<(), Verdict> {
    let length = payload.len();
    match connection.echo(&Options::default(), payload.clone(), 0).await {
        Ok(back) if back == payload => Ok(()),
        Ok(back) => fail(format!("Echo of {length} bytes brought {} other ones", back.len())),
        Err(failure) => fail(format!("Echo of {length} bytes: {failure}")),
    }
}

fn describe<T>(outcome: &Result<T, Failure>) -> String {
    match outcome {
        Ok(_) => "success".to_owned(),
        Err(failure) => failure.to_string(),
    }
}

fn want_code<T>(outcome: &Result<T, Failure>, code: i32) -> Result<(), Verdict> {
    match outcome {
        Err(Failure::Unsupported(reason)) => Err(Verdict::Unsupported((*reason).to_owned())),
        Err(failure) if failure.code() == Some(code) => Ok(()),
        _ => fail(format!("wanted status {code}, got {}", describe(outcome))),
    }
}

/// Fills a payload so that bytes that moved or got lost show up.
fn pattern(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..size).map(next).collect()
}

/// Keeps runs against the same server apart.
fn unique_key(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{name}-{}-{nanos}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Releases a key again and again until the waiter has ended. A release frees those who wait at that moment, and
/// nothing tells this client when the handler of a Wait has come so far.
async fn release_until<T>(
    connection: &Arc<dyn Connection>,
    key: &str,
    waiter: impl Future<Output = T>,
    bound: Duration,
) -> Result<T, Verdict> {
    tokio::pin!(waiter);
    let deadline = Instant::now() + bound;
    loop {
        within(bound, "Release", connection.release(key))
            .await?
            .or_else(|failure| fail(format!("Release: {failure}")))?;
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(10), &mut waiter).await {
            return Ok(ended);
        }
        if Instant::now() > deadline {
            return fail(format!("Wait did not end within {bound:?} of Release"));
        }
    }
}

const SHORT_DEADLINE: Duration = Duration::from_millis(300);

/// For machines that are busy.
const SLACK: Duration = Duration::from_secs(5);

/// How long one step may take with a peer that may hang. It takes milliseconds where all is well.
const PATIENCE: Duration = Duration::from_secs(20);

/// One that no case lives to see.
const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

/// Judges a call that got [`SHORT_DEADLINE`].
fn check_deadline<T>(outcome: &Result<T, Failure>, took: Duration) -> Result<(), Verdict> {
    let millis = took.as_millis();
    match want_code(outcome, crate::codes::DEADLINE_EXCEEDED) {
        Err(Verdict::Fail(observed)) => return fail(format!("{observed}, after {millis} ms")),
        verdict => verdict?,
    }
    if took < SHORT_DEADLINE - Duration::from_millis(10) || took > SHORT_DEADLINE + SLACK {
        return fail(format!("DEADLINE_EXCEEDED after {millis} ms"));
    }
    Ok(())
}

/// [`LONG_TIMEOUT`], as a handler sees it: less what has passed, which is little.
fn plausible_timeout(nanos: i64) -> bool {
    let long = LONG_TIMEOUT.as_nanos() as i64;
    nanos > long / 2 && nanos <= long
}

const ORDERED: [(&str, &str); 4] =
    [("tag", "first"), ("tag", "second"), ("tag", "third"), ("other", "one")];

fn ordered_metadata() -> Options {
    let metadata = ORDERED.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Options { metadata: metadata.to_vec(), ..Options::default() }
}
