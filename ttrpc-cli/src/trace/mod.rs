//! `ttrpc trace`: a proxy that tells what passes.
//!
//! Bytes are passed on as they come, and read again only when they are written, so that backpressure
//! reaches the peer that causes it. What is told is put together beside that, from copies: whoever
//! reads it slowly misses lines, which are counted, and holds nobody up.

pub mod call;
pub mod filter;
pub mod guard;
mod lines;
pub mod messages;
mod mux;
mod names;
pub mod observe;
pub mod proxy;
pub mod record;
pub mod recording;
pub mod report;
pub mod sample;
mod stats;
mod wrap;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use clap::{ArgGroup, Args, ValueHint};
use serde_json::json;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
};
use ttrpc::server::{Acceptor, Listener};

use crate::{
    failure::Failure,
    options::{self, MetadataOption, SchemaOptions, parse_duration},
    output, schema, session,
};
use messages::Messages;
use proxy::Proxy;
use report::{Format, Reporter};
use wrap::Wrapped;

/// Show the calls that pass between clients and a server
///
/// Clients connect to --listen instead of the server, which stays at --upstream. With --wrap the socket
/// of a running server, such as a shim's, is moved aside, and put back at the end, however that comes.
/// Connections that are open already are not seen. Everything passes unchanged, between addresses of all kinds. Ctrl-C ends it
/// with a table of all methods.
///
/// When its connection to a shim is cut, containerd takes the shim for dead and kills its containers. So with --wrap
/// connections are passed on after Ctrl-C until their peers end them; a second Ctrl-C cuts them.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("where").required(true).args(["listen", "wrap"]))]
#[command(after_help = "Examples:
  ttrpc trace --listen /tmp/t.sock --upstream /run/greeter.sock
  ttrpc trace --listen unix:///tmp/agent.sock --upstream vsock://3:1024
  ttrpc trace --wrap unix:///run/containerd/s/4f2a --record shim.trace --redact spec
  ttrpc show shim.trace")]
pub struct Arguments {
    #[command(flatten)]
    position: Position,
    /// Keep all frames in this file, for `ttrpc show` and `ttrpc replay`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    record: Option<PathBuf>,
    /// Replace the file of --record if it is there
    #[arg(long, requires = "record")]
    overwrite: bool,
    /// Leave the values of this field out, at any depth, and of metadata with this key; may be repeated
    #[arg(long, value_name = "FIELD")]
    redact: Vec<String>,
    /// Show each message of a stream, too
    #[arg(short, long)]
    verbose: bool,
    /// Show a table of all methods in the place of calls, again after each interval [default: 1s]
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    #[arg(value_parser = parse_duration, conflicts_with_all = ["verbose", "slowest"])]
    table: Option<Duration>,
    #[command(flatten)]
    slowest: Slowest,
    /// Print a call that is pending for longer than this
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pending: Duration,
    /// How long connecting, and then the server's schema, may take before what is built in is used: 300ms, 5s, 2m; 0
    /// for ever
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    metadata: MetadataOption,
    #[command(flatten)]
    filter: filter::Filter,
    #[command(flatten)]
    schema: SchemaOptions,
}

/// Where a proxy stands.
#[derive(Clone, Debug, Default, Args)]
pub struct Position {
    /// Where clients connect to; of tcp://HOST:0 the port that the system chose is printed
    #[arg(long, value_name = "ADDRESS", requires = "upstream", conflicts_with = "wrap")]
    pub listen: Option<String>,
    /// Where the server listens
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    pub upstream: Option<String>,
    /// Take the place of the server that listens on this Unix socket, and put it back at the end
    #[arg(long, value_name = "ADDRESS")]
    pub wrap: Option<String>,
}

impl Position {
    /// The server's address.
    fn server(&self) -> &str {
        self.wrap.as_deref().or(self.upstream.as_deref()).unwrap_or_default()
    }

    /// Whether a proxy is asked for.
    pub fn is_given(&self) -> bool {
        self.listen.is_some() || self.wrap.is_some()
    }
}

/// Whether the slowest calls are shown in the place of all.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Slowest {
    /// Show only so many calls, those that took longest, at the end
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub slowest: Option<u32>,
}

