//! Streams of all three kinds.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    FRAME_BYTES_MAX, LONG_TIMEOUT, ORDERED, SHORT_DEADLINE, check_deadline, is_plausible_timeout,
    pattern, want_code,
};
use crate::{
    connection::{Connection, Incoming, Options},
    message::{Chunk, Collected, Failure, Generate, codes},
    trial::Trial,
    verdict::{Outcome, Verdict, describe, fail, passed},
};

/// Reads until the stream ends, checks that the chunks are numbered from `first` on, and gives back
/// the number after the last one and how the stream ended.
pub(super) async fn read_chunks(
    stream: &mut dyn Incoming,
    first: u64,
    size: usize,
) -> Outcome<(u64, Result<(), Failure>)> {
    let mut number = first;
    loop {
        match stream.next().await {
            Ok(Some(chunk)) if (chunk.sequence, chunk.payload.len()) == (number, size) => {}
            Ok(Some(Chunk { sequence, payload })) => {
                let came = format!("number {sequence} of {} bytes", payload.len());
                return fail(format!("chunk {number} of {size} bytes came as {came}"));
            }
            Ok(None) => return Ok((number, Ok(()))),
            Err(failure) => return Ok((number, Err(failure))),
        }
        number += 1;
    }
}

async fn generate_all(connection: &Arc<dyn Connection>, count: u64, size: u32) -> Outcome<()> {
    let request = Generate { count, size, ..Generate::default() };
    let mut stream = connection.generate(&Options::default(), request).await?;
    match read_chunks(&mut *stream, 0, size as usize).await? {
        (read, Ok(())) if read == count => Ok(()),
        (read, Ok(())) => fail(format!("the stream ended after {read} of {count} chunks")),
        (read, Err(failure)) => {
            Err(Verdict::from(failure).in_part(&format!("after {read} chunks")))
        }
    }
}

async fn collect(connection: &Arc<dyn Connection>, count: u64, size: usize) -> Outcome<Collected> {
    let mut stream = connection.collect(&Options::default()).await?;
    for sequence in 0..count {
        let sent = stream.send(Chunk { sequence, payload: vec![0; size] }).await;
        sent.map_err(|failure| sending(sequence, failure))?;
    }
    stream.finish().await.map_err(|failure| Verdict::from(failure).in_part("the reply"))
}

fn sending(sequence: u64, failure: Failure) -> Verdict {
    Verdict::from(failure).in_part(&format!("sending chunk {sequence}"))
}

pub(super) fn check_collected(seen: Collected, chunks: u64, bytes: u64) -> Outcome<()> {
    if seen == (Collected { chunks, bytes, in_order: true }) {
        return Ok(());
    }
    fail(format!(
        "the handler saw {} chunks of {chunks}, {} bytes of {bytes}, in order: {}",
        seen.chunks, seen.bytes, seen.in_order
    ))
}

/// Sends chunks one by one and reads each back, then closes and reads the end.
pub(super) async fn exchange(
    connection: &Arc<dyn Connection>,
    chunks: impl IntoIterator<Item = Chunk>,
) -> Outcome<()> {
    let in_part = |failure: Failure, part: &str| Verdict::from(failure).in_part(part);
    let (mut outgoing, mut incoming) = connection.exchange().await?;
    for (number, chunk) in (0..).zip(chunks) {
        outgoing.send(chunk.clone()).await.map_err(|failure| sending(number, failure))?;
        match incoming.next().await {
            Ok(Some(back)) if back == chunk => {}
            Ok(Some(_)) => return fail(format!("chunk {number} came back as another one")),
            Ok(None) => return fail(format!("the stream ended instead of chunk {number}")),
            Err(failure) => return Err(in_part(failure, &format!("receiving chunk {number}"))),
        }
    }
    outgoing.close().await.map_err(|failure| in_part(failure, "closing"))?;
    match incoming.next().await {
        Ok(None) => Ok(()),
        Ok(Some(_)) => fail("instead of the end: one more chunk"),
        Err(failure) => Err(in_part(failure, "instead of the end")),
    }
}

/// Chunks with payloads that tell them apart.
pub(super) fn numbered(count: u64, size: usize, seed: u64) -> impl Iterator<Item = Chunk> {
    (0..count).map(move |sequence| Chunk { sequence, payload: pattern(size, seed + sequence) })
}

pub(super) async fn server_streaming(trial: Trial) -> Outcome {
    generate_all(&trial.connect().await?, 1000, 100).await?;
    passed()
}

pub(super) async fn client_streaming(trial: Trial) -> Outcome {
    check_collected(collect(&trial.connect().await?, 100, 100).await?, 100, 10_000)?;
    passed()
}

pub(super) async fn stream_order(trial: Trial) -> Outcome {
    check_collected(collect(&trial.connect().await?, 20_000, 8).await?, 20_000, 160_000)?;
    passed()
}

pub(super) async fn ping_pong(trial: Trial) -> Outcome {
    exchange(&trial.connect().await?, numbered(100, 100, 3)).await?;
    passed()
}

