//! Contains panics of the program's code: decoders, encoders, closures, futures, destructors, wakers, observers, hooks.
//!
//! All of it runs behind [`contain`] wherever it runs on a task that serves others as well, so that a panic costs the
//! call that it belongs to and nobody else. The payload of a panic is a value of the program's, too: its destructor may
//! panic in turn. [`Contained`] holds values whose destructor runs where the library drops them.

use std::{
    any::Any,
    mem::{self, needs_drop},
    ops::{Deref, DerefMut},
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use tokio::sync::Notify;

/// The program's code has panicked. The payload is gone.
#[derive(Debug, PartialEq)]
pub(crate) struct Panicked;

/// Runs code of the program's.
///
/// # Errors
/// If it panics.
pub(crate) fn contain<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(discard)
}

/// Drops the payload of a panic. One whose destructor panics is dropped all the same; the payload of that panic is
/// leaked, since its destructor may go on so for ever.
#[cold]
fn discard(payload: Box<dyn Any + Send>) -> Panicked {
    if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(next);
    }
    Panicked
}

/// Drops a value of the program's.
///
/// # Errors
/// If its destructor panics.
pub(crate) fn drop_contained<T>(value: T) -> Result<(), Panicked> {
    if needs_drop::<T>() { contain(|| drop(value)) } else { Ok(()) }
}

/// Wakes tasks, each also where the waker of another one panics.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(wake);
}

/// Wakes a task.
pub(crate) fn wake(waker: Waker) {
    if contain(|| waker.wake()).is_err() {
        crate::trace::warn!("a waker panicked");
    }
}

/// Notifies all that wait. Those that are left of its waiters, if one panics, are dropped unwoken.
pub(crate) fn notify_waiters(notify: &Notify) {
    if contain(|| notify.notify_waiters()).is_err() {
        crate::trace::warn!("a waker panicked");
    }
}

/// A value of the program's. A panic of its destructor is contained.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    pub(crate) fn new(value: T) -> Self {
        Contained(Some(value))
    }

    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().expect(TAKEN_ONCE)
    }
}

const TAKEN_ONCE: &str = "the value is there until it is taken or dropped";

impl<T> Deref for Contained<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(TAKEN_ONCE)
    }
}

impl<T> DerefMut for Contained<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(TAKEN_ONCE)
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        if needs_drop::<T>()
            && let Some(value) = self.0.take()
            && drop_contained(value).is_err()
        {
            crate::trace::warn!("a value of the program's panicked while it was dropped");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::panic_any,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        task::Wake,
    };

    use super::*;

    /// Panics when it is dropped, with a payload of its own kind as often as the number says.
    struct PanicsOnDrop(usize, Arc<AtomicUsize>);

    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
            if self.0 > 0 {
                panic_any(PanicsOnDrop(self.0 - 1, self.1.clone()));
            }
        }
    }

    #[test]
    fn a_panic_is_contained_whatever_its_payload_does_when_it_is_dropped() {
        for depth in 0..4 {
            let dropped = Arc::<AtomicUsize>::default();
            let payload = PanicsOnDrop(depth, dropped.clone());
            assert_eq!(contain(|| panic_any(payload)), Err::<(), _>(Panicked));
            assert_eq!(dropped.load(SeqCst), 1, "what comes of its destructor is leaked");
        }
        assert_eq!(contain(|| 1), Ok(1));
    }

    #[test]
    fn a_destructor_that_panics_is_contained() {
        for depth in 1..4 {
            let dropped = Arc::<AtomicUsize>::default();
            assert_eq!(drop_contained(PanicsOnDrop(depth, dropped.clone())), Err(Panicked));
            drop(Contained::new(PanicsOnDrop(depth, dropped.clone())));
            assert!(dropped.load(SeqCst) >= 2);
        }
        let value = Contained::new(PanicsOnDrop(1, Arc::default()));
        assert_eq!(value.0.as_ref().map(|value| value.0), Some(1));
        mem::forget(value.into_inner());
    }

    struct Task(bool, Arc<AtomicUsize>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, SeqCst);
            assert!(self.0, "a waker of the program's");
        }
    }

    #[test]
    fn each_task_is_woken_though_the_waker_of_another_one_panics() {
        let woken = Arc::<AtomicUsize>::default();
        wake_all([true, false, true].map(|ok| Arc::new(Task(ok, woken.clone())).into()));
        assert_eq!(woken.load(SeqCst), 3);
    }
}
