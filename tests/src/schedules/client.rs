//! A small client that speaks frames and that can be given one of the mistakes of ttrpc's history.

use std::{
    collections::HashMap,
    io,
    marker::PhantomData,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::{Mutex, mpsc},
    task::JoinSet,
    time::timeout,
};
use ttrpc::{Status, prost::Message};

use super::frames::FrameReader;
use crate::wire::{DATA, Frame, NO_DATA, REMOTE_CLOSED, REQUEST, Request};

/// What is wrong with a [`FrameClient`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFault {
    /// Nothing: it shows that the fault is what is caught, and not the small client.
    None,
    /// One task sends and receives, as in containerd's client up to 1.0.2: while it waits for the
    /// socket to take a Request, no reply is read.
    OneTask,
    /// The table of streams is locked while a frame is written, as in containerd's client 1.2.0 to
    /// 1.2.3: a reply is read, and cannot be handed over.
    LockAcrossWrite,
    /// The receive loop waits for the consumer of a full stream without end, as in containerd's
    /// client up to 1.2.8.
    WaitsForConsumer,
}

/// Limits of a [`FrameClient`].
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    /// Frames that are queued and not taken by the sender yet.
    pub queue_frames: usize,
    /// Frames that a stream keeps for its consumer.
    pub inbox_frames: usize,
    /// How long a consumer may hold up the receive loop, where that is not for ever.
    pub stall_timeout: Duration,
}

/// The client. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct FrameClient {
    queue: mpsc::Sender<Queued>,
    inbox_frames: usize,
    _tasks: JoinSet<io::Result<()>>,
}

/// A frame on its way to the sender, and the stream that it belongs to.
#[derive(Debug)]
struct Queued {
    frame: Frame,
    stream: Arc<Opened>,
}

/// A stream, from the moment when its Request is queued.
#[derive(Debug)]
struct Opened {
    /// Given when the Request is written, since ids must rise on the wire.
    id: OnceLock<u32>,
    inbox: mpsc::Sender<Frame>,
}

impl FrameClient {
    /// A client with this fault.
    pub fn new(
        io: impl AsyncRead + AsyncWrite + Send + 'static,
        fault: ClientFault,
        limits: FrameLimits,
    ) -> Self {
        let (queue, queued) = mpsc::channel(limits.queue_frames.max(1));
        let (reader, writer) = tokio::io::split(io);
        let reader = FrameReader::new(reader);
        let driver = Driver {
            streams: Arc::new(Mutex::new(HashMap::new())),
            fault,
            stall_timeout: limits.stall_timeout,
        };
        let mut tasks = JoinSet::new();
        if fault == ClientFault::OneTask {
            tasks.spawn(driver.send_and_receive(queued, reader, writer));
        } else {
            tasks.spawn(driver.clone().send(queued, writer));
            tasks.spawn(driver.receive(reader));
        }
        FrameClient { queue, inbox_frames: limits.inbox_frames.max(1), _tasks: tasks }
    }

    /// Makes a unary call.
    ///
    /// # Errors
    /// The status with which the call ended.
    pub async fn unary<Req: Message, Resp: Message + Default>(
        &self,
        request: Request,
    ) -> Result<Resp, Status> {
        let (_, mut replies) = self.open::<Req, Resp>(0, request).await?;
        replies.recv().await?.ok_or_else(|| Status::internal("the call ended without a reply"))
    }

    /// Opens a stream with these flags.
    ///
    /// # Errors
    /// UNAVAILABLE if the connection has ended.
    pub async fn open<Req: Message, Resp: Message + Default>(
        &self,
        flags: u8,
        request: Request,
    ) -> Result<(FrameSender<Req>, FrameReceiver<Resp>), Status> {
        let (inbox, arrived) = mpsc::channel(self.inbox_frames);
        let stream = Arc::new(Opened { id: OnceLock::new(), inbox });
        let frame = Frame::new(0, REQUEST, flags, request.encode_to_vec());
        let sender = FrameSender { queue: self.queue.clone(), stream, message: PhantomData };
        sender.push(frame).await?;
        Ok((sender, FrameReceiver { arrived, message: PhantomData }))
    }
}

/// Sends the messages of a stream.
#[derive(Debug)]
pub struct FrameSender<Req> {
    queue: mpsc::Sender<Queued>,
    stream: Arc<Opened>,
    message: PhantomData<fn(Req)>,
}

