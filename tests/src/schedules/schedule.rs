//! What a schedule says.

use std::time::Duration;

/// Connections to one server, their limits, and the calls that are made on them.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Bytes that either direction of a connection holds.
    pub pipe_bytes: usize,
    /// How many connections there are.
    pub connections: usize,
    /// The limits of both sides.
    pub limits: Limits,
    /// Both sides have an interceptor, which lets all calls pass.
    pub is_intercepted: bool,
    /// The calls.
    pub calls: Vec<PlannedCall>,
}

/// The limits of both sides.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Calls in flight at the client.
    pub client_calls: usize,
    /// Calls in flight at the server, of each connection.
    pub handlers: usize,
    /// Bytes of requests in flight at the server, of each connection.
    pub request_bytes: usize,
    /// Calls in flight at the server, of all connections.
    pub all_handlers: usize,
    /// Bytes of requests in flight at the server, of all connections.
    pub all_request_bytes: usize,
    /// Bytes that all streams keep for their handlers at the server.
    pub all_inbox_bytes: usize,
    /// Frames in either side's outgoing queue.
    pub queue_frames: usize,
    /// Bytes in either side's outgoing queue.
    pub queue_bytes: usize,
    /// Messages that a stream keeps for its consumer, on either side.
    pub inbox_messages: usize,
    /// Bytes that a stream keeps for its consumer, on either side.
    pub inbox_bytes: usize,
    /// How long handlers and consumers may stand still.
    pub stall_timeout: Duration,
}

impl Limits {
    /// Limits of all connections that one connection never reaches.
    pub fn of_one_connection(self) -> Self {
        Limits {
            all_handlers: usize::from(u16::MAX),
            all_request_bytes: 1 << 30,
            all_inbox_bytes: 1 << 30,
            ..self
        }
    }
}

/// A call and what becomes of it.
#[derive(Clone, Debug)]
pub struct PlannedCall {
    /// The connection on which the call is made: this number, as far as there are so many.
    pub connection: usize,
    /// When the call is made.
    pub at: Duration,
    /// What is called.
    pub kind: CallKind,
    /// The call's time, if it has a deadline.
    pub deadline: Option<Duration>,
    /// After what time the caller drops the call, if it does.
    pub dropped_after: Option<Duration>,
}

/// What is called: the methods of the conformance service.
#[derive(Clone, Debug)]
pub enum CallKind {
    /// A unary call with payloads of so many bytes.
    Echo {
        /// Bytes of the request.
        request: usize,
        /// Bytes of the reply.
        reply: usize,
    },
    /// A unary call whose handler takes this long.
    Sleep(Duration),
    /// A unary call that ends when a [`CallKind::Release`] of the same key arrives.
    Wait(u8),
    /// A unary call that lets every [`CallKind::Wait`] of the key end.
    Release(u8),
    /// A stream of replies.
    Generate(Messages, Consumer),
    /// A stream of requests.
    Collect(Messages),
    /// A stream of requests each of which is sent back.
    Exchange(Messages, Consumer),
    /// A stream of requests whose handler takes none before everything else has ended.
    Hold(Messages),
}

/// The messages of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// How many.
    pub count: u64,
    /// Bytes of each.
    pub size: usize,
}

/// How the caller takes the messages of a stream of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// As they come.
    Eager,
    /// With this pause before each.
    Slow(Duration),
    /// Only when every call that does not wait for others has ended: as a consumer that waits, in
    /// whatever way, for a reply on the same connection.
    Last,
}

impl CallKind {
    /// Whether the call may last until every other one has ended.
    pub fn waits_for_others(&self) -> bool {
        match self {
            CallKind::Wait(_) | CallKind::Hold(_) => true,
            CallKind::Generate(_, consumer) | CallKind::Exchange(_, consumer) => {
                *consumer == Consumer::Last
            }
            _ => false,
        }
    }

    /// Whether the call's handler may stand still and keep its place among the calls in flight. A
    /// handler that takes messages does so while the server's receiver waits: its messages come
    /// behind what the receiver waits with.
    pub fn may_keep_its_place(&self) -> bool {
        match self {
            CallKind::Echo { .. } | CallKind::Release(_) => false,
            CallKind::Generate(_, consumer) => *consumer != Consumer::Eager,
            CallKind::Sleep(_)
            | CallKind::Wait(_)
            | CallKind::Collect(_)
            | CallKind::Exchange(..)
            | CallKind::Hold(_) => true,
        }
    }

    /// Whether the call's handler may let messages lie at the server: it waits for something else, or for
    /// room for its replies.
    pub fn may_let_requests_lie(&self) -> bool {
        match self {
            CallKind::Exchange(_, consumer) => *consumer != Consumer::Eager,
            CallKind::Hold(_) => true,
            _ => false,
        }
    }

    /// The messages that the call sends to its handler.
    pub fn requests(&self) -> Option<&Messages> {
        match self {
            CallKind::Collect(messages)
            | CallKind::Exchange(messages, _)
            | CallKind::Hold(messages) => Some(messages),
            _ => None,
        }
    }

    /// Whether the one who takes the call's messages may let them lie.
    pub fn may_fill_an_inbox(&self) -> bool {
        match self {
            CallKind::Generate(_, consumer) | CallKind::Exchange(_, consumer) => {
                *consumer != Consumer::Eager
            }
            CallKind::Hold(_) => true,
            _ => false,
        }
    }
}
