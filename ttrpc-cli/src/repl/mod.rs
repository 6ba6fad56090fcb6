//! `ttrpc explore`: a session with one server.

mod command;
mod editor;
mod fill;
mod state;

use std::{
    cell::Cell,
    env,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, ValueHint};
use prost_reflect::{MessageDescriptor, MethodDescriptor};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::{Map, Value, json};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::LocalSet,
};
use ttrpc::Client;

use crate::{
    call::{caller::Caller, requests::Requests},
    explore,
    failure::Failure,
    fields::Fields,
    json::Json,
    options::{self, DEFAULT_TIMEOUT, SchemaOptions, parse_duration, parse_metadata},
    output::{self, BAD, DIM, paint},
    schema::{self, Schema, method_name},
    session::{self, Target},
    strict,
};
use command::{Command, Data};
use editor::{Context, Editor, Line};
use state::{InFlight, State};

/// Requests of a stream that wait to be sent.
const SEND_AHEAD: usize = 16;

const PROMPT: &str = "ttrpc> ";

/// Call methods of a server in a session
///
/// A line is a method and its request, or a command; `help` lists the commands. Tab completes commands, methods, fields and
/// enum values. With `?` behind a method its fields are asked for, with `&` the call runs in the background. Requests of a stream are
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
    /// Metadata of each call; may be repeated
    #[arg(short = 'H', long = "metadata", value_name = "KEY:VALUE", value_parser = parse_metadata)]
    metadata: Vec<(String, String)>,
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
    let schema = session::find_schema(&client, &arguments.schema, limit).await?;
    let state = Arc::new(State::new(schema));
    let history = history().filter(|_| !arguments.no_history);
    let editor = Rc::new(Editor::start(state.clone(), history)?);
    let session = Session {
        client: Some(client),
        state,
        editor,
        interrupts,
        metadata: arguments.metadata.clone(),
        timeout: arguments.timeout,
        arguments,
        calls_so_far: 0,
        is_json: json,
        failed: Rc::default(),
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
    /// `None` after its connection has ended.
    client: Option<Client>,
    state: Arc<State>,
    editor: Rc<Editor>,
    interrupts: Signal,
    metadata: Vec<(String, String)>,
    timeout: Option<Duration>,
    calls_so_far: u32,
    is_json: bool,
    failed: Rc<Failed>,
}

