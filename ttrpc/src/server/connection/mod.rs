//! The two tasks of a connection.
//!
//! A connection enters with its permit. Its receiver reads frames: Requests leave as calls that have been admitted, for the
//! method of their [`service`](crate::server::service), and messages leave to the inboxes of their calls. Its sender writes what calls
//! push. Nothing here knows how a handler runs, except that the receiver yields while many calls wait to start.

mod messages;
pub(in crate::server) mod open;
mod receiver;
mod request;
pub(in crate::server) mod tasks;
