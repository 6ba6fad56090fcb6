//! How a server accepts: listeners that fail, a shutdown that begins meanwhile, pauses, and what holds wherever a
//! connection comes from.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use rustix::io::Errno;
use tempfile::tempdir;
use tokio::{
    io::{AsyncWrite, duplex, empty, join},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};
use ttrpc::{
    Client, ClientConfig, Code, Connection, Context as CallContext, Error, ServerConfig, Status,
    async_trait,
    server::{
        ConnectionHook, Interceptor, Listener, Next, PeerPolicy, ServerBuilder, ServerHandle,
    },
};
use ttrpc_tests::{
    conformance::*,
    harness::{PATIENCE, echo_request, eventually, settle},
    service::ConformanceService,
};

type Accepted = io::Result<Connection>;

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
        let (_handle, serving) =
            start(ConformanceService::builder().listener(first).listener(second));
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
    let (handle, serving) = start(ConformanceService::builder().listener(listener));
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
    let (_handle, serving) = start(ConformanceService::builder().listener(listener));
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
    let (_handle, serving) = start(ConformanceService::builder().listener(listener));
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
    let by_policy = ConformanceService::builder().keep_open();
    let handle = by_policy.handle();
    let policy = PeerPolicy::custom(move |_| {
        handle.begin_shutdown(PATIENCE);
        true
    });
    let by_hook = ConformanceService::builder().keep_open();
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

/// A TCP listener of the library's, and its address.
fn tcp() -> (Listener, String) {
    let listener = Listener::bind("tcp://127.0.0.1:0").expect("a port is free");
    let address = listener.socket_addr().expect("it is TCP");
    (listener, format!("tcp://{address}"))
}

/// A call that waits until its client is served.
fn waiting_echo(client: &ConformanceClient) -> JoinHandle<Result<EchoResponse, Status>> {
    tokio::spawn(client.echo(echo_request([])).into_future())
}

#[tokio::test]
async fn a_pause_holds_for_streams_of_connections_and_for_tcp() {
    let ((connections, incoming), (listener, address)) = (channel(), tcp());
    let (handle, serving) =
        start(ConformanceService::builder().listener(incoming).listener(listener));
    handle.pause_accepting().await;
    let (first, connection) = pair();
    connections.send(Ok(connection)).unwrap();
    let second = ConformanceClient::new(Client::connect(&address).await.unwrap());
    let echoes = [waiting_echo(&first), waiting_echo(&second)];
    settle().await;
    assert_eq!(handle.connections(), 0);
    assert!(!echoes.iter().any(JoinHandle::is_finished));
    handle.resume_accepting();
    for echo in echoes {
        echo.await.unwrap().expect("it is served now");
    }
    assert_eq!(handle.connections(), 2);
    serving.abort();
}

#[tokio::test]
async fn a_full_server_that_goes_on_accepting_waits_for_a_place() {
    let (listener, address) = tcp();
    let config = ServerConfig::default().max_connections(1);
    let (handle, serving) = start(ConformanceService::builder().config(config).listener(listener));
    let first = ConformanceClient::new(Client::connect(&address).await.unwrap());
    first.echo(echo_request([])).await.unwrap();
    handle.pause_accepting().await;
    let second = ConformanceClient::new(Client::connect(&address).await.unwrap());
    let echo = waiting_echo(&second);
    handle.resume_accepting();
    first.echo(echo_request([])).await.unwrap();
    settle().await;
    assert_eq!((handle.connections(), echo.is_finished()), (1, false));
    // The other way round: a place is free, and accepting is paused.
    handle.pause_accepting().await;
    drop(first);
    eventually("the place is free", || handle.connections() == 0).await;
    settle().await;
    assert!(!echo.is_finished());
    handle.resume_accepting();
    echo.await.unwrap().expect("it is served now");
    serving.abort();
}

/// What had been taken from the stream, and waited for a permit, was neither served nor closed until the pause ended.
#[tokio::test(start_paused = true)]
async fn a_connection_that_was_taken_before_a_pause_is_served_when_there_is_a_permit() {
    let (connections, listener) = channel();
    let config = ServerConfig::default().max_connections(1);
    let (handle, serving) = start(ConformanceService::builder().config(config).listener(listener));
    let clients = [(); 3].map(|()| {
        let (client, connection) = pair();
        connections.send(Ok(connection)).unwrap();
        client
    });
    let [first, taken, not_taken] = clients;
    first.echo(echo_request([])).await.unwrap();
    settle().await;
    handle.pause_accepting().await;
    drop(first);
    taken.echo(echo_request([])).timeout(PATIENCE).await.expect("it is served");
    drop(taken);
    let echo = waiting_echo(&not_taken);
    eventually("the place is free", || handle.connections() == 0).await;
    settle().await;
    assert!(!echo.is_finished());
    handle.resume_accepting();
    echo.await.unwrap().expect("it is served now");
    serving.abort();
}

