//! A service, and a server and clients over a pipe, for the tests of this crate.

#![allow(dead_code, reason = "not every test uses all of it")]

#[cfg(feature = "metrics")]
pub mod counted;

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time::timeout};
use ttrpc::{
    Client, ServerConfig, Status,
    client::{BidiStreamingCall, ConnectOptions, UnaryCall},
    server::{Routes, ServerBuilder, ServerHandle},
};

pub const SERVICE: &str = "telemetry.v1.Echo";

/// The longest that a test waits.
const PATIENCE: Duration = Duration::from_secs(600);

/// `Say` answers with its request, or does what it says; `Chat` answers each message with itself, and fails behind
/// the message `fail`.
pub fn echo() -> Routes {
    Routes::new(SERVICE)
        .unary("Say", &Arc::new(()), |(), _ctx, request: String| {
            Box::pin(async move {
                match request.as_str() {
                    "refuse" => Err(Status::not_found("refused as asked")),
                    "fail" => Err(Status::internal("failed as asked")),
                    "panic" => panic!("as asked"),
                    "wait" => std::future::pending().await,
                    _ => Ok(request),
                }
            })
        })
        .bidi_streaming("Chat", &Arc::new(()), |(), _ctx, mut requests, mut replies| {
            Box::pin(async move {
                while let Some(request) = requests.recv().await? {
                    let request: String = request;
                    if request == "fail" {
                        return Err(Status::data_loss("failed as asked"));
                    }
                    replies.send(request).await?;
                }
                Ok(())
            })
        })
}

/// A server that ends with the test.
pub struct TestServer {
    pub handle: ServerHandle,
    task: JoinHandle<()>,
}

impl TestServer {
    pub fn start(builder: ServerBuilder, config: ServerConfig) -> Self {
        let server =
            builder.add_service(echo()).config(config).keep_open().build().expect("it is complete");
        let handle = server.handle();
        let task = tokio::spawn(async move { server.serve().await.expect("it serves") });
        TestServer { handle, task }
    }

    /// A client on a connection of its own.
    pub async fn client(&self, options: &ConnectOptions) -> Client {
        let (here, there) = tokio::net::UnixStream::pair().expect("a pair of sockets");
        self.handle.serve_connection(there).await.expect("the server takes it");
        options.from_connection(here)
    }

    /// Closes the server, and with it all of its connections.
    pub async fn close(self) {
        self.handle.close().await;
        self.task.await.expect("it has ended");
    }
}

pub fn say(client: &Client, text: &str) -> UnaryCall<String, String> {
    client.unary(SERVICE, "Say", text.to_owned())
}

pub fn chat(client: &Client) -> BidiStreamingCall<String, String> {
    client.bidi_streaming(SERVICE, "Chat")
}

/// Waits until something holds that must come to hold.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let polling = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(timeout(PATIENCE, polling).await.is_ok(), "in time, {what}");
}
