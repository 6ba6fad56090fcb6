//! What a subscriber writes while a test runs.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{Level, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

/// Lines, one for each event.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.clone()
    }
}

impl Log {
    /// Takes down this thread's events of this level and above.
    pub fn start(level: Level) -> (Log, DefaultGuard) {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines that hold all of these.
    pub fn lines(&self, parts: &[&str]) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let holds = |line: &&str| parts.iter().all(|part| line.contains(part));
        log.lines().filter(holds).map(str::to_owned).collect()
    }
}
