//! The two halves of a connection, whatever it is made of.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, Interest},
    net::{UnixStream, unix},
};

use crate::server::Peer;

/// The half of a connection from which frames are read.
pub(crate) trait ReadHalf: AsyncRead + Unpin {
    /// Whether the peer has closed its side, though there may be something left to read. `false`
    /// where that cannot be known.
    fn is_hung_up(&mut self) -> bool {
        false
    }
}

impl ReadHalf for unix::OwnedReadHalf {
    fn is_hung_up(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        match pin!(self.ready(Interest::READABLE)).poll(&mut cx) {
            Poll::Ready(ready) => ready.is_ok_and(|ready| ready.is_read_closed()),
            Poll::Pending => false,
        }
    }
}

impl<T: AsyncRead + AsyncWrite> ReadHalf for tokio::io::ReadHalf<T> {}

/// A connection that the drivers can use. The halves are boxed, so that the drivers are compiled
/// once; an indirect call is nothing beside a system call.
pub(crate) struct Connection {
    pub(crate) reader: Box<dyn ReadHalf + Send>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// Who is on the other side, where the operating system says so.
    pub(crate) peer: Option<Peer>,
}

impl Connection {
    pub(crate) fn from_unix(stream: UnixStream) -> Self {
        let peer = stream.peer_cred().ok().map(|credentials| Peer {
            uid: credentials.uid(),
            gid: credentials.gid(),
            pid: credentials.pid(),
        });
        let (reader, writer) = stream.into_split();
        Connection { reader: Box::new(reader), writer: Box::new(writer), peer }
    }

    pub(crate) fn from_io(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(io);
        Connection { reader: Box::new(reader), writer: Box::new(writer), peer: None }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl<R: ReadHalf + ?Sized> ReadHalf for &mut R {
    fn is_hung_up(&mut self) -> bool {
        (**self).is_hung_up()
    }
}

impl<R: ReadHalf + ?Sized> ReadHalf for Box<R> {
    fn is_hung_up(&mut self) -> bool {
        (**self).is_hung_up()
    }
}
