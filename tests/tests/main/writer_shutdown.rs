//! A stream that wraps another one, as TLS does, says goodbye at its shutdown: the connection's end
//! shuts the writer down, in whatever way it ends, and waits for it no longer than is reasonable.

use std::{
    error::Error,
    future::pending,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{
        AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, Join, ReadHalf,
        WriteHalf, duplex, join, split,
    },
    task::JoinHandle,
    time::{Instant, timeout},
};
use ttrpc::{
    Client, ClientConfig, Connection, ConnectionError, Server, ServerConfig, async_trait,
    server::{ConnectionHook, PeerPolicy, ServerHandle},
};
use ttrpc_tests::{
    conformance::*,
    harness::{
        PATIENCE, PIPE_LEN, alive_tasks, call, echo_request, eventually, key, tasks_are_back_at,
    },
    service::ConformanceService,
    wire::Peer,
};

/// What the wrapper writes at its shutdown.
const GOODBYE: &[u8] = b"goodbye";

/// Passes everything on, and writes [`GOODBYE`] when it is shut down.
struct Polite {
    inner: WriteHalf<DuplexStream>,
    said: usize,
}

fn polite(inner: DuplexStream) -> Join<ReadHalf<DuplexStream>, Polite> {
    let (reader, inner) = split(inner);
    join(reader, Polite { inner, said: 0 })
}

impl AsyncWrite for Polite {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.said < GOODBYE.len() {
            let rest = &GOODBYE[self.said..];
            self.said += ready!(Pin::new(&mut self.inner).poll_write(cx, rest))?;
        }
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Everything that comes until the end.
async fn rest(mut io: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = io.read_to_end(&mut bytes);
    timeout(PATIENCE, reading).await.expect("an end comes").expect("reading works");
    bytes
}

/// A server over a wrapped stream, its handle, and the other side of the stream.
fn served(pipe_len: usize) -> (JoinHandle<Result<(), ttrpc::Error>>, ServerHandle, DuplexStream) {
    let (here, there) = duplex(pipe_len);
    let service = ConformanceServer::new(ConformanceService::default());
    let server = Server::builder().add_service(service).io(polite(there)).build().unwrap();
    let handle = server.handle();
    (tokio::spawn(server.serve()), handle, here)
}

fn calling(pipe_len: usize) -> (Client, DuplexStream) {
    let (here, there) = duplex(pipe_len);
    (Client::from_io(polite(here), ClientConfig::default()), there)
}

#[tokio::test]
async fn a_client_that_is_dropped_shuts_its_writer_down() {
    let tasks = alive_tasks();
    let (client, there) = calling(PIPE_LEN);
    drop(client);
    assert_eq!(rest(there).await, GOODBYE);
    tasks_are_back_at(tasks).await;
}

#[tokio::test]
async fn a_client_that_is_closed_shuts_its_writer_down() {
    let (client, there) = calling(PIPE_LEN);
    client.close();
    assert_eq!(rest(there).await, GOODBYE);
    assert!(matches!(client.closed().await, ConnectionError::ClosedLocally));
}

/// A program that ends behind the shutdown ends the runtime of the client's tasks.
#[test]
fn a_clients_shutdown_is_done_when_its_writer_is_shut_down() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = runtime();
    let there = tasks.block_on(async {
        let (client, there) = calling(PIPE_LEN);
        client.shutdown().await;
        there
    });
    drop(tasks);
    assert_eq!(runtime().block_on(rest(there)), GOODBYE);
}

/// What a shutdown waits for ends with the runtime, too.
#[test]
fn a_shutdown_ends_with_the_runtime_of_the_clients_tasks() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = runtime();
    let (client, _there) = tasks.block_on(async { calling(PIPE_LEN) });
    drop(tasks);
    runtime().block_on(async { timeout(PATIENCE, client.shutdown()).await }).unwrap();
}

