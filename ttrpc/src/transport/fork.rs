//! Connections in a child process: one that was forked has a copy of each, over its parent's sockets.
//!
//! Whatever the child does with such a copy happens to the parent's connection as well: what it writes comes into the
//! middle of the parent's frames, what it reads the parent never gets, and its shutdown of the socket, or the removal from
//! the runtime's poller, which both share, ends the parent's connection. So a client's connection knows the process in
//! which it was made, and in any other one it neither writes nor shuts anything down. Servers have no such guard.

use std::{
    io, mem,
    ops::{Deref, DerefMut},
    pin::Pin,
    process,
    task::{Context, Poll},
};

use tokio::io::AsyncWrite;

use super::io::{WriteHalf, Writer};
use crate::{ConnectionError, Status};

/// The process in which a connection was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Origin(u32);

impl Origin {
    pub(crate) fn here() -> Self {
        Origin(process::id())
    }

    /// Whether this is the process in which the connection was made. It is a system call.
    pub(crate) fn is_here(self) -> bool {
        self == Origin::here()
    }

    /// # Errors
    /// FAILED_PRECONDITION in a child of that process.
    pub(crate) fn check(self) -> Result<(), Status> {
        if self.is_here() {
            return Ok(());
        }
        let reason = ConnectionError::Forked;
        Err(Status::failed_precondition(reason.to_string()).with_source(reason))
    }
}

/// What is dropped only where it was made. A child leaks it, and closes its descriptors when it exits.
#[derive(Debug)]
pub(crate) struct Original<T> {
    value: Option<T>,
    pub(crate) origin: Origin,
}

const UNTIL_DROPPED: &str = "it is there until it is dropped";

impl<T> Original<T> {
    pub(crate) fn new(value: T) -> Self {
        Original { value: Some(value), origin: Origin::here() }
    }

    /// The value, if this is the process in which it was made; else it is leaked.
    pub(crate) fn take(&mut self) -> Option<T> {
        let value = self.value.take()?;
        if self.origin.is_here() {
            return Some(value);
        }
        mem::forget(value);
        None
    }
}

impl<T> Deref for Original<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect(UNTIL_DROPPED)
    }
}

impl<T> DerefMut for Original<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect(UNTIL_DROPPED)
    }
}

impl<T> Drop for Original<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl Original<Writer> {
    fn check(&self) -> io::Result<()> {
        if self.origin.is_here() { Ok(()) } else { Err(io::Error::other(ConnectionError::Forked)) }
    }
}

impl AsyncWrite for Original<Writer> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut **self).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut **self).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        (**self).is_write_vectored()
    }

    /// A socket has nothing to flush, which saves the system call.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_socket() {
            self.check()?;
        }
        Pin::new(&mut **self).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut **self).poll_shutdown(cx)
    }
}

impl WriteHalf for Original<Writer> {
    fn is_socket(&self) -> bool {
        (**self).is_socket()
    }

    /// The call that writes has been checked.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        (**self).try_write(bytes)
    }

    fn has_lost_peer(&self) -> bool {
        (**self).has_lost_peer()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;
    use crate::{Code, Connection};

    /// What a value that was made in another process looks like.
    fn elsewhere<T>(value: T) -> Original<T> {
        Original { value: Some(value), origin: Origin(process::id() + 1) }
    }

    #[test]
    fn a_value_is_dropped_where_it_was_made_and_nowhere_else() {
        let held = Arc::new(());
        drop(Original::new(held.clone()));
        assert_eq!(Arc::strong_count(&held), 1);
        drop(elsewhere(held.clone()));
        assert_eq!(Arc::strong_count(&held), 2);
        assert!(Original::new(1).take().is_some() && elsewhere(1).take().is_none());
    }

    #[test]
    fn a_call_in_a_child_is_refused_with_the_reason() {
        assert_eq!(Origin::here().check(), Ok(()));
        let status = elsewhere(()).origin.check().unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(matches!(status.connection_error(), Some(ConnectionError::Forked)), "{status:?}");
        assert!(status.message().contains("connect after the fork"), "{status}");
    }

    #[tokio::test]
    async fn a_child_neither_writes_nor_shuts_down() {
        let (here, mut there) = duplex(100);
        let mut writer = elsewhere(Connection::new(here).writer);
        writer.write_all(b"a").await.unwrap_err();
        writer.flush().await.unwrap_err();
        writer.shutdown().await.unwrap_err();
        drop(writer);
        let mut byte = [0];
        let read = tokio::io::AsyncReadExt::read(&mut there, &mut byte);
        let read = tokio::time::timeout(std::time::Duration::from_millis(1), read).await;
        assert!(read.is_err(), "nothing has come, and no end");
    }
}
