//! A plugin's stub: what it is called, where its runtime is, and its life.

use std::{
    env, fmt, io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use ttrpc::{
    ClientConfig, Connection, ServerConfig,
    client::{Backoff, ConnectOptions},
};

use crate::{
    Error, FailurePolicy, Instruments, Plugin, PluginId,
    identity::SOCKET_VARIABLE,
    mux::MuxConfig,
    session::{self, End},
};

/// Where a runtime listens for plugins that it has not launched.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";

/// A handler that has taken three quarters of its time: soon the runtime drops the plugin.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowHandler {
    /// The method's name.
    pub event: &'static str,
    /// The id of the container or pod.
    pub subject: String,
    /// How long the handler has run.
    pub elapsed: Duration,
    /// When the runtime gives up.
    pub limit: Duration,
}

impl fmt::Display for SlowHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlowHandler { event, subject, elapsed, limit } = self;
        write!(
            f,
            "{event} of `{subject}` has taken {elapsed:?}; after {limit:?} the runtime drops the plugin"
        )
    }
}

/// What the program does with a report.
type Report<T> = Box<dyn Fn(&T) + Send + Sync>;

/// What each connection of a stub needs.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) failure_policy: Option<FailurePolicy>,
    pub(crate) on_slow: Option<Report<SlowHandler>>,
    pub(crate) mux: MuxConfig,
    pub(crate) client: ClientConfig,
    pub(crate) server: ServerConfig,
    pub(crate) instruments: Instruments,
}

/// Runs a plugin: finds the runtime, registers, and serves until the end.
///
/// ```no_run
/// # use ttrpc_nri::{Error, EventMask, Plugin, Stub};
/// # struct Pinner;
/// # impl Plugin for Pinner { const EVENTS: EventMask = EventMask::NONE; }
/// # async fn example() -> Result<(), Error> {
/// Stub::new(Pinner).name("pinner").index("10").run_until(ttrpc_nri::terminated()).await
/// # }
/// ```
///
/// # Where the runtime is
///
/// 1. A connection of the program's own ([`Stub::connection`]).
/// 2. The descriptor whose number is in `NRI_PLUGIN_SOCKET`: the runtime has launched the plugin. It becomes close-on-exec, and is one stub's.
/// 3. The socket ([`Stub::socket`], [`DEFAULT_SOCKET`]).
#[must_use = "a plugin runs when `run` is awaited"]
pub struct Stub<P> {
    plugin: P,
    name: Option<String>,
    index: Option<String>,
    socket: String,
    retry_for: Duration,
    connection: Option<Connection>,
    reconnect: Option<Backoff>,
    on_close: Option<Report<Error>>,
    options: Options,
}

impl<P: Plugin> Stub<P> {
    /// Starts to put a stub together.
    pub fn new(plugin: P) -> Self {
        Stub {
            plugin,
            name: None,
            index: None,
            socket: DEFAULT_SOCKET.to_owned(),
            retry_for: Duration::ZERO,
            connection: None,
            reconnect: None,
            on_close: None,
            options: Options::default(),
        }
    }

    /// Sets the plugin's name. Default: `NRI_PLUGIN_NAME`, or the name of the program's file without an index in front.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the plugin's index, two digits. Default: `NRI_PLUGIN_IDX`, or the digits in front of the name of the program's
    /// file, as in `10-pinner`.
    pub fn index(mut self, index: impl Into<String>) -> Self {
        self.index = Some(index.into());
        self
    }

    /// Sets the socket of the runtime: a path, or another [address](ttrpc#addresses).
    pub fn socket(mut self, address: impl Into<String>) -> Self {
        self.socket = address.into();
        self
    }

    /// Waits so long for a socket that is not there yet, or refuses.
    pub fn retry_for(mut self, limit: Duration) -> Self {
        self.retry_for = limit;
        self
    }

    /// Uses a connection that the program already has, once.
    pub fn connection(mut self, connection: impl Into<Connection>) -> Self {
        self.connection = Some(connection.into());
        self
    }

    /// Connects again when the connection to the socket is lost or the runtime is not there.
    ///
    /// The pauses begin anew once the plugin is synchronized. `configure` and `synchronize` are called for each connection.
    ///
    /// It is for external plugins. One that was launched, or that was given its connection, ends with it. One that the runtime refuses ends too.
    pub fn reconnect(mut self, backoff: Backoff) -> Self {
        self.reconnect = Some(backoff);
        self
    }

    /// Sets what the runtime does when the plugin does not answer. Runtimes of before NRI v0.12.5 go on without it.
    pub fn failure_policy(mut self, policy: FailurePolicy) -> Self {
        self.options.failure_policy = Some(policy);
        self
    }

    /// Reports why a connection has ended, also where it is made again.
    pub fn on_close(mut self, report: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_close = Some(Box::new(report));
        self
    }

    /// Reports each handler that has taken three quarters of its time. It is logged as a warning in any case.
    pub fn on_slow(mut self, report: impl Fn(&SlowHandler) + Send + Sync + 'static) -> Self {
        self.options.on_slow = Some(Box::new(report));
        self
    }

