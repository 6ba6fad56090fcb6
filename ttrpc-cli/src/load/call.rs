//! One call of a load.

use ttrpc::{Client, Status};

use super::{measured::Outcome, run::Plan};
use crate::raw::{self, Raw};

/// One call, of whatever kind.
pub async fn call(plan: &Plan, client: &Client) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.failure = try_call(plan, client, &mut outcome).await.err();
    outcome
}

async fn try_call(plan: &Plan, client: &Client, outcome: &mut Outcome) -> Result<(), Status> {
    let (target, options) = (plan.target, &plan.options);
    if !plan.is_client_streaming {
        let request = plan.requests.first().cloned().unwrap_or_default();
        outcome.sent = 1;
        outcome.bytes_sent = request.len() as u64;
        if !plan.is_server_streaming {
            let reply = raw::unary(client, target, request, options).await?;
            outcome.take(&reply);
            return Ok(());
        }
        let mut replies = raw::server_streaming(client, target, request, options).await?;
        while let Some(reply) = replies.recv().await? {
            outcome.take(&reply.0);
        }
        return Ok(());
    }
    let mut messages = plan.requests.iter().cycle().take(plan.messages);
    if !plan.is_server_streaming {
        let (mut sender, reply) = raw::client_streaming(client, target, options).await?;
        for message in messages {
            // Why it failed is for the reply to say.
            if sender.send(Raw(message.clone())).await.is_err() {
                break;
            }
            outcome.sent += 1;
            outcome.bytes_sent += message.len() as u64;
        }
        sender.finish();
        outcome.take(&reply.await?.0);
        return Ok(());
    }
    let (sender, mut replies) = raw::bidi_streaming(client, target, options).await?;
    let (mut sent, mut bytes_sent) = (0, 0);
    let sending = async {
        let mut sender = sender;
        for message in &mut messages {
            if sender.send(Raw(message.clone())).await.is_err() {
                break;
            }
            sent += 1;
            bytes_sent += message.len() as u64;
        }
        sender.finish();
    };
    let receiving = async {
        while let Some(reply) = replies.recv().await? {
            outcome.take(&reply.0);
        }
        Ok(())
    };
    let ((), received) = tokio::join!(sending, receiving);
    outcome.sent = sent;
    outcome.bytes_sent = bytes_sent;
    received
}
