//! Calls that a receiver has let in, on their way into the connection's table and its ready queue.
//!
//! The receiver hands them on together: each of the two is locked once for the calls that were read together, and not
//! for each. It does so before it waits for anything, and before it acts on a frame that may be for one of them.

use std::{collections::VecDeque, sync::Arc};

use super::{
    call::Call,
    connection::Connection,
    ready_queue::{BoxedCall, ReadyQueue},
};
use crate::proto::frame::Flags;

/// Calls that are handed on together at most: with more of them the locks cost next to nothing per call already.
const MAX_CALLS: usize = 16;

/// The opened calls of one connection that have not been handed on.
pub(super) struct OpenedCalls {
    connection: Arc<Connection>,
    ready_queue: Arc<ReadyQueue>,
    /// For the table, with the flags of their Requests.
    streams: Vec<(Arc<Call>, Flags)>,
    /// For the ready queue.
    futures: VecDeque<BoxedCall>,
}

impl OpenedCalls {
    pub(super) fn new(connection: Arc<Connection>, ready_queue: Arc<ReadyQueue>) -> Self {
        OpenedCalls { connection, ready_queue, streams: Vec::new(), futures: VecDeque::new() }
    }

    pub(super) fn add(&mut self, call: Arc<Call>, flags: Flags, future: BoxedCall) {
        self.streams.push((call, flags));
        self.futures.push_back(future);
        if self.futures.len() == MAX_CALLS {
            self.hand_on();
        }
    }

    /// Opens the streams of the calls, and has their handlers begin.
    pub(super) fn hand_on(&mut self) {
        let Some((last, _)) = self.streams.last() else { return };
        let (read_at, queue) = (last.head.started, &self.connection.queue);
        queue.announced.announce(self.futures.len());
        queue.streams(|table| {
            for (call, flags) in self.streams.drain(..) {
                table.open(call.head.stream_id, flags, call);
            }
        });
        self.ready_queue.push(&mut self.futures, read_at);
    }
}
