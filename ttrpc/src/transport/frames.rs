//! Messages to frames, and frames packed for the socket.
//!
//! A message is encoded straight into its frame ([`Frame`]). Short frames are copied into shared chunks ([`Chunks`]),
//! where they lie back to back, so that the sender writes many of them with one system call. A long frame is a chunk of
//! its own and is not copied. The buffers of chunks are pooled.

use std::{cell::Cell, collections::VecDeque, mem, ops::AddAssign};

use super::limiter::Load;
use crate::{
    Status,
    proto::{
        codec::buffer_pool::{self, MIN_CAPACITY, READ_LEN},
        frame::{Flags, FrameType, HEADER_LEN, Header, MAX_DATA_LEN},
        message::FrameData,
    },
};

/// Frames up to this many bytes are copied into a shared chunk, longer ones are chunks themselves.
pub(super) const SHARED_FRAME_LEN: usize = 16 << 10;

/// Bytes after which a shared chunk is full.
const SHARED_CHUNK_LEN: usize = 64 << 10;

/// Chunks for which a queue that runs empty keeps memory: a lone frame needs no more.
pub(super) const IDLE_CHUNKS: usize = 1;

thread_local! {
    /// Where frames are encoded that are copied into a shared chunk.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A frame that is shorter would show the peer what was encoded here before.
const WRONG_LEN: &str = "a message's `encoded_len` is the length of its encoding";

/// A frame that is known to fit, not yet encoded.
pub(crate) struct Frame<D> {
    header: Header,
    data: D,
}

impl<D: FrameData> Frame<D> {
    /// # Errors
    /// RESOURCE_EXHAUSTED if the data is longer than a frame may be.
    pub(crate) fn new(
        frame_type: FrameType,
        flags: Flags,
        stream_id: u32,
        data: D,
    ) -> Result<Self, Status> {
        let data_len = data.encoded_len();
        if data_len > MAX_DATA_LEN {
            return Err(Status::resource_exhausted(format!(
                "a message of {data_len} bytes is longer than a frame may be ({MAX_DATA_LEN} bytes)"
            )));
        }
        let header = Header { data_len: data_len as u32, stream_id, frame_type, flags };
        Ok(Frame { header, data })
    }

    /// Bytes of the frame, header included.
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.header.data_len as usize
    }

    /// Encodes the frame and passes it to `push`. A frame of up to [`SHARED_FRAME_LEN`] is in this thread's buffer, which
    /// `push` copies from and leaves there. A longer one has a buffer of its own, which `push` takes, or leaves to be
    /// dropped.
    pub(crate) fn encode<R>(&self, push: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let len = self.len();
        let is_copied = len <= SHARED_FRAME_LEN;
        // The scratch is not kept in its place meanwhile: to encode a message runs the program's code, which may send another
        // one. A thread that is ending has none.
        let mut bytes = Vec::new();
        if is_copied {
            // Assigned in here: returned as a result it would be moved twice.
            let _ = SCRATCH.try_with(|kept| bytes = kept.take());
        } else {
            bytes = buffer_pool::take(len..=2 * len);
        }
        bytes.resize(len, 0);
        self.write_to(&mut bytes);
        let pushed = push(&mut bytes);
        if is_copied {
            let _ = SCRATCH.try_with(|kept| kept.set(bytes));
        }
        pushed
    }

    /// Encodes the frame into so many bytes as it has: for all callers the code of an encoded message is one.
    fn write_to(&self, bytes: &mut [u8]) {
        let (header, mut data) = bytes.split_at_mut(HEADER_LEN);
        header.copy_from_slice(&self.header.to_bytes());
        self.data.encode(&mut data);
        assert!(data.is_empty(), "{WRONG_LEN}");
    }
}

/// Capacity that frames take in the queue: that of short frames, and that of long ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Capacity(pub(super) [Load; 2]);

impl Capacity {
    /// A load of short frames (0), or of long ones (1).
    pub(super) fn of(load: Load, kind: usize) -> Self {
        let mut capacity = Capacity::default();
        capacity.0[kind] = load;
        capacity
    }
}

