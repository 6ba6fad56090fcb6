//! The crate `ttrpc` of the containerd project, asynchronous. It has the same name as ours, so the
//! two are never dependencies of one crate.

use std::{path::PathBuf, sync::Arc, time::Instant};

use async_trait::async_trait;
use bench_load::{Connection, Contender};
use ttrpc::{
    asynchronous::{Client, Server, ServerStream, ServerStreamSender, TtrpcContext},
    context::Context,
};

mod generated {
    #![allow(clippy::all, unused)]
    include!(concat!(env!("OUT_DIR"), "/mod.rs"));
}
use generated::{
    echo::{CountReq, EchoMsg},
    echo_ttrpc::{Bench, BenchClient, create_bench},
};

fn message(payload: Vec<u8>) -> EchoMsg {
    EchoMsg { payload, ..Default::default() }
}

struct Service;

#[async_trait]
impl Bench for Service {
    async fn echo(&self, _ctx: &TtrpcContext, message: EchoMsg) -> ttrpc::Result<EchoMsg> {
        Ok(message)
    }

    async fn count(
        &self,
        _ctx: &TtrpcContext,
        request: CountReq,
        replies: ServerStreamSender<EchoMsg>,
    ) -> ttrpc::Result<()> {
        for _ in 0..request.n {
            replies.send(&message(vec![7; request.size as usize])).await?;
        }
        Ok(())
    }

    async fn bidi(
        &self,
        _ctx: &TtrpcContext,
        mut stream: ServerStream<EchoMsg, EchoMsg>,
    ) -> ttrpc::Result<()> {
        while let Some(message) = stream.recv().await? {
            stream.send(&message).await?;
        }
        Ok(())
    }
}

/// ttrpc-rust, asynchronous.
#[derive(Debug)]
pub struct TtrpcRust;

impl Contender for TtrpcRust {
    type Connection = Caller;

    async fn serve(path: PathBuf) {
        let server = Server::new().bind(&format!("unix://{}", path.display()));
        let service = create_bench(Arc::new(Service));
        let mut server = server.expect("the path is free").register_service(service);
        server.start().await.expect("a fresh socket can be served");
        std::future::pending().await
    }

    async fn connect(path: PathBuf) -> Caller {
        let client = Client::connect(&format!("unix://{}", path.display())).await;
        Caller(BenchClient::new(client.expect("the server is up")))
    }
}

/// A connection.
#[derive(Clone)]
pub struct Caller(BenchClient);

impl Connection for Caller {
    async fn echo(&self, payload: Vec<u8>) -> Vec<u8> {
        let reply = self.0.echo(Context::default(), &message(payload)).await;
        reply.expect("an echo succeeds").payload
    }

    async fn count(&self, messages: u64, size: u32) -> (u64, u64) {
        let request = CountReq { n: messages, size, ..Default::default() };
        let stream = self.0.count(Context::default(), &request).await;
        let mut replies = stream.expect("a stream opens");
        let mut received = (0, 0);
        while let Some(message) = replies.recv().await.expect("a stream ends well") {
            received = (received.0 + 1, received.1 + message.payload.len() as u64);
        }
        received
    }

    async fn ping_pong(&self, rounds: u64, payload: &[u8], nanos: &mut Vec<u32>) {
        let mut stream = self.0.bidi(Context::default()).await.expect("a stream opens");
        for _ in 0..rounds {
            let start = Instant::now();
            stream.send(&message(payload.to_vec())).await.expect("a message is sent");
            let reply = stream.recv().await.expect("a reply comes");
            nanos.push(start.elapsed().as_nanos() as u32);
            assert_eq!(reply.payload.len(), payload.len());
        }
        stream.close_send().await.expect("a stream ends");
    }
}