/// What has failed meanwhile.
#[derive(Default)]
struct Failed {
    /// The connection has ended.
    connection: Cell<bool>,
    /// A call in the background.
    call: Cell<bool>,
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
        if self.failed.call.get() { Err(Failure::Found) } else { Ok(()) }
    }

    async fn note(&self, text: &str) -> Result<(), Failure> {
        self.editor.print(paint(DIM, text)).await
    }

    fn limit(&self) -> Option<Duration> {
        options::limit(self.timeout.unwrap_or(DEFAULT_TIMEOUT))
    }

    /// The connection, made again if it has ended. Then the schema is read again, too.
    async fn client(&mut self) -> Result<Client, Failure> {
        if self.failed.connection.replace(false) {
            self.client = None;
        }
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = session::connect(&self.arguments.address, self.limit()).await?;
        let options = &self.arguments.schema;
        self.state.set_schema(session::find_schema(&client, options, self.limit()).await?);
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

    /// Makes a call; waits for its end unless it runs in the background.
    async fn call(
        &mut self,
        schema: Schema,
        method: MethodDescriptor,
        data: Data,
        in_background: bool,
    ) -> Result<(), Failure> {
        let client = self.client().await?;
        let (input, name) = (method.input(), output::plain_line(method_name(&method)));
        let mut typed = None;
        let requests = match data {
            Data::Given(words) if words.is_empty() && method.is_client_streaming() => {
                let (sender, receiver) = mpsc::channel(SEND_AHEAD);
                typed = Some(sender);
                Requests::from_channel(receiver)
            }
            Data::Given(words) => self.requests(&client, &schema, &method, words).await?,
            Data::Prompted => {
                let Some(value) = fill::fill(&self.editor, &input).await? else {
                    return self.note("no call is made").await;
                };
                self.note(&output::json(&value)).await?;
                Requests::from_values(vec![value])
            }
        };
        self.calls_so_far += 1;
        let id = self.calls_so_far;
        let (ending, mut ended) = watch::channel(());
        let checked = schema.clone();
        let running = Running {
            id,
            name: name.clone(),
            in_background,
            schema,
            method,
            client,
            limit: self.limit(),
            timeout: self.timeout,
            metadata: self.metadata.clone(),
            is_json: self.is_json,
            state: self.state.clone(),
            editor: self.editor.clone(),
            failed: self.failed.clone(),
            _ending: ending,
        };
        // It runs when this waits, and is known by then.
        let task = tokio::task::spawn_local(running.run(requests));
        self.state.begin(
            id,
            InFlight {
                name,
                input: input.clone(),
                begun: Instant::now(),
                requests: typed.clone().filter(|_| in_background),
                task: task.abort_handle(),
                ended: ended.clone(),
            },
        );
        if in_background {
            return self.note(&format!("#{id}")).await;
        }
        if let Some(sender) = typed
            && !self.type_requests(id, &checked, &input, sender, &mut ended).await?
        {
            task.abort();
        }
        // Earlier ones were not meant for this call.
        self.interrupts = signal(SignalKind::interrupt())
            .map_err(|error| Failure::Other(format!("Ctrl-C cannot be handled: {error}")))?;
        let abort = task.abort_handle();
        let result = tokio::select! {
            biased;
            result = task => result.unwrap_or(Err(Failure::Interrupted)),
            _ = self.interrupts.recv() => Err(Failure::Interrupted),
        };
        abort.abort();
        self.state.end(id);
        result
    }

    /// Requests as the arguments of `ttrpc call` have them.
    async fn requests(
        &self,
        client: &Client,
        schema: &Schema,
        method: &MethodDescriptor,
        words: Vec<String>,
    ) -> Result<Requests, Failure> {
        if words.iter().any(|word| word == "-") {
            return Err(Failure::usage("`-` is no request: in a session requests are typed"));
        }
        let words: Result<Vec<_>, _> = words.iter().map(|word| self.state.resolve(word)).collect();
        let words = words.map_err(Failure::Usage)?;
        let json = Json::new(schema);
        let mut requests = Requests::from_arguments(&words, method, json);
        // They may name types that the server returns when it is asked.
        while requests.is_err() && schema.learn(client, self.limit()).await {
            requests = Requests::from_arguments(&words, method, json);
        }
        requests
    }

    /// Sends requests that are typed, until Ctrl-D or until the call has ended. Returns whether it goes on: Ctrl-C cancels
    /// it.
    async fn type_requests(
        &self,
        id: u32,
        schema: &Schema,
        input: &MessageDescriptor,
        requests: mpsc::Sender<Result<Value, String>>,
        ended: &mut watch::Receiver<()>,
    ) -> Result<bool, Failure> {
        let name = output::plain_line(input.full_name());
        if self.editor.is_terminal {
            let text = format!("type each {name} as JSON or name=value; Ctrl-D ends the stream");
            self.note(&text).await?;
        }
        let prompt = format!("#{id}> ");
        loop {
            let mut reading =
                std::pin::pin!(self.editor.read(&prompt, Context::Request(input.clone())));
            let line = tokio::select! {
                biased;
                line = &mut reading => line?,
                _ = ended.changed() => {
                    if self.editor.is_terminal {
                        self.note(&format!("#{id} has ended; Enter goes on")).await?;
                    }
                    reading.await?;
                    return Ok(true);
                }
            };
            let text = match line {
                Line::Text(text) => text,
                Line::Interrupted => return Ok(false),
                Line::End => return Ok(true),
            };
            if text.trim().is_empty() {
                continue;
            }
            match self.request(schema, input, &text) {
                // Of one that has ended it is told above.
                Ok(value) => drop(requests.send(Ok(value)).await),
                Err(error) if self.editor.is_terminal => self.editor.print(error).await?,
                Err(error) => return Err(Failure::Usage(error)),
            }
        }
    }

    /// A request of a stream that fits its type.
    fn request(
        &self,
        schema: &Schema,
        input: &MessageDescriptor,
        text: &str,
    ) -> Result<Value, String> {
        let text = text.trim();
        let value = match text.starts_with(['{', '[', '"']) {
            true => strict::from_str(text).map_err(|error| error.to_string())?,
            false => {
                let words = shlex::split(text).ok_or("a quotation mark is not closed")?;
                let mut object = Map::new();
                let mut fields = Fields::on(&mut object, input);
                for word in words {
                    fields.set(&self.state.resolve(&word)?)?;
                }
                Value::Object(object)
            }
        };
        Json::new(schema).read(input, value.clone())?;
        Ok(value)
    }

    async fn send(&self, id: u32, text: &str) -> Result<(), Failure> {
        let call = self.state.call(id).map_err(Failure::Usage)?;
        let requests = call.requests.ok_or_else(|| {
            Failure::Usage(format!("#{id} takes no more requests: they were given with the call"))
        })?;
        let schema = self.state.schema();
        let value = self.request(&schema, &call.input, text).map_err(Failure::Usage)?;
        let sent = requests.send(Ok(value)).await;
        sent.map_err(|_| Failure::Usage(format!("the stream of requests of #{id} is closed")))
    }

    /// Waits for a call in the background, or for all, until Ctrl-C.
    async fn wait(&mut self, id: Option<u32>) -> Result<(), Failure> {
        let calls = match id {
            // It has ended.
            Some(id) if id <= self.calls_so_far => self.state.call(id).into_iter().collect(),
            Some(id) => vec![self.state.call(id).map_err(Failure::Usage)?],
            None => self.state.calls().into_values().collect(),
        };
        self.interrupts = signal(SignalKind::interrupt())
            .map_err(|error| Failure::Other(format!("Ctrl-C cannot be handled: {error}")))?;
        let all = async {
            for mut call in calls {
                // Its sender is dropped at the end.
                while call.ended.changed().await.is_ok() {}
            }
        };
        tokio::select! {
            () = all => Ok(()),
            _ = self.interrupts.recv() => Err(Failure::Interrupted),
        }
    }
}

