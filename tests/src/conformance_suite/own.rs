//! This library as a client of the conformance cases.

use std::{sync::Arc, time::Duration};

use tokio::net::UnixStream;
use ttrpc::{
    Client, ClientConfig, Metadata, async_trait,
    client::{Call, ConnectOptions, Reply, StreamReceiver, StreamSender},
};
use ttrpc_conformance::{
    Chunk, Collected, Connection, Connector, Detail, Failure, Generate, Incoming, Inspection,
    Options, Outgoing, Peer, Result, Statistics, Status, Trial, Upload,
};

use crate::conformance as proto;

/// A trial of the server at this address with this library's client. A strict one is for this library's own server.
pub fn trial(address: &str, is_strict: bool) -> Trial {
    Trial::new(Arc::new(Own), address, is_strict)
}

/// How long a hypervisor's handshake may take: longer than a case waits for any step.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3600);

struct Own;

#[async_trait]
impl Connector for Own {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>> {
        let options = ConnectOptions::new().handshake_timeout(HANDSHAKE_TIMEOUT);
        match options.connect(address).await {
            Ok(client) => Ok(Arc::new(proto::ConformanceClient::new(client))),
            Err(error) => Err(Failure::Other(error.to_string())),
        }
    }

    /// Needs no file, so that it also works where there is nothing but the program.
    async fn connect_bare(&self) -> Result<(Arc<dyn Connection>, UnixStream)> {
        let (here, there) =
            UnixStream::pair().map_err(|error| Failure::Other(error.to_string()))?;
        let client = Client::from_unix_stream(here, ClientConfig::default());
        Ok((Arc::new(proto::ConformanceClient::new(client)), there))
    }
}

fn failure(status: ttrpc::Status) -> Failure {
    let detail =
        |any: &ttrpc::Any| Detail { type_url: any.type_url.clone(), value: any.value.clone() };
    Failure::Status(Status {
        code: status.raw_code(),
        message: status.message().to_owned(),
        details: status.details().iter().map(detail).collect(),
    })
}

/// The call with these options.
fn with<K, Req, Resp>(options: &Options, call: Call<K, Req, Resp>) -> Call<K, Req, Resp> {
    let call = match options.timeout {
        Some(timeout) => call.timeout(timeout),
        None => call,
    };
    let entries = options.metadata.iter().map(|(key, value)| (&key[..], &value[..]));
    call.with_metadata(Metadata::from_iter(entries))
}

fn key(key: &str) -> proto::KeyRequest {
    proto::KeyRequest { key: key.to_owned() }
}

const EMPTY: proto::Empty = proto::Empty {};

#[async_trait]
impl Connection for proto::ConformanceClient {
    async fn echo(
        &self,
        options: &Options,
        payload: Vec<u8>,
        response_size: u32,
    ) -> Result<Vec<u8>> {
        let call = self.echo(proto::EchoRequest { payload, response_size });
        Ok(with(options, call).await.map_err(failure)?.payload)
    }

    async fn fail(&self, code: i32, message: &str, detail: Vec<u8>) -> Result<()> {
        let request = proto::FailRequest { code, message: message.to_owned(), detail };
        self.fail(request).await.map(drop).map_err(failure)
    }

    async fn sleep(&self, options: &Options, millis: u64) -> Result<()> {
        let call = self.sleep(proto::SleepRequest { millis });
        with(options, call).await.map(drop).map_err(failure)
    }

    async fn inspect(&self, options: &Options) -> Result<Inspection> {
        let seen = with(options, self.inspect(EMPTY)).await.map_err(failure)?;
        Ok(Inspection {
            metadata: seen.metadata.into_iter().map(|entry| (entry.key, entry.value)).collect(),
            timeout_nano: seen.timeout_nano,
            service: seen.service,
            method: seen.method,
            peer: Peer { uid: seen.peer_uid, gid: seen.peer_gid, pid: seen.peer_pid },
        })
    }

    async fn wait(&self, options: &Options, name: &str) -> Result<()> {
        with(options, self.wait(key(name))).await.map(drop).map_err(failure)
    }

    async fn release(&self, name: &str) -> Result<()> {
        self.release(key(name)).await.map(drop).map_err(failure)
    }

    async fn panic(&self) -> Result<()> {
        self.panic(EMPTY).await.map(drop).map_err(failure)
    }

    async fn stats(&self) -> Result<Statistics> {
        let stats = self.stats(EMPTY).await.map_err(failure)?;
        Ok(Statistics {
            connections: stats.connections,
            calls_in_flight: stats.calls_in_flight,
            tasks_alive: stats.tasks_alive,
            calls_total: stats.calls_total,
            calls_cancelled: stats.calls_cancelled,
        })
    }

    async fn call_unknown(&self, service: &str, method: &str) -> Result<()> {
        let call = self.client().unary(service.to_owned(), method.to_owned(), EMPTY);
        call.await.map(|proto::Empty {}| ()).map_err(failure)
    }

    fn close(&self) -> Result<()> {
        self.client().close();
        Ok(())
    }

    async fn collect(&self, options: &Options) -> Result<Box<dyn Upload>> {
        let (requests, reply) = with(options, self.collect()).await.map_err(failure)?;
        Ok(Box::new(Collecting { requests, reply }))
    }

    async fn hold(&self) -> Result<Box<dyn Upload>> {
        let (requests, reply) = self.hold().await.map_err(failure)?;
        Ok(Box::new(Collecting { requests, reply }))
    }

    async fn generate(&self, options: &Options, request: Generate) -> Result<Box<dyn Incoming>> {
        let call = self.generate(proto::GenerateRequest {
            count: request.count,
            size: request.size,
            interval_micros: request.interval_micros,
            fail_code: request.fail_code,
        });
        Ok(Box::new(Receiving(with(options, call).await.map_err(failure)?)))
    }

    async fn exchange(&self) -> Result<(Box<dyn Outgoing>, Box<dyn Incoming>)> {
        let (requests, replies) = self.exchange().await.map_err(failure)?;
        Ok((Box::new(Sending(Some(requests))), Box::new(Receiving(replies))))
    }
}

fn message(Chunk { sequence, payload }: Chunk) -> proto::Chunk {
    proto::Chunk { sequence, payload }
}

struct Collecting {
    requests: StreamSender<proto::Chunk>,
    reply: Reply<proto::CollectResponse>,
}

#[async_trait]
impl Upload for Collecting {
    async fn send(&mut self, chunk: Chunk) -> Result<()> {
        self.requests.send(message(chunk)).await.map_err(failure)
    }

    async fn finish(self: Box<Self>) -> Result<Collected> {
        self.requests.finish();
        let reply = self.reply.await.map_err(failure)?;
        Ok(Collected { chunks: reply.chunks, bytes: reply.bytes, in_order: reply.in_order })
    }
}

struct Sending(Option<StreamSender<proto::Chunk>>);

#[async_trait]
impl Outgoing for Sending {
    async fn send(&mut self, chunk: Chunk) -> Result<()> {
        match &mut self.0 {
            Some(requests) => requests.send(message(chunk)).await.map_err(failure),
            None => Err(Failure::Other("the stream is closed".to_owned())),
        }
    }

    async fn close(&mut self) -> Result<()> {
        if let Some(requests) = self.0.take() {
            requests.finish();
        }
        Ok(())
    }
}

struct Receiving(StreamReceiver<proto::Chunk>);

#[async_trait]
impl Incoming for Receiving {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        let next = self.0.recv().await.map_err(failure)?;
        Ok(next.map(|proto::Chunk { sequence, payload }| Chunk { sequence, payload }))
    }
}
