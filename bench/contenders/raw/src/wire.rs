//! Frames, just good enough for the floors to talk to themselves.

/// Bytes of a frame's header.
const HEADER_LEN: usize = 10;

/// Bytes asked for with one read.
const READ_LEN: usize = 64 << 10;

/// A Data frame's flag on the last message of a stream.
pub(crate) const CLOSED: u8 = 1;

/// Flag of the request for a stream of replies, of which a real protocol has none.
pub(crate) const COUNT: u8 = 0x80;

/// What a frame is, by its byte on the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Request = 1,
    Response = 2,
    Data = 3,
}

impl Kind {
    /// What stands before the payload: a Request's service and method, a Response's empty status.
    fn prefix(self) -> &'static [u8] {
        match self {
            Kind::Request => b"\x0a\x0bbench.Bench\x12\x04Echo",
            Kind::Response => b"\x0a\x00",
            Kind::Data => b"",
        }
    }

    /// The tag of the field that holds the message, where the message is a field.
    fn tag(self) -> Option<u8> {
        match self {
            Kind::Request => Some(0x1a),
            Kind::Response => Some(0x12),
            Kind::Data => None,
        }
    }

    fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Kind::Request,
            2 => Kind::Response,
            _ => Kind::Data,
        }
    }
}

/// A frame whose message is `EchoMsg { payload }`.
pub(crate) struct Frame<'a> {
    pub(crate) id: u32,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    pub(crate) fn response(id: u32, payload: &'a [u8]) -> Self {
        Frame { id, kind: Kind::Response, flags: 0, payload }
    }

    /// Appends the frame.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let message_len = 1 + varint_len(self.payload.len()) + self.payload.len();
        let tag = self.kind.tag();
        let field_len = tag.map_or(0, |_| 1 + varint_len(message_len)) + message_len;
        let data_len = self.kind.prefix().len() + field_len;
        out.reserve(HEADER_LEN + data_len);
        out.extend_from_slice(&(data_len as u32).to_be_bytes());
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(&[self.kind as u8, self.flags]);
        out.extend_from_slice(self.kind.prefix());
        if let Some(tag) = tag {
            out.push(tag);
            put_varint(out, message_len);
        }
        out.push(0x0a);
        put_varint(out, self.payload.len());
        out.extend_from_slice(self.payload);
    }

    /// Takes a whole frame off the front of `bytes`.
    pub(crate) fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let (frame, rest) = bytes.split_at_checked(frame_len(bytes)?)?;
        *bytes = rest;
        let (header, mut data) = frame.split_at(HEADER_LEN);
        let kind = Kind::from_byte(header[8]);
        data = &data[kind.prefix().len()..];
        if kind.tag().is_some() {
            data = &data[1..];
            take_varint(&mut data);
        }
        data = &data[1..];
        let len = take_varint(&mut data);
        let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        Some(Frame { id, kind, flags: header[9], payload: &data[..len] })
    }
}

/// Length of the frame at the front of `bytes`, once its header is there.
fn frame_len(bytes: &[u8]) -> Option<usize> {
    let len = bytes.get(..HEADER_LEN)?.first_chunk().expect("a header is longer");
    Some(HEADER_LEN + u32::from_be_bytes(*len) as usize)
}

fn varint_len(value: usize) -> usize {
    (value.max(1).ilog2() / 7 + 1) as usize
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> usize {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

/// The payload of a [`COUNT`] request.
pub(crate) fn count_payload(messages: u64, size: u32) -> [u8; 12] {
    let mut payload = [0; 12];
    payload[..8].copy_from_slice(&messages.to_be_bytes());
    payload[8..].copy_from_slice(&size.to_be_bytes());
    payload
}

/// Messages and their size, from the payload of a [`COUNT`] request.
pub(crate) fn parse_count(payload: &[u8]) -> (u64, usize) {
    let messages = payload.first_chunk().expect("a count is longer");
    let size = payload.last_chunk().expect("a count is longer");
    (u64::from_be_bytes(*messages), u32::from_be_bytes(*size) as usize)
}

/// What arrived and was not taken yet, with room behind it for the next read.
#[derive(Default)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    /// What arrived and was not taken yet.
    pub(crate) fn arrived(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Room for a read, at least for the rest of the frame that is arriving.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let wanted = frame_len(self.arrived()).unwrap_or(0).max(READ_LEN);
        if self.bytes.len() - self.start < wanted || self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.bytes.len() < wanted {
                self.bytes.resize(wanted, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// A read has put this many bytes into the room.
    pub(crate) fn add(&mut self, len: usize) {
        self.end += len;
    }

    /// All but the last `rest` bytes were taken.
    pub(crate) fn keep_last(&mut self, rest: usize) {
        self.start = self.end - rest;
    }
}
