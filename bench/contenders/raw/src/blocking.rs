//! Threads and blocking sockets: the least that a call can take.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

use bench_load::BlockingContender;

use crate::wire::{Frame, Kind, ReadBuffer};

/// The floor with blocking sockets.
#[derive(Debug)]
pub struct Blocking;

impl BlockingContender for Blocking {
    type Connection = Arc<Mutex<Caller>>;

    const IS_CONCURRENT: bool = false;

    fn serve(path: PathBuf) {
        for stream in UnixListener::bind(path).expect("the path is free").incoming() {
            let mut socket = Socket::new(stream.expect("a connection is accepted"));
            thread::spawn(move || {
                let mut out = Vec::new();
                while socket.receive(|frame| Frame::response(frame.id, frame.payload).put(&mut out))
                {
                    socket.send(&mut out);
                }
            });
        }
    }

    fn connect(path: &Path) -> Self::Connection {
        let stream = UnixStream::connect(path).expect("the server is up");
        Arc::new(Mutex::new(Caller(Socket::new(stream))))
    }

    fn echo(connection: &Self::Connection, payload: Vec<u8>) -> Vec<u8> {
        let Caller(socket) = &mut *connection.lock().expect("a call does not panic");
        let (mut out, mut reply) = (Vec::new(), Vec::new());
        Frame { id: 1, kind: Kind::Request, flags: 0, payload: &payload }.put(&mut out);
        socket.send(&mut out);
        assert!(socket.receive(|frame| reply = frame.payload.to_vec()), "the server is up");
        reply
    }
}

/// A connection.
pub struct Caller(Socket);

struct Socket {
    stream: UnixStream,
    buffer: ReadBuffer,
}

impl Socket {
    fn new(stream: UnixStream) -> Self {
        Socket { stream, buffer: ReadBuffer::default() }
    }

    /// Waits for a frame. `false` when the peer is gone.
    fn receive(&mut self, act: impl FnOnce(Frame<'_>)) -> bool {
        loop {
            let mut arrived = self.buffer.arrived();
            if let Some(frame) = Frame::take(&mut arrived) {
                act(frame);
                let rest = arrived.len();
                self.buffer.keep_last(rest);
                return true;
            }
            match self.stream.read(self.buffer.room()) {
                Ok(0) | Err(_) => return false,
                Ok(len) => self.buffer.add(len),
            }
        }
    }

    fn send(&mut self, out: &mut Vec<u8>) {
        self.stream.write_all(out).expect("the peer is up");
        out.clear();
    }
}
