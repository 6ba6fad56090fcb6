//! Handlers that wait for a later call on the same connection, at the handler limit and over it: a
//! shim's `Wait` and `Kill`.
//!
//! The order in which Requests of several tasks reach the socket is not a promise. So the release is not
//! made behind the waits, but when as many of them run as have a place: from then on only it, or a release
//! on another connection, can end any of them. Which calls are refused may differ from round to round. How
//! many is fixed.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};
use ttrpc::{Client, ClientConfig, Code, Status};
use ttrpc_tests::conformance::{ConformanceClient, Empty, KeyRequest};

use super::{End, Shape, Stage};
use crate::{
    options::Options,
    report::{Outcome, Verdict},
    socket,
    tally::Tally,
    watch::{Display, PATIENCE},
};

/// The handler limit of the server, where it is ours.
const HANDLERS: usize = 8;

/// How often the server is asked how many calls are in flight.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// How often a server that is not ours is told to release what still waits.
const RELEASE_INTERVAL: Duration = Duration::from_millis(10);

/// What rounds have shown so far.
#[derive(Default)]
struct Rounds {
    below: u64,
    at: u64,
    over: u64,
    refused: u64,
}

pub async fn run(options: &Options, display: &Display) -> io::Result<Outcome> {
    // The server's limit is what is stood at, and not the client's.
    let in_flight = options.in_flight.max(2 * HANDLERS + 1);
    let options = Options { handlers: HANDLERS, in_flight, ..options.clone() };
    let stage = Stage::set(Shape::WaitRelease, &options, false).await?;
    let client = Arc::new(ConformanceClient::new(stage.connect()?));
    let other = Other::connect(&stage)?;
    let end = End::new(Shape::WaitRelease, &options);
    let tally = stage.scene.tally.clone();
    let start = Instant::now();
    let work = async {
        let mut rounds = Rounds::default();
        for number in 0.. {
            if !end.may_begin() {
                break;
            }
            // One place is left for the release; none is; more calls wait than there are places.
            let waits = [HANDLERS - 1, HANDLERS, HANDLERS * 2][number % 3];
            let key = format!("{}-{number}", options.seed);
            let refused = round(&client, &other, &tally, waits, &key).await;
            *[&mut rounds.below, &mut rounds.at, &mut rounds.over][number % 3] += 1;
            rounds.refused += refused;
            if waits < HANDLERS && refused > 0 {
                tally.wrong("a call was refused although there was a place for it");
            }
            let expected = refusals(waits) as u64;
            if stage.server.is_some() && refused != expected {
                tally.wrong(format!("{refused} calls of {waits} + 1 were refused at {HANDLERS}"));
            }
        }
        rounds
    };
    let rounds = match display.watch(&stage.scene, PATIENCE, work).await {
        Ok(rounds) => rounds,
        Err(stuck) => return Ok(stage.stuck(&stuck)),
    };
    let has_all = [rounds.below, rounds.at, rounds.over].iter().all(|count| *count > 0);
    let verdict = if has_all { Verdict::Pass } else { Verdict::Inconclusive };
    let places = match stage.server {
        Some(_) => format!("with {HANDLERS} places"),
        None => "with places whose number is not known".to_owned(),
    };
    let evidence = format!(
        "rounds of waits that a later call releases, {places}: {} with {}, {} with \
         {}, {} with {}; every call ended, {} of them were refused as they must be",
        rounds.below,
        HANDLERS - 1,
        rounds.at,
        HANDLERS,
        rounds.over,
        HANDLERS * 2,
        rounds.refused,
    );
    Ok(Outcome::new(&stage.scene, start.elapsed(), verdict, evidence))
}

/// How many calls of so many waits and their release find no place.
fn refusals(waits: usize) -> usize {
    (waits + 1).saturating_sub(HANDLERS)
}

/// Another connection, which has places of its own. Its bytes are not measured: that it looks at the
/// server must not be taken for a shape that moves.
struct Other {
    client: ConformanceClient,
    /// The server says how many calls it has in flight, and has as many places as it was told.
    is_ours: bool,
}

impl Other {
    fn connect(stage: &Stage) -> io::Result<Self> {
        let stream = socket::connect(&stage.address, stage.options.send_buffer)?;
        let client = Client::from_unix_stream(stream, ClientConfig::default());
        Ok(Other { client: ConformanceClient::new(client), is_ours: stage.server.is_some() })
    }

    /// Waits until this many calls of the first connection are in flight. A server that is not ours is
    /// not asked.
    async fn sees_in_flight(&self, calls: usize) -> Result<(), Status> {
        if !self.is_ours {
            return Ok(());
        }
        // The question is a call, too.
        while self.client.stats(Empty {}).await?.calls_in_flight != calls as u64 + 1 {
            sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    async fn release(&self, key: &str) -> Result<(), Status> {
        self.client.release(KeyRequest { key: key.to_owned() }).await.map(drop)
    }
}

/// So many waits, and the call that releases them. Returns how many calls were refused.
async fn round(
    client: &Arc<ConformanceClient>,
    other: &Other,
    tally: &Arc<Tally>,
    waits: usize,
    key: &str,
) -> u64 {
    let request = KeyRequest { key: key.to_owned() };
    let count = |status: Status| tally.wrong(format!("the other connection failed: {status}"));
    // The places of the last round are free.
    other.sees_in_flight(0).await.unwrap_or_else(count);
    let mut calls = JoinSet::new();
    for _ in 0..waits {
        let (client, tally, request) = (client.clone(), tally.clone(), request.clone());
        calls.spawn(async move {
            let begun = tally.begin();
            let result = client.wait(request).await.map(drop);
            begun.end(&result);
            result
        });
    }
    other.sees_in_flight(waits.min(HANDLERS)).await.unwrap_or_else(count);
    let begun = tally.begin();
    let released = client.release(request).await.map(drop);
    begun.end(&released);
    let mut refused = count_refused(&released, tally);
    if refused > 0 {
        // Nothing ends now but by a refusal. All of them come before the places are free again.
        while other.is_ours && refused < refusals(waits) as u64 {
            let Some(ended) = calls.join_next().await else { break };
            refused += count_refused(&ended.expect("no caller panics"), tally);
        }
        other.release(key).await.unwrap_or_else(count);
    }
    loop {
        tokio::select! {
            ended = calls.join_next() => match ended {
                Some(ended) => refused += count_refused(&ended.expect("no caller panics"), tally),
                None => return refused,
            },
            // There are servers on which a release frees only the calls that wait at that moment.
            () = sleep(RELEASE_INTERVAL), if !other.is_ours => {
                other.release(key).await.unwrap_or_else(count);
            }
        }
    }
}

fn count_refused(result: &Result<(), Status>, tally: &Tally) -> u64 {
    match result {
        Ok(()) => 0,
        Err(status) if status.code() == Code::ResourceExhausted => 1,
        Err(status) => {
            tally.wrong(format!("a call failed: {status}"));
            0
        }
    }
}
