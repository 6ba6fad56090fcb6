#![doc = include_str!("../README.md")]

#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "otel")]
pub mod otel;

#[cfg(feature = "metrics")]
pub use metrics::Metrics;
#[cfg(feature = "otel")]
pub use otel::Tracing;
