//! Handlers: how they run beside each other, and those that do what handlers should not.

mod blocking;
mod bursts;
mod contained;
mod contained_edges;
mod endless_sends;
mod fairness;
mod handed_on;
mod late_starts;
mod overload;
mod panics;
mod ready;
