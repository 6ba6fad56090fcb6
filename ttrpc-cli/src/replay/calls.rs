//! From a recording to calls that can be made again.

use std::{collections::BTreeMap, collections::HashMap, time::Duration};

use bytes::Bytes;
use ttrpc::{
    Code, Metadata,
    proto::{
        frame::{Flags, FrameType},
        message,
    },
};

use crate::{
    failure::Failure,
    trace::{
        observe::{Frame, Side},
        record::Recording,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unary,
    ServerStreaming,
    ClientStreaming,
    Bidirectional,
}

/// A call as it was.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub kind: Kind,
    pub service: String,
    pub method: String,
    metadata: Vec<(String, String)>,
    pub timeout: Option<Duration>,
    pub begun: Duration,
    /// When each was sent.
    pub messages: Vec<(Duration, Bytes)>,
    pub replies: Vec<Bytes>,
    pub code: Code,
    pub duration: Duration,
}

impl Recorded {
    pub fn metadata(&self) -> Metadata {
        Metadata::from_iter(self.metadata.iter().cloned())
    }
}

/// The calls of each connection, and how many had no answer.
///
/// # Errors
/// If the recording cannot be read.
pub fn read(recording: &mut Recording) -> Result<(Vec<Vec<Recorded>>, u64), Failure> {
    let mut ended: BTreeMap<u32, Vec<Recorded>> = BTreeMap::new();
    let mut open: HashMap<(u32, u32), Recorded> = HashMap::new();
    let mut left_out = 0;
    while let Some(entry) = recording.read()? {
        let now = entry.time();
        let Some(frame) = entry.frame() else {
            open.retain(|(connection, _), _| {
                let stays = *connection != entry.connection || !entry.is_closed;
                left_out += u64::from(!stays);
                stays
            });
            continue;
        };
        let key = (entry.connection, frame.header.stream_id);
        if frame.side == Side::Client && frame.header.frame_type == FrameType::Request {
            match begin(&frame, now) {
                Some(call) => drop(open.insert(key, call)),
                None => left_out += 1,
            }
            continue;
        }
        if let Some(call) = open.get_mut(&key)
            && let Some(code) = call.take(&frame, now)
        {
            call.code = code;
            call.duration = now.saturating_sub(call.begun);
            let call = open.remove(&key).expect("it is there");
            ended.entry(entry.connection).or_default().push(call);
        }
    }
    left_out += open.len() as u64;
    Ok((ended.into_values().collect(), left_out))
}

fn begin(frame: &Frame, now: Duration) -> Option<Recorded> {
    let request = message::Request::decode(&frame.data).ok()?;
    let metadata = request.metadata.decode().ok()?;
    let flags = frame.header.flags;
    let kind = if flags.contains(Flags::REMOTE_OPEN) {
        // Until the server sends messages, it looks as if one reply came.
        Kind::ClientStreaming
    } else if flags.contains(Flags::REMOTE_CLOSED) {
        Kind::ServerStreaming
    } else {
        Kind::Unary
    };
    let mut messages = Vec::new();
    if kind != Kind::ClientStreaming || !request.payload.is_empty() {
        messages.push((now, frame.data.slice_ref(request.payload)));
    }
    let timeout = request.timeout_nano;
    Some(Recorded {
        kind,
        service: request.service.to_owned(),
        method: request.method.to_owned(),
        metadata: metadata.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        timeout: (timeout > 0).then(|| Duration::from_nanos(timeout.unsigned_abs())),
        begun: now,
        messages,
        replies: Vec::new(),
        code: Code::Ok,
        duration: Duration::ZERO,
    })
}

impl Recorded {
    /// Takes a frame of the call; its code if that was the end.
    fn take(&mut self, frame: &Frame, now: Duration) -> Option<Code> {
        let flags = frame.header.flags;
        let has_message = !flags.contains(Flags::NO_DATA);
        match (frame.side, frame.header.frame_type) {
            (Side::Client, FrameType::Data) if has_message => {
                self.messages.push((now, frame.data.clone()));
                None
            }
            (Side::Server, FrameType::Data) => {
                if self.kind == Kind::ClientStreaming {
                    self.kind = Kind::Bidirectional;
                }
                if has_message {
                    self.replies.push(frame.data.clone());
                }
                flags.contains(Flags::REMOTE_CLOSED).then_some(Code::Ok)
            }
            (Side::Server, FrameType::Response) => match message::decode_response(&frame.data) {
                Ok(Ok(payload)) => {
                    let has_one_reply = matches!(self.kind, Kind::Unary | Kind::ClientStreaming);
                    if has_one_reply || !payload.is_empty() {
                        self.replies.push(frame.data.slice_ref(payload));
                    }
                    Some(Code::Ok)
                }
                Ok(Err(status)) => Some(status.code()),
                Err(_) => Some(Code::Internal),
            },
            _ => None,
        }
    }
}
