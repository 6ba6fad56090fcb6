//! The ttrpc protocol: no sockets, no tasks, no async. The pool of buffers alone has a lock and a clock.
//!
//! This part decides, and the drivers in [`client`](crate::client) and [`server`](crate::server)
//! act. Bytes become frames ([`codec`]), and a frame's data becomes a message ([`message`]). A
//! frame in the light of its stream's past ([`stream`], [`table`]) becomes an event that says what
//! to do. That makes the protocol testable without a socket, and fuzzable.
//!
//! The module is public for tools that speak frames themselves: conformance suites, fuzzers,
//! proxies. Programs that only call or serve methods need none of it.

pub mod codec;
pub(crate) mod control;
pub mod frame;
pub(crate) mod heap;
pub mod message;
pub mod payload;
pub mod stream;
pub mod table;
