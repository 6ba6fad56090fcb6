//! A conformance client on the asynchronous side of the crate `ttrpc`.

use async_trait::async_trait;
use interop_conformance::{
    Chunk, Collected, Connection, Connector, Failure, Generate, Incoming, Inspection, Options,
    Outgoing, Statistics, Upload, run_client,
};
use interop_ttrpc::asynchronous::ConformanceClient;
use interop_ttrpc::messages::{self, CollectResponse, Empty, SleepRequest};
use interop_ttrpc::{
    chunk, chunk_message, collected, context, echo_request, fail_request, failure,
    generate_request, inspection, key_request, statistics,
};
use std::process::ExitCode;
use std::sync::Arc;
use ttrpc::r#async::{CSReceiver, CSSender, Client, ClientStreamReceiver, ClientStreamSender};
use ttrpc::context::Context;

type Result<T> = std::result::Result<T, Failure>;

struct Library;

#[async_trait]
impl Connector for Library {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>> {
        let client = Client::connect(address).await.map_err(failure)?;
        Ok(Arc::new(Link { service: ConformanceClient::new(client.clone()), client }))
    }
}

struct Link {
    service: ConformanceClient,
    client: Client,
}

#[async_trait]
impl Connection for Link {
    async fn echo(
        &self,
        options: &Options,
        payload: Vec<u8>,
        response_size: u32,
    ) -> Result<Vec<u8>> {
        let request = echo_request(payload, response_size);
        Ok(self.service.echo(context(options), &request).await.map_err(failure)?.payload)
    }

    async fn fail(&self, code: i32, message: &str, detail: Vec<u8>) -> Result<()> {
        let request = fail_request(code, message, detail);
        self.service.fail(Context::default(), &request).await.map(drop).map_err(failure)
    }

    async fn sleep(&self, options: &Options, millis: u64) -> Result<()> {
        let request = SleepRequest { millis, ..Default::default() };
        self.service.sleep(context(options), &request).await.map(drop).map_err(failure)
    }

    async fn inspect(&self, options: &Options) -> Result<Inspection> {
        self.service
            .inspect(context(options), &Empty::default())
            .await
            .map(inspection)
            .map_err(failure)
    }

    async fn wait(&self, options: &Options, key: &str) -> Result<()> {
        self.service.wait(context(options), &key_request(key)).await.map(drop).map_err(failure)
    }

    async fn release(&self, key: &str) -> Result<()> {
        self.service.release(Context::default(), &key_request(key)).await.map(drop).map_err(failure)
    }

    async fn panic(&self) -> Result<()> {
        self.service.panic(Context::default(), &Empty::default()).await.map(drop).map_err(failure)
    }

    async fn stats(&self) -> Result<Statistics> {
        self.service
            .stats(Context::default(), &Empty::default())
            .await
            .map(statistics)
            .map_err(failure)
    }

    async fn call_unknown(&self, service: &str, method: &str) -> Result<()> {
        let request = ttrpc::Request {
            service: service.to_owned(),
            method: method.to_owned(),
            ..Default::default()
        };
        self.client.request(request).await.map(drop).map_err(failure)
    }

    async fn collect(&self, options: &Options) -> Result<Box<dyn Upload>> {
        Ok(Box::new(Sending(self.service.collect(context(options)).await.map_err(failure)?)))
    }

    async fn hold(&self) -> Result<Box<dyn Upload>> {
        Ok(Box::new(Sending(self.service.hold(Context::default()).await.map_err(failure)?)))
    }

    async fn generate(&self, options: &Options, request: Generate) -> Result<Box<dyn Incoming>> {
        let stream = self.service.generate(context(options), &generate_request(request)).await;
        Ok(Box::new(Receiving(stream.map_err(failure)?)))
    }

    async fn exchange(&self) -> Result<(Box<dyn Outgoing>, Box<dyn Incoming>)> {
        let (outgoing, incoming) =
            self.service.exchange(Context::default()).await.map_err(failure)?.split();
        Ok((Box::new(DuplexOut(outgoing)), Box::new(DuplexIn(incoming))))
    }
}

struct Sending(ClientStreamSender<messages::Chunk, CollectResponse>);

#[async_trait]
impl Upload for Sending {
    async fn send(&mut self, chunk: Chunk) -> Result<()> {
        self.0.send(&chunk_message(chunk)).await.map_err(failure)
    }

    async fn finish(mut self: Box<Self>) -> Result<Collected> {
        self.0.close_and_recv().await.map(collected).map_err(failure)
    }
}

struct Receiving(ClientStreamReceiver<messages::Chunk>);

#[async_trait]
impl Incoming for Receiving {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        Ok(self.0.recv().await.map_err(failure)?.map(chunk))
    }
}

struct DuplexOut(CSSender<messages::Chunk>);

#[async_trait]
impl Outgoing for DuplexOut {
    async fn send(&mut self, chunk: Chunk) -> Result<()> {
        self.0.send(&chunk_message(chunk)).await.map_err(failure)
    }

    async fn close(&mut self) -> Result<()> {
        self.0.close_send().await.map_err(failure)
    }
}

struct DuplexIn(CSReceiver<messages::Chunk>);

#[async_trait]
impl Incoming for DuplexIn {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        match self.0.recv().await {
            Ok(message) => Ok(Some(chunk(message))),
            // This half reports its clean end as an error.
            Err(ttrpc::Error::Eof) => Ok(None),
            Err(error) => Err(failure(error)),
        }
    }
}

fn main() -> ExitCode {
    run_client(Library)
}
