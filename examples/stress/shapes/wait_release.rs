//! Handlers that wait for a later call on the same connection, at the handler limit and over it: a
//! shim's `Wait` and `Kill`.

use std::{
    future::{Future, IntoFuture, poll_fn},
    io,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Instant,
};

use tokio::{sync::Barrier, task::JoinSet};
use ttrpc::{Code, Status};
use ttrpc_tests::conformance::{ConformanceClient, KeyRequest};

use super::{End, Shape, Stage};
use crate::{
    options::Options,
    report::{Outcome, Verdict},
    tally::Tally,
    watch::{Display, PATIENCE},
};

/// The handler limit of the server, where it is ours.
const HANDLERS: usize = 8;

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
    let (client, other) = (stage.connect()?, stage.connect()?);
    let client = Arc::new(ConformanceClient::new(client));
    let other = ConformanceClient::new(other);
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
            let expected = (waits + 1).saturating_sub(HANDLERS) as u64;
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

/// So many waits, and the call that releases them. Gives back how many calls were refused.
async fn round(
    client: &Arc<ConformanceClient>,
    other: &ConformanceClient,
    tally: &Arc<Tally>,
    waits: usize,
    key: &str,
) -> u64 {
    let request = || KeyRequest { key: key.to_owned() };
    let mut waiting = JoinSet::new();
    let queued = Arc::new(Barrier::new(waits + 1));
    for _ in 0..waits {
        let (client, tally, queued) = (client.clone(), tally.clone(), queued.clone());
        let mut call = client.wait(request()).into_future();
        waiting.spawn(async move {
            let begun = tally.begin();
            // Polled once, the call has its place in the queue.
            let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
            queued.wait().await;
            let result = match first {
                Poll::Ready(result) => result.map(drop),
                Poll::Pending => call.await.map(drop),
            };
            begun.end(&result);
            result
        });
    }
    // The release goes onto the wire behind all waits.
    queued.wait().await;
    let begun = tally.begin();
    let released = client.release(request()).await.map(drop);
    begun.end(&released);
    let mut refused = count_refused(&released, tally);
    if refused > 0 {
        // The release found no place beside the waits. On another connection there is one.
        if let Err(status) = other.release(request()).await {
            tally.wrong(format!("the release on another connection failed: {status}"));
        }
    }
    for result in waiting.join_all().await {
        refused += count_refused(&result, tally);
    }
    refused
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