pub(super) async fn large_stream_messages(trial: Trial) -> Outcome {
    exchange(&trial.connect().await?, numbered(8, FRAME_BYTES_MAX - 16, 4)).await?;
    passed()
}

pub(super) async fn oversize_message_in_stream(trial: Trial) -> Outcome {
    let mut stream = trial.connect().await?.collect(&Options::default()).await?;
    let too_long = Chunk { sequence: 0, payload: vec![0; FRAME_BYTES_MAX] };
    want_code(&stream.send(too_long).await, codes::RESOURCE_EXHAUSTED)?;
    stream.send(Chunk { sequence: 0, payload: vec![0; 7] }).await?;
    check_collected(stream.finish().await?, 1, 7)?;
    passed()
}

pub(super) async fn empty_stream(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    trial.step("Generate with no chunk");
    generate_all(&connection, 0, 0).await.map_err(|verdict| verdict.in_part("Generate"))?;
    trial.step("Exchange with no chunk");
    exchange(&connection, []).await.map_err(|verdict| verdict.in_part("Exchange"))?;
    trial.step("Collect with no chunk");
    check_collected(collect(&connection, 0, 0).await?, 0, 0)?;
    passed()
}

pub(super) async fn empty_messages(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    // The first chunk of a stream has number 0, so without a payload it encodes to nothing.
    trial.step("Generate with one empty chunk");
    generate_all(&connection, 1, 0).await.map_err(|verdict| verdict.in_part("Generate"))?;
    trial.step("Exchange with 10 empty chunks");
    let empty = vec![Chunk::default(); 10];
    exchange(&connection, empty).await.map_err(|verdict| verdict.in_part("Exchange"))?;
    trial.step("Collect with one empty chunk");
    check_collected(collect(&connection, 1, 0).await?, 1, 0)?;
    passed()
}

/// Opens a stream that has to fail as it was asked to, after so many chunks. Returns how many came, and how it failed.
async fn generate_failing(
    connection: &Arc<dyn Connection>,
    options: &Options,
    count: u64,
) -> Outcome<(u64, Failure)> {
    let request = Generate { count, fail_code: codes::FAILED_PRECONDITION, ..Generate::default() };
    let mut stream = connection.generate(options, request).await?;
    match read_chunks(&mut *stream, 0, 0).await? {
        (read, Err(failure)) if failure.code() == Some(codes::FAILED_PRECONDITION) => {
            Ok((read, failure))
        }
        (read, end) => fail(format!("{read} chunks, then {}", describe(&end))),
    }
}

/// No streaming method has a reply for what its handler sees, so its failure tells.
fn message_of(failure: Failure) -> String {
    match failure {
        Failure::Status(status) => status.message,
        Failure::Other(_) | Failure::Unsupported(_) => String::new(),
    }
}

pub(super) async fn stream_fails_half_way(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let (read, failure) = generate_failing(&connection, &Options::default(), 10).await?;
    let observed = format!("{read} chunks, then {failure}");
    if read != 10 {
        return fail(observed);
    }
    trial.alive(&connection, "after that").await?;
    Ok(observed)
}

pub(super) async fn metadata_in_stream(trial: Trial) -> Outcome {
    let (connection, options) = (trial.connect().await?, Options::metadata(ORDERED));
    let message = message_of(generate_failing(&connection, &options, 1).await?.1);
    let is_right = message.contains("tag=first; tag=second; tag=third");
    if is_right { passed() } else { fail(format!("the handler reported {message:?}")) }
}

pub(super) async fn timeout_in_stream_is_seen(trial: Trial) -> Outcome {
    let (connection, options) = (trial.connect().await?, Options::timeout(LONG_TIMEOUT));
    let message = message_of(generate_failing(&connection, &options, 1).await?.1);
    let nanos = message
        .strip_prefix("as asked; timeout_nano=")
        .and_then(|rest| rest.split(';').next()?.parse().ok());
    let is_right = nanos.is_some_and(is_plausible_timeout);
    if is_right { Ok(message) } else { fail(format!("the handler reported {message:?}")) }
}

pub(super) async fn deadline_in_stream(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let began = Instant::now();
    let request = Generate { count: 60, size: 10, interval_micros: 50_000, ..Generate::default() };
    let mut stream = connection.generate(&Options::timeout(SHORT_DEADLINE), request).await?;
    let (read, end) = read_chunks(&mut *stream, 0, 10).await?;
    check_deadline(&trial, &end, began.elapsed())
        .map_err(|verdict| verdict.in_part(&format!("after {read} chunks")))?;
    trial.alive(&connection, "after the deadline").await?;
    Ok(format!("{read} chunks, then {}", describe(&end)))
}

pub(super) async fn dropped_stream(trial: Trial) -> Outcome {
    let connection = trial.connect().await?;
    let request = Generate { count: 5000, size: 100, ..Generate::default() };
    let mut stream = connection.generate(&Options::default(), request).await?;
    stream.next().await?;
    drop(stream);
    trial.alive(&connection, "while the dropped stream goes on").await?;
    exchange(&connection, numbered(10, 100, 5)).await?;
    passed()
}
