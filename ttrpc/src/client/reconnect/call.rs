//! A call of a client that reconnects: which connection it is made on, and when on another one.

use std::sync::Arc;

use prost::Message;

use super::{Link, manager::Manager, state::LinkState};
use crate::{
    ConnectionError, Status,
    client::{
        call::{PendingCall, not_queued, owner::CallOwner},
        connection::{ConnectionTasks, record::CallRecord, unavailable},
        meta::{CallHead, is_over, too_late, within},
    },
    transport::registry::CallWait,
};

impl<Req: Message> PendingCall<Req> {
    /// Queues the Request on the connection that there is, or makes the call on one after another. Reports a failure.
    ///
    /// # Errors
    /// Those of [`PendingCall::try_queue`], [`PendingCall::admit`] and [`Manager::make`].
    pub(in crate::client) async fn make_over(
        &self,
        link: &Link,
        record: &mut Option<Arc<CallRecord>>,
    ) -> Result<CallOwner, Status> {
        let made = match link {
            Link::Fixed(tasks) => match self.try_queue(tasks, record.as_ref(), None).transpose() {
                Some(queued) => queued,
                None => Box::pin(self.admit(tasks, record.as_ref())).await,
            },
            Link::Managed(manager) => Box::pin(manager.make(self, record)).await,
        };
        made.map_err(|status| not_queued(record.as_deref(), status))
    }
}

impl Manager {
    /// Makes a call, and waits for its reply; for a call with streams, until its Request is written. One whose Request has
    /// not begun to be written when its connection is lost is made again on the next one. A call that fails has not begun to
    /// be written on any, unless its deadline has passed.
    ///
    /// # Errors
    /// Those of a call that is queued on a connection; UNAVAILABLE if there is no connection and the call does not wait for
    /// one.
    async fn make<Req: Message>(
        &self,
        pending: &PendingCall<Req>,
        record: &mut Option<Arc<CallRecord>>,
    ) -> Result<CallOwner, Status> {
        let CallHead { options, .. } = &pending.head;
        let mut repeats = 0;
        while !is_over(options.deadline) {
            let tasks = self.wait_for_connection(&pending.head, repeats == 1).await?;
            if let Some(record) = record.as_mut().and_then(Arc::get_mut) {
                record.connection.clone_from(&tasks.connection.observed);
            }
            match pending.admit(&tasks, record.as_ref()).await {
                Ok(mut owner) => {
                    let progress = owner.wait_for_progress().await;
                    // A connection that was lost before the Request began to be written: nobody can have seen it.
                    if !owner.connection().queue.is_unsent(owner.stream_id) {
                        return progress.map(|()| owner);
                    }
                    // No end was reported.
                    *record = owner.record.take();
                    if let Some(record) = record {
                        record.begin_again();
                    }
                }
                Err(status) => match status.connection_error() {
                    Some(ConnectionError::IdsExhausted) => self.leave(&tasks),
                    Some(ConnectionError::Forked) | None => return Err(status),
                    Some(_) => {}
                },
            }
            repeats += 1;
        }
        Err(too_late())
    }

    /// Waits for a connection, within the call's deadline. A call whose first connection was lost before it was sent waits for
    /// an attempt to connect in any case; after another loss it waits as any other call.
    async fn wait_for_connection(
        &self,
        head: &CallHead,
        waits_for_attempt: bool,
    ) -> Result<Arc<ConnectionTasks>, Status> {
        if let Some(tasks) = self.connection().filter(|tasks| is_usable(tasks)) {
            return Ok(tasks);
        }
        // The task that connects is not in a child of its process.
        self.origin.check()?;
        let _waiting = self.shared.registry.enter(head.info(), CallWait::Connection);
        let ready = self.ready(head.options.waits_for_ready, waits_for_attempt);
        within(head.options.deadline, ready).await.unwrap_or_else(|late| match self.failure() {
            Some(cause) => Err(Status::deadline_exceeded(format!("{}: {cause}", late.message()))),
            None => Err(late),
        })
    }

    async fn ready(
        &self,
        waits: bool,
        waits_for_attempt: bool,
    ) -> Result<Arc<ConnectionTasks>, Status> {
        let mut state = self.shared.state.subscribe();
        // That a connection was lost soon is the failure of no attempt.
        let is_final = |cause: &&ConnectionError| {
            !(waits || waits_for_attempt && !matches!(cause, ConnectionError::NoConnection(_)))
        };
        loop {
            let is_idle = match &*state.borrow_and_update() {
                LinkState::Ready(tasks) if is_usable(tasks) => return Ok(tasks.clone()),
                LinkState::ShutDown(cause, _) => return Err(unavailable(cause.clone())),
                LinkState::Idle => true,
                other => match other.failure().filter(is_final) {
                    Some(cause) => return Err(unavailable(cause.clone())),
                    None => false,
                },
            };
            if is_idle {
                self.shared.change_by(|state| {
                    matches!(state, LinkState::Idle).then_some(LinkState::Connecting(None))
                });
            }
            // The sender lives as long as this manager.
            let _ = state.changed().await;
        }
    }

    /// Why there is no connection, if an attempt has failed.
    fn failure(&self) -> Option<ConnectionError> {
        self.shared.state.borrow().failure().cloned()
    }

    /// Has another connection made in place of this one, which has no stream ids left. Its calls go on.
    fn leave(&self, spent: &Arc<ConnectionTasks>) {
        let is_it = |state: &LinkState| matches!(state, LinkState::Ready(tasks) if Arc::ptr_eq(tasks, spent));
        self.shared.change_by(|state| is_it(state).then_some(LinkState::Connecting(None)));
    }
}

/// Returns whether calls may be made on a connection: it has not begun to end.
fn is_usable(tasks: &ConnectionTasks) -> bool {
    let connection = &tasks.connection;
    connection.close_reason().is_none() && !connection.calls.is_closed()
}
