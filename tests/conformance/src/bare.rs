//! A bare socket in place of a server, for cases that look at what a client writes.

use std::{
    path::PathBuf,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::{
    io::AsyncReadExt,
    net::{UnixListener, UnixStream},
};

use crate::{
    connection::{Connection, Connector, Result},
    message::Failure,
    verdict::{Outcome, fail},
};

/// A folder for one socket, which goes with this value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("ttrpc-bare-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind in the temporary one harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Connects to a socket that nobody serves.
pub(crate) async fn connect<C: Connector + ?Sized>(
    connector: &C,
) -> Result<(Arc<dyn Connection>, UnixStream)> {
    let text = |error: std::io::Error| Failure::Other(format!("a bare socket: {error}"));
    let folder = Folder::new().map_err(text)?;
    let path = folder.0.join("bare.sock");
    let listener = UnixListener::bind(&path).map_err(text)?;
    let connection = connector.connect(&format!("unix://{}", path.display())).await?;
    let (socket, _) = listener.accept().await.map_err(text)?;
    Ok((connection, socket))
}

/// The start of a frame.
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) stream_id: u32,
}

pub(crate) async fn read_header(socket: &mut UnixStream) -> Outcome<Header> {
    let mut header = [0; 10];
    if let Err(error) = socket.read_exact(&mut header).await {
        return fail(format!("the client's next frame: {error}"));
    }
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    Ok(Header { len: word(0), stream_id: word(4) })
}
