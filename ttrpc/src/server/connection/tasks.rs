//! The tasks of a server's connection, from its beginning to its end.

use std::{mem, sync::Arc};

use slab::Slab;
use tokio::{
    sync::oneshot,
    task::{AbortHandle, yield_now},
};

use crate::server::{
    Peer, Shared,
    accept::{admission::ConnectionPermit, unserved::Unserved},
    call::{reasons::EndReason, shared::Connection},
    connection::receiver,
    idle::{idle, listen},
};
use crate::{
    Error,
    contain::contain,
    observer::CallOutcome,
    sync::atomic::Ordering::SeqCst,
    trace,
    transport::{heard::Heard, lock, rarely, spawn, wire},
};

/// Serves one connection until the client goes away, or the server has drained or closes.
///
/// # Errors
/// [`Error::ServerEnded`] if a shutdown has begun.
pub(in crate::server) fn serve(
    server: Arc<Shared>,
    mut unserved: Unserved,
    permit: ConnectionPermit,
    id: u64,
) -> Result<(), Error> {
    let peer = mem::replace(&mut unserved.peer, Peer::unknown());
    let extensions = mem::take(&mut unserved.extensions);
    let span = trace::span!("connection", id, %peer);
    let connection = Arc::new(Connection::new(server, peer, extensions, id));
    let (signal, mut ended) = oneshot::channel();
    let mut open = OpenConnection::new(connection.clone(), permit, signal)?;
    let crate::Connection { reader, writer, .. } = unserved.into_served();
    let (mut reader, heard) = listen(&connection.server.config, reader);
    let sending = connection;
    // Reported before its end can be: a runtime that shuts down may never run what is spawned here.
    span.in_scope(|| sending.opened());
    let sender = spawn(Box::pin(async move {
        // A client that cannot be written to has gone away: its calls end with the connection.
        if let Err(error) = wire::send_all(writer, &sending.queue, &mut ended).await {
            trace::debug!(connection = id, "writing to the client failed: {error}");
            let _ = sending.end_reason.set(EndReason::not_written(&error));
        }
    }));
    open.sender = Some(sender.abort_handle());
    // A task is as large as the largest thing that it may ever wait for. So that an idle connection
    // is small, what seldom has to be waited for is boxed when it has.
    let receiving = async move {
        // Dropped before the connection is taken off the list.
        let (reader, mut sender) = (&mut reader, sender);
        let connection = open.connection.clone();
        {
            // The receiver is dropped before the connection's end is reported, since a call may wait in it.
            let sender_ended = rarely(&mut sender, |sender| sender.is_finished());
            let reason = tokio::select! {
                biased;
                reason = receiver::run(&connection, reader) => reason,
                reason = ended_here(&connection, heard) => reason,
                _ = sender_ended => EndReason::closed_by_client(),
            };
            // If the sender has failed it has said why.
            let _ = connection.end_reason.set(reason);
        }
        open.end();
        // Its end is seen only when the writer is shut down: the program may exit then.
        if !sender.is_finished() {
            let _ = sender.await;
        }
    };
    spawn(span.instrument(Box::pin(receiving)));
    Ok(())
}

/// Waits until this side ends the connection: the server closes, or the connection was idle for too long.
async fn ended_here(connection: &Connection, heard: Option<Arc<Heard>>) -> EndReason {
    let closed = closed(&connection.server);
    let (Some(max_idle), Some(heard)) = (connection.server.config.max_idle, heard) else {
        closed.await;
        return EndReason::closed_here();
    };
    let idle = Box::pin(idle(connection, &heard, max_idle));
    tokio::select! {
        biased;
        () = closed => EndReason::closed_here(),
        () = idle => EndReason::idle(max_idle),
    }
}

/// Waits until the server closes. It wakes its task when the server begins to drain as well.
async fn closed(server: &Shared) {
    let lifecycle = &server.lifecycle;
    // Made before the look: from here on no change is missed.
    let change = lifecycle.next_change();
    if lifecycle.is_running.load(SeqCst) {
        rarely(change, |_| !lifecycle.is_running.load(SeqCst)).await;
    }
    // The receiver may have looked just before the change, and looks again.
    yield_now().await;
    Box::pin(lifecycle.closing()).await;
}

/// A connection that is on its server's list, with its permit to be open. Dropped, it ends in whatever way it does: its
/// handlers are cancelled, its sender shuts the writer down, tasks that wait for capacity are woken, and it is taken off
/// the list.
pub(in crate::server) struct OpenConnection {
    connection: Arc<Connection>,
    key: usize,
    _permit: ConnectionPermit,
    /// Dropped when the connection has ended, which the sender sees.
    signal: Option<oneshot::Sender<()>>,
    /// Once it is spawned.
    sender: Option<AbortHandle>,
}

