//! A conformance client on the crate `trapeze`.

use async_trait::async_trait;
use futures::{Stream, StreamExt};
use interop_conformance::{
    Chunk, Collected, Connection, Connector, Detail, Failure, Generate, Incoming, Inspection,
    Options, Outgoing, Peer, Statistics, Status, Upload, run_client,
};
use interop_trapeze::{
    self as messages, CollectResponse, Conformance, EchoRequest, Empty, FailRequest,
    GenerateRequest, KeyRequest, SleepRequest,
};
use std::collections::HashMap;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedSender, channel, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use trapeze::__codegen_prelude::RequestHandler;
use trapeze::{Client, ClientExt};

type Result<T> = std::result::Result<T, Failure>;

fn failure(status: trapeze::Status) -> Failure {
    let details =
        status.details.into_iter().map(|any| Detail { type_url: any.type_url, value: any.value });
    Failure::Status(Status {
        code: status.code,
        message: status.message,
        details: details.collect(),
    })
}

struct Library;

#[async_trait]
impl Connector for Library {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>> {
        let client =
            Client::connect(address).await.map_err(|error| Failure::Other(error.to_string()))?;
        Ok(Arc::new(Link(client)))
    }
}

struct Link(Client);

impl Link {
    fn with(&self, options: &Options) -> Client {
        let mut metadata: HashMap<String, Vec<String>> = HashMap::new();
        for (key, value) in &options.metadata {
            metadata.entry(key.clone()).or_default().push(value.clone());
        }
        self.0.with_timeout(options.timeout).with_metadata(metadata)
    }
}

/// Passes a stream on from a task, since the stream borrows the client that it came from. The room between the two is as
/// small as can be, so that whoever does not read leaves the library's own stream unread.
async fn forward(
    stream: impl Stream<Item = trapeze::Result<messages::Chunk>>,
    sender: Sender<trapeze::Result<messages::Chunk>>,
) {
    let mut stream = pin!(stream);
    while let Some(item) = stream.next().await {
        if sender.send(item).await.is_err() {
            return;
        }
    }
}

#[async_trait]
impl Connection for Link {
    async fn echo(
        &self,
        options: &Options,
        payload: Vec<u8>,
        response_size: u32,
    ) -> Result<Vec<u8>> {
        let request = EchoRequest { payload, response_size };
        Ok(self.with(options).echo(request).await.map_err(failure)?.payload)
    }

    async fn fail(&self, code: i32, message: &str, detail: Vec<u8>) -> Result<()> {
        let request = FailRequest { code, message: message.to_owned(), detail };
        self.0.fail(request).await.map(drop).map_err(failure)
    }

    async fn sleep(&self, options: &Options, millis: u64) -> Result<()> {
        self.with(options).sleep(SleepRequest { millis }).await.map(drop).map_err(failure)
    }

    async fn inspect(&self, options: &Options) -> Result<Inspection> {
        let response = self.with(options).inspect(Empty {}).await.map_err(failure)?;
        Ok(Inspection {
            metadata: response.metadata.into_iter().map(|entry| (entry.key, entry.value)).collect(),
            timeout_nano: response.timeout_nano,
            service: response.service,
            method: response.method,
            peer: Peer { uid: response.peer_uid, gid: response.peer_gid, pid: response.peer_pid },
        })
    }

    async fn wait(&self, options: &Options, key: &str) -> Result<()> {
        self.with(options).wait(KeyRequest { key: key.to_owned() }).await.map(drop).map_err(failure)
    }

    async fn release(&self, key: &str) -> Result<()> {
        self.0.release(KeyRequest { key: key.to_owned() }).await.map(drop).map_err(failure)
    }

    async fn panic(&self) -> Result<()> {
        self.0.panic(Empty {}).await.map(drop).map_err(failure)
    }

    async fn stats(&self) -> Result<Statistics> {
        let response = self.0.stats(Empty {}).await.map_err(failure)?;
        Ok(Statistics {
            connections: response.connections,
            calls_in_flight: response.calls_in_flight,
            tasks_alive: response.tasks_alive,
            calls_total: response.calls_total,
            calls_cancelled: response.calls_cancelled,
        })
    }

