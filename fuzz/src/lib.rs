//! What the targets share that need a runtime: a script of what the peer does, made of the fuzzer's
//! bytes, and playing it.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, split},
    runtime::{Builder, Handle},
    task::yield_now,
    time::{sleep, timeout},
};

/// Bytes of a frame header.
const HEADER_LEN: usize = 10;

/// Longer than everything that may happen takes. The clock is paused, so waiting costs nothing.
pub const PATIENCE: Duration = Duration::from_secs(3600);

/// How the fuzzer's bytes become what the peer sends. The first byte chooses.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a> {
    choice: u8,
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    /// The script in these bytes; `None` if there are none.
    pub fn new(input: &'a [u8]) -> Option<Self> {
        let (&choice, rest) = input.split_first()?;
        Some(Script { choice, rest })
    }

    /// Whether the bytes are cut into whole frames: their lengths are put right, so that most
    /// mutations reach what is behind the codec.
    pub fn is_framed(&self) -> bool {
        self.choice & 1 == 0
    }

    /// Whether the peer reads nothing before it has written all that it can.
    pub fn reads_late(&self) -> bool {
        self.choice & 2 != 0
    }

    /// Whether the peer pauses between what it writes, so that everything in between happens.
    pub fn pauses(&self) -> bool {
        self.choice & 4 != 0
    }

    /// Bytes that the pipe holds each way.
    pub fn pipe_len(&self) -> usize {
        [16, 200, 4096, 1 << 16][usize::from(self.choice >> 3 & 3)]
    }

    /// What is written, in portions: frames, or pieces of bytes.
    pub fn portions(&self) -> Vec<Vec<u8>> {
        if !self.is_framed() {
            return self.rest.chunks(37).map(<[u8]>::to_vec).collect();
        }
        let mut rest = self.rest;
        let mut frames = Vec::new();
        while let Some((header, tail)) = rest.split_at_checked(HEADER_LEN) {
            let announced = u32::from_be_bytes(header[..4].try_into().expect("4 bytes"));
            let len = (announced as usize).min(tail.len());
            let (data, tail) = tail.split_at(len);
            frames.push([&(len as u32).to_be_bytes(), &header[4..], data].concat());
            rest = tail;
        }
        frames
    }
}

/// Runs a scenario on a runtime of its own whose clock is paused, and checks that no task is left.
pub fn run(scenario: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O takes nothing that could lack");
    runtime.block_on(async {
        timeout(PATIENCE * 10, scenario).await.expect("everything ends");
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let gone = async {
            while tasks() > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, gone).await.expect("no task is left");
    });
}

/// The peer's side of a pipe.
pub struct Peer {
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
    received: Vec<u8>,
}

impl Peer {
    /// Plays on this pipe.
    pub fn new(io: DuplexStream) -> Self {
        let (reader, writer) = split(io);
        Peer { reader, writer, received: Vec::new() }
    }

    /// Writes what the script says, reading at once or late, and then reads what still comes while
    /// nothing is written. Gives up writing if the other side does not read for long, which it need
    /// not while nobody reads what it writes. Gives back whether everything was written.
    pub async fn play(&mut self, script: Script<'_>, last: &[u8]) -> bool {
        let writer = &mut self.writer;
        let writing = async {
            for portion in script.portions().iter().map(Vec::as_slice).chain([last]) {
                if !matches!(timeout(PATIENCE, writer.write_all(portion)).await, Ok(Ok(()))) {
                    return false;
                }
                match script.pauses() {
                    true => sleep(Duration::from_millis(400)).await,
                    false => yield_now().await,
                }
            }
            true
        };
        if script.reads_late() {
            let is_written = writing.await;
            read_until_quiet(&mut self.reader, &mut self.received).await;
            is_written
        } else {
            tokio::join!(writing, read_until_quiet(&mut self.reader, &mut self.received)).0
        }
    }

    /// Says that nothing more is written, reads to the end, and gives back all that was received.
    pub async fn end(mut self) -> Vec<u8> {
        let _ = self.writer.shutdown().await;
        let end = self.reader.read_to_end(&mut self.received);
        let _ = timeout(PATIENCE, end).await.expect("the other side closes, too");
        self.received
    }
}

/// Reads until nothing comes for long.
async fn read_until_quiet(reader: &mut ReadHalf<DuplexStream>, received: &mut Vec<u8>) {
    while let Ok(Ok(1..)) = timeout(PATIENCE * 2, reader.read_buf(received)).await {}
}

/// One frame that was received.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The stream id.
    pub id: u32,
    /// The frame type's byte.
    pub kind: u8,
    /// The flags' byte.
    pub flags: u8,
    /// The data.
    pub data: &'a [u8],
}

/// Cuts bytes into frames. What is left at the end is no whole frame.
pub fn frames(mut bytes: &[u8]) -> (Vec<Frame<'_>>, &[u8]) {
    let mut frames = Vec::new();
    while let Some((header, tail)) = bytes.split_at_checked(HEADER_LEN) {
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let Some((data, tail)) = tail.split_at_checked(word(0) as usize) else { break };
        frames.push(Frame { id: word(4), kind: header[8], flags: header[9], data });
        bytes = tail;
    }
    (frames, bytes)
}

/// A frame's bytes.
pub fn frame(id: u32, kind: u8, flags: u8, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u32).to_be_bytes();
    [&len[..], &id.to_be_bytes(), &[kind, flags], data].concat()
}

/// The data of a Request: lengths below 128 only.
pub fn request(method: &str, payload: &[u8], timeout_nano: u8) -> Vec<u8> {
    let mut data = Vec::new();
    for (tag, bytes) in [(0x0a, &b"f"[..]), (0x12, method.as_bytes()), (0x1a, payload)] {
        data.extend([tag, bytes.len() as u8]);
        data.extend(bytes);
    }
    if timeout_nano > 0 {
        data.extend([0x20, timeout_nano]);
    }
    data
}
