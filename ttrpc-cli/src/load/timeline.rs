//! Calls by the time at which they were due.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Slots of a timeline. One that runs for longer has longer slots.
const MAX_SLOTS: usize = 32;

/// The length of a slot at first.
const FIRST_LEN: Duration = Duration::from_millis(10);

/// Latencies are kept with two digits, in nanoseconds: some 10 KiB.
const DIGITS: u8 = 2;

/// Calls of one kind.
#[derive(Clone, Debug)]
pub struct Slot {
    /// In nanoseconds, of calls that succeeded.
    pub latency: Histogram<u32>,
    pub failed: u64,
}

impl Default for Slot {
    fn default() -> Self {
        let mut latency = Histogram::new(DIGITS).expect("the number of digits is valid");
        latency.auto(true);
        Slot { latency, failed: 0 }
    }
}

impl Slot {
    /// Counts a call; `None` for one that failed.
    pub fn record(&mut self, latency: Option<Duration>) {
        match latency {
            Some(latency) => {
                let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
                // It grows to have a place for the value.
                let _ = self.latency.record(nanos.clamp(1, i64::MAX as u64));
            }
            None => self.failed += 1,
        }
    }

    pub fn add(&mut self, other: &Slot) {
        // It grows, as above.
        let _ = self.latency.add(&other.latency);
        self.failed += other.failed;
    }

    /// In nanoseconds.
    pub fn percentile(&self, percentile: f64) -> u64 {
        self.latency.value_at_percentile(percentile)
    }
}

#[derive(Clone, Debug)]
pub struct Timeline {
    start: Instant,
    /// Of each slot.
    pub len: Duration,
    /// Whether slots are those of steps, which keep their length.
    steps: Option<usize>,
    pub slots: Vec<Slot>,
}

impl Timeline {
    /// With steps, each for an equal part of this time, it has a slot for each.
    pub fn new(start: Instant, steps: Option<usize>, whole: Duration) -> Self {
        let len = match steps {
            Some(steps) => whole / u32::try_from(steps).unwrap_or(u32::MAX),
            None => FIRST_LEN,
        };
        Timeline { start, len: len.max(Duration::from_nanos(1)), steps, slots: Vec::new() }
    }

    /// Counts a call that was due then.
    pub fn record(&mut self, due: Instant, latency: Option<Duration>) {
        let time = due.saturating_duration_since(self.start);
        while self.steps.is_none() && self.index(time) >= MAX_SLOTS {
            self.double();
        }
        let last = self.steps.unwrap_or(MAX_SLOTS) - 1;
        let at = self.index(time).min(last);
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, Slot::default);
        }
        self.slots[at].record(latency);
    }

    fn index(&self, time: Duration) -> usize {
        usize::try_from(time.as_nanos() / self.len.as_nanos()).unwrap_or(usize::MAX)
    }

    /// Makes each slot twice as long.
    fn double(&mut self) {
        self.len = self.len.saturating_mul(2);
        let mut slots: Vec<Slot> = Vec::new();
        for (at, slot) in self.slots.drain(..).enumerate() {
            match slots.last_mut().filter(|_| at % 2 == 1) {
                Some(last) => last.add(&slot),
                None => slots.push(slot),
            }
        }
        self.slots = slots;
    }

    pub fn add(&mut self, mut other: Timeline) {
        while self.len < other.len {
            self.double();
        }
        while other.len < self.len {
            other.double();
        }
        if self.slots.len() < other.slots.len() {
            self.slots.resize_with(other.slots.len(), Slot::default);
        }
        for (slot, other) in self.slots.iter_mut().zip(&other.slots) {
            slot.add(other);
        }
    }

    /// With no more slots than this, unless they are those of steps.
    pub fn within(mut self, max: usize) -> Self {
        while self.steps.is_none() && self.slots.len() > max.max(1) {
            self.double();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_a_bound_however_long_it_is_and_loses_no_call() {
        let start = Instant::now();
        let mut one = Timeline::new(start, None, Duration::ZERO);
        let mut other = Timeline::new(start, None, Duration::ZERO);
        for second in 0..1000 {
            one.record(start + Duration::from_secs(second), Some(Duration::from_millis(second)));
            other.record(start + Duration::from_millis(second), None);
        }
        assert!(one.slots.len() <= MAX_SLOTS && one.len > other.len);
        one.add(other);
        let calls = |slot: &Slot| slot.latency.len() + slot.failed;
        let sum = |timeline: &Timeline| timeline.slots.iter().map(calls).sum::<u64>();
        assert_eq!((sum(&one), one.slots[0].failed), (2000, 1000));
        let one = one.within(4);
        assert!(one.slots.len() <= 4 && sum(&one) == 2000);
    }

    #[test]
    fn a_step_has_a_slot_of_its_own() {
        let start = Instant::now();
        let mut steps = Timeline::new(start, Some(2), Duration::from_secs(10));
        for second in [0, 4, 5, 11] {
            steps.record(start + Duration::from_secs(second), None);
        }
        let failed: Vec<_> = steps.slots.iter().map(|slot| slot.failed).collect();
        assert_eq!(failed, [2, 2]);
    }
}
