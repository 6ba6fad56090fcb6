//! From frames to calls. Pure: times are given, as durations since the trace began.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use bytes::Bytes;
use ttrpc::{
    Status,
    proto::{
        codec::{Decoded, Decoder},
        frame::{Flags, FrameType, Header},
        message,
    },
};

use super::call::{CALL_LEN, Call, End, Ended, Frame, Kept, MAX_KEPT, PAIR_LEN, Side, Traffic};

/// One connection.
#[derive(Debug, Default)]
pub struct Connection {
    pub id: u32,
    calls: HashMap<u32, Call>,
    from_client: Decoder,
    from_server: Decoder,
    kept: Arc<Kept>,
    /// Whether a frame has come.
    has_begun: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl Connection {
    pub fn new(id: u32, kept: Arc<Kept>) -> Self {
        let mut connection = Connection::default();
        (connection.id, connection.kept) = (id, kept);
        connection
    }

    /// Whether the first frame is of no kind that ttrpc has, asked once.
    pub fn is_foreign(&mut self, frame: &Frame) -> bool {
        let is_first = !mem::replace(&mut self.has_begun, true);
        is_first && matches!(frame.header.frame_type, FrameType::Unknown(_))
    }

    /// Takes a call out.
    fn remove(&mut self, stream: u32) -> Option<Call> {
        let call = self.calls.remove(&stream)?;
        self.kept.release(call.kept);
        Some(call)
    }

    /// Takes bytes that passed; returns the frames that are whole.
    pub fn feed(&mut self, side: Side, bytes: &[u8]) -> Vec<Frame> {
        let decoder = match side {
            Side::Client => &mut self.from_client,
            Side::Server => &mut self.from_server,
        };
        decoder.feed(bytes);
        let mut frames = Vec::new();
        while let Some(decoded) = decoder.decode() {
            frames.push(match decoded {
                Decoded::Frame(header) => Frame { side, header, data: decoder.take_data() },
                Decoded::Oversized(header) => Frame { side, header, data: Bytes::new() },
            });
        }
        frames
    }

    /// The call whose stream a frame carries a message of, to be asked before the frame is observed.
    pub fn call_of_message(&self, frame: &Frame) -> Option<&Call> {
        let header = frame.header;
        let has_message =
            header.frame_type == FrameType::Data && !header.flags.contains(Flags::NO_DATA);
        self.calls.get(&header.stream_id).filter(|_| has_message)
    }

    /// What a frame means for its call; the call, if this was its end.
    pub fn observe(&mut self, frame: &Frame, now: Duration) -> Option<Ended> {
        let id = frame.header.stream_id;
        let is_empty = frame.header.flags.contains(Flags::NO_DATA);
        match (frame.side, frame.header.frame_type) {
            (Side::Client, FrameType::Request) => {
                let replaced = self.remove(id);
                if let Some(call) = self.open(&frame.header, &frame.data, now) {
                    self.calls.insert(id, call);
                }
                Some(Ended { call: replaced?, end: End::Replaced, ended: now })
            }
            (Side::Client, FrameType::Data) => {
                if let Some(call) = self.calls.get_mut(&id).filter(|_| !is_empty) {
                    call.kept += call.client.add(&frame.data, &self.kept);
                }
                None
            }
            (Side::Server, FrameType::Data) => {
                let call = self.calls.get_mut(&id)?;
                if !is_empty {
                    call.kept += call.server.add(&frame.data, &self.kept);
                }
                let is_end = frame.header.flags.contains(Flags::REMOTE_CLOSED);
                let call = if is_end { self.remove(id)? } else { return None };
                Some(Ended { call, end: End::Answered(None), ended: now })
            }
            (Side::Server, FrameType::Response) => {
                let mut call = self.remove(id)?;
                let end = match message::decode_response(&frame.data) {
                    Ok(Ok(payload)) => {
                        // A stream of replies may end with an empty Response, which is no message.
                        if call.server.messages == 0 || !payload.is_empty() {
                            let payload = frame.data.slice_ref(payload);
                            // It is told at once.
                            self.kept.release(call.server.add(&payload, &self.kept));
                        }
                        End::Answered(None)
                    }
                    Ok(Err(status)) => End::Answered(Some(status)),
                    Err(error) => End::Answered(Some(Status::internal(error.to_string()))),
                };
                Some(Ended { call, end, ended: now })
            }
            _ => None,
        }
    }

    /// `None` if too many others are under way.
    fn open(&self, header: &Header, data: &Bytes, now: Duration) -> Option<Call> {
        let mut call = Call {
            connection: self.id,
            stream: header.stream_id,
            service: "?".to_owned(),
            method: "?".to_owned(),
            metadata: Vec::new(),
            timeout: None,
            begun: now,
            client: Traffic::default(),
            server: Traffic::default(),
            kept: CALL_LEN,
        };
        // What is no Request is passed on all the same; the server refuses it.
        let request = message::Request::decode(data).ok();
        if let Some((request, (service, method))) =
            request.and_then(|request| Some((request, request.names().ok()?)))
        {
            call.service = service.to_owned();
            call.method = method.to_owned();
            call.timeout = (request.timeout_nano != 0)
                .then(|| Duration::from_nanos(request.timeout_nano.max(0).unsigned_abs()));
            // Pairs that are no text are the server's to refuse, too.
            let metadata = request.metadata.decode().unwrap_or_default();
            call.metadata =
                metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            let pairs = call.metadata.iter().map(|(key, value)| PAIR_LEN + key.len() + value.len());
            call.kept += service.len() + method.len() + pairs.sum::<usize>();
        }
        if !self.kept.take(call.kept, MAX_KEPT) {
            self.kept.leave_out();
            return None;
        }
        let payload = request.map(|request| request.payload).unwrap_or_default();
        let opens_stream = header.flags.contains(Flags::REMOTE_OPEN);
        if request.is_some() && (!opens_stream || !payload.is_empty()) {
            call.kept += call.client.add(&data.slice_ref(payload), &self.kept);
        }
        Some(call)
    }

    /// Calls that are under way, the oldest first.
    pub fn pending(&self) -> Vec<&Call> {
        let mut calls: Vec<_> = self.calls.values().collect();
        calls.sort_by_key(|call| call.begun);
        calls
    }

    /// Ends all calls with their connection.
    pub fn close(&mut self, now: Duration) -> Vec<Ended> {
        let mut calls: Vec<_> = mem::take(&mut self.calls).into_values().collect();
        self.kept.release(calls.iter().map(|call| call.kept).sum());
        calls.sort_by_key(|call| call.stream);
        let end = |call| Ended { call, end: End::Closed, ended: now };
        calls.into_iter().map(end).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ttrpc::proto::message::{FrameData, Measured, RequestParts, ResponseParts, encode_status};

    use super::{super::call::KEPT_LEN, *};

    fn frame(frame_type: FrameType, flags: Flags, data: &[u8]) -> Vec<u8> {
        let header = Header { data_len: data.len() as u32, stream_id: 1, frame_type, flags };
        [&header.to_bytes(), data].concat()
    }

    pub fn request(flags: Flags, payload: Option<&String>) -> Vec<u8> {
        let metadata = ttrpc::Metadata::from_iter([("k", "v")]);
        let parts = RequestParts {
            service: "a.B",
            method: "C",
            payload: payload.map(Measured::new),
            timeout_nano: 5,
            metadata: &metadata,
        };
        frame(FrameType::Request, flags, &parts.to_vec())
    }

    pub fn response(text: &str) -> Vec<u8> {
        let data = ResponseParts(Measured::new(&text.to_owned())).to_vec();
        frame(FrameType::Response, Flags::NONE, &data)
    }

    /// Plays what both sides say, and returns the calls that ended.
    fn play(said: &[(Side, Vec<u8>)]) -> Vec<Ended> {
        let mut connection = Connection::new(7, Arc::default());
        let mut ended = Vec::new();
        for (step, (side, bytes)) in said.iter().enumerate() {
            let now = Duration::from_secs(step as u64);
            for frame in connection.feed(*side, bytes) {
                ended.extend(connection.observe(&frame, now));
            }
        }
        ended.extend(connection.close(Duration::from_secs(100)));
        ended
    }

    #[test]
    fn a_unary_call_is_told_with_its_sizes() {
        let said = [
            (Side::Client, request(Flags::NONE, Some(&"x".to_owned()))),
            (Side::Server, response("abc")),
        ];
        let [ended] = &play(&said)[..] else { panic!("one call") };
        assert_eq!((ended.call.name(), ended.end.name()), ("a.B/C".to_owned(), "OK"));
        assert_eq!(ended.duration(), Duration::from_secs(1));
        assert_eq!((ended.call.client.bytes, ended.call.server.bytes), (3, 5));
        assert_eq!(ended.call.timeout, Some(Duration::from_nanos(5)));
        assert_eq!(ended.call.metadata, [("k".to_owned(), "v".to_owned())]);
    }

    #[test]
    fn a_stream_ends_when_the_server_says_so() {
        let said = [
            (Side::Client, request(Flags::REMOTE_OPEN, None)),
            (Side::Client, frame(FrameType::Data, Flags::NONE, b"12")),
            (Side::Server, frame(FrameType::Data, Flags::NONE, b"")),
            (Side::Client, frame(FrameType::Data, Flags::END, b"")),
            (Side::Server, frame(FrameType::Data, Flags::NONE, b"3")),
            (Side::Server, frame(FrameType::Data, Flags::END, b"")),
        ];
        let [ended] = &play(&said)[..] else { panic!("one call") };
        assert_eq!(ended.ended, Duration::from_secs(5));
        assert_eq!((ended.call.client.messages, ended.call.server.messages), (1, 2));
    }

    #[test]
    fn failures_and_lost_connections_are_ends() {
        let not_found = encode_status(&Status::not_found("x"));
        let said = [
            (Side::Client, request(Flags::NONE, None)),
            (Side::Server, frame(FrameType::Response, Flags::NONE, &not_found)),
        ];
        assert_eq!(play(&said)[0].end.name(), "NOT_FOUND");
        let closed = &play(&said[..1])[0];
        assert_eq!((closed.end.name(), closed.ended), ("CLOSED", Duration::from_secs(100)));
    }

    #[test]
    fn a_stream_that_is_used_twice_is_two_calls() {
        let said = [
            (Side::Client, request(Flags::NONE, None)),
            (Side::Client, request(Flags::NONE, None)),
            (Side::Server, response("abc")),
        ];
        let ends: Vec<_> = play(&said).iter().map(|ended| ended.end.name()).collect();
        assert_eq!(ends, ["REPLACED", "OK"]);
    }

    #[test]
    fn rubbish_is_no_call_and_no_panic() {
        let said = [
            (Side::Server, response("nobody asked")),
            (Side::Client, frame(FrameType::Data, Flags::NONE, b"no stream")),
            (Side::Client, frame(FrameType::Unknown(9), Flags::NONE, b"")),
            (Side::Client, vec![0xff; 30]),
        ];
        assert!(play(&said).is_empty());
        let malformed = [(Side::Client, frame(FrameType::Request, Flags::NONE, &[0xff; 9]))];
        assert_eq!(play(&malformed)[0].call.name(), "?/?");
    }

    #[test]
    fn calls_that_are_not_answered_hold_no_more_than_a_bound() {
        let kept = Arc::new(Kept::default());
        let mut connection = Connection::new(1, kept.clone());
        let begin = |connection: &mut Connection, stream| {
            let mut request = request(Flags::NONE, Some(&"x".repeat(KEPT_LEN / 2)));
            request[4..8].copy_from_slice(&u32::to_be_bytes(stream));
            for frame in connection.feed(Side::Client, &request) {
                assert!(connection.observe(&frame, Duration::ZERO).is_none());
            }
        };
        for number in 0..150_000_u32 {
            begin(&mut connection, 2 * number + 1);
        }
        let followed = connection.pending().len() as u64;
        assert!((40_000..150_000).contains(&followed), "{followed}");
        assert_eq!(kept.not_followed() + followed, 150_000);
        assert!(kept.len() <= MAX_KEPT);
        assert_eq!(connection.close(Duration::ZERO).len() as u64, followed);
        assert_eq!(kept.len(), 0);
        begin(&mut connection, 1);
        assert_eq!(connection.pending().len(), 1);
        drop(connection);
        assert_eq!(kept.len(), 0);
    }

    #[test]
    fn what_is_no_ttrpc_is_told_once() {
        let http = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".repeat(1 << 18);
        let mut connection = Connection::new(1, Arc::default());
        let frames = connection.feed(Side::Client, &http);
        assert!(connection.is_foreign(&frames[0]));
        assert!(!connection.is_foreign(&frames[0]));
    }
}
