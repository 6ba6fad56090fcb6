//! From a connection that has been accepted, or handed over, to one that is served: the peer policy, the hook, and a
//! permit for each connection that is open.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
};

use crate::server::{
    Shared,
    accept::{accepting::Accepting, unserved::Unserved},
    connection::tasks,
};
use crate::{
    Error,
    contain::{contain, notify_waiters},
    observer::{ConnectionInfo, Side},
    sync::atomic::Ordering::{Relaxed, SeqCst},
    trace,
    transport::{spawn, wait_until},
};

/// The right to have a connection open, or at the hook. Dropped, it goes to another one.
pub(in crate::server) struct ConnectionPermit(Arc<Shared>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.admitted_connections.fetch_sub(1, SeqCst);
        // Who waits for it may have a waker of the program's.
        let _ = contain(|| self.0.connection_permits.add_permits(1));
        notify_waiters(&self.0.connection_ended);
    }
}

/// A wait for a permit, at whose end nobody may wait any more.
struct PermitWait<'a>(&'a Shared);

impl Drop for PermitWait<'_> {
    fn drop(&mut self) {
        notify_waiters(&self.0.connection_ended);
    }
}

impl Shared {
    /// Serves a connection if its peer may connect, after the hook has looked at it. Without a hook, that waits for nothing. The
    /// peer of a connection that is not served sees it closed.
    ///
    /// # Errors
    /// [`Error::PeerRefused`], [`Error::ServerEnded`].
    pub(in crate::server) fn admit(
        self: &Arc<Self>,
        connection: Unserved,
        permit: ConnectionPermit,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let server = self.clone();
        async move {
            // The connection is dropped first, if it is.
            let (permit, mut connection) = (permit, connection);
            let is_allowed =
                server.policy.as_ref().is_none_or(|policy| policy.allows(connection.peer()));
            let admitted = match &server.hook {
                _ if !is_allowed => Err("the policy does not allow the peer".to_owned()),
                None => Ok(()),
                Some(hook) => tokio::select! {
                    biased;
                    () = server.lifecycle.draining() => return Err(Error::ServerEnded),
                    result = hook.run(&mut connection) => result,
                },
            };
            if let Err(reason) = admitted {
                let peer = connection.peer();
                trace::warn!(%peer, reason, "a connection is refused");
                let (side, extensions) = (Side::Server, &connection.extensions);
                let refused = ConnectionInfo { side, id: 0, peer, extensions };
                server.observers.notify(|observer| observer.connection_refused(&refused, &reason));
                return Err(Error::PeerRefused { peer: peer.to_string(), reason });
            }
            let id = server.connections_so_far.fetch_add(1, Relaxed) + 1;
            tasks::serve(server, connection, permit, id)
        }
    }

    /// Waits for a permit to open a connection.
    pub(in crate::server) async fn connection_permit(self: &Arc<Self>) -> ConnectionPermit {
        let permits = &self.connection_permits;
        let permit = match permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                // Clients that are held up look as if the server had died, so that it is said.
                let max_connections = self.config.max_connections;
                trace::warn!(max_connections, "new connections wait until others end");
                let _wait = PermitWait(self);
                permits.acquire().await.expect("the semaphore is never closed")
            }
        };
        permit.forget();
        self.admitted_connections.fetch_add(1, SeqCst);
        ConnectionPermit(self.clone())
    }

    /// Waits until no connection is open or at the hook.
    pub(in crate::server) async fn no_connections(&self) {
        wait_until(&self.connection_ended, &|| self.admitted_connections.load(SeqCst) == 0).await;
    }

    /// Waits until no connection is open or at the hook, and none has been assigned a permit.
    async fn idle(&self) {
        let (permits, most) = (&self.connection_permits, self.config.max_connections);
        let is_idle =
            || self.admitted_connections.load(SeqCst) == 0 && permits.available_permits() == most;
        wait_until(&self.connection_ended, &is_idle).await;
    }

    /// Serves connections for as long as more can come, or, when none can, until those that are there
    /// have ended.
    pub(in crate::server) async fn accept(
        self: &Arc<Self>,
        accepting: &mut Accepting,
        keep_open: bool,
    ) {
        loop {
            let is_paused = accepting.update(&self.accept_control);
            let is_done = accepting.is_done();
            let next = tokio::select! {
                biased;
                () = self.accept_control.asks_for_more(is_paused) => continue,
                () = self.idle(), if is_done && !keep_open => return,
                next = self.next_connection(accepting), if !is_done => next,
            };
            if let Some((connection, permit)) = next {
                let admitted = self.admit(connection, permit);
                match self.hook {
                    None => _ = admitted.await,
                    // A hook does not block the next connection.
                    Some(_) => _ = spawn(Box::pin(async { _ = admitted.await })),
                }
            }
        }
    }

    /// The next connection with its permit, `None` if the last listener is done. While there is no permit, a socket accepts
    /// nothing: a client waits in the backlog, where another process may take it. Of a stream of connections one is taken
    /// and waits. Cancel safe.
    async fn next_connection(
        self: &Arc<Self>,
        accepting: &mut Accepting,
    ) -> Option<(Unserved, ConnectionPermit)> {
        loop {
            poll_fn(|cx| accepting.poll_waiting(cx)).await;
            let permit = self.connection_permit().await;
            let polled = poll_fn(|cx| Poll::Ready(accepting.poll_next(cx))).await;
            if let Poll::Ready(next) = polled {
                return next.map(|connection| (connection, permit));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::{Server, ServerConfig};

    /// Tokio assigns a permit to who waits for it, who may not be polled before the shutdown has ended.
    #[tokio::test]
    async fn the_end_of_a_server_does_not_wait_for_a_connection_that_waits_for_its_permit() {
        let server = Server::builder().config(ServerConfig::default().max_connections(1));
        let server = server.keep_open().build().expect("it is kept open").shared;
        let first = server.connection_permit().await;
        let mut second = pin!(server.connection_permit());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(pin!(server.no_connections()).poll(&mut cx).is_pending());
        drop(first);
        assert!(pin!(server.no_connections()).poll(&mut cx).is_ready());
        // A server without listeners goes on for it.
        let mut idle = pin!(server.idle());
        assert!(idle.as_mut().poll(&mut cx).is_pending());
        drop(second.await);
        assert!(idle.as_mut().poll(&mut cx).is_ready());
    }
}
