//! A connection from the moment when its server lists it until its end, which is made here alone.

use std::{mem, sync::Arc};

use slab::Slab;
use tokio::{sync::oneshot, task::AbortHandle};

use crate::server::{accept::admission::ConnectionPermit, call::shared::Connection};
use crate::{Error, contain::contain, sync::atomic::Ordering::SeqCst, transport::lock};

/// A connection that is on its server's list, with its permit to be open. Dropped, it ends in whatever way it does: its
/// handlers are cancelled, its sender shuts the writer down, tasks that wait for capacity are woken, and it is taken off
/// the list.
pub(in crate::server) struct OpenConnection {
    pub(super) connection: Arc<Connection>,
    key: usize,
    _permit: ConnectionPermit,
    /// Dropped when the connection has ended, which the sender sees.
    signal: Option<oneshot::Sender<()>>,
    /// Once it is spawned.
    pub(super) sender: Option<AbortHandle>,
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
    pub(super) fn end(&mut self) {
        // Dropped after the queue's end, as the writer expects.
        let Some(_signal) = self.signal.take() else { return };
        let connection = &self.connection;
        let _ = contain(|| connection.queue.close());
        for call in connection.queue.streams(mem::take).into_handles() {
            let _ = contain(move || {
                call.taken_out(&connection.lost_call());
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
