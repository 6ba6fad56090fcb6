//! What is counted and traced, and that calls end as they do without it.

#[cfg(all(feature = "metrics", feature = "otel"))]
mod guarded;
mod kit;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "otel")]
mod otel;
#[cfg(all(feature = "metrics", feature = "otel"))]
mod page;
