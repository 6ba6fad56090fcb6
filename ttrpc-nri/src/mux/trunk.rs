//! The two tasks of a trunk. Each waits for the socket alone; the reader for nothing else, the writer also for
//! something to write.

use std::{io, sync::Arc};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{
    ConnId, MAX_PAYLOAD, MuxError,
    layout::MUX_HEADER,
    queue::{Batch, Queues, Work},
};

/// What is read at a time.
const READ_BUFFER: usize = 64 << 10;
/// Frames up to this length are copied together, to be written at once.
const COPIED: usize = 16 << 10;

/// Reads the trunk until its end, and delivers what arrives.
pub(super) async fn read(mut trunk: impl AsyncRead + Unpin, queues: Arc<Queues>) {
    let work = async {
        let mut buffer = BytesMut::with_capacity(READ_BUFFER);
        let mut cutter = Cutter::default();
        loop {
            buffer.clear();
            match trunk.read_buf(&mut buffer).await {
                Ok(0) => return cutter.end(),
                Ok(_) => {
                    if let Err(error) = cutter.cut(&buffer, &queues) {
                        return error;
                    }
                }
                Err(error) => return MuxError::Read(Arc::new(error)),
            }
        }
    };
    let end = tokio::select! {
        _ = queues.ended() => return,
        end = work => end,
    };
    queues.end(end);
}

/// Writes what the logical connections hand over.
pub(super) async fn write(mut trunk: impl AsyncWrite + Unpin, queues: Arc<Queues>) {
    let work = async {
        let mut together = Vec::new();
        while let Work::Write(batch) = queues.next_work().await {
            write_batch(&mut trunk, &batch, &mut together).await?;
            queues.written(batch);
        }
        trunk.shutdown().await
    };
    let end = tokio::select! {
        _ = queues.ended() => return,
        end = work => end,
    };
    queues.end(
        end.map_or_else(|error| MuxError::Write(Arc::new(error)), |()| MuxError::ClosedLocally),
    );
}

async fn write_batch(
    trunk: &mut (impl AsyncWrite + Unpin),
    batch: &Batch,
    together: &mut Vec<u8>,
) -> io::Result<()> {
    for frame in &batch.frames {
        if frame.len() <= COPIED {
            together.extend_from_slice(frame);
            continue;
        }
        trunk.write_all(together).await?;
        together.clear();
        trunk.write_all(frame).await?;
    }
    trunk.write_all(together).await?;
    together.clear();
    trunk.flush().await
}

/// Cuts what is read into mux frames, wherever the peer has cut it.
#[derive(Debug, Default)]
struct Cutter {
    header: [u8; MUX_HEADER],
    /// Bytes of the header that are there.
    filled: usize,
    /// Bytes of the payload that are missing, once the header is there.
    missing: usize,
}

impl Cutter {
    fn cut(&mut self, mut bytes: &[u8], queues: &Queues) -> Result<(), MuxError> {
        while !bytes.is_empty() {
            if self.missing == 0 {
                let taken = bytes.len().min(MUX_HEADER - self.filled);
                self.header[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
                self.filled += taken;
                bytes = &bytes[taken..];
                if self.filled < MUX_HEADER {
                    return Ok(());
                }
                self.filled = 0;
                let (connection, len) = self.parsed();
                self.missing = usize::try_from(len).unwrap_or(usize::MAX);
                if self.missing > MAX_PAYLOAD {
                    return Err(MuxError::FrameTooLong { connection, len });
                }
                continue;
            }
            let (payload, rest) = bytes.split_at(bytes.len().min(self.missing));
            queues.deliver(ConnId(self.parsed().0), payload)?;
            self.missing -= payload.len();
            bytes = rest;
        }
        Ok(())
    }

    fn parsed(&self) -> (u32, u32) {
        let [a, b, c, d, e, f, g, h] = self.header;
        (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
    }

    fn end(&self) -> MuxError {
        if self.filled == 0 && self.missing == 0 { MuxError::Closed } else { MuxError::Truncated }
    }
}
