//! A connection whose frames are shown as they pass.

use std::{
    fmt, io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ttrpc::{
    Connection, Status,
    proto::{
        codec::{Decoded, Decoder},
        frame::{Flags, FrameType, Header},
        message,
    },
};

use crate::output;

/// Lets frames be shown.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<OnceLock<Instant>>);

impl Switch {
    /// From now on frames are shown with the time since now: those of calls that begin later.
    pub fn turn_on(&self) {
        let _ = self.0.set(Instant::now());
    }
}

/// A connection whose frames are written to the standard error.
#[derive(Debug)]
pub struct Tap {
    stream: Connection,
    shown: Shown,
    sent: Decoder,
    received: Decoder,
}

impl Tap {
    /// Nothing is shown before the switch is turned on.
    pub fn new(stream: Connection, switch: Switch) -> Self {
        let shown = Shown { switch, first: None };
        Tap { stream, shown, sent: Decoder::default(), received: Decoder::default() }
    }
}

/// Which frames are shown.
#[derive(Debug)]
struct Shown {
    switch: Switch,
    /// The stream of the first call. Those of later ones have larger numbers.
    first: Option<u32>,
}

impl Shown {
    /// Shows the frames that are whole.
    fn show(&mut self, decoder: &mut Decoder, bytes: &[u8], is_sent: bool) {
        decoder.feed(bytes);
        while let Some(decoded) = decoder.decode() {
            let (header, content) = match decoded {
                Decoded::Frame(header) => (header, Content::of(&header, decoder.data())),
                Decoded::Oversized(header) => (header, Content::Oversized),
            };
            let Some(start) = self.switch.0.get() else { continue };
            if self.first.is_none() && is_sent && header.frame_type == FrameType::Request {
                self.first = Some(header.stream_id);
            }
            if self.first.is_none_or(|first| header.stream_id < first) {
                continue;
            }
            let time = start.elapsed();
            if output::is_json() {
                output::note_json(&json!({ "frame": to_json(&header, &content, is_sent, time) }));
                continue;
            }
            let direction = if is_sent { ">" } else { "<" };
            let time = output::duration(time);
            let content = output::plain_line(content);
            let text = format!("{direction} {}{content}  {time}", frame(&header));
            output::note(output::paint(output::DIM, text));
        }
        decoder.release_idle_memory();
    }
}

/// The same for machines. Times are seconds.
fn to_json(header: &Header, content: &Content, is_sent: bool, time: Duration) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("sent", is_sent.into());
    put("stream", header.stream_id.into());
    put("type", type_name(header.frame_type).into());
    put("flags", flags(header).into());
    put("bytes", header.data_len.into());
    put("seconds", time.as_secs_f64().into());
    match content {
        Content::Message => {}
        Content::Request { service, method, timeout, metadata } => {
            put("service", (&**service).into());
            put("method", (&**method).into());
            put("timeoutSeconds", timeout.map(|timeout| timeout.as_secs_f64()).into());
            put("metadata", metadata.iter().map(|(key, value)| json!([key, value])).collect());
        }
        Content::Failure(status) => {
            put("code", status.code().name().into());
            put("message", status.message().into());
        }
        Content::Malformed(error) => drop(put("malformed", (&**error).into())),
        Content::Oversized => drop(put("malformed", "longer than a frame may be".into())),
    }
    Value::Object(object)
}

fn type_name(frame_type: FrameType) -> String {
    match frame_type {
        FrameType::Request => "Request".to_owned(),
        FrameType::Response => "Response".to_owned(),
        FrameType::Data => "Data".to_owned(),
        FrameType::Unknown(byte) => format!("type {byte:#04x}"),
    }
}

fn flags(header: &Header) -> Vec<&'static str> {
    let names = [
        (Flags::REMOTE_CLOSED, "remote-closed"),
        (Flags::REMOTE_OPEN, "remote-open"),
        (Flags::NO_DATA, "no-data"),
    ];
    let set = names.into_iter().filter(|(flag, _)| header.flags.contains(*flag));
    set.map(|(_, name)| name).collect()
}

/// `#1 Data no-data, 0 bytes`.
fn frame(header: &Header) -> String {
    let mut text = format!("#{} {}", header.stream_id, type_name(header.frame_type));
    for name in flags(header) {
        text.push_str(&format!(" {name}"));
    }
    text.push_str(&format!(", {} bytes", header.data_len));
    text
}

/// What is in a frame beside its message.
#[derive(Debug)]
enum Content {
    /// Nothing.
    Message,
    Request {
        service: String,
        method: String,
        timeout: Option<Duration>,
        metadata: Vec<(String, String)>,
    },
    Failure(Status),
    Malformed(String),
    Oversized,
}

impl Content {
    fn of(header: &Header, data: &[u8]) -> Self {
        match header.frame_type {
            FrameType::Request => match message::Request::decode(data) {
                Ok(request) => {
                    let name = |name| String::from_utf8_lossy(name).into_owned();
                    let timeout = request.timeout_nano;
                    let metadata = request.metadata.decode().unwrap_or_default();
                    let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
                    Content::Request {
                        service: name(request.service),
                        method: name(request.method),
                        timeout: (timeout != 0)
                            .then(|| Duration::from_nanos(timeout.max(0).unsigned_abs())),
                        metadata: metadata.iter().map(pair).collect(),
                    }
                }
                Err(error) => Content::Malformed(error.to_string()),
            },
            FrameType::Response => match message::decode_response(data) {
                Ok(Ok(_)) => Content::Message,
                Ok(Err(status)) => Content::Failure(status),
                Err(error) => Content::Malformed(error.to_string()),
            },
            _ => Content::Message,
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Message => Ok(()),
            Content::Request { service, method, timeout, metadata } => {
                write!(f, ": {service}/{method}")?;
                if let Some(timeout) = timeout {
                    write!(f, ", timeout {}", output::duration(*timeout))?;
                }
                metadata.iter().try_for_each(|(key, value)| write!(f, ", {key}: {value}"))
            }
            Content::Failure(status) => write!(f, ": {}", status),
            Content::Malformed(error) => write!(f, ": malformed, {error}"),
            Content::Oversized => f.write_str(", longer than a frame may be"),
        }
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        if matches!(result, Poll::Ready(Ok(()))) {
            let this = &mut *self;
            this.shown.show(&mut this.received, &buf.filled()[before..], false);
        }
        result
    }
}

impl AsyncWrite for Tap {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = result {
            let this = &mut *self;
            this.shown.show(&mut this.sent, &buf[..written], true);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
