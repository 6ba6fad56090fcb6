//! A connection that is not served yet, and how it ends if it never is.

use std::{
    ops::{Deref, DerefMut},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use tokio::{io::AsyncWrite, runtime::Handle};

use crate::{
    Connection,
    contain::{Contained, contain},
    transport::{spawn, wire},
};

/// A connection from the moment when a server has it until it is served. Dropped before, it ends as a served one
/// does: its writer is shut down. A task of its own does that if it takes time.
#[derive(Debug)]
pub(in crate::server) struct Unserved(Option<Connection>);

const TAKEN_ONCE: &str = "a connection is served once";

impl Unserved {
    pub(in crate::server) fn new(connection: Connection) -> Self {
        Unserved(Some(connection))
    }

    /// The connection, which the caller serves.
    pub(in crate::server) fn into_served(mut self) -> Connection {
        self.0.take().expect(TAKEN_ONCE)
    }
}

impl Deref for Unserved {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.as_ref().expect(TAKEN_ONCE)
    }
}

impl DerefMut for Unserved {
    fn deref_mut(&mut self) -> &mut Connection {
        self.0.as_mut().expect(TAKEN_ONCE)
    }
}

impl Drop for Unserved {
    fn drop(&mut self) {
        let Some(mut connection) = self.0.take().map(Contained::new) else { return };
        // The stream may be of the program's own, and panic. Then there is nothing left to be done for it.
        let shut_down = contain(|| {
            let writer = Pin::new(&mut connection.writer);
            writer.poll_shutdown(&mut Context::from_waker(Waker::noop()))
        });
        // Outside of a runtime nothing can wait.
        if let (Ok(Poll::Pending), Ok(_)) = (shut_down, Handle::try_current()) {
            spawn(Box::pin(async move { wire::shut_down(&mut connection.writer).await }));
        }
    }
}
