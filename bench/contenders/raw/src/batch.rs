//! Lockstep: all calls in flight are one write and one read. No library with independent calls can
//! do that, so it bounds them from far above.

use std::{hint::black_box, io, path::PathBuf, sync::Arc, time::Instant};

use bench_load::{Connection, Contender};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Mutex,
};

use crate::wire::{CLOSED, COUNT, Frame, Kind, ReadBuffer, count_payload, parse_count};

/// Bytes of a stream that are put together before they are written.
const STREAM_WRITE_LEN: usize = 60 << 10;

/// The floor in lockstep.
#[derive(Debug)]
pub struct Batch;

impl Contender for Batch {
    type Connection = Caller;

    async fn serve(path: PathBuf) {
        let listener = UnixListener::bind(path).expect("the path is free");
        loop {
            let (stream, _) = listener.accept().await.expect("a connection is accepted");
            tokio::spawn(serve_connection(stream));
        }
    }

    async fn connect(path: PathBuf) -> Caller {
        let stream = UnixStream::connect(path).await.expect("the server is up");
        let (reader, writer) = stream.into_split();
        let halves = Halves { reader, writer, buffer: ReadBuffer::default(), out: Vec::new() };
        Caller(Arc::new(Mutex::new(halves)))
    }
}

/// Answers all that has arrived with one write. Fails when the client is gone.
async fn serve_connection(mut stream: UnixStream) -> io::Result<()> {
    let (mut buffer, mut out) = (ReadBuffer::default(), Vec::new());
    loop {
        match stream.read(buffer.room()).await? {
            0 => return Ok(()),
            len => buffer.add(len),
        }
        let mut arrived = buffer.arrived();
        while let Some(frame) = Frame::take(&mut arrived) {
            if frame.flags & COUNT == 0 {
                Frame::response(frame.id, frame.payload).put(&mut out);
            } else {
                stream_replies(&mut stream, &mut out, &frame).await?;
            }
        }
        let rest = arrived.len();
        buffer.keep_last(rest);
        stream.write_all(&out).await?;
        out.clear();
    }
}

async fn stream_replies(
    stream: &mut UnixStream,
    out: &mut Vec<u8>,
    request: &Frame<'_>,
) -> io::Result<()> {
    let (messages, size) = parse_count(request.payload);
    let payload = vec![7; size];
    for index in 0..messages {
        let flags = if index + 1 == messages { CLOSED } else { 0 };
        Frame { id: request.id, kind: Kind::Data, flags, payload: &payload }.put(out);
        if out.len() > STREAM_WRITE_LEN {
            stream.write_all(out).await?;
            out.clear();
        }
    }
    Ok(())
}

struct Halves {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    buffer: ReadBuffer,
    out: Vec<u8>,
}

/// A connection.
#[derive(Clone)]
pub struct Caller(Arc<Mutex<Halves>>);

impl Caller {
    /// Writes requests and reads until `is_last` says so of a reply.
    async fn exchange(
        &self,
        requests: usize,
        flags: u8,
        payload: &[u8],
        mut is_last: impl FnMut(Frame<'_>) -> bool,
    ) {
        let Halves { reader, writer, buffer, out } = &mut *self.0.lock().await;
        out.clear();
        for index in 0..requests as u32 {
            Frame { id: 2 * index + 1, kind: Kind::Request, flags, payload }.put(out);
        }
        let read = async {
            let mut is_over = false;
            while !is_over {
                let len = reader.read(buffer.room()).await.expect("the server is up");
                assert!(len > 0, "the server is up");
                buffer.add(len);
                let mut arrived = buffer.arrived();
                while let Some(frame) = Frame::take(&mut arrived) {
                    is_over = is_last(frame);
                }
                let rest = arrived.len();
                buffer.keep_last(rest);
            }
        };
        // Both at once, since a server that cannot write may not read either.
        let (written, ()) = tokio::join!(writer.write_all(out), read);
        written.expect("the server is up");
    }
}

impl Connection for Caller {
    const IN_BATCHES: bool = true;

    async fn echo(&self, payload: Vec<u8>) -> Vec<u8> {
        let mut reply = Vec::new();
        self.exchange(1, 0, &payload, |frame| {
            reply = frame.payload.to_vec();
            true
        })
        .await;
        reply
    }

    async fn echo_batch(&self, calls: usize, payload: &[u8]) {
        let mut left = calls;
        self.exchange(calls, 0, payload, |frame| {
            black_box(frame.payload.to_vec());
            left -= 1;
            left == 0
        })
        .await;
    }

    async fn count(&self, messages: u64, size: u32) -> (u64, u64) {
        let mut received = (0, 0);
        self.exchange(1, COUNT, &count_payload(messages, size), |frame| {
            let payload = black_box(frame.payload.to_vec());
            received = (received.0 + 1, received.1 + payload.len() as u64);
            frame.flags & CLOSED != 0
        })
        .await;
        received
    }

    /// Its rounds are unary calls, whose frames are a little longer than a stream's.
    async fn ping_pong(&self, rounds: u64, payload: &[u8], nanos: &mut Vec<u32>) {
        for _ in 0..rounds {
            let start = Instant::now();
            assert_eq!(self.echo(payload.to_vec()).await.len(), payload.len());
            nanos.push(start.elapsed().as_nanos() as u32);
        }
    }
}