impl<Req: Message> FrameSender<Req> {
    /// Sends a message.
    ///
    /// # Errors
    /// UNAVAILABLE if the connection has ended.
    pub async fn send(&mut self, message: Req) -> Result<(), Status> {
        self.push(Frame::new(0, DATA, 0, message.encode_to_vec())).await
    }

    /// Says that nothing more comes.
    ///
    /// # Errors
    /// UNAVAILABLE if the connection has ended.
    pub async fn finish(self) -> Result<(), Status> {
        self.push(Frame::new(0, DATA, REMOTE_CLOSED | NO_DATA, [])).await
    }

    async fn push(&self, frame: Frame) -> Result<(), Status> {
        let queued = Queued { frame, stream: self.stream.clone() };
        self.queue.send(queued).await.map_err(|_| gone())
    }
}

/// Receives the messages of a stream, or a call's reply.
#[derive(Debug)]
pub struct FrameReceiver<Resp> {
    arrived: mpsc::Receiver<Frame>,
    message: PhantomData<fn() -> Resp>,
}

impl<Resp: Message + Default> FrameReceiver<Resp> {
    /// The next message; `None` when the server has ended the stream well.
    ///
    /// # Errors
    /// The status with which the call ended.
    pub async fn recv(&mut self) -> Result<Option<Resp>, Status> {
        let frame = self.arrived.recv().await.ok_or_else(gone)?;
        if frame.kind == DATA && frame.flags & NO_DATA != 0 {
            return Ok(None);
        }
        let payload = if frame.kind == DATA {
            frame.data
        } else {
            let response = frame.as_response();
            match response.status {
                Some(status) if status.code != 0 => {
                    return Err(Status::with_raw_code(status.code, status.message));
                }
                _ => response.payload,
            }
        };
        let decoded = Resp::decode(&payload[..]);
        decoded.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

fn gone() -> Status {
    Status::unavailable("the connection, or this stream, is gone")
}

/// What the client's tasks share.
#[derive(Clone)]
struct Driver {
    streams: Arc<Mutex<HashMap<u32, mpsc::Sender<Frame>>>>,
    fault: ClientFault,
    stall_timeout: Duration,
}

impl Driver {
    async fn send(
        self,
        mut queued: mpsc::Receiver<Queued>,
        mut writer: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut next_id = 1;
        while let Some(queued) = queued.recv().await {
            self.write(queued, &mut next_id, &mut writer).await?;
        }
        Ok(())
    }

    async fn receive(self, mut reader: FrameReader<impl AsyncRead + Unpin>) -> io::Result<()> {
        while let Some(frame) = reader.next().await? {
            self.hand_over(frame).await;
        }
        self.streams.lock().await.clear();
        Ok(())
    }

    /// The fault [`ClientFault::OneTask`]: neither branch goes on while the other one waits.
    async fn send_and_receive(
        self,
        mut queued: mpsc::Receiver<Queued>,
        mut reader: FrameReader<impl AsyncRead + Unpin>,
        mut writer: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut next_id = 1;
        loop {
            tokio::select! {
                Some(queued) = queued.recv() => {
                    self.write(queued, &mut next_id, &mut writer).await?;
                }
                frame = reader.next() => match frame? {
                    Some(frame) => self.hand_over(frame).await,
                    None => return Ok(()),
                },
            }
        }
    }

    async fn write(
        &self,
        Queued { mut frame, stream }: Queued,
        next_id: &mut u32,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut streams = self.streams.lock().await;
        if frame.kind == REQUEST {
            stream.id.get_or_init(|| *next_id);
            streams.insert(*next_id, stream.inbox.clone());
            *next_id += 2;
        }
        frame.id = *stream.id.get().expect("a stream's Request is queued before its messages");
        let held = (self.fault == ClientFault::LockAcrossWrite).then_some(streams);
        writer.write_all(&frame.to_bytes()).await?;
        writer.flush().await?;
        drop(held);
        Ok(())
    }

    async fn hand_over(&self, frame: Frame) {
        let id = frame.id;
        let is_last = frame.kind != DATA || frame.flags & REMOTE_CLOSED != 0;
        let mut streams = self.streams.lock().await;
        let inbox = if is_last { streams.remove(&id) } else { streams.get(&id).cloned() };
        drop(streams);
        let Some(inbox) = inbox else { return };
        let delivered = if self.fault == ClientFault::WaitsForConsumer {
            inbox.send(frame).await.is_ok()
        } else {
            matches!(timeout(self.stall_timeout, inbox.send(frame)).await, Ok(Ok(())))
        };
        if !delivered {
            self.streams.lock().await.remove(&id);
        }
    }
}
