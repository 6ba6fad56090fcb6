//! The series of each side and method, looked up once and kept.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use ttrpc::{
    Code,
    observer::{CallEnd, CallInfo, EndCause, Side},
};

use super::{MAX_METHODS, Metrics, OTHER, names};

const METADATA: Metadata<'static> =
    Metadata::new("ttrpc_telemetry", Level::INFO, Some(module_path!()));

/// What is counted on one side.
pub(super) struct SideSeries {
    pub(super) connections_opened: Counter,
    pub(super) connections_refused: Counter,
    pub(super) connections_open: Gauge,
    pub(super) connection_duration: Histogram,
    pub(super) protocol_violations: Counter,
    methods: RwLock<Methods>,
}

/// By service and method.
#[derive(Default)]
struct Methods {
    count: usize,
    by_service: HashMap<String, HashMap<String, Arc<MethodSeries>>>,
    other: Option<Arc<MethodSeries>>,
}

/// What is counted of a method.
pub(super) struct MethodSeries {
    labels: MethodLabels,
    pub(super) begun: Counter,
    pub(super) in_flight: Gauge,
    pub(super) duration: Histogram,
    pub(super) waited_for_admission: Histogram,
    pub(super) waited_for_capacity: Histogram,
    pub(super) messages_sent: Counter,
    pub(super) messages_received: Counter,
    pub(super) bytes_sent: Counter,
    pub(super) bytes_received: Counter,
    ended: RwLock<HashMap<(Code, EndCause), Counter>>,
    /// Few methods need it.
    repeated: OnceLock<Counter>,
}

struct MethodLabels {
    side: &'static str,
    service: String,
    method: String,
}

impl SideSeries {
    pub(super) fn new(recorder: &dyn Recorder, side: Side) -> Self {
        let labels = [("side", side.name())];
        SideSeries {
            connections_opened: counter(recorder, names::CONNECTIONS_OPENED, &labels),
            connections_refused: counter(recorder, names::CONNECTIONS_REFUSED, &labels),
            connections_open: gauge(recorder, names::CONNECTIONS_OPEN, &labels),
            connection_duration: histogram(recorder, names::CONNECTION_DURATION, &labels),
            protocol_violations: counter(recorder, names::PROTOCOL_VIOLATIONS, &labels),
            methods: RwLock::default(),
        }
    }
}

impl Methods {
    fn find(&self, call: &CallInfo<'_>) -> Option<&Arc<MethodSeries>> {
        if !call.is_known {
            return self.other.as_ref();
        }
        let known = self.by_service.get(call.service).and_then(|methods| methods.get(call.method));
        known.or_else(|| self.other.as_ref().filter(|_| self.count >= MAX_METHODS))
    }

    fn add(&mut self, recorder: &dyn Recorder, call: &CallInfo<'_>) -> Arc<MethodSeries> {
        // Somebody else may have been faster.
        if let Some(known) = self.find(call) {
            return known.clone();
        }
        let side = call.side.name();
        if !call.is_known || self.count >= MAX_METHODS {
            let series = Arc::new(MethodSeries::new(recorder, side, OTHER, OTHER));
            self.other = Some(series.clone());
            return series;
        }
        let series = Arc::new(MethodSeries::new(recorder, side, call.service, call.method));
        let methods = self.by_service.entry(call.service.to_owned()).or_default();
        methods.insert(call.method.to_owned(), series.clone());
        self.count += 1;
        series
    }
}

impl MethodSeries {
    fn new(recorder: &dyn Recorder, side: &'static str, service: &str, method: &str) -> Self {
        let labels = MethodLabels { side, service: service.into(), method: method.into() };
        let all = labels.all();
        MethodSeries {
            begun: counter(recorder, names::CALLS_BEGUN, &all),
            in_flight: gauge(recorder, names::CALLS_IN_FLIGHT, &all),
            duration: histogram(recorder, names::CALL_DURATION, &all),
            waited_for_admission: histogram(recorder, names::WAITED_FOR_ADMISSION, &all),
            waited_for_capacity: histogram(recorder, names::WAITED_FOR_CAPACITY, &all),
            messages_sent: counter(recorder, names::MESSAGES_SENT, &all),
            messages_received: counter(recorder, names::MESSAGES_RECEIVED, &all),
            bytes_sent: counter(recorder, names::BYTES_SENT, &all),
            bytes_received: counter(recorder, names::BYTES_RECEIVED, &all),
            ended: RwLock::default(),
            repeated: OnceLock::new(),
            labels,
        }
    }
}

impl MethodLabels {
    fn all(&self) -> [(&'static str, &str); 3] {
        [("side", self.side), ("service", &self.service), ("method", &self.method)]
    }
}

impl Metrics {
    /// The series of a call's method.
    pub(super) fn method(&self, call: &CallInfo<'_>) -> Arc<MethodSeries> {
        let methods = &self.side(call.side).methods;
        if let Some(series) = read(methods).find(call) {
            return series.clone();
        }
        self.record(|recorder| write(methods).add(recorder, call))
    }

    /// The counter of attempts after the first ones.
    pub(super) fn repeated<'a>(&self, series: &'a MethodSeries) -> &'a Counter {
        series.repeated.get_or_init(|| {
            self.record(|recorder| counter(recorder, names::CALLS_REPEATED, &series.labels.all()))
        })
    }

    /// The counter of calls that end like this.
    pub(super) fn ended(&self, series: &MethodSeries, end: &CallEnd<'_>) -> Counter {
        let key = (end.code, end.cause);
        if let Some(counter) = read(&series.ended).get(&key) {
            return counter.clone();
        }
        let [side, service, method] = series.labels.all();
        let labels =
            [side, service, method, ("code", end.code.name()), ("cause", end.cause.name())];
        let new = self.record(|recorder| counter(recorder, names::CALLS_ENDED, &labels));
        write(&series.ended).entry(key).or_insert(new).clone()
    }
}

pub(super) fn counter(
    recorder: &dyn Recorder,
    name: &'static str,
    labels: &[(&'static str, &str)],
) -> Counter {
    recorder.register_counter(&key(name, labels), &METADATA)
}

pub(super) fn gauge(
    recorder: &dyn Recorder,
    name: &'static str,
    labels: &[(&'static str, &str)],
) -> Gauge {
    recorder.register_gauge(&key(name, labels), &METADATA)
}

pub(super) fn histogram(
    recorder: &dyn Recorder,
    name: &'static str,
    labels: &[(&'static str, &str)],
) -> Histogram {
    recorder.register_histogram(&key(name, labels), &METADATA)
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let label = |(key, value): &(&'static str, &str)| Label::new(*key, (*value).to_owned());
    Key::from_parts(name, labels.iter().map(label).collect::<Vec<_>>())
}

/// A lock that a panicking recorder has left is as good as before: each change of it is one insertion.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
