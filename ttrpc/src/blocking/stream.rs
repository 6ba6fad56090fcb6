//! A caller's ends of a stream.

use std::{fmt, sync::Arc};

use prost::Message;

use super::driver::Driver;
use crate::{Status, client};

/// Sends a stream of requests.
///
/// Dropping it says that nothing more comes, as [`StreamSender::finish`] does, but the server hears of it
/// only when a thread waits for something. What [the asynchronous one](client::StreamSender) says of half
/// an upload holds here, too.
#[must_use = "dropping the sender ends the stream of requests"]
pub struct StreamSender<Req> {
    pub(super) sender: client::StreamSender<Req>,
    pub(super) driver: Arc<Driver>,
}

impl<Req> StreamSender<Req> {
    /// Says that nothing more comes, and returns when that is in the socket.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED if the server does not read until the call's deadline.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn finish(self) -> Result<(), Status> {
        self.driver.call(self.sender.finish_flushed())
    }
}

impl<Req: Message> StreamSender<Req> {
    /// Sends a message, and returns when it is in the socket. Messages arrive in the order in which they
    /// were sent.
    ///
    /// # Errors
    /// The call's status if the server has ended it, RESOURCE_EXHAUSTED if the message is longer
    /// than a frame may be (the stream goes on), DEADLINE_EXCEEDED, UNAVAILABLE.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn send(&mut self, message: Req) -> Result<(), Status> {
        let StreamSender { sender, driver } = self;
        driver.call(async {
            sender.send(message).await?;
            sender.flushed().await
        })
    }
}

debug_in_short!(StreamSender<Req>);

/// Receives a stream of replies, by [`StreamReceiver::recv`] or as an [`Iterator`].
///
/// Messages come in the order in which the server sent them. A caller that takes none for long while other
/// threads drive the connection blocks it, and loses the stream after
/// [`ClientConfig::stall_timeout`](crate::ClientConfig::stall_timeout).
#[must_use = "dropping the receiver gives the replies up"]
pub struct StreamReceiver<Resp> {
    pub(super) receiver: client::StreamReceiver<Resp>,
    pub(super) driver: Arc<Driver>,
}

impl<Resp: Message + Default> StreamReceiver<Resp> {
    /// Waits for the next message; `None` when the server has ended the stream well.
    ///
    /// # Errors
    /// The status with which the stream failed. The stream is over then.
    ///
    /// # Panics
    /// In a task of a tokio runtime, if no message is there.
    pub fn recv(&mut self) -> Result<Option<Resp>, Status> {
        self.driver.check_process()?;
        self.driver.wait_if_pending(self.receiver.recv())
    }
}

/// Ends after the first error.
impl<Resp: Message + Default> Iterator for StreamReceiver<Resp> {
    type Item = Result<Resp, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        self.recv().transpose()
    }
}

impl<Resp> fmt::Debug for StreamReceiver<Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.receiver, f)
    }
}

/// The one reply to a stream of requests.
///
/// Dropped, the reply is dropped when it comes; the requests may go on.
#[must_use = "the reply is what the call was made for"]
pub struct Reply<Resp> {
    pub(super) reply: client::Reply<Resp>,
    pub(super) driver: Arc<Driver>,
}

impl<Resp: Message + Default> Reply<Resp> {
    /// Waits for it.
    ///
    /// # Errors
    /// The call's status.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub fn wait(self) -> Result<Resp, Status> {
        self.driver.call(self.reply)
    }
}

debug_in_short!(Reply<Resp>);
