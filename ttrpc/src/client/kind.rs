//! The kinds of calls, and the output of each.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use prost::Message;

use super::{
    incoming::decode_reply,
    owner::CallOwner,
    raw::RawReceiver,
    state::payload_of,
    stream::{Reply, StreamReceiver, StreamSender},
};
use crate::{Raw, Status, proto::payload::Payload};

/// The kind of [`UnaryCall`](super::UnaryCall).
#[derive(Debug)]
pub enum Unary {}
/// The kind of [`ServerStreamingCall`](super::ServerStreamingCall).
#[derive(Debug)]
pub enum ServerStreaming {}
/// The kind of [`ClientStreamingCall`](super::ClientStreamingCall).
#[derive(Debug)]
pub enum ClientStreaming {}
/// The kind of [`BidiStreamingCall`](super::BidiStreamingCall).
#[derive(Debug)]
pub enum BidiStreaming {}
/// The kind of [`RawCall`](super::RawCall).
#[derive(Debug)]
pub enum AnyKind {}

/// A kind of calls with these messages. Implemented here alone.
pub trait CallKind<Req, Resp>: PollOutput<Req, Resp> {}

impl<K: PollOutput<Req, Resp>, Req, Resp> CallKind<Req, Resp> for K {}

/// The result of a poll of a call.
type Polled<T> = Poll<Result<T, Status>>;

/// How a kind's output is made.
pub trait PollOutput<Req, Resp> {
    /// The output of the call as a future.
    type Output;

    /// The output is the reply: there is nothing to take from a call that has just been queued.
    const AWAITS_REPLY: bool = false;

    /// Polls a call that has been queued, until it is taken.
    fn poll_output(owner: &mut Option<CallOwner>, cx: &mut Context<'_>) -> Polled<Self::Output>;
}

impl<Req, Resp: Message + Default> PollOutput<Req, Resp> for Unary {
    type Output = Resp;

    const AWAITS_REPLY: bool = true;

    fn poll_output(owner: &mut Option<CallOwner>, cx: &mut Context<'_>) -> Polled<Resp> {
        let owner = owner.as_mut().expect("a unary call stays with its future");
        let reply = match ready!(owner.poll_reply(cx))? {
            Some(response) => decode_reply(Payload::shared(payload_of(&response)?, &response)),
            None => Err(Status::internal("the call ended without a reply")),
        };
        owner.entry.tell_reply(reply.as_ref().err());
        Poll::Ready(reply)
    }
}

/// The parts of a stream share the call once it is queued.
fn share(owner: &mut Option<CallOwner>) -> Arc<CallOwner> {
    Arc::new(owner.take().expect("a call's output is taken once"))
}

impl<Req, Resp> PollOutput<Req, Resp> for ServerStreaming {
    type Output = StreamReceiver<Resp>;

    fn poll_output(owner: &mut Option<CallOwner>, _: &mut Context<'_>) -> Polled<Self::Output> {
        Poll::Ready(Ok(StreamReceiver::new(share(owner))))
    }
}

impl<Req, Resp> PollOutput<Req, Resp> for ClientStreaming {
    type Output = (StreamSender<Req>, Reply<Resp>);

    fn poll_output(owner: &mut Option<CallOwner>, _: &mut Context<'_>) -> Polled<Self::Output> {
        let owner = share(owner);
        Poll::Ready(Ok((StreamSender::new(owner.clone()), Reply::new(owner))))
    }
}

impl<Req, Resp> PollOutput<Req, Resp> for BidiStreaming {
    type Output = (StreamSender<Req>, StreamReceiver<Resp>);

    fn poll_output(owner: &mut Option<CallOwner>, _: &mut Context<'_>) -> Polled<Self::Output> {
        let owner = share(owner);
        Poll::Ready(Ok((StreamSender::new(owner.clone()), StreamReceiver::new(owner))))
    }
}

impl PollOutput<Raw, Raw> for AnyKind {
    type Output = (Option<StreamSender<Raw>>, RawReceiver);

    fn poll_output(owner: &mut Option<CallOwner>, _: &mut Context<'_>) -> Polled<Self::Output> {
        let owner = share(owner);
        let requests = owner.entry.may_stream().then(|| StreamSender::new(owner.clone()));
        Poll::Ready(Ok((requests, RawReceiver::new(owner))))
    }
}
