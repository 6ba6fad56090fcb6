//! Streams of all three kinds.

use super::{
    LONG_TIMEOUT, PATIENCE, SHORT_DEADLINE, limits::FRAME_MAX, plausible_timeout, release_until,
    within,
};
use super::{
    Outcome, Trial, Verdict, alive, check_deadline, describe, fail, ordered_metadata, passed,
    pattern,
};
use crate::codes;
use crate::connection::{Connection, Connector, Incoming, Options};
use crate::message::{Chunk, Collected, Failure, Generate};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

type Link = Arc<dyn Connection>;

/// Reads until the stream ends, checks that the chunks are numbered from `first` on, and returns the number after the
/// last one and how the stream ended.
async fn read_chunks(
    stream: &mut dyn Incoming,
    first: u64,
    size: usize,
) -> Result<(u64, Result<(), Failure>), Verdict> {
    for number in first.. {
        match stream.next().await {
            Ok(Some(chunk)) if chunk.sequence == number && chunk.payload.len() == size => {}
            Ok(Some(chunk)) => {
                let (sequence, length) = (chunk.sequence, chunk.payload.len());
                return fail(format!(
                    "chunk {number} of {size} bytes came as number {sequence} of {length} bytes"
                ));
            }
            Ok(None) => return Ok((number, Ok(()))),
            Err(failure) => return Ok((number, Err(failure))),
        }
    }
    unreachable!("no stream has so many chunks")
}

async fn generate_all(connection: &Link, count: u64, size: u32) -> Result<(), Verdict> {
    let request = Generate { count, size, ..Generate::default() };
    let mut stream = connection.generate(&Options::default(), request).await?;
    match read_chunks(stream.as_mut(), 0, size as usize).await? {
        (read, Ok(())) if read == count => Ok(()),
        (read, Ok(())) => fail(format!("the stream ended after {read} of {count} chunks")),
        (read, Err(failure)) => fail(format!("after {read} chunks: {failure}")),
    }
}

async fn collect_chunks(connection: &Link, count: u64, size: usize) -> Result<Collected, Verdict> {
    let mut stream = connection.collect(&Options::default()).await?;
    for sequence in 0..count {
        let sent = stream.send(Chunk { sequence, payload: vec![0; size] }).await;
        sent.or_else(|failure| fail(format!("sending chunk {sequence}: {failure}")))?;
    }
    stream.finish().await.or_else(|failure| fail(format!("the reply: {failure}")))
}

fn check_collected(seen: Collected, chunks: u64, bytes: u64) -> Result<(), Verdict> {
    if seen == (Collected { chunks, bytes, in_order: true }) {
        return Ok(());
    }
    fail(format!(
        "the handler saw {} chunks of {chunks}, {} bytes of {bytes}, in order: {}",
        seen.chunks, seen.bytes, seen.in_order
    ))
}

/// Sends chunks one by one and reads each back, then closes and reads the end.
async fn exchange(
    connection: &Link,
    chunks: impl IntoIterator<Item = Chunk>,
) -> Result<(), Verdict> {
    let (mut outgoing, mut incoming) = connection.exchange().await?;
    for (number, chunk) in chunks.into_iter().enumerate() {
        let sent = outgoing.send(chunk.clone()).await;
        sent.or_else(|failure| fail(format!("sending chunk {number}: {failure}")))?;
        match incoming.next().await {
            Ok(Some(back)) if back == chunk => {}
            Ok(Some(_)) => return fail(format!("chunk {number} came back as another one")),
            Ok(None) => return fail(format!("the stream ended instead of chunk {number}")),
            Err(failure) => return fail(format!("receiving chunk {number}: {failure}")),
        }
    }
    outgoing.close().await.or_else(|failure| fail(format!("closing: {failure}")))?;
    match incoming.next().await {
        Ok(None) => Ok(()),
        Ok(Some(_)) => fail("instead of the end: one more chunk"),
        Err(failure) => fail(format!("instead of the end: {failure}")),
    }
}

fn numbered(count: u64, size: usize, seed: u64) -> impl Iterator<Item = Chunk> {
    (0..count).map(move |sequence| Chunk { sequence, payload: pattern(size, seed + sequence) })
}

