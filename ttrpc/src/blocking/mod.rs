//! Clients for programs with threads.
//!
//! [`Client`] makes the same calls as the asynchronous [`Client`](crate::Client), with the same limits,
//! deadlines and errors. A call is made with `call`, which returns when it is done:
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use ttrpc::blocking::Client;
//!
//! let client = Client::connect("unix:///run/greeter.sock")?;
//! let greeting: String = client
//!     .unary("greeter.v1.Greeter", "SayHello", "Ann".to_owned())
//!     .timeout(Duration::from_secs(1))
//!     .call()?;
//! # Ok(()) }
//! ```
//!
//! Generated clients wrap it: `GreeterBlockingClient`, with the generator's option `blocking_client`.
//!
//! # Threads
//!
//! Any number of threads may share a client, each with its own calls and streams. A client has no thread of its own. It
//! has a runtime, of three descriptors, that the waiting threads drive. One of them reads and writes the socket for
//! all; when its own call is done the next one takes over. Only names in `tcp://` addresses are looked up on a thread,
//! which lives for some seconds.
//!
//! No thread waits for another's call: a thread returns when its reply has come or its deadline has passed, however
//! many others go on. The system decides which of the threads that may return runs first. Calls of several threads
//! that are under way at the same time may be written in any order, as [those of tasks](crate::client#order).
//!
//! # While no thread waits
//!
//! Nothing is read, nothing is written, and no time is kept while no thread is in one of the client's
//! functions:
//!
//! - Functions that send return when their bytes are in the socket. Two things are sent by the next function that is
//!   called. They are the end of a stream whose [`StreamSender`] was dropped and not finished, and a message whose
//!   `send` failed at its deadline.
//! - To the server this client is a peer that does not read. Replies that no thread waits for stay in the
//!   socket's buffers, and when these are full the server's handlers wait.
//! - Deadlines pass. A reply that is still in the socket when its stream's deadline passes is lost, though it
//!   had come in time: take the replies, or give the call more time.
//! - The end of the connection is noticed by the next function that waits.
//!
//! A program that wants none of this runs the client on a thread that drives it all the time:
//! `std::thread::spawn({ let client = client.clone(); move || client.closed() })`. It costs each call of another
//! thread a switch between threads.
//!
//! # Fork
//!
//! A child process that was forked after a client had connected shares the parent's connection: connect after the
//! fork. In the child all functions that call fail with FAILED_PRECONDITION, whose
//! [`connection_error`](crate::Status::connection_error) is [`Forked`](crate::ConnectionError::Forked); the others do nothing. The
//! parent's connection goes on, whatever the child does with its copy or drops. The child keeps the descriptors
//! open until it exits or executes another program. Fork while no other thread is in one of the client's functions: a
//! lock that such a thread holds stays locked in the child.
//!
//! # Inside of a runtime
//!
//! Functions that wait panic in a task of a tokio runtime, as tokio's `block_on` does: they would block
//! the other tasks. There is [`tokio::task::spawn_blocking`] for that, and the asynchronous client. Making
//! calls (without `call`), dropping clients and dropping streams is possible anywhere.
//!
//! Handlers without `async` are in [`server::blocking`](crate::server::blocking).

/// Wraps functions of the asynchronous type in this field, which set something.
macro_rules! forward {
    ($field:ident: $($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            $(#[$attribute])*
            pub fn $name(self, $($argument: $type),*) -> Self {
                let $field = self.$field.$name($($argument),*);
                Self { $field, ..self }
            }
        )*
    };
}

mod call;
mod client;
mod driver;
mod stream;

pub use call::{BidiStreamingCall, Call, ClientStreamingCall, ServerStreamingCall, UnaryCall};
pub use client::Client;
pub use stream::{Reply, StreamReceiver, StreamSender};
