//! A minimal multiplexer: the fair ceiling for a library whose calls are independent.

mod client;
mod pump;
mod server;

use std::path::PathBuf;

use bench_load::Contender;
use client::Caller;

/// Defines a floor by what its server does with a call.
macro_rules! floor {
    ($(#[$doc:meta])* $name:ident, spawns: $spawns:expr, defers: $defers:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl Contender for $name {
            type Connection = Caller;

            async fn serve(path: PathBuf) {
                server::serve(path, $spawns, $defers).await;
            }

            async fn connect(path: PathBuf) -> Caller {
                client::connect(path, $defers).await
            }
        }
    };
}

floor! {
    /// The server answers while it reads.
    MuxInline, spawns: false, defers: false
}
floor! {
    /// The server answers from a task per call.
    MuxSpawn, spawns: true, defers: false
}
floor! {
    /// The same, and both sides let tasks that are about to send run before they write.
    MuxDefer, spawns: true, defers: true
}
