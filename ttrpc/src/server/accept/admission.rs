//! From a connection that has been accepted, or handed over, to one that is served: the peer policy, the hook, and a
//! permit for each connection that is open.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::Arc,
    task::Poll,
};

use tokio::sync::OwnedSemaphorePermit;

use crate::server::{
    Shared,
    accept::{accepting::Accepting, hook::Hooked, unserved::Unserved},
    connection::tasks,
};
use crate::{
    Connection, Error,
    observer::{ConnectionInfo, Side},
    sync::atomic::Ordering::{Relaxed, SeqCst},
    trace,
    transport::{lock, spawn, wait_until},
};

impl Shared {
    /// Serves a connection if its peer may connect, after the hook has looked at it. Without a hook, that waits for nothing. The
    /// peer of a connection that is not served sees it closed.
    ///
    /// # Errors
    /// [`Error::PeerRefused`], [`Error::ServerEnded`].
    pub(in crate::server) fn admit(
        self: &Arc<Self>,
        connection: Unserved,
        permit: OwnedSemaphorePermit,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        // Counted from now on.
        let (server, hooked) = (self.clone(), self.hook.as_ref().map(|_| Hooked::new(self)));
        async move {
            // The connection is dropped first, if it is.
            let (_hooked, mut connection) = (hooked, connection);
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

    /// Waits for a permit to open a connection, which is there when `connected` completes.
    pub(in crate::server) async fn connection_permit(
        &self,
        connected: impl Future<Output = ()>,
    ) -> OwnedSemaphorePermit {
        const OPEN: &str = "the semaphore is never closed";
        if let Ok(permit) = self.connection_permits.clone().try_acquire_owned() {
            return permit;
        }
        let mut permit = pin!(self.connection_permits.clone().acquire_owned());
        tokio::select! {
            biased;
            permit = &mut permit => return permit.expect(OPEN),
            () = connected => {}
        }
        // Clients that are held up look as if the server had died, so that it is said.
        let max_connections = self.config.max_connections;
        trace::warn!(max_connections, "new connections wait until others end");
        permit.await.expect(OPEN)
    }

    /// Waits until no connection is open.
    pub(in crate::server) async fn no_connections(&self) {
        let is_none =
            || self.hooked_connections.load(SeqCst) == 0 && lock(&self.connections).is_empty();
        wait_until(&self.connection_ended, &is_none).await;
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
                () = self.no_connections(), if is_done && !keep_open => return,
                next = self.next_connection(accepting), if !is_done => next,
            };
            if let Some((connection, permit)) = next {
                let admitted = self.admit(Unserved::new(connection), permit);
                match self.hook {
                    None => _ = admitted.await,
                    // A hook does not block the next connection.
                    Some(_) => _ = spawn(Box::pin(async { _ = admitted.await })),
                }
            }
        }
    }

    /// The next connection with its permit, `None` if the last listener is done. Nothing is accepted while
    /// there is no permit: a client without one waits in the backlog, where another process may take it.
    /// Cancel safe.
    pub(in crate::server) async fn next_connection(
        &self,
        accepting: &mut Accepting,
    ) -> Option<(Connection, OwnedSemaphorePermit)> {
        loop {
            let connected = poll_fn(|cx| accepting.poll_waiting(cx));
            let permit = self.connection_permit(connected).await;
            let polled = poll_fn(|cx| Poll::Ready(accepting.poll_next(cx))).await;
            if let Poll::Ready(next) = polled {
                return next.map(|connection| (connection, permit));
            }
            // A listener without new connections holds no permit. It wakes this task when it has one.
            drop(permit);
            let mut is_woken = false;
            poll_fn(|_| match mem::replace(&mut is_woken, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        }
    }
}
