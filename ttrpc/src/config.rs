//! Every limit, with its unit, its default, and what happens at it.

use std::time::Duration;

use crate::proto::frame::MAX_DATA_LEN;

/// Declares a configuration: its limits, each with its default and a setter, and fields whose setter stands elsewhere.
macro_rules! config {
    (
        $(#[$doc:meta])*
        $config:ident {
            $($(#[$field_doc:meta])* $field:ident: $unit:ty = $default:expr,)*
        }
        $(and {
            $($(#[$other_doc:meta])* $other:ident: $other_unit:ty = $other_default:expr,)*
        })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $config {
            $($(#[$field_doc])* pub $field: $unit,)*
            $($($(#[$other_doc])* pub $other: $other_unit,)*)?
            /// More limits may come: a literal has to end in `..Default::default()`.
            #[doc(hidden)]
            pub more_may_come: (),
        }

        impl Default for $config {
            fn default() -> Self {
                $config {
                    $($field: $default,)*
                    $($($other: $other_default,)*)?
                    more_may_come: (),
                }
            }
        }

        impl $config {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, limit: $unit) -> Self {
                    self.$field = limit;
                    self
                }
            )*
        }
    };
}

config! {
    /// Limits of a client's connection.
    ///
    /// A limit of 0 counts as 1.
    ///
    /// ```
    /// use ttrpc::ClientConfig;
    ///
    /// let config = ClientConfig::default().max_calls(100).send_queue_bytes(1 << 20);
    /// assert_eq!(config.max_calls, 100);
    /// ```
    ClientConfig {
        /// Calls in flight on the connection, of all clones together. Default 65,536, a table of some 20 MiB.
        ///
        /// At the limit a call waits, within its deadline, while others end; after [`stall_timeout`] without any end it
        /// fails with RESOURCE_EXHAUSTED, and so do later ones until one ends.
        ///
        /// [`stall_timeout`]: field@ClientConfig::stall_timeout
        max_calls: usize = 65_536,
        /// Frames that are encoded and not yet written to the socket. Default 4,096.
        ///
        /// At the limit a caller waits, within its deadline.
        send_queue_frames: usize = 4096,
        /// Bytes of those frames. Default 4 MiB: one message of the largest size, and many small ones.
        ///
        /// Frames longer than 128 KiB count apart, with the same limit, so that a short Request does not wait for the
        /// capacity that long ones wait for. A frame longer than the limit is admitted when no other of its kind is
        /// queued.
        send_queue_bytes: usize = 4 << 20,
        /// Messages of one stream that have arrived and that its consumer has not taken. Default 4,096, so that
        /// ordinary bursts delay nobody.
        ///
        /// At the limit the connection is not read while the consumer takes messages; after [`stall_timeout`] without
        /// one the stream fails with RESOURCE_EXHAUSTED.
        ///
        /// [`stall_timeout`]: field@ClientConfig::stall_timeout
        stream_inbox_messages: usize = 4096,
        /// Bytes of those messages. Default 4 MiB. One message is admitted even if it is longer.
        stream_inbox_bytes: usize = 4 << 20,
        /// Time without progress after which a limit refuses instead of waiting. Default 1 s, as in containerd's
        /// implementation.
        ///
        /// Progress is a message that a consumer takes, or a call that ends. A connection has one budget for its waits
        /// for the consumers of full streams: twice this time, refilled by the time that is not spent so. The page
        /// `docs/operate/limits.md` has the details.
        stall_timeout: Duration = Duration::from_secs(1),
    }
}

config! {
    /// Limits of a server: of each connection, and of all together.
    ///
    /// A limit of 0 counts as 1. `max_metadata_pairs` alone may be 0.
    ///
    /// ```
    /// use ttrpc::ServerConfig;
    ///
    /// let config = ServerConfig::default().max_connections(8);
    /// assert_eq!(config.max_connections, 8);
    /// ```
    ServerConfig {
        /// Connections at a time. Default 16,384.
        ///
        /// At the limit further ones stay in the listener's backlog until one ends, and those that the program hands
        /// over wait. Of a [`Listener::incoming`](crate::server::Listener::incoming) one is taken and waits. A wait is
        /// traced as a warning.
        max_connections: usize = 16_384,
        /// Calls in flight on one connection. Default 1,024.
        ///
        /// At the limit the connection is not read while handlers finish; after [`stall_timeout`] without any
        /// finishing, new calls get RESOURCE_EXHAUSTED until one does.
        ///
        /// [`stall_timeout`]: field@ServerConfig::stall_timeout
        max_calls_per_connection: usize = 1024,
        /// Calls in flight on all connections together. Default 16,384.
        ///
        /// At the limit the connections are treated as at `max_calls_per_connection`. A connection's only call is
        /// admitted beyond the limit if its Request costs no more than 4 KiB. So a few clients cannot shut the others
        /// out, and there are at most `max_connections` calls more.
        max_calls: usize = 16_384,
        /// Handlers without `async` that run at a time, each on a thread of its own. Default 256, half of the threads
        /// that a runtime has for them and for the program.
        ///
        /// One more waits, within its deadline, while others end; after [`stall_timeout`] without any ending it fails
        /// with RESOURCE_EXHAUSTED. A quarter is for connections that run none. A handler's permit is free when its
        /// call has taken the reply, which may have to wait for a client that does not read. See
        /// [`server::blocking`](crate::server::blocking).
        ///
        /// [`stall_timeout`]: field@ServerConfig::stall_timeout
        max_blocking_calls: usize = 256,
        /// Bytes of the Requests of one connection whose handlers have not ended, with the memory of their metadata.
        /// Default 16 MiB.
        ///
        /// At the limit, which the last Request may exceed, the connection is not read while handlers end; after
        /// [`stall_timeout`] without any ending, new calls get RESOURCE_EXHAUSTED until one does.
        ///
        /// [`stall_timeout`]: field@ServerConfig::stall_timeout
        request_bytes_per_connection: usize = 16 << 20,
        /// Bytes of those Requests on all connections together. Default 256 MiB.
        request_bytes: usize = 256 << 20,
        /// Pairs of metadata that a Request may have. Default 1,024.
        ///
        /// A Request with more is refused with RESOURCE_EXHAUSTED. A pair of empty strings takes two bytes on the wire
        /// and 48 in memory. Of other fields a Request may have 4,096, unknown ones included.
        max_metadata_pairs: usize = 1024,
        /// Bytes of the messages of one connection's streams that handlers have not taken. Default 16 MiB.
        ///
        /// Each message counts 64 bytes more than its length, which is what it costs to keep. At the limit, which the
        /// last message may exceed, the connection is not read while handlers take messages. After [`stall_timeout`]
        /// without any taken, the stream whose message does not fit fails with RESOURCE_EXHAUSTED.
        ///
        /// [`stall_timeout`]: field@ServerConfig::stall_timeout
        inbox_bytes_per_connection: usize = 16 << 20,
        /// Bytes of those messages on all connections together. Default 256 MiB. The only message of a connection is
        /// admitted all the same.
        inbox_bytes: usize = 256 << 20,
        /// Frames of one connection that are encoded and not yet written to its socket. Default 4,096.
        ///
        /// At the limit handlers wait, no call begins and the connection is not read. Frames longer than 128 KiB count
        /// apart, see `send_queue_bytes`.
        send_queue_frames: usize = 4096,
        /// Bytes of those frames. Default 4 MiB.
        ///
        /// Frames longer than 128 KiB count apart, with the same limit, so that a short reply does not wait for the
        /// capacity that long ones wait for. A frame longer than the limit is admitted when no other of its kind is
        /// queued.
        send_queue_bytes: usize = 4 << 20,
        /// Bytes of the replies and messages of one connection that wait for capacity in its send queue. Default 4 MiB.
        ///
        /// At the limit no call begins and the connection is not read. When the client has read nothing for
        /// [`stall_timeout`], replies beyond the limit are dropped, and their calls get RESOURCE_EXHAUSTED.
        ///
        /// [`stall_timeout`]: field@ServerConfig::stall_timeout
        reply_bytes_per_connection: usize = 4 << 20,
        /// Bytes of those replies and messages on all connections together. Default 64 MiB.
        ///
        /// At the limit one reply of each connection may wait; a connection of which one waits is not read, and none of
        /// its calls begins.
        reply_bytes: usize = 64 << 20,
        /// Messages of one stream that have arrived and that its handler has not taken. Default 4,096.
        ///
        /// At the limit the connection is not read while the handler takes messages; after [`stall_timeout`] without
        /// one the stream fails with RESOURCE_EXHAUSTED.
        ///
        /// [`stall_timeout`]: field@ServerConfig::stall_timeout
        stream_inbox_messages: usize = 4096,
        /// Bytes of those messages. Default 1 MiB. One message is admitted even if it is longer.
        stream_inbox_bytes: usize = 1 << 20,
        /// Time without progress after which a limit refuses instead of waiting. Default 1 s, as in containerd's
        /// implementation.
        ///
        /// Progress is a handler that ends or takes a message. A connection has one budget for its waits for the
        /// handlers of full streams: twice this time, refilled by the time that is not spent so. Some of the time in
        /// which such a handler waits to send does not count. A wait for `inbox_bytes_per_connection` or `inbox_bytes`
        /// has a budget of its own, for streams that have stalled. The page `docs/operate/limits.md` has the details.
        stall_timeout: Duration = Duration::from_secs(1),
        /// Time for which a handler may go on after its cancellation token fired. Default 1 s.
        ///
        /// The token fires when the deadline passes or the client goes away. A handler that never asked for its token is
        /// dropped at once.
        cancellation_grace: Duration = Duration::from_secs(1),
        /// Answers a call whose deadline passes with DEADLINE_EXCEEDED. Default true.
        ///
        /// With false it ends here without a frame, and its client has to measure the time itself, as a client in Go
        /// does. If its own timeout and this status come at the same moment, a client in Go takes one of them at
        /// random. Some programs treat them differently.
        answer_late_calls: bool = true,
        /// Lets clients cancel their calls, through the service `ttrpc.control.v1.Control`, see
        /// [`ConnectOptions::cancel_at_server`](crate::client::ConnectOptions::cancel_at_server). Default yes.
        ///
        /// One call of it may name 1,024 calls; more are refused with RESOURCE_EXHAUSTED. It reaches no service,
        /// fallback, interceptor or observer of the server, and counts at no limit. If the program adds a service of
        /// that name, this one is off.
        cancellable: bool = true,
    }
    and {
        /// Time after which an idle connection is closed: no call is open on it, and nothing has arrived. Default none.
        ///
        /// A client that reconnects does so when a call needs it. A call that the client sends at the same moment is
        /// lost, as at any other end of a connection. So this is for clients that leak connections, not for short
        /// times. A connection is not idle while its client takes the last replies.
        max_idle: Option<Duration> = None,
    }
}

/// A connection that does nothing, and a call in flight, without what it carries.
const IDLE_CONNECTION: u64 = 16 << 10;
const CALL: u64 = 4 << 10;
/// Pooled buffers of the process.
const POOLED: u64 = 17 << 19;
/// Buffers grow by doubling, and the allocator does not return freed pages at once.
const ALLOCATION_FACTOR: u64 = 2;

impl ServerConfig {
    /// Returns the bytes that all clients together can make a server with these limits hold.
    ///
    /// This is the worst case: each of `max_connections` reaches each limit at once.
    ///
    /// It grows with `max_connections`, since the frame that is arriving, the send queue, one message and one reply are
    /// bounded for each connection alone. Not included is what handlers hold besides their replies, and what requests
    /// take when they are decoded. The page `docs/operate/limits.md` explains
    /// the sum, and `ttrpc-memory` measures that it holds.
    ///
    /// ```
    /// use ttrpc::ServerConfig;
    ///
    /// let config = ServerConfig::default().max_connections(16).request_bytes(64 << 20);
    /// assert!(config.memory_bound() < 4 << 30);
    /// ```
    pub fn memory_bound(&self) -> u64 {
        let frame = MAX_DATA_LEN as u64;
        let connections = self.max_connections.max(1) as u64;
        let of_all =
            |all: usize, each: usize| (all as u64).min(connections.saturating_mul(each as u64));
        // The last Request and the last message may exceed their limit, and so may the last reply.
        let each =
            (4 * frame).saturating_add(frame.max(self.send_queue_bytes as u64).saturating_mul(2));
        let buffers = [
            connections.saturating_mul(each),
            of_all(self.request_bytes, self.request_bytes_per_connection),
            of_all(self.inbox_bytes, self.inbox_bytes_per_connection),
            of_all(self.reply_bytes, self.reply_bytes_per_connection),
            (self.max_blocking_calls as u64).saturating_mul(frame),
            POOLED,
        ];
        let calls =
            of_all(self.max_calls, self.max_calls_per_connection).saturating_add(connections);
        let held =
            connections.saturating_mul(IDLE_CONNECTION).saturating_add(calls.saturating_mul(CALL));
        buffers
            .into_iter()
            .fold(held, |sum, bytes| sum.saturating_add(bytes.saturating_mul(ALLOCATION_FACTOR)))
    }
}

impl ServerConfig {
    /// Sets [`max_idle`](field@Self::max_idle).
    #[must_use]
    pub fn max_idle(mut self, limit: Duration) -> Self {
        self.max_idle = Some(limit);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_memory_has_each_term_and_does_not_overflow() {
        let gibibytes = |config: &ServerConfig| config.memory_bound() >> 30;
        let config = ServerConfig::default();
        assert_eq!(gibibytes(&config), 771);
        assert_eq!(gibibytes(&config.clone().max_connections(64)), 6);
        for more in [
            config.clone().request_bytes(1 << 32),
            config.clone().inbox_bytes(1 << 32),
            config.clone().reply_bytes(1 << 32),
            config.clone().send_queue_bytes(1 << 32),
            config.clone().max_calls(1 << 21),
            config.clone().max_blocking_calls(1024),
        ] {
            assert!(more.memory_bound() > config.memory_bound());
        }
        let all = config.max_connections(usize::MAX).send_queue_bytes(usize::MAX);
        assert_eq!(all.max_blocking_calls(usize::MAX).memory_bound(), u64::MAX);
    }
}
