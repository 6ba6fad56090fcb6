//! Optional tasks of a connection: one notices a peer that has died ([`keepalive`]), the other asks the server to
//! cancel calls that have ended on this side ([`cancel`]).
//!
//! Each ends with the connection, and makes calls of its own ([`own_call`]). A client without these options spawns no
//! such task.

pub(super) mod cancel;
mod keepalive;
mod own_call;

use std::sync::Arc;

use tokio::task::AbortHandle;

use self::cancel::GivenUp;
pub use self::keepalive::Keepalive;
use super::ClientConnection;
use crate::{
    ConnectionError, Status,
    observer::EndCause,
    transport::{
        heard::{Heard, Listening},
        io::ReadHalf,
        spawn,
    },
};

/// What a program asks for.
#[derive(Clone, Debug, Default)]
pub(in crate::client) struct Upkeep {
    pub(in crate::client) keepalive: Option<Keepalive>,
    /// The server is told of calls that were given up.
    pub(in crate::client) cancels: bool,
}

impl Upkeep {
    /// Prepares a connection that is being made. Returns what it reads from, and what is to be started.
    pub(super) fn prepare(
        &self,
        connection: &mut ClientConnection,
        reader: Box<dyn ReadHalf + Send>,
    ) -> (Box<dyn ReadHalf + Send>, Prepared) {
        if self.cancels {
            connection.queue.follow_requests();
            connection.cancels = Some(Box::default());
        }
        match &self.keepalive {
            None => (reader, Prepared(None)),
            Some(keepalive) => {
                let heard = Heard::new();
                let reader = Listening::new(reader, heard.clone());
                (Box::new(reader), Prepared(Some((keepalive.clone(), heard))))
            }
        }
    }
}

/// What is to be started when the connection has its receiver.
pub(super) struct Prepared(Option<(Keepalive, Arc<Heard>)>);

impl Prepared {
    pub(super) fn start(self, connection: &Arc<ClientConnection>, receiver: &AbortHandle) {
        if connection.cancels.is_some() {
            let connection = connection.clone();
            spawn(Box::pin(async move {
                until_closed(&connection, cancel::run(&connection)).await;
            }));
        }
        if let Some((keepalive, heard)) = self.0 {
            let (connection, receiver) = (connection.clone(), receiver.clone());
            spawn(Box::pin(async move {
                let gone = async {
                    keepalive::peer_is_gone(&keepalive, &connection, &heard).await;
                    connection.end(ConnectionError::KeepaliveTimeout);
                    receiver.abort();
                };
                until_closed(&connection, gone).await;
            }));
        }
    }
}

impl ClientConnection {
    /// Gives a call up whose owner still has it, where the server is to be told: its requests do not end then.
    pub(in crate::client) fn give_up(&self, id: u32) {
        if self.cancels.is_some() {
            self.withdraw(id, EndCause::GivenUp, Status::cancelled("the call was given up"));
        }
    }

    /// The server may work for a call that was given up. The task that tells it is in no child of its process.
    pub(super) fn given_up(&self, id: Option<u32>, owes_close: bool) {
        if let (Some(stream_id), Some(cancels)) = (id, &self.cancels)
            && self.origin.is_here()
        {
            let call = GivenUp { stream_id, owes_close };
            if !cancels.note(call) {
                cancel::close(self, &[call]);
            }
        }
    }

    /// Returns whether the receiver waits for the consumer of a full stream, and reads nothing.
    fn is_stalled(&self) -> bool {
        self.registry.receiver().is_some()
    }
}

async fn until_closed(connection: &ClientConnection, task: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        _ = connection.closed() => {}
        () = task => {}
    }
}
