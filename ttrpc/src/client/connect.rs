//! How to connect: once, or again and again until a server is there.

use std::{io, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Backoff, Client,
    connection::{ConnectionTasks, Settings, upkeep::Keepalive},
    reconnect::{
        Link,
        manager::{Manager, Open, Plan},
    },
};
use crate::{
    ClientConfig, Connection, Error,
    observer::Observer,
    transport::{address::Address, connect::connect},
};

/// The pause after the first attempt that failed. Each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The time that each attempt has at least. An attempt without any could only fail, since even a socket
/// that is there takes the runtime a poll to connect to.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(5);

/// The time that each attempt of a client that reconnects has.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(20);

/// Options of a connection: limits, retries, observers, reconnection.
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
    settings: Settings,
    retry_for: Option<Duration>,
    handshake_timeout: Duration,
    backoff: Option<Backoff>,
    is_eager: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            settings: Settings::default(),
            retry_for: None,
            handshake_timeout: Duration::from_secs(10),
            backoff: None,
            is_eager: false,
        }
    }
}

impl ConnectOptions {
    /// Makes options with one attempt and the default limits.
    pub fn new() -> Self {
        ConnectOptions::default()
    }

    /// Sets the limits of the connection.
    pub fn config(mut self, config: ClientConfig) -> Self {
        self.settings.config = config;
        self
    }

    /// Retries the first connection for this long, until a server is there.
    ///
    /// The pause is 5 ms after the first attempt and doubles after each later one, up to 500 ms or half of the time
    /// that is left. No attempt begins in the last 5 ms, and one that is under way at the end is abandoned. Less than 5
    /// ms counts as 5 ms, which is one attempt.
    ///
    /// Every failure is tried again, except that of an invalid address.
    pub fn retry_for(mut self, limit: Duration) -> Self {
        self.retry_for = Some(limit);
        self
    }