/// Notes that it is shut down.
struct NotesShutdown(Arc<AtomicBool>);

impl AsyncWrite for NotesShutdown {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, b: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(b.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.store(true, Relaxed);
        Poll::Ready(Ok(()))
    }
}

/// A server that ends shuts down all connections that it has, also those that waited for a permit or for it to begin. They
/// were dropped.
#[tokio::test]
async fn connections_that_are_never_served_are_shut_down_with_the_server() {
    let noting = || {
        let is_shut_down = Arc::new(AtomicBool::new(false));
        let writer = NotesShutdown(is_shut_down.clone());
        (is_shut_down, Connection::new(join(empty(), writer)))
    };

    let (is_shut_down, connection) = noting();
    let (connections, listener) = channel();
    connections.send(Ok(connection)).unwrap();
    let config = ServerConfig::default().max_connections(1);
    let (client, first) = pair();
    let builder = ConformanceService::builder().config(config).connection(first);
    let (handle, serving) = start(builder.listener(listener));
    client.echo(echo_request([])).await.unwrap();
    settle().await;
    assert!(!is_shut_down.load(Relaxed));
    handle.close().await;
    serving.await.unwrap().unwrap();
    assert!(is_shut_down.load(Relaxed), "it was taken from a stream");

    let (is_shut_down, connection) = noting();
    let server = ConformanceService::builder().connection(connection).build().unwrap();
    server.handle().close().await;
    server.serve().await.unwrap();
    assert!(is_shut_down.load(Relaxed), "the server was closed before it began");

    let (is_shut_down, connection) = noting();
    let not_listening = OwnedFd::from(UnixDatagram::unbound().unwrap());
    let builder = ConformanceService::builder().connection(connection);
    let error = builder.listener(not_listening).serve().await.unwrap_err();
    assert!(matches!(error, Error::Listener(_)), "{error:?}");
    assert!(is_shut_down.load(Relaxed), "a listener of the server's failed");
}

/// Counts calls.
struct Counts(Arc<AtomicUsize>);

#[async_trait]
impl Interceptor for Counts {
    async fn intercept(&self, ctx: &mut CallContext, next: Next<'_>) -> Result<(), Status> {
        self.0.fetch_add(1, Relaxed);
        next.run(ctx).await
    }
}

#[tokio::test]
async fn interceptors_and_the_policy_hold_wherever_a_connection_comes_from() {
    let folder = tempdir().unwrap();
    let path_of = |name| folder.path().join(name).to_str().expect("it is UTF-8").to_owned();
    let (bound, added) = (path_of("bound"), path_of("added"));
    let ((connections, incoming), (listener, tcp), (added_listener, added_tcp)) =
        (channel(), tcp(), tcp());
    let (is_open, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let policy = PeerPolicy::custom({
        let is_open = is_open.clone();
        move |_| is_open.load(Relaxed)
    });
    let builder =
        ConformanceService::builder().intercept(Counts(calls.clone())).allow_peers(policy);
    let builder = builder.bind(&bound).unwrap().listener(incoming).listener(listener);
    let (handle, serving) = start(builder);
    handle.bind(&added).unwrap();
    handle.listen(added_listener).unwrap();

    let addresses = [&bound, &added, &tcp, &added_tcp];
    let mut expected = 0;
    for address in addresses {
        let client = ConformanceClient::new(Client::connect(address).await.unwrap());
        client.echo(echo_request([])).await.unwrap();
        expected += 1;
        assert_eq!(calls.load(Relaxed), expected, "{address}");
    }
    let (client, connection) = pair();
    connections.send(Ok(connection)).unwrap();
    client.echo(echo_request([])).await.unwrap();
    let (client, connection) = pair();
    handle.serve_connection(connection).await.unwrap();
    client.echo(echo_request([])).await.unwrap();
    assert_eq!(calls.load(Relaxed), expected + 2);

    is_open.store(false, Relaxed);
    for address in addresses {
        Client::connect(address).await.unwrap().closed().await;
    }
    let (client, connection) = pair();
    connections.send(Ok(connection)).unwrap();
    client.client().closed().await;
    let (client, connection) = pair();
    let error = handle.serve_connection(connection).await.unwrap_err();
    let policy = "the policy does not allow the peer";
    assert!(matches!(&error, Error::PeerRefused { reason, .. } if reason == policy), "{error:?}");
    client.client().closed().await;
    assert_eq!(calls.load(Relaxed), expected + 2);
    serving.abort();
}
