//! `ttrpc explore`: a session with one server.

mod calls;
mod command;
mod editor;
mod fill;
mod state;

use std::{cell::Cell, env, path::PathBuf, rc::Rc, sync::Arc, time::Duration};

use clap::{Args, ValueHint};
use prost_reflect::MethodDescriptor;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::Value;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::LocalSet,
};
use ttrpc::Client;

use crate::{
    explore,
    failure::Failure,
    options::{
        self, DEFAULT_TIMEOUT, MetadataOption, SchemaOptions, parse_duration, parse_metadata,
    },
    output::{self, BAD, DIM, paint},
    schema::{self, Schema},
    session,
};
use command::Command;
use editor::{Context, Editor, Line};
use state::State;

const PROMPT: &str = "ttrpc> ";

/// Call methods of a server in a session
///
/// A line is a method and its request, or a command; `help` lists the commands. Tab completes commands, methods, fields and
/// enum values. With `?` after a method its fields are asked for, with `&` the call runs in the background. Requests of a stream are
/// typed line by line. A server that was restarted is connected to again, and its schema is read again. Where the input is
/// no terminal, the first failure ends the session.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc explore /run/greeter.sock
  echo 'SayHello name=Ann' | ttrpc explore /run/greeter.sock")]
pub struct Arguments {
    /// Where the server listens
    #[arg(value_hint = ValueHint::AnyPath)]
    address: String,
    #[command(flatten)]
    metadata: MetadataOption,
    /// How long connecting, and then each call, may take: 300ms, 5s, 2m; 0 for ever [default: 5s, streams for ever]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Keep no history; otherwise lines are kept that do not begin with a space
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    schema: SchemaOptions,
}

/// Runs a session until it is ended.
///
/// # Errors
/// Those of connecting and of the terminal; the first failure of a session that is no terminal's.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
    let cannot =
        |error: std::io::Error| Failure::Other(format!("signals cannot be handled: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let interrupts = signal(SignalKind::interrupt()).map_err(cannot)?;
    let _restored = Restored(tcgetattr(std::io::stdin()).ok());
    let limit = options::limit(arguments.timeout.unwrap_or(DEFAULT_TIMEOUT));
    let client = session::connect(&arguments.address, limit).await?;
    let metadata = arguments.metadata.metadata.clone();
    let asks = session::with_defaults(client.clone(), metadata.clone(), None);
    let schema = session::find_schema(&asks, &arguments.schema, limit).await?;
    let state = Arc::new(State::new(schema));
    let history = history().filter(|_| !arguments.no_history);
    let editor = Rc::new(Editor::start(state.clone(), history)?);
    let session = Session {
        client: Some(client),
        state,
        editor,
        interrupts,
        metadata,
        timeout: arguments.timeout,
        arguments,
        calls_so_far: 0,
        is_json: json,
        has_failed: Rc::default(),
    };
    let tasks = LocalSet::new();
    tokio::select! {
        result = tasks.run_until(session.run()) => result,
        _ = terminate.recv() => Err(Failure::Interrupted),
        _ = hangup.recv() => Err(Failure::Interrupted),
    }
}

/// `$XDG_STATE_HOME/ttrpc/history`, or where that is by default.
fn history() -> Option<PathBuf> {
    let of = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join("ttrpc/history"))
}

/// The terminal as it was, also if a line is being read.
struct Restored(Option<Termios>);

impl Drop for Restored {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

struct Session {
    arguments: Arguments,
    client: Option<Client>,
    state: Arc<State>,
    editor: Rc<Editor>,
    interrupts: Signal,
    metadata: Vec<(String, String)>,
    timeout: Option<Duration>,
    calls_so_far: u32,
    is_json: bool,
    /// Whether a call in the background has failed.
    has_failed: Rc<Cell<bool>>,
}

impl Session {
    async fn run(mut self) -> Result<(), Failure> {
        if self.editor.is_terminal {
            let services = self.state.schema().pool().services().count();
            let services = output::count(services as u64, "service");
            let address = output::plain_line(&self.arguments.address);
            self.editor.print(format!("{address}: {services}; `help` lists commands")).await?;
        }
        loop {
            let line = match self.editor.read(PROMPT, Context::Command).await? {
                Line::Text(line) => line,
                Line::Interrupted => {
                    self.note("Ctrl-D ends the session").await?;
                    continue;
                }
                Line::End => break,
            };
            let done = match command::parse(&line) {
                Ok(Command::Quit) => break,
                Ok(command) => self.obey(command).await,
                Err(error) => Err(Failure::Usage(error)),
            };
            match done {
                Ok(()) => {}
                Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
                Err(failure) if !self.editor.is_terminal => return Err(failure),
                Err(failure) => {
                    self.editor.print(format!("{} {failure}", paint(BAD, "error:"))).await?;
                }
            }
        }
        if self.editor.is_terminal {
            return Ok(());
        }
        self.wait(None).await?;
        if self.has_failed.get() { Err(Failure::Found) } else { Ok(()) }
    }