/// A call as a task.
struct Running {
    id: u32,
    name: String,
    in_background: bool,
    schema: Schema,
    method: MethodDescriptor,
    client: Client,
    limit: Option<Duration>,
    timeout: Option<Duration>,
    metadata: Vec<(String, String)>,
    is_json: bool,
    state: Arc<State>,
    editor: Rc<Editor>,
    failed: Rc<Failed>,
    /// Dropped with this.
    _ending: watch::Sender<()>,
}

impl Running {
    async fn run(self, requests: Requests) -> Result<(), Failure> {
        let (id, method) = (self.id, &self.method);
        let is_stream = method.is_client_streaming() || method.is_server_streaming();
        let timeout = match self.timeout {
            Some(timeout) => options::limit(timeout),
            None if is_stream => None,
            None => Some(DEFAULT_TIMEOUT),
        };
        let print = async |value: &Value| {
            self.state.reply(id, value.clone());
            let text = match (self.in_background, self.is_json) {
                (false, false) if !is_stream => output::pretty_json(value),
                (false, _) => output::json(value),
                (true, false) => format!("#{id} {}", output::json(value)),
                (true, true) => output::json(&json!({ "call": id, "reply": value })),
            };
            self.editor.print(text).await
        };
        let caller = Caller {
            client: session::with_defaults(self.client.clone(), self.metadata.clone(), timeout),
            target: Target::from(method),
            timeout,
            learning: self.limit,
            has_default_timeout: self.timeout.is_none(),
            method: method.clone(),
            schema: &self.schema,
            json: Json::new(&self.schema),
            print,
        };
        let begun = Instant::now();
        // Its stream of requests ends with the sender of the requests.
        let (_, is_closed) = watch::channel(false);
        let mut result = caller.call(requests, is_closed).await;
        if let Err(failure) = &mut result {
            caller.learn_details(failure).await;
        }
        if let Err(Failure::Call { status, .. }) = &result
            && status.connection_error().is_some()
        {
            self.failed.connection.set(true);
        }
        self.state.end(id);
        if !self.in_background {
            return result;
        }
        self.failed.call.set(self.failed.call.get() || result.is_err());
        let time = output::duration(begun.elapsed());
        let name = &self.name;
        self.editor
            .print(match (&result, self.is_json) {
                (Ok(()), false) => paint(DIM, format_args!("#{id} {name} OK, {time}")),
                (Err(failure), false) => {
                    format!("#{id} {name} {} {failure}", paint(BAD, "error:"))
                }
                (Ok(()), true) => output::json(&json!({ "call": id, "end": "OK" })),
                (Err(failure), true) => {
                    output::json(&json!({ "call": id, "failure": failure.to_json() }))
                }
            })
            .await
    }
}
