//! Telemetry for ttrpc servers and clients: spans of OpenTelemetry, and metrics. Each is a feature; both are on by
//! default.
//!
//! - `otel`: [`Tracing`] makes a span for each call and hands its context on through metadata, as containerd's
//!   `otelttrpc` does.
//! - `tracing`: the same with spans of the crate `tracing`, for programs with `tracing-opentelemetry`. Off by default.
//! - `metrics`: [`Metrics`] counts calls and connections for the recorder of the crate [`metrics`](::metrics).
//!
//! ```
//! # #[cfg(all(feature = "metrics", feature = "otel"))]
//! # {
//! use ttrpc_telemetry::{Metrics, Tracing};
//!
//! let (tracing, metrics) = (Tracing::new(), Metrics::new());
//! let server = tracing.trace_server(ttrpc::Server::builder()).observe(metrics.clone());
//! let connect = ttrpc::client::ConnectOptions::new().observe(metrics);
//! # let _ = |client: ttrpc::Client|
//! tracing.trace_client(client)
//! # ;
//! # drop((server, connect));
//! # }
//! ```

#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "otel")]
pub mod otel;

#[cfg(feature = "metrics")]
pub use metrics::Metrics;
#[cfg(feature = "otel")]
pub use otel::Tracing;
