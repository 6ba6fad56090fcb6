//! Calls of a session, in the foreground and in the background.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use prost_reflect::{MessageDescriptor, MethodDescriptor};
use serde_json::{Map, Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};
use ttrpc::Client;

use super::{
    Session,
    command::Data,
    editor::{Context, Editor, Line},
    fill,
    state::{InFlight, State},
};
use crate::{
    call::{caller::Caller, requests::Requests},
    failure::Failure,
    fields::Fields,
    json::Json,
    options::{self, DEFAULT_TIMEOUT},
    output::{self, BAD, DIM, paint},
    schema::{Schema, method_name},
    session::{self, Target},
    strict,
};

/// Requests of a stream that wait to be sent.
const SEND_AHEAD: usize = 16;

impl Session {
    /// Makes a call; waits for its end unless it runs in the background.
    pub(super) async fn call(
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
            has_failed: self.has_failed.clone(),
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

    pub(super) async fn send(&self, id: u32, text: &str) -> Result<(), Failure> {
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
    pub(super) async fn wait(&mut self, id: Option<u32>) -> Result<(), Failure> {
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
    has_failed: Rc<Cell<bool>>,
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
        self.state.end(id);
        if !self.in_background {
            return result;
        }
        self.has_failed.set(self.has_failed.get() || result.is_err());
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
