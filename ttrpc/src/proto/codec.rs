//! Bytes to frames.
//!
//! The [`Decoder`] takes bytes in any portions and gives back whole frames. The data of a frame
//! that is too long is thrown away as it arrives, so that a peer that announces 4 GiB costs
//! nothing, and framing is never lost: every length can be skipped.

use std::mem;

use bytes::{Buf, Bytes, BytesMut};

use super::{
    buffer_pool::{self, BufferPool},
    frame::{HEADER_LEN, Header, MAX_DATA_LEN},
    payload::Payload,
};

thread_local! {
    static POOL: BufferPool<BytesMut> = const { BufferPool::new() };
}

/// Data below this many bytes is copied out of the read buffer, so that a small message that is
/// kept for long does not keep a large buffer alive with it. Longer data is split off uncopied.
const COPY_BELOW: usize = 16 << 10;

/// What [`Decoder::decode`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A whole frame. Its data is read with [`Decoder::data`] or [`Decoder::take_data`] before the
    /// next call of [`Decoder::decode`].
    Frame(Header),
    /// The header of a frame that announces more than [`MAX_DATA_LEN`] bytes. Its data is skipped.
    Oversized(Header),
}

/// Cuts a stream of bytes into frames.
///
/// ```
/// use ttrpc::proto::codec::{Decoded, Decoder};
/// use ttrpc::proto::frame::{Flags, FrameType, Header};
///
/// let header = Header { data_len: 2, stream_id: 1, frame_type: FrameType::Data, flags: Flags::NONE };
/// let mut decoder = Decoder::default();
/// decoder.feed(&header.to_bytes());
/// assert_eq!(decoder.decode(), None);
/// decoder.feed(b"hi");
/// assert_eq!(decoder.decode(), Some(Decoded::Frame(header)));
/// assert_eq!(decoder.data(), b"hi");
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
    /// `buffer` is the rest of an allocation that is larger than its capacity.
    is_rest: bool,
    /// Bytes at the start of `buffer` that are done with.
    start: usize,
    /// Bytes behind them that are the current frame's data.
    data_len: usize,
    /// Bytes of an oversized frame that have still to arrive and be dropped.
    skip: usize,
}

