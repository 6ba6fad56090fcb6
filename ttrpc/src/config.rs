//! Every limit, with its unit, its default, its reason, and what happens when it is reached.

use std::time::Duration;

/// Limits of a client's connection.
///
/// A limit of 0 counts as 1. More than 2,097,152 calls or frames, 8,388,608 messages, or 128 GiB count as that
/// many.
///
/// ```
/// use ttrpc::ClientConfig;
///
/// let config = ClientConfig::default().max_calls(100).send_queue_bytes(1 << 20);
/// assert_eq!(config.max_calls, 100);
/// ```
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Calls in flight on the connection, of all clones together. One more waits, within its
    /// deadline, as long as others end; after [`stall_timeout`] without any ending it fails with
    /// RESOURCE_EXHAUSTED, and so do later ones until one ends. Default 65,536; bounds the table of
    /// calls at some 20 MiB.
    ///
    /// [`stall_timeout`]: field@ClientConfig::stall_timeout
    pub max_calls: usize,
    /// Frames that are encoded and not yet written to the socket. A caller waits, within its
    /// deadline, for room. Default 4,096.
    pub send_queue_frames: usize,
    /// Bytes of those frames that are up to 128 KiB long, and, counted apart, of those that are longer: a short
    /// Request does not wait for long ones that have no room yet. A frame that is longer than this is let in when there is
    /// no other of its kind. Default 4 MiB: one message of the largest size, and many small ones.
    pub send_queue_bytes: usize,
    /// Messages that a stream keeps for a consumer that does not take them. When it is full the
    /// connection waits, as long as the consumer takes messages; after [`stall_timeout`] without
    /// one the stream fails with RESOURCE_EXHAUSTED. Default 4,096, so that ordinary bursts delay
    /// nobody.
    ///
    /// [`stall_timeout`]: field@ClientConfig::stall_timeout
    pub stream_inbox_messages: usize,
    /// Bytes of those messages; one message is let in even if it is longer. Default 4 MiB.
    pub stream_inbox_bytes: usize,
    /// How long a stream's consumer may hold up the connection without taking a message, and calls
    /// may hold up another one without ending. All streams of a connection that stand still may hold it up
    /// for at most twice this time together. Default 1 s, as in containerd's implementation.
    pub stall_timeout: Duration,
    /// More limits may come: a literal has to end in `..Default::default()`.
    #[doc(hidden)]
    pub more_may_come: (),
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            max_calls: 65_536,
            send_queue_frames: 4096,
            send_queue_bytes: 4 << 20,
            stream_inbox_messages: 4096,
            stream_inbox_bytes: 4 << 20,
            stall_timeout: Duration::from_secs(1),
            more_may_come: (),
        }
    }
}

