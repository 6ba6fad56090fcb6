//! `ttrpc trace`: a proxy that tells what passes.
//!
//! Bytes are passed on as they come, and read again only when they are written, so that backpressure
//! reaches the peer that causes it. What is told is put together beside that, from copies: whoever
//! reads it slowly misses lines, which are counted, and holds nobody up.

pub mod messages;
pub mod observe;
mod proxy;
pub mod record;
pub mod report;

use std::{
    fs, io,
    os::unix::{fs::MetadataExt, net::UnixListener},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::{ArgGroup, Args, ValueHint};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    args::{DEFAULT_TIMEOUT, SchemaOptions, parse_duration},
    failure::Failure,
    output, schema, session,
    tap::unix_path,
};
use messages::Messages;
use proxy::Proxy;
use report::{Format, Reporter};

/// Show the calls that pass between clients and a server
///
/// Clients connect to --listen instead of the server, which stays at --upstream. With --wrap the socket
/// of a running server, such as a shim's, is moved aside and put back at the end; connections that are
/// open already are not seen. Everything passes unchanged. Ctrl-C ends it with a table of all methods.
///
/// containerd takes a shim whose connection is cut for dead, and kills its containers. So with --wrap
/// connections are passed on after Ctrl-C until their peers end them; a second Ctrl-C cuts them.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("where").required(true).args(["listen", "wrap"]))]
#[command(after_help = "Examples:
  ttrpc trace --listen /tmp/t.sock --upstream /run/greeter.sock
  ttrpc trace --wrap unix:///run/containerd/s/4f2a --record shim.trace --redact spec
  ttrpc show shim.trace")]
pub struct Arguments {
    /// Where clients connect to
    #[arg(long, value_name = "ADDRESS", requires = "upstream")]
    listen: Option<String>,
    /// Where the server listens
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    upstream: Option<String>,
    /// Stand before the server that listens here
    #[arg(long, value_name = "ADDRESS")]
    wrap: Option<String>,
    /// Keep all frames in this file, for `ttrpc show` and `ttrpc replay`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    record: Option<PathBuf>,
    /// Leave the values of this field out, at any depth, and of metadata with this key; may be repeated
    #[arg(long, value_name = "FIELD")]
    redact: Vec<String>,
    /// Tell of a call that is pending for longer than this
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pending: Duration,
    #[command(flatten)]
    schema: SchemaOptions,
}

