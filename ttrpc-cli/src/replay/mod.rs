//! `ttrpc show` and `ttrpc replay`: what was recorded, on the screen and at a server.

mod calls;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::pending,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, ValueHint};
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinSet},
    time::{sleep_until, timeout_at},
};
use ttrpc::{
    Client, Code, Raw, Status,
    client::{RawReply, StreamSender},
};

use crate::{
    failure::Failure,
    options::{DEFAULT_TIMEOUT, SchemaOptions},
    output::{self, BAD, BOLD, Cell, paint},
    schema,
    session::{self, Target},
    trace::{
        Slowest,
        filter::Filter,
        messages::Messages,
        observe::Connection,
        recording::Recording,
        report::{Format, Reporter},
    },
};
use calls::{Recorded, RecordedConnection};

/// What a call may take longer than it took when it was recorded.
const PATIENCE: Duration = Duration::from_secs(30);

/// How slow a recording can be replayed: a second becomes a week and a half.
const MIN_SPEED: f64 = 1e-6;

/// Differences that are told one by one.
const MAX_DIFFERENCES: usize = 20;

/// Show what `ttrpc trace --record` has kept
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc show shim.trace
  ttrpc show shim.trace --slowest 10
  ttrpc show shim.trace --slower 1s --without ServerReflection")]
pub struct ShowArguments {
    /// The recording
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Leave the values of this field out, at any depth; may be repeated
    #[arg(long, value_name = "FIELD")]
    redact: Vec<String>,
    /// Show each message of a stream, too
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    slowest: Slowest,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    schema: SchemaOptions,
}

/// Make the calls of a recording again
///
/// Each recorded connection is a connection, opened and closed as it was, and each call begins when it began. Calls that had no
/// answer are left out. The exit code is 1 if a call ends with another code than it did.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  ttrpc replay greeter.trace /run/greeter.sock --speed 10")]
pub struct Arguments {
    /// The recording
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Where the server listens
    address: String,
    /// How many times faster than it was; 0 for no pauses at all
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    speed: f64,
}

/// Shows a recording as the trace would have.
///
/// # Errors
/// If the file is no recording.
pub fn show(arguments: ShowArguments, json: bool) -> Result<(), Failure> {
    let mut recording = Recording::open(&arguments.file)?;
    let schema = match session::named_schema(&arguments.schema)? {
        Some(schema) => schema,
        None => recording.schema.take().unwrap_or_else(|| schema::builtin().clone()),
    };
    let messages = Arc::new(Messages::new(schema, &arguments.redact));
    let format = if json { Format::Json } else { Format::Text };
    let reporter = Reporter::start(messages, format).tell_messages(arguments.verbose);
    let reporter = reporter.filter(arguments.filter).slowest(arguments.slowest);
    let mut connections: BTreeMap<u32, Connection> = BTreeMap::new();
    let mut now = Duration::ZERO;
    while let Some(entry) = recording.read()? {
        now = entry.time();
        let id = entry.connection;
        if let Some(frame) = entry.frame() {
            let connection = connections.entry(id).or_insert_with(|| reporter.connection(id));
            let ended = reporter.observe(connection, &frame, now);
            ended.iter().for_each(|ended| reporter.ended(ended));
        } else if entry.is_closed
            && let Some(mut connection) = connections.remove(&id)
        {
            connection.close(now).iter().for_each(|ended| reporter.ended(ended));
        }
    }
    let pending: Vec<_> =
        connections.values().flat_map(|connection| connection.pending()).cloned().collect();
    let lines = reporter.finish(&pending, now, output::columns());
    if json {
        return Ok(output::line(reporter.summary(&pending, now))?);
    }
    for line in lines {
        output::line(line)?;
    }
    Ok(())
}

/// What became of a call that was made again.
struct Again {
    name: String,
    recorded_code: Code,
    code: Result<(), Status>,
    recorded_time: Duration,
    time: Duration,
    has_same_reply: bool,
}

