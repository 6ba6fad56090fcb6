//! The programs of the examples as a user runs them.

mod greeter;
mod proxy;
mod stress;