#[tokio::test]
async fn a_client_whose_server_goes_away_shuts_its_writer_down() {
    let (client, there) = calling(PIPE_LEN);
    let (reader, mut writer) = tokio::io::split(there);
    writer.shutdown().await.unwrap();
    assert!(matches!(client.closed().await, ConnectionError::ClosedByServer));
    assert_eq!(rest(reader).await, GOODBYE);
}

#[tokio::test]
async fn a_server_that_closes_shuts_its_writers_down_before_it_has_ended() {
    let (serving, handle, here) = served(PIPE_LEN);
    eventually("the connection is served", || handle.connections() == 1).await;
    handle.close().await;
    serving.await.unwrap().unwrap();
    // Nothing is waited for any more: the bytes are there.
    assert_eq!(rest(here).await, GOODBYE);
}

#[tokio::test]
async fn a_server_that_drains_says_goodbye_behind_its_last_reply() {
    let (here, there) = duplex(PIPE_LEN);
    let service = Arc::new(ConformanceService::default());
    let routes = ConformanceServer::from_arc(service.clone());
    let server = Server::builder().add_service(routes).io(polite(there)).build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let mut peer = Peer::new(here);
    peer.send(call(1, "Wait", &key("a"))).await;
    eventually("the call arrives", || service.calls_total() == 1).await;
    handle.begin_shutdown(PATIENCE);
    service.release("a");
    serving.await.unwrap().unwrap();
    assert_eq!(peer.receive().await.code(), 0);
    let mut goodbye = [0; GOODBYE.len()];
    peer.io().read_exact(&mut goodbye).await.unwrap();
    assert_eq!(goodbye, GOODBYE);
}

#[tokio::test]
async fn a_server_whose_client_goes_away_shuts_its_writer_down() {
    let (serving, _handle, here) = served(PIPE_LEN);
    let (reader, mut writer) = tokio::io::split(here);
    writer.shutdown().await.unwrap();
    assert_eq!(rest(reader).await, GOODBYE);
    serving.await.unwrap().unwrap();
}

/// Refuses every connection, or keeps it.
struct Doorkeeper {
    keeps: bool,
}

#[async_trait]
impl ConnectionHook for Doorkeeper {
    async fn connected(&self, _: &mut Connection) -> Result<(), Box<dyn Error + Send + Sync>> {
        if self.keeps {
            pending::<()>().await;
        }
        Err("nobody comes in".into())
    }
}

/// Connections that are not served: refused by policy or hook, with a hook that takes too long, and one for which
/// there is no place until the server ends, or until whoever hands it over no longer waits.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_not_served_has_its_writer_shut_down() {
    let hook =
        |keeps| Server::builder().on_connection(Doorkeeper { keeps }, Duration::from_secs(1));
    let refusing =
        [Server::builder().allow_peers(PeerPolicy::custom(|_| false)), hook(false), hook(true)];
    for builder in refusing {
        let (here, there) = duplex(PIPE_LEN);
        let server = builder.io(polite(there)).build().unwrap();
        let (handed_over, handed) = duplex(PIPE_LEN);
        let handle = server.handle();
        let serving = tokio::spawn(server.serve());
        let refused = handle.serve_connection(Connection::new(polite(handed))).await;
        assert!(
            matches!(refused, Err(ttrpc::Error::PeerRefused { .. } | ttrpc::Error::ServerEnded)),
            "{refused:?}"
        );
        assert_eq!(rest(here).await, GOODBYE);
        assert_eq!(rest(handed_over).await, GOODBYE);
        serving.await.unwrap().unwrap();
    }

    let config = ServerConfig::default().max_connections(1);
    let (first, there) = duplex(PIPE_LEN);
    let server = Server::builder().config(config).io(there).build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let hand_over = || {
        let (here, there) = duplex(PIPE_LEN);
        let handle = handle.clone();
        let connection = Connection::new(polite(there));
        let serving = async move { handle.serve_connection(connection).await };
        (here, tokio::spawn(timeout(Duration::from_secs(1), serving)))
    };
    eventually("the first has its place", || handle.connections() == 1).await;
    let (here, waiting) = hand_over();
    assert!(waiting.await.unwrap().is_err(), "there is no place");
    assert_eq!(rest(here).await, GOODBYE);
    let (here, waiting) = hand_over();
    handle.close().await;
    assert!(matches!(waiting.await.unwrap(), Ok(Err(ttrpc::Error::ServerEnded))));
    assert_eq!(rest(here).await, GOODBYE);
    let (here, ended) = hand_over();
    assert!(matches!(ended.await.unwrap(), Ok(Err(ttrpc::Error::ServerEnded))));
    assert_eq!(rest(here).await, GOODBYE);
    serving.await.unwrap().unwrap();
    drop(first);
}

