//! NRI plugins in Rust, and the runtime's side of NRI.
//!
//! NRI is containerd's and CRI-O's Node Resource Interface: plugins see pods and containers come and go, and change
//! containers as they are made: CPU pinning, devices, hooks, limits. Plugin and runtime speak ttrpc, each calling the
//! other over one connection, through a [multiplexer](mux).
//!
//! A plugin is an implementation of [`Plugin`], which a [`Stub`] runs:
//!
//! ```no_run
//! use ttrpc_nri::{
//!     Container, ContainerAdjustment, Context, Creation, Error, Plugin, PodSandbox, Status, Stub,
//!     plugin,
//! };
//!
//! struct Pinner;
//!
//! #[plugin]
//! impl Plugin for Pinner {
//!     async fn create_container(
//!         &self,
//!         _: &Context,
//!         pod: &PodSandbox,
//!         container: &Container,
//!     ) -> Result<Creation, Status> {
//!         let cpus = pod.annotation_for(&container.name, "pin.example/cpus");
//!         let adjustment = ContainerAdjustment::new();
//!         Ok(cpus.map_or_else(Creation::default, |cpus| {
//!             adjustment.env("CPUS", cpus).cpuset_cpus(cpus).into()
//!         }))
//!     }
//! }
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Error> {
//!     Stub::new(Pinner).name("pinner").index("10").run_until(ttrpc_nri::terminated()).await
//! }
//! ```
//!
//! # Where to read on
//!
//! - [`Plugin`]: the events, and what a failure does. [`Stub`]: where the runtime is found, reconnection.
//! - [`ContainerAdjustment`], [`ContainerUpdate`]: builders of changes. [`Runtime`]: changes at any time.
//! - [`testing::Runtime`]: tests of plugins, without a runtime.
//! - [`runtime`]: for runtimes that want plugins.
//! - The feature `oci-spec`: conversions from and to the types of the crate of that name, for what both have: mounts, hooks, devices,
//!   resources, seccomp and more.
//! - [`mux`]: the multiplexer alone, and why it cannot deadlock.

mod adjust;
mod error;
mod event;
mod handle;
mod identity;
mod instrument;
mod memory;
pub mod mux;
mod objects;
#[cfg(feature = "oci-spec")]
mod oci;
mod owners;
mod plugin;
mod resources;
pub mod runtime;
mod service;
mod session;
mod state;
mod stub;
pub mod testing;
mod version;

pub use adjust::{mark_for_removal, marked_for_removal};
pub use error::Error;
pub use event::{Event, EventMask, UnknownEvent};
pub use handle::Runtime;
pub use identity::PluginId;
pub use instrument::{ConnectionSnapshot, Instruments};
#[cfg(feature = "oci-spec")]
pub use oci::OciError;
pub use plugin::{Creation, Plugin, Updates};
pub use proto::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, FailurePolicy,
    LinuxResources, PodSandbox,
};
pub use stub::{DEFAULT_SOCKET, SlowHandler, Stub, terminated};
pub use ttrpc::{Code, Context, Status, client::Backoff};
/// Subscribes a plugin to the events whose handlers are written: for an `impl Plugin for …`.
pub use ttrpc_nri_macros::plugin;
pub use version::NRI_VERSION;

/// NRI's protocol as it is on the wire, of version 0.12.5: messages, clients and servers.
#[allow(
    missing_docs,
    reason = "the protocol's messages are described where the .proto file has a comment"
)]
pub mod proto {
    ttrpc::include_proto!("nri.pkg.api.v1alpha1");

    /// The descriptors of the protocol, for tools that print messages: an encoded `google.protobuf.FileDescriptorSet`.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nri.bin"));
}

// The attribute names this crate by its name, in its own tests too.
#[cfg(test)]
extern crate self as ttrpc_nri;

/// The examples of the guide and of the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/nri.md")]
#[doc = include_str!("../README.md")]
mod guide {}
