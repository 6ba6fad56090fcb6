//! The sums of what a recorder was told.

use std::collections::BTreeMap;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use ttrpc_telemetry::Metrics;

use super::eventually;

/// The sums of all snapshots so far, since a snapshot takes out what it shows.
pub struct Counted {
    snapshotter: Snapshotter,
    sums: BTreeMap<String, f64>,
}

impl Counted {
    pub fn new() -> (Metrics, Self) {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        (Metrics::with_recorder(recorder), Counted { snapshotter, sums: BTreeMap::new() })
    }

    fn update(&mut self) -> &BTreeMap<String, f64> {
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let labels: Vec<_> = key
                .key()
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            let added = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(values) => values.len() as f64,
            };
            let name = format!("{} {}", key.key().name(), labels.join(" "));
            *self.sums.entry(name).or_default() += added;
        }
        &self.sums
    }

    /// The sum of all series of this name with these labels.
    pub fn sum(&mut self, name: &str, labels: &[&str]) -> f64 {
        let sums = self.update().iter();
        let chosen = sums.filter(|(key, _)| {
            let mut parts = key.split(' ');
            parts.next() == Some(name)
                && labels.iter().all(|label| key.split(' ').any(|part| part == *label))
        });
        chosen.map(|(_, value)| value).sum()
    }

    pub fn ended(&mut self, labels: &[&str]) -> f64 {
        self.sum("ttrpc_calls_ended_total", labels)
    }

    /// Waits until no call is in flight on either side.
    pub async fn is_quiet(&mut self) {
        eventually("all calls end", || {
            ["side=client", "side=server"]
                .into_iter()
                .all(|side| self.sum("ttrpc_calls_begun_total", &[side]) == self.ended(&[side]))
        })
        .await;
    }
}
