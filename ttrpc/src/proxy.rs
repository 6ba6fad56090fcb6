//! Passing calls on to another server.

use std::future::pending;

use crate::{
    Client, Context, Raw, RawEnd, Status,
    client::{RawReply, StreamSender},
    server::FallbackCall,
};

impl FallbackCall {
    /// Passes the call on to another server, and its answer back.
    ///
    /// Metadata, the time until the deadline, messages, status and details go through. Messages are taken as the other
    /// side has capacity for them.
    ///
    /// Use a connection of its own as `upstream` for each client. ttrpc has no frame that cancels a call: a client
    /// cancels by closing its connection. So when the client goes before the end of its messages, the connection of
    /// `upstream` is closed, with all of its calls. An `upstream` that reconnects makes another one for later calls. When `upstream` ends, the program closes the client's connection, as `examples/proxy` does. A call whose
    /// deadline passes, or which its client [cancels](crate::client::ConnectOptions::cancel_at_server), leaves the
    /// connections alone. The other server is notified if `upstream` was made with that option.
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
            if let (Some(mut requests), Some(outgoing)) = (requests, outgoing) {
                let mut outgoing = Outgoing { ctx, sender: outgoing, is_over: false };
                // If they end early, the replies tell why.
                while let Ok(Some(message)) = requests.recv().await {
                    if outgoing.sender.send(message).await.is_err() {
                        break;
                    }
                }
                outgoing.is_over = true;
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

/// The stream of requests to the server, which could take its end for a good one. So when the client has gone before the
/// end, the connection is closed; when the call is over for another reason, it is given up.
struct Outgoing<'a> {
    ctx: &'a Context,
    sender: StreamSender<Raw>,
    is_over: bool,
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        if self.ctx.is_disconnected() {
            self.sender.close_connection();
        } else if !self.is_over {
            self.sender.abandon();
        }
    }
}
