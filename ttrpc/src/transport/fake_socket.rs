//! A socket for tests, of which they know what it has taken.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::AsyncWrite;

use super::{
    io::{WriteHalf, Writer},
    lock,
};
use crate::{
    proto::frame::{HEADER_LEN, Header},
    sync::Mutex,
};

/// The test's view of the socket.
#[derive(Clone, Default)]
pub(crate) struct FakeSocket(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    taken: Vec<u8>,
    /// Bytes that it takes of a task that does not wait. From one that waits it takes all.
    room: usize,
    /// Runs while such a task writes.
    meanwhile: Option<Box<dyn FnOnce() + Send>>,
    /// The error that such a task meets.
    error: Option<io::ErrorKind>,
    has_lost_peer: bool,
    is_dropped: bool,
    /// Runs while it is dropped.
    when_dropped: Option<Box<dyn FnOnce() + Send>>,
}

impl FakeSocket {
    pub(crate) fn with_room(room: usize) -> Self {
        let socket = FakeSocket::default();
        lock(&socket.0).room = room;
        socket
    }

    /// Something else happens while the next task writes that does not wait.
    pub(crate) fn meanwhile(&self, act: impl FnOnce() + Send + 'static) {
        lock(&self.0).meanwhile = Some(Box::new(act));
    }

    /// A task that does not wait meets this error. One that waits meets none.
    pub(crate) fn fail(&self, error: io::ErrorKind) {
        lock(&self.0).error = Some(error);
    }

    /// Its peer has gone. It takes what is written all the same.
    pub(crate) fn lose_peer(&self) {
        lock(&self.0).has_lost_peer = true;
    }

    pub(crate) fn writer(&self) -> Writer {
        Box::new(FakeWriter(self.clone()))
    }

    /// The stream ids of the frames that it has taken. They are whole.
    pub(crate) fn stream_ids(&self) -> Vec<u32> {
        let state = lock(&self.0);
        let (mut rest, mut ids) = (&state.taken[..], Vec::new());
        while let Some(header) = rest.first_chunk() {
            let header = Header::from_bytes(header);
            ids.push(header.stream_id);
            rest = &rest[HEADER_LEN + header.data_len as usize..];
        }
        assert!(rest.is_empty());
        ids
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).taken.len()
    }

    /// This happens while the socket is dropped.
    pub(crate) fn when_dropped(&self, act: impl FnOnce() + Send + 'static) {
        lock(&self.0).when_dropped = Some(Box::new(act));
    }

    pub(crate) fn is_dropped(&self) -> bool {
        lock(&self.0).is_dropped
    }
}

struct FakeWriter(FakeSocket);

impl Drop for FakeWriter {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        state.is_dropped = true;
        let when_dropped = state.when_dropped.take();
        drop(state);
        if let Some(act) = when_dropped {
            act();
        }
    }
}

impl WriteHalf for FakeWriter {
    fn is_socket(&self) -> bool {
        true
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let meanwhile = lock(&self.0.0).meanwhile.take();
        if let Some(act) = meanwhile {
            act();
        }
        let mut state = lock(&self.0.0);
        if let Some(error) = state.error {
            return Err(error.into());
        }
        let len = bytes.len().min(state.room);
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.taken.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn has_lost_peer(&self) -> bool {
        lock(&self.0.0).has_lost_peer
    }
}

impl AsyncWrite for FakeWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0.0).taken.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
