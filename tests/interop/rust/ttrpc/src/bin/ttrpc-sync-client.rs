//! A conformance client on the blocking side of the crate `ttrpc`, which has unary calls only.

use async_trait::async_trait;
use interop_conformance::{
    Connection, Connector, Failure, Inspection, Options, Statistics, run_client,
};
use interop_ttrpc::blocking::ConformanceClient;
use interop_ttrpc::messages::{Empty, SleepRequest};
use interop_ttrpc::{
    context, echo_request, fail_request, failure, inspection, key_request, statistics,
};
use std::process::ExitCode;
use std::sync::Arc;
use ttrpc::Client;
use ttrpc::context::Context;

type Result<T> = std::result::Result<T, Failure>;

struct Library;

#[async_trait]
impl Connector for Library {
    /// A blocked thread can't be called off.
    fn cancels(&self) -> bool {
        false
    }

    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>> {
        let client = Client::connect(address).map_err(failure)?;
        Ok(Arc::new(Link { service: ConformanceClient::new(client.clone()), client }))
    }
}

struct Link {
    service: ConformanceClient,
    client: Client,
}

impl Link {
    /// Makes a blocking call on a thread of its own.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(ConformanceClient) -> ttrpc::Result<T> + Send + 'static,
    ) -> Result<T> {
        let service = self.service.clone();
        match tokio::task::spawn_blocking(move || call(service)).await {
            Ok(outcome) => outcome.map_err(failure),
            Err(error) => Err(Failure::Other(format!("the call panicked: {error}"))),
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
        let (context, request) = (context(options), echo_request(payload, response_size));
        Ok(self.call(move |service| service.echo(context, &request)).await?.payload)
    }

    async fn fail(&self, code: i32, message: &str, detail: Vec<u8>) -> Result<()> {
        let request = fail_request(code, message, detail);
        self.call(move |service| service.fail(Context::default(), &request)).await.map(drop)
    }

    async fn sleep(&self, options: &Options, millis: u64) -> Result<()> {
        let (context, request) = (context(options), SleepRequest { millis, ..Default::default() });
        self.call(move |service| service.sleep(context, &request)).await.map(drop)
    }

    async fn inspect(&self, options: &Options) -> Result<Inspection> {
        let context = context(options);
        self.call(move |service| service.inspect(context, &Empty::default())).await.map(inspection)
    }

    async fn wait(&self, options: &Options, key: &str) -> Result<()> {
        let (context, request) = (context(options), key_request(key));
        self.call(move |service| service.wait(context, &request)).await.map(drop)
    }

    async fn release(&self, key: &str) -> Result<()> {
        let request = key_request(key);
        self.call(move |service| service.release(Context::default(), &request)).await.map(drop)
    }

    async fn panic(&self) -> Result<()> {
        self.call(|service| service.panic(Context::default(), &Empty::default())).await.map(drop)
    }

    async fn stats(&self) -> Result<Statistics> {
        self.call(|service| service.stats(Context::default(), &Empty::default()))
            .await
            .map(statistics)
    }

    async fn call_unknown(&self, service: &str, method: &str) -> Result<()> {
        let client = self.client.clone();
        let request = ttrpc::Request {
            service: service.to_owned(),
            method: method.to_owned(),
            ..Default::default()
        };
        self.call(move |_| client.request(request)).await.map(drop)
    }
}

fn main() -> ExitCode {
    run_client(Library)
}
