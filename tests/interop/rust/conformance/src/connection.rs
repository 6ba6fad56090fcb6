//! What a library has to offer for the cases to run on it.

use crate::message::{Chunk, Collected, Failure, Generate, Inspection, Statistics};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Failure>;

const UNARY_ONLY: Failure = Failure::Unsupported("this client has no streams");

/// What a call carries beside its request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub timeout: Option<Duration>,
    pub metadata: Vec<(String, String)>,
}

impl Options {
    pub fn timeout(timeout: Duration) -> Self {
        Options { timeout: Some(timeout), ..Options::default() }
    }
}

#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Whether a call ends when its future is dropped.
    const CANCELS: bool;

    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>>;
}

/// One connection; calls on it may run at the same time.
#[async_trait]
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
    async fn wait(&self, key: &str) -> Result<()>;
    async fn release(&self, key: &str) -> Result<()>;
    async fn panic(&self) -> Result<()>;
    async fn stats(&self) -> Result<Statistics>;
    /// Calls what the bindings have no function for.
    async fn call_unknown(&self, service: &str, method: &str) -> Result<()>;

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
    async fn send(&mut self, chunk: Chunk) -> Result<()>;
    async fn finish(self: Box<Self>) -> Result<Collected>;
}

#[async_trait]
pub trait Outgoing: Send {
    async fn send(&mut self, chunk: Chunk) -> Result<()>;
    async fn close(&mut self) -> Result<()>;
}

#[async_trait]
pub trait Incoming: Send {
    /// Returns the next chunk, or nothing when the stream has ended cleanly.
    async fn next(&mut self) -> Result<Option<Chunk>>;
}
