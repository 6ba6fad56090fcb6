//! Lines that somebody may read slowly: a thread writes them, and what finds no room is dropped and counted.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{self, SyncSender},
    },
    thread::{self, JoinHandle},
};

use crate::{output, sync::lock};

/// Lines that wait to be written. Further ones are dropped and counted.
const MAX_LINES: usize = 64 << 10;
const MAX_LINES_LEN: usize = 16 << 20;

/// Writes lines without making anybody wait.
#[derive(Debug)]
pub struct Lines {
    /// `None` when no more are taken.
    sender: Mutex<Option<SyncSender<String>>>,
    /// The bytes of those that wait.
    waiting: Arc<AtomicUsize>,
    dropped: AtomicU64,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Lines {
    /// Starts the thread that writes.
    pub fn start() -> Self {
        let (sender, lines) = mpsc::sync_channel::<String>(MAX_LINES);
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = waiting.clone();
        let writer = thread::spawn(move || {
            for line in lines {
                written.fetch_sub(line.len(), Relaxed);
                // Whoever read it is gone; the trace goes on for the table and the recording.
                let _ = output::line(line);
            }
        });
        let (sender, writer) = (Mutex::new(Some(sender)), Mutex::new(Some(writer)));
        Lines { sender, waiting, dropped: AtomicU64::new(0), writer }
    }

    /// Has a line written, if it finds room.
    pub fn write(&self, line: String) {
        let sender = lock(&self.sender);
        let len = line.len();
        let has_room = self.waiting.fetch_add(len, Relaxed) + len <= MAX_LINES_LEN;
        if !has_room || sender.as_ref().is_none_or(|sender| sender.try_send(line).is_err()) {
            self.waiting.fetch_sub(len, Relaxed);
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Takes no more.
    pub fn close(&self) {
        drop(lock(&self.sender).take());
    }

    /// Whether it takes no more.
    pub fn is_closed(&self) -> bool {
        lock(&self.sender).is_none()
    }

    /// Waits until all that were taken are written, once it is closed.
    pub fn finish(&self) {
        if let Some(writer) = lock(&self.writer).take() {
            // It ends when there are no more.
            let _ = writer.join();
        }
    }

    /// Lines that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}
