//! From a recording to calls that can be made again.

use std::{collections::BTreeMap, collections::HashMap, time::Duration};

use ttrpc::{
    Code, Metadata, Raw, RawEnd,
    client::RawReply,
    proto::{
        frame::{Flags, FrameType},
        message,
    },
};

use crate::{
    failure::Failure,
    session::Target,
    trace::{
        call::{Frame, Side},
        recording::Recording,
    },
};

/// A call as it was.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub target: Target,
    pub metadata: Metadata,
    pub timeout: Option<Duration>,
    pub begun: Duration,
    /// The Request's, which say what the client was about to send.
    pub flags: Flags,
    pub payload: Raw,
    /// What followed the Request, and when.
    pub messages: Vec<(Duration, Raw)>,
    /// When the client ended its stream.
    pub closed: Option<Duration>,
    pub replies: Vec<RawReply>,
    pub code: Code,
    pub duration: Duration,
}

impl Recorded {
    /// `Service/Method`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.target.service, self.target.method)
    }
}

/// A connection as it was.
#[derive(Debug)]
pub struct RecordedConnection {
    /// When its first call began.
    pub opened: Duration,
    /// When its last one ended.
    closed: Duration,
    pub calls: Vec<Recorded>,
}

impl RecordedConnection {
    fn of(calls: Vec<Recorded>) -> Self {
        let opened = calls.iter().map(|call| call.begun).min().unwrap_or_default();
        let ends = calls.iter().map(|call| call.begun + call.duration);
        RecordedConnection { opened, closed: ends.max().unwrap_or_default(), calls }
    }
}

/// How many connections were open at a time at most.
pub fn most_open(connections: &[RecordedConnection]) -> usize {
    let opened = connections.iter().map(|connection| (connection.opened, 1_isize));
    // At the same time, the one that opens counts first.
    let closed = connections.iter().map(|connection| (connection.closed, -1));
    let mut changes: Vec<_> = opened.chain(closed).collect();
    changes.sort_by_key(|(time, change)| (*time, -change));
    let mut open = 0;
    let counts = changes.into_iter().map(|(_, change)| {
        open += change;
        open
    });
    counts.max().unwrap_or(0).unsigned_abs()
}

/// The connections, in the order in which they were opened, and how many calls had no answer.
///
/// # Errors
/// If the recording cannot be read.
pub fn read(recording: &mut Recording) -> Result<(Vec<RecordedConnection>, u64), Failure> {
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
                // One whose stream is used again has had no answer.
                Some(call) => left_out += u64::from(open.insert(key, call).is_some()),
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
    let mut connections: Vec<_> = ended.into_values().map(RecordedConnection::of).collect();
    connections.sort_by_key(|connection| connection.opened);
    Ok((connections, left_out))
}

fn begin(frame: &Frame, now: Duration) -> Option<Recorded> {
    let request = message::Request::decode(&frame.data).ok()?;
    let (service, method) = request.names().ok()?;
    let metadata = request.metadata.decode().ok()?;
    let timeout = request.timeout_nano;
    Some(Recorded {
        target: Target { service: service.to_owned().into(), method: method.to_owned().into() },
        metadata,
        timeout: (timeout > 0).then(|| Duration::from_nanos(timeout.unsigned_abs())),
        begun: now,
        flags: frame.header.flags,
        payload: Raw(frame.data.slice_ref(request.payload)),
        messages: Vec::new(),
        closed: None,
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
        let is_end = flags.contains(Flags::REMOTE_CLOSED);
        match (frame.side, frame.header.frame_type) {
            (Side::Client, FrameType::Data) => {
                if has_message {
                    self.messages.push((now, Raw(frame.data.clone())));
                }
                if is_end {
                    self.closed = Some(now);
                }
                None
            }
            (Side::Server, FrameType::Data) => {
                if has_message {
                    self.replies.push(RawReply::Message(Raw(frame.data.clone())));
                }
                if is_end {
                    self.replies.push(RawReply::End(RawEnd::Closed));
                }
                is_end.then_some(Code::Ok)
            }
            (Side::Server, FrameType::Response) => match message::decode_response(&frame.data) {
                Ok(Ok(payload)) => {
                    let reply = Raw(frame.data.slice_ref(payload));
                    self.replies.push(RawReply::End(RawEnd::Reply(reply)));
                    Some(Code::Ok)
                }
                Ok(Err(status)) => Some(status.code()),
                Err(_) => Some(Code::Internal),
            },
            _ => None,
        }
    }
}
