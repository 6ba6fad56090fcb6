//! The life of a connection's writer: what the sender writes, and its shutdown at the connection's end.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::oneshot,
    time::timeout,
};

use super::{io::Writer, queue::Queue, sender::Sender};

/// The time that a writer has for its shutdown. A Unix socket needs none of it. A stream that wraps
/// another one (TLS) has something to write, for which a peer that does not read leaves no capacity.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);

/// The sender's end of the signal that a connection has ended. The other end is dropped to give it, when
/// the queue has been closed.
pub(crate) type Ended = oneshot::Receiver<()>;

/// Writes what the queue holds, as [`Sender::run`] does, until the queue is closed or the connection has
/// ended. Then it shuts the writer down.
///
/// # Errors
/// If a write fails. `ended` has not completed then.
pub(crate) async fn run<T>(writer: Writer, queue: &Queue<T>, ended: &mut Ended) -> io::Result<()> {
    let mut sender = Sender::new(writer, queue);
    tokio::select! {
        biased;
        _ = ended => {}
        written = sender.run() => written?,
    }
    // Boxed: an idle connection needs no memory for what happens at its end.
    Box::pin(async { shut_down(sender.closed_writer().await).await }).await;
    Ok(())
}

/// Shuts a writer down, if it can be in a bounded time. Whether it works makes no difference any more.
pub(crate) async fn shut_down(io: &mut (impl AsyncWrite + Unpin)) {
    let _ = timeout(SHUTDOWN_TIMEOUT, io.shutdown()).await;
}
