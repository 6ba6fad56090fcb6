//! How long the sender lingers before it writes a batch.
//!
//! Tasks that are scheduled behind the sender may be about to push frames, each of which costs a system call less if
//! it joins the batch. So the sender gives way to them while the queue grows, for [`MAX_LINGER`] at most.

use std::time::Duration;

use tokio::time::Instant;

/// For how long the sender gives way, not counting the last time: what a few hundred calls take.
const MAX_LINGER: Duration = Duration::from_micros(300);

/// The sender's looks at the queue before one batch.
#[derive(Default)]
pub(super) struct Linger {
    /// The frames that were queued at the last look.
    frames: usize,
    /// When the sender gave way for the first time.
    since: Option<Instant>,
}

impl Linger {
    /// Whether to give way once more, with so many frames queued.
    pub(super) fn is_worth_it(&mut self, frames: usize) -> bool {
        let has_grown = frames > self.frames;
        self.frames = frames;
        has_grown && self.since.get_or_insert_with(Instant::now).elapsed() <= MAX_LINGER
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_sender_gives_way_while_the_queue_grows_and_no_longer_than_it_may() {
        let mut linger = Linger::default();
        assert!(linger.is_worth_it(1) && linger.is_worth_it(2));
        assert!(!linger.is_worth_it(2), "nothing has come");
        let mut linger = Linger::default();
        assert!(linger.is_worth_it(1));
        advance(MAX_LINGER).await;
        assert!(linger.is_worth_it(2));
        advance(Duration::from_millis(1)).await;
        assert!(!linger.is_worth_it(3));
    }
}
