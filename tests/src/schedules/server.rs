//! A small server that speaks frames and that can be given the mistake of pausing at its limit.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use ttrpc::prost::Message;

use super::{frames::FrameReader, schedule::Limits};
use crate::{
    conformance::{
        Chunk, CollectResponse, EchoRequest, EchoResponse, Empty, GenerateRequest, KeyRequest,
        SleepRequest,
    },
    wire::{DATA, Frame, NO_DATA, REMOTE_CLOSED, REQUEST, Request},
};

/// RESOURCE_EXHAUSTED.
const REFUSED: i32 = 8;

/// DEADLINE_EXCEEDED.
const TOO_LATE: i32 = 4;

/// What is wrong with a `FrameServer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFault {
    /// Nothing.
    None,
    /// The receiver pauses while as many handlers run as may, for as long as that takes.
    PausesAtHandlerLimit,
}

/// A server of the conformance service, as far as schedules use it. Cheap to clone: the clones are
/// one service.
#[derive(Clone, Debug)]
pub struct FrameServer {
    fault: ServerFault,
    limits: Limits,
    keys: Arc<Mutex<HashMap<String, CancellationToken>>>,
}

/// A call whose handler runs.
struct Call {
    id: u32,
    request: Request,
    inbox: mpsc::Receiver<Frame>,
    replies: mpsc::Sender<Frame>,
}

impl FrameServer {
    /// A server with this fault.
    pub fn new(fault: ServerFault, limits: Limits) -> Self {
        FrameServer { fault, limits, keys: Arc::default() }
    }

    /// Serves a connection until it ends.
    pub async fn serve(self, io: impl AsyncRead + AsyncWrite) {
        let (reader, writer) = tokio::io::split(io);
        let (replies, queued) = mpsc::channel(self.limits.queue_frames);
        let mut handlers = JoinSet::new();
        // A connection that fails has ended; nobody is to be told.
        let _ = tokio::select! {
            result = self.receive(FrameReader::new(reader), &replies, &mut handlers) => result,
            result = send(queued, writer) => result,
        };
    }

    async fn receive(
        &self,
        mut reader: FrameReader<impl AsyncRead + Unpin>,
        replies: &mpsc::Sender<Frame>,
        handlers: &mut JoinSet<()>,
    ) -> io::Result<()> {
        let free = Arc::new(Semaphore::new(self.limits.handlers));
        let mut inboxes = HashMap::new();
        while let Some(frame) = reader.next().await? {
            let id = frame.id;
            if frame.kind != REQUEST {
                self.deliver(frame, &mut inboxes).await;
                continue;
            }
            let place = free.clone().acquire_owned();
            let place = match self.fault {
                ServerFault::PausesAtHandlerLimit => place.await.ok(),
                ServerFault::None => {
                    timeout(self.limits.stall_timeout, place).await.ok().and_then(Result::ok)
                }
            };
            let Some(place) = place else {
                let _ = replies.send(Frame::failure(id, REFUSED, "too many calls")).await;
                continue;
            };
            let (sender, inbox) = mpsc::channel(self.limits.inbox_messages);
            inboxes.insert(id, sender);
            let call = Call { id, request: frame.as_request(), inbox, replies: replies.clone() };
            let server = self.clone();
            handlers.spawn(async move {
                server.handle(call).await;
                drop(place);
            });
        }
        Ok(())
    }

    /// Waits for a handler no longer than the stall timeout, so that only the one fault is there.
    async fn deliver(&self, frame: Frame, inboxes: &mut HashMap<u32, mpsc::Sender<Frame>>) {
        let id = frame.id;
        let Some(inbox) = inboxes.get(&id) else { return };
        let is_last = frame.flags & REMOTE_CLOSED != 0;
        let delivered = timeout(self.limits.stall_timeout, inbox.send(frame)).await;
        if is_last || !matches!(delivered, Ok(Ok(()))) {
            inboxes.remove(&id);
        }
    }

    async fn handle(&self, mut call: Call) {
        let time = match call.request.timeout_nano {
            0 => Duration::MAX,
            nanos => Duration::from_nanos(nanos.unsigned_abs()),
        };
        let last = match timeout(time, self.respond(&mut call)).await {
            Ok(last) => last,
            Err(_) => Frame::failure(call.id, TOO_LATE, "the call's deadline passed"),
        };
        // A connection that has ended takes no reply.
        let _ = call.replies.send(last).await;
    }

    /// Runs the method and gives back the stream's last frame.
    async fn respond(&self, call: &mut Call) -> Frame {
        let id = call.id;
        let payload = std::mem::take(&mut call.request.payload);
        match &call.request.method[..] {
            "Echo" => {
                let request = decode::<EchoRequest>(&payload);
                let payload = match request.response_size {
                    0 => request.payload,
                    size => vec![0; size as usize],
                };
                Frame::reply(id, &EchoResponse { payload })
            }
            "Sleep" => {
                sleep(Duration::from_millis(decode::<SleepRequest>(&payload).millis)).await;
                Frame::reply(id, &Empty {})
            }
            "Wait" => {
                self.key(&decode::<KeyRequest>(&payload).key).cancelled().await;
                Frame::reply(id, &Empty {})
            }
            "Release" => {
                self.key(&decode::<KeyRequest>(&payload).key).cancel();
                Frame::reply(id, &Empty {})
            }
            "Generate" => generate(call, &decode(&payload)).await,
            "Exchange" => exchange(call).await,
            "Hold" => {
                self.key("hold").cancelled().await;
                collect(call).await
            }
            _ => collect(call).await,
        }
    }

    fn key(&self, key: &str) -> CancellationToken {
        let mut keys = self.keys.lock().expect("no holder panics");
        keys.entry(key.to_owned()).or_default().clone()
    }
}

async fn send(
    mut queued: mpsc::Receiver<Frame>,
    mut writer: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some(frame) = queued.recv().await {
        writer.write_all(&frame.to_bytes()).await?;
        writer.flush().await?;
    }
    Ok(())
}

async fn generate(call: &Call, request: &GenerateRequest) -> Frame {
    for sequence in 0..request.count {
        let chunk = Chunk { sequence, payload: vec![0; request.size as usize] };
        if call.replies.send(Frame::message(call.id, &chunk)).await.is_err() {
            break;
        }
    }
    Frame::end(call.id)
}

async fn exchange(call: &mut Call) -> Frame {
    while let Some(frame) = next_message(call).await {
        if call.replies.send(frame).await.is_err() {
            break;
        }
    }
    Frame::end(call.id)
}

async fn collect(call: &mut Call) -> Frame {
    let mut response = CollectResponse { chunks: 0, bytes: 0, in_order: true };
    while let Some(frame) = next_message(call).await {
        let chunk: Chunk = decode(&frame.data);
        response.in_order &= chunk.sequence == response.chunks;
        response.chunks += 1;
        response.bytes += chunk.payload.len() as u64;
    }
    Frame::reply(call.id, &response)
}

async fn next_message(call: &mut Call) -> Option<Frame> {
    let frame = call.inbox.recv().await?;
    (frame.kind == DATA && frame.flags & NO_DATA == 0).then_some(frame)
}

fn decode<M: Message + Default>(payload: &[u8]) -> M {
    M::decode(payload).expect("schedules send what decodes")
}
