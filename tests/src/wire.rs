//! A peer that is played frame by frame, with a codec of its own, so that a mistake in the library's
//! codec does not hide itself.

use std::{
    io::{self, Write, stderr},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::AbortHandle,
    time::{sleep, timeout},
};
use ttrpc::prost::{self, Message};

/// Frame types, as bytes on the wire.
pub const REQUEST: u8 = 1;
/// Ends a stream.
pub const RESPONSE: u8 = 2;
/// A message on a stream.
pub const DATA: u8 = 3;

/// Flag: nothing more from the sender of the frame.
pub const REMOTE_CLOSED: u8 = 1;
/// Flag: the client will send Data.
pub const REMOTE_OPEN: u8 = 2;
/// Flag: the frame carries no message.
pub const NO_DATA: u8 = 4;

/// How long a played peer waits for a frame that must come. Reached only by a failing test, on whatever
/// machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The stream id.
    pub id: u32,
    /// The frame type's byte.
    pub kind: u8,
    /// The flags' byte.
    pub flags: u8,
    /// The data.
    pub data: Vec<u8>,
}

impl Frame {
    /// A frame.
    pub fn new(id: u32, kind: u8, flags: u8, data: impl Into<Vec<u8>>) -> Self {
        Frame { id, kind, flags, data: data.into() }
    }

    /// A unary Request.
    pub fn unary(id: u32, service: &str, method: &str, payload: &impl Message) -> Self {
        Frame::request(id, 0, service, method, payload)
    }

    /// A Request with any flags.
    pub fn request(
        id: u32,
        flags: u8,
        service: &str,
        method: &str,
        payload: &impl Message,
    ) -> Self {
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: payload.encode_to_vec(),
            ..Request::default()
        };
        Frame::new(id, REQUEST, flags, request.encode_to_vec())
    }

    /// A Data frame that carries a message.
    pub fn message(id: u32, message: &impl Message) -> Self {
        Frame::new(id, DATA, 0, message.encode_to_vec())
    }

    /// A Data frame that closes the sender's side.
    pub fn end(id: u32) -> Self {
        Frame::new(id, DATA, REMOTE_CLOSED | NO_DATA, [])
    }

    /// A Response with a payload.
    pub fn reply(id: u32, payload: &impl Message) -> Self {
        let response = Response { status: None, payload: payload.encode_to_vec() };
        Frame::new(id, RESPONSE, 0, response.encode_to_vec())
    }

    /// A Response with a failure.
    pub fn failure(id: u32, code: i32, message: &str) -> Self {
        let status = Some(Status { code, message: message.to_owned(), details: Vec::new() });
        let response = Response { status, payload: Vec::new() };
        Frame::new(id, RESPONSE, 0, response.encode_to_vec())
    }

    /// The frame's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header(self.data.len() as u32, self.id, self.kind, self.flags);
        bytes.extend(&self.data);
        bytes
    }

    /// The data as a Request.
    pub fn as_request(&self) -> Request {
        assert_eq!(self.kind, REQUEST, "{self:?}");
        Request::decode(&self.data[..]).expect("the Request decodes")
    }

    /// The data as a Response.
    pub fn as_response(&self) -> Response {
        assert_eq!(self.kind, RESPONSE, "{self:?}");
        Response::decode(&self.data[..]).expect("the Response decodes")
    }

    /// The data as a Response, if it is one.
    pub fn try_as_response(&self) -> Option<Response> {
        Response::decode(&self.data[..]).ok().filter(|_| self.kind == RESPONSE)
    }

    /// The code of a Response, 0 for a success.
    pub fn code(&self) -> i32 {
        self.as_response().status.map_or(0, |status| status.code)
    }
}

/// A frame header.
pub fn header(len: u32, id: u32, kind: u8, flags: u8) -> Vec<u8> {
    [&len.to_be_bytes()[..], &id.to_be_bytes()[..], &[kind, flags]].concat()
}

/// `ttrpc.Request`, as prost derives it.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "prost")]
pub struct Request {
    /// The service's full name.
    #[prost(string, tag = "1")]
    pub service: String,
    /// The method's bare name.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The encoded message.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    /// Nanoseconds from now.
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
    /// The metadata.
    #[prost(message, repeated, tag = "5")]
    pub metadata: Vec<KeyValue>,
}

/// `ttrpc.KeyValue`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "prost")]
pub struct KeyValue {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `ttrpc.Response`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "prost")]
pub struct Response {
    /// Absent or of code 0 for a success.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// The encoded message.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "prost")]
pub struct Status {
    /// The code's number.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The message.
    #[prost(string, tag = "2")]
    pub message: String,
    /// The details.
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<ttrpc::Any>,
}

/// Reports a test in which nothing moves any more: with the paused clock the time until then passes
/// at once. Ends with whatever holds it.
#[derive(Debug)]
pub struct Watchdog {
    watching: AbortHandle,
}

impl Default for Watchdog {
    fn default() -> Self {
        let watching = tokio::spawn(async {
            sleep(Duration::from_secs(24 * 3600)).await;
            let test = std::thread::current();
            let name = test.name().unwrap_or("?");
            // Not `eprintln`, which the test harness keeps and would lose with the process.
            let _ = writeln!(stderr(), "{name}: every task waits, nothing moves any more");
            // A test that waits for ever cannot be failed otherwise.
            std::process::exit(101);
        });
        Watchdog { watching: watching.abort_handle() }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// A connection on which a test plays one side.
#[derive(Debug)]
pub struct Peer<Io> {
    io: Io,
    _watchdog: Watchdog,
}

impl<Io: AsyncRead + AsyncWrite + Unpin> Peer<Io> {
    /// Plays on this connection.
    pub fn new(io: Io) -> Self {
        Peer { io, _watchdog: Watchdog::default() }
    }

    /// The connection.
    pub fn into_inner(self) -> Io {
        self.io
    }

    /// The connection, for bytes that are no frames.
    pub fn io(&mut self) -> &mut Io {
        &mut self.io
    }

    /// Sends bytes.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.expect("the other side reads");
        self.io.flush().await.expect("the other side reads");
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: Frame) {
        self.send_bytes(&frame.to_bytes()).await;
    }

    /// The next frame, which must come.
    pub async fn receive(&mut self) -> Frame {
        self.try_receive().await.expect("a frame comes before the end")
    }

    /// The next frame, or `None` at the end of the connection; one of them must come.
    pub async fn try_receive(&mut self) -> Option<Frame> {
        timeout(PATIENCE, self.read_frame()).await.expect("a frame or the end comes in time")
    }

    /// Whether nothing comes while the connection is idle. With the paused clock this takes no time.
    pub async fn is_quiet(&mut self) -> bool {
        timeout(Duration::from_millis(200), self.read_frame()).await.is_err()
    }

    async fn read_frame(&mut self) -> Option<Frame> {
        let mut header = [0; 10];
        match self.io.read_exact(&mut header).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return None,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("reading failed: {error}"),
        }
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let mut data = vec![0; word(0) as usize];
        self.io.read_exact(&mut data).await.expect("a frame comes whole");
        Some(Frame { id: word(4), kind: header[8], flags: header[9], data })
    }

    /// Waits for the end of the connection, which must come, reading what comes before it.
    pub async fn expect_end(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.try_receive().await {
            frames.push(frame);
        }
        frames
    }
}
