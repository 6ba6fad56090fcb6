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

/// Boxes that a thread keeps.
const MAX_SPARE: usize = 128;

/// Bytes of the largest box that is kept: what a handler of a few variables needs.
const MAX_SPARE_LEN: usize = 512;

thread_local! {
    static SPARE: RefCell<Vec<BoxedCall>> = const { RefCell::new(Vec::new()) };
}

/// The future of a call. When it has ended it holds nothing any more.
pub(in crate::server) struct BoxedCall(Pin<Box<dyn CallSlot>>);

impl BoxedCall {
    /// Puts the future into a box of this thread's, if the last one that was kept is for such futures.
    pub(in crate::server) fn new<F: Future<Output = ()> + Send + 'static>(future: F) -> Self {
        let mut future = Some(future);
        // A thread that is ending has none.
        let spare = || SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        if size_of::<F>() <= MAX_SPARE_LEN
            && let Some(mut spare) = spare()
            && spare.0.as_mut().fill(&mut future)
        {
            return spare;
        }
        BoxedCall(Box::pin(Slot { future }))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }

    /// The call has ended: its box is for the next one.
    pub(super) fn recycle(self) {
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