impl Again {
    fn code(&self) -> Code {
        self.code.as_ref().err().map_or(Code::Ok, Status::code)
    }

    fn has_same_code(&self) -> bool {
        self.code() == self.recorded_code
    }
}

/// Makes the calls of a recording again.
///
/// # Errors
/// Those of the file and of connecting, and [`Failure::Found`] if a call ends otherwise.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
    let speed = arguments.speed;
    // Slower, and times would be longer than can be told.
    if !(speed == 0.0 || (speed >= MIN_SPEED && speed.is_finite())) {
        return Err(Failure::Usage(format!("--speed is a number, 0 or at least {MIN_SPEED}")));
    }
    let (connections, left_out) = calls::read(&mut Recording::open(&arguments.file)?)?;
    let scale =
        move |time: Duration| if speed == 0.0 { Duration::ZERO } else { time.div_f64(speed) };
    // As many at a time as there were: without pauses, all would be due at once.
    let places = Arc::new(Semaphore::new(calls::most_open(&connections).max(1)));
    let address: Arc<str> = arguments.address.into();
    let start = Instant::now();
    let mut replaying = JoinSet::new();
    let mut all = Vec::new();
    for connection in connections {
        sleep_until((start + scale(connection.opened)).into()).await;
        let place = places.clone().acquire_owned().await;
        // Failures are told before the next connection.
        while let Some(replayed) = replaying.try_join_next() {
            all.extend(again(replayed)?);
        }
        let address = address.clone();
        replaying.spawn(async move {
            let _place = place;
            replay_connection(&address, connection, start, scale).await
        });
    }
    while let Some(replayed) = replaying.join_next().await {
        all.extend(again(replayed)?);
    }
    report(&all, left_out, json)?;
    match all.iter().all(Again::has_same_code) {
        true => Ok(()),
        false => Err(Failure::Found),
    }
}

