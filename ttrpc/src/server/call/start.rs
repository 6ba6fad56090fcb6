//! Calls between their admission and their handler's first step.
//!
//! A receiver could open the calls of a whole socket buffer before the first of them runs. So it gives way to the
//! runtime after [`MAX_UNSTARTED`] calls: a connection has few tasks that only wait for the runtime, and one with a
//! thousand calls does not delay one with a single call.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, Waker},
};

use bytes::Buf;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::server::call::task::{CallOwner, CallTask};
use crate::{
    proto::{frame::Flags, payload::Payload},
    server::call::{
        handler::OwnedHandler,
        interceptor::{Chain, Intercepted},
        reasons::Refusal,
        state::Call,
    },
    sync::{
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        spawn,
    },
    transport::messages::message_cost,
};

/// Calls that may be opened before the first of them starts: few enough that they are in the cache when they do. With 32 of
/// them a connection with 256 calls in flight makes 8 % fewer.
const MAX_UNSTARTED: u32 = 12;

/// First steps that the receiver makes between two waits for its socket. Calls beyond these are spawned: the runtime
/// looks at sockets and timers after so many polls, however many handlers one of them runs.
const MAX_INLINE: u32 = 256;

/// First steps that the receiver makes before it gives way, and other tasks have their turns.
const INLINE_BATCH: u32 = 24;

/// Starts the calls of a connection.
#[derive(Debug)]
pub(in crate::server) struct Starts {
    /// On a runtime of one thread a call's first step is made by the receiver, which saves a task where the handler
    /// does not wait. One that blocks its thread blocks all others there, whoever polls it.
    is_one_thread: bool,
    /// First steps that the receiver has made since it last waited for its socket.
    inline: AtomicU32,
    /// Of these, those since it last gave way.
    batch: AtomicU32,
    /// Calls whose tasks have been spawned and have not started.
    unstarted: AtomicU32,
    /// Frames have arrived behind the last call's Request: its reply is not the only one to be written.
    more_to_come: AtomicBool,
}

impl Starts {
    pub(in crate::server) fn new() -> Self {
        let is_one_thread = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
        let (inline, batch, unstarted, more_to_come) = Default::default();
        Starts { is_one_thread, inline, batch, unstarted, more_to_come }
    }

    /// Returns whether calls are about to be opened, whose replies may follow.
    pub(super) fn more_to_come(&self) -> bool {
        self.more_to_come.load(Relaxed)
    }

    /// A task has started, or was dropped before. This wakes nobody: the runtime may keep what a task wakes for that
    /// task's thread, where a handler that blocks would strand it.
    pub(super) fn started(&self) {
        self.unstarted.fetch_sub(1, Relaxed);
    }

    /// Returns whether the receiver gives way before it acts on another frame.
    pub(in crate::server) fn are_due(&self) -> bool {
        self.unstarted.load(Relaxed) >= MAX_UNSTARTED || self.batch.load(Relaxed) >= INLINE_BATCH
    }

    /// The receiver waits for its socket: the runtime looks at all of them before it goes on.
    pub(in crate::server) fn receiver_waits(&self) {
        self.inline.store(0, Relaxed);
        self.batch.store(0, Relaxed);
    }

    /// Lets the tasks run that are scheduled at this moment.
    pub(in crate::server) async fn give_way(&self) {
        give_way().await;
        self.batch.store(0, Relaxed);
    }

    /// Returns whether the receiver makes the first step of the next call.
    fn is_inline(&self) -> bool {
        self.is_one_thread && self.inline.load(Relaxed) < MAX_INLINE
    }

    /// Makes the first step of a call. One that goes on has a task, which polls it again.
    fn begin(&self, mut task: CallTask) {
        self.inline.fetch_add(1, Relaxed);
        self.batch.fetch_add(1, Relaxed);
        if Pin::new(&mut task).poll(&mut task::Context::from_waker(Waker::noop())).is_pending() {
            spawn(task);
        }
    }
}

/// Lets the tasks run that are scheduled at this moment.
///
/// The task wakes itself. Unlike [`tokio::task::yield_now`], which waits until the runtime has looked at sockets and
/// timers, this leaves the task in the queue of its worker, where other workers find it.
pub(in crate::server) fn give_way() -> impl Future<Output = ()> {
    let mut has_given_way = false;
    poll_fn(move |cx| {
        if mem::replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// A call that has been let in and is not started yet. Dropped, it leaves.
pub(in crate::server) struct AdmittedCall<'a> {
    pub(in crate::server) owner: CallOwner,
    /// The length of its data.
    pub(in crate::server) request_bytes: usize,
    /// Frames have arrived behind its Request.
    pub(in crate::server) more_to_come: bool,
    /// The interceptors that run before its handler.
    pub(in crate::server) chain: Option<&'a Chain>,
}

impl AdmittedCall<'_> {
    pub(in crate::server) fn call(&self) -> &Arc<Call> {
        &self.owner.call
    }

    /// Puts what came with the Request of a stream into its inbox, before the stream is open. An
    /// empty payload is a message only where the method needs one.
    pub(in crate::server) fn fill_inbox(&self, payload: Payload<'_>, needs_message: bool) {
        let call = self.call();
        let inbox = call.inbox();
        if self.has_message(payload, needs_message) {
            call.connection.force_message(message_cost(payload.remaining()));
            inbox.push(payload, &call.connection.limits().patience);
        }
        if !self.remote_open() {
            inbox.end(Ok(()), false);
        }
    }

    fn has_message(&self, payload: Payload<'_>, needs_message: bool) -> bool {
        payload.has_remaining() || (needs_message && !self.remote_open())
    }

    fn remote_open(&self) -> bool {
        self.call().head.flags.contains(Flags::REMOTE_OPEN)
    }

    /// Opens the stream and has its handler begin with what it decodes of the payload, or its interceptors, behind
    /// which it is decoded.
    ///
    /// # Errors
    /// The refusal of a payload that does not decode, for a call without interceptors.
    pub(in crate::server) fn begin(
        self,
        payload: Payload<'_>,
        needs_message: bool,
        mut handler: OwnedHandler,
    ) -> Result<(), Refusal> {
        let messages = self.has_message(payload, needs_message).into();
        if let Some(chain) = self.chain {
            handler = Intercepted::around(handler, chain.clone());
        }
        handler.decode(payload)?;
        self.call().begun(self.request_bytes, messages);
        self.start(handler);
        Ok(())
    }

    fn start(mut self, handler: OwnedHandler) {
        let call = self.call().clone();
        let connection = call.connection.clone();
        let starts = &connection.starts;
        let is_inline = starts.is_inline();
        if !is_inline {
            starts.unstarted.fetch_add(1, Relaxed);
        }
        self.owner.is_unstarted = !is_inline;
        let span = call.span.clone();
        starts.more_to_come.store(self.more_to_come, Relaxed);
        // A call may end as soon as it has its task.
        connection.queue.streams(|table| table.open(call.head.stream_id, call.head.flags, call));
        let mut task = CallTask::New(handler, self.owner);
        if !span.is_none() {
            task = CallTask::GoesOn(span.instrument(Box::pin(task)));
        }
        if is_inline {
            starts.begin(task);
        } else {
            spawn(task);
        }
    }
}
