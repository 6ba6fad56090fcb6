//! The sums of a trace by method, bounded: names are whatever clients write.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;

use super::call::{End, Ended};

/// Methods with sums of their own. Further ones, and those with a longer name than any method has, count as [`OTHER`].
const MAX_METHODS: usize = 1000;
const MAX_NAME_LEN: usize = 512;

/// What is counted together.
const OTHER: &str = "_OTHER";

/// Latencies are kept with two digits, up to a day, in nanoseconds: some 10 KiB for each method.
const MAX_LATENCY_NANOS: u64 = 86_400_000_000_000;
const DIGITS: u8 = 2;

/// Sums by `Service/Method`.
#[derive(Debug, Default)]
pub struct Stats {
    methods: BTreeMap<String, MethodStats>,
}

/// Sums of one method.
#[derive(Debug)]
pub struct MethodStats {
    /// In nanoseconds.
    pub latency: Histogram<u32>,
    pub calls: u64,
    /// Calls that the server answered with a failure, by code; codes that gRPC does not have are UNKNOWN.
    pub codes: BTreeMap<i32, u64>,
    pub closed: u64,
    pub sent: u64,
    pub received: u64,
}

impl Stats {
    /// Counts a call.
    pub fn add(&mut self, ended: &Ended) {
        let name = ended.call.name();
        let is_full = self.methods.len() >= MAX_METHODS && !self.methods.contains_key(&name);
        let name = if is_full || name.len() > MAX_NAME_LEN { OTHER.to_owned() } else { name };
        let stats = self.methods.entry(name).or_insert_with(MethodStats::new);
        stats.calls += 1;
        let nanos = u64::try_from(ended.duration().as_nanos()).unwrap_or(u64::MAX);
        // It grows to have a place for the value.
        let _ = stats.latency.record(nanos.clamp(1, MAX_LATENCY_NANOS));
        match &ended.end {
            End::Answered(None) => {}
            End::Answered(Some(status)) => {
                *stats.codes.entry(status.code() as i32).or_default() += 1;
            }
            End::Closed | End::Replaced => stats.closed += 1,
        }
        stats.sent += ended.call.client.bytes;
        stats.received += ended.call.server.bytes;
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &MethodStats)> {
        self.methods.iter()
    }
}

impl MethodStats {
    fn new() -> Self {
        let mut latency = Histogram::new(DIGITS).expect("the number of digits is valid");
        latency.auto(true);
        let codes = BTreeMap::new();
        MethodStats { latency, calls: 0, codes, closed: 0, sent: 0, received: 0 }
    }

    pub fn failed(&self) -> u64 {
        self.codes.values().sum()
    }

    /// How long that part of the calls took at most.
    pub fn percentile(&self, percentile: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_percentile(percentile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::call::{Call, Traffic};

    fn ended(method: String) -> Ended {
        let call = Call {
            connection: 1,
            stream: 1,
            service: "a.B".to_owned(),
            method,
            metadata: Vec::new(),
            timeout: None,
            begun: Duration::ZERO,
            client: Traffic::default(),
            server: Traffic::default(),
            kept: 0,
        };
        Ended { call, end: End::Answered(None), ended: Duration::from_millis(3) }
    }

    #[test]
    fn methods_that_clients_make_up_are_counted_together() {
        let mut stats = Stats::default();
        for number in 0..20_000 {
            stats.add(&ended(format!("M{number}")));
        }
        stats.add(&ended("long".repeat(1 << 20)));
        assert_eq!(stats.iter().count(), MAX_METHODS + 1);
        let other = &stats.methods[OTHER];
        assert_eq!(other.calls, 20_001 - MAX_METHODS as u64);
        let near = other.percentile(50.0).as_secs_f64() / 0.003;
        assert!((0.99..1.01).contains(&near), "{near}");
        let of_each =
            stats.methods.values().map(|stats| stats.latency.len() as usize).sum::<usize>();
        assert_eq!(of_each, 20_001);
        let buckets: usize =
            stats.methods.values().map(|stats| stats.latency.distinct_values()).sum();
        assert!(buckets * size_of::<u32>() < 16 << 20, "{buckets}");
    }
}
