//! What a client's calls go over: one connection, or one after another.
//!
//! The task of a [`Manager`] makes a connection anew when it is lost. [`make`](Manager::make) chooses the connection for a call,
//! and chooses again if it was lost before the Request began to be written.

mod backoff;
mod call;
pub(super) mod manager;
pub(super) mod state;

use std::{fmt, sync::Arc};

pub use self::backoff::Backoff;
use self::{
    manager::Manager,
    state::{ClientState, LinkState, LinkWatch, Watched, state_of},
};
use super::connection::{ConnectionTasks, observe::ObservedConnection};
use crate::{ConnectionError, snapshot::ClientSnapshot};

/// What a client's calls go over.
#[derive(Clone)]
pub(super) enum Link {
    /// One connection, until it ends.
    Fixed(Arc<ConnectionTasks>),
    /// One after another.
    Managed(Arc<Manager>),
}

impl Link {
    /// What observers know of a call that has no connection yet.
    pub(super) fn observed(&self) -> &Arc<ObservedConnection> {
        match self {
            Link::Fixed(tasks) => &tasks.connection.observed,
            Link::Managed(manager) => &manager.shared.observed,
        }
    }

    pub(super) fn state(&self) -> ClientState {
        match self {
            Link::Fixed(tasks) => state_of(tasks.connection.close_reason()),
            Link::Managed(manager) => manager.shared.state.borrow().public(),
        }
    }

    pub(super) fn watch(&self) -> Watched {
        match self {
            Link::Fixed(tasks) => Watched::Connection(tasks.connection.clone()),
            Link::Managed(manager) => Watched::Link(LinkWatch(manager.shared.state.subscribe())),
        }
    }

    /// Waits until there is no connection, and never will be.
    pub(super) async fn closed(&self) -> ConnectionError {
        match self {
            Link::Fixed(tasks) if !tasks.connection.origin.is_here() => ConnectionError::Forked,
            Link::Fixed(tasks) => tasks.connection.closed().await,
            Link::Managed(manager) if !manager.origin.is_here() => ConnectionError::Forked,
            Link::Managed(manager) => {
                let mut state = manager.shared.state.subscribe();
                let end = state.wait_for(LinkState::is_shut_down).await;
                let end = end.ok().and_then(|state| state.close_reason());
                end.unwrap_or(ConnectionError::ClosedLocally)
            }
        }
    }

    pub(super) fn close_reason(&self) -> Option<ConnectionError> {
        match self {
            Link::Fixed(tasks) => tasks.connection.close_reason(),
            Link::Managed(manager) => manager.shared.state.borrow().close_reason(),
        }
    }

    /// The connection that there is. With `is_last` there will be no other one.
    pub(super) fn connection(&self, is_last: bool) -> Option<Arc<ConnectionTasks>> {
        match self {
            Link::Fixed(tasks) => Some(tasks.clone()),
            Link::Managed(manager) if is_last => manager.shut_down(ConnectionError::ClosedLocally),
            Link::Managed(manager) => manager.connection(),
        }
    }

    pub(super) fn snapshot(&self) -> ClientSnapshot {
        match self {
            Link::Fixed(tasks) => tasks.connection.snapshot(),
            Link::Managed(manager) => manager.snapshot(),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.state(), f)
    }
}
