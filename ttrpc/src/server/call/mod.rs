//! A call from its admission to its end, and what the calls of a connection share.
//!
//! An admitted call enters ([`task`]) with its [`handler`]. Its first step is made by a task of its own or, on a
//! runtime of one thread, by the receiver. A handler that waits goes on in the call's task ([`unfinished`]). What
//! leaves is its last frame, which enters the connection's queue in the step in which its entry leaves the table
//! ([`state`]). Nothing here knows the receiver or the services, except that [`task`] counts the receiver's steps and
//! [`observe`] looks up the method of a refused call.

pub(in crate::server) mod handler;
pub(in crate::server) mod interceptor;
mod observe;
pub(in crate::server) mod reasons;
pub(in crate::server) mod replies;
pub(in crate::server) mod shared;
pub(in crate::server) mod state;
pub(in crate::server) mod stream;
pub(in crate::server) mod task;
mod unfinished;
