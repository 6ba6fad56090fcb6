//! How far a load is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::plan::Plan;

/// How often the progress is told.
const TICK: Duration = Duration::from_millis(100);

/// Shared by all who call.
#[derive(Debug, Default)]
pub struct Progress {
    pub begun: AtomicU64,
    pub ended: AtomicU64,
    pub failed: AtomicU64,
}

/// Shows on a terminal how far the load is.
pub fn show(
    plan: Arc<Plan>,
    progress: Arc<Progress>,
    start: Instant,
) -> tokio::task::JoinHandle<()> {
    let (name, most) = (plan.name(), plan.max_concurrency() as u64);
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is valid"));
    tokio::spawn(async move {
        let _cleared = Cleared(bar.clone());
        let mut ticks = tokio::time::interval(TICK);
        let (mut last, mut last_time) = (0, start);
        loop {
            ticks.tick().await;
            let (ended, failed) = (progress.ended.load(Relaxed), progress.failed.load(Relaxed));
            let now = Instant::now();
            let rate = (ended - last) as f64 / (now - last_time).as_secs_f64().max(1e-9);
            (last, last_time) = (ended, now);
            bar.set_message(format!(
                "{name}: {:.0?} of {:.0?}, {ended} calls, {rate:.0}/s, {failed} failed, {} in flight",
                start.elapsed(),
                plan.duration,
                progress.begun.load(Relaxed).saturating_sub(ended).min(most),
            ));
            bar.tick();
        }
    })
}

/// Takes the progress off the terminal when it is dropped.
struct Cleared(ProgressBar);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
