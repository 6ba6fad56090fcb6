//! What a library has to offer for the cases to run on it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::net::UnixStream;

use crate::{
    bare,
    message::{Chunk, Collected, Failure, Generate, Inspection, Statistics},
};

/// What a call returns, or how it failed.
pub type Result<T> = std::result::Result<T, Failure>;

const UNARY_ONLY: Failure = Failure::Unsupported("this client has no streams");

/// What a call carries beside its request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The call's deadline, from now on.
    pub timeout: Option<Duration>,
    /// Keys and values, in order.
    pub metadata: Vec<(String, String)>,
}

impl Options {
    /// A timeout and nothing else.
    pub fn timeout(timeout: Duration) -> Self {
        Options { timeout: Some(timeout), ..Options::default() }
    }

    /// Metadata and nothing else.
    pub fn metadata<const N: usize>(entries: [(&str, &str); N]) -> Self {
        let metadata = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Options { metadata: metadata.to_vec(), ..Options::default() }
    }
}

/// A client library.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Whether a call ends when its future is dropped.
    fn cancels(&self) -> bool {
        true
    }

    /// Connects to a server.
    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>>;

    /// Connects to a socket whose other end is returned, too. By default one in the folder for temporary files.
    async fn connect_bare(&self) -> Result<(Arc<dyn Connection>, UnixStream)> {
        bare::connect(self).await
    }
}

/// One connection; calls on it may run at the same time. Its methods are those of the service.
#[async_trait]
#[allow(missing_docs, reason = "the service's definition says what its methods do")]
pub trait Connection: Send + Sync + 'static {
    async fn echo(
        &self,
        options: &Options,
        payload: Vec<u8>,
        response_size: u32,
    ) -> Result<Vec<u8>>;
    async fn fail(&self, code: i32, message: &str, detail: Vec<u8>) -> Result<()>;
    async fn sleep(&self, options: &Options, millis: u64) -> Result<()>;
    async fn inspect(&self, options: &Options) -> Result<Inspection>;
    async fn wait(&self, options: &Options, key: &str) -> Result<()>;
    async fn release(&self, key: &str) -> Result<()>;
    async fn panic(&self) -> Result<()>;
    async fn stats(&self) -> Result<Statistics>;
    /// Calls what the bindings have no function for.
    async fn call_unknown(&self, service: &str, method: &str) -> Result<()>;

    /// Closes the connection, which ends its calls.
    fn close(&self) -> Result<()> {
        Err(Failure::Unsupported("this client does not close a connection that has calls"))
    }

    async fn collect(&self, _options: &Options) -> Result<Box<dyn Upload>> {
        Err(UNARY_ONLY)
    }
    async fn hold(&self) -> Result<Box<dyn Upload>> {
        Err(UNARY_ONLY)
    }
    async fn generate(&self, _options: &Options, _request: Generate) -> Result<Box<dyn Incoming>> {
        Err(UNARY_ONLY)
    }
    async fn exchange(&self) -> Result<(Box<dyn Outgoing>, Box<dyn Incoming>)> {
        Err(UNARY_ONLY)
    }
}

/// A stream of chunks that is answered by one reply.
#[async_trait]
pub trait Upload: Send {
    /// Sends a chunk.
    async fn send(&mut self, chunk: Chunk) -> Result<()>;
    /// Ends the stream and waits for the reply.
    async fn finish(self: Box<Self>) -> Result<Collected>;
}

/// The sending half of a stream in both directions.
#[async_trait]
pub trait Outgoing: Send {
    /// Sends a chunk.
    async fn send(&mut self, chunk: Chunk) -> Result<()>;
    /// Says that no more chunks come.
    async fn close(&mut self) -> Result<()>;
}

/// A stream of chunks from the server.
#[async_trait]
pub trait Incoming: Send {
    /// Returns the next chunk, or nothing when the stream has ended cleanly.
    async fn next(&mut self) -> Result<Option<Chunk>>;
}
