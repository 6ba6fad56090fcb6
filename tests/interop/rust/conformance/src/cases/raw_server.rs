//! A bare socket in place of a server, for cases that look at what a client writes.

use super::Verdict;
use std::path::PathBuf;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};

pub struct RawServer {
    directory: PathBuf,
    listener: UnixListener,
}

pub struct FrameStart {
    pub length: u32,
    pub stream_id: u32,
}

impl RawServer {
    pub fn listen() -> Result<Self, Verdict> {
        let directory = std::env::temp_dir().join(super::unique_key("raw"));
        let bind = || {
            std::fs::create_dir(&directory)?;
            UnixListener::bind(directory.join("raw.sock"))
        };
        let listener = bind().map_err(|error| format!("a bare socket: {error}"))?;
        Ok(RawServer { directory, listener })
    }

    pub fn address(&self) -> String {
        format!("unix://{}", self.directory.join("raw.sock").display())
    }

    pub async fn accept(&self) -> Result<UnixStream, Verdict> {
        let (stream, _) = self.listener.accept().await.map_err(|error| error.to_string())?;
        Ok(stream)
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        // A directory that stays behind in the temporary one harms nobody.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub async fn read_frame_start(stream: &mut UnixStream) -> Result<FrameStart, Verdict> {
    let mut header = [0; 10];
    stream
        .read_exact(&mut header)
        .await
        .map_err(|error| format!("the client's first frame: {error}"))?;
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    Ok(FrameStart { length: word(0), stream_id: word(4) })
}

pub async fn read_frame(stream: &mut UnixStream) -> Result<(), Verdict> {
    let start = read_frame_start(stream).await?;
    let mut data = vec![0; start.length as usize];
    stream
        .read_exact(&mut data)
        .await
        .map_err(|error| format!("the client's first frame: {error}"))?;
    Ok(())
}
