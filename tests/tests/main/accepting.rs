//! How a server accepts: listeners that fail, a shutdown that begins meanwhile, pauses.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use rustix::io::Errno;
use tokio::{
    io::duplex,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};
use ttrpc::{
    Client, ClientConfig, Code, Connection, Error, Server, async_trait,
    server::{ConnectionHook, Listener, PeerPolicy, ServerBuilder, ServerHandle},
};
use ttrpc_tests::{
    conformance::*,
    harness::{PATIENCE, echo_request},
    service::ConformanceService,
};

type Accepted = io::Result<Connection>;

fn builder() -> ServerBuilder {
    Server::builder().add_service(ConformanceServer::new(ConformanceService::default()))
}

fn start(builder: ServerBuilder) -> (ServerHandle, JoinHandle<Result<(), Error>>) {
    let server = builder.build().expect("the server is complete");
    (server.handle(), tokio::spawn(server.serve()))
}

/// What a test lets a listener accept.
struct Channel(UnboundedReceiver<Accepted>);

impl futures_core::Stream for Channel {
    type Item = Accepted;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Accepted>> {
        self.0.poll_recv(cx)
    }
}

fn channel() -> (UnboundedSender<Accepted>, Listener) {
    let (sender, receiver) = unbounded_channel();
    (sender, Listener::incoming(Channel(receiver)))
}

/// A listener that fails whenever it is asked, and how often it was.
fn failing(error: Errno) -> (Arc<AtomicUsize>, Listener) {
    struct Failing(Arc<AtomicUsize>, Errno);

    impl futures_core::Stream for Failing {
        type Item = Accepted;

        fn poll_next(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Accepted>> {
            self.0.fetch_add(1, Relaxed);
            Poll::Ready(Some(Err(self.1.into())))
        }
    }

    let count = Arc::new(AtomicUsize::new(0));
    (count.clone(), Listener::incoming(Failing(count, error)))
}

/// A client, and the other side of its connection.
fn pair() -> (ConformanceClient, Connection) {
    let (here, there) = duplex(1000);
    let client = Client::from_io(here, ClientConfig::default());
    (ConformanceClient::new(client), Connection::new(there))
}

/// How long a client that connects now waits for its answer.
async fn time_of_echo(connections: &UnboundedSender<Accepted>) -> Duration {
    let (client, connection) = pair();
    let start = Instant::now();
    connections.send(Ok(connection)).expect("the server listens");
    client.echo(echo_request([])).timeout(PATIENCE).await.expect("it is served");
    start.elapsed()
}

/// One address without descriptors held up all others.
#[tokio::test(start_paused = true)]
async fn a_listener_that_fails_holds_up_no_other() {
    for lack in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
        let ((failing, first), (working, second)) = (channel(), channel());
        let (_handle, serving) = start(builder().listener(first).listener(second));
        failing.send(Err(lack.into())).unwrap();
        let (here, there) = tokio::join!(time_of_echo(&failing), time_of_echo(&working));
        assert_eq!(there, Duration::ZERO, "{lack}");
        let pause = Duration::from_millis(50);
        assert!(here >= pause && here < pause * 2, "{lack}: {here:?}");
        serving.abort();
    }
}

/// The pause was part of a future that is dropped whenever a handle asks for something.
#[tokio::test(start_paused = true)]
async fn a_listener_without_descriptors_is_left_alone_whatever_else_happens() {
    let (asked, listener) = failing(Errno::MFILE);
    let (handle, serving) = start(builder().listener(listener));
    let mut others = Vec::new();
    for _ in 0..10 {
        let (connections, other) = channel();
        handle.listen(other).unwrap();
        yield_now().await;
        handle.pause_accepting().await;
        handle.resume_accepting();
        assert_eq!(time_of_echo(&connections).await, Duration::ZERO);
        others.push(connections);
    }
    assert_eq!(asked.load(Relaxed), 1);
    sleep(Duration::from_millis(75)).await;
    assert_eq!(asked.load(Relaxed), 2, "it is asked again 50 ms later");
    serving.abort();
}

/// What becomes of one connection says nothing of the next one: a client that fails in its handshake held up all others.
#[tokio::test(start_paused = true)]
async fn a_connection_that_fails_holds_up_nobody() {
    let (connections, listener) = channel();
    let (_handle, serving) = start(builder().listener(listener));
    for error in [Errno::CONNABORTED, Errno::CONNRESET, Errno::PROTO].map(io::Error::from) {
        connections.send(Err(error)).unwrap();
        connections.send(Err(io::Error::other("a handshake failed"))).unwrap();
        assert_eq!(time_of_echo(&connections).await, Duration::ZERO);
    }
    serving.abort();
}

/// Whatever it says, a listener that always fails does not keep a processor busy.
#[tokio::test(start_paused = true)]
async fn a_listener_that_fails_for_ever_is_asked_now_and_then() {
    let (asked, listener) = failing(Errno::PROTO);
    let (_handle, serving) = start(builder().listener(listener));
    sleep(Duration::from_secs(1)).await;
    let asked = asked.load(Relaxed);
    assert!((20..=20 * 16 + 16).contains(&asked), "{asked} times in a second");
    serving.abort();
}

/// Shuts its server down as soon as somebody has connected.
struct ShutsDown(ServerHandle);

#[async_trait]
impl ConnectionHook for ShutsDown {
    async fn connected(
        &self,
        _connection: &mut Connection,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.begin_shutdown(PATIENCE);
        Ok(())
    }
}

/// The shutdown was looked for before the peer was, and not again: the connection was said to be served.
#[tokio::test]
async fn a_connection_that_a_shutdown_overtakes_is_refused() {
    let by_policy = builder().keep_open();
    let handle = by_policy.handle();
    let policy = PeerPolicy::custom(move |_| {
        handle.begin_shutdown(PATIENCE);
        true
    });
    let by_hook = builder().keep_open();
    let hook = ShutsDown(by_hook.handle());
    for builder in [by_policy.allow_peers(policy), by_hook.on_connection(hook, PATIENCE)] {
        let (handle, serving) = start(builder);
        let (client, connection) = pair();
        let error = handle.serve_connection(connection).await.unwrap_err();
        assert!(matches!(error, Error::ServerEnded), "{error:?}");
        let status = client.echo(echo_request([])).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        serving.await.unwrap().unwrap();
        assert_eq!(handle.connections(), 0);
    }
}
