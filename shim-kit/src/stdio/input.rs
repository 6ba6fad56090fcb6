//! The life of a process's stdin.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Stage,
    copy::{Copy, Step},
    ended,
};

/// Copies input until it ends, its reader is gone, the process has ended, or its output was let go.
pub async fn run(
    mut copy: Copy,
    mut stage: watch::Receiver<Stage>,
    close: Arc<Notify>,
    let_go: CancellationToken,
) {
    loop {
        tokio::select! {
            biased;
            () = ended(&mut stage) => return,
            () = let_go.cancelled() => return,
            () = close.notified() => copy.source.let_go(),
            step = copy.step() => if step != Step::Copied { return },
        }
    }
}
