//! TLS under ttrpc, by rustls: calls and streams work in records as they do in a socket, what waits
//! pushes back through them, and each side says goodbye with `close_notify`, by which the other one knows
//! that nothing was cut off.

use std::{io, sync::Arc};

use rcgen::generate_simple_self_signed;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy_bidirectional, duplex},
    join,
    net::{TcpListener, TcpStream},
    try_join,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector, client, rustls,
    rustls::pki_types::{PrivateKeyDer, ServerName},
    server,
};
use ttrpc::{
    Client, ClientConfig, Code, Connection, ConnectionError, Server, async_trait,
    server::{ConnectionHook, Peer},
};
use ttrpc_tests::{
    conformance::*,
    harness::{
        PATIENCE, PIPE_LEN, TestServer, alive_tasks, call, echo_request, eventually, key,
        patient_client, patient_server, tasks_are_back_at,
    },
    service::ConformanceService,
    wire,
};

const NAME: &str = "localhost";

/// Both sides of TLS, with a certificate that was made for this test.
fn credentials() -> (TlsConnector, TlsAcceptor) {
    let made = generate_simple_self_signed([NAME.to_owned()]).expect("a certificate can be made");
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let server = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("the key is the certificate's");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).expect("the certificate can be trusted");
    let client = rustls::ClientConfig::builder().with_root_certificates(roots);
    (Arc::new(client.with_no_client_auth()).into(), Arc::new(server).into())
}

fn name() -> ServerName<'static> {
    NAME.try_into().expect("the name is one")
}

/// Both ends of TLS over a pipe of this many bytes, behind their handshake.
async fn tls(
    pipe_len: usize,
) -> (client::TlsStream<DuplexStream>, server::TlsStream<DuplexStream>) {
    let (connector, acceptor) = credentials();
    let (here, there) = duplex(pipe_len);
    try_join!(connector.connect(name(), here), acceptor.accept(there)).expect("both sides agree")
}

/// A client and a server with TLS between them that refuse nobody for being slow.
async fn connected(pipe_len: usize) -> (TestServer, Client, ConformanceClient) {
    let (here, there) = tls(pipe_len).await;
    let server = TestServer::start(patient_server(), [there]);
    let client = Client::from_io(here, patient_client());
    (server, client.clone(), ConformanceClient::new(client))
}

/// Nothing but a `close_notify` makes this an end: without one, rustls returns an error.
async fn expect_goodbye(mut io: impl AsyncReadExt + Unpin) {
    let mut rest = Vec::new();
    io.read_to_end(&mut rest).await.expect("close_notify arrives");
    assert_eq!(rest, b"");
}

/// As a program does it: it accepts TCP, makes TLS of it, and hands its server a connection that says who
/// its peer is.
#[tokio::test]
async fn a_program_that_accepts_tls_hands_its_server_connections() {
    let (connector, acceptor) = credentials();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder()
        .add_service(ConformanceServer::new(ConformanceService::default()))
        .keep_open()
        .build()
        .unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let hand_over = async {
        let (stream, from) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await.unwrap();
        let asked_for = stream.get_ref().1.server_name().unwrap_or_default();
        let peer = Peer::unknown().with_name(format!("{from} for {asked_for}"));
        handle.serve_connection(Connection::new(stream).with_peer(peer)).await.unwrap();
    };
    let connect = async {
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect(name(), stream).await.unwrap()
    };
    let ((), stream) = join!(hand_over, connect);
    let local = stream.get_ref().0.local_addr().unwrap();
    let client = Client::from_io(stream, ClientConfig::default());
    let conformance = ConformanceClient::new(client.clone());
    let reply = conformance.echo(echo_request(*b"hello")).await.unwrap();
    assert_eq!(reply.payload, b"hello");
    let snapshot = handle.snapshot().to_string();
    assert!(snapshot.contains(&format!("{local} for {NAME}")), "{snapshot}");

    handle.shutdown(PATIENCE).await;
    serving.await.unwrap().unwrap();
    let reason = client.closed().await;
    assert!(matches!(reason, ConnectionError::ClosedByServer), "{reason}");
}

/// Makes TLS of each connection.
struct MakesTls(TlsAcceptor);

#[async_trait]
impl ConnectionHook for MakesTls {
    async fn connected(
        &self,
        connection: &mut Connection,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        connection.extensions().insert("before");
        connection.wrap(|stream| self.0.accept(stream)).await?;
        assert_eq!(connection.extensions().get().as_deref(), Some(&"before"));
        Ok(())
    }
}

/// What the connection had beside its stream stays. A client without TLS is refused, with what TLS says.
#[tokio::test]
async fn a_hook_makes_tls_of_a_servers_connections() {
    let (connector, acceptor) = credentials();
    let server = Server::builder()
        .add_service(ConformanceServer::new(ConformanceService::default()))
        .on_connection(MakesTls(acceptor), PATIENCE)
        .keep_open()
        .build()
        .unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let serve = |io| {
        let peer = Peer::unknown().with_name("the client");
        handle.serve_connection(Connection::new(io).with_peer(peer))
    };
    let (here, there) = duplex(PIPE_LEN);
    let (served, stream) = join!(serve(there), connector.connect(name(), here));
    served.unwrap();
    let snapshot = handle.snapshot().to_string();
    assert!(snapshot.contains("the client"), "{snapshot}");
    let client = Client::from_io(stream.unwrap(), ClientConfig::default());
    let conformance = ConformanceClient::new(client.clone());
    assert_eq!(conformance.echo(echo_request(*b"hello")).await.unwrap().payload, b"hello");

    let (mut here, there) = duplex(PIPE_LEN);
    here.write_all(b"\0\0\0\x01\0\0\0\x01\x01\0?").await.unwrap();
    let refused = serve(there).await.unwrap_err();
    assert!(matches!(refused, ttrpc::Error::PeerRefused { .. }), "{refused}");
    assert!(refused.to_string().contains("the client"), "{refused}");

    handle.shutdown(PATIENCE).await;
    serving.await.unwrap().unwrap();
    // The server has said goodbye through the records.
    let reason = client.closed().await;
    assert!(matches!(reason, ConnectionError::ClosedByServer), "{reason}");
}