impl OpenConnection {
    /// Lists a connection.
    ///
    /// # Errors
    /// [`Error::ServerEnded`].
    pub(in crate::server) fn new(
        connection: Arc<Connection>,
        permit: ConnectionPermit,
        signal: oneshot::Sender<()>,
    ) -> Result<Self, Error> {
        let server = &connection.server;
        let mut connections = lock(&server.connections);
        // The connection has its permit, and the end of a server that drains waits for permits: either that sees this
        // one, or no connection is listed here.
        if !server.lifecycle.is_running.load(SeqCst) {
            return Err(Error::ServerEnded);
        }
        let key = connections.insert(Arc::downgrade(&connection));
        drop(connections);
        let signal = Some(signal);
        Ok(OpenConnection { connection, key, _permit: permit, signal, sender: None })
    }

    /// Ends everything but the sender, which shuts the writer down in a bounded time.
    fn end(&mut self) {
        // Dropped after the queue's end, as the writer expects.
        let Some(_signal) = self.signal.take() else { return };
        let connection = &self.connection;
        let _ = contain(|| connection.queue.close());
        for call in connection.queue.streams(mem::take).into_handles() {
            let _ = contain(move || {
                let (cause, status) = connection.lost_call();
                call.taken_out(CallOutcome { cause, status: Some(&status) });
            });
        }
        connection.closed();
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let _ = contain(|| self.end());
        if let Some(sender) = &self.sender {
            sender.abort();
        }
        let server = &self.connection.server;
        let mut connections = lock(&server.connections);
        connections.remove(self.key);
        if connections.is_empty() {
            *connections = Slab::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        pin::Pin,
        sync::{Arc, Mutex},
        task::{Context, Wake},
        time::Duration,
    };

    use async_trait::async_trait;
    use tokio::{
        sync::mpsc::{UnboundedSender, unbounded_channel},
        time::timeout,
    };
    use tokio_util::sync::WaitForCancellationFutureOwned;

    use crate::{
        Raw, RawEnd, Server, Status,
        observer::{ConnectionEnd, ConnectionInfo, Observer},
        server::{Fallback, FallbackCall},
        testing,
    };

    /// Panics when it is woken.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the program's");
        }
    }

    #[derive(Debug, PartialEq)]
    enum Event {
        HandlerBegun,
        Cancelled(String),
        ConnectionClosed,
    }

    /// Handlers without end. Those of these methods have a waker that panics wait for their cancellation.
    struct Waits {
        panicking: &'static [&'static str],
        events: UnboundedSender<Event>,
        waiting: Mutex<Vec<Pin<Box<WaitForCancellationFutureOwned>>>>,
    }

    #[async_trait]
    impl Fallback for Waits {
        async fn call(&self, ctx: &crate::Context, _: FallbackCall) -> Result<RawEnd, Status> {
            let (token, method) = (ctx.cancellation_token(), ctx.method().to_owned());
            if self.panicking.contains(&method.as_str()) {
                let mut cancelled = Box::pin(token.cancelled_owned());
                let panics = Arc::new(Panics).into();
                assert!(cancelled.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
                self.waiting.lock().expect("nothing panics").push(cancelled);
            } else {
                let events = self.events.clone();
                tokio::spawn(async move {
                    token.cancelled().await;
                    let _ = events.send(Event::Cancelled(method));
                });
            }
            let _ = self.events.send(Event::HandlerBegun);
            pending().await
        }
    }

    struct Closes(UnboundedSender<Event>);

    impl Observer for Closes {
        fn connection_closed(&self, _: &ConnectionInfo<'_>, _: &ConnectionEnd<'_>) {
            let _ = self.0.send(Event::ConnectionClosed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_calls_of_a_connection_are_cancelled_at_its_end_whichever_wakers_panic() {
        const METHODS: [&str; 4] = ["A", "B", "C", "D"];
        for panicking in [&["A"][..], &["B", "C"], &["A", "B", "C"], &["D"]] {
            let (sender, mut events) = unbounded_channel();
            let waits = Waits { panicking, events: sender.clone(), waiting: Mutex::default() };
            let server = Server::builder().fallback(waits).observe(Closes(sender));
            let client = testing::Setup::new(server).connect();
            let calls: Vec<_> = METHODS
                .map(|method| tokio::spawn(client.unary::<Raw, Raw>("a.B", method, Raw::default())))
                .into();
            for _ in METHODS {
                assert_eq!(events.recv().await, Some(Event::HandlerBegun));
            }
            client.close();
            let mut expected: Vec<_> = METHODS
                .into_iter()
                .filter(|method| !panicking.contains(method))
                .map(|method| Event::Cancelled(method.to_owned()))
                .chain([Event::ConnectionClosed])
                .collect();
            while !expected.is_empty() {
                let event = timeout(Duration::from_secs(1), events.recv()).await;
                let event =
                    event.unwrap_or_else(|_| panic!("{expected:?} of {panicking:?} is missing"));
                let event = event.expect("the server goes on");
                expected.remove(
                    expected.iter().position(|one| *one == event).expect("it is one of these"),
                );
            }
            for call in calls {
                assert!(call.await.expect("it ends").is_err());
            }
        }
    }
}
