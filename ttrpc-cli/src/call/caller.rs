//! One call of any kind: sends JSON, and prints JSON.

use std::time::Duration;

use prost_reflect::MethodDescriptor;
use serde_json::Value;
use tokio::sync::watch;
use ttrpc::{
    Client, Code, Raw, Status,
    client::{StreamReceiver, StreamSender},
};

use super::requests::Requests;
use crate::{failure::Failure, json::Json, output, schema::Schema, session::Target};

/// A call that is about to be made.
pub struct Caller<'a, P> {
    /// Its calls have the metadata and the timeout.
    pub client: Client,
    pub target: Target,
    pub timeout: Option<Duration>,
    /// How long the server may take to return a type.
    pub learning: Option<Duration>,
    pub has_default_timeout: bool,
    pub method: MethodDescriptor,
    pub schema: &'a Schema,
    pub json: Json<'a>,
    /// Prints a reply.
    pub print: P,
}

impl<P: AsyncFn(&Value) -> Result<(), Failure>> Caller<'_, P> {
    /// Makes the call, and prints each reply as it arrives. Once `is_closed` is set, no more requests are sent.
    ///
    /// # Errors
    /// The call's status, and a request or a reply that does not fit its type.
    pub async fn call(
        &self,
        mut requests: Requests,
        is_closed: watch::Receiver<bool>,
    ) -> Result<(), Failure> {
        if self.method.is_client_streaming() {
            return self.call_with_stream(requests, is_closed).await;
        }
        let Target { service, method } = &self.target;
        let request = self.encode(requests.only().await?).await?;
        if !self.method.is_server_streaming() {
            let reply = self.client.unary(service, method, request).await;
            return self.print(reply.map_err(|status| self.explain(status))?).await;
        }
        let replies = self.client.server_streaming(service, method, request).await;
        self.print_all(replies.map_err(|status| self.explain(status))?).await
    }

    /// Sends requests and prints replies at the same time.
    async fn call_with_stream(
        &self,
        requests: Requests,
        is_closed: watch::Receiver<bool>,
    ) -> Result<(), Failure> {
        let Target { service, method } = &self.target;
        if self.method.is_server_streaming() {
            let opened = self.client.bidi_streaming(service, method).await;
            let (sender, replies) = opened.map_err(|status| self.explain(status))?;
            let sending = self.send_all(sender, requests, is_closed);
            return first_failure(sending, self.print_all(replies)).await;
        }
        let opened = self.client.client_streaming(service, method).await;
        let (sender, reply) = opened.map_err(|status| self.explain(status))?;
        let sending = self.send_all(sender, requests, is_closed);
        let printed =
            async { self.print(reply.await.map_err(|status| self.explain(status))?).await };
        first_failure(sending, printed).await
    }

    /// Sends requests until there are no more, the stream is closed by the user, or the call is over,
    /// which is for the replies to say.
    async fn send_all(
        &self,
        mut sender: StreamSender<Raw>,
        mut requests: Requests,
        mut is_closed: watch::Receiver<bool>,
    ) -> Result<(), Failure> {
        loop {
            let next = tokio::select! {
                next = requests.next() => next?,
                Ok(_) = is_closed.wait_for(|is_closed| *is_closed) => None,
            };
            let Some(request) = next else { break };
            let request = match self.encode(request).await {
                Ok(request) => request,
                Err(failure) if requests.are_typed() => {
                    output::note(failure);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if sender.send(request).await.is_err() {
                break;
            }
        }
        sender.finish();
        Ok(())
    }

    /// Asks the server for the types that were not known; whether there are more now.
    async fn learn(&self) -> bool {
        self.schema.learn(&self.client, self.learning).await
    }

    async fn encode(&self, request: Value) -> Result<Raw, Failure> {
        self.json.look_for_anys(&request);
        self.learn().await;
        self.json.encode(&self.method.input(), request).map(Raw).map_err(|error| {
            Failure::Usage(format!(
                "the request does not fit: {error}. `ttrpc describe ADDRESS {} --template` prints \
                 one to fill in",
                crate::schema::method_name(&self.method)
            ))
        })
    }

    async fn print_all(&self, mut replies: StreamReceiver<Raw>) -> Result<(), Failure> {
        while let Some(reply) = replies.recv().await.map_err(|status| self.explain(status))? {
            self.print(reply).await?;
        }
        Ok(())
    }

    async fn print(&self, Raw(reply): Raw) -> Result<(), Failure> {
        let mut decoded = self.json.decode(&self.method.output(), reply.clone());
        // Each may hold one of a further type.
        while self.learn().await {
            decoded = self.json.decode(&self.method.output(), reply.clone());
        }
        let value = decoded.map_err(|error| {
            Failure::Other(format!("the reply does not fit {}: {error}", self.schema.source()))
        })?;
        (self.print)(&value).await
    }

    /// A call's status, with its details and with what may be done.
    fn explain(&self, status: Status) -> Failure {
        let timeout = self.timeout.map(output_timeout);
        let service = self.method.parent_service();
        let is_nri = service.full_name().starts_with("nri.pkg.api.");
        let hint = match (status.code(), timeout) {
            (Code::DeadlineExceeded | Code::Unavailable, _)
                if is_nri && !status.is_from_peer() =>
            {
                Some(
                    "NRI's socket has ttrpc within a multiplexer, which `ttrpc nri` speaks and a call does not"
                        .to_owned(),
                )
            }
            (Code::DeadlineExceeded, timeout) if status.is_from_peer() => Some(match timeout {
                Some(timeout) => {
                    format!("the server itself says so; the call had {timeout}")
                }
                None => "the server itself says so".to_owned(),
            }),
            (Code::DeadlineExceeded, Some(timeout)) if self.has_default_timeout => Some(format!(
                "it had not ended within {timeout}, the default; --timeout TIME gives it longer, \
                 --timeout 0 for ever"
            )),
            (Code::DeadlineExceeded, Some(timeout)) => {
                Some(format!("it had not ended within {timeout}, as --timeout has it"))
            }
            (Code::Unimplemented, _) => {
                Some("`ttrpc list ADDRESS` prints what the server has".to_owned())
            }
            _ => None,
        };
        let details = self.details(&status);
        Failure::Call { status, hint, details }
    }

    fn details(&self, status: &Status) -> Vec<Value> {
        status.details().iter().map(|any| self.json.any(&any.type_url, &any.value)).collect()
    }

    /// Reads a failure's details again once the server has returned their types.
    pub async fn learn_details(&self, failure: &mut Failure) {
        while self.learn().await {
            if let Failure::Call { status, details, .. } = failure {
                *details = self.details(status);
            }
        }
    }
}

fn output_timeout(timeout: Duration) -> String {
    humantime::format_duration(timeout).to_string()
}

/// Runs both until the replies have ended, or either has failed.
async fn first_failure(
    sending: impl Future<Output = Result<(), Failure>>,
    replies: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let mut replies = std::pin::pin!(replies);
    tokio::select! {
        biased;
        result = &mut replies => return result,
        result = sending => result?,
    }
    replies.await
}
