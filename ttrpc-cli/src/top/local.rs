//! What a proxy of this program sees, and what one has recorded.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, time::interval};

use super::{model::News, source::Asked};
use crate::{
    failure::Failure,
    schema,
    trace::{
        messages::Messages,
        observe::Connection,
        proxy::Proxy,
        recording::Recording,
        report::{Format, Reporter},
        sample::Open,
    },
};

/// A reporter that counts, and shows no calls.
pub fn counter() -> Reporter {
    let messages = Messages::new(schema::builtin().clone(), &[]);
    Reporter::start(Arc::new(messages), Format::Text).counts_only(true)
}

/// Sends what a proxy has seen, until nobody takes it.
pub async fn follow(
    proxy: Arc<Proxy>,
    index: usize,
    asked: Asked,
    news: mpsc::Sender<(usize, News)>,
) {
    let mut ticks = interval(asked.interval);
    loop {
        ticks.tick().await;
        let sample = proxy.sample(asked.limit as usize);
        if news.send((index, News::Sample(sample))).await.is_err() {
            return;
        }
    }
}

/// How a recording is shown.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Its sums alone.
    Sums,
    /// So many times faster than it was; 0 for without pauses.
    Speed(f64),
}

/// Plays a recording, on a thread of its own.
pub fn play(
    path: &Path,
    index: usize,
    asked: &Asked,
    pace: Pace,
    news: mpsc::Sender<(usize, News)>,
) -> Result<(), Failure> {
    let recording = Recording::open(path)?;
    let (interval, limit) = (asked.interval, asked.limit as usize);
    thread::spawn(move || {
        let played = play_to(recording, interval, limit, pace, &|told| {
            news.blocking_send((index, told)).is_ok()
        });
        if let Err(failure) = played {
            let _ = news.blocking_send((index, News::Trouble(failure.to_string())));
        }
    });
    Ok(())
}

/// Sends samples to `tell` until it returns false.
fn play_to(
    mut recording: Recording,
    interval: Duration,
    limit: usize,
    pace: Pace,
    tell: &impl Fn(News) -> bool,
) -> Result<(), Failure> {
    let reporter = counter();
    let mut connections: BTreeMap<u32, (Duration, Connection)> = BTreeMap::new();
    let start = Instant::now();
    let mut next = Duration::ZERO;
    let mut now = Duration::ZERO;
    let sample = |connections: &BTreeMap<u32, (Duration, Connection)>, now| {
        let open = connections.values().map(|(opened, connection)| Open::of(connection, *opened));
        News::Sample(reporter.sample(open.collect(), now, limit))
    };
    while let Some(entry) = recording.read()? {
        while entry.time() >= next {
            if let Pace::Speed(speed) = pace
                && speed > 0.0
            {
                thread::sleep(
                    (start + next.div_f64(speed)).saturating_duration_since(Instant::now()),
                );
            }
            // Sums are those since the first sample.
            let is_shown = matches!(pace, Pace::Speed(_)) || next.is_zero();
            if is_shown && !tell(sample(&connections, next)) {
                return Ok(());
            }
            next = match pace {
                Pace::Speed(speed) if speed > 0.0 => next.saturating_add(interval),
                // Where nobody waits, nothing is to be seen of a pause.
                _ => entry.time().saturating_add(interval),
            };
        }
        now = entry.time();
        let id = entry.connection;
        if let Some(frame) = entry.frame() {
            let opened = || (now, reporter.connection(id));
            let (_, connection) = connections.entry(id).or_insert_with(opened);
            let ended = reporter.observe(connection, &frame, now);
            ended.iter().for_each(|ended| reporter.ended(ended));
        } else if entry.is_closed
            && let Some((_, mut connection)) = connections.remove(&id)
        {
            connection.close(now).iter().for_each(|ended| reporter.ended(ended));
        }
    }
    tell(sample(&connections, now));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_pause_of_centuries_in_a_recording_is_one_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.trace");
        // Ends of connections, at the beginning and at the end of all time.
        let mut file = b"ttrpc-trace 1\n\x02\x48\x01".to_vec();
        file.extend(b"\x0d\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x48\x01");
        std::fs::write(&path, &file).unwrap();
        for pace in [Pace::Sums, Pace::Speed(0.0)] {
            let told = Cell::new(0);
            let recording = Recording::open(&path).unwrap();
            let tell = |_| {
                told.set(told.get() + 1);
                true
            };
            play_to(recording, Duration::from_millis(100), 10, pace, &tell).unwrap();
            assert!((2..5).contains(&told.get()), "{pace:?}: {} samples", told.get());
        }
    }
}