impl AddAssign for Capacity {
    fn add_assign(&mut self, Capacity([short, long]): Capacity) {
        self.0[0] += short;
        self.0[1] += long;
    }
}

/// Frames that lie back to back, with the capacity that they take in the queue. A long frame has a chunk to itself.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: Vec<u8>,
    pub(super) capacity: Capacity,
    is_shared: bool,
}

impl Chunk {
    /// The headers of the frames, each with the offset at which it starts.
    pub(super) fn headers(&self) -> impl Iterator<Item = (usize, Header)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = next;
            let header = self.header_at(start)?;
            next += HEADER_LEN + header.data_len as usize;
            Some((start, header))
        })
    }

    /// Returns the buffer to the pool, and the capacity.
    pub(super) fn recycle(self) -> Capacity {
        buffer_pool::put(self.bytes);
        self.capacity
    }

    pub(super) fn header_at(&self, start: usize) -> Option<Header> {
        Some(Header::from_bytes(self.bytes.get(start..)?.first_chunk()?))
    }
}

/// Chunks in the order in which they are written.
#[derive(Debug, Default)]
pub(super) struct Chunks(pub(super) VecDeque<Chunk>);

impl Chunks {
    /// Adds a frame with this stream id. It takes this much of the capacity of short frames (`kind` 0) or of long ones (1).
    /// Takes its buffer if it does not share a chunk.
    pub(super) fn push(&mut self, frame: &mut Vec<u8>, stream_id: u32, load: Load, kind: usize) {
        let len = frame.len();
        if len > SHARED_FRAME_LEN {
            Header::set_stream_id(frame, stream_id);
            let (bytes, capacity) = (mem::take(frame), Capacity::of(load, kind));
            return self.0.push_back(Chunk { bytes, capacity, is_shared: false });
        }
        let chunk = self.shared_chunk(len);
        let start = chunk.bytes.len();
        if chunk.bytes.capacity() < start + len {
            // No longer than what the pool takes back.
            let grown = (2 * chunk.bytes.capacity()).clamp(start + len, SHARED_CHUNK_LEN);
            chunk.bytes.reserve_exact(grown - start);
        }
        chunk.bytes.extend_from_slice(frame);
        Header::set_stream_id(&mut chunk.bytes[start..], stream_id);
        chunk.capacity.0[kind] += load;
    }

    /// Adds a frame before all others.
    pub(super) fn push_first(&mut self, frame: &[u8], capacity: Capacity) {
        self.0.push_front(Chunk { bytes: frame.to_vec(), capacity, is_shared: false });
    }

    /// The last chunk if it has capacity for `len` bytes, else a new one.
    fn shared_chunk(&mut self, len: usize) -> &mut Chunk {
        let fits = |chunk: &Chunk| chunk.is_shared && chunk.bytes.len() + len <= SHARED_CHUNK_LEN;
        if !self.0.back().is_some_and(fits) {
            let mut bytes = buffer_pool::take(MIN_CAPACITY..=READ_LEN);
            bytes.clear();
            self.0.push_back(Chunk { bytes, capacity: Capacity::default(), is_shared: true });
        }
        self.0.back_mut().expect("a chunk was pushed if there was none")
    }

