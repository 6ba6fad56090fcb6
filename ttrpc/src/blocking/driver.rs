//! The runtime that the threads which wait drive.

use std::{
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, Waker},
};

use tokio::runtime::{Builder, EnterGuard, Runtime};

/// A current-thread runtime. Of the threads that wait for something, one drives it for all; when it is
/// done the next one takes over.
#[derive(Debug)]
pub(super) struct Driver {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Driver {
    pub(super) fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Driver { runtime: Some(runtime) })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until it is dropped")
    }

    /// For what registers sockets and timers with the runtime.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.runtime().enter()
    }

    /// Waits for a future.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime().block_on(future)
    }

    /// Waits for a future that may well be ready. Then it is not worth the driver's change of hands.
    ///
    /// # Panics
    /// In a task of a tokio runtime, if it has to wait.
    pub(super) fn wait_if_pending<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let entered = self.enter();
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        drop(entered);
        self.wait(future)
    }

    /// Waits until every task has ended.
    pub(super) async fn no_tasks(&self) {
        let metrics = self.runtime().metrics();
        while metrics.num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Driver {
    /// Also in a task of another runtime, where waiting is not allowed.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
