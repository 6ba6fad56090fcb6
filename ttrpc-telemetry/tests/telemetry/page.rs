//! The snippets of this crate's README and of the repository's page about observing, compiled. A test of the workspace
//! compares them with the pages.
#![expect(dead_code, unused_variables, reason = "they are a page's")]

use std::error::Error;

use opentelemetry::baggage::BaggageExt;
use ttrpc::{
    Client, Context, Server, Status,
    client::ConnectOptions,
    server::{Routes, Service},
};
use ttrpc_telemetry::{Metrics, Tracing};

struct MyGreeter;

struct GreeterServer(MyGreeter);

impl GreeterServer {
    fn new(greeter: MyGreeter) -> Self {
        Self(greeter)
    }
}

impl Service for GreeterServer {
    fn into_routes(self) -> Routes {
        Routes::new("greeter.v1.Greeter")
    }
}

struct GreeterClient(Client);

impl GreeterClient {
    fn new(client: Client) -> Self {
        Self(client)
    }
}

async fn readme(address: &str) -> Result<GreeterClient, Box<dyn Error>> {
    let (tracing, metrics) = (Tracing::new(), Metrics::new());

    let server = tracing
        .trace_server(Server::builder())
        .observe(metrics.clone())
        .add_service(GreeterServer::new(MyGreeter))
        .bind(address)?;

    let client = ConnectOptions::new().observe(metrics).connect(address).await?;
    let greeter = GreeterClient::new(tracing.trace_client(client));
    Ok(greeter)
}

async fn observing(address: &str) -> Result<Client, Box<dyn Error>> {
    let tracing = Tracing::new(); // the global tracer provider and propagator
    let metrics = Metrics::new(); // the global recorder
    let server = tracing.trace_server(Server::builder()).observe(metrics.clone());
    let client = ConnectOptions::new().observe(metrics).connect(address).await?;
    let client = tracing.trace_client(client);
    Ok(client)
}

struct Name;

struct Entry;

struct Backend;

impl Backend {
    async fn find(&self, _request: Name) -> Result<Entry, Status> {
        Ok(Entry)
    }
}

struct Directory {
    backend: Backend,
}

impl Directory {
    async fn look_up(&self, _ctx: &Context, request: Name) -> Result<Entry, Status> {
        let tenant = opentelemetry::Context::current().baggage().get("tenant").cloned();
        self.backend.find(request).await
    }
}
