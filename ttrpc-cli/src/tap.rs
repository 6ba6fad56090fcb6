//! A connection whose frames are shown as they pass.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ttrpc::{
    Connection,
    proto::{
        codec::{Decoded, Decoder},
        frame::{Flags, FrameType, Header},
        message,
    },
};

use crate::output;

/// A connection whose frames are written to the standard error.
#[derive(Debug)]
pub struct Tap {
    stream: Connection,
    start: Instant,
    sent: Decoder,
    received: Decoder,
}

impl Tap {
    pub fn new(stream: Connection) -> Self {
        let start = Instant::now();
        Tap { stream, start, sent: Decoder::default(), received: Decoder::default() }
    }
}

/// Shows the frames that are whole.
fn show(decoder: &mut Decoder, bytes: &[u8], direction: &str, start: Instant) {
    decoder.feed(bytes);
    while let Some(decoded) = decoder.decode() {
        let (header, note) = match decoded {
            Decoded::Frame(header) => {
                let note = describe(&header, decoder.data());
                (header, note)
            }
            Decoded::Oversized(header) => (header, ", longer than a frame may be".to_owned()),
        };
        let time = output::duration(start.elapsed());
        let text = format!("{direction} {}{note}  {time}", frame(&header));
        output::note(output::paint(output::DIM, text));
    }
    decoder.release_idle_memory();
}

/// `#1 Data end, 0 bytes`.
pub fn frame(header: &Header) -> String {
    let name = match header.frame_type {
        FrameType::Request => "Request".to_owned(),
        FrameType::Response => "Response".to_owned(),
        FrameType::Data => "Data".to_owned(),
        FrameType::Unknown(byte) => format!("type {byte:#04x}"),
    };
    let mut text = format!("#{} {name}", header.stream_id);
    for (flag, name) in [
        (Flags::REMOTE_CLOSED, "remote-closed"),
        (Flags::REMOTE_OPEN, "remote-open"),
        (Flags::NO_DATA, "no-data"),
    ] {
        if header.flags.contains(flag) {
            text.push_str(&format!(" {name}"));
        }
    }
    text.push_str(&format!(", {} bytes", header.data_len));
    text
}

/// What is in a frame beside its message.
fn describe(header: &Header, data: &[u8]) -> String {
    match header.frame_type {
        FrameType::Request => match message::Request::decode(data) {
            Ok(request) => {
                let [service, method] =
                    [request.service, request.method].map(String::from_utf8_lossy);
                let mut text = format!(": {service}/{method}");
                if request.timeout_nano != 0 {
                    let timeout = request.timeout_nano.max(0).unsigned_abs();
                    let timeout = std::time::Duration::from_nanos(timeout);
                    text.push_str(&format!(", timeout {}", output::duration(timeout)));
                }
                for (key, value) in request.metadata.decode().unwrap_or_default().iter() {
                    text.push_str(&format!(", {key}: {value}"));
                }
                text
            }
            Err(error) => format!(": malformed, {error}"),
        },
        FrameType::Response => match message::decode_response(data) {
            Ok(Ok(_)) => String::new(),
            Ok(Err(status)) => format!(": {}", output::plain(status)),
            Err(error) => format!(": malformed, {error}"),
        },
        _ => String::new(),
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
            show(&mut this.received, &buf.filled()[before..], "<", this.start);
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
            show(&mut this.sent, &buf[..written], ">", this.start);
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
