//! Plugins under this crate's runtime, in memory and over sockets.

mod adaptation;
mod calls;
mod events;
mod fates;
mod hand;
mod instruments;
mod life;
mod plugins;
mod raw;
mod rubbish;
mod times;
