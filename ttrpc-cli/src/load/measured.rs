//! What a load comes to.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hdrhistogram::Histogram;
use ttrpc::Status;

use super::{
    plan::Plan,
    timeline::{Slot, Timeline},
};
use crate::output;

/// Latencies are kept with three digits, up to an hour, in nanoseconds.
const MAX_LATENCY_NANOS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    pub plan: Arc<Plan>,
    pub start: Instant,
    /// From the first call to the end of the last one, or until those in flight were dropped.
    pub elapsed: Duration,
    /// Of calls that succeeded, in nanoseconds: from when each was due, or began in a closed loop.
    pub latency: Histogram<u64>,
    /// The same from when each began.
    pub service_time: Histogram<u64>,
    /// By method, if there are several.
    pub by_method: Vec<Slot>,
    /// By the time at which calls were due.
    pub timeline: Timeline,
    /// Calls that failed, by code.
    pub errors: BTreeMap<&'static str, u64>,
    pub last_failure: Option<Status>,
    /// Messages of streams.
    pub sent: u64,
    pub received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// When the last call ended.
    pub last_ended: Option<Instant>,
    /// When a call first failed with its connection, and how. No call begins after that.
    pub connection_ended: Option<(Instant, Status)>,
    /// Calls in flight that were dropped.
    pub not_ended: u64,
    /// Calls that were due and had not begun at the end: the server, or this program, was too slow.
    pub not_begun: u64,
}

impl Measured {
    pub fn new(plan: Arc<Plan>, start: Instant) -> Self {
        let histogram = || {
            Histogram::new_with_bounds(1, MAX_LATENCY_NANOS, DIGITS).expect("the bounds are valid")
        };
        let methods = if plan.methods.len() > 1 { plan.methods.len() } else { 0 };
        Measured {
            by_method: vec![Slot::default(); methods],
            timeline: Timeline::new(start, plan.steps(), plan.duration),
            plan,
            start,
            elapsed: Duration::ZERO,
            latency: histogram(),
            service_time: histogram(),
            errors: BTreeMap::new(),
            last_failure: None,
            sent: 0,
            received: 0,
            bytes_sent: 0,
            bytes_received: 0,
            last_ended: None,
            connection_ended: None,
            not_ended: 0,
            not_begun: 0,
        }
    }

    pub fn succeeded(&self) -> u64 {
        self.latency.len()
    }

    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Adds a call.
    pub fn record(&mut self, due: Instant, began: Instant, ended: Instant, outcome: Outcome) {
        self.sent += outcome.sent;
        self.received += outcome.received;
        self.bytes_sent += outcome.bytes_sent;
        self.bytes_received += outcome.bytes_received;
        self.last_ended = self.last_ended.max(Some(ended));
        let latency = outcome.failure.is_none().then(|| ended.duration_since(due));
        if let Some(method) = self.by_method.get_mut(outcome.method) {
            method.record(latency);
        }
        self.timeline.record(due, latency);
        match outcome.failure {
            None => {
                let nanos = |since| u64::try_from(ended.duration_since(since).as_nanos());
                self.latency.saturating_record(nanos(due).unwrap_or(u64::MAX).max(1));
                self.service_time.saturating_record(nanos(began).unwrap_or(u64::MAX).max(1));
            }
            Some(status) => {
                *self.errors.entry(status.code().name()).or_insert(0) += 1;
                if self.connection_ended.is_none() && status.connection_error().is_some() {
                    self.connection_ended = Some((ended, status.clone()));
                }
                self.last_failure = Some(status);
            }
        }
    }

    /// Adds what another has measured.
    pub fn add(&mut self, other: Measured) {
        self.latency.add(other.latency).expect("the bounds are the same");
        self.service_time.add(other.service_time).expect("the bounds are the same");
        for (method, other) in self.by_method.iter_mut().zip(&other.by_method) {
            method.add(other);
        }
        self.timeline.add(other.timeline);
        for (code, count) in other.errors {
            *self.errors.entry(code).or_insert(0) += count;
        }
        self.last_failure = other.last_failure.or(self.last_failure.take());
        self.last_ended = self.last_ended.max(other.last_ended);
        let ends = [self.connection_ended.take(), other.connection_ended];
        self.connection_ended = ends.into_iter().flatten().min_by_key(|(at, _)| *at);
        self.sent += other.sent;
        self.received += other.received;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

/// What became of one call.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Which of the plan's.
    pub method: usize,
    pub sent: u64,
    pub received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub failure: Option<Status>,
}

impl Outcome {
    /// Counts a reply.
    pub fn take(&mut self, reply: &Bytes) {
        self.received += 1;
        self.bytes_received += reply.len() as u64;
    }
}

/// Times as the report has them.
pub fn nanos(value: u64) -> String {
    output::duration(Duration::from_nanos(value))
}