    /// Nothing is to be written: keeps little memory.
    pub(super) fn release_idle_memory(&mut self) {
        if self.0.capacity() > IDLE_CHUNKS {
            self.0.shrink_to(IDLE_CHUNKS);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::proto::frame::Flags;

    fn frame(frame_type: FrameType, data_len: usize) -> Vec<u8> {
        let header =
            Header { data_len: data_len as u32, stream_id: 0, frame_type, flags: Flags::NONE };
        [&header.to_bytes()[..], &vec![7; data_len]].concat()
    }

    pub(in crate::transport) fn push(
        chunks: &mut Chunks,
        frame_type: FrameType,
        stream_id: u32,
        data_len: usize,
    ) {
        let mut frame = frame(frame_type, data_len);
        chunks.push(&mut frame, stream_id, Load::one(HEADER_LEN + data_len), 0);
    }

    pub(in crate::transport) fn short(load: Load) -> Capacity {
        Capacity([load, Load::default()])
    }

    pub(in crate::transport) fn ids<'a>(
        chunks: impl IntoIterator<Item = &'a Chunk>,
    ) -> Vec<(FrameType, u32)> {
        let headers = chunks.into_iter().flat_map(|chunk| chunk.headers());
        headers.map(|(_, header)| (header.frame_type, header.stream_id)).collect()
    }

    #[test]
    fn frames_that_share_a_chunk_are_encoded_elsewhere_and_longer_ones_in_buffers_of_their_own() {
        let mut chunks = Chunks::default();
        for len in [256, 257, SHARED_FRAME_LEN, 512, SHARED_FRAME_LEN + 1] {
            let data = vec![7; len - HEADER_LEN];
            let frame =
                Frame::new(FrameType::Data, Flags::NONE, 1, &data[..]).expect("it is short");
            let expected = [&frame.header.to_bytes()[..], &data].concat();
            let is_copied = frame.encode(|bytes| {
                assert!(*bytes == expected, "{len} bytes");
                chunks.push(bytes, 1, Load::default(), 0);
                !bytes.is_empty()
            });
            assert_eq!(is_copied, len <= SHARED_FRAME_LEN, "{len} bytes");
        }
    }

    #[test]
    fn small_frames_share_a_chunk_and_large_ones_have_their_own() {
        let mut chunks = Chunks::default();
        for (id, len) in [(1, 10), (3, 20), (5, SHARED_FRAME_LEN), (7, 0)] {
            push(&mut chunks, FrameType::Request, id, len);
        }
        let lens: Vec<_> = chunks.0.iter().map(|chunk| chunk.bytes.len()).collect();
        let ten = HEADER_LEN;
        assert_eq!(lens, [ten + 10 + ten + 20, ten + SHARED_FRAME_LEN, ten]);
        let rooms: Vec<_> = chunks.0.iter().map(|chunk| chunk.capacity).collect();
        assert_eq!(rooms[0], short(Load { count: 2, cost: 50 }));
        assert_eq!(ids(chunks.0.iter()), [1, 3, 5, 7].map(|id| (FrameType::Request, id)));
    }

    #[test]
    fn a_shared_chunk_grows_where_it_must_and_never_beyond_its_length() {
        const FRAME: usize = 5000;
        let mut chunks = Chunks::default();
        let mut before = 0;
        for needed in (FRAME..SHARED_CHUNK_LEN).step_by(FRAME) {
            push(&mut chunks, FrameType::Request, 1, FRAME - HEADER_LEN);
            let capacity = chunks.0[0].bytes.capacity();
            assert!((needed..=READ_LEN).contains(&capacity), "{capacity} for {needed}");
            assert!(before < needed || capacity == before, "it was enough: {before} for {needed}");
            before = capacity;
        }
        assert_eq!(chunks.0.len(), 1);
    }

    #[test]
    fn a_chunk_takes_frames_up_to_its_length_and_a_frame_of_the_longest_shared_length_is_shared() {
        let mut chunks = Chunks::default();
        let len = SHARED_FRAME_LEN - HEADER_LEN;
        for id in [1, 3, 5, 7, 9] {
            push(&mut chunks, FrameType::Request, id, len);
        }
        let lens: Vec<_> = chunks.0.iter().map(|chunk| chunk.bytes.len()).collect();
        assert_eq!(lens, [SHARED_CHUNK_LEN, SHARED_FRAME_LEN]);
    }

    #[test]
    fn an_idle_queue_keeps_room_for_one_chunk() {
        let mut chunks = Chunks(VecDeque::with_capacity(100));
        chunks.release_idle_memory();
        assert!(chunks.0.capacity() < 100);
    }
}