/// There is no room for the goodbye, until somebody reads.
#[tokio::test(start_paused = true)]
async fn a_refused_connection_has_time_for_its_shutdown_and_no_more() {
    let tasks = alive_tasks();
    for reads in [true, false] {
        let (here, there) = duplex(1);
        let nobody = PeerPolicy::custom(|_| false);
        let server = Server::builder().allow_peers(nobody).io(polite(there)).build().unwrap();
        server.serve().await.unwrap();
        match reads {
            true => assert_eq!(rest(here).await, GOODBYE),
            false => tasks_are_back_at(tasks).await,
        }
    }
}

/// Passes everything on, and panics when it is shut down.
struct Panicking(WriteHalf<DuplexStream>);

impl AsyncWrite for Panicking {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        panic!("asked to")
    }
}

/// A stream of the program's own does not end the server, which turned it away.
#[tokio::test]
async fn a_refused_connection_whose_shutdown_panics_ends_alone() {
    let is_second = Arc::new(AtomicBool::new(false));
    let policy = PeerPolicy::custom(move |_| is_second.swap(true, SeqCst));
    let (first, there) = duplex(PIPE_LEN);
    let (second, other) = duplex(PIPE_LEN);
    let (reader, writer) = split(there);
    let server = Server::builder()
        .add_service(ConformanceServer::new(ConformanceService::default()))
        .allow_peers(policy)
        .connection(Connection::new(join(reader, Panicking(writer))))
        .io(other)
        .build()
        .unwrap();
    let serving = tokio::spawn(server.serve());
    assert_eq!(rest(first).await, b"");
    let client = ConformanceClient::new(Client::from_io(second, ClientConfig::default()));
    client.echo(echo_request(*b"hello")).await.unwrap();
    drop(client);
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn both_sides_of_a_wrapped_stream_work_and_end() {
    let tasks = alive_tasks();
    let (serving, _handle, here) = served(PIPE_LEN);
    let client = ConformanceClient::new(Client::from_io(here, ClientConfig::default()));
    let reply = client.echo(echo_request(*b"hello")).await.unwrap();
    assert_eq!(reply.payload, b"hello");
    drop(client);
    serving.await.unwrap().unwrap();
    tasks_are_back_at(tasks).await;
}

/// The pipe is full, so that there is no room for the goodbye, and nobody reads.
#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_holds_no_end_up() {
    let tasks = alive_tasks();
    let (client, there) = calling(1);
    let conformance = ConformanceClient::new(client.clone());
    let echo = tokio::spawn(conformance.echo(echo_request([0; 100])).into_future());
    eventually("the pipe is full", || client.snapshot().queue.blocked.is_some()).await;
    let start = Instant::now();
    client.close();
    echo.await.unwrap().unwrap_err();
    drop((client, conformance));
    tasks_are_back_at(tasks).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    drop(there);

    let (serving, handle, here) = served(1);
    let mut writer = Peer::new(here);
    writer.send(call(1, "Echo", &echo_request([0; 100]))).await;
    let is_blocked =
        || handle.snapshot().connections.iter().any(|peer| peer.queue.blocked.is_some());
    eventually("the pipe is full", is_blocked).await;
    let start = Instant::now();
    handle.close().await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    serving.await.unwrap().unwrap();
}
