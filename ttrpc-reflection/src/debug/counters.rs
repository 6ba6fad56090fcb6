//! Counters of calls by method, from when the server began.

use std::{
    hash::Hasher,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustc_hash::FxHasher;
use ttrpc::{
    Code,
    observer::{CallEnd, CallInfo, Observer},
};

use crate::{in_order, proto::debug::MethodStats};

/// Methods with counters of their own. Each takes some 1.3 KiB.
const MAX_METHODS: usize = 1000;

/// Slots of the table of methods: a power of two, and enough that a method is found in one of the first.
const SLOTS: usize = 2048;

/// Slots are remembered for so many methods.
const HINTS: usize = 1024;

/// Counts methods that have no counters of their own.
const OTHER: &str = "_OTHER";

/// Durations are counted in four steps for each power of two, from 1.02 µs to 73 minutes.
const FIRST_POWER: u32 = 10;
const LAST_POWER: u32 = 41;
const STEPS: usize = 4;
const BOUNDS: usize = (LAST_POWER - FIRST_POWER + 1) as usize * STEPS + 1;

/// Codes from OK to UNAUTHENTICATED.
const CODES: usize = 17;

/// Counts each call when it begins and when it ends.
#[derive(Debug)]
pub struct Counters {
    began: Instant,
    /// By the hash of their names, or in the next slot that was empty. None is removed, so nobody has to lock it.
    methods: Box<[OnceLock<Box<Method>>]>,
    /// By what identifies a method: that number and the method's slot, as one number.
    hints: Box<[AtomicU64]>,
    /// How many there are, or a few more while several are added.
    len: AtomicUsize,
    other: Method,
}

#[derive(Debug)]
struct Method {
    service: String,
    method: String,
    begun: AtomicU64,
    /// One lock takes less time than to change as many atomics.
    ends: Mutex<Ends>,
}

/// What is counted when calls end.
#[derive(Clone, Debug)]
struct Ends {
    by_code: [u64; CODES],
    messages_sent: u64,
    bytes_sent: u64,
    messages_received: u64,
    bytes_received: u64,
    /// By the index of their bound; the last is of what is longer.
    durations: [u64; BOUNDS + 1],
}

impl Default for Counters {
    fn default() -> Self {
        let methods = (0..SLOTS).map(|_| OnceLock::new()).collect();
        let hints = (0..HINTS).map(|_| AtomicU64::new(u64::MAX)).collect();
        let (len, other) = (AtomicUsize::new(0), Method::new(OTHER, ""));
        Counters { began: Instant::now(), methods, hints, len, other }
    }
}

impl Counters {
    pub fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns what was counted so far.
    pub fn stats(&self) -> Vec<MethodStats> {
        let known = self.methods.iter().filter_map(OnceLock::get);
        let all = known.map(|method| &**method).chain([&self.other]);
        let stats = all.map(Method::stats).filter(|stats| stats.begun > 0);
        in_order(stats, |one, other| {
            (&one.service, &one.method).cmp(&(&other.service, &other.method))
        })
    }

    fn of(&self, call: &CallInfo<'_>) -> &Method {
        let method = match call.method_id {
            Some(id) => self.of_id(id, call.service, call.method),
            None if call.is_known => {
                self.slot(call.service, call.method).and_then(|slot| self.in_slot(slot))
            }
            // Clients can make up any number of other names.
            None => None,
        };
        method.unwrap_or(&self.other)
    }

    fn in_slot(&self, slot: usize) -> Option<&Method> {
        self.methods[slot].get().map(|method| &**method)
    }

    /// Returns the method that has this number, without a look at its names if it was asked for before.
    fn of_id(&self, id: u64, service: &str, name: &str) -> Option<&Method> {
        let hint = &self.hints[id as usize % HINTS];
        let hinted = hint.load(Relaxed);
        // Another thread's hint may be seen before the method.
        if hinted / SLOTS as u64 == id
            && let Some(method) = self.in_slot(hinted as usize % SLOTS)
        {
            return Some(method);
        }
        let slot = self.slot(service, name)?;
        hint.store(id * SLOTS as u64 + slot as u64, Relaxed);
        self.in_slot(slot)
    }

    /// Returns the slot of the method with these names, unless too many others have one.
    #[cold]
    fn slot(&self, service: &str, name: &str) -> Option<usize> {
        let mut hasher = FxHasher::default();
        hasher.write(service.as_bytes());
        hasher.write(name.as_bytes());
        let mut slot = hasher.finish() as usize % SLOTS;
        loop {
            let entry = &self.methods[slot];
            let method = match entry.get() {
                Some(method) => method,
                // More than these cannot be added, so there is an empty slot.
                None if self.len.load(Relaxed) >= MAX_METHODS => return None,
                None => entry.get_or_init(|| {
                    self.len.fetch_add(1, Relaxed);
                    Box::new(Method::new(service, name))
                }),
            };
            if method.method == name && method.service == service {
                return Some(slot);
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

impl Method {
    fn new(service: &str, method: &str) -> Self {
        Method {
            service: service.to_owned(),
            method: method.to_owned(),
            begun: AtomicU64::new(0),
            ends: Mutex::new(Ends {
                by_code: [0; CODES],
                messages_sent: 0,
                bytes_sent: 0,
                messages_received: 0,
                bytes_received: 0,
                durations: [0; BOUNDS + 1],
            }),
        }
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> MethodStats {
        // Ends first, so that no more have ended than begun.
        let ends = self.ends().clone();
        let ended = ends.by_code.iter().enumerate().map(|(code, count)| (code as i32, *count));
        let mut durations = ends.durations.to_vec();
        let counted = durations.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        durations.truncate(counted);
        MethodStats {
            service: self.service.clone(),
            method: self.method.clone(),
            ended: ended.filter(|(_, count)| *count > 0).collect(),
            durations,
            messages_sent: ends.messages_sent,
            bytes_sent: ends.bytes_sent,
            messages_received: ends.messages_received,
            bytes_received: ends.bytes_received,
            begun: self.begun.load(Relaxed),
        }
    }
}

impl Observer for Counters {
    fn call_begun(&self, call: &CallInfo<'_>) {
        self.of(call).begun.fetch_add(1, Relaxed);
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        let (traffic, duration) = (end.traffic, bound_index(end.duration()));
        let mut ends = self.of(call).ends();
        ends.messages_sent += traffic.messages_sent;
        ends.bytes_sent += traffic.bytes_sent;
        ends.messages_received += traffic.messages_received;
        ends.bytes_received += traffic.bytes_received;
        ends.durations[duration] += 1;
        let code = end.code as usize;
        ends.by_code[if code < CODES { code } else { Code::Unknown as usize }] += 1;
    }
}

/// Returns the upper bounds of the durations that are counted, in nanoseconds.
pub fn bounds() -> Vec<u64> {
    let steps = (FIRST_POWER..=LAST_POWER)
        .flat_map(|power| (1..=STEPS as u64).map(move |step| (STEPS as u64 + step) << (power - 2)));
    std::iter::once(1 << FIRST_POWER).chain(steps).collect()
}

/// The index of the first bound that is not below a duration.
fn bound_index(duration: Duration) -> usize {
    let Ok(nanos) = u64::try_from(duration.as_nanos()) else { return BOUNDS };
    let Some(below) = nanos.checked_sub(1).filter(|below| below >> FIRST_POWER > 0) else {
        return 0;
    };
    let power = below.ilog2();
    let step = (below >> (power - 2)) as usize & (STEPS - 1);
    ((power - FIRST_POWER) as usize * STEPS + step + 1).min(BOUNDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_at_the_first_bound_that_it_does_not_exceed() {
        let bounds = bounds();
        assert_eq!(bounds.len(), BOUNDS);
        assert!(bounds.is_sorted());
        let index = |nanos| bound_index(Duration::from_nanos(nanos));
        for (at, &bound) in bounds.iter().enumerate() {
            assert_eq!((index(bound), index(bound + 1)), (at, at + 1), "{bound}");
        }
        assert_eq!((index(0), bound_index(Duration::MAX)), (0, BOUNDS));
    }

    #[test]
    fn methods_are_counted_by_name_up_to_a_bound_whoever_comes_first() {
        let counters = Counters::default();
        let count = || {
            for at in 0..1500 {
                let slot = counters.slot(&format!("a.S{}", at % 7), &format!("M{at}"));
                let method = slot.and_then(|slot| counters.methods[slot].get());
                method.map_or(&counters.other, |method| method).begun.fetch_add(1, Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(count);
            }
        });
        let stats = counters.stats();
        // Those that were added at the same time may be a few more.
        assert!((MAX_METHODS..MAX_METHODS + 5).contains(&(stats.len() - 1)), "{}", stats.len());
        let named = stats.iter().filter(|stats| stats.service != OTHER);
        assert!(named.clone().all(|stats| stats.begun <= 4));
        assert_eq!(stats.iter().map(|stats| stats.begun).sum::<u64>(), 4 * 1500);
        assert!(stats.is_sorted_by_key(|stats| (stats.service.clone(), stats.method.clone())));
    }

    /// Its end was counted as that of a method with counters, and its beginning was not.
    #[test]
    fn a_call_is_counted_by_its_method_though_only_its_hint_is_seen_yet() {
        let counters = Counters::default();
        let slot = Counters::default().slot("a.B", "C").expect("there are others");
        counters.hints[7].store(7 * SLOTS as u64 + slot as u64, Relaxed);
        assert_eq!(counters.of_id(7, "a.B", "C").map(|method| &*method.method), Some("C"));
        assert!(counters.methods[slot].get().is_some());
    }
}
