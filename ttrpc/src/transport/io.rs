//! The two halves of a connection, whatever it is made of.

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use crate::server::Peer;

/// A connection that the drivers can use. The halves are boxed, so that the drivers are compiled
/// once; an indirect call is nothing beside a system call.
pub(crate) struct Connection {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
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
