//! Playing one call of a schedule.

use std::sync::Arc;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use ttrpc::{Code, Status};

use super::{
    caller::{Caller, Incoming, Outgoing},
    schedule::{CallKind, Consumer, Messages, PlannedCall},
};
use crate::conformance::{
    Chunk, CollectResponse, EchoRequest, EchoResponse, Empty, GenerateRequest, KeyRequest,
    SleepRequest,
};

/// The key whose release lets `Hold` read.
pub(super) const HOLD_KEY: &str = "hold";

/// How a call ended, or what was wrong with what it brought.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    /// With its reply, all of it and in order.
    Well,
    /// With a status of this code.
    With(Code),
    /// Dropped by its caller.
    Dropped,
    /// With something that it must not bring.
    Wrong(String),
}

/// Says that a reply is not what was asked for. No server of these tests fails with this code.
fn wrong(what: String) -> Status {
    Status::data_loss(what)
}

/// Makes the call and sees it through.
pub(super) async fn play(
    caller: Arc<Caller>,
    call: PlannedCall,
    others_ended: CancellationToken,
) -> Ending {
    match try_play(&caller, &call, others_ended).await {
        Ok(()) => Ending::Well,
        Err(status) if status.code() == Code::DataLoss => {
            Ending::Wrong(status.message().to_owned())
        }
        Err(status) => Ending::With(status.code()),
    }
}

async fn try_play(
    caller: &Caller,
    call: &PlannedCall,
    others_ended: CancellationToken,
) -> Result<(), Status> {
    let deadline = call.deadline;
    match call.kind {
        CallKind::Echo { request, reply } => {
            let message = EchoRequest { payload: vec![0; request], response_size: reply as u32 };
            let response: EchoResponse = caller.unary("Echo", message, deadline).await?;
            let expected = if reply == 0 { request } else { reply };
            match response.payload.len() {
                len if len == expected => Ok(()),
                len => Err(wrong(format!("a reply of {len} bytes instead of {expected}"))),
            }
        }
        CallKind::Sleep(time) => {
            let message = SleepRequest { millis: time.as_millis() as u64 };
            caller.unary::<_, Empty>("Sleep", message, deadline).await.map(drop)
        }
        CallKind::Wait(key) => {
            caller.unary::<_, Empty>("Wait", key_request(key), deadline).await.map(drop)
        }
        CallKind::Release(key) => {
            caller.unary::<_, Empty>("Release", key_request(key), deadline).await.map(drop)
        }
        CallKind::Generate(messages, consumer) => {
            let request = GenerateRequest {
                count: messages.count,
                size: messages.size as u32,
                ..GenerateRequest::default()
            };
            let incoming = caller.generate(request, deadline).await?;
            consume(incoming, messages, consumer, others_ended).await
        }
        CallKind::Exchange(messages, consumer) => {
            let (outgoing, incoming) = caller.exchange(deadline).await?;
            let produced = produce(outgoing, messages);
            let consumed = consume(incoming, messages, consumer, others_ended);
            let (produced, consumed) = tokio::join!(produced, consumed);
            consumed.and(produced)
        }
        CallKind::Collect(messages) => collect(caller, "Collect", call, messages).await,
        CallKind::Hold(messages) => collect(caller, "Hold", call, messages).await,
    }
}

fn key_request(key: u8) -> KeyRequest {
    KeyRequest { key: key.to_string() }
}

async fn collect(
    caller: &Caller,
    method: &'static str,
    call: &PlannedCall,
    messages: Messages,
) -> Result<(), Status> {
    let (outgoing, summary) = caller.collect(method, call.deadline).await?;
    // A stream that the server has ended says why where its reply would be.
    let (produced, summary) = tokio::join!(produce(outgoing, messages), summary.take());
    let expected = CollectResponse {
        chunks: messages.count,
        bytes: messages.count * messages.size as u64,
        in_order: true,
    };
    match summary? {
        summary if summary == expected => produced,
        summary => Err(wrong(format!("{summary:?} instead of {expected:?}"))),
    }
}

async fn produce(mut outgoing: Outgoing, messages: Messages) -> Result<(), Status> {
    for sequence in 0..messages.count {
        outgoing.send(Chunk { sequence, payload: vec![0; messages.size] }).await?;
    }
    outgoing.finish().await
}

/// Takes all messages, which must come whole and in order.
async fn consume(
    mut incoming: Incoming,
    messages: Messages,
    consumer: Consumer,
    others_ended: CancellationToken,
) -> Result<(), Status> {
    if consumer == Consumer::Last {
        others_ended.cancelled().await;
    }
    let mut next = 0;
    loop {
        if let Consumer::Slow(pause) = consumer {
            sleep(pause).await;
        }
        let Some(chunk) = incoming.recv().await? else { break };
        if chunk.sequence != next || chunk.payload.len() != messages.size {
            let (sequence, len) = (chunk.sequence, chunk.payload.len());
            return Err(wrong(format!("message {sequence} of {len} bytes came as number {next}")));
        }
        next += 1;
    }
    if next != messages.count {
        return Err(wrong(format!(
            "a stream ended well after {next} of {} messages",
            messages.count
        )));
    }
    Ok(())
}