    async fn call_unknown(&self, service: &str, method: &str) -> Result<()> {
        let (service, method) = (service.to_owned(), method.to_owned());
        let reply: trapeze::Result<Empty> =
            self.0.handle_unary_request(service, method, Empty {}).await;
        reply.map(drop).map_err(failure)
    }

    async fn collect(&self, options: &Options) -> Result<Box<dyn Upload>> {
        let client = self.with(options);
        let (chunks, receiver) = unbounded_channel();
        let reply =
            tokio::spawn(
                async move { client.collect(UnboundedReceiverStream::new(receiver)).await },
            );
        Ok(Box::new(Sending { chunks, reply }))
    }

    async fn hold(&self) -> Result<Box<dyn Upload>> {
        let client = self.0.clone();
        let (chunks, receiver) = unbounded_channel();
        let reply =
            tokio::spawn(async move { client.hold(UnboundedReceiverStream::new(receiver)).await });
        Ok(Box::new(Sending { chunks, reply }))
    }

    async fn generate(&self, options: &Options, request: Generate) -> Result<Box<dyn Incoming>> {
        let client = self.with(options);
        let request = GenerateRequest {
            count: request.count,
            size: request.size,
            interval_micros: request.interval_micros,
            fail_code: request.fail_code,
        };
        let (sender, receiver) = channel(1);
        tokio::spawn(async move { forward(client.generate(request), sender).await });
        Ok(Box::new(Receiving(receiver)))
    }

    async fn exchange(&self) -> Result<(Box<dyn Outgoing>, Box<dyn Incoming>)> {
        let client = self.0.clone();
        let (chunks, outgoing) = unbounded_channel();
        let (sender, receiver) = channel(1);
        tokio::spawn(async move {
            forward(client.exchange(UnboundedReceiverStream::new(outgoing)), sender).await
        });
        Ok((Box::new(DuplexOut(Some(chunks))), Box::new(Receiving(receiver))))
    }
}

fn send(chunks: &UnboundedSender<messages::Chunk>, chunk: Chunk) -> Result<()> {
    let message = messages::Chunk { sequence: chunk.sequence, payload: chunk.payload };
    chunks.send(message).map_err(|_| Failure::Other("the library dropped the stream".to_owned()))
}

/// The library asks for a stream of requests and returns a future of the reply, which runs in a task here.
struct Sending {
    chunks: UnboundedSender<messages::Chunk>,
    reply: JoinHandle<trapeze::Result<CollectResponse>>,
}

#[async_trait]
impl Upload for Sending {
    async fn send(&mut self, chunk: Chunk) -> Result<()> {
        send(&self.chunks, chunk)
    }

    async fn finish(self: Box<Self>) -> Result<Collected> {
        drop(self.chunks);
        let reply = self
            .reply
            .await
            .map_err(|error| Failure::Other(format!("the call panicked: {error}")))?;
        let reply = reply.map_err(failure)?;
        Ok(Collected { chunks: reply.chunks, bytes: reply.bytes, in_order: reply.in_order })
    }
}

struct DuplexOut(Option<UnboundedSender<messages::Chunk>>);

#[async_trait]
impl Outgoing for DuplexOut {
    async fn send(&mut self, chunk: Chunk) -> Result<()> {
        match &self.0 {
            Some(chunks) => send(chunks, chunk),
            None => Err(Failure::Other("the stream is closed".to_owned())),
        }
    }

    async fn close(&mut self) -> Result<()> {
        self.0 = None;
        Ok(())
    }
}

struct Receiving(Receiver<trapeze::Result<messages::Chunk>>);

#[async_trait]
impl Incoming for Receiving {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        match self.0.recv().await {
            None => Ok(None),
            Some(Ok(message)) => {
                Ok(Some(Chunk { sequence: message.sequence, payload: message.payload }))
            }
            Some(Err(status)) => Err(failure(status)),
        }
    }
}

fn main() -> ExitCode {
    run_client(Library)
}
