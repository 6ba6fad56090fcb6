//! Observers: each connection and each call is reported to them, exactly once, however it ends.
//!
//! An [`Observer`] counts, measures and logs. It is synchronous and cannot change what it sees; what decides
//! about calls is an interceptor ([`server::Interceptor`](crate::server::Interceptor)). A future that is
//! dropped cannot report its own end. An observer receives it all the same: the library reports it where it
//! decides how a call ends.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//! use ttrpc::observer::{CallEnd, CallInfo, Observer};
//!
//! #[derive(Default)]
//! struct Failures(AtomicU64);
//!
//! impl Observer for Failures {
//!     fn call_ended(&self, _call: &CallInfo<'_>, end: &CallEnd<'_>) {
//!         if !end.is_ok() {
//!             self.0.fetch_add(1, Relaxed);
//!         }
//!     }
//! }
//!
//! let server = ttrpc::Server::builder().observe(Failures::default());
//! # drop(server);
//! ```
//!
//! # What is reported
//!
//! - Each call that begins ends once, also one that is refused, that no service takes, or that is dropped before it was
//!   sent.
//! - A server's call begins when its Request has been read, and ends when its last frame is queued or
//!   its connection ends. The handler may go on after that, for its grace.
//! - A client's call begins when it is first polled, before its interceptors run. A call with a stream of replies ends
//!   when their end has arrived or the call has failed. What the caller finds later, such as a message that does not
//!   decode, changes nothing. Other calls end when their caller has taken the reply. Any call ends when its caller
//!   drops it.
//! - A client's call that an interceptor makes again is reported once for each time that it is made, and one that
//!   an interceptor never makes is reported once. A call that the client makes again by its
//!   [`Retry`](crate::client::Retry) is one call, with its [attempts](CallEnd::attempts).
//!
//! # What it costs
//!
//! An observer is called by the tasks that move frames, with no lock held that anything else waits for. It has to return at
//! once: it may not block, and what it does adds to every call. If one panics, the others
//! receive the event and the call goes on; the panic is logged once.
//!
//! A client's observed call allocates once more than others. The clock is read for [`CallEnd::duration`] when that is asked for.

mod cause;
mod list;
mod stats;

use std::{sync::Arc, time::Duration};

pub use cause::{ConnectionEndCause, EndCause};
pub(crate) use list::Observers;
pub(crate) use stats::{CallOutcome, CallStats};
use tokio::time::Instant;

use crate::{
    Code, Extensions, Metadata, client::ClientState, snapshot::Stall, transport::peer::Peer,
};