pub async fn server_streaming<C: Connector>(trial: &Trial<C>) -> Outcome {
    generate_all(&trial.connect().await?, 1000, 100).await?;
    passed()
}

pub async fn client_streaming<C: Connector>(trial: &Trial<C>) -> Outcome {
    check_collected(collect_chunks(&trial.connect().await?, 100, 100).await?, 100, 10_000)?;
    passed()
}

pub async fn stream_order<C: Connector>(trial: &Trial<C>) -> Outcome {
    check_collected(collect_chunks(&trial.connect().await?, 20_000, 8).await?, 20_000, 160_000)?;
    passed()
}

pub async fn ping_pong<C: Connector>(trial: &Trial<C>) -> Outcome {
    exchange(&trial.connect().await?, numbered(100, 100, 3)).await?;
    passed()
}

pub async fn large_stream_messages<C: Connector>(trial: &Trial<C>) -> Outcome {
    exchange(&trial.connect().await?, numbered(8, FRAME_MAX - 16, 4)).await?;
    passed()
}

fn in_part<T>(part: &str, outcome: Result<T, Verdict>) -> Result<T, Verdict> {
    outcome.map_err(|verdict| match verdict {
        Verdict::Fail(observed) => Verdict::Fail(format!("{part}: {observed}")),
        unsupported => unsupported,
    })
}

pub async fn empty_stream<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    trial.step("Generate with no chunk");
    in_part("Generate", generate_all(&connection, 0, 0).await)?;
    trial.step("Exchange with no chunk");
    in_part("Exchange", exchange(&connection, []).await)?;
    trial.step("Collect with no chunk");
    check_collected(in_part("Collect", collect_chunks(&connection, 0, 0).await)?, 0, 0)?;
    passed()
}

pub async fn empty_messages<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    // The first chunk of a stream has number 0, so without a payload it encodes to nothing.
    trial.step("Generate with one empty chunk");
    in_part("Generate", generate_all(&connection, 1, 0).await)?;
    trial.step("Exchange with 10 empty chunks");
    in_part("Exchange", exchange(&connection, vec![Chunk::default(); 10]).await)?;
    trial.step("Collect with one empty chunk");
    check_collected(in_part("Collect", collect_chunks(&connection, 1, 0).await)?, 1, 0)?;
    passed()
}

/// Opens a stream that ends with a status, and returns how many chunks came before that.
async fn generate_failing(
    connection: &Link,
    options: &Options,
    count: u64,
) -> Result<(u64, Failure), Verdict> {
    let request = Generate { count, fail_code: codes::FAILED_PRECONDITION, ..Generate::default() };
    let mut stream = connection.generate(options, request).await?;
    match read_chunks(stream.as_mut(), 0, 0).await? {
        (read, Err(failure)) if failure.code() == Some(codes::FAILED_PRECONDITION) => {
            Ok((read, failure))
        }
        (read, end) => fail(format!("{read} chunks, then {}", describe(&end))),
    }
}

fn message_of(failure: &Failure) -> &str {
    match failure {
        Failure::Status(status) => &status.message,
        Failure::Other(_) | Failure::Unsupported(_) => "",
    }
}

pub async fn stream_fails_half_way<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let (read, failure) = generate_failing(&connection, &Options::default(), 10).await?;
    let observed = format!("{read} chunks, then {failure}");
    if read != 10 {
        return fail(observed);
    }
    alive(&connection, "after that").await?;
    Ok(observed)
}

pub async fn metadata_in_stream<C: Connector>(trial: &Trial<C>) -> Outcome {
    let (_, failure) = generate_failing(&trial.connect().await?, &ordered_metadata(), 1).await?;
    let message = message_of(&failure);
    if message.contains("tag=first; tag=second; tag=third") {
        passed()
    } else {
        fail(format!("the handler reported {message:?}"))
    }
}

pub async fn timeout_in_stream_is_seen<C: Connector>(trial: &Trial<C>) -> Outcome {
    let options = Options::timeout(LONG_TIMEOUT);
    let (_, failure) = generate_failing(&trial.connect().await?, &options, 1).await?;
    let message = message_of(&failure);
    let number = message
        .strip_prefix("as asked; timeout_nano=")
        .and_then(|rest| rest.split(';').next()?.parse().ok());
    if number.is_some_and(plausible_timeout) {
        Ok(message.to_owned())
    } else {
        fail(format!("the handler reported {message:?}"))
    }
}

