//! `ttrpc call`.

mod arguments;
pub mod caller;
mod prompt;
pub mod requests;

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use prost_reflect::MethodDescriptor;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use ttrpc::Client;

use crate::{
    failure::Failure,
    json::Json,
    options::{self, DEFAULT_TIMEOUT},
    output::{self, DIM, paint},
    schema::Schema,
    session::{self, Target},
    tap::Switch,
};
pub use arguments::Arguments;
use caller::Caller;
use requests::Requests;

/// Calls a method and prints what it answers.
///
/// # Errors
/// Those of connecting, of finding the method, of the request, and the call's own.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
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
    let is_pretty = !json && !is_stream;
    let print = async move |value: &serde_json::Value| {
        Ok(prompt::beside(|| match is_pretty {
            true => output::line(output::pretty_json(value)),
            false => output::line(output::json(value)),
        })?)
    };
    let caller = Caller {
        target: Target::from(&method),
        client: session::with_defaults(client, [], timeout),
        timeout,
        learning,
        has_default_timeout: arguments.timeout.is_none(),
        method,
        schema: &schema,
        json: json_of,
        print,
    };
    // How the schema came is not what was asked for.
    frames.turn_on();
    let start = Instant::now();
    let result = match call(&caller, requests, &mut interrupts).await {
        Err(failure @ Failure::Call { .. }) => {
            let mut known = failure;
            tokio::select! {
                () = caller.learn_details(&mut known) => {}
                _ = interrupts.recv() => {}
            }
            Err(known)
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
fn limit(arguments: &Arguments) -> Option<Duration> {
    options::limit(arguments.timeout.unwrap_or(DEFAULT_TIMEOUT))
}

/// Connects, and finds out what the method is.
async fn prepare(
    arguments: &Arguments,
    frames: &Switch,
) -> Result<(Client, Schema, MethodDescriptor), Failure> {
    let limit = limit(arguments);
    let client = match arguments.verbose {
        true => session::connect_verbose(&arguments.address, limit, frames.clone()).await?,
        false => session::connect(&arguments.address, limit).await?,
    };
    // Who may ask for the schema is said by metadata, too.
    let client = session::with_defaults(client, arguments.metadata.metadata.clone(), None);
    let (options, name) = (&arguments.schema, &arguments.method);
    let (schema, method) = session::find_schema_and_method(&client, options, name, limit).await?;
    Ok((client, schema, method))
}

/// Makes the call. The first Ctrl-C closes the stream of requests, the second one cancels the call; without a stream of
/// requests the first one does.
async fn call<P: AsyncFn(&serde_json::Value) -> Result<(), Failure>>(
    caller: &Caller<'_, P>,
    requests: Requests,
    interrupts: &mut Signal,
) -> Result<(), Failure> {
    let (close, is_closed) = watch::channel(false);
    let interrupted = async {
        interrupts.recv().await;
        if caller.method.is_client_streaming() {
            output::note("\nthe stream of requests is closed; Ctrl-C again cancels the call");
            close.send_replace(true);
            interrupts.recv().await;
        }
    };
    tokio::select! {
        result = caller.call(requests, is_closed) => result,
        () = interrupted => Err(Failure::Interrupted),
    }
}

/// Whether requests are typed by somebody.
fn is_terminal() -> bool {
    std::io::stdin().is_terminal()
}