/// What became of a connection; a panic goes on.
fn again(replayed: Result<Result<Vec<Again>, Failure>, JoinError>) -> Result<Vec<Again>, Failure> {
    replayed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Connects, makes the calls, and closes the connection when all of them have ended.
async fn replay_connection(
    address: &str,
    recorded: RecordedConnection,
    start: Instant,
    scale: impl Fn(Duration) -> Duration + Copy + Send + Sync + 'static,
) -> Result<Vec<Again>, Failure> {
    let client = session::connect(address, Some(DEFAULT_TIMEOUT)).await?;
    let mut calling = JoinSet::new();
    for call in recorded.calls {
        let client = client.clone();
        calling.spawn(async move { call_again(&client, call, start, scale).await });
    }
    Ok(calling.join_all().await)
}

async fn call_again(
    client: &Client,
    recorded: Recorded,
    start: Instant,
    scale: impl Fn(Duration) -> Duration,
) -> Again {
    let begin = start + scale(recorded.begun);
    sleep_until(begin.into()).await;
    let began = Instant::now();
    let mut replies = Vec::new();
    let calling = async {
        let Target { service, method } = &recorded.target;
        let call = client.raw(service, method, recorded.flags, recorded.payload.clone());
        let call = call.with_metadata(recorded.metadata.clone());
        let (requests, mut answers) = match recorded.timeout {
            Some(timeout) => call.timeout(timeout).await?,
            None => call.await?,
        };
        let answered = async {
            loop {
                let reply = answers.recv().await?;
                let is_end = matches!(reply, RawReply::End(_));
                replies.push(reply);
                if is_end {
                    return Ok(());
                }
            }
        };
        tokio::select! {
            ended = answered => ended,
            never = send(requests, &recorded, began, &scale) => match never {},
        }
    };
    let limit = began + scale(recorded.duration) + PATIENCE;
    let code = match timeout_at(limit.into(), calling).await {
        Ok(code) => code,
        Err(_) => Err(Status::deadline_exceeded("no answer long after there was one")),
    };
    Again {
        name: recorded.name(),
        recorded_code: recorded.code,
        code,
        recorded_time: recorded.duration,
        time: began.elapsed(),
        has_same_reply: replies == recorded.replies,
    }
}

/// Sends the messages of a stream, each when it was sent, and ends the stream if it was ended.
async fn send(
    mut requests: Option<StreamSender<Raw>>,
    recorded: &Recorded,
    began: Instant,
    scale: &impl Fn(Duration) -> Duration,
) -> Infallible {
    let wait = async |time: Duration| {
        let due = began + scale(time.saturating_sub(recorded.begun));
        sleep_until(due.into()).await;
    };
    for (time, message) in &recorded.messages {
        wait(*time).await;
        // Why it failed is for the replies to say.
        if let Some(requests) = &mut requests
            && requests.send(message.clone()).await.is_err()
        {
            break;
        }
    }
    if let Some(closed) = recorded.closed {
        wait(closed).await;
        drop(requests.take());
    }
    pending().await
}

fn report(all: &[Again], left_out: u64, json: bool) -> Result<(), Failure> {
    let mut methods: BTreeMap<&str, Vec<&Again>> = BTreeMap::new();
    for again in all {
        methods.entry(&again.name).or_default().push(again);
    }
    let median = |calls: &[&Again], time: fn(&Again) -> Duration| {
        // Three digits, up to a day, in nanoseconds.
        let times = Histogram::<u64>::new_with_bounds(1, 86_400_000_000_000, 3);
        let mut times = times.expect("the bounds are valid");
        for call in calls {
            times.saturating_record(u64::try_from(time(call).as_nanos()).unwrap_or(u64::MAX));
        }
        Duration::from_nanos(times.value_at_percentile(50.0))
    };
    let names = ["METHOD", "CALLS", "SAME CODE", "SAME REPLY", "50 % THEN", "50 % NOW"];
    let mut rows = vec![vec![Cell::text(names[0]).style(BOLD)]];
    rows[0].extend(names[1..].iter().map(|name| Cell::number(name).style(BOLD)));
    let mut objects = Vec::new();
    for (name, calls) in &methods {
        let same_code = calls.iter().filter(|call| call.has_same_code()).count();
        let is_same = |call: &&&Again| call.has_same_code() && call.has_same_reply;
        let same_reply = calls.iter().filter(is_same).count();
        let (then, now) =
            (median(calls, |call| call.recorded_time), median(calls, |call| call.time));
        rows.push(vec![
            Cell::name(*name),
            Cell::number(calls.len()),
            Cell::number(same_code),
            Cell::number(same_reply),
            Cell::number(output::duration(then)),
            Cell::number(output::duration(now)),
        ]);
        objects.push(json!({
            "method": name, "calls": calls.len(), "sameCode": same_code, "sameReply": same_reply,
            "p50Then": then.as_secs_f64(), "p50Now": now.as_secs_f64(),
        }));
    }
    let different: Vec<_> = all.iter().filter(|again| !again.has_same_code()).collect();
    if json {
        return Ok(output::line(json!({
            "methods": objects,
            "otherCode": different.len(),
            "leftOut": left_out,
        }))?);
    }
    for again in different.iter().take(MAX_DIFFERENCES) {
        let now = again.code.as_ref().err().map_or("OK".to_owned(), output::plain);
        let text = format!("{}: {} then, {now} now", again.name, again.recorded_code);
        output::line(paint(BAD, output::plain_line(text)))?;
    }
    if different.len() > MAX_DIFFERENCES {
        output::line(format_args!("and {} more", different.len() - MAX_DIFFERENCES))?;
    }
    for line in output::table(&rows, output::columns()) {
        output::line(line)?;
    }
    if left_out > 0 {
        let were = if left_out == 1 { "was" } else { "were" };
        let calls = output::count(left_out, "call");
        output::line(format_args!("{calls} had no answer and {were} left out"))?;
    }
    Ok(())
}