/// Proxies until Ctrl-C.
///
/// # Errors
/// If an address cannot be used, or the recording cannot be written.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::Other(format!("signals cannot be handled: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let server = arguments.wrap.as_deref().or(arguments.upstream.as_deref()).unwrap_or_default();
    let messages =
        Arc::new(Messages::new(find_schema(server, &arguments.schema).await?, &arguments.redact));
    let recorder = match &arguments.record {
        Some(path) => Some(record::Recorder::create(path, messages.clone())?),
        None => None,
    };
    // From here on the address may be another's; it is put back when this is dropped.
    let endpoint = Endpoint::open(&arguments)?;
    let format = if json { Format::Json } else { Format::Text };
    let reporter = Reporter::start(messages, format);
    let proxy = Arc::new(Proxy::new(endpoint.upstream.clone(), reporter, recorder.map(Mutex::new)));
    output::note(format_args!(
        "clients of {} are shown; Ctrl-C ends it",
        endpoint.listened.display()
    ));
    let accepting = proxy.clone().accept(endpoint.listener.try_clone().map_err(cannot_listen)?);
    let result = tokio::select! {
        result = accepting => result.map_err(cannot_listen),
        () = proxy.watch_pending(arguments.pending) => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    let is_wrapped = endpoint.is_wrapped;
    drop(endpoint);
    proxy.finish(json)?;
    result?;
    let open = proxy.open_connections();
    if is_wrapped && open > 0 {
        output::note(format_args!(
            "the socket is put back; {} passed on until their peers end them, and cut by another \
             Ctrl-C",
            if open == 1 {
                "1 connection is".to_owned()
            } else {
                format!("{open} connections are")
            }
        ));
        tokio::select! {
            () = proxy.connections_ended() => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
    Ok(())
}

fn cannot_listen(error: io::Error) -> Failure {
    Failure::Connect(format!("cannot accept clients: {error}"))
}

/// The schema of what is proxied. A server that tells none, or that does not answer, is shown with
/// what is built in.
async fn find_schema(server: &str, options: &SchemaOptions) -> Result<schema::Schema, Failure> {
    if let Some(schema) = session::named_schema(options)? {
        return Ok(schema);
    }
    let asked = async {
        let client = session::connect(server).await?;
        session::find_schema(&client, options, Some(DEFAULT_TIMEOUT)).await
    };
    match asked.await {
        Ok(schema) => Ok(schema),
        Err(Failure::Usage(error)) => Err(Failure::Usage(error)),
        Err(error) => {
            output::note(format_args!("the built-in schemas are used: {error}"));
            Ok(schema::builtin().clone())
        }
    }
}

/// The address that clients connect to, and where they are passed on to.
#[derive(Debug)]
struct Endpoint {
    listener: UnixListener,
    listened: PathBuf,
    upstream: PathBuf,
    is_wrapped: bool,
}

impl Endpoint {
    fn open(arguments: &Arguments) -> Result<Self, Failure> {
        let path_of = |address: &str| {
            unix_path(address).ok_or_else(|| {
                Failure::Usage(format!("`{address}`: only Unix sockets can be traced"))
            })
        };
        let fail = |path: &Path, error: &dyn std::fmt::Display| {
            Failure::Connect(format!("cannot listen on `{}`: {error}", path.display()))
        };
        if let (Some(listen), Some(upstream)) = (&arguments.listen, &arguments.upstream) {
            let (listened, upstream) = (path_of(listen)?, path_of(upstream)?);
            let listener = bind(&listened).map_err(|error| fail(&listened, &error))?;
            return Ok(Endpoint { listener, listened, upstream, is_wrapped: false });
        }
        let listened = path_of(arguments.wrap.as_deref().unwrap_or_default())?;
        if listened.as_os_str().as_encoded_bytes().starts_with(b"\0") {
            return Err(Failure::usage("an abstract socket cannot be wrapped: it has no file"));
        }
        let upstream = with_suffix(&listened, ".traced");
        if upstream.symlink_metadata().is_ok() {
            return Err(Failure::Usage(format!(
                "`{0}` is there: another trace runs, or one was killed and `mv {0} {1}` puts the \
                 socket back",
                upstream.display(),
                listened.display()
            )));
        }
        let listener = replace(&listened, &upstream).map_err(|error| fail(&listened, &error))?;
        Ok(Endpoint { listener, listened, upstream, is_wrapped: true })
    }
}

/// Moves a socket aside and listens in its place, for those who may connect to it and nobody else.
fn replace(listened: &Path, aside: &Path) -> io::Result<UnixListener> {
    let metadata = fs::metadata(listened)?;
    let new = with_suffix(listened, ".tracing");
    // Left by a trace that was killed while it began.
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    let moved = || {
        fs::set_permissions(&new, metadata.permissions())?;
        std::os::unix::fs::chown(&new, Some(metadata.uid()), Some(metadata.gid()))?;
        fs::rename(listened, aside)?;
        fs::rename(&new, listened).inspect_err(|_| {
            // Nothing else can be done if this fails as well.
            let _ = fs::rename(aside, listened);
        })
    };
    match moved() {
        Ok(()) => Ok(listener),
        Err(error) => {
            // It is of no use to anybody.
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let done = match self.is_wrapped {
            true => fs::rename(&self.upstream, &self.listened),
            false => fs::remove_file(&self.listened),
        };
        if let Err(error) = done
            && self.is_wrapped
        {
            output::note(format_args!(
                "the socket could not be put back ({error}): mv {} {}",
                self.upstream.display(),
                self.listened.display()
            ));
        }
    }
}

/// Listens on a path. The socket of a server that is gone is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Locks, also where a task has panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
