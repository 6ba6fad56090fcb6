//! Why a plugin does not run.

use std::{fmt::Display, io};

use ttrpc::{ConnectionError, Status};

use crate::mux::MuxError;

/// Why a plugin could not start, or ended though nobody asked it to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no valid index and name.
    #[error("{problem}")]
    Identity {
        /// The fault and its remedy.
        problem: String,
    },
    /// The runtime launched the plugin with a descriptor that is no socket.
    #[error(
        "NRI_PLUGIN_SOCKET is `{value}`, which is not the number of a connected socket of this process{}",
        because(source.as_ref())
    )]
    Descriptor {
        /// The variable's value.
        value: String,
        /// The system's error, if there is one.
        #[source]
        source: Option<io::Error>,
    },
    /// The runtime's socket could not be connected to.
    #[error("{source}: is NRI enabled there?")]
    Connect {
        /// The socket.
        address: String,
        /// Why not.
        #[source]
        source: ttrpc::Error,
    },
    /// The runtime refused the plugin, or did not answer in time.
    #[error("the runtime did not register the plugin {plugin}: {source}")]
    Register {
        /// The plugin's index and name.
        plugin: String,
        /// Its answer.
        #[source]
        source: Status,
    },
    /// The runtime has registered the plugin and did not configure it in time.
    #[error("the runtime registered the plugin and did not configure it within {seconds} s")]
    NotConfigured {
        /// The time that it had.
        seconds: u64,
    },
    /// The plugin's own `configure` failed.
    #[error("the plugin could not be configured: {0}")]
    Configure(#[source] Status),
    /// The plugin's own `synchronize` failed, or did not end in time, and the runtime dropped the plugin.
    #[error("the plugin could not be synchronized: {0}")]
    Synchronize(#[source] Status),
    /// The runtime's own [`Host::state`](crate::runtime::Host::state) failed, and the plugin was not synchronized.
    #[error("the runtime cannot list the pods and containers that exist: {0}")]
    State(#[source] Status),
    /// The connection between plugin and runtime ended.
    #[error("the connection between plugin and runtime ended: {0}")]
    Disconnected(#[source] MuxError),
    /// One of the two logical connections ended alone: the peer violated the protocol there.
    #[error("one of the two logical connections ended{}", because(.0.as_ref()))]
    LogicalConnection(#[source] Option<ConnectionError>),
    /// A server or a listener could not be set up.
    #[error(transparent)]
    Server(#[from] ttrpc::Error),
    /// A plugin could not be launched or found.
    #[error("cannot {what}: {source}")]
    Launch {
        /// The action that failed, with the file's name.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A cause that is not always known, as the end of a message.
fn because(source: Option<&impl Display>) -> String {
    source.map_or_else(String::new, |source| format!(": {source}"))
}
