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

use super::{
    load::release_until_end,
    streams::{check_collected, read_chunks},
};
use crate::{
    connection::{Options, Result, Upload},
    message::{Chunk, Collected, Generate},
    trial::Trial,
    verdict::{Outcome, Verdict, describe, fail},
};

/// The key whose release lets `Hold` read.
const HOLD_KEY: &str = "hold";

/// A count that has not moved for so long stands still.
const STANDSTILL: Duration = Duration::from_millis(500);

/// Sends chunks until all are sent or the stream has failed, and counts them.
async fn send_chunks(
    mut stream: Box<dyn Upload>,
    chunks: u64,
    size: usize,
    sent: Arc<AtomicU64>,
) -> Result<Collected> {
    for sequence in 0..chunks {
        stream.send(Chunk { sequence, payload: vec![0; size] }).await?;
        sent.fetch_add(1, Relaxed);
    }
    stream.finish().await
}

pub(super) async fn unread_stream_on_server(trial: Trial) -> Outcome {
    const CHUNKS: u64 = 2000;
    const SIZE: usize = 8192;
    let connection = trial.connect().await?;
    let sent = Arc::new(AtomicU64::new(0));
    // Whatever becomes of the case, the upload ends with it.
    let mut upload = JoinSet::new();
    upload.spawn(send_chunks(connection.hold().await?, CHUNKS, SIZE, sent.clone()));
    trial.step("sending what nobody reads");
    wait_for_standstill(&sent, CHUNKS).await;
    let alive = trial.alive(&connection, "while the stream is unread").await;
    let full = sent.load(Relaxed);
    let sent = format!("{full} of {CHUNKS} chunks were sent");
    trial.step("Release on another connection");
    let other = trial.connect().await?;
    let released = release_until_end(&other, HOLD_KEY, upload.join_next());
    let released = trial.within("the end of the stream", released).await;
    let end = match released.and_then(|end| end).map_err(|verdict| verdict.in_part(&sent))? {
        Some(Ok(end)) => end,
        _ => return fail("the sender panicked"),
    };
    let observed = format!("{sent} before Echo; the stream ended with {}", describe(&end));
    alive.map_err(|verdict| then(verdict, &observed))?;
    // The order of the chunks is the matter of another case.
    if let Ok(collected) = end {
        let collected = Collected { in_order: true, ..collected };
        check_collected(collected, CHUNKS, CHUNKS * SIZE as u64)?;
    }
    Ok(observed)
}

/// A verdict with what was observed after it.
fn then(verdict: Verdict, observed: &str) -> Verdict {
    match verdict {
        Verdict::Fail(text) => Verdict::Fail(format!("{text}; {observed}")),
        unsupported => unsupported,
    }
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
    let connection = trial.connect().await?;
    let request = Generate { count: CHUNKS, size: SIZE as u32, ..Generate::default() };
    let mut stream = connection.generate(&Options::default(), request).await?;
    trial.within("the first chunk", stream.next()).await??;
    // Nothing tells this side how much has arrived that nobody reads. A call must be answered before the stream's inbox is
    // full, while it is, and after the stream was given up. Other implementations get time for it to fill.
    if !trial.is_strict() {
        sleep(STANDSTILL).await;
    }
    let alive = trial.alive(&connection, "while the stream is unread").await;
    trial.step("reading on");
    let (read, end) = read_chunks(&mut *stream, 1, SIZE).await?;
    let observed =
        format!("the stream ended after {read} of {CHUNKS} chunks with {}", describe(&end));
    alive.map_err(|verdict| then(verdict, &observed))?;
    if end.is_ok() && read != CHUNKS { fail(observed) } else { Ok(observed) }
}
