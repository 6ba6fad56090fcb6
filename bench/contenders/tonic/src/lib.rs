//! gRPC: the crate `tonic` over a Unix socket, with its default settings.

use std::{path::PathBuf, pin::Pin, time::Instant};

use bench_load::{Connection, Contender};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::mpsc,
};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{UnboundedReceiverStream, UnixListenerStream},
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Endpoint, Server},
};

mod generated {
    #![allow(clippy::all, unused)]
    include!(concat!(env!("OUT_DIR"), "/bench.rs"));
}
use generated::{
    CountReq, EchoMsg,
    bench_client::BenchClient,
    bench_server::{Bench, BenchServer},
};

type Replies = Pin<Box<dyn Stream<Item = Result<EchoMsg, Status>> + Send>>;

struct Service;

#[tonic::async_trait]
impl Bench for Service {
    type BidiStream = Replies;
    type CountStream = Replies;

    async fn echo(&self, request: Request<EchoMsg>) -> Result<Response<EchoMsg>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn count(&self, request: Request<CountReq>) -> Result<Response<Replies>, Status> {
        let request = request.into_inner();
        let message = move |_| Ok(EchoMsg { payload: vec![7; request.size as usize] });
        Ok(Response::new(Box::pin(tokio_stream::iter((0..request.n).map(message)))))
    }

    async fn bidi(
        &self,
        request: Request<Streaming<EchoMsg>>,
    ) -> Result<Response<Replies>, Status> {
        Ok(Response::new(Box::pin(request.into_inner())))
    }
}

/// tonic.
#[derive(Debug)]
pub struct Tonic;

impl Contender for Tonic {
    type Connection = Caller;

    async fn serve(path: PathBuf) {
        let listener = UnixListener::bind(path).expect("the path is free");
        Server::builder()
            .add_service(BenchServer::new(Service))
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
            .expect("a fresh socket can be served");
    }

    async fn connect(path: PathBuf) -> Caller {
        let connect = move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        };
        // The address is never looked up, since the connector does not look at it.
        let channel = Endpoint::from_static("http://peer.invalid")
            .connect_with_connector(tower::service_fn(connect))
            .await;
        Caller(BenchClient::new(channel.expect("the server is up")))
    }
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Caller(BenchClient<Channel>);

impl Connection for Caller {
    async fn echo(&self, payload: Vec<u8>) -> Vec<u8> {
        let reply = self.0.clone().echo(EchoMsg { payload }).await;
        reply.expect("an echo succeeds").into_inner().payload
    }

    async fn count(&self, messages: u64, size: u32) -> (u64, u64) {
        let stream = self.0.clone().count(CountReq { n: messages, size }).await;
        let mut replies = stream.expect("a stream opens").into_inner();
        let mut received = (0, 0);
        while let Some(message) = replies.next().await {
            let message = message.expect("a stream ends well");
            received = (received.0 + 1, received.1 + message.payload.len() as u64);
        }
        received
    }

    async fn ping_pong(&self, rounds: u64, payload: &[u8], nanos: &mut Vec<u32>) {
        let (requests, to_send) = mpsc::unbounded_channel();
        let stream = self.0.clone().bidi(UnboundedReceiverStream::new(to_send)).await;
        let mut replies = stream.expect("a stream opens").into_inner();
        for _ in 0..rounds {
            let start = Instant::now();
            requests.send(EchoMsg { payload: payload.to_vec() }).expect("the stream is open");
            let reply = replies.next().await.expect("the stream goes on").expect("a reply comes");
            nanos.push(start.elapsed().as_nanos() as u32);
            assert_eq!(reply.payload.len(), payload.len());
        }
    }
}
