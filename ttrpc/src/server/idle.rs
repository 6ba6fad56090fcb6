//! Connections on which nothing happens, for servers that close them.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    server::call::shared::Connection,
    transport::{heard::Heard, limiter::Load},
};

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
