//! The futures of calls, in boxes that are used again.
//!
//! The calls of a burst are made one after the other, and end one after the other. malloc keeps few blocks of a
//! size at hand, and each one beyond them costs several times as much.

use std::{
    any::Any,
    cell::RefCell,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use crate::sync::spawn;

/// Boxes that a thread keeps.
const MAX_SPARE: usize = 128;

/// Bytes of the largest box that is kept: what a handler of a few variables needs.
const MAX_SPARE_LEN: usize = 512;

thread_local! {
    static SPARE: RefCell<Vec<BoxedCall>> = const { RefCell::new(Vec::new()) };
}

/// The future of a call. When it has ended it holds nothing any more.
pub(super) struct BoxedCall(Pin<Box<dyn CallSlot>>);

impl BoxedCall {
    /// Puts the future into a box of this thread's, if the last one that was kept is for such futures.
    #[inline]
    pub(super) fn new<F: Future<Output = ()> + Send + 'static>(future: F) -> Self {
        let mut future = Some(future);
        // A thread that is ending has none.
        let spare = || SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        if size_of::<Slot<F>>() <= MAX_SPARE_LEN
            && let Some(mut spare) = spare()
            && spare.0.as_mut().fill(&mut future)
        {
            return spare;
        }
        BoxedCall(Box::pin(Slot { future }))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }

    /// Begins the call in this task. One that has to wait gets a task.
    pub(super) fn begin(mut self, cx: &mut Context<'_>) {
        match self.poll(cx) {
            Poll::Pending => self.spawn(),
            Poll::Ready(()) => self.recycle(),
        }
    }

    /// Makes a task for the call.
    pub(super) fn spawn(self) {
        spawn(CallTask(Some(self)));
    }

    /// The call has ended: its box is for the next one.
    fn recycle(self) {
        if size_of_val(&*self.0) <= MAX_SPARE_LEN {
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < MAX_SPARE {
                    spare.push(self);
                }
            });
        }
    }
}

/// The task of one call.
struct CallTask(Option<BoxedCall>);

impl Future for CallTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(call) = &mut self.0 {
            ready!(call.poll(cx));
        }
        self.0.take().into_iter().for_each(BoxedCall::recycle);
        Poll::Ready(())
    }
}

/// Has room for a future, whatever its type.
trait CallSlot: Future<Output = ()> + Send {
    /// Takes the future out of this [`Option`], if it is for futures of that type.
    fn fill(self: Pin<&mut Self>, future: &mut dyn Any) -> bool;
}

pin_project! {
    struct Slot<F> {
        // `None` when it has ended.
        #[pin]
        future: Option<F>,
    }
}

impl<F: Future<Output = ()>> Future for Slot<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut future = self.project().future;
        if let Some(running) = future.as_mut().as_pin_mut() {
            ready!(running.poll(cx));
            future.set(None);
        }
        Poll::Ready(())
    }
}

impl<F: Future<Output = ()> + Send + 'static> CallSlot for Slot<F> {
    fn fill(self: Pin<&mut Self>, future: &mut dyn Any) -> bool {
        let Some(future) = future.downcast_mut::<Option<F>>() else { return false };
        self.project().future.set(future.take());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::Arc,
        task::Waker,
    };

    use super::*;

    /// Which box it is.
    fn place(call: &BoxedCall) -> *const u8 {
        (&raw const *call.0).cast()
    }

    fn run(call: &mut BoxedCall) {
        assert!(call.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    fn spare() -> usize {
        SPARE.with_borrow(Vec::len)
    }

    /// A call that holds this much.
    fn call<const LEN: usize>() -> BoxedCall {
        let held = [1_u8; LEN];
        BoxedCall::new(async move {
            ready(()).await;
            assert_eq!(held, [1; LEN]);
        })
    }

    #[test]
    fn a_box_is_used_again_for_the_next_future_of_its_type() {
        let mut first = call::<8>();
        let second = call::<8>();
        let (first_place, second_place) = (place(&first), place(&second));
        assert_ne!(first_place, second_place);
        run(&mut first);
        first.recycle();
        let mut again = call::<8>();
        assert_eq!((place(&again), spare()), (first_place, 0));
        run(&mut again);
        again.recycle();
        run(&mut call::<16>());
        assert_eq!(spare(), 0, "it was for another type");
    }

    #[test]
    fn a_future_that_has_ended_holds_nothing() {
        let held = Arc::new(());
        let new = |held: Arc<()>| {
            BoxedCall::new(async move {
                ready(()).await;
                drop(held);
            })
        };
        let mut call = new(held.clone());
        run(&mut call);
        assert_eq!(Arc::strong_count(&held), 1);
        call.recycle();
        let call = new(held.clone());
        assert_eq!(Arc::strong_count(&held), 2);
        drop(call);
        assert_eq!((Arc::strong_count(&held), spare()), (1, 0));
    }

    #[test]
    fn what_a_future_holds_is_dropped_as_it_ends() {
        /// Ends at once, and keeps what it holds until it is dropped.
        struct Keeps(#[expect(dead_code, reason = "it is only held")] Arc<()>);

        impl Future for Keeps {
            type Output = ();

            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
                Poll::Ready(())
            }
        }

        let held = Arc::new(());
        let mut call = BoxedCall::new(Keeps(held.clone()));
        run(&mut call);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn few_boxes_are_kept_and_only_small_ones() {
        let mut calls: Vec<_> = (0..=MAX_SPARE).map(|_| call::<8>()).collect();
        calls.iter_mut().for_each(run);
        calls.into_iter().for_each(BoxedCall::recycle);
        assert_eq!(spare(), MAX_SPARE);
        let mut large = call::<MAX_SPARE_LEN>();
        assert_eq!(spare(), MAX_SPARE, "no box is taken for a large one");
        run(&mut large);
        large.recycle();
        assert_eq!(spare(), MAX_SPARE);
        SPARE.take();
        let mut large = call::<MAX_SPARE_LEN>();
        run(&mut large);
        large.recycle();
        assert_eq!(spare(), 0);
    }

    #[test]
    fn a_call_that_waits_is_polled_until_it_ends() {
        let mut call = BoxedCall::new(pending());
        assert!(call.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(call.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}
