//! Handlers: how they run beside each other, and those that do what handlers should not.

mod blocking;
mod bursts;
mod fairness;
mod handed_on;
mod panics;