/// Limits of a server: of each connection, and of all together.
///
/// A limit of 0 counts as 1. More than 2,097,152 calls or frames, 8,388,608 messages, or 128 GiB count as that
/// many.
///
/// ```
/// use ttrpc::ServerConfig;
///
/// let config = ServerConfig::default().max_connections(8);
/// assert_eq!(config.max_connections, 8);
/// ```
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Connections at a time. Further ones stay in the listener's backlog until one ends, and those that
    /// the program hands over wait. That one waits is traced as a warning, unless it comes from
    /// [`Listener::incoming`](crate::server::Listener::incoming), which is not asked for it. Default 16,384.
    pub max_connections: usize,
    /// Calls in flight on one connection. When it is reached the connection is not read while
    /// handlers finish; after [`stall_timeout`] without any finishing, new calls get
    /// RESOURCE_EXHAUSTED until one does. Default 1,024.
    ///
    /// [`stall_timeout`]: field@ServerConfig::stall_timeout
    pub max_calls_per_connection: usize,
    /// Calls in flight on all connections together; the same happens. The only call of a connection is
    /// let in all the same if its Request costs no more than 4 KiB, so that clients who hold every place
    /// do not shut the others out: there are at most `max_connections` more. Default 16,384.
    pub max_calls: usize,
    /// Handlers without `async` that run at a time, each on a thread of its own, see
    /// [`server::blocking`](crate::server::blocking). One more waits, within its deadline, while
    /// others end; after [`stall_timeout`] without any ending it fails with RESOURCE_EXHAUSTED. A quarter is for
    /// connections that run none. A reply counts until its call takes it, which may have to wait
    /// for a client that does not read. Default 256, half of the threads that a runtime has for that and for the
    /// program.
    ///
    /// [`stall_timeout`]: field@ServerConfig::stall_timeout
    pub max_blocking_calls: usize,
    /// Bytes of the Requests of one connection whose handlers have not ended, with what their
    /// metadata cost in memory. When they are reached
    /// (the last Request may go over) the connection is not read while handlers end; after
    /// [`stall_timeout`] without any ending, new calls get RESOURCE_EXHAUSTED until one does. Default
    /// 16 MiB.
    ///
    /// [`stall_timeout`]: field@ServerConfig::stall_timeout
    pub request_bytes_per_connection: usize,
    /// The same on all connections together. Default 256 MiB.
    pub request_bytes: usize,
    /// Pairs of metadata that a Request may have. One that has more is refused with
    /// RESOURCE_EXHAUSTED. A pair of empty strings takes two bytes on the wire and
    /// 48 in memory. Default 1,024. Of other fields a Request may have 4,096, unknown ones included.
    pub max_metadata_pairs: usize,
    /// Bytes of the messages of one connection's streams that handlers have not taken, with 64 more
    /// for each message, which is what it costs to keep one. When they are reached (the last message
    /// may go over) the connection is not read while handlers take messages; after
    /// [`stall_timeout`] without any taken, the stream whose message has no room fails with
    /// RESOURCE_EXHAUSTED. Default 16 MiB.
    ///
    /// [`stall_timeout`]: field@ServerConfig::stall_timeout
    pub inbox_bytes_per_connection: usize,
    /// The same on all connections together, but that the only message of a connection is let in all
    /// the same. Default 256 MiB.
    pub inbox_bytes: usize,
    /// Frames that are encoded and not yet written to a connection's socket; long ones count apart, see
    /// [`send_queue_bytes`](field@ServerConfig::send_queue_bytes). Handlers wait for room, and while there is none for short
    /// frames no call begins and the connection is not read. Default 4,096.
    pub send_queue_frames: usize,
    /// Bytes of those frames that are up to 128 KiB long, and, counted apart, of those that are longer: a short
    /// reply does not wait for long ones that have no room yet. A frame that is longer than this is let in when there is no
    /// other of its kind. Default 4 MiB.
    pub send_queue_bytes: usize,
    /// Bytes of the replies and messages of one connection that wait for room in its send queue. They wait as
    /// values, not encoded. When as many wait, no call begins and the connection is not read, until some of them
    /// find room, or the turn of a call has come behind all that wait. When only a quarter is left, handlers that have been
    /// waiting for something go on one after the other, and once as many wait as may, only as replies find room; after
    /// [`stall_timeout`] in which the client has read nothing they all go on, and what has no room here is dropped: a reply
    /// gives way to RESOURCE_EXHAUSTED, and sending a message fails with it. The only one that waits may be longer.
    /// Default 4 MiB.
    ///
    /// [`stall_timeout`]: field@ServerConfig::stall_timeout
    pub reply_bytes_per_connection: usize,
    /// The same on all connections together. When they are reached, one reply of each connection may wait, and no call of
    /// such a connection begins, and it is not read, until that finds room. Default 64 MiB.
    pub reply_bytes: usize,
    /// Messages that a stream keeps for a handler that does not take them. When it is full the
    /// connection is not read, as long as the handler takes messages; after [`stall_timeout`]
    /// without one the stream fails with RESOURCE_EXHAUSTED. Default 4,096.
    ///
    /// [`stall_timeout`]: field@ServerConfig::stall_timeout
    pub stream_inbox_messages: usize,
    /// Bytes of those messages; one message is let in even if it is longer. Default 1 MiB.
    pub stream_inbox_bytes: usize,
    /// How long handlers may hold up a connection without making progress. All streams of a connection
    /// that stand still may hold it up for at most twice this time together. Some time in which the handler of such a
    /// stream waits to send a reply or message is not counted. Default 1 s, as in containerd's implementation.
    pub stall_timeout: Duration,
    /// How long a handler that has asked for its cancellation token may go on after the token
    /// fired because its deadline passed or its client went away. A handler that never asked is
    /// dropped at once. Default 1 s.
    pub cancellation_grace: Duration,
    /// More limits may come: a literal has to end in `..Default::default()`.
    #[doc(hidden)]
    pub more_may_come: (),
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            max_connections: 16_384,
            max_calls_per_connection: 1024,
            max_calls: 16_384,
            max_blocking_calls: 256,
            request_bytes_per_connection: 16 << 20,
            request_bytes: 256 << 20,
            max_metadata_pairs: 1024,
            inbox_bytes_per_connection: 16 << 20,
            inbox_bytes: 256 << 20,
            send_queue_frames: 4096,
            send_queue_bytes: 4 << 20,
            reply_bytes_per_connection: 4 << 20,
            reply_bytes: 64 << 20,
            stream_inbox_messages: 4096,
            stream_inbox_bytes: 1 << 20,
            stall_timeout: Duration::from_secs(1),
            cancellation_grace: Duration::from_secs(1),
            more_may_come: (),
        }
    }
}

/// A method of each field's name that sets it.
macro_rules! setters {
    ($config:ident { $($field:ident: $unit:ty,)* }) => {
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

setters! {
    ClientConfig {
        max_calls: usize,
        send_queue_frames: usize,
        send_queue_bytes: usize,
        stream_inbox_messages: usize,
        stream_inbox_bytes: usize,
        stall_timeout: Duration,
    }
}

setters! {
    ServerConfig {
        max_connections: usize,
        max_calls_per_connection: usize,
        max_calls: usize,
        max_blocking_calls: usize,
        request_bytes_per_connection: usize,
        request_bytes: usize,
        max_metadata_pairs: usize,
        inbox_bytes_per_connection: usize,
        inbox_bytes: usize,
        send_queue_frames: usize,
        send_queue_bytes: usize,
        reply_bytes_per_connection: usize,
        reply_bytes: usize,
        stream_inbox_messages: usize,
        stream_inbox_bytes: usize,
        stall_timeout: Duration,
        cancellation_grace: Duration,
    }
}