/// Proxies until Ctrl-C.
///
/// # Errors
/// If an address cannot be used, or the recording cannot be written.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
    let mut ends = Ends::new()?;
    let server = arguments.position.server();
    let schema = tokio::select! {
        schema = find_schema(server, &arguments) => schema?,
        () = ends.any() => return Err(Failure::Interrupted),
    };
    let messages = Arc::new(Messages::new(schema, &arguments.redact));
    let unknown = messages.unknown_names(&arguments.redact);
    let recorder = match &arguments.record {
        Some(path) => Some(record::Recorder::create(path, arguments.overwrite, messages.clone())?),
        None => None,
    };
    let format = if json { Format::Json } else { Format::Text };
    let reporter = Reporter::start(messages, format).tell_messages(arguments.verbose);
    let reporter = reporter.filter(arguments.filter.clone()).slowest(arguments.slowest);
    let reporter = reporter.counts_only(arguments.table.is_some());
    // From here on the address may be another's; it is put back when this is dropped.
    let placed = Placed::open(&arguments.position, reporter, recorder)?;
    let listened = &placed.listened;
    let begun = format!("clients of {listened} are shown; Ctrl-C ends it");
    match json {
        true => output::note_json(&json!({ "note": begun, "listening": listened })),
        false => output::note(begun),
    }
    for name in unknown {
        output::note(format_args!(
            "no message of the schema has a field `{name}`: it is left out of metadata, and of JSON that an \
             Any holds"
        ));
    }
    let mut tracing = placed.accept();
    let proxy = tracing.proxy.clone();
    let watched = async {
        match arguments.table {
            Some(interval) => proxy.follow(interval, json).await,
            None => proxy.watch_pending(arguments.pending).await,
        }
    };
    tokio::select! {
        _ = &mut tracing.accepting => {}
        () = watched => {}
        () = ends.any() => {}
    }
    tracing.put_back();
    // Whoever reads the table may be gone with the terminal; the connections are not.
    let finished = proxy.finish(json);
    tracing.pass_on_the_rest(&mut ends).await;
    finished
}

/// A proxy where clients can connect to it; nobody is accepted yet. Dropped, it puts a server's socket back.
pub struct Placed {
    /// Where clients connect to.
    pub listened: String,
    proxy: Arc<Proxy>,
    acceptor: Acceptor,
    wrapped: Option<Wrapped>,
}

/// A proxy that passes clients on. Dropped, it puts a server's socket back.
pub struct Tracing {
    pub proxy: Arc<Proxy>,
    accepting: JoinHandle<()>,
    wrapped: Option<Wrapped>,
}

impl Placed {
    /// Takes the place of the server.
    ///
    /// # Errors
    /// If an address cannot be used.
    pub fn open(
        position: &Position,
        reporter: Reporter,
        recorder: Option<record::Recorder>,
    ) -> Result<Self, Failure> {
        let Endpoint { listened, upstream, acceptor, wrapped } = Endpoint::open(position)?;
        let proxy = Arc::new(Proxy::new(upstream, reporter, recorder.map(Mutex::new)));
        Ok(Placed { listened, proxy, acceptor, wrapped })
    }

    /// Accepts clients.
    pub fn accept(self) -> Tracing {
        let Placed { proxy, acceptor, wrapped, .. } = self;
        let accepts = proxy.clone();
        let accepting = tokio::spawn(async move { accepts.accept(acceptor).await });
        Tracing { proxy, accepting, wrapped }
    }
}

impl Tracing {
    /// Gives a server that was wrapped its socket again.
    pub fn put_back(&mut self) {
        if let Some(wrapped) = &mut self.wrapped {
            wrapped.put_back().into_iter().for_each(|client| self.proxy.pass_on(client));
        }
    }

    /// Waits until the connections to a server that was wrapped end, or until they shall be cut.
    pub async fn pass_on_the_rest(mut self, ends: &mut Ends) {
        self.connections_end(ends).await;
        // The file of a socket goes with the task that accepts, which the runtime's end may not wait for.
        self.accepting.abort();
        if !self.accepting.is_finished() {
            let _ = self.accepting.await;
        }
    }