pub async fn deadline_in_stream<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let began = Instant::now();
    let request = Generate { count: 60, size: 10, interval_micros: 50_000, ..Generate::default() };
    let mut stream = connection.generate(&Options::timeout(SHORT_DEADLINE), request).await?;
    let (read, end) = read_chunks(stream.as_mut(), 0, 10).await?;
    in_part(&format!("after {read} chunks"), check_deadline(&end, began.elapsed()))?;
    alive(&connection, "after the deadline").await?;
    Ok(format!("{read} chunks, then {}", describe(&end)))
}

pub async fn concurrent_streams<C: Connector>(trial: &Trial<C>) -> Outcome {
    let connection = trial.connect().await?;
    let mut streams = JoinSet::new();
    for number in 0..32 {
        let connection = Arc::clone(&connection);
        streams.spawn(async move {
            let outcome = exchange(&connection, numbered(100, 64, 1000 * number)).await;
            in_part(&format!("stream {number}"), outcome)
        });
    }
    streams.join_all().await.into_iter().collect::<Result<(), Verdict>>()?;
    passed()
}

pub async fn unread_stream_on_server<C: Connector>(trial: &Trial<C>) -> Outcome {
    const CHUNKS: u64 = 2000;
    const SIZE: usize = 8192;
    let connection = trial.connect().await?;
    let mut stream = connection.hold().await?;
    let sent = Arc::new(AtomicU64::new(0));
    let upload = {
        let sent = Arc::clone(&sent);
        tokio::spawn(async move {
            for sequence in 0..CHUNKS {
                stream.send(Chunk { sequence, payload: vec![0; SIZE] }).await?;
                sent.fetch_add(1, Ordering::Relaxed);
            }
            stream.finish().await
        })
    };
    trial.step("sending what nobody reads");
    wait_for_standstill(&sent, CHUNKS).await;
    let blocked = alive(&connection, "while the stream is unread").await;
    let full = sent.load(Ordering::Relaxed);
    trial.step("Release on another connection");
    let other = trial.connect().await?;
    let end = in_part(
        &format!("{full} of {CHUNKS} chunks were sent"),
        release_until(&other, "hold", upload, PATIENCE).await,
    )?
    .map_err(|error| format!("the sender panicked: {error}"))?;
    let observed = format!(
        "{full} of {CHUNKS} chunks were sent before Echo; the stream ended with {}",
        describe(&end)
    );
    if let Err(Verdict::Fail(blocked)) = blocked {
        return fail(format!("{blocked}; {observed}"));
    }
    // The order of the chunks is the matter of another case.
    if let Ok(collected) = end {
        check_collected(Collected { in_order: true, ..collected }, CHUNKS, CHUNKS * SIZE as u64)?;
    }
    Ok(observed)
}

/// Returns when the count has reached its end or has not moved for half a second.
async fn wait_for_standstill(count: &AtomicU64, end: u64) {
    let (mut last, mut since) = (0, Instant::now());
    while last < end && since.elapsed() < Duration::from_millis(500) {
        let now = count.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn unread_stream_on_client<C: Connector>(trial: &Trial<C>) -> Outcome {
    const CHUNKS: u64 = 5000;
    const SIZE: usize = 4096;
    let connection = trial.connect().await?;
    let request = Generate { count: CHUNKS, size: SIZE as u32, ..Generate::default() };
    let mut stream = connection.generate(&Options::default(), request).await?;
    within(PATIENCE, "the first chunk", stream.next()).await??;
    // Nothing tells this side how much has arrived that nobody reads, so it is given the time to arrive.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let blocked = alive(&connection, "while the stream is unread").await;
    trial.step("reading on");
    let (read, end) = read_chunks(stream.as_mut(), 1, SIZE).await?;
    let observed =
        format!("the stream ended after {read} of {CHUNKS} chunks with {}", describe(&end));
    if let Err(Verdict::Fail(blocked)) = blocked {
        return fail(format!("{blocked}; {observed}"));
    }
    if end.is_ok() && read != CHUNKS { fail(observed) } else { Ok(observed) }
}