    /// Sets the time for the handshake of a `hvsock://` address, in each attempt. Default 10 s.
    ///
    /// A guest that is about to listen may leave it without any answer. Shorten it where attempts are repeated.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// Adds an observer, which is notified of the connection and of each call. May be called several times.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.settings.observers.add(observer);
        self
    }

    /// Connects anew when the connection is lost: when a call needs it, or at once with [`ConnectOptions::keep_connected`].
    /// An address is looked up each time. Each attempt has 20 s.
    ///
    /// When the connection is lost, a call of whose Request nothing was written is made again on the next one, within
    /// its deadline. After its first loss it waits for one attempt to connect. One that the server may have seen fails with UNAVAILABLE: the
    /// library never repeats it on its own. It may have been seen once any of it was written, and, over a stream that is no
    /// socket (TLS), once it was offered to a write that failed.
    ///
    /// While there is no connection a call waits for the first attempt, and then fails with UNAVAILABLE and the attempt's
    /// failure, unless it [waits until there is one](super::Call::wait_for_ready). After a connection that was lost within the
    /// bound of the first pause, it fails at once until the next attempt. A call with streams that is awaited waits
    /// until its Request is written.
    pub fn reconnect(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Makes a client that reconnects do so at once, and not only when a call needs a connection.
    pub fn keep_connected(mut self) -> Self {
        self.is_eager = true;
        self
    }

    /// Ends a connection whose peer shows no sign of life.
    ///
    /// Its calls fail with UNAVAILABLE and
    /// [`ConnectionError::KeepaliveTimeout`](crate::ConnectionError::KeepaliveTimeout), and a client that reconnects
    /// does so. Without this, only the deadlines of calls notice a peer that has died or is stopped while its socket
    /// stays open.
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.settings.upkeep.keepalive = Some(keepalive);
        self
    }

    /// Notifies the server of calls that are dropped, or whose deadline passes, after their Request was written.
    ///
    /// A server of this library cancels them as if their client had gone. Without this it runs them to their end or
    /// their deadline.
    ///
    /// ttrpc has no frame for it, so it is a call of the service `ttrpc.control.v1.Control`. A server that does not
    /// have it is asked once a connection. No other call waits for it. One such call is in flight at a time, with the
    /// ids of up to 1,024 calls; further ones are not cancelled.
    pub fn cancel_at_server(mut self) -> Self {
        self.settings.upkeep.cancels = true;
        self
    }

    /// Makes a client of a connection that the program already has, as [`Client::from_connection`] does. It is the only one.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_connection(&self, connection: impl Into<Connection>) -> Client {
        Client::over(Link::Fixed(ConnectionTasks::spawn(connection.into(), &self.settings)))
    }

    /// Connects to an [address](crate#addresses), as [`Client::connect`] does.
    ///
    /// Cancel safe: dropped, it closes what it has begun.
    ///
    /// # Errors
    /// Those of [`Client::connect`]. With [`ConnectOptions::retry_for`], [`Error::ConnectTimeout`], which
    /// says what the last attempt met and, if that had no answer in time, what the one before it met that
    /// had one.
    pub async fn connect(&self, address: &str) -> Result<Client, Error> {
        let connection = self.open(address).await?;
        if self.backoff.is_none() {
            return Ok(self.from_connection(connection));
        }
        Ok(self.managed(self.opener(address)?, Some(connection)))
    }

    /// Returns a client that connects to an address when a call needs it, or soon with
    /// [`ConnectOptions::keep_connected`].
    ///
    /// It connects anew as with [`ConnectOptions::reconnect`], with a [`Backoff::default`] unless another one is set.
    ///
    /// # Errors
    /// [`Error::Address`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect_lazy(&self, address: &str) -> Result<Client, Error> {
        Ok(self.managed(self.opener(address)?, None))
    }

    /// Returns a client that connects in the program's own way, when a call needs it.
    ///
    /// It is for TLS, for a descriptor that another process hands over, or for a server that is found anew each time.
    /// The rest is as with [`ConnectOptions::connect_lazy`].
    ///
    /// ```
    /// # use ttrpc::{Client, Error, client::{Backoff, ConnectOptions}};
    /// fn client_of_the_newest_shim(find: fn() -> std::io::Result<String>) -> Client {
    ///     ConnectOptions::new().reconnect(Backoff::new()).connect_through(move || async move {
    ///         let connection = ConnectOptions::new().open(&find()?).await?;
    ///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(connection)
    ///     })
    /// }
    /// ```
    ///
    /// Its failures are [`Error::Custom`]. If it panics, the client is shut down, with a cause that says so.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect_through<F, E>(&self, connect: impl Fn() -> F + Send + Sync + 'static) -> Client
    where
        F: Future<Output = Result<Connection, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let open: Open = Box::new(move || {
            let attempt = connect();
            Box::pin(async move {
                let end = Instant::now() + LONGEST_ATTEMPT;
                let custom = |error: Box<dyn std::error::Error + Send + Sync>| Error::Custom(error);
                match timeout_at(end, attempt).await {
                    Ok(opened) => opened.map_err(|error| custom(error.into())),
                    Err(_) => Err(custom(io::Error::from(io::ErrorKind::TimedOut).into())),
                }
            })
        });
        self.managed(open, None)
    }

    fn managed(&self, open: Open, first: Option<Connection>) -> Client {
        let plan = Plan {
            open,
            backoff: self.backoff.clone().unwrap_or_default(),
            is_eager: self.is_eager,
            settings: self.settings.clone(),
        };
        Client::over(Link::Managed(Manager::spawn(plan, first)))
    }

    /// Returns what makes one attempt.
    fn opener(&self, address: &str) -> Result<Open, Error> {
        let (address, handshake_timeout) = (address.to_owned(), self.handshake_timeout);
        let parsed = Arc::new(Address::parse(&address)?);
        Ok(Box::new(move || {
            let (address, parsed) = (address.clone(), parsed.clone());
            Box::pin(async move {
                let end = Some(Instant::now() + LONGEST_ATTEMPT);
                open_until(end, &address, connect(&address, &parsed, handshake_timeout, end)).await
            })
        }))
    }

    /// Connects, and returns the connection, for programs that wrap it (TLS), inspect it or pass it on.
    ///
    /// Cancel safe, as [`ConnectOptions::connect`] is.
    ///
    /// # Errors
    /// Those of [`ConnectOptions::connect`].
    pub async fn open(&self, address: &str) -> Result<Connection, Error> {
        let parsed = Address::parse(address)?;
        let open = |end| connect(address, &parsed, self.handshake_timeout, end);
        match self.retry_for {
            None => open(None).await,
            Some(limit) => retry(limit, address, open).await,
        }
    }
}

