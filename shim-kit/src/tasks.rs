//! Tasks of the shim. They all have one type: each type of future that tokio runs costs kilobytes of
//! code, and there are many shims on a machine.

use std::{
    any::Any,
    future::poll_fn,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
};

use tokio::{sync::oneshot, task::JoinHandle};
use ttrpc::Status;

use crate::log;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Job = Box<dyn FnOnce() + Send>;

/// Runs this beside everything else.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(Box::pin(work) as Work)
}

/// Finishes what was begun even if the caller goes away: a handler is dropped when its client is,
/// and half a container would be left. containerd learns how it ended from events and State.
///
/// # Errors
/// Those of the work; INTERNAL if it panics.
pub async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let kept = Kept::default();
    let result = kept.clone();
    let task = spawn(async move { result.keep(work.await) });
    // A task that has panicked keeps nothing.
    let _ = task.await;
    kept.take().unwrap_or_else(|| Err(Status::internal("the shim has a fault")))
}

/// What comes of a task: all tasks are of one type, which returns nothing.
struct Kept<T>(Arc<Mutex<Option<T>>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Kept(Arc::default())
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Kept(self.0.clone())
    }
}

impl<T> Kept<T> {
    fn keep(&self, result: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Runs the code of a runtime's author. A panic becomes an error, so that what the kit does after an error is done.
///
/// # Errors
/// Those of the work; INTERNAL if it panics.
pub async fn contain<T>(work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        polled.unwrap_or_else(|payload| Poll::Ready(Err(panicked(payload))))
    })
    .await
}

/// Does the same as [`contain`] for code that does not wait.
///
/// # Errors
/// Those of the work; INTERNAL if it panics.
pub fn contain_now<T>(work: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(panicked(payload)))
}

fn panicked(payload: Box<dyn Any + Send>) -> Status {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let status =
        Status::internal(format!("the runtime panicked: {}", text.unwrap_or("no message")));
    // To drop it is the author's code once more.
    std::mem::forget(payload);
    log::warn(&status);
    status
}

/// Runs what may block, such as a mount or a file on a network file system, on a thread of its own.
///
/// # Errors
/// Those of the work; also if it panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let kept = Kept::default();
    let result = kept.clone();
    let job = tokio::task::spawn_blocking(Box::new(move || result.keep(work())) as Job);
    // A job that has panicked keeps nothing.
    let _ = job.await;
    kept.take().unwrap_or_else(|| Err(io::Error::other("the shim has a fault")))
}

/// Runs this at once if it is known not to block, else as [`blocking`] does: a thread costs a tenth of an exec.
///
/// # Errors
/// Those of [`blocking`].
pub async fn blocking_unless<T: Send + 'static>(
    is_quick: bool,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if is_quick { work() } else { blocking(work).await }
}

/// Does the same as [`blocking`] without waiting. The work goes on if nobody waits for it.
pub fn start_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> oneshot::Receiver<io::Result<T>> {
    let (tell, told) = oneshot::channel();
    tokio::task::spawn_blocking(Box::new(move || drop(tell.send(work()))) as Job);
    told
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn what_was_begun_is_finished_though_nobody_waits() {
        let (go, gate) = oneshot::channel();
        let done = Arc::new(Mutex::new(0));
        let count = done.clone();
        let (end, ended) = oneshot::channel::<()>();
        let work = Box::pin(to_the_end(async move {
            gate.await.map_err(|_| Status::internal("the gate is gone"))?;
            *count.lock().unwrap() += 1;
            drop(end);
            Ok(())
        }));
        // Polled once, and dropped.
        assert!(futures_now(work).await.is_none());
        go.send(()).unwrap();
        ended.await.unwrap_err();
        assert_eq!(*done.lock().unwrap(), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_panic_is_an_error() {
        let result = to_the_end(async { panic!("as it should") as Result<(), Status> }).await;
        assert_eq!(result.unwrap_err().code(), ttrpc::Code::Internal);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_panic_of_the_runtime_is_an_error_with_its_message() {
        let number = 7;
        let result = contain(async { panic!("seven is {number}") as Result<(), Status> }).await;
        assert_eq!(result.unwrap_err().message(), "the runtime panicked: seven is 7");
        let result = contain_now(|| panic!("plain") as Result<(), Status>);
        assert_eq!(result.unwrap_err().message(), "the runtime panicked: plain");
    }

    /// What a future gives at once.
    async fn futures_now<T>(mut future: Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
