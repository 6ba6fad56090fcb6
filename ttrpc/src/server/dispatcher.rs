//! Where the handler of a call begins, once its call has been let in.
//!
//! - On a runtime of several threads, in the task that leads the connection, before the next frame is acted on, so that
//!   one call uses what the call before it has left in malloc's lists and in the processor's cache. If the handler
//!   blocks its thread, another task leads the connection from then on, see [`leader`](super::leader).
//! - Or there in a task of its own: if it was read alone, or if handlers before it were slow and other threads had
//!   better come for the next ones.
//! - On a runtime of one thread, where a handler that blocks its thread blocks all, in the receiver's task. Other tasks
//!   run between turns of calls, and sockets and timers are looked at, see [`CallTurn`].
//!
//! While more has been read behind a call, the sender is not woken for its reply: what is made of one read is written
//! together.

use std::{
    future::poll_fn,
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::task::yield_now;

use super::{
    boxed_call::BoxedCall,
    call::Call,
    call_turn::{CallTurn, TurnEnd},
    connection::Connection,
};

/// Calls in a row after whose replies the sender is not woken. Where a client reads on another processor, twice as many
/// would have it wait for as long as it needs itself.
const MAX_HELD: u32 = 128;

/// Has the handlers of one connection begin, for its receiver.
pub(super) struct Dispatcher {
    connection: Arc<Connection>,
    /// The turn of the receiver's task, on a runtime of one thread. Boxed for the sake of connections on others.
    turn: Option<Box<CallTurn>>,
    /// Where the next call begins.
    place: Place,
    /// More has been read behind it.
    more_follows: bool,
    /// The sender is held back while it begins.
    is_held: bool,
    /// Calls in a row that have held the sender back.
    held: u32,
    /// Its stream is open, and its handler has not begun.
    call: Option<BoxedCall>,
}

/// Where a handler begins.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// In the receiver's task.
    Receiver,
    /// In the task that leads the connection.
    Leader,
    /// In a task of its own.
    Task,
}

impl Dispatcher {
    /// `is_single`: the runtime has one thread.
    pub(super) fn new(connection: Arc<Connection>, is_single: bool) -> Self {
        let (turn, place) = match is_single {
            true => (Some(Box::default()), Place::Receiver),
            false => (None, Place::Task),
        };
        Dispatcher {
            connection,
            turn,
            place,
            more_follows: false,
            is_held: false,
            held: 0,
            call: None,
        }
    }

    /// A Request is about to be acted on, and so many bytes behind it have been read.
    pub(super) fn prepare(&mut self, bytes_left: usize) {
        self.more_follows = bytes_left > 0;
        if self.turn.is_none() {
            let is_lone = !self.more_follows && self.held == 0;
            let is_led = self.connection.handover.begins_in_leader(is_lone);
            self.place = if is_led { Place::Leader } else { Place::Task };
        }
    }

    /// Opens the stream of the call, whose handler begins with [`Dispatcher::begin`].
    pub(super) fn open(&mut self, call: Arc<Call>, future: BoxedCall) {
        let is_in_row = self.more_follows || self.held > 0;
        self.is_held = is_in_row && self.place != Place::Task && self.held + 1 < MAX_HELD;
        self.connection.queue.hold_sender(self.is_held, |table| {
            table.open(call.head.stream_id, call.head.flags, call);
        });
        self.held += u32::from(self.is_held);
        self.call = Some(future);
    }

    /// Whether a call waits for [`Dispatcher::begin`].
    pub(super) fn has_call(&self) -> bool {
        self.call.is_some()
    }

    /// Has the handler of the call that was opened last begin.
    pub(super) async fn begin(&mut self) {
        let Some(call) = self.call.take() else { return };
        match (self.place, &mut self.turn) {
            (Place::Receiver, Some(turn)) => {
                turn.begin(self.more_follows);
                let mut call = Some(call);
                poll_fn(|cx| {
                    call.take().into_iter().for_each(|call| call.begin(cx));
                    Poll::Ready(())
                })
                .await;
            }
            (Place::Leader, _) => {
                self.connection.handover.put(call);
                // It comes back when the handler has run.
                poll_again(|_| {}).await;
            }
            _ => {
                self.let_sender_go();
                call.spawn();
                if self.more_follows {
                    // The thread is the handler's now. Another one comes for the receiver.
                    poll_again(|cx| cx.waker().wake_by_ref()).await;
                }
            }
        }
        if !self.is_held {
            self.let_sender_go();
        }
    }

    /// The sender is not held back any longer: the receiver may have to wait, or has waited for long enough.
    pub(super) fn let_sender_go(&mut self) {
        if mem::take(&mut self.held) > 0 {
            self.connection.queue.let_sender_go();
        }
    }

    /// Why others have to run before the next call begins here.
    pub(super) fn turn_end(&mut self) -> Option<TurnEnd> {
        self.turn.as_mut()?.end()
    }

    /// The receiver's task runs anew.
    pub(super) fn begin_turn(&mut self) {
        self.turn.iter_mut().for_each(|turn| **turn = CallTurn::default());
    }

