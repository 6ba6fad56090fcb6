//! This project.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use bench_load::{BlockingContender, Connection, Contender};
use ttrpc::{
    Client, Context, Server, Status, async_trait, blocking,
    client::ConnectOptions,
    observer::{CallEnd, CallInfo, Observer},
    server::{Interceptor, Next, ServerBuilder, StreamReceiver, StreamSender},
};

mod generated {
    ttrpc::include_proto!("bench");
}
use generated::{Bench, BenchBlockingClient, BenchClient, BenchServer, CountReq, EchoMsg};

struct Service;

#[async_trait]
impl Bench for Service {
    async fn echo(&self, _ctx: &Context, message: EchoMsg) -> Result<EchoMsg, Status> {
        Ok(message)
    }

    async fn count(
        &self,
        _ctx: &Context,
        request: CountReq,
        mut replies: StreamSender<EchoMsg>,
    ) -> Result<(), Status> {
        for _ in 0..request.n {
            replies.send(EchoMsg { payload: vec![7; request.size as usize] }).await?;
        }
        Ok(())
    }

    async fn bidi(
        &self,
        _ctx: &Context,
        mut requests: StreamReceiver<EchoMsg>,
        mut replies: StreamSender<EchoMsg>,
    ) -> Result<(), Status> {
        while let Some(message) = requests.recv().await? {
            replies.send(message).await?;
        }
        Ok(())
    }
}

/// This project.
#[derive(Debug)]
pub struct Ours;

impl Contender for Ours {
    type Connection = Caller;

    async fn serve(path: PathBuf) {
        serve(Server::builder(), path).await;
    }

    async fn connect(path: PathBuf) -> Caller {
        let path = path.to_str().expect("the driver's paths are UTF-8");
        Caller(BenchClient::new(Client::connect(path).await.expect("the server is up")))
    }
}

async fn serve(server: ServerBuilder, path: PathBuf) {
    let path = path.to_str().expect("the driver's paths are UTF-8");
    let server = server.add_service(BenchServer::new(Service)).bind(path);
    server.expect("the path is free").serve().await.expect("a fresh socket can be served");
}

/// This project, with an observer that counts, on the server and on the client.
#[derive(Debug)]
pub struct OursObserved;

impl Contender for OursObserved {
    type Connection = Caller;

    async fn serve(path: PathBuf) {
        serve(Server::builder().observe(Counts::default()), path).await;
    }

    async fn connect(path: PathBuf) -> Caller {
        let path = path.to_str().expect("the driver's paths are UTF-8");
        let client = ConnectOptions::new().observe(Counts::default()).connect(path).await;
        Caller(BenchClient::new(client.expect("the server is up")))
    }
}

/// Counts what metrics count of a call.
#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
    nanos: AtomicU64,
    bytes: AtomicU64,
}

impl Observer for Counts {
    fn call_begun(&self, _: &CallInfo<'_>) {
        self.begun.fetch_add(1, Relaxed);
    }

    fn call_ended(&self, _: &CallInfo<'_>, end: &CallEnd<'_>) {
        self.ended.fetch_add(1, Relaxed);
        self.nanos.fetch_add(end.duration().as_nanos() as u64, Relaxed);
        self.bytes.fetch_add(end.traffic.bytes_sent + end.traffic.bytes_received, Relaxed);
    }
}

/// This project, with an interceptor of the server that lets all calls pass.
#[derive(Debug)]
pub struct OursIntercepted;

impl Contender for OursIntercepted {
    type Connection = Caller;

    async fn serve(path: PathBuf) {
        serve(Server::builder().intercept(PassesThrough), path).await;
    }

    async fn connect(path: PathBuf) -> Caller {
        Ours::connect(path).await
    }
}

struct PassesThrough;

#[async_trait]
impl Interceptor for PassesThrough {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        next.run(ctx).await
    }
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Caller(BenchClient);

impl Connection for Caller {
    async fn echo(&self, payload: Vec<u8>) -> Vec<u8> {
        self.0.echo(EchoMsg { payload }).await.expect("an echo succeeds").payload
    }

    async fn count(&self, messages: u64, size: u32) -> (u64, u64) {
        let stream = self.0.count(CountReq { n: messages, size }).await;
        let mut replies = stream.expect("a stream opens");
        let mut received = (0, 0);
        while let Some(message) = replies.recv().await.expect("a stream ends well") {
            received = (received.0 + 1, received.1 + message.payload.len() as u64);
        }
        received
    }

    async fn ping_pong(&self, rounds: u64, payload: &[u8], nanos: &mut Vec<u32>) {
        let (mut requests, mut replies) = self.0.bidi().await.expect("a stream opens");
        for _ in 0..rounds {
            let start = Instant::now();
            let message = EchoMsg { payload: payload.to_vec() };
            requests.send(message).await.expect("a message is sent");
            let reply = replies.recv().await.expect("a reply comes").expect("the stream goes on");
            nanos.push(start.elapsed().as_nanos() as u32);
            assert_eq!(reply.payload.len(), payload.len());
        }
    }
}

/// This project's blocking client. The server is the same.
#[derive(Debug)]
pub struct OursBlocking;

impl BlockingContender for OursBlocking {
    type Connection = BenchBlockingClient;

    fn serve(path: PathBuf) {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build();
        runtime.expect("a runtime starts").block_on(Ours::serve(path));
    }

    fn connect(path: &Path) -> BenchBlockingClient {
        let path = path.to_str().expect("the driver's paths are UTF-8");
        BenchBlockingClient::new(blocking::Client::connect(path).expect("the server is up"))
    }

    fn echo(connection: &BenchBlockingClient, payload: Vec<u8>) -> Vec<u8> {
        connection.echo(EchoMsg { payload }).call().expect("an echo succeeds").payload
    }
}
