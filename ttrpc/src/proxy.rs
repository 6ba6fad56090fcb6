//! Passing calls on to another server.

use std::future::pending;

use crate::{Client, Context, RawEnd, Status, client::RawReply, server::FallbackCall};

impl FallbackCall {
    /// Passes the call on to another server, and its answer back.
    ///
    /// Metadata, the time until the deadline, messages, status and details go through. Messages are taken as the other
    /// side has capacity for them.
    ///
    /// Use a connection of its own as `upstream` for each client. ttrpc has no frame that cancels a call: a client
    /// cancels by closing its connection. So when the client goes before the end of its messages, `upstream` is closed.
    /// When `upstream` ends, the program closes the client's connection, as `examples/proxy` does. A call whose
    /// deadline passes leaves the connections alone.
    ///
    /// # Errors
    /// The status of the other server; UNAVAILABLE if the connection to it is lost; INTERNAL if that sends a stream of replies to a unary call.
    pub async fn pass_on(self, ctx: &Context, upstream: &Client) -> Result<RawEnd, Status> {
        let FallbackCall { flags, payload, requests, mut replies } = self;
        let (service, method) = ctx.names();
        let call = upstream.raw(service, method, flags, payload);
        let opened = call.with_metadata(ctx.metadata().clone()).within(ctx).await;
        let (outgoing, mut incoming) = opened.map_err(of_upstream)?;
        let pass_requests = async move {
            if let (Some(mut requests), Some(mut outgoing)) = (requests, outgoing) {
                let _hang_up = HangUp { ctx, upstream };
                // If they end early, the replies tell why.
                while let Ok(Some(message)) = requests.recv().await {
                    if outgoing.send(message).await.is_err() {
                        break;
                    }
                }
            }
            pending().await
        };
        let pass_replies = async {
            loop {
                match (incoming.recv().await.map_err(of_upstream)?, &mut replies) {
                    (RawReply::End(end), _) => return Ok(end),
                    (RawReply::Message(message), Some(replies)) => replies.send(message).await?,
                    (RawReply::Message(_), None) => {
                        return Err(Status::internal("a unary call got a stream"));
                    }
                }
            }
        };
        tokio::select! {
            end = pass_requests => end,
            end = pass_replies => end,
        }
    }
}

/// A status as the caller should read it, to whom the lost connection is not his own.
fn of_upstream(status: Status) -> Status {
    match status.connection_error() {
        Some(reason) => {
            Status::unavailable(format!("no connection to the server behind: {reason}"))
        }
        None => status,
    }
}

/// Closes the connection to the server when the client has gone, before the end of a stream of requests
/// could be taken for a good one.
struct HangUp<'a> {
    ctx: &'a Context,
    upstream: &'a Client,
}

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        if self.ctx.is_disconnected() {
            self.upstream.close();
        }
    }
}