/// Receives the events of connections and calls. All methods do nothing unless they are implemented.
///
/// ```
/// use ttrpc::{Server, observer::{CallEnd, CallInfo, EndCause, Observer}};
///
/// struct Panics;
///
/// impl Observer for Panics {
///     fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
///         if end.cause == EndCause::Panicked {
///             eprintln!("{}/{} panicked after {:?}", call.service, call.method, end.duration());
///         }
///     }
/// }
/// let server = Server::builder().observe(Panics);
/// ```
///
/// [`ServerBuilder::observe`](crate::server::ServerBuilder::observe) and
/// [`ConnectOptions::observe`](crate::client::ConnectOptions::observe) add one. An [`Arc`] of an observer is
/// an observer, for programs that keep it, or use one for several clients and servers.
#[allow(unused_variables, reason = "the names are for the documentation")]
pub trait Observer: Send + Sync + 'static {
    /// A connection is served, or a client has one.
    fn connection_opened(&self, connection: &ConnectionInfo<'_>) {}

    /// A connection that was opened has ended. A server's calls on it have ended before.
    fn connection_closed(&self, connection: &ConnectionInfo<'_>, end: &ConnectionEnd<'_>) {}

    /// A connection was not opened: a server's [`PeerPolicy`](crate::server::PeerPolicy) or
    /// [`ConnectionHook`](crate::server::ConnectionHook) has refused it.
    fn connection_refused(&self, connection: &ConnectionInfo<'_>, reason: &str) {}

    /// The peer has sent a frame that the protocol does not allow: `rule` says why not. If a call ends for
    /// it, that is an event of its own.
    fn protocol_violation(&self, connection: &ConnectionInfo<'_>, rule: &str) {}

    /// The receiver of a connection reads again after it was blocked. `stall` says by what and for how long. A call
    /// that a limit has refused meanwhile ends, which is an event of its own.
    fn receiver_stalled(&self, connection: &ConnectionInfo<'_>, stall: &Stall) {}

    /// The state of a client that [reconnects](crate::client::ConnectOptions::reconnect) has changed.
    fn client_state_changed(&self, state: &ClientState) {}

    /// A call begins.
    fn call_begun(&self, call: &CallInfo<'_>) {}

    /// A call that was begun has ended.
    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {}

    /// Returns whether [`message`](Observer::message) is to be called. Asked once, when the observer is added.
    fn wants_messages(&self) -> bool {
        false
    }

    /// A message of a call was queued for the peer, or has come from it, taken or not. A message that was sent as its
    /// call ended may be reported after the call's end.
    fn message(&self, call: &CallInfo<'_>, message: &MessageInfo) {}
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn connection_opened(&self, connection: &ConnectionInfo<'_>) {
        (**self).connection_opened(connection);
    }

    fn connection_closed(&self, connection: &ConnectionInfo<'_>, end: &ConnectionEnd<'_>) {
        (**self).connection_closed(connection, end);
    }

    fn connection_refused(&self, connection: &ConnectionInfo<'_>, reason: &str) {
        (**self).connection_refused(connection, reason);
    }

    fn protocol_violation(&self, connection: &ConnectionInfo<'_>, rule: &str) {
        (**self).protocol_violation(connection, rule);
    }

    fn receiver_stalled(&self, connection: &ConnectionInfo<'_>, stall: &Stall) {
        (**self).receiver_stalled(connection, stall);
    }

    fn client_state_changed(&self, state: &ClientState) {
        (**self).client_state_changed(state);
    }

    fn call_begun(&self, call: &CallInfo<'_>) {
        (**self).call_begun(call);
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        (**self).call_ended(call, end);
    }

    fn wants_messages(&self) -> bool {
        (**self).wants_messages()
    }

    fn message(&self, call: &CallInfo<'_>, message: &MessageInfo) {
        (**self).message(call, message);
    }
}

/// The side of a connection that observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one that makes calls.
    Client,
    /// The one that answers them.
    Server,
}

impl Side {
    /// Returns `client` or `server`.
    pub fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}

/// A connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo<'a> {
    /// The side that observes.
    pub side: Side,
    /// Counts the connections of a server, and the clients of a process, from 1. 0 for one that is refused.
    pub id: u64,
    /// The other side, as far as it is known.
    pub peer: &'a Peer,
    /// Values that were added to the connection.
    pub extensions: &'a Extensions,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectionEnd<'a> {
    /// The cause.
    pub cause: ConnectionEndCause,
    /// Details, such as the system's error. Empty where there are none.
    pub message: &'a str,
    /// The time for which it was open.
    pub duration: Duration,
}

/// A call.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CallInfo<'a> {
    /// The side that observes.
    pub side: Side,
    /// The [number](ConnectionInfo::id) of its connection.
    pub connection_id: u64,
    /// The other side, as far as it is known.
    pub peer: &'a Peer,
    /// `None` while a client's Request is not queued.
    pub stream_id: Option<u32>,
    /// Full protobuf name of the service. Empty if a server could not read the Request.
    pub service: &'a str,
    /// Bare name of the method. Empty if a server could not read the Request.
    pub method: &'a str,
    /// True if the program knows these names: a server has the method, or a client of this program has set them.
    ///
    /// If not, a client has written them, for a [fallback](crate::server::Fallback) or for a method that does not
    /// exist. Clients can make up any number of such names: do not use them as labels of metrics.
    pub is_known: bool,
    /// Identifies the method among those of all servers of the process; counted from 0.
    ///
    /// A server's calls have it if the method [is known](CallInfo::is_known), a client's never. What an observer keeps by
    /// method is found by this number without a look at the names.
    pub method_id: Option<u64>,
    /// The client has opened the call as a stream, of requests or of replies; otherwise it is unary.
    pub is_stream: bool,
    /// The metadata of the Request. Empty where a server refuses a call before it reads them.
    pub metadata: &'a Metadata,
    /// When the call was made, or its Request was read.
    pub started: Instant,
    /// Its deadline.
    pub deadline: Option<Instant>,
    /// Values that were added to the call. An observer may add something itself when the call begins, and finds
    /// it when the call ends.
    pub extensions: &'a Extensions,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CallEnd<'a> {
    /// The status code; [`Code::Ok`] for a good end.
    pub code: Code,
    /// The message of a failure; empty after a good end.
    pub message: &'a str,
    /// Why it ended.
    pub cause: EndCause,
    /// How often the call was made: 1, and one more each time that it was made again.
    ///
    /// A client's [`Retry`](crate::client::Retry) makes calls again, and a client that reconnects those whose Request was not
    /// sent. The cause, the code and the message are the last attempt's, all else is of all attempts. A server sees each
    /// attempt as a call.
    pub attempts: u32,
    /// Messages and bytes of the call, both ways.
    pub traffic: Traffic,
    /// Time that the call waited to be admitted among the calls in flight.
    pub waited_for_admission: Duration,
    /// Time that the call waited for capacity in the outgoing queue, in sum for all its messages.
    pub waited_for_capacity: Duration,
    /// When it began.
    pub(crate) started: Instant,
    /// How long it took, where that is known without a look at the clock.
    pub(crate) took: Option<Duration>,
}

impl CallEnd<'_> {
    /// Returns the time from the call's [start](CallInfo::started) to its end. On a client that was answered: to when the answer was
    /// read, however late the caller takes it. Elsewhere it reads the clock, and observers that do not ask for it do
    /// not pay for that.
    pub fn duration(&self) -> Duration {
        self.took.unwrap_or_else(|| self.started.elapsed())
    }

    /// Returns whether the call ended well.
    pub fn is_ok(&self) -> bool {
        self.code == Code::Ok
    }
}

/// Messages and bytes that a call has sent and received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages queued for the peer: requests of a client, replies of a server.
    pub messages_sent: u64,
    /// Messages that came from the peer, taken or not.
    pub messages_received: u64,
    /// Bytes that were queued for the peer: the Request and the frames that carry messages, without headers.
    pub bytes_sent: u64,
    /// Bytes that came from the peer: the Request and the frames that carry messages, without headers.
    pub bytes_received: u64,
}

/// A message of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageInfo {
    /// Its direction.
    pub direction: Direction,
    /// Counts the messages of the call in this direction, from 1.
    pub number: u64,
    /// Bytes of the frame that carries it, without its header.
    pub bytes: usize,
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the peer.
    Sent,
    /// From the peer.
    Received,
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::snapshot::ReceiverWait;

    /// Writes down the events that it receives.
    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl Told {
        fn note(&self, told: impl Into<String>) {
            self.0.lock().unwrap().push(told.into());
        }
    }

    impl Observer for Told {
        fn connection_opened(&self, connection: &ConnectionInfo<'_>) {
            self.note(format!("opened {}", connection.id));
        }

        fn connection_closed(&self, _: &ConnectionInfo<'_>, end: &ConnectionEnd<'_>) {
            self.note(format!("closed {}", end.message));
        }

        fn connection_refused(&self, _: &ConnectionInfo<'_>, reason: &str) {
            self.note(format!("refused {reason}"));
        }

        fn protocol_violation(&self, _: &ConnectionInfo<'_>, rule: &str) {
            self.note(format!("violation {rule}"));
        }

        fn receiver_stalled(&self, _: &ConnectionInfo<'_>, stall: &Stall) {
            self.note(format!("stalled {:?}", stall.duration));
        }

        fn client_state_changed(&self, state: &ClientState) {
            self.note(state.to_string());
        }

        fn call_begun(&self, call: &CallInfo<'_>) {
            self.note(format!("begun {}", call.method));
        }

        fn call_ended(&self, _: &CallInfo<'_>, end: &CallEnd<'_>) {
            self.note(format!("ended {}", end.code));
        }

        fn wants_messages(&self) -> bool {
            true
        }

        fn message(&self, _: &CallInfo<'_>, message: &MessageInfo) {
            self.note(format!("message {}", message.number));
        }
    }

    /// Implements nothing.
    struct Deaf;

    impl Observer for Deaf {}

    #[test]
    fn an_observer_in_an_arc_is_told_all_that_the_observer_is() {
        let told = Arc::new(Told::default());
        let (peer, extensions, metadata) =
            (Peer::unknown(), Extensions::default(), Metadata::new());
        let connection =
            ConnectionInfo { side: Side::Client, id: 7, peer: &peer, extensions: &extensions };
        let end = ConnectionEnd {
            cause: ConnectionEndCause::ClosedByPeer,
            message: "bye",
            duration: Duration::ZERO,
        };
        let stall = Stall { by: ReceiverWait::Stream(1), duration: Duration::from_secs(3) };
        let call = CallInfo {
            side: Side::Client,
            connection_id: 7,
            peer: &peer,
            stream_id: None,
            service: "a.B",
            method: "C",
            is_known: true,
            method_id: None,
            is_stream: true,
            metadata: &metadata,
            started: Instant::now(),
            deadline: None,
            extensions: &extensions,
        };
        let message = MessageInfo { direction: Direction::Sent, number: 4, bytes: 0 };
        // As it is called for a program that keeps it: by the trait's implementation for `Arc`.
        let observer: &dyn Observer = &told;
        observer.connection_opened(&connection);
        observer.connection_closed(&connection, &end);
        observer.connection_refused(&connection, "who?");
        observer.protocol_violation(&connection, "even id");
        observer.receiver_stalled(&connection, &stall);
        observer.client_state_changed(&ClientState::Idle);
        observer.call_begun(&call);
        observer.message(&call, &message);
        observer.call_ended(&call, &CallStats::new(Instant::now()).end(CallOutcome::REPLIED));
        let expected = [
            "opened 7",
            "closed bye",
            "refused who?",
            "violation even id",
            "stalled 3s",
            "idle",
            "begun C",
            "message 4",
            "ended OK",
        ];
        assert_eq!(*told.0.lock().unwrap(), expected);
        assert!(observer.wants_messages());
        assert!(!Deaf.wants_messages() && !Arc::new(Deaf).wants_messages());
    }
}
