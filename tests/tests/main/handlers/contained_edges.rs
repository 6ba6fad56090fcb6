//! Code of the program's that panics where no call runs: in what a server is made of when that is dropped with it, in a
//! stream of connections, and in a connection's stream of bytes. Its own connection may be lost; the server and its other
//! connections notice nothing.

use std::{
    error::Error,
    future::pending,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    task::{Context as TaskContext, Poll},
};

use futures_core::Stream;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf, duplex},
    time::timeout,
};
use ttrpc::{
    Client, ClientConfig, Code, Connection, Context, RawEnd, Server, ServerConfig, Status,
    async_trait,
    server::{
        ConnectionHook, Fallback, FallbackCall, Interceptor, Listener, Next, PeerPolicy, Routes,
        ServerHandle,
    },
};
use ttrpc_tests::harness::{Handmade, PATIENCE, PIPE_LEN, eventually, settle};

use super::contained::{Undroppable, blow};

const NAME: &str = "panics.v1.Edges";

fn routes(name: &'static str) -> Routes {
    Routes::new(name).unary("Fine", &Arc::new(()), |_, _, ()| Box::pin(async { Ok(()) })).unary(
        "Never",
        &Arc::new(()),
        |_, _, ()| Box::pin(pending::<Result<(), Status>>()),
    )
}

/// Whatever a server is given, with something that panics when it is dropped.
struct Given<const BOMB: bool> {
    _undroppable: Undroppable<BOMB>,
    _alive: Arc<()>,
}

impl<const BOMB: bool> Given<BOMB> {
    fn new(alive: &Arc<()>) -> Self {
        Given { _undroppable: Undroppable, _alive: alive.clone() }
    }
}

#[async_trait]
impl<const BOMB: bool> Interceptor for Given<BOMB> {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        next.run(ctx).await
    }
}

#[async_trait]
impl<const BOMB: bool> Fallback for Given<BOMB> {
    async fn call(&self, _: &Context, _: FallbackCall) -> Result<RawEnd, Status> {
        Err(Status::unimplemented("anything"))
    }
}

#[async_trait]
impl<const BOMB: bool> ConnectionHook for Given<BOMB> {
    async fn connected(&self, _: &mut Connection) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

async fn is_fine(client: &Client) -> bool {
    let call = client.unary::<(), ()>(NAME, "Fine", ()).into_future();
    timeout(PATIENCE, call).await.expect("there is an answer") == Ok(())
}

async fn connect(server: &ServerHandle) -> Client {
    let (here, there) = duplex(PIPE_LEN);
    server.serve_connection(Connection::new(there)).await.unwrap();
    Client::from_io(here, ClientConfig::default())
}

async fn a_server_with_what_panics_when_it_is_dropped<const BOMB: bool>() {
    let alive = Arc::new(());
    let given = || Given::<BOMB>::new(&alive);
    let held = given();
    let policy = PeerPolicy::custom(move |_| {
        let _held = &held;
        true
    });
    let service = |name| {
        let routes = Routes::new(name)
            .unary("Fine", &Arc::new(given()), |_, _, ()| Box::pin(async { Ok(()) }));
        Handmade(routes.intercept(given()).intercept(given()))
    };
    let server = Server::builder()
        .add_service(service(NAME))
        .add_service(service("panics.v1.Another"))
        .intercept(given())
        .intercept(given())
        .fallback(given())
        .allow_peers(policy)
        .on_connection(given(), PATIENCE)
        .listener(Listener::incoming(Connections::<BOMB> { next: None, _given: given() }))
        .keep_open()
        .build()
        .unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let client = connect(&handle).await;
    assert!(is_fine(&client).await);
    handle.close().await;
    serving.await.expect("serving does not panic").unwrap();
    eventually("all is dropped", || Arc::strong_count(&alive) == 1).await;
}

/// A stream of connections that has this one and panics when it is polled behind that.
struct Connections<const BOMB: bool> {
    next: Option<DuplexStream>,
    _given: Given<BOMB>,
}

impl<const BOMB: bool> Stream for Connections<BOMB> {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(Ok(Connection::new(next))));
        }
        blow::<BOMB>();
        Poll::Pending
    }
}

async fn a_stream_of_connections<const BOMB: bool>() {
    let alive = Arc::new(());
    let (here, there) = duplex(PIPE_LEN);
    let connections = Connections::<BOMB> { next: Some(there), _given: Given::new(&alive) };
    let server = Server::builder()
        .add_service(Handmade(routes(NAME)))
        .listener(Listener::incoming(connections))
        .keep_open()
        .build()
        .unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());
    assert!(is_fine(&client).await);
    eventually("the stream is dropped", || Arc::strong_count(&alive) == 1).await;
    assert!(is_fine(&client).await && is_fine(&connect(&handle).await).await);
    handle.close().await;
    serving.await.expect("serving does not panic").unwrap();
}

const NOWHERE: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
const SHUTDOWN: u8 = 3;

/// A stream of bytes that panics here, and when it is dropped.
struct Bytes<const BOMB: bool> {
    stream: DuplexStream,
    place: Arc<AtomicU8>,
    _held: Undroppable<BOMB>,
}

impl<const BOMB: bool> Bytes<BOMB> {
    fn stream(&mut self, place: u8) -> Pin<&mut DuplexStream> {
        if self.place.load(SeqCst) == place {
            blow::<BOMB>();
        }
        Pin::new(&mut self.stream)
    }
}

impl<const BOMB: bool> AsyncRead for Bytes<BOMB> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream(READ).poll_read(cx, buf)
    }
}

