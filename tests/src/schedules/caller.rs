//! One way to make calls with whichever client a schedule is run with.

use std::time::Duration;

use ttrpc::{Client, Status, client, prost::Message};

use super::client::{FrameClient, FrameReceiver, FrameSender};
use crate::{
    conformance::{Chunk, CollectResponse, ConformanceClient, GenerateRequest},
    wire::{REMOTE_CLOSED, REMOTE_OPEN, Request},
};

/// A client.
#[derive(Debug)]
pub enum Caller {
    /// The library's.
    Library(Client),
    /// A small one, which may be wrong.
    Frames(FrameClient),
}

/// The caller's side of a stream of requests.
#[derive(Debug)]
pub enum Outgoing {
    Library(client::StreamSender<Chunk>),
    Frames(FrameSender<Chunk>),
}

/// A stream of replies.
#[derive(Debug)]
pub enum Incoming {
    Library(client::StreamReceiver<Chunk>),
    Frames(FrameReceiver<Chunk>),
}

/// The one reply to a stream of requests.
#[derive(Debug)]
pub enum Summary {
    Library(client::Reply<CollectResponse>),
    Frames(FrameReceiver<CollectResponse>),
}

const SERVICE: &str = ConformanceClient::NAME;

/// Applies a deadline, where there is one, to a call of the library.
macro_rules! within {
    ($deadline:expr, $call:expr) => {
        match $deadline {
            Some(deadline) => $call.timeout(deadline).await,
            None => $call.await,
        }
    };
}

impl Caller {
    /// Makes a unary call.
    pub async fn unary<Req: Message + 'static, Resp: Message + Default>(
        &self,
        method: &'static str,
        request: Req,
        deadline: Option<Duration>,
    ) -> Result<Resp, Status> {
        match self {
            Caller::Library(client) => within!(deadline, client.unary(SERVICE, method, request)),
            Caller::Frames(client) => {
                client.unary::<Req, Resp>(head(method, Some(&request), deadline)).await
            }
        }
    }

    /// Opens a stream of replies.
    pub async fn generate(
        &self,
        request: GenerateRequest,
        deadline: Option<Duration>,
    ) -> Result<Incoming, Status> {
        match self {
            Caller::Library(client) => {
                let call = client.server_streaming(SERVICE, "Generate", request);
                within!(deadline, call).map(Incoming::Library)
            }
            Caller::Frames(client) => {
                let head = head("Generate", Some(&request), deadline);
                let opened = client.open::<Chunk, Chunk>(REMOTE_CLOSED, head).await;
                opened.map(|(_, incoming)| Incoming::Frames(incoming))
            }
        }
    }

    /// Opens a stream of requests.
    pub async fn collect(
        &self,
        method: &'static str,
        deadline: Option<Duration>,
    ) -> Result<(Outgoing, Summary), Status> {
        match self {
            Caller::Library(client) => {
                let opened = within!(deadline, client.client_streaming(SERVICE, method));
                opened.map(|(out, reply)| (Outgoing::Library(out), Summary::Library(reply)))
            }
            Caller::Frames(client) => {
                let head = head(method, None::<&Chunk>, deadline);
                let opened = client.open(REMOTE_OPEN, head).await;
                opened.map(|(out, reply)| (Outgoing::Frames(out), Summary::Frames(reply)))
            }
        }
    }

    /// Opens a stream of requests and of replies.
    pub async fn exchange(
        &self,
        deadline: Option<Duration>,
    ) -> Result<(Outgoing, Incoming), Status> {
        match self {
            Caller::Library(client) => {
                let opened = within!(deadline, client.bidi_streaming(SERVICE, "Exchange"));
                opened.map(|(out, incoming)| (Outgoing::Library(out), Incoming::Library(incoming)))
            }
            Caller::Frames(client) => {
                let head = head("Exchange", None::<&Chunk>, deadline);
                let opened = client.open(REMOTE_OPEN, head).await;
                opened.map(|(out, incoming)| (Outgoing::Frames(out), Incoming::Frames(incoming)))
            }
        }
    }
}

impl Outgoing {
    /// Sends a message.
    pub async fn send(&mut self, chunk: Chunk) -> Result<(), Status> {
        match self {
            Outgoing::Library(sender) => sender.send(chunk).await,
            Outgoing::Frames(sender) => sender.send(chunk).await,
        }
    }

    /// Says that nothing more comes.
    pub async fn finish(self) -> Result<(), Status> {
        match self {
            Outgoing::Library(sender) => {
                sender.finish();
                Ok(())
            }
            Outgoing::Frames(sender) => sender.finish().await,
        }
    }
}

impl Incoming {
    /// The next message.
    pub async fn recv(&mut self) -> Result<Option<Chunk>, Status> {
        match self {
            Incoming::Library(receiver) => receiver.recv().await,
            Incoming::Frames(receiver) => receiver.recv().await,
        }
    }
}

impl Summary {
    /// The reply.
    pub async fn take(self) -> Result<CollectResponse, Status> {
        match self {
            Summary::Library(reply) => reply.await,
            Summary::Frames(mut receiver) => {
                let reply = receiver.recv().await?;
                reply.ok_or_else(|| Status::internal("the call ended without a reply"))
            }
        }
    }
}

fn head(method: &str, request: Option<&impl Message>, deadline: Option<Duration>) -> Request {
    Request {
        service: SERVICE.to_owned(),
        method: method.to_owned(),
        payload: request.map(Message::encode_to_vec).unwrap_or_default(),
        timeout_nano: deadline.map_or(0, |deadline| deadline.as_nanos() as i64),
        ..Request::default()
    }
}
