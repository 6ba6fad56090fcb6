//! Set-up that the tests share: servers and clients with one side played, and waiting for what
//! must happen.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex},
    runtime::Handle,
    task::JoinHandle,
    time::{sleep, timeout},
};
use ttrpc::{
    Client, ClientConfig, Context, Error, Server, ServerConfig, Status, async_trait,
    client::{self, Answer, OutgoingCall},
    prost,
    server::{self, Routes, ServerBuilder, ServerHandle, Service},
};

use crate::{
    conformance::*,
    service::ConformanceService,
    wire::{self, Frame, Peer, Watchdog},
};

/// The conformance service's full name.
pub const SERVICE: &str = ConformanceClient::NAME;

/// Bytes that a pipe carries each way before its writer waits.
pub const PIPE_LEN: usize = 64 << 10;

/// The most data that a frame may carry.
pub const MAX_DATA_LEN: usize = 4 << 20;

/// How long a test waits for what must happen. Reached only by a failing test, on whatever machine: with
/// the paused clock it passes at once.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Codes as they travel, written out so that a wrong number in the library does not hide itself.
pub mod code {
    #![allow(missing_docs, reason = "the names are gRPC's")]
    pub const CANCELLED: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const DEADLINE_EXCEEDED: i32 = 4;
    pub const NOT_FOUND: i32 = 5;
    pub const PERMISSION_DENIED: i32 = 7;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const UNIMPLEMENTED: i32 = 12;
    pub const INTERNAL: i32 = 13;
    pub const UNAVAILABLE: i32 = 14;
}

/// A pipe end that a test plays.
pub type Played = Peer<DuplexStream>;

/// A server of the conformance service that runs until this is dropped.
#[derive(Debug)]
pub struct TestServer {
    /// What it serves.
    pub service: Arc<ConformanceService>,
    /// Its handle.
    pub handle: ServerHandle,
    serving: JoinHandle<Result<(), Error>>,
    _watchdog: Watchdog,
}

impl TestServer {
    /// Serves these connections.
    pub fn start<Io>(config: ServerConfig, connections: impl IntoIterator<Item = Io>) -> Self
    where
        Io: AsyncRead + AsyncWrite + Send + 'static,
    {
        TestServer::start_with(config, |builder| {
            connections.into_iter().fold(builder, ServerBuilder::io)
        })
    }

    /// A server whose connections `connect` hands over.
    pub fn start_with(
        config: ServerConfig,
        connect: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let service = Arc::new(ConformanceService::default());
        let builder = Server::builder()
            .config(config)
            .add_service(ConformanceServer::from_arc(service.clone()));
        let builder = connect(builder);
        let server = builder.build().expect("there is something to serve");
        let handle = server.handle();
        service.observe(handle.clone());
        let serving = tokio::spawn(server.serve());
        TestServer { service, handle, serving, _watchdog: Watchdog::default() }
    }

    /// Waits until the server has ended by itself. Its only connection may have failed.
    pub async fn ended(mut self) {
        let ended = timeout(PATIENCE, &mut self.serving).await.expect("the server ends in time");
        match ended.expect("serving does not panic") {
            Ok(()) | Err(Error::ConnectionFailed { .. }) => {}
            Err(error) => panic!("serving fails: {error}"),
        }
    }

    /// Waits until nothing is left of any call.
    pub async fn is_idle(&self) {
        eventually("no call is in flight", || self.handle.calls_in_flight() == 0).await;
    }

