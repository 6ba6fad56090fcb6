//! One call of a load.

use ttrpc::{Client, Raw, Status};

use super::{
    measured::Outcome,
    plan::{Method, Plan},
};
use crate::session::Target;

/// One call, of whatever kind. Its number says which method is called, and with what.
pub async fn call(plan: &Plan, client: &Client, number: u64) -> Outcome {
    let (index, number) = plan.method_of(number);
    let mut outcome = Outcome { method: index, ..Outcome::default() };
    outcome.failure = try_call(&plan.methods[index], client, number, &mut outcome).await.err();
    outcome
}

async fn try_call(
    plan: &Method,
    client: &Client,
    number: u64,
    outcome: &mut Outcome,
) -> Result<(), Status> {
    let Target { service, method } = &plan.target;
    let messages = plan.data.of_call(number, plan.messages)?;
    if !plan.is_client_streaming {
        let request = messages.into_iter().next().unwrap_or_default();
        let len = request.len() as u64;
        let result = call_with_one_request(plan, client, Raw(request), outcome).await;
        // Of a call that failed with its connection nobody knows whether its request has left.
        if !matches!(&result, Err(status) if status.connection_error().is_some()) {
            outcome.sent = 1;
            outcome.bytes_sent = len;
        }
        return result;
    }
    if !plan.is_server_streaming {
        let (mut sender, reply) = client.client_streaming(service, method).await?;
        for message in messages {
            let len = message.len() as u64;
            // Why it failed is for the reply to say.
            if sender.send(Raw(message)).await.is_err() {
                break;
            }
            outcome.sent += 1;
            outcome.bytes_sent += len;
        }
        sender.finish();
        let Raw(reply) = reply.await?;
        outcome.take(&reply);
        return Ok(());
    }
    let (sender, mut replies) = client.bidi_streaming(service, method).await?;
    let (mut sent, mut bytes_sent) = (0, 0);
    let sending = async {
        let mut sender = sender;
        for message in messages {
            let len = message.len() as u64;
            if sender.send(Raw(message)).await.is_err() {
                break;
            }
            sent += 1;
            bytes_sent += len;
        }
        sender.finish();
    };
    let receiving = async {
        while let Some(Raw(reply)) = replies.recv().await? {
            outcome.take(&reply);
        }
        Ok(())
    };
    let ((), received) = tokio::join!(sending, receiving);
    outcome.sent = sent;
    outcome.bytes_sent = bytes_sent;
    received
}

async fn call_with_one_request(
    plan: &Method,
    client: &Client,
    request: Raw,
    outcome: &mut Outcome,
) -> Result<(), Status> {
    let Target { service, method } = &plan.target;
    if !plan.is_server_streaming {
        let Raw(reply) = client.unary(service, method, request).await?;
        outcome.take(&reply);
        return Ok(());
    }
    let mut replies = client.server_streaming(service, method, request).await?;
    while let Some(Raw(reply)) = replies.recv().await? {
        outcome.take(&reply);
    }
    Ok(())
}
