//! Tasks of the shim. They all have one type: each type of future that tokio runs costs kilobytes of
//! code, and there are many shims on a machine.

use std::pin::Pin;

use tokio::{sync::oneshot, task::JoinHandle};
use ttrpc::Status;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

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
    let (tell, told) = oneshot::channel();
    spawn(async move {
        // Nobody listens any more if the client is gone.
        let _ = tell.send(work.await);
    });
    told.await.unwrap_or_else(|_| Err(Status::internal("the shim has a fault")))
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

    /// What a future gives at once.
    async fn futures_now<T>(mut future: Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