    /// Sets the limits of the multiplexer.
    pub fn mux_config(mut self, config: MuxConfig) -> Self {
        self.options.mux = config;
        self
    }

    /// Sets the limits of calls to the runtime.
    pub fn client_config(mut self, config: ClientConfig) -> Self {
        self.options.client = config;
        self
    }

    /// Sets the limits of calls of the runtime. A late call is not answered whatever they say: the runtime measures the time.
    pub fn server_config(mut self, config: ServerConfig) -> Self {
        self.options.server = config;
        self
    }

    /// Sets the observers and interceptors of each connection to the runtime. [`Runtime::snapshot`](crate::Runtime::snapshot)
    /// shows a connection's state.
    pub fn instruments(mut self, instruments: Instruments) -> Self {
        self.options.instruments = instruments;
        self
    }

    /// Runs the plugin until the runtime asks it to end. Dropped, it closes the connection at once.
    ///
    /// # Errors
    /// If the runtime cannot be found, refuses the plugin, or is lost; for the latter see [`Stub::reconnect`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn run(self) -> Result<(), Error> {
        self.run_until(std::future::pending()).await
    }

    /// Runs the plugin until the signal completes or the runtime asks it to end. Handlers that run then have 5 s to end.
    ///
    /// # Errors
    /// Those of [`Stub::run`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn run_until(self, signal: impl Future<Output = ()>) -> Result<(), Error> {
        let id = PluginId::find(self.index, self.name)?;
        let (plugin, options) = (Arc::new(self.plugin), Arc::new(self.options));
        let (mut given, mut signal) = (self.connection, std::pin::pin!(signal));
        let is_launched = env::var_os(SOCKET_VARIABLE).is_some_and(|value| !value.is_empty());
        let backoff = self.reconnect.filter(|_| given.is_none() && !is_launched);
        let (mut failures, mut since) = (0, Instant::now());
        loop {
            let connect = async {
                match given.take() {
                    Some(connection) => Ok(connection),
                    None if is_launched => inherited(),
                    None => connect(&self.socket, self.retry_for).await,
                }
            };
            let connected = tokio::select! {
                biased;
                () = &mut signal => return Ok(()),
                connected = connect => connected,
            };
            let ended = match connected {
                Ok(connection) => {
                    let session = session::run(connection, &id, &plugin, &options, &mut signal);
                    session.await
                }
                Err(error) => End::Failed { error, was_ready: false },
            };
            let (error, was_ready) = match ended {
                End::Asked => return Ok(()),
                End::Failed { error, was_ready } => (error, was_ready),
            };
            if let Some(report) = &self.on_close {
                report(&error);
            }
            if was_ready {
                (failures, since) = (0, Instant::now());
            }
            failures += 1;
            let pause = match &backoff {
                Some(backoff) if is_passing(&error) && !backoff.is_exhausted(failures, since) => {
                    backoff.pause(failures)
                }
                _ => return Err(error),
            };
            tracing::warn!(plugin = %id, %error, ?pause, "connecting to the runtime again");
            tokio::select! {
                () = &mut signal => return Ok(()),
                () = sleep(pause) => {}
            }
        }
    }
}

/// Whether another attempt may succeed: the runtime was not there or went away.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Connect { .. }
        | Error::Disconnected(_)
        | Error::LogicalConnection(_)
        | Error::Synchronize(_)
        | Error::NotConfigured { .. } => true,
        Error::Register { source, .. } => !source.is_from_peer(),
        _ => false,
    }
}

async fn connect(address: &str, retry_for: Duration) -> Result<Connection, Error> {
    let mut options = ConnectOptions::new();
    if !retry_for.is_zero() {
        options = options.retry_for(retry_for);
    }
    let opened = options.open(address).await;
    opened.map_err(|source| Error::Connect { address: address.to_owned(), source })
}

/// The connection that the runtime has handed over. The first stub of the process gets it.
fn inherited() -> Result<Connection, Error> {
    let value = env::var(SOCKET_VARIABLE).unwrap_or_default();
    let fail = |source| Error::Descriptor { value: value.clone(), source };
    let number: RawFd = value.parse().map_err(|_| fail(None))?;
    if number <= 2 {
        return Err(fail(None));
    }
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(fail(Some(io::Error::other("another stub of this process has taken it"))));
    }
    let socket = own(number).map_err(|error| fail(Some(error)))?;
    Connection::from_fd(socket).map_err(|error| fail(Some(io::Error::other(error))))
}

/// Becomes the owner of an inherited descriptor, which no child inherits further. To be called once.
#[allow(unsafe_code, reason = "the standard library knows no other way to a numbered descriptor")]
fn own(number: RawFd) -> io::Result<OwnedFd> {
    use std::os::fd::BorrowedFd;
    // SAFETY: the runtime has put the descriptor there for this program, and nothing else here knows its number. It is looked at
    // first, so that a number that is none is not owned.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and `inherited` calls this once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Completes when the process gets SIGTERM or SIGINT.
///
/// # Panics
/// Outside of a tokio runtime with I/O.
pub async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be handled");
    let mut interrupt = signal(SignalKind::interrupt()).expect("SIGINT can be handled");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
