//! One run of one case.

use std::{
    fmt,
    future::IntoFuture,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    net::UnixStream,
    time::{Instant, timeout},
};

use crate::{
    connection::{Connection, Connector, Options},
    message::Statistics,
    verdict::{Outcome, fail},
};

/// How long one step of a case may take with a server that may hang. It takes milliseconds where all is
/// well.
const PATIENCE: Duration = Duration::from_secs(20);

/// The same with this library's own server. Reached only by a failing test, on whatever machine.
const STRICT_PATIENCE: Duration = Duration::from_secs(600);

/// What a case is run with: the client, where the server is, and where the case says how far it has come.
#[derive(Clone)]
pub struct Trial {
    pub(crate) connector: Arc<dyn Connector>,
    address: String,
    is_strict: bool,
    patience: Duration,
    last_step: Arc<Mutex<String>>,
}

impl Trial {
    /// A trial of the server at this address. A strict one is for this library's own client and server: where
    /// the specification leaves freedom, only what this library does passes. It has all the time that a
    /// busy machine may take: how long calls take is not its matter.
    pub fn new(connector: Arc<dyn Connector>, address: &str, is_strict: bool) -> Self {
        let patience = if is_strict { STRICT_PATIENCE } else { PATIENCE };
        let address = address.to_owned();
        Trial { connector, address, is_strict, patience, last_step: Arc::default() }
    }

    /// Where the server is.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether only what this library does passes, not what the specification allows besides.
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// How long one step may take.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Where the case is, for the report in case that it hangs.
    pub fn last_step(&self) -> String {
        self.last_step.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn step(&self, step: impl Into<String>) {
        *self.last_step.lock().unwrap_or_else(PoisonError::into_inner) = step.into();
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// If that fails, or takes too long.
    pub async fn connect(&self) -> Outcome<Arc<dyn Connection>> {
        Ok(self.within("connecting", self.connector.connect(&self.address)).await??)
    }

    /// Connects to a bare socket in place of the server, and returns the socket's other end, too.
    pub(crate) async fn connect_bare(&self) -> Outcome<(Arc<dyn Connection>, UnixStream)> {
        Ok(self.within("connecting to a bare socket", self.connector.connect_bare()).await??)
    }

    /// Bounds a step, so that a report names it and not just the case.
    ///
    /// # Errors
    /// If the step takes longer.
    pub async fn within<T>(&self, what: &str, step: impl IntoFuture<Output = T>) -> Outcome<T> {
        within(self.patience, what, step).await
    }

    /// Asks again and again until it holds.
    ///
    /// # Errors
    /// If it does not within the trial's patience, and those of asking.
    pub async fn until<F: Future<Output = Outcome<bool>>>(
        &self,
        what: &str,
        mut holds: impl FnMut() -> F,
    ) -> Outcome<()> {
        let end = Instant::now() + self.patience;
        while !holds().await? {
            if Instant::now() > end {
                return fail(format!("never within {:?}: {what}", self.patience));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Waits until so many more handlers have begun than `before` says, besides those of `Stats`, of which this calls some.
    ///
    /// The count of calls in flight cannot tell this: a call may still be counted when its reply has arrived. Nothing else
    /// may be called after `before` was read.
    ///
    /// # Errors
    /// If it takes longer than the trial's patience, or `Stats` fails.
    pub async fn until_begun(
        &self,
        connection: &Arc<dyn Connection>,
        before: &Statistics,
        calls: u64,
    ) -> Outcome<()> {
        let mut expected = before.calls_total + calls;
        self.until("Stats counts the handlers that have begun", || {
            expected += 1;
            async move { Ok(connection.stats().await?.calls_total >= expected) }
        })
        .await
    }

    /// Makes a call to show that a connection still works.
    ///
    /// # Errors
    /// If it does not.
    pub async fn alive(&self, connection: &Arc<dyn Connection>, when: &str) -> Outcome<()> {
        let payload = format!("still here {when}").into_bytes();
        let part = format!("Echo {when}");
        let options = Options::default();
        match self.within(&part, connection.echo(&options, payload.clone(), 0)).await? {
            Ok(back) if back == payload => Ok(()),
            Ok(_) => fail(format!("{part} brought another payload")),
            Err(failure) => fail(format!("{part}: {failure}")),
        }
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Bounds a step, so that a report names it and not just the case.
///
/// # Errors
/// If the step takes longer.
pub async fn within<T>(
    limit: Duration,
    what: &str,
    step: impl IntoFuture<Output = T>,
) -> Outcome<T> {
    match timeout(limit, step).await {
        Ok(result) => Ok(result),
        Err(_) => fail(format!("{what}: no end within {limit:?}")),
    }
}
