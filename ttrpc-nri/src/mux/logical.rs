//! One logical connection, as the stream of bytes that ttrpc reads and writes.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{ConnId, layout::Layout, queue::Queues};

/// One logical connection.
#[derive(Debug)]
pub(super) struct Logical {
    queues: Arc<Queues>,
    id: ConnId,
    layout: Layout,
}

impl Logical {
    pub(super) fn new(queues: Arc<Queues>, id: ConnId) -> Self {
        Logical { queues, id, layout: Layout::new(id) }
    }
}

impl AsyncRead for Logical {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read =
            self.queues.poll_read(self.id, cx, buf.remaining(), |bytes| buf.put_slice(bytes));
        read.map_err(io::Error::from)
    }
}

impl AsyncWrite for Logical {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.queues.poll_room(self.id, cx))?;
        let mut taken = 0;
        while taken < buf.len() {
            let pushed = self.layout.push(&buf[taken..]);
            let (len, mut piece) =
                pushed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            taken += len;
            if !self.queues.send(self.id, &mut piece) {
                break;
            }
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queues.poll_flush(self.id, cx).map_err(io::Error::from)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl Drop for Logical {
    fn drop(&mut self) {
        self.queues.close(self.id);
    }
}
