//! Connections on which nothing happens, for servers that close them.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    ServerConfig,
    server::call::shared::Connection,
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

/// Completes when no call was open and nothing has arrived for `max_idle`. While the client takes the last replies, its
/// connection is not idle.
pub(super) async fn idle(connection: &Connection, heard: &Heard, max_idle: Duration) {
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
