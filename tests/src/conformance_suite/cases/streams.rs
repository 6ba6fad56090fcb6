//! Streams of all three kinds.

use tokio::time::Instant;
use ttrpc::{Code, Metadata, Status, client::StreamReceiver};

use super::{
    FRAME_BYTES_MAX, LONG_TIMEOUT, ORDERED, SHORT_DEADLINE, check_deadline, is_plausible_timeout,
    pattern, want_code,
};
use crate::{
    conformance::*,
    conformance_suite::{Outcome, Trial, Verdict, fail, passed, verdict::describe},
};

/// Reads until the stream ends, checks that the chunks are numbered from `first` on, and gives back
/// the number after the last one and how the stream ended.
pub(super) async fn read_chunks(
    replies: &mut StreamReceiver<Chunk>,
    first: u64,
    size: usize,
) -> Outcome<(u64, Result<(), Status>)> {
    let mut number = first;
    loop {
        match replies.recv().await {
            Ok(Some(chunk)) if (chunk.sequence, chunk.payload.len()) == (number, size) => {}
            Ok(Some(Chunk { sequence, payload })) => {
                let came = format!("number {sequence} of {} bytes", payload.len());
                return fail(format!("chunk {number} of {size} bytes came as {came}"));
            }
            Ok(None) => return Ok((number, Ok(()))),
            Err(status) => return Ok((number, Err(status))),
        }
        number += 1;
    }
}

async fn generate_all(conformance: &ConformanceClient, count: u64, size: u32) -> Outcome<()> {
    let request = GenerateRequest { count, size, ..GenerateRequest::default() };
    let mut replies = conformance.generate(request).await?;
    match read_chunks(&mut replies, 0, size as usize).await? {
        (read, Ok(())) if read == count => Ok(()),
        (read, Ok(())) => fail(format!("the stream ended after {read} of {count} chunks")),
        (read, Err(status)) => Err(Verdict::from(status).in_part(&format!("after {read} chunks"))),
    }
}

async fn collect(
    conformance: &ConformanceClient,
    count: u64,
    size: usize,
) -> Outcome<CollectResponse> {
    let (mut requests, reply) = conformance.collect().await?;
    for sequence in 0..count {
        let chunk = Chunk { sequence, payload: vec![0; size] };
        requests.send(chunk).await.map_err(|status| sending(sequence, status))?;
    }
    requests.finish();
    reply.await.map_err(|status| Verdict::from(status).in_part("the reply"))
}

fn sending(sequence: u64, status: Status) -> Verdict {
    Verdict::from(status).in_part(&format!("sending chunk {sequence}"))
}

pub(super) fn check_collected(seen: CollectResponse, chunks: u64, bytes: u64) -> Outcome<()> {
    if seen == (CollectResponse { chunks, bytes, in_order: true }) {
        return Ok(());
    }
    fail(format!(
        "the handler saw {} chunks of {chunks}, {} bytes of {bytes}, in order: {}",
        seen.chunks, seen.bytes, seen.in_order
    ))
}

