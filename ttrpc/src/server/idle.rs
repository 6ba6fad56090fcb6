//! Connections on which nothing happens, for servers that close them.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    ServerConfig,
    server::call::{reasons::EndReason, shared::Connection},
    transport::{
        heard::{Heard, Listening},
        io::ReadHalf,
        limiter::Load,
    },
};

/// Listens to what arrives on a connection, if it is to be closed when nothing does.
pub(super) fn listen(
    config: &ServerConfig,
    reader: Box<dyn ReadHalf + Send>,
) -> (Box<dyn ReadHalf + Send>, Option<Arc<Heard>>) {
    if config.max_idle.is_none() {
        return (reader, None);
    }
    let heard = Heard::new();
    (Box::new(Listening::new(reader, heard.clone())), Some(heard))
}

/// Waits until this side ends the connection: the server closes, or the connection was idle for too long.
pub(super) async fn ended_here(
    connection: &Connection,
    heard: Option<Arc<Heard>>,
    closed: impl Future<Output = ()>,
) -> EndReason {
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

/// Completes when no call was open and nothing has arrived for `max_idle`. While the client takes the last replies, its
/// connection is not idle.
async fn idle(connection: &Connection, heard: &Heard, max_idle: Duration) {
    loop {
        connection.calls.at_most(Load::cost(usize::MAX)).await;
        let is_moving = connection.queue.is_moving();
        tokio::select! {
            biased;
            () = heard.arrived() => continue,
            () = connection.queue.flushed() => {}
            () = sleep(max_idle) => match is_moving() {
                true => continue,
                false => return,
            }
        }
        tokio::select! {
            biased;
            () = heard.arrived() => {}
            () = sleep(max_idle) => return,
        }
    }
}