/// Opens again and again until the time is over. `open` gets the moment at which it has to end.
async fn retry<T, F: Future<Output = Result<T, Error>>>(
    limit: Duration,
    address: &str,
    open: impl Fn(Option<Instant>) -> F,
) -> Result<T, Error> {
    // `None` is an end too far away to be named.
    let end = Instant::now().checked_add(limit.max(SHORTEST_ATTEMPT));
    let mut pause = FIRST_PAUSE;
    let mut attempts = 0;
    let mut answered = None;
    loop {
        attempts += 1;
        let error = match open_until(end, address, open(end)).await {
            Ok(opened) => return Ok(opened),
            Err(error @ Error::Address { .. }) => return Err(error),
            Err(error) => error,
        };
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        // The attempt behind the pause has as much time as the pause at least.
        let next_pause = pause.min(left / 2);
        let timed_out = is_timeout(&error);
        if left - next_pause < SHORTEST_ATTEMPT {
            let (last, before) = (Box::new(error), answered.filter(|_| timed_out));
            return Err(Error::ConnectTimeout { limit, attempts, last, before });
        }
        if !timed_out {
            answered = Some(Box::new(error));
        }
        sleep(next_pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Gives an attempt up at the end of the time.
async fn open_until<T>(
    end: Option<Instant>,
    address: &str,
    attempt: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(end) = end else { return attempt.await };
    timeout_at(end, attempt).await.unwrap_or_else(|_| {
        let source = io::ErrorKind::TimedOut.into();
        Err(Error::Connect { address: address.to_owned(), source })
    })
}

/// Returns whether an attempt ended without an answer.
fn is_timeout(error: &Error) -> bool {
    match error {
        Error::Connect { source, .. } => source.kind() == io::ErrorKind::TimedOut,
        error => matches!(error, Error::HandshakeTimeout { .. }),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::pending};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn refused() -> Error {
        Error::HandshakeRefused { address: "a".to_owned() }
    }

    /// Attempts that take 4 ms, with a server that comes at any moment.
    #[tokio::test(start_paused = true)]
    async fn each_attempt_has_time_to_succeed() {
        // Miri is some thousand times slower.
        let step = if cfg!(miri) { 245 } else { 7 };
        for comes_ms in (0..=980).step_by(step) {
            let comes = Instant::now() + Duration::from_millis(comes_ms);
            let open = async |_| {
                let found = Instant::now() >= comes;
                sleep(Duration::from_millis(4)).await;
                if found { Ok(()) } else { Err(refused()) }
            };
            let result = retry(SECOND, "a", open).await;
            result.unwrap_or_else(|error| panic!("it comes after {comes_ms} ms: {error}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_in_connecting_is_a_timeout_of_connecting() {
        let start = Instant::now();
        let error = retry::<(), _>(SECOND, "a", |_| pending()).await.expect_err("it hangs");
        assert_eq!(start.elapsed(), SECOND);
        let text = "no connection within 1s, after 1 attempt: cannot connect to `a`: timed out";
        assert_eq!(error.to_string(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn what_attempts_without_an_answer_hide_is_told() {
        let attempts = Cell::new(0);
        let failed =
            |kind: io::ErrorKind| Error::Connect { address: "a".into(), source: kind.into() };
        let open = async |_| {
            attempts.set(attempts.get() + 1);
            match attempts.get() {
                1 => Err::<(), _>(failed(io::ErrorKind::ConnectionRefused)),
                2 => Err(failed(io::ErrorKind::TimedOut)),
                _ => pending().await,
            }
        };
        let error = retry(SECOND, "a", open).await.expect_err("nobody answers");
        let text = "no connection within 1s, after 3 attempts; the last one: cannot connect to `a`: timed out; \
                    before that: cannot connect to `a`: connection refused";
        assert_eq!(error.to_string(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_end_it_goes_on() {
        let start = Instant::now();
        let open = async |end: Option<Instant>| {
            assert_eq!(end, None);
            if start.elapsed() > 100 * SECOND { Ok(()) } else { Err(refused()) }
        };
        retry(Duration::MAX, "a", open).await.expect("it is found");
    }
}