/// Nobody takes a message until the pipe between the records is full; then everything is there.
#[tokio::test]
async fn streams_push_back_through_tls_in_both_directions() {
    const CHUNKS: u64 = 500;
    const SIZE: usize = 32 << 10;
    let (server, client, conformance) = connected(PIPE_LEN).await;

    let generate = GenerateRequest { count: CHUNKS, size: SIZE as u32, ..Default::default() };
    let mut chunks = conformance.generate(generate).await.unwrap();
    let is_full = || {
        let snapshot = server.handle.snapshot();
        snapshot.connections.iter().any(|connection| connection.queue.blocked.is_some())
    };
    eventually("the server's side is full", is_full).await;
    for sequence in 0..CHUNKS {
        let chunk = chunks.recv().await.unwrap().expect("the stream goes on");
        assert_eq!((chunk.sequence, chunk.payload.len()), (sequence, SIZE));
    }
    assert_eq!(chunks.recv().await.unwrap(), None);

    // The handler takes nothing until its key is released. The stream's end reaches it, and its reply
    // the client, who has closed its half by then.
    let (mut sender, reply) = conformance.hold().await.unwrap();
    let sending = tokio::spawn(async move {
        for sequence in 0..CHUNKS {
            let payload = vec![sequence as u8; SIZE];
            sender.send(Chunk { sequence, payload }).await.unwrap();
        }
        sender.finish();
    });
    let is_full = || client.snapshot().queue.blocked.is_some();
    eventually("the client's side is full", is_full).await;
    server.service.release("hold");
    sending.await.unwrap();
    let reply = reply.await.unwrap();
    assert_eq!((reply.chunks, reply.in_order), (CHUNKS, true));
}

/// Each half of a stream ends by itself, and the other one goes on.
#[tokio::test]
async fn halves_of_a_stream_end_by_themselves_through_tls() {
    let (_server, _client, conformance) = connected(PIPE_LEN).await;
    let (mut sender, mut receiver) = conformance.exchange().await.unwrap();
    for sequence in 0..100 {
        let payload = vec![7; 10_000];
        sender.send(Chunk { sequence, payload }).await.unwrap();
    }
    sender.finish();
    for sequence in 0..100 {
        assert_eq!(receiver.recv().await.unwrap().expect("all come back").sequence, sequence);
    }
    assert_eq!(receiver.recv().await.unwrap(), None);
}

#[tokio::test]
async fn clients_say_goodbye_when_they_are_dropped_or_closed() {
    let tasks = alive_tasks();
    let (here, there) = tls(PIPE_LEN).await;
    drop(Client::from_io(here, ClientConfig::default()));
    expect_goodbye(there).await;

    let (here, there) = tls(PIPE_LEN).await;
    let client = Client::from_io(here, ClientConfig::default());
    client.close();
    expect_goodbye(there).await;
    drop(client);
    tasks_are_back_at(tasks).await;
}

#[tokio::test]
async fn a_server_says_goodbye_behind_its_last_reply() {
    let (here, there) = tls(PIPE_LEN).await;
    let server = TestServer::start(patient_server(), [there]);
    let mut peer = wire::Peer::new(here);
    peer.send(call(1, "Wait", &key("a"))).await;
    server.has_begun(1).await;
    server.handle.begin_shutdown(PATIENCE);
    server.service.release("a");
    assert_eq!(peer.receive().await.code(), 0);
    expect_goodbye(peer.io()).await;
    server.ended().await;
}

/// The peer's `close_notify` is the end of what it sends, and is answered with one.
#[tokio::test]
async fn a_goodbye_is_answered_with_one() {
    let (mut here, there) = tls(PIPE_LEN).await;
    let server = TestServer::start(patient_server(), [there]);
    here.shutdown().await.unwrap();
    expect_goodbye(here).await;
    server.ended().await;

    let (here, mut there) = tls(PIPE_LEN).await;
    let client = Client::from_io(here, ClientConfig::default());
    there.shutdown().await.unwrap();
    let reason = client.closed().await;
    assert!(matches!(reason, ConnectionError::ClosedByServer), "{reason}");
    expect_goodbye(there).await;
}

/// What ends without `close_notify` may have been cut off by anybody. A call that is pending fails, and
/// the end is not taken for a good one.
#[tokio::test]
async fn a_connection_that_is_cut_off_is_no_good_end() {
    let (connector, acceptor) = credentials();
    let ((here, mut near), (mut far, there)) = (duplex(PIPE_LEN), duplex(PIPE_LEN));
    let wire = tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
    let (here, there) = try_join!(connector.connect(name(), here), acceptor.accept(there)).unwrap();
    let server = TestServer::start(patient_server(), [there]);
    let client = Client::from_io(here, patient_client());
    let wait = ConformanceClient::new(client.clone()).wait(key("never"));
    let wait = tokio::spawn(wait.into_future());
    server.has_begun(1).await;
    wire.abort();
    let status = wait.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let reason = client.closed().await;
    let is_cut_off = matches!(&reason, ConnectionError::Read(error)
        if error.kind() == io::ErrorKind::UnexpectedEof);
    assert!(is_cut_off, "{reason}");
    server.ended().await;
}