/// Sends chunks one by one and reads each back, then closes and reads the end.
pub(super) async fn exchange(
    conformance: &ConformanceClient,
    chunks: impl IntoIterator<Item = Chunk>,
) -> Outcome<()> {
    let (mut requests, mut replies) = conformance.exchange().await?;
    for (number, chunk) in (0..).zip(chunks) {
        requests.send(chunk.clone()).await.map_err(|status| sending(number, status))?;
        match replies.recv().await {
            Ok(Some(back)) if back == chunk => {}
            Ok(Some(_)) => return fail(format!("chunk {number} came back as another one")),
            Ok(None) => return fail(format!("the stream ended instead of chunk {number}")),
            Err(status) => {
                return Err(Verdict::from(status).in_part(&format!("receiving chunk {number}")));
            }
        }
    }
    requests.finish();
    match replies.recv().await {
        Ok(None) => Ok(()),
        Ok(Some(_)) => fail("instead of the end: one more chunk"),
        Err(status) => Err(Verdict::from(status).in_part("instead of the end")),
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
    let (mut requests, reply) = trial.connect().await?.collect().await?;
    let too_long = Chunk { sequence: 0, payload: vec![0; FRAME_BYTES_MAX] };
    want_code(&requests.send(too_long).await, Code::ResourceExhausted)?;
    requests.send(Chunk { sequence: 0, payload: vec![0; 7] }).await?;
    requests.finish();
    check_collected(reply.await?, 1, 7)?;
    passed()
}

pub(super) async fn empty_stream(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    trial.step("Generate with no chunk");
    generate_all(&conformance, 0, 0).await.map_err(|verdict| verdict.in_part("Generate"))?;
    trial.step("Exchange with no chunk");
    exchange(&conformance, []).await.map_err(|verdict| verdict.in_part("Exchange"))?;
    trial.step("Collect with no chunk");
    check_collected(collect(&conformance, 0, 0).await?, 0, 0)?;
    passed()
}

pub(super) async fn empty_messages(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    // The first chunk of a stream has number 0, so without a payload it encodes to nothing.
    trial.step("Generate with one empty chunk");
    generate_all(&conformance, 1, 0).await.map_err(|verdict| verdict.in_part("Generate"))?;
    trial.step("Exchange with 10 empty chunks");
    let empty = vec![Chunk::default(); 10];
    exchange(&conformance, empty).await.map_err(|verdict| verdict.in_part("Exchange"))?;
    trial.step("Collect with one empty chunk");
    check_collected(collect(&conformance, 1, 0).await?, 1, 0)?;
    passed()
}

/// A stream that ends with a status after so many chunks.
fn failing(count: u64) -> GenerateRequest {
    let fail_code = Code::FailedPrecondition as i32;
    GenerateRequest { count, fail_code, ..GenerateRequest::default() }
}

/// Reads a stream that has to fail as it was asked to.
async fn read_failing(mut replies: StreamReceiver<Chunk>) -> Outcome<(u64, String)> {
    let (read, end) = read_chunks(&mut replies, 0, 0).await?;
    want_code(&end, Code::FailedPrecondition)
        .map_err(|verdict| verdict.in_part(&format!("after {read} chunks")))?;
    let message = end.err().map(|status| status.message().to_owned()).unwrap_or_default();
    Ok((read, message))
}

pub(super) async fn stream_fails_half_way(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let (read, message) = read_failing(conformance.generate(failing(10)).await?).await?;
    if read != 10 {
        return fail(format!("{read} chunks, then FAILED_PRECONDITION {message:?}"));
    }
    trial.alive(&conformance, "after that").await?;
    passed()
}

pub(super) async fn metadata_in_stream(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let call = conformance.generate(failing(1)).with_metadata(Metadata::from_iter(ORDERED));
    let (_, message) = read_failing(call.await?).await?;
    // No streaming method has a reply for what its handler sees, so its failure tells.
    let is_right = message.contains("tag=first; tag=second; tag=third");
    if is_right { passed() } else { fail(format!("the handler reported {message:?}")) }
}

pub(super) async fn timeout_in_stream_is_seen(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let call = conformance.generate(failing(1)).timeout(LONG_TIMEOUT);
    let (_, message) = read_failing(call.await?).await?;
    let nanos = message
        .strip_prefix("as asked; timeout_nano=")
        .and_then(|rest| rest.split(';').next()?.parse().ok());
    let is_right = nanos.is_some_and(is_plausible_timeout);
    if is_right { Ok(message) } else { fail(format!("the handler reported {message:?}")) }
}

pub(super) async fn deadline_in_stream(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let began = Instant::now();
    let request = GenerateRequest {
        count: 60,
        size: 10,
        interval_micros: 50_000,
        ..GenerateRequest::default()
    };
    let mut replies = conformance.generate(request).timeout(SHORT_DEADLINE).await?;
    let (read, end) = read_chunks(&mut replies, 0, 10).await?;
    check_deadline(&trial, &end, began.elapsed())
        .map_err(|verdict| verdict.in_part(&format!("after {read} chunks")))?;
    trial.alive(&conformance, "after the deadline").await?;
    Ok(format!("{read} chunks, then {}", describe(&end)))
}

pub(super) async fn dropped_stream(trial: Trial) -> Outcome {
    let conformance = trial.connect().await?;
    let request = GenerateRequest { count: 5000, size: 100, ..GenerateRequest::default() };
    let mut replies = conformance.generate(request).await?;
    replies.recv().await?;
    drop(replies);
    trial.alive(&conformance, "while the dropped stream goes on").await?;
    exchange(&conformance, numbered(10, 100, 5)).await?;
    passed()
}