    /// Lets others run.
    pub(super) async fn let_others_run(&mut self, end: TurnEnd) {
        match end {
            TurnEnd::SocketsAndTimers => {
                self.let_sender_go();
                // Woken when the runtime has looked at them.
                yield_now().await;
            }
            TurnEnd::Tasks => poll_again(|cx| cx.waker().wake_by_ref()).await,
        }
        self.turn.iter_mut().for_each(|turn| turn.next(end));
    }
}

impl Drop for Dispatcher {
    /// No call begins any more.
    fn drop(&mut self) {
        drop(self.connection.handover.take());
    }
}

/// Ends the task's poll, when `before` has seen to it that there is another one.
async fn poll_again(before: impl Fn(&Context<'_>)) {
    let mut is_again = false;
    poll_fn(|cx| {
        if mem::replace(&mut is_again, true) {
            return Poll::Ready(());
        }
        before(cx);
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, ready},
        pin::pin,
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        task::{Wake, Waker},
    };

    use super::*;
    use crate::{
        Server, ServerConfig,
        proto::frame::{Flags, FrameType},
        server::tests::{idle_connection, unary_call},
        transport::{encode::Frame, fake_socket::FakeSocket, sender::Sender},
    };

    fn dispatcher(is_single: bool) -> (Server, Dispatcher) {
        let (server, connection) = idle_connection(ServerConfig::default());
        (server, Dispatcher::new(connection, is_single))
    }

    impl Dispatcher {
        /// Opens a call, behind which so many bytes have been read.
        fn open_next(&mut self, stream_id: u32, bytes_left: usize, handler: BoxedCall) {
            self.prepare(bytes_left);
            self.open(unary_call(self.connection.clone(), stream_id), handler);
        }

        /// The end of the connection, which its calls refer to.
        fn end(self) {
            drop(self.connection.queue.streams(mem::take));
        }
    }

    fn is_pending(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_lone_call_gets_a_task_and_so_do_those_behind_slow_handlers() {
        let (_server, mut dispatcher) = dispatcher(false);
        let begins_in_leader = |dispatcher: &mut Dispatcher, bytes_left| {
            dispatcher.prepare(bytes_left);
            dispatcher.place == Place::Leader
        };
        assert!(!begins_in_leader(&mut dispatcher, 0));
        assert!(begins_in_leader(&mut dispatcher, 1));
        dispatcher.connection.handover.leave_to_tasks(2);
        let places = [1, 0, 1].map(|bytes_left| begins_in_leader(&mut dispatcher, bytes_left));
        assert_eq!(places, [false, false, true]);
    }

    #[tokio::test]
    async fn the_leader_is_handed_a_call_whose_stream_is_open() {
        let (_server, mut dispatcher) = dispatcher(false);
        dispatcher.open_next(1, 1, BoxedCall::new(ready(())));
        assert!(is_pending(dispatcher.begin()), "the leader comes again");
        let connection = &dispatcher.connection;
        assert!(connection.handover.has_call());
        assert!(connection.queue.streams(|table| table.contains(1)));
        drop(connection.handover.take());
        dispatcher.end();
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }

    /// Else each reply of those that were read together would be written by itself.
    #[tokio::test]
    async fn the_sender_is_held_back_until_the_receiver_waits_or_many_calls_have_begun() {
        let (_server, mut dispatcher) = dispatcher(true);
        let connection = dispatcher.connection.clone();
        let mut sender = Sender::new(FakeSocket::default().writer(), &connection.queue);
        let mut sender = pin!(sender.run());
        let (mut next_id, woken) = (1, Arc::<Woken>::default());
        let mut is_sent = async |bytes_left, waits| {
            let waker = woken.clone().into();
            assert!(sender.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let (replies, id) = (connection.clone(), next_id);
            next_id += 2;
            let handler = BoxedCall::new(async move {
                let frame = Frame::new(FrameType::Response, Flags::NONE, id, &[][..]);
                let frame = frame.expect("it is short");
                let room = replies.queue.try_reserve(frame.len()).expect("it is open");
                frame.encode(|bytes| room.expect("there is room").push(bytes, |_| Some(id)));
            });
            dispatcher.open_next(id, bytes_left, handler);
            dispatcher.begin().await;
            if waits {
                dispatcher.let_sender_go();
            }
            woken.0.swap(false, Relaxed)
        };
        assert!(is_sent(0, false).await, "a lone one");
        assert!(!is_sent(1, false).await, "more follows");
        assert!(!is_sent(0, false).await, "more may have come meanwhile");
        assert!(is_sent(0, true).await);
        for nth in 1..2 * MAX_HELD {
            assert_eq!(is_sent(1, false).await, nth == MAX_HELD, "{nth}");
        }
        dispatcher.end();
    }

    #[tokio::test]
    async fn on_one_thread_handlers_begin_in_the_receivers_task() {
        let (_server, mut dispatcher) = dispatcher(true);
        for (id, bytes_left) in [(1, 0), (3, 1)] {
            let has_begun = Arc::<AtomicBool>::default();
            let begins = has_begun.clone();
            let handler = BoxedCall::new(async move { begins.store(true, Relaxed) });
            dispatcher.open_next(id, bytes_left, handler);
            assert!(dispatcher.has_call() && !has_begun.load(Relaxed));
            assert!(!is_pending(dispatcher.begin()));
            assert!(!dispatcher.has_call() && has_begun.load(Relaxed));
        }
        dispatcher.end();
    }
}