impl Decoder {
    /// Adds bytes that arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        self.drop_done();
        if self.buffer.capacity() == 0 {
            self.buffer = buffer_pool::take(&POOL);
        }
        self.buffer.extend_from_slice(&bytes[skipped..]);
    }

    /// Gives back the next whole frame, if it is there.
    ///
    /// The data of the frame before it is gone afterwards.
    pub fn decode(&mut self) -> Option<Decoded> {
        self.start += self.data_len;
        self.data_len = 0;
        let header = Header::from_bytes(self.rest().first_chunk::<HEADER_LEN>()?);
        let arrived = self.rest().len() - HEADER_LEN;
        let data_len = header.data_len as usize;
        if data_len > MAX_DATA_LEN {
            let dropped = data_len.min(arrived);
            self.start += HEADER_LEN + dropped;
            self.skip = data_len - dropped;
            return Some(Decoded::Oversized(header));
        }
        if arrived < data_len {
            return None;
        }
        self.start += HEADER_LEN;
        self.data_len = data_len;
        Some(Decoded::Frame(header))
    }

    /// Bytes not yet done with, the current frame's data first.
    fn rest(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Drops the bytes that are done with: once per read, and not per frame.
    fn drop_done(&mut self) {
        let start = mem::take(&mut self.start);
        if start == self.buffer.len() {
            self.buffer.clear();
        } else {
            self.buffer.advance(start);
            self.is_rest = true;
        }
    }

    /// The data of the current frame.
    pub fn data(&self) -> &[u8] {
        &self.rest()[..self.data_len]
    }

    /// Takes the data of the current frame; [`Decoder::data`] is empty afterwards.
    ///
    /// The result keeps at most its own length plus one read's worth of memory alive.
    pub fn take_data(&mut self) -> Bytes {
        let data_len = mem::take(&mut self.data_len);
        if data_len < COPY_BELOW {
            let data = Bytes::copy_from_slice(&self.rest()[..data_len]);
            self.start += data_len;
            return data;
        }
        self.drop_done();
        if data_len == self.buffer.len() {
            // Nothing would be left to go on with but a little room that keeps all of this allocated.
            self.is_rest = false;
            return mem::take(&mut self.buffer).freeze();
        }
        self.is_rest = true;
        self.buffer.split_to(data_len).freeze()
    }

    /// Takes the data of the current frame if it is so long that [`Decoder::take_data`] does not copy
    /// it: what is decoded from the result needs no copy in between either.
    pub fn take_long_data(&mut self) -> Option<Bytes> {
        (self.data_len >= COPY_BELOW).then(|| self.take_data())
    }

    /// The data of the current frame, to be decoded or kept. `long_data` is what
    /// [`Decoder::take_long_data`] gave.
    pub fn payload<'a>(&'a self, long_data: &'a Option<Bytes>) -> Payload<'a> {
        match long_data {
            Some(data) => Payload::shared(data, data),
            None => Payload::borrowed(self.data()),
        }
    }

    /// Bytes that are known to be missing from the frame that is arriving, 0 between frames.
    ///
    /// Meaningful once [`Decoder::decode`] has returned `None`.
    pub fn missing(&self) -> usize {
        if self.skip > 0 {
            return 0;
        }
        let rest = self.rest();
        match rest.first_chunk::<HEADER_LEN>() {
            Some(bytes) => {
                let wanted = HEADER_LEN + Header::from_bytes(bytes).data_len as usize;
                wanted.saturating_sub(rest.len())
            }
            None if rest.is_empty() => 0,
            None => HEADER_LEN - rest.len(),
        }
    }

    /// The buffer, for a reader that puts the rest of a long frame straight into it. The reader
    /// may only append.
    pub(crate) fn buffer_mut(&mut self) -> &mut BytesMut {
        self.drop_done();
        &mut self.buffer
    }

    /// Whether the bytes so far end where a frame ends, so that an end of file here is clean.
    pub fn is_between_frames(&self) -> bool {
        self.rest().len() == self.data_len && self.skip == 0
    }

    /// Gives the buffer away when nothing is in it: an idle connection keeps none.
    pub fn release_idle_memory(&mut self) {
        if !self.rest().is_empty() {
            return;
        }
        let buffer = mem::take(&mut self.buffer);
        self.start = 0;
        if !mem::take(&mut self.is_rest) {
            buffer_pool::put(&POOL, buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Flags, FrameType};
    use super::*;

    fn frame(stream_id: u32, data: &[u8]) -> Vec<u8> {
        let header = Header {
            data_len: data.len() as u32,
            stream_id,
            frame_type: FrameType::Data,
            flags: Flags::NONE,
        };
        [&header.to_bytes(), data].concat()
    }

    fn announce(data_len: u32) -> [u8; HEADER_LEN] {
        let header =
            Header { data_len, stream_id: 1, frame_type: FrameType::Data, flags: Flags::NONE };
        header.to_bytes()
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_are_cut() {
        let wire = [frame(1, b"one"), frame(3, b""), frame(5, &[7; 100])].concat();
        for cut in 0..wire.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for part in [&wire[..cut], &wire[cut..]] {
                decoder.feed(part);
                while let Some(Decoded::Frame(header)) = decoder.decode() {
                    seen.push((header.stream_id, decoder.data().to_vec()));
                }
            }
            let expected = [(1, b"one".to_vec()), (3, vec![]), (5, vec![7; 100])];
            assert_eq!(seen, expected, "cut at byte {cut}");
            assert!(decoder.is_between_frames());
        }
    }

    #[test]
    fn oversized_data_is_dropped_as_it_arrives_and_the_next_frame_is_found() {
        let mut decoder = Decoder::default();
        let too_long = MAX_DATA_LEN + 1;
        decoder.feed(&announce(too_long as u32));
        decoder.feed(&[1; 1000]);
        assert!(matches!(decoder.decode(), Some(Decoded::Oversized(_))));
        let mut left = too_long - 1000;
        while left > 0 {
            let part = left.min(64 << 10);
            decoder.feed(&vec![1; part]);
            assert_eq!(decoder.decode(), None);
            assert!(decoder.buffer.is_empty(), "skipped data is not kept");
            assert_eq!(decoder.is_between_frames(), part == left);
            left -= part;
        }
        decoder.feed(&frame(3, b"next"));
        assert!(matches!(decoder.decode(), Some(Decoded::Frame(Header { stream_id: 3, .. }))));
        assert_eq!(decoder.data(), b"next");
    }

    #[test]
    fn the_longest_frame_is_accepted_and_the_longest_length_is_skipped() {
        let mut decoder = Decoder::default();
        decoder.feed(&announce(MAX_DATA_LEN as u32));
        assert_eq!(decoder.decode(), None);
        assert_eq!(decoder.missing(), MAX_DATA_LEN);
        decoder.feed(&vec![0; MAX_DATA_LEN]);
        assert!(matches!(decoder.decode(), Some(Decoded::Frame(_))));
        assert_eq!(decoder.take_data().len(), MAX_DATA_LEN);

        decoder.feed(&announce(u32::MAX));
        assert!(matches!(decoder.decode(), Some(Decoded::Oversized(_))));
        assert_eq!(decoder.missing(), 0, "nothing is reserved for data that is skipped");
        assert!(!decoder.is_between_frames());
    }

    #[test]
    fn taken_data_leaves_what_follows_in_place() {
        for len in [0, 1, COPY_BELOW - 1, COPY_BELOW, COPY_BELOW + 1] {
            let mut decoder = Decoder::default();
            decoder.feed(&[frame(1, &vec![9; len]), frame(3, b"tail")].concat());
            assert!(decoder.decode().is_some());
            let long = decoder.take_long_data();
            assert_eq!(long.is_some(), len >= COPY_BELOW);
            assert_eq!(long.unwrap_or_else(|| decoder.take_data()), vec![9; len]);
            assert_eq!(decoder.data(), b"");
            assert!(decoder.decode().is_some());
            assert_eq!(decoder.data(), b"tail");
        }
    }

    #[test]
    fn an_idle_decoder_keeps_little() {
        let mut decoder = Decoder::default();
        decoder.feed(&frame(1, &vec![0; 100_000]));
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.decode(), None);
        decoder.release_idle_memory();
        assert_eq!(decoder.buffer.capacity(), 0);
    }
}