    /// Waits until this many handlers have begun since the start.
    pub async fn has_begun(&self, calls: u64) {
        eventually("the handlers begin", || self.service.calls_total() >= calls).await;
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A server, and its client to be played.
pub fn played_client(config: ServerConfig) -> (TestServer, Played) {
    played_client_over(config, PIPE_LEN)
}

/// A server, and its client to be played over a pipe of this many bytes.
pub fn played_client_over(config: ServerConfig, pipe_len: usize) -> (TestServer, Played) {
    let (here, there) = duplex(pipe_len);
    (TestServer::start(config, [there]), Peer::new(here))
}

/// A client, and its server to be played.
pub fn played_server(config: ClientConfig) -> (Client, ConformanceClient, Played) {
    played_server_over(config, PIPE_LEN)
}

/// A client, and its server to be played over a pipe of this many bytes.
pub fn played_server_over(
    config: ClientConfig,
    pipe_len: usize,
) -> (Client, ConformanceClient, Played) {
    let (here, there) = duplex(pipe_len);
    let client = Client::from_io(here, config);
    (client.clone(), ConformanceClient::new(client), Peer::new(there))
}

/// A client and a server, with a pipe of this many bytes between them.
pub fn connected(
    client_config: ClientConfig,
    server_config: ServerConfig,
    pipe_len: usize,
) -> (TestServer, Client, ConformanceClient) {
    let (here, there) = duplex(pipe_len);
    let server = TestServer::start(server_config, [there]);
    let client = Client::from_io(here, client_config);
    (server, client.clone(), ConformanceClient::new(client))
}

/// A client and a server with their default limits.
pub fn connected_by_default() -> (TestServer, Client, ConformanceClient) {
    connected(ClientConfig::default(), ServerConfig::default(), PIPE_LEN)
}

/// Waits until something holds that must come to hold.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let polling = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(timeout(PATIENCE, polling).await.is_ok(), "in time, {what}");
}

/// Waits until the runtime has no more than this many tasks.
pub async fn tasks_are_back_at(count: usize) {
    let metrics = Handle::current().metrics();
    eventually("the tasks end", || metrics.num_alive_tasks() <= count).await;
}

/// Tasks that the runtime has now.
pub fn alive_tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Lets everything happen that can happen without anything from outside. With the paused clock
/// this takes no time.
pub async fn settle() {
    sleep(Duration::from_millis(5)).await;
}

/// Routes that a test has put together, as a service.
#[derive(Debug)]
pub struct Handmade(pub Routes);

impl Service for Handmade {
    fn into_routes(self) -> Routes {
        self.0
    }
}

/// A request for an echo.
pub fn echo_request(payload: impl Into<Vec<u8>>) -> EchoRequest {
    EchoRequest { payload: payload.into(), response_size: 0 }
}

/// A request for a key.
pub fn key(key: &str) -> KeyRequest {
    KeyRequest { key: key.to_owned() }
}

/// A chunk of a stream.
pub fn chunk(sequence: u64) -> Chunk {
    Chunk { sequence, payload: Vec::new() }
}

/// A unary Request for the conformance service.
pub fn call(id: u32, method: &str, request: &impl prost::Message) -> Frame {
    Frame::unary(id, SERVICE, method, request)
}

/// A Request that opens a stream of requests for the conformance service.
pub fn open_stream(id: u32, method: &str) -> Frame {
    Frame::request(id, wire::REMOTE_OPEN, SERVICE, method, &Empty {})
}

/// Checks that the connection is alive by an echo with this id.
pub async fn expect_echo(peer: &mut Played, id: u32) {
    peer.send(call(id, "Echo", &echo_request(*b"alive"))).await;
    let frame = peer.receive().await;
    assert_eq!((frame.id, frame.kind, frame.flags, frame.code()), (id, wire::RESPONSE, 0, 0));
    let reply: EchoResponse = payload_of(&frame);
    assert_eq!(reply.payload, b"alive");
}

/// Answers the next Request, which must be an echo, and gives back its id.
pub async fn answer_echo(peer: &mut Played) -> u32 {
    let frame = peer.receive().await;
    let request = EchoRequest::decode_from(&frame.as_request().payload);
    peer.send(Frame::reply(frame.id, &EchoResponse { payload: request.payload })).await;
    frame.id
}

/// Decoding that must succeed.
pub trait DecodeFrom: prost::Message + Default {
    /// The message in these bytes.
    fn decode_from(bytes: &[u8]) -> Self {
        Self::decode(bytes).expect("the message decodes")
    }
}

impl<M: prost::Message + Default> DecodeFrom for M {}

/// The message in the payload of a Response.
pub fn payload_of<M: prost::Message + Default>(response: &Frame) -> M {
    M::decode_from(&response.as_response().payload)
}

/// A server's default limits for a test on the machine's clock in which nothing stands still: that a busy
/// machine does not run a handler for a while must not look as if it did.
pub fn patient_server() -> ServerConfig {
    ServerConfig { stall_timeout: PATIENCE, ..ServerConfig::default() }
}

/// The same for a client and its consumers.
pub fn patient_client() -> ClientConfig {
    ClientConfig { stall_timeout: PATIENCE, ..ClientConfig::default() }
}

/// Longer than any stall timeout.
pub const PAUSE: Duration = Duration::from_secs(10);

/// Writes until the other side takes no more, and gives back how many bytes it took.
pub async fn write_until_blocked(io: &mut DuplexStream, bytes: &[u8]) -> usize {
    let mut taken = 0;
    while let Ok(written) = timeout(PAUSE, io.write(&bytes[taken..])).await {
        taken += written.expect("the other side lives");
        if taken == bytes.len() {
            break;
        }
    }
    taken
}

/// Reads a frame from one half of a connection: its id and its data.
pub async fn read_frame(reader: &mut (impl AsyncReadExt + Unpin)) -> (u32, Vec<u8>) {
    let mut header = [0; 10];
    reader.read_exact(&mut header).await.expect("a frame comes");
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let mut data = vec![0; word(0) as usize];
    reader.read_exact(&mut data).await.expect("a frame comes whole");
    (word(4), data)
}

/// An interceptor that lets everything pass.
#[derive(Debug)]
pub struct PassesThrough;

#[async_trait]
impl server::Interceptor for PassesThrough {
    async fn intercept(&self, ctx: &mut Context, next: server::Next<'_>) -> Result<(), Status> {
        next.run(ctx).await
    }
}

#[async_trait]
impl client::Interceptor for PassesThrough {
    async fn intercept(
        &self,
        call: &mut OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<Answer, Status> {
        next.run(call).await
    }
}
