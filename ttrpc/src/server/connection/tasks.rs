//! The tasks of a server's connection, from its beginning to its end.

use std::{mem, sync::Arc};

use tokio::{sync::oneshot, task::yield_now};

use crate::server::{
    Peer, Shared,
    accept::{admission::ConnectionPermit, unserved::Unserved},
    call::{reasons::EndReason, shared::Connection},
    connection::{open::OpenConnection, receiver},
    idle::{idle, listen},
};
use crate::{
    Error,
    sync::atomic::Ordering::SeqCst,
    trace,
    transport::{heard::Heard, rarely, spawn, wire},
};

/// Serves one connection until the client goes away, or the server has drained or closes.
///
/// # Errors
/// [`Error::ServerEnded`] if a shutdown has begun.
pub(in crate::server) fn serve(
    server: Arc<Shared>,
    mut unserved: Unserved,
    permit: ConnectionPermit,
    id: u64,
) -> Result<(), Error> {
    let peer = mem::replace(&mut unserved.peer, Peer::unknown());
    let extensions = mem::take(&mut unserved.extensions);
    let span = trace::span!("connection", id, %peer);
    let connection = Arc::new(Connection::new(server, peer, extensions, id));
    let (signal, mut ended) = oneshot::channel();
    let mut open = OpenConnection::new(connection.clone(), permit, signal)?;
    let crate::Connection { reader, writer, .. } = unserved.into_served();
    let (mut reader, heard) = listen(&connection.server.config, reader);
    let sending = connection;
    // Reported before its end can be: a runtime that shuts down may never run what is spawned here.
    span.in_scope(|| sending.opened());
    let sender = spawn(Box::pin(async move {
        // A client that cannot be written to has gone away: its calls end with the connection.
        if let Err(error) = wire::send_all(writer, &sending.queue, &mut ended).await {
            trace::debug!(connection = id, "writing to the client failed: {error}");
            let _ = sending.end_reason.set(EndReason::not_written(&error));
        }
    }));
    open.sender = Some(sender.abort_handle());
    // A task is as large as the largest thing that it may ever wait for. So that an idle connection
    // is small, what seldom has to be waited for is boxed when it has.
    let receiving = async move {
        // Dropped before the connection is taken off the list.
        let (reader, mut sender) = (&mut reader, sender);
        let connection = open.connection.clone();
        {
            // The receiver is dropped before the connection's end is reported, since a call may wait in it.
            let sender_ended = rarely(&mut sender, |sender| sender.is_finished());
            let reason = tokio::select! {
                biased;
                reason = receiver::run(&connection, reader) => reason,
                reason = ended_here(&connection, heard) => reason,
                _ = sender_ended => EndReason::closed_by_client(),
            };
            // If the sender has failed it has said why.
            let _ = connection.end_reason.set(reason);
        }
        open.end();
        // Its end is seen only when the writer is shut down: the program may exit then.
        if !sender.is_finished() {
            let _ = sender.await;
        }
    };
    spawn(span.instrument(Box::pin(receiving)));
    Ok(())
}

/// Waits until this side ends the connection: the server closes, or the connection was idle for too long.
async fn ended_here(connection: &Connection, heard: Option<Arc<Heard>>) -> EndReason {
    let closed = closed(&connection.server);
    let (Some(max_idle), Some(heard)) = (connection.server.config.max_idle, heard) else {
        closed.await;
        return EndReason::closed_here();
    };
    let idle = Box::pin(idle(connection, &heard, max_idle));
    tokio::select! {
        biased;
        () = closed => EndReason::closed_here(),
        () = idle => EndReason::idle(max_idle),
    }
}

/// Waits until the server closes. It wakes its task when the server begins to drain as well.
async fn closed(server: &Shared) {
    let lifecycle = &server.lifecycle;
    // Made before the look: from here on no change is missed.
    let change = lifecycle.next_change();
    if lifecycle.is_running.load(SeqCst) {
        rarely(change, |_| !lifecycle.is_running.load(SeqCst)).await;
    }
    // The receiver may have looked just before the change, and looks again.
    yield_now().await;
    Box::pin(lifecycle.closing()).await;
}
