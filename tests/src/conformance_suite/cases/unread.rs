//! Streams that nobody reads, beside calls that must go on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use ttrpc::Status;

use super::streams::{check_collected, read_chunks};
use crate::{
    conformance::*,
    conformance_suite::{Outcome, Trial, fail, verdict::describe},
};

/// The key whose release lets `Hold` read.
const HOLD_KEY: &str = "hold";

/// A count that has not moved for so long stands still.
const STANDSTILL: Duration = Duration::from_millis(500);

/// Sends chunks until all are sent or the stream has failed, and counts them.
async fn send_chunks(
    conformance: ConformanceClient,
    chunks: u64,
    size: usize,
    sent: Arc<AtomicU64>,
) -> Result<CollectResponse, Status> {
    let (mut requests, reply) = conformance.hold().await?;
    for sequence in 0..chunks {
        requests.send(Chunk { sequence, payload: vec![0; size] }).await?;
        sent.fetch_add(1, Relaxed);
    }
    requests.finish();
    reply.await
}

pub(super) async fn unread_stream_on_server(trial: Trial) -> Outcome {
    const CHUNKS: u64 = 2000;
    const SIZE: usize = 8192;
    let client = trial.client().await?;
    let conformance = ConformanceClient::new(client.clone());
    let sent = Arc::new(AtomicU64::new(0));
    let uploading = send_chunks(ConformanceClient::new(client), CHUNKS, SIZE, sent.clone());
    // Whatever becomes of the case, the upload ends with it.
    let mut upload = JoinSet::new();
    upload.spawn(uploading);
    trial.step("sending what nobody reads");
    wait_for_standstill(&sent, CHUNKS).await;
    let alive = trial.alive(&conformance, "while the stream is unread").await;
    let full = sent.load(Relaxed);
    trial.step("Release on another connection");
    let other = trial.connect().await?;
    let released = async {
        loop {
            // There are servers on which a release frees only those who wait at that moment.
            other.release(KeyRequest { key: HOLD_KEY.to_owned() }).await?;
            tokio::select! {
                Some(end) = upload.join_next() => {
                    return end.map_err(|error| error.to_string().into());
                }
                () = sleep(Duration::from_millis(10)) => {}
            }
        }
    };
    let end: Outcome<_> = trial.within("the end of the stream", released).await?;
    let end = end?;
    let observed = format!(
        "{full} of {CHUNKS} chunks were sent before Echo; the stream ended with {}",
        describe(&end)
    );
    alive.map_err(|verdict| verdict.in_part(&observed))?;
    // The order of the chunks is the matter of another case.
    if let Ok(collected) = end {
        let collected = CollectResponse { in_order: true, ..collected };
        check_collected(collected, CHUNKS, CHUNKS * SIZE as u64)?;
    }
    Ok(observed)
}

/// Returns when the count has reached its end or stands still.
async fn wait_for_standstill(count: &AtomicU64, end: u64) {
    let (mut last, mut since) = (0, Instant::now());
    while last < end && since.elapsed() < STANDSTILL {
        let now = count.load(Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        sleep(Duration::from_millis(5)).await;
    }
}

pub(super) async fn unread_stream_on_client(trial: Trial) -> Outcome {
    const CHUNKS: u64 = 5000;
    const SIZE: usize = 4096;
    let conformance = trial.connect().await?;
    let request =
        GenerateRequest { count: CHUNKS, size: SIZE as u32, ..GenerateRequest::default() };
    let mut replies = conformance.generate(request).await?;
    trial.within("the first chunk", replies.recv()).await??;
    // Whether the stream's inbox is full by now is the machine's affair: the call that follows must
    // be answered before it is, while it is, and after the stream was given up.
    let alive = trial.alive(&conformance, "while the stream is unread").await;
    trial.step("reading on");
    let (read, end) = read_chunks(&mut replies, 1, SIZE).await?;
    let observed =
        format!("the stream ended after {read} of {CHUNKS} chunks with {}", describe(&end));
    alive.map_err(|verdict| verdict.in_part(&observed))?;
    if end.is_ok() && read != CHUNKS { fail(observed) } else { Ok(observed) }
}
