//! From a listener to a connection that is served.
//!
//! Listeners enter, and connections that the program hands over. What leaves is a connection whose peer may connect, with
//! its permit, for [`connection`](crate::server::connection); or one that is turned away and shut down.

pub(in crate::server) mod accepting;
pub(in crate::server) mod admission;
pub(in crate::server) mod hook;
pub(in crate::server) mod listener;
pub(in crate::server) mod unserved;
