//! Notices a peer that has died, or has been stopped, while its socket stays open.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::own_call::OwnCall;
use crate::{
    client::connection::ClientConnection,
    transport::{heard::Heard, stall::PARTS},
};

/// The method that is called. Any server may have it, and one that has not answers all the same.
const HEALTH_CHECK: (&str, &str) = ("grpc.health.v1.Health", "Check");

/// Settings by which a client notices a peer that has died without closing the connection.
///
/// Such a peer is a virtual machine that is gone, or a process that is stopped. See
/// [`ConnectOptions::keepalive`](crate::client::ConnectOptions::keepalive).
///
/// ```
/// # use std::time::Duration; use ttrpc::client::{Backoff, ConnectOptions, Keepalive};
/// let keepalive = Keepalive::new(Duration::from_secs(10), Duration::from_secs(3));
/// let options = ConnectOptions::new().reconnect(Backoff::new()).keepalive(keepalive);
/// ```
#[derive(Clone, Debug)]
pub struct Keepalive {
    every: Duration,
    timeout: Duration,
    is_always: bool,
}

impl Keepalive {
    /// Checks a peer from which nothing has arrived for `every` while calls are open, and ends the connection after
    /// `timeout`.
    ///
    /// The check is a call of `grpc.health.v1.Health/Check` with an empty service name. Any answer shows life,
    /// UNIMPLEMENTED too, and so does any other byte. The connection ends with
    /// [`ConnectionError::KeepaliveTimeout`](crate::ConnectionError::KeepaliveTimeout) if none arrives for `timeout`
    /// after the Request was written. It also ends if the peer reads nothing of what is before it for that long.
    ///
    /// A connection on which something arrives is never checked. `timeout` has to be longer than a live peer takes to
    /// read what its socket holds, and to answer. Choose it longer than the server's
    /// [`stall_timeout`](crate::ServerConfig::stall_timeout). For so long a server at its limits may not read a connection whose
    /// next call waits to be admitted, nor the check after it. Less than 1 ms counts as 1 ms, for both.
    pub fn new(every: Duration, timeout: Duration) -> Self {
        let shortest = Duration::from_millis(1);
        Keepalive { every: every.max(shortest), timeout: timeout.max(shortest), is_always: false }
    }

    /// Checks the peer also while no call is open. So a client that reconnects has a new connection before its next
    /// call.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.is_always = true;
        self
    }
}

/// Completes when the peer gives no sign of life.
pub(super) async fn peer_is_gone(
    keepalive: &Keepalive,
    connection: &Arc<ClientConnection>,
    heard: &Heard,
) {
    loop {
        wait_for_silence(keepalive, connection, heard).await;
        // The peer gives up a check that it does not answer, and says so in time.
        let patience = keepalive.timeout / 2;
        let check = OwnCall::start(connection, HEALTH_CHECK, Vec::new(), Some(patience));
        let Some(check) = check else { return std::future::pending().await };
        if !answers(keepalive.timeout, connection, heard, &check).await {
            return;
        }
    }
}

/// Waits until nothing has arrived for `every`, while a call was open if one has to be. What has arrived waits unread while
/// the receiver waits for the consumer of a full stream.
async fn wait_for_silence(keepalive: &Keepalive, connection: &ClientConnection, heard: &Heard) {
    loop {
        let now = Instant::now();
        let since = match keepalive.is_always {
            _ if connection.is_stalled() => now,
            true => heard.last(),
            false => match connection.queue.streams(|calls| calls.oldest()) {
                Some(began) => began.max(heard.last()),
                None => now,
            },
        };
        // `None` is a time too far away to be named.
        let Some(due) = since.checked_add(keepalive.every) else {
            return std::future::pending().await;
        };
        if due <= now {
            return;
        }
        sleep_until(due).await;
    }
}

/// Waits for a sign of life. While the check waits in the queue, what is written before it is one as well: the peer reads.
/// Not so when it is written: somebody else may read in the peer's place. While the receiver waits for the consumer of a full
/// stream, it is not the peer that is silent.
///
/// The time is measured in parts, each of which starts when this task runs. A process that was stopped loses one part, and
/// reads what has arrived meanwhile in the others.
async fn answers(
    timeout: Duration,
    connection: &ClientConnection,
    heard: &Heard,
    check: &OwnCall,
) -> bool {
    let before = heard.reads();
    let is_moving = connection.queue.is_moving();
    let mut written = pin!(connection.queue.flushed());
    let (mut is_written, mut silent_parts) = (false, 0);
    while silent_parts < PARTS {
        tokio::select! {
            biased;
            _ = check.answer() => return true,
            () = &mut written, if !is_written => {
                (is_written, silent_parts) = (true, 0);
                continue;
            }
            () = sleep(timeout / PARTS) => {}
        }
        if heard.reads() != before {
            return true;
        }
        let is_moving = !is_written && is_moving();
        silent_parts = if is_moving || connection.is_stalled() { 0 } else { silent_parts + 1 };
    }
    false
}
