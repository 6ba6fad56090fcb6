//! Services that any ttrpc server can add, one cargo feature each (all are on by default).
//!
//! - `reflection`: [`Reflection`] serves `grpc.reflection.v1.ServerReflection`. Clients learn which
//!   services a server has and what their messages look like.
//! - `health`: [`Health`] serves `grpc.health.v1.Health`. Clients learn whether services can do their work.
//! - `debug`: [`struct@Debug`] serves `ttrpc.debug.v1.Debug`. Operators learn what a server waits for,
//!   and with counters what it has done.
//!
//! The protocols of the first two are gRPC's; ttrpc has none of its own for this. The command
//! line `ttrpc` uses all three.
//!
//! Reflection needs the descriptor set of the server's services, which `build.rs` writes:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let set = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("greeter.bin");
//! ttrpc_codegen::configure()
//!     .file_descriptor_set_path(set)
//!     .compile_protos(&["proto/greeter.proto"], &["proto"])?;
//! # Ok(()) }
//! ```
//!
//! In the server, each service is one line:
//!
//! ```text
//! let health = Health::new();
//! let server = Server::builder()
//!     .add_service(GreeterServer::new(MyGreeter))
//!     .add_service(Reflection::new(ttrpc_reflection::include_descriptor_set!("greeter"))?)
//!     .add_service(health.service())
//!     .bind(address)?
//!     .build()?;
//! ```

#[cfg(feature = "debug")]
mod debug;
#[cfg(feature = "reflection")]
mod declarations;
#[cfg(feature = "health")]
mod health;
#[cfg(feature = "reflection")]
mod index;
#[cfg(feature = "reflection")]
mod reflection;

#[cfg(feature = "debug")]
pub use debug::{Debug, DebugObserver, DebugService};
#[cfg(feature = "health")]
pub use health::{Health, HealthService};
#[cfg(feature = "reflection")]
pub use index::DescriptorError;
#[cfg(feature = "reflection")]
pub use reflection::Reflection;

/// Collects what is new, in order. For few items: its code is a tenth of that of a sort.
#[cfg(any(feature = "debug", feature = "reflection"))]
fn in_order<T>(
    items: impl Iterator<Item = T>,
    compare: impl Fn(&T, &T) -> std::cmp::Ordering,
) -> Vec<T> {
    let mut ordered = Vec::new();
    for item in items {
        if let Err(place) = ordered.binary_search_by(|known| compare(known, &item)) {
            ordered.insert(place, item);
        }
    }
    ordered
}

/// Generated messages and clients of the services' .proto files.
pub mod proto {
    /// Package `grpc.reflection.v1`.
    #[cfg(feature = "reflection")]
    pub mod reflection {
        ttrpc::include_proto!("grpc.reflection.v1");
        /// The package's descriptor set, encoded.
        pub const FILE_DESCRIPTOR_SET: &[u8] = crate::include_descriptor_set!("reflection");
    }
    /// Package `grpc.health.v1`.
    #[cfg(feature = "health")]
    pub mod health {
        ttrpc::include_proto!("grpc.health.v1");
        /// The package's descriptor set, encoded.
        pub const FILE_DESCRIPTOR_SET: &[u8] = crate::include_descriptor_set!("health");
    }
    /// Package `ttrpc.debug.v1`.
    #[cfg(feature = "debug")]
    pub mod debug {
        ttrpc::include_proto!("ttrpc.debug.v1");
        /// The package's descriptor set, encoded.
        pub const FILE_DESCRIPTOR_SET: &[u8] = crate::include_descriptor_set!("debug");
    }
}

/// Includes the descriptor set `NAME.bin` that `build.rs` wrote into `OUT_DIR`:
/// `include_descriptor_set!("greeter")`.
#[macro_export]
macro_rules! include_descriptor_set {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bin")).as_slice()
    };
}