    async fn note(&self, text: &str) -> Result<(), Failure> {
        self.editor.print(paint(DIM, text)).await
    }

    fn limit(&self) -> Option<Duration> {
        options::limit(self.timeout.unwrap_or(DEFAULT_TIMEOUT))
    }

    /// The connection, made again if it has ended. Then the schema is read again, too.
    async fn client(&mut self) -> Result<Client, Failure> {
        if let Some(client) = &self.client {
            let is_closed = tokio::select! {
                biased;
                _ = client.closed() => true,
                () = std::future::ready(()) => false,
            };
            if !is_closed {
                return Ok(client.clone());
            }
        }
        let client = session::connect(&self.arguments.address, self.limit()).await?;
        let options = &self.arguments.schema;
        let asks = session::with_defaults(client.clone(), self.metadata.clone(), None);
        self.state.set_schema(session::find_schema(&asks, options, self.limit()).await?);
        self.note("connected again").await?;
        self.client = Some(client.clone());
        Ok(client)
    }

    async fn obey(&mut self, command: Command) -> Result<(), Failure> {
        match command {
            Command::Nothing | Command::Quit => Ok(()),
            Command::Help => self.editor.print(command::HELP.to_owned()).await,
            Command::List(name) => {
                let (client, schema) = (self.client().await?, self.state.schema());
                explore::list_of(Some(client), &schema, name.as_deref(), self.limit(), self.is_json)
                    .await
            }
            Command::Describe(name) => {
                let (client, schema) = (self.client().await?, self.state.schema());
                let shown = explore::Shown {
                    name: name.as_deref(),
                    is_template: false,
                    may_be_built_in: self.arguments.schema.schema.is_none(),
                };
                explore::describe_of(Some(&client), &schema, shown, self.limit(), self.is_json)
                    .await
            }
            Command::Template(name) => {
                let (_, method) = self.find(&name).await?;
                let template = schema::template::template(&method.input());
                self.editor.print(self.text(&template, true)).await
            }
            Command::Call { method, data, in_background } => {
                let (schema, method) = self.find(&method).await?;
                self.call(schema, method, data, in_background).await
            }
            Command::Calls => {
                for (id, call) in self.state.calls() {
                    let age = output::duration(call.begun.elapsed());
                    let stream = if call.requests.is_some() { ", takes requests" } else { "" };
                    let name = output::plain_line(&call.name);
                    self.editor.print(format!("#{id} {name}, {age}{stream}")).await?;
                }
                Ok(())
            }
            Command::Wait(id) => self.wait(id).await,
            Command::Cancel(id) => {
                self.state.call(id).map_err(Failure::Usage)?.task.abort();
                self.state.end(id);
                self.note(&format!("#{id} is cancelled")).await
            }
            Command::Send(id, request) => self.send(id, &request).await,
            Command::Close(id) => self.state.close(id).map_err(Failure::Usage),
            Command::Last(id) => {
                let value = self.state.last(id).map_err(Failure::Usage)?;
                self.editor.print(self.text(&value, true)).await
            }
            Command::Metadata(change) => self.change_metadata(change).await,
            Command::Timeout(time) => {
                if let Some(time) = time {
                    self.timeout = Some(parse_duration(&time).map_err(Failure::Usage)?);
                }
                let text = match self.timeout.map(options::limit) {
                    None => "5s, streams for ever".to_owned(),
                    Some(None) => "for ever".to_owned(),
                    Some(Some(limit)) => humantime::format_duration(limit).to_string(),
                };
                self.editor.print(text).await
            }
        }
    }

    async fn change_metadata(&mut self, change: Option<String>) -> Result<(), Failure> {
        let Some(change) = change else {
            for (key, value) in &self.metadata {
                self.editor.print(output::plain_line(format_args!("{key}: {value}"))).await?;
            }
            return Ok(());
        };
        let (key, value) = parse_metadata(&change).map_err(Failure::Usage)?;
        match value.is_empty() {
            true => self.metadata.retain(|(known, _)| *known != key),
            false => self.metadata.push((key, value)),
        }
        Ok(())
    }

    /// A value for people or for machines.
    fn text(&self, value: &Value, is_pretty: bool) -> String {
        if is_pretty && !self.is_json { output::pretty_json(value) } else { output::json(value) }
    }

    async fn find(&mut self, name: &str) -> Result<(Schema, MethodDescriptor), Failure> {
        let client = self.client().await?;
        let schema = self.state.schema();
        let options = &self.arguments.schema;
        session::find_method_of(&client, &schema, options, name, self.limit()).await
    }
}