    async fn connections_end(&mut self, ends: &mut Ends) {
        let open = self.proxy.open_connections();
        if self.wrapped.is_none() || open == 0 {
            return;
        }
        let connections = output::count(open, "connection");
        output::note(format_args!(
            "the socket is put back; {connections} {} passed on until the peers end, and cut by \
             another Ctrl-C",
            if open == 1 { "is" } else { "are" }
        ));
        tokio::select! {
            () = self.proxy.connections_ended() => {}
            // Who had found the socket before it was put back may connect to it only now.
            _ = &mut self.accepting => {}
            () = ends.but_hangup() => {}
        }
    }
}

/// The signals that end a trace.
pub struct Ends {
    hangup: Signal,
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
}

impl Ends {
    /// # Errors
    /// If signals cannot be handled.
    pub fn new() -> Result<Self, Failure> {
        let of = |kind| {
            signal(kind)
                .map_err(|error| Failure::Other(format!("signals cannot be handled: {error}")))
        };
        Ok(Ends {
            hangup: of(SignalKind::hangup())?,
            interrupt: of(SignalKind::interrupt())?,
            quit: of(SignalKind::quit())?,
            terminate: of(SignalKind::terminate())?,
        })
    }

    /// Waits for any of them.
    pub async fn any(&mut self) {
        tokio::select! {
            _ = self.hangup.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.quit.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// A terminal that goes away may say so twice, and nobody has asked for connections to be cut.
    async fn but_hangup(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.quit.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The schema of what is proxied. A server that tells none, or that does not answer, is shown with
/// what is built in.
async fn find_schema(server: &str, arguments: &Arguments) -> Result<schema::Schema, Failure> {
    let (options, timeout) = (&arguments.schema, options::limit(arguments.timeout));
    if let Some(schema) = session::named_schema(options)? {
        return Ok(schema);
    }
    let asked = async {
        let client = session::connect(server, timeout).await?;
        let client = session::with_defaults(client, arguments.metadata.metadata.clone(), None);
        session::find_schema(&client, options, timeout).await
    };
    match asked.await {
        Ok(schema) => Ok(schema),
        Err(Failure::Usage(error)) => Err(Failure::Usage(error)),
        // What `call` may do about a status is none of the options here.
        Err(Failure::Call { status, .. }) => {
            let status = output::plain(status);
            output::note(format_args!("the built-in schemas are used: {status}"));
            Ok(schema::builtin().clone())
        }
        Err(error) => {
            output::note(format_args!("the built-in schemas are used: {error}"));
            Ok(schema::builtin().clone())
        }
    }
}

/// Where clients connect, and where they are passed on to.
struct Endpoint {
    listened: String,
    upstream: String,
    acceptor: Acceptor,
    wrapped: Option<Wrapped>,
}

impl Endpoint {
    fn open(position: &Position) -> Result<Self, Failure> {
        let start = |listener: Listener| listener.start().map_err(cannot_listen);
        if let (Some(listen), Some(upstream)) = (&position.listen, &position.upstream) {
            let (listener, listened) = bind(listen)?;
            let (acceptor, upstream) = (start(listener)?, upstream.clone());
            return Ok(Endpoint { listened, upstream, acceptor, wrapped: None });
        }
        let listened = position.wrap.clone().unwrap_or_default();
        let wrapped = Wrapped::wrap(&listened)?;
        let acceptor = start(wrapped.listener().map_err(cannot_listen)?.into())?;
        Ok(Endpoint { listened, upstream: wrapped.upstream(), acceptor, wrapped: Some(wrapped) })
    }
}

/// Listens, and tells where: the system chooses a port in the place of TCP port 0.
fn bind(address: &str) -> Result<(Listener, String), Failure> {
    let listener = Listener::bind(address).map_err(session::explain)?;
    let chosen = listener.socket_addr().filter(|_| address.ends_with(":0"));
    let told = chosen.map_or_else(|| address.to_owned(), |chosen| format!("tcp://{chosen}"));
    Ok((listener, told))
}

fn cannot_listen(error: io::Error) -> Failure {
    Failure::Connect(format!("cannot accept clients: {error}"))
}
