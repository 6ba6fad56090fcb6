//! What the callers of one shape have seen.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use ttrpc::{Code, Status};

/// The longest latency that is told apart from longer ones.
const MAX_LATENCY: Duration = Duration::from_secs(3600);

/// Counts calls and how they ended.
#[derive(Debug)]
pub struct Tally {
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    pending: u64,
    ended: u64,
    codes: BTreeMap<&'static str, u64>,
    wrong: Vec<String>,
    slowest: Duration,
    /// Microseconds.
    latencies: Histogram<u64>,
}

/// A call that has begun; dropped, it was given up.
#[derive(Debug)]
pub struct Begun<'a> {
    tally: &'a Tally,
    at: Instant,
    has_ended: bool,
}

/// What was counted so far.
#[derive(Clone, Debug)]
pub struct Count {
    /// Calls that have begun and not ended.
    pub pending: u64,
    /// Calls that have ended, in whatever way.
    pub ended: u64,
    /// How the ended ones did; `given up` for those that their callers dropped.
    pub codes: BTreeMap<&'static str, u64>,
    /// The longest latency.
    pub slowest: Duration,
}

/// Latencies of calls that ended well.
#[derive(Clone, Copy, Debug)]
pub struct Percentiles {
    /// Half of the calls were at least as fast, and so on.
    pub p50: Duration,
    pub p90: Duration,
    pub p99: Duration,
    pub p999: Duration,
    pub max: Duration,
}

impl Default for Tally {
    fn default() -> Self {
        let latencies = Histogram::new_with_max(MAX_LATENCY.as_micros() as u64, 3)
            .expect("three digits of an hour in microseconds are possible");
        let counted = Counted {
            pending: 0,
            ended: 0,
            codes: BTreeMap::new(),
            wrong: Vec::new(),
            slowest: Duration::ZERO,
            latencies,
        };
        Tally { counted: Mutex::new(counted) }
    }
}

impl Tally {
    /// A call begins.
    pub fn begin(&self) -> Begun<'_> {
        self.count(|counted| counted.pending += 1);
        Begun { tally: self, at: Instant::now(), has_ended: false }
    }

    /// Something was not as it must be. The first few are kept as they are.
    pub fn wrong(&self, what: impl Into<String>) {
        self.count(|counted| {
            if counted.wrong.len() < 10 {
                counted.wrong.push(what.into());
            }
        });
    }

    /// The first few things that were not as they must be.
    pub fn all_wrong(&self) -> Vec<String> {
        self.count(|counted| counted.wrong.clone())
    }

    /// What was counted so far.
    pub fn so_far(&self) -> Count {
        self.count(|counted| Count {
            pending: counted.pending,
            ended: counted.ended,
            codes: counted.codes.clone(),
            slowest: counted.slowest,
        })
    }

    /// Calls that have ended with this code.
    pub fn ended_with(&self, code: Code) -> u64 {
        self.count(|counted| counted.codes.get(code.name()).copied().unwrap_or(0))
    }

    /// Latencies of the calls that ended well, if any did.
    pub fn percentiles(&self) -> Option<Percentiles> {
        self.count(|counted| {
            let latencies = &counted.latencies;
            let at = |quantile| Duration::from_micros(latencies.value_at_quantile(quantile));
            (!latencies.is_empty()).then(|| Percentiles {
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: Duration::from_micros(latencies.max()),
            })
        })
    }

    fn count<T>(&self, change: impl FnOnce(&mut Counted) -> T) -> T {
        change(&mut self.counted.lock().expect("no holder panics"))
    }

    fn end(&self, name: &'static str, latency: Duration, is_good: bool) {
        self.count(|counted| {
            counted.pending -= 1;
            counted.ended += 1;
            *counted.codes.entry(name).or_default() += 1;
            counted.slowest = counted.slowest.max(latency);
            if is_good {
                counted.latencies.saturating_record(latency.as_micros() as u64);
            }
        });
    }
}

impl Begun<'_> {
    /// The call has ended.
    pub fn end<T>(mut self, result: &Result<T, Status>) {
        self.has_ended = true;
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.tally.end(code.name(), self.at.elapsed(), result.is_ok());
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.tally.end("given up", self.at.elapsed(), false);
        }
    }
}
