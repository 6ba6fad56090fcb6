//! Handlers and consumers that stand still, and peers that do not read: who waits for whom, and for how
//! long.

mod backpressure;
mod client;
mod long_frames;
mod long_replies;
mod pauses;
mod replies;
mod server;
mod shared;
mod shares;
mod unread_streams;
