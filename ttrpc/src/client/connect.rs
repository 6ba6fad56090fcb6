//! How to connect: once, or again and again until a server is there.

use std::{io, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use super::{Client, tasks::ConnectionTasks};
use crate::{
    ClientConfig, Connection, Error,
    observer::{Observer, Observers},
    transport::{address::Address, connect::connect},
};

/// The pause behind the first attempt that failed. Each one is twice as long as the one before it.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How to connect, for what [`Client::connect`] does not say.
///
/// ```no_run
/// # async fn example() -> Result<(), ttrpc::Error> {
/// use std::time::Duration;
/// use ttrpc::client::ConnectOptions;
///
/// // The agent of a virtual machine that is about to start.
/// let client = ConnectOptions::new()
///     .retry_for(Duration::from_secs(30))
///     .handshake_timeout(Duration::from_secs(1))
///     .connect("hvsock:///run/vm.sock:1024")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is connected until `connect` is awaited"]
pub struct ConnectOptions {
    config: ClientConfig,
    retry_for: Option<Duration>,
    handshake_timeout: Duration,
    observers: Observers,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            config: ClientConfig::default(),
            retry_for: None,
            handshake_timeout: Duration::from_secs(10),
            observers: Observers::default(),
        }
    }
}

impl ConnectOptions {
    /// One attempt, and the default limits.
    pub fn new() -> Self {
        ConnectOptions::default()
    }

    /// Sets the limits of the connection.
    pub fn config(mut self, config: ClientConfig) -> Self {
        self.config = config;
        self
    }

    /// Tries again and again for this long, until a server is there: with a pause of 5 ms behind the
    /// first attempt, twice as long behind each one after it, up to 500 ms. An attempt that is under way
    /// when the time is over is given up.
    ///
    /// Whatever an attempt meets is tried again, but for an address that makes no sense.
    pub fn retry_for(mut self, limit: Duration) -> Self {
        self.retry_for = Some(limit);
        self
    }

    /// The time for the handshake of a `hvsock://` address, in each attempt. Default 10 s: a guest that
    /// is about to listen may leave it without any answer. Shorten it where attempts are repeated.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// Tells this of the connection and each of its calls. May be called several times.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.add(observer);
        self
    }

    /// Uses a connection that the program already has, as [`Client::from_connection`] does.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_connection(&self, connection: impl Into<Connection>) -> Client {
        let (config, observers) = (self.config.clone(), self.observers.clone());
        Client::from_tasks(ConnectionTasks::spawn(connection.into(), config, observers))
    }

    /// Connects to an address, as [`Client::connect`] does.
    ///
    /// Cancel safe: dropped, it closes what it has begun.
    ///
    /// # Errors
    /// Those of [`Client::connect`]. With [`ConnectOptions::retry_for`], [`Error::ConnectTimeout`], which
    /// says what the last attempt met.
    pub async fn connect(&self, address: &str) -> Result<Client, Error> {
        let connection = self.open(address).await?;
        Ok(self.from_connection(connection))
    }

    /// Connects, and leaves it to the program what the connection is for: to be wrapped (TLS), to be
    /// looked at, to be passed on.
    ///
    /// Cancel safe, as [`ConnectOptions::connect`] is.
    ///
    /// # Errors
    /// Those of [`ConnectOptions::connect`].
    pub async fn open(&self, address: &str) -> Result<Connection, Error> {
        let parsed = Address::parse(address)?;
        match self.retry_for {
            None => connect(address, &parsed, self.handshake_timeout).await,
            Some(limit) => self.retry(address, &parsed, limit).await,
        }
    }

    async fn retry(
        &self,
        text: &str,
        address: &Address,
        limit: Duration,
    ) -> Result<Connection, Error> {
        let start = Instant::now();
        let mut last = None;
        let mut attempts = 0;
        let mut pause = FIRST_PAUSE;
        loop {
            let attempt = connect(text, address, self.handshake_timeout);
            let end = start.checked_add(limit);
            let result = match end {
                Some(end) => timeout_at(end, attempt).await,
                // An end too far away to be named.
                None => Ok(attempt.await),
            };
            attempts += 1;
            match result {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error @ Error::Address { .. })) => return Err(error),
                Ok(Err(error)) => last = Some(error),
                // It was given up. What an earlier one met says more.
                Err(_) => {}
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                let gave_up = || Error::Connect {
                    address: text.to_owned(),
                    source: io::ErrorKind::TimedOut.into(),
                };
                let last = Box::new(last.unwrap_or_else(gave_up));
                return Err(Error::ConnectTimeout { limit, attempts, last });
            }
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
