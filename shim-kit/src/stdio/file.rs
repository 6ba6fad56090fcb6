//! A file as a place for output. To write to it may block, as on a network file system that does not answer, so that is
//! done on a thread of its own.

use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    sync::Arc,
};

use tokio::sync::oneshot;

use crate::{log, tasks};

/// A file that is written to on another thread.
#[derive(Debug)]
pub struct FileSink {
    file: Arc<File>,
    /// Bytes that are being written, and the word that they are.
    writing: Option<(usize, oneshot::Receiver<io::Result<()>>)>,
    /// Whether bytes were lost that could not be written.
    has_lost: bool,
}

impl FileSink {
    pub fn new(file: File) -> FileSink {
        FileSink { file: Arc::new(file), writing: None, has_lost: false }
    }

    /// Starts to write, and takes all bytes.
    ///
    /// # Errors
    /// WouldBlock while others are being written.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left() > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (file, kept) = (self.file.clone(), bytes.to_vec());
        let written = tasks::start_blocking(move || (&*file).write_all(&kept));
        self.writing = Some((bytes.len(), written));
        Ok(bytes.len())
    }

    /// Bytes that are being written.
    pub fn left(&mut self) -> usize {
        let Some((count, written)) = &mut self.writing else { return 0 };
        let count = *count;
        match written.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => count,
            result => {
                self.is_done(result.unwrap_or_else(|_| Err(gone())));
                0
            }
        }
    }

    /// Waits until nothing is being written. Cancel safe.
    pub async fn idle(&mut self) {
        if let Some((_, written)) = &mut self.writing {
            let result = written.await;
            self.is_done(result.unwrap_or_else(|_| Err(gone())));
        }
    }

    fn is_done(&mut self, result: io::Result<()>) {
        self.writing = None;
        if let Err(error) = result
            && !std::mem::replace(&mut self.has_lost, true)
        {
            log::warn(format_args!("output is lost from here on: {error}"));
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("its thread is gone")
}
