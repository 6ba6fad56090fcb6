//! A connection on which a script plays the client.

use std::{collections::VecDeque, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use ttrpc_conformance::within;

use crate::{
    conformance_suite::{Outcome, fail},
    wire::{DATA, Frame},
};

/// How long a part of a frame waits for the server to read the part before it. The outcome must be
/// the same whether or not the server does; the pause only makes it likely.
const CUT_PAUSE: Duration = Duration::from_micros(500);

/// A connection. Frames are read as they arrive, so that the server is never held up by this side.
#[derive(Debug)]
pub(super) struct Link {
    writer: OwnedWriteHalf,
    frames: mpsc::UnboundedReceiver<Frame>,
    /// Frames that came while a frame of another stream was waited for.
    early: VecDeque<Frame>,
    stop_reading: Option<oneshot::Sender<()>>,
    reading: JoinHandle<OwnedReadHalf>,
    /// Writes every byte for itself.
    pub(super) byte_by_byte: bool,
    /// How long the server has for a step.
    patience: Duration,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Link {
    pub(super) fn new(socket: UnixStream, patience: Duration) -> Self {
        let (reader, writer) = socket.into_split();
        let (sender, frames) = mpsc::unbounded_channel();
        let (stop_reading, stop) = oneshot::channel();
        let reading = tokio::spawn(read(reader, sender, stop));
        Link {
            writer,
            frames,
            early: VecDeque::new(),
            stop_reading: Some(stop_reading),
            reading,
            byte_by_byte: false,
            patience,
        }
    }

    /// Sends bytes. A server that has closed the connection fails the case.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Outcome<()> {
        if self.byte_by_byte {
            for byte in bytes {
                self.write(&[*byte]).await?;
                tokio::time::sleep(CUT_PAUSE).await;
            }
            return Ok(());
        }
        self.write(bytes).await
    }

    /// Sends bytes in two parts.
    pub(super) async fn send_cut(&mut self, bytes: &[u8], cut: usize) -> Outcome<()> {
        self.write(&bytes[..cut]).await?;
        tokio::time::sleep(CUT_PAUSE).await;
        self.write(&bytes[cut..]).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Outcome<()> {
        let written = self.writer.write_all(bytes).await;
        written.or_else(|error| fail(format!("writing to the server failed: {error}")))
    }

    /// The next frame of this stream; frames of other streams are kept.
    pub(super) async fn next_of(&mut self, id: u32) -> Outcome<Frame> {
        if let Some(frame) = self.take_early(id) {
            return Ok(frame);
        }
        let next = async {
            while let Some(frame) = self.frames.recv().await {
                if frame.id == id {
                    return Ok(frame);
                }
                self.early.push_back(frame);
            }
            fail("the server closed the connection")
        };
        match within(self.patience, "a frame", next).await {
            Ok(outcome) => outcome,
            Err(verdict) => {
                Err(verdict.in_part(&format!("on stream {id}, {}", self.describe_early())))
            }
        }
    }

    /// Passes over the messages of a stream until something else of it comes, which stays.
    pub(super) async fn skip(&mut self, id: u32) -> Outcome<()> {
        let patience = self.patience;
        let passing = async {
            loop {
                let frame = self.next_of(id).await?;
                if (frame.kind, frame.flags) != (DATA, 0) {
                    self.early.push_front(frame);
                    return Ok(());
                }
            }
        };
        within(patience, "the end of the stream's messages", passing).await?
    }

    /// A frame of this stream that has come already.
    pub(super) fn take_early(&mut self, id: u32) -> Option<Frame> {
        while let Ok(frame) = self.frames.try_recv() {
            self.early.push_back(frame);
        }
        let index = self.early.iter().position(|frame| frame.id == id)?;
        self.early.remove(index)
    }

    /// Checks that every frame that came was one that the script expected.
    pub(super) fn nothing_is_left(&mut self) -> Outcome<()> {
        // No stream of a script has this id, so all frames go to the early ones.
        while let Ok(frame) = self.frames.try_recv() {
            self.early.push_back(frame);
        }
        if self.early.is_empty() { Ok(()) } else { fail(self.describe_early()) }
    }

    fn describe_early(&self) -> String {
        let frames: Vec<_> = self.early.iter().take(5).map(describe_frame).collect();
        match &frames[..] {
            [] => "nothing else came".to_owned(),
            frames => format!("also came: {}", frames.join(", ")),
        }
    }

    /// Says that nothing more comes from this side.
    pub(super) async fn half_close(&mut self) -> Outcome<()> {
        self.writer.shutdown().await.or_else(|error| fail(format!("half-closing: {error}")))
    }

    /// Waits for the server to close the connection.
    pub(super) async fn ended(&mut self) -> Outcome<()> {
        let end = async {
            while let Some(frame) = self.frames.recv().await {
                self.early.push_back(frame);
            }
        };
        within(self.patience, "the server to close the connection", end).await
    }

    /// Closes the connection while there is unread data in it, which the server gets to know as
    /// ECONNRESET.
    pub(super) async fn reset(mut self) -> Outcome<()> {
        if let Some(stop) = self.stop_reading.take() {
            // It can't be told to stop when it has ended, which it has when the server closed.
            let _ = stop.send(());
        }
        let reader = (&mut self.reading).await.map_err(|error| error.to_string())?;
        let readable = within(self.patience, "data that is not read", reader.readable()).await?;
        readable.or_else(|error| fail(format!("waiting for data: {error}")))
    }
}

/// Reads frames until there are no more or it is told to stop.
async fn read(
    reader: OwnedReadHalf,
    frames: mpsc::UnboundedSender<Frame>,
    stop: oneshot::Receiver<()>,
) -> OwnedReadHalf {
    let mut reader = BufReader::new(reader);
    let reading = async {
        while let Some(frame) = read_frame(&mut reader).await {
            if frames.send(frame).is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        // Dropped with its link, it stops too.
        _ = stop => {}
    }
    reader.into_inner()
}

/// Reads a frame, or nothing where the connection ends.
pub(in super::super) async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let mut header = [0; 10];
    reader.read_exact(&mut header).await.ok()?;
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let mut data = vec![0; word(0) as usize];
    reader.read_exact(&mut data).await.ok()?;
    Some(Frame { id: word(4), kind: header[8], flags: header[9], data })
}

/// A frame in a report.
pub(in super::super) fn describe_frame(frame: &Frame) -> String {
    let Frame { id, kind, flags, data } = frame;
    if let Some(response) = frame.try_as_response() {
        let status = match response.status.filter(|status| status.code != 0) {
            Some(status) => format!("status {} {:?}", status.code, status.message),
            None => format!("a success with {} bytes", response.payload.len()),
        };
        return format!("Response(id {id}, flags {flags:#04x}, {status})");
    }
    let shown: String = data.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("frame(type {kind}, id {id}, flags {flags:#04x}, {} bytes {shown})", data.len())
}
