//! A hook looks at each connection before its first frame, and holds up nobody else.

use std::{error::Error, future::pending, pin::Pin, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};
use ttrpc::{
    Connection, async_trait,
    server::{ConnectionHook, Peer, Routes},
};

use super::*;

const LIMIT: Duration = Duration::from_secs(1);

type Refusal = Box<dyn Error + Send + Sync>;

/// Reads a byte: `y` passes, `n` does not, `w` has it wait for ever, `p` panic.
struct ReadsByte;

#[async_trait]
impl ConnectionHook for ReadsByte {
    async fn connected(&self, connection: &mut Connection) -> Result<(), Refusal> {
        let byte = connection.read_u8().await?;
        connection.extensions().insert(byte);
        connection.write_all(b"!").await?;
        connection.flush().await?;
        match byte {
            b'y' => Ok(()),
            b'w' => pending().await,
            b'p' => panic!("as the test asks"),
            _ => Err("it said no".into()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_talks_refuses_and_is_given_up_at_its_limit() {
    let tasks = alive_tasks();
    let recorder = Recorder::default();
    let server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.observe(recorder.clone()).on_connection(ReadsByte, LIMIT).keep_open()
    });
    for (byte, reason) in [
        (b'n', "it said no"),
        (b'w', "the hook took longer than 1s"),
        (b'p', "the hook panicked"),
        (b' ', "it said no"),
    ] {
        let (mut here, there) = duplex(PIPE_LEN);
        here.write_all(&[byte]).await.unwrap();
        let served = server.handle.serve_connection(Connection::new(there)).await;
        let expected = format!("the server refuses an unknown peer: {reason}");
        assert_eq!(served.unwrap_err().to_string(), expected);
        recorder.told(|told| assert_eq!(told.refused.last().unwrap(), reason));
        let mut rest = Vec::new();
        here.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"!");
    }
    let (mut here, there) = duplex(PIPE_LEN);
    here.write_all(b"y").await.unwrap();
    server.handle.serve_connection(Connection::new(there)).await.unwrap();
    assert_eq!(here.read_u8().await.unwrap(), b'!');
    let client = ConformanceClient::new(Client::from_io(here, ClientConfig::default()));
    client.echo(echo_request(*b"hi")).await.unwrap();
    drop(client);
    server.handle.shutdown(LIMIT).await;
    recorder.told(|told| assert_eq!((told.opened, told.closed.len()), (1, 1)));
    drop(server);
    tasks_are_back_at(tasks).await;
}

/// Panics when it is asked for its future, or when that is dropped.
struct PanicsElsewhere {
    is_asked: bool,
}

struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("as the test asks");
    }
}

impl ConnectionHook for PanicsElsewhere {
    // As `async_trait` writes it.
    fn connected<'hook, 'connection, 'future>(
        &'hook self,
        _: &'connection mut Connection,
    ) -> Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'future>>
    where
        'hook: 'future,
        'connection: 'future,
        Self: 'future,
    {
        assert!(!self.is_asked, "as the test asks");
        Box::pin(async {
            let _panics = PanicsInDrop;
            pending().await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_when_it_is_asked_or_dropped_refuses_the_connection() {
    for (is_asked, reason) in [(true, "the hook panicked"), (false, "the hook took longer than 1s")]
    {
        let recorder = Recorder::default();
        let server = TestServer::start_with(ServerConfig::default(), |builder| {
            let hook = PanicsElsewhere { is_asked };
            builder.observe(recorder.clone()).on_connection(hook, LIMIT).keep_open()
        });
        let (_here, there) = duplex(PIPE_LEN);
        let handle = server.handle.clone();
        let serve = async move { handle.serve_connection(Connection::new(there)).await };
        let served = tokio::spawn(serve).await.expect("a panic of the hook is not its caller's");
        assert!(matches!(served, Err(ttrpc::Error::PeerRefused { .. })), "{served:?}");
        recorder.told(|told| assert_eq!(told.refused, [reason]));
        server.handle.shutdown(LIMIT).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_gives_up_a_hook_that_waits() {
    let (here, there) = duplex(PIPE_LEN);
    let server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.on_connection(ReadsByte, Duration::from_secs(3600)).io(there)
    });
    settle().await;
    let start = Instant::now();
    server.handle.shutdown(LIMIT).await;
    server.ended().await;
    assert_eq!(start.elapsed(), Duration::ZERO, "nothing was served that could be answered");
    drop(here);
}

#[tokio::test(start_paused = true)]
async fn connections_at_which_the_hook_looks_are_counted_in_snapshots() {
    let (here, there) = duplex(PIPE_LEN);
    let server = TestServer::start_with(ServerConfig::default().max_connections(4), |builder| {
        builder.on_connection(ReadsByte, Duration::from_secs(3600)).io(there)
    });
    settle().await;
    let snapshot = server.handle.snapshot();
    assert_eq!((snapshot.connections.len(), snapshot.hooked_connections), (0, 1));
    assert!(snapshot.to_string().contains("1/4 connections, 1 at the hook"), "{snapshot}");
    drop(here);
    let handle = server.handle.clone();
    server.ended().await;
    assert_eq!(handle.snapshot().hooked_connections, 0);
}

/// Reads a byte, which is the peer's name.
struct NamesThePeer;

#[async_trait]
impl ConnectionHook for NamesThePeer {
    async fn connected(&self, connection: &mut Connection) -> Result<(), Refusal> {
        let name = char::from(connection.read_u8().await?).to_string();
        connection.set_peer(connection.peer().clone().with_name(&name));
        if name == "x" { Err("x may not".into()) } else { Ok(()) }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_hook_says_of_the_peer_is_seen_by_handlers_and_stands_in_snapshots_and_errors() {
    let routes = Routes::new("test.Peers")
        .unary("Peer", &Arc::new(()), |_, ctx, ()| Box::pin(async { Ok(ctx.peer().to_string()) }));
    let server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.on_connection(NamesThePeer, LIMIT).add_service(Handmade(routes)).keep_open()
    });
    let (mut here, there) = duplex(PIPE_LEN);
    here.write_all(b"x").await.unwrap();
    let there = Connection::new(there).with_peer(Peer::vsock(3, 7));
    let refused = server.handle.serve_connection(there).await.unwrap_err();
    assert!(refused.to_string().contains("x (cid 3, port 7)"), "{refused}");

    let (mut here, there) = duplex(PIPE_LEN);
    here.write_all(b"a").await.unwrap();
    let there = Connection::new(there).with_peer(Peer::vsock(3, 7));
    server.handle.serve_connection(there).await.unwrap();
    let snapshot = server.handle.snapshot().to_string();
    assert!(snapshot.contains("a (cid 3, port 7)"), "{snapshot}");
    let client = Client::from_io(here, ClientConfig::default());
    let seen: String = client.unary("test.Peers", "Peer", ()).await.unwrap();
    assert_eq!(seen, "a (cid 3, port 7)");
}