impl<const BOMB: bool> AsyncWrite for Bytes<BOMB> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream(WRITE).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        self.stream(WRITE).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        self.stream(SHUTDOWN).poll_shutdown(cx)
    }
}

/// Calls on it have no deadline: they end when their connection does.
async fn a_stream_of_bytes<const BOMB: bool>(place: u8, is_servers: bool) {
    let server = Server::builder().add_service(Handmade(routes(NAME))).keep_open().build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let other = connect(&handle).await;
    let (here, there) = duplex(PIPE_LEN);
    let panics_at = Arc::<AtomicU8>::default();
    let panics = |stream| Bytes::<BOMB> { stream, place: panics_at.clone(), _held: Undroppable };
    let client = if is_servers {
        handle.serve_connection(Connection::new(panics(there))).await.unwrap();
        Client::from_io(here, ClientConfig::default())
    } else {
        handle.serve_connection(Connection::new(there)).await.unwrap();
        Client::from_io(panics(here), ClientConfig::default())
    };
    let pending = tokio::spawn(client.unary::<(), ()>(NAME, "Never", ()).into_future());
    assert!(is_fine(&client).await);
    panics_at.store(place, SeqCst);
    if matches!(place, NOWHERE | SHUTDOWN) {
        assert!(is_fine(&client).await);
        client.close();
    } else {
        // What it says to the other side, or hears of it, is its last.
        let last = client.unary::<(), ()>(NAME, "Fine", ()).into_future();
        let _ = timeout(PATIENCE, last).await.expect("it ends with its connection");
        if place == READ {
            let next = client.unary::<(), ()>(NAME, "Fine", ()).into_future();
            let _ = timeout(PATIENCE, next).await.expect("it ends with its connection");
        }
    }
    let status = timeout(PATIENCE, pending).await.expect("it ends with its connection");
    assert_eq!(status.unwrap().unwrap_err().code(), Code::Unavailable, "{place}");
    eventually("the connection has ended", || handle.connections() == 1).await;
    assert!(is_fine(&other).await);
    handle.close().await;
    serving.await.expect("serving does not panic").unwrap();
}

/// Nobody has served it.
async fn a_refused_stream_of_bytes<const BOMB: bool>() {
    let server = Server::builder()
        .add_service(Handmade(routes(NAME)))
        .allow_peers(PeerPolicy::user(u32::MAX))
        .keep_open()
        .build()
        .unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    for place in [NOWHERE, SHUTDOWN] {
        let (_here, stream) = duplex(PIPE_LEN);
        let panics = Bytes::<BOMB> { stream, place: Arc::new(place.into()), _held: Undroppable };
        let refused = handle.serve_connection(Connection::new(panics)).await;
        assert!(matches!(refused, Err(ttrpc::Error::PeerRefused { .. })), "{refused:?}");
    }
    handle.close().await;
    serving.await.expect("serving does not panic").unwrap();
}

/// A server for one connection, which has one; another one waits for a permit, which it was given before it began to serve
/// or which it has taken from a stream of connections.
async fn a_stream_of_bytes_that_waits<const BOMB: bool>(is_taken: bool, place: u8) {
    let ((first, there), (mut waits, stream)) = (duplex(PIPE_LEN), duplex(PIPE_LEN));
    let waiting = Bytes::<BOMB> { stream, place: Arc::new(place.into()), _held: Undroppable };
    let waiting = Connection::new(waiting);
    let server = Server::builder()
        .add_service(Handmade(routes(NAME)))
        .config(ServerConfig::default().max_connections(1))
        .connection(Connection::new(there));
    let server = match is_taken {
        true => server.listener(Listener::incoming(One(Some(waiting)))),
        false => server.connection(waiting),
    };
    let server = server.build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let client = Client::from_io(first, ClientConfig::default());
    assert!(is_fine(&client).await);
    settle().await;
    handle.close().await;
    serving.await.expect("serving does not panic").unwrap();
    assert_eq!(waits.read(&mut [0]).await.unwrap(), 0, "it is closed");
}

/// One connection, and no other.
struct One(Option<Connection>);

impl Stream for One {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.0.take().map_or(Poll::Pending, |connection| Poll::Ready(Some(Ok(connection))))
    }
}

/// Its destructor was run by the future that serves, which panicked with it.
#[tokio::test]
async fn a_stream_of_bytes_that_panics_while_it_waits_for_a_permit_does_not_end_the_server() {
    for is_taken in [false, true] {
        for place in [NOWHERE, SHUTDOWN] {
            a_stream_of_bytes_that_waits::<false>(is_taken, place).await;
            a_stream_of_bytes_that_waits::<true>(is_taken, place).await;
        }
    }
}

#[tokio::test]
async fn a_server_ends_well_though_all_that_it_is_made_of_panics_when_it_is_dropped() {
    a_server_with_what_panics_when_it_is_dropped::<false>().await;
    a_server_with_what_panics_when_it_is_dropped::<true>().await;
}

#[tokio::test]
async fn a_stream_of_connections_that_panics_is_done_and_its_server_goes_on() {
    a_stream_of_connections::<false>().await;
    a_stream_of_connections::<true>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_bytes_that_panics_ends_its_own_connection_alone_and_all_calls_on_it() {
    for place in [NOWHERE, READ, WRITE, SHUTDOWN] {
        for is_servers in [false, true] {
            a_stream_of_bytes::<false>(place, is_servers).await;
            a_stream_of_bytes::<true>(place, is_servers).await;
        }
    }
}

#[tokio::test]
async fn a_refused_stream_of_bytes_that_panics_harms_nobody() {
    a_refused_stream_of_bytes::<false>().await;
    a_refused_stream_of_bytes::<true>().await;
}
