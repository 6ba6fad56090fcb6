//! Accepting connections from several listeners.

use std::{fmt, future::poll_fn, io, task::Poll, time::Duration};

use tokio::{
    net::{UnixListener, UnixStream},
    time::sleep,
};

use crate::{
    Error,
    transport::address::{BoundListener, SocketFile},
};

/// The pause after `accept` failed. What fails is usually the lack of descriptors (EMFILE, ENFILE)
/// or memory; the connection stays in the backlog, and without a pause the loop would spin.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Listeners that are bound and not served yet.
#[derive(Debug, Default)]
pub(super) struct Listeners(pub(super) Vec<BoundListener>);

impl Listeners {
    /// Hands the listeners to the runtime.
    ///
    /// # Errors
    /// [`Error::Listener`].
    pub(super) fn start(self) -> Result<Accepting, Error> {
        let mut listeners = Vec::new();
        for bound in self.0 {
            listeners.push(Listener::start(bound).map_err(Error::Listener)?);
        }
        Ok(Accepting { listeners, next: 0 })
    }
}

/// A listener, and the guard that removes its socket file.
struct Listener {
    /// Dropped before the listener, as in [`BoundListener`].
    _file: Option<SocketFile>,
    listener: UnixListener,
}

impl Listener {
    fn start(bound: BoundListener) -> io::Result<Self> {
        let (listener, file) = bound.into_parts();
        listener.set_nonblocking(true)?;
        Ok(Listener { listener: UnixListener::from_std(listener)?, _file: file })
    }
}

/// Listeners that accept.
pub(super) struct Accepting {
    listeners: Vec<Listener>,
    /// Which one to ask first, so that a busy one does not starve the others.
    next: usize,
}

impl Accepting {
    pub(super) fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// The next connection. Cancel safe.
    pub(super) async fn next(&mut self) -> UnixStream {
        loop {
            let accepted = poll_fn(|cx| {
                let count = self.listeners.len();
                for offset in 0..count {
                    let index = (self.next + offset) % count;
                    let polled = self.listeners[index].listener.poll_accept(cx);
                    if let Poll::Ready(result) = polled {
                        self.next = index + 1;
                        return Poll::Ready(result);
                    }
                }
                Poll::Pending
            });
            match accepted.await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    tracing::warn!("accepting a connection failed: {error}");
                    sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }
}

impl fmt::Debug for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.listeners.iter().map(|listener| &listener.listener)).finish()
    }
}
