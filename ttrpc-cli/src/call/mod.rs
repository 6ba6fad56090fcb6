//! `ttrpc call`.

mod prompt;
mod requests;

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use prost_reflect::MethodDescriptor;
use serde_json::Value;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use ttrpc::{
    Client, Code, Raw, Status,
    client::{StreamReceiver, StreamSender},
};

use crate::{
    args::Call,
    failure::Failure,
    json::Json,
    options::{self, DEFAULT_TIMEOUT},
    output::{self, DIM, paint},
    schema::Schema,
    session::{self, Target},
    tap::Switch,
};
use requests::Requests;

/// Calls a method and prints what it answers.
///
/// # Errors
/// Those of connecting, of finding the method, of the request, and the call's own.
pub async fn run(arguments: Call, json: bool) -> Result<(), Failure> {
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::Other(format!("Ctrl-C cannot be handled: {error}")))?;
    let frames = Switch::default();
    let (client, schema, method) = tokio::select! {
        prepared = prepare(&arguments, &frames) => prepared?,
        _ = interrupts.recv() => return Err(Failure::Interrupted),
    };
    let is_stream = method.is_client_streaming() || method.is_server_streaming();
    let timeout = match arguments.timeout {
        Some(timeout) => options::limit(timeout),
        None if is_stream => None,
        None => Some(DEFAULT_TIMEOUT),
    };
    let json_of = Json::new(&schema)
        .emit_defaults(arguments.emit_defaults)
        .allow_unknown(arguments.allow_unknown_fields);
    let mut requests = Requests::from_arguments(&arguments.data, &method, json_of);
    // They may name types that the server tells when it is asked.
    let learning = limit(&arguments);
    while requests.is_err() {
        let is_more = tokio::select! {
            is_more = schema.learn(&client, learning) => is_more,
            _ = interrupts.recv() => return Err(Failure::Interrupted),
        };
        if !is_more {
            break;
        }
        requests = Requests::from_arguments(&arguments.data, &method, json_of);
    }
    let requests = requests?;
    let caller = Caller {
        target: Target::from(&method),
        client: session::with_defaults(client, arguments.metadata, timeout),
        timeout,
        learning,
        has_default_timeout: arguments.timeout.is_none(),
        is_pretty: !json && !is_stream,
        method,
        schema: &schema,
        json: json_of,
    };
    // How the schema came is not what was asked for.
    frames.turn_on();
    let start = Instant::now();
    let result = match caller.call(requests, &mut interrupts).await {
        Err(failure @ Failure::Call { .. }) => {
            Err(caller.with_known_details(failure, &mut interrupts).await)
        }
        result => result,
    };
    prompt::remove();
    if arguments.verbose {
        let time = output::duration(start.elapsed());
        output::note(paint(DIM, format_args!("* the call took {time}")));
    }
    result
}

/// How long connecting may take, and then each answer about the schema.
fn limit(arguments: &Call) -> Option<Duration> {
    options::limit(arguments.timeout.unwrap_or(DEFAULT_TIMEOUT))
}

/// Connects, and finds out what the method is.
async fn prepare(
    arguments: &Call,
    frames: &Switch,
) -> Result<(Client, Schema, MethodDescriptor), Failure> {
    let limit = limit(arguments);
    let client = match arguments.verbose {
        true => session::connect_verbose(&arguments.address, limit, frames.clone()).await?,
        false => session::connect(&arguments.address, limit).await?,
    };
    let (options, name) = (&arguments.schema, &arguments.method);
    let (schema, method) = session::find_schema_and_method(&client, options, name, limit).await?;
    Ok((client, schema, method))
}

/// A call that is about to be made.
struct Caller<'a> {
    /// Its calls have the metadata and the timeout.
    client: Client,
    target: Target,
    timeout: Option<Duration>,
    /// How long the server may take to tell a type.
    learning: Option<Duration>,
    has_default_timeout: bool,
    is_pretty: bool,
    method: MethodDescriptor,
    schema: &'a Schema,
    json: Json<'a>,
}

impl Caller<'_> {
    async fn call(&self, mut requests: Requests, interrupts: &mut Signal) -> Result<(), Failure> {
        if self.method.is_client_streaming() {
            return self.call_with_stream(requests, interrupts).await;
        }
        let Target { service, method } = &self.target;
        // Nothing can be closed here, so the first Ctrl-C gives up.
        let answered = async {
            let request = self.encode(requests.only().await?).await?;
            if !self.method.is_server_streaming() {
                let reply = self.client.unary(service, method, request).await;
                return self.print(reply.map_err(|status| self.explain(status))?).await;
            }
            let replies = self.client.server_streaming(service, method, request).await;
            self.print_all(replies.map_err(|status| self.explain(status))?).await
        };
        tokio::select! {
            result = answered => result,
            _ = interrupts.recv() => Err(Failure::Interrupted),
        }
    }

    /// Sends requests and prints replies at the same time. The first Ctrl-C closes the stream of
    /// requests, the second one gives up.
    async fn call_with_stream(
        &self,
        requests: Requests,
        interrupts: &mut Signal,
    ) -> Result<(), Failure> {
        let (close, is_closed) = watch::channel(false);
        let interrupted = async {
            interrupts.recv().await;
            output::note("\nthe stream of requests is closed; Ctrl-C again gives up");
            close.send_replace(true);
            interrupts.recv().await;
            Failure::Interrupted
        };
        let call = async {
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
        };
        tokio::select! {
            result = call => result,
            failure = interrupted => Err(failure),
        }
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
                _ = is_closed.wait_for(|is_closed| *is_closed) => None,
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
        Ok(prompt::beside(|| match self.is_pretty {
            true => output::line(output::pretty_json(&value)),
            false => output::line(output::json(&value)),
        })?)
    }

    /// A call's status, with its details and with what may be done.
    fn explain(&self, status: Status) -> Failure {
        let timeout = self.timeout.map(output_timeout);
        let hint = match (status.code(), timeout) {
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

    /// A failure's details again, once the server has told their types. Ctrl-C leaves them as they are.
    async fn with_known_details(&self, mut failure: Failure, interrupts: &mut Signal) -> Failure {
        loop {
            let is_more = tokio::select! {
                is_more = self.learn() => is_more,
                _ = interrupts.recv() => false,
            };
            if !is_more {
                return failure;
            }
            if let Failure::Call { status, details, .. } = &mut failure {
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

/// Whether requests are typed by somebody.
fn is_terminal() -> bool {
    std::io::stdin().is_terminal()
}
