//! The blocking client: an asynchronous one and the runtime on which it lives.

use std::{
    fmt, io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use tokio::time::timeout;

use super::{
    call::{BidiStreamingCall, Call, ClientStreamingCall, ServerStreamingCall, UnaryCall},
    driver::Driver,
};
use crate::{
    ClientConfig, Connection, ConnectionError, Error, Name,
    client::{ClientState, ConnectOptions, Interceptor, MethodDefaults, Retry, call_methods},
    proto::stream::Kind,
    snapshot::ClientSnapshot,
};

/// How long [`Client::close`] waits for the connection's tasks.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// One connection to a server, shared by all clones and all calls, for programs with threads.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use ttrpc::blocking::Client;
///
/// let client = Client::connect("unix:///run/greeter.sock")?;
/// // A generated client wraps it, `GreeterBlockingClient::new(client)`. Without one:
/// let call = client.unary("greeter.v1.Greeter", "SayHello", "Ann".to_owned());
/// let greeting: String = call.call()?;
/// # Ok(()) }
/// ```
///
/// See [the module](super) for what happens while no thread waits. Clones are cheap. The connection
/// lives as long as a clone, a call or a stream does. When it is lost, [`Client::closed`] says why; a client made with
/// [`ConnectOptions::reconnect`] has one connection after another.
#[derive(Clone)]
pub struct Client {
    // Dropped before the runtime.
    client: crate::Client,
    driver: Arc<Driver>,
}

impl Client {
    /// Connects to a server, once, at an address as the asynchronous
    /// [`Client::connect`](crate::Client::connect) takes it. [`ConnectOptions::connect_blocking`] waits for
    /// a server that is not there yet.
    ///
    /// # Errors
    /// Those of the asynchronous one; [`Error::Connect`] also if the system has no descriptors left.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn connect(address: &str) -> Result<Self, Error> {
        ConnectOptions::new().connect_blocking(address)
    }

    /// Connects with limits of your own.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn connect_with(address: &str, config: ClientConfig) -> Result<Self, Error> {
        ConnectOptions::new().config(config).connect_blocking(address)
    }

    /// Makes a client of a Unix stream that the program already has.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn from_unix_stream(stream: UnixStream, config: ClientConfig) -> io::Result<Self> {
        Client::from_fd(stream.into(), config)
    }

    /// Makes a client of a connected socket that the program already has: a Unix, TCP or vsock socket.
    ///
    /// # Errors
    /// Those of [`Connection::from_fd`], and if the system has no descriptors left.
    pub fn from_fd(descriptor: OwnedFd, config: ClientConfig) -> io::Result<Self> {
        Client::make(|| {
            Ok(crate::Client::from_connection(Connection::from_fd(descriptor)?, config))
        })
    }

    /// Uses a client that is made inside of the runtime.
    pub(crate) fn make(make: impl FnOnce() -> io::Result<crate::Client>) -> io::Result<Self> {
        Client::inside_of(Driver::new()?, make)
    }

    fn inside_of<E>(
        driver: Driver,
        make: impl FnOnce() -> Result<crate::Client, E>,
    ) -> Result<Self, E> {
        let entered = driver.enter();
        let client = make()?;
        drop(entered);
        Ok(Client { client, driver: Arc::new(driver) })
    }

    forward! { client:
        /// Sets the timeout of each call that this client makes from now on, unless the call sets its own.
        ///
        /// Other clones of the client are as they were; all share the connection.
        #[must_use]
        fn with_timeout(timeout: Duration);

        /// Sets whether calls that this client makes from now on wait for a connection. A client that
        /// [reconnects](ConnectOptions::reconnect) has none after a failed attempt. Other clones of the client are as they
        /// were.
        #[must_use]
        fn with_wait_for_ready(waits: bool);

        /// Adds a pair of metadata to each call that this client makes from now on, before the call's own. Other
        /// clones of the client are as they were; all share the connection.
        #[must_use]
        fn with_metadata(key: impl Into<String>, value: impl Into<String>);

        /// Runs this around each call that this client makes from now on, inside of those that were added before.
        /// Other clones of the client are as they were; all share the connection.
        #[must_use]
        fn with_interceptor(interceptor: impl Interceptor);

        /// Makes each call that this client makes from now on again as this policy says, unless the call says another one. Other
        /// clones of the client are as they were; all share the connection.
        #[must_use]
        fn with_retry(retry: Retry);

        /// Uses these defaults, by method, for each call that this client makes from now on, as the asynchronous
        /// [`with_method_defaults`](crate::Client::with_method_defaults) does. Other clones of the client are as they were; all share the
        /// connection.
        #[must_use]
        fn with_method_defaults(defaults: MethodDefaults);
    }

    call_methods!();

    fn call<K, Req, Resp>(
        &self,
        kind: Kind,
        service: Name,
        method: Name,
        request: Option<Req>,
    ) -> Call<K, Req, Resp> {
        Call::new(self.client.call(kind, service, method, request), &self.driver)
    }

    /// Waits for the connection's end and says why it ended. Meanwhile this thread drives the
    /// connection, for all.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn closed(&self) -> ConnectionError {
        if self.driver.check_process().is_err() {
            return ConnectionError::Forked;
        }
        self.driver.wait(self.client.closed())
    }

    /// Returns the state of the connection, as far as it was noticed, see [the module](super).
    pub fn state(&self) -> ClientState {
        self.client.state()
    }

    /// Returns why the connection ended, if that was noticed, see [the module](super).
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.client.close_reason()
    }

    /// Writes everything that is queued, and ends the connection, at the latest after `limit`. Queued are mostly the
    /// ends of streams whose senders were dropped. Pending calls of other threads fail with UNAVAILABLE.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn shutdown(&self, limit: Duration) {
        if self.driver.check_process().is_err() {
            return;
        }
        let _ = self.driver.wait(async { timeout(limit, self.client.shutdown()).await });
        self.close();
    }

    /// Ends the connection now: pending calls fail with UNAVAILABLE, later ones too. The socket is closed
    /// when this returns, after 200 ms at most.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn close(&self) {
        if self.driver.check_process().is_err() {
            return;
        }
        self.client.close();
        let _ = self.driver.wait(async { timeout(CLOSE_TIMEOUT, self.driver.no_tasks()).await });
    }

    /// Returns what the connection and its calls are waiting for at this moment.
    pub fn snapshot(&self) -> ClientSnapshot {
        self.client.snapshot()
    }

    /// Calls whose Request is on its way to the server or was sent, and that have not ended.
    pub fn calls_in_flight(&self) -> usize {
        self.client.calls_in_flight()
    }
}

