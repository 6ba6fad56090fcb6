//! The runtime that the threads which wait drive.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    thread,
};

use tokio::runtime::{Builder, EnterGuard, Runtime};

use crate::{Status, transport::fork::Original};

/// A current-thread runtime. Of the threads that wait for something, one drives it for all; when it is
/// done the next one takes over.
#[derive(Debug)]
pub(super) struct Driver {
    /// `None` only while it is dropped.
    /// A child process leaks its copy: the poller is shared with the parent.
    runtime: Original<Runtime>,
    /// Threads in [`Driver::wait`].
    waiting: AtomicUsize,
}

impl Driver {
    pub(super) fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Driver { runtime: Original::new(runtime), waiting: AtomicUsize::new(0) })
    }

    /// # Errors
    /// FAILED_PRECONDITION in a child process that was forked after the client had connected. It must not drive.
    pub(super) fn check_process(&self) -> Result<(), Status> {
        self.runtime.origin.check()
    }

    /// For what registers sockets and timers with the runtime.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Waits for a future.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let waiter = Waiter::new(&self.waiting);
        if waiter.has_company {
            // A handle's `block_on` does not drive, and panics where the runtime's does.
            let polled = async { self.poll_twice(future.as_mut()) };
            if let Poll::Ready(output) = self.runtime.handle().block_on(polled) {
                return output;
            }
        }
        self.runtime.block_on(future)
    }

    /// Polls a future, and once more when the system has let the other threads run. A thread that sleeps is
    /// woken by a system call of the thread that drives; with many threads, the reply is often there before.
    fn poll_twice<F: Future>(&self, mut future: Pin<&mut F>) -> Poll<F::Output> {
        let polled = self.poll_once(future.as_mut());
        if polled.is_ready() {
            return polled;
        }
        thread::yield_now();
        self.poll_once(future)
    }

    fn poll_once<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let _entered = self.enter();
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Waits for a future that may well be ready. Then it is not worth the driver's change of hands.
    ///
    /// # Panics
    /// In a task of a tokio runtime, if it has to wait.
    pub(super) fn wait_if_pending<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        match self.poll_once(future.as_mut()) {
            Poll::Ready(output) => output,
            Poll::Pending => self.wait(future),
        }
    }

    /// Waits for a part of a call.
    ///
    /// # Errors
    /// Those of [`Driver::check_process`], and the part's.
    ///
    /// # Panics
    /// In a task of a tokio runtime.
    pub(super) fn call<T>(
        &self,
        part: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        self.check_process()?;
        self.wait(part)
    }

    /// Waits until every task has ended.
    pub(super) async fn no_tasks(&self) {
        let metrics = self.runtime.metrics();
        while metrics.num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// A thread that waits, counted until this is dropped.
struct Waiter<'a> {
    waiting: &'a AtomicUsize,
    /// Other threads were waiting when it came.
    has_company: bool,
}

impl<'a> Waiter<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        let has_company = waiting.fetch_add(1, Relaxed) > 0;
        Waiter { waiting, has_company }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Relaxed);
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::task::yield_now;

    use super::*;

    #[test]
    fn a_thread_has_company_while_another_one_waits() {
        let waiting = AtomicUsize::new(0);
        let first = Waiter::new(&waiting);
        let second = Waiter::new(&waiting);
        assert!(!first.has_company && second.has_company);
        drop((first, second));
        assert!(!Waiter::new(&waiting).has_company);
    }

    #[test]
    fn one_turn_is_enough_for_what_is_ready_or_soon_is() {
        let driver = Driver::new().unwrap();
        let soon = async {
            yield_now().await;
            2
        };
        assert_eq!(driver.poll_twice(pin!(ready(1))), Poll::Ready(1));
        assert_eq!(driver.poll_twice(pin!(soon)), Poll::Ready(2));
        assert_eq!(driver.poll_twice(pin!(pending::<()>())), Poll::Pending);
    }

    #[test]
    fn no_tasks_are_left_when_the_last_one_has_ended() {
        let driver = Driver::new().unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let mut no_tasks = pin!(driver.no_tasks());
        let task = driver.runtime.spawn(yield_now());
        assert!(no_tasks.as_mut().poll(&mut cx).is_pending());
        driver.wait(task).unwrap();
        assert!(no_tasks.as_mut().poll(&mut cx).is_ready());
    }
}
