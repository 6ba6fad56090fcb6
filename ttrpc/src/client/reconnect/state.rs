//! The state of a client's connection, as programs see it.

use std::{fmt, sync::Arc};

use tokio::{sync::watch, time::Instant};

use crate::{
    ConnectionError,
    client::connection::{ClientConnection, ConnectionTasks},
    snapshot::time_until,
};

/// The state of a client's connection.
///
/// A client that does not [reconnect](crate::client::ConnectOptions::reconnect) is `Ready`, and `ShutDown` once its connection has
/// ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClientState {
    /// There is no connection, and no call needs one.
    Idle,
    /// An attempt to connect is under way.
    Connecting,
    /// There is a connection.
    Ready,
    /// The last attempt has failed, or its connection was lost soon. The next one comes at `until`.
    #[non_exhaustive]
    BackingOff {
        /// When the next attempt begins.
        until: Instant,
        /// The failure of the last one.
        cause: ConnectionError,
    },
    /// There will be no connection: the client was closed, or has given up.
    #[non_exhaustive]
    ShutDown {
        /// Why.
        cause: ConnectionError,
    },
}

impl fmt::Display for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientState::Idle => f.write_str("idle"),
            ClientState::Connecting => f.write_str("connecting"),
            ClientState::Ready => f.write_str("connected"),
            ClientState::BackingOff { until, cause } => {
                write!(f, "connects again in {:.1?}, since {cause}", time_until(*until))
            }
            ClientState::ShutDown { cause } => write!(f, "closed, {cause}"),
        }
    }
}

/// The state of a connection that is made anew when it is lost. It lies in one `watch`, and all that wait for a connection
/// wait for a change of it.
#[derive(Clone, Debug)]
pub(super) enum LinkState {
    Idle,
    /// With the failure of the attempt before, if that failed.
    Connecting(Option<ConnectionError>),
    Ready(Arc<ConnectionTasks>),
    BackingOff(Instant, ConnectionError),
    /// With the last connection, if that may still have something to write.
    ShutDown(ConnectionError, Option<Arc<ConnectionTasks>>),
}

impl LinkState {
    pub(super) fn public(&self) -> ClientState {
        match self {
            LinkState::Idle => ClientState::Idle,
            LinkState::Connecting(_) => ClientState::Connecting,
            LinkState::Ready(_) => ClientState::Ready,
            LinkState::BackingOff(until, cause) => {
                ClientState::BackingOff { until: *until, cause: cause.clone() }
            }
            LinkState::ShutDown(cause, _) => ClientState::ShutDown { cause: cause.clone() },
        }
    }

    /// The failure because of which a call that does not wait fails.
    pub(super) fn failure(&self) -> Option<&ConnectionError> {
        match self {
            LinkState::Connecting(after) => after.as_ref(),
            LinkState::BackingOff(_, cause) | LinkState::ShutDown(cause, _) => Some(cause),
            LinkState::Idle | LinkState::Ready(_) => None,
        }
    }

    /// Returns the connection that there is, the last one of a client that is shut down as well.
    pub(super) fn connection(&self) -> Option<&Arc<ConnectionTasks>> {
        match self {
            LinkState::Ready(tasks) => Some(tasks),
            LinkState::ShutDown(_, last) => last.as_ref(),
            LinkState::Idle | LinkState::Connecting(_) | LinkState::BackingOff(..) => None,
        }
    }

    pub(super) fn close_reason(&self) -> Option<ConnectionError> {
        match self {
            LinkState::ShutDown(cause, _) => Some(cause.clone()),
            _ => None,
        }
    }

    pub(super) fn is_shut_down(&self) -> bool {
        matches!(self, LinkState::ShutDown(..))
    }
}

/// Follows the [state](ClientState) of a client's connection. It keeps no connection open.
#[derive(Debug)]
pub struct StateWatch(pub(in crate::client) Watched);

#[derive(Debug)]
pub(in crate::client) enum Watched {
    /// A connection that is not made anew.
    Connection(Arc<ClientConnection>),
    Link(LinkWatch),
    /// It has ended, and that was returned.
    Ended,
}

/// Hides what a link's state holds.
#[derive(Debug)]
pub(in crate::client) struct LinkWatch(pub(super) watch::Receiver<LinkState>);

impl StateWatch {
    /// Waits for a change of the state, and returns the new one; `None` after `ShutDown`, the last one.
    ///
    /// A change counts since the last return, or since the watch was made. States that pass between two calls are not
    /// seen.
    ///
    /// Cancel safe.
    pub async fn changed(&mut self) -> Option<ClientState> {
        let state = match &mut self.0 {
            Watched::Connection(connection) => state_of(Some(connection.closed().await)),
            Watched::Link(LinkWatch(state)) => {
                state.changed().await.ok()?;
                state.borrow_and_update().public()
            }
            Watched::Ended => return None,
        };
        if let ClientState::ShutDown { .. } = state {
            self.0 = Watched::Ended;
        }
        Some(state)
    }
}

/// The state of a client's only connection.
pub(in crate::client) fn state_of(close_reason: Option<ConnectionError>) -> ClientState {
    close_reason.map_or(ClientState::Ready, |cause| ClientState::ShutDown { cause })
}