/// Prints no payloads and no metadata, which may be long and secret; [`Client::snapshot`] has more.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.client, f)
    }
}

/// Connecting a blocking client.
impl ConnectOptions {
    /// Connects to an address, as [`ConnectOptions::connect`] does, and waits for it.
    ///
    /// # Errors
    /// Those of [`ConnectOptions::connect`]; [`Error::Connect`] also if the system has no descriptors left.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn connect_blocking(&self, address: &str) -> Result<Client, Error> {
        let driver = driver_for(address)?;
        let client = driver.wait(self.connect(address))?;
        Ok(Client { client, driver: Arc::new(driver) })
    }

    /// Returns a client that connects when a call needs it, as [`ConnectOptions::connect_lazy`] does.
    ///
    /// # Errors
    /// [`Error::Address`]; [`Error::Connect`] if the system has no descriptors left.
    pub fn connect_lazy_blocking(&self, address: &str) -> Result<Client, Error> {
        Client::inside_of(driver_for(address)?, || self.connect_lazy(address))
    }

    /// Returns a client whose connections a function of the program's opens, as [`ConnectOptions::connect_through`] does.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn connect_through_blocking<F, E>(
        &self,
        connect: impl Fn() -> F + Send + Sync + 'static,
    ) -> io::Result<Client>
    where
        F: Future<Output = Result<Connection, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Client::make(|| Ok(self.connect_through(connect)))
    }
}

fn driver_for(address: &str) -> Result<Driver, Error> {
    Driver::new().map_err(|source| Error::Connect { address: address.to_owned(), source })
}
