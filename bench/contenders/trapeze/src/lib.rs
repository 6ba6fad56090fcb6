//! The crate `trapeze`: ttrpc with tokio and prost.

use std::{path::PathBuf, pin::pin, time::Instant};

use bench_load::{Connection, Contender};
use futures::{Stream, StreamExt, channel::mpsc, stream};
use trapeze::{Client, Server};

mod generated {
    #![allow(clippy::all, unused)]
    include!(concat!(env!("OUT_DIR"), "/bench.rs"));
}
use generated::{Bench, CountReq, EchoMsg};

struct Service;

impl Bench for Service {
    async fn echo(&self, message: EchoMsg) -> trapeze::Result<EchoMsg> {
        Ok(message)
    }

    fn count(&self, request: CountReq) -> impl Stream<Item = trapeze::Result<EchoMsg>> + Send {
        let message = move |_| Ok(EchoMsg { payload: vec![7; request.size as usize] });
        stream::iter((0..request.n).map(message))
    }

    fn bidi(
        &self,
        messages: impl Stream<Item = EchoMsg> + Send,
    ) -> impl Stream<Item = trapeze::Result<EchoMsg>> + Send {
        messages.map(Ok)
    }
}

/// trapeze.
#[derive(Debug)]
pub struct Trapeze;

impl Contender for Trapeze {
    type Connection = Caller;

    async fn serve(path: PathBuf) {
        let server = Server::new().register(generated::Bench::<Service>(Service));
        let serving = server.bind(format!("unix://{}", path.display())).await;
        serving.expect("the path is free").await.expect("a fresh socket can be served");
    }

    async fn connect(path: PathBuf) -> Caller {
        let client = Client::connect(format!("unix://{}", path.display())).await;
        Caller(client.expect("the server is up"))
    }
}

/// A connection.
#[derive(Clone)]
pub struct Caller(Client);

impl Connection for Caller {
    async fn echo(&self, payload: Vec<u8>) -> Vec<u8> {
        Bench::echo(&self.0, EchoMsg { payload }).await.expect("an echo succeeds").payload
    }

    async fn count(&self, messages: u64, size: u32) -> (u64, u64) {
        let mut replies = pin!(Bench::count(&self.0, CountReq { n: messages, size }));
        let mut received = (0, 0);
        while let Some(message) = replies.next().await {
            let message = message.expect("a stream ends well");
            received = (received.0 + 1, received.1 + message.payload.len() as u64);
        }
        received
    }

    async fn ping_pong(&self, rounds: u64, payload: &[u8], nanos: &mut Vec<u32>) {
        let (requests, to_send) = mpsc::unbounded();
        let mut replies = pin!(Bench::bidi(&self.0, to_send));
        for _ in 0..rounds {
            let start = Instant::now();
            let message = EchoMsg { payload: payload.to_vec() };
            requests.unbounded_send(message).expect("the stream is open");
            let reply = replies.next().await.expect("the stream goes on").expect("a reply comes");
            nanos.push(start.elapsed().as_nanos() as u32);
            assert_eq!(reply.payload.len(), payload.len());
        }
    }
}
