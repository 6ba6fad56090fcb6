//! Bytes to frames.
//!
//! The [`Decoder`] takes bytes in any portions and returns whole frames. The data of a frame
//! that is too long is thrown away as it arrives, so that a peer that announces 4 GiB costs
//! nothing, and framing is never lost: every length can be skipped.

mod buffer;

use std::mem;

use bytes::{Bytes, BytesMut, buf::Limit};

use self::buffer::ReadBuffer;
use super::{
    frame::{HEADER_LEN, Header, MAX_DATA_LEN},
    payload::Payload,
};

pub(crate) use self::buffer::READ_LEN;

/// Data below this many bytes is copied out of its buffer, and so is data that fills less than half of its buffer. The other
/// data is taken with its buffer, which it keeps alive.
pub(super) const COPY_BELOW: usize = READ_LEN / 2;

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
    buffer: ReadBuffer,
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
        self.drop_done();
        self.buffer.append(bytes);
        self.drop_skipped();
    }

    /// Room for what arrives next, for a reader: for some frames, or for what is missing of a long one. The buffer
    /// of a long frame at most doubles, unless the pool has one that it fits into: so memory grows with what a peer sends and
    /// not with what it announces.
    ///
    /// There is room if [`Decoder::decode`] has returned `None`. The reader calls [`Decoder::drop_skipped`] afterwards, or
    /// [`Decoder::release_room`] if nothing has arrived.
    pub(crate) fn room(&mut self) -> Limit<&mut BytesMut> {
        let missing = self.missing();
        self.drop_done();
        if missing > 0 && self.buffer.bytes().len() >= READ_LEN {
            self.buffer.room_for_long_frame(missing)
        } else {
            self.buffer.room_for_frames()
        }
    }

    /// Drops what has arrived of an oversized frame.
    pub(crate) fn drop_skipped(&mut self) {
        let skipped = self.skip.min(self.rest().len());
        self.start += skipped;
        self.skip -= skipped;
    }

    /// Nothing arrives: keeps no more than room for what is there if that is little.
    pub(crate) fn release_room(&mut self) {
        if self.buffer.bytes().is_empty() {
            self.release_idle_memory();
        } else {
            self.buffer.release_room();
        }
    }

    /// The next whole frame, if it is there.
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

    /// Goes over the frames behind the current one as long as they are whole, come to no more than `max_len` bytes (less than a
    /// frame may have), and `goes_on` says so of their headers. Returns all of them, back to back. No frame is the
    /// current one then.
    #[inline]
    pub(crate) fn take_run(
        &mut self,
        max_len: usize,
        mut goes_on: impl FnMut(Header) -> bool,
    ) -> &[u8] {
        debug_assert!(max_len <= MAX_DATA_LEN, "an oversized frame would be one of the run");
        self.start += mem::take(&mut self.data_len);
        let arrived = self.rest();
        let arrived = &arrived[..arrived.len().min(max_len)];
        let mut len = 0;
        while let Some(bytes) = arrived[len..].first_chunk::<HEADER_LEN>() {
            let header = Header::from_bytes(bytes);
            let (data_len, data_arrived) =
                (header.data_len as usize, arrived.len() - len - HEADER_LEN);
            if data_len > data_arrived || !goes_on(header) {
                break;
            }
            len += HEADER_LEN + data_len;
        }
        let run = self.start..self.start + len;
        self.start += len;
        &self.buffer.bytes()[run]
    }

    /// Bytes not yet done with, the current frame's data first.
    fn rest(&self) -> &[u8] {
        &self.buffer.bytes()[self.start..]
    }

    /// Drops the bytes that are done with: once per read, and not per frame.
    fn drop_done(&mut self) {
        self.buffer.drop_front(mem::take(&mut self.start));
    }

    /// The data of the current frame.
    pub fn data(&self) -> &[u8] {
        &self.rest()[..self.data_len]
    }

    /// Takes the data of the current frame; [`Decoder::data`] is empty afterwards.
    ///
    /// The result keeps at most twice its own length of memory alive.
    pub fn take_data(&mut self) -> Bytes {
        self.take_long_data().unwrap_or_else(|| {
            let data_len = mem::take(&mut self.data_len);
            let data = Bytes::copy_from_slice(&self.rest()[..data_len]);
            self.start += data_len;
            data
        })
    }

    /// Takes the data of the current frame if it is so long that [`Decoder::take_data`] does not copy
    /// it: what is decoded from the result needs no copy in between either.
    #[inline]
    pub fn take_long_data(&mut self) -> Option<Bytes> {
        if self.data_len < COPY_BELOW {
            return None;
        }
        let taken = self.buffer.take(self.start, self.data_len)?;
        (self.start, self.data_len) = (0, 0);
        Some(taken)
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

    /// Bytes that have arrived behind the current frame.
    pub(crate) fn bytes_left(&self) -> usize {
        self.rest().len() - self.data_len
    }

    /// Whether the bytes so far end where a frame ends, so that an end of file here is clean.
    pub fn is_between_frames(&self) -> bool {
        self.bytes_left() == 0 && self.skip == 0
    }

    /// Gives the buffer away when nothing is in it: an idle connection keeps none.
    pub fn release_idle_memory(&mut self) {
        if self.rest().is_empty() {
            self.start = 0;
            self.buffer.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::{
        super::{
            buffer_pool::POOL_BYTES,
            frame::{Flags, FrameType},
        },
        *,
    };

    /// Reads of these bytes what there is room for, as a reader does, and at most so many at once.
    pub(super) fn read(decoder: &mut Decoder, rest: &mut &[u8], at_once: usize) {
        let mut room = decoder.room();
        let len = room.remaining_mut().min(room.chunk_mut().len());
        assert!(len > 0, "it would look like the end");
        let (now, later) = rest.split_at(len.min(at_once).min(rest.len()));
        room.put_slice(now);
        decoder.drop_skipped();
        *rest = later;
    }

    pub(super) fn announce(data_len: usize) -> [u8; HEADER_LEN] {
        let (data_len, flags) = (data_len as u32, Flags::NONE);
        Header { data_len, stream_id: 1, frame_type: FrameType::Data, flags }.to_bytes()
    }

    #[test]
    fn a_run_ends_before_a_frame_that_is_not_whole_or_too_long_or_not_to_go_on_with() {
        let frame = |len: usize| [&announce(len)[..], &vec![len as u8; len]].concat();
        let mut decoder = Decoder::default();
        decoder.feed(&[1, 2, 3, 40, 5, 6].map(frame).concat());
        decoder.feed(&frame(7)[..HEADER_LEN + 6]);
        assert!(decoder.decode().is_some(), "the first, which is none of the run");
        let run = decoder.take_run(100, |header| header.data_len < 40).to_vec();
        assert_eq!(run, [2, 3].map(frame).concat());
        assert!(decoder.data().is_empty(), "there is no current frame");
        assert!(decoder.take_run(HEADER_LEN + 39, |_| true).is_empty(), "it is too long");
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.data(), [40; 40], "it is still there");
        assert_eq!(decoder.take_run(100, |_| true), [5, 6].map(frame).concat());
        assert_eq!(decoder.decode(), None);
        decoder.feed(&[7]);
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.data(), [7; 7]);
    }

    #[test]
    fn a_run_ends_before_an_oversized_frame() {
        let mut decoder = Decoder::default();
        let longest = vec![0; MAX_DATA_LEN + 1];
        decoder.feed(&[&announce(1)[..], &[7], &announce(longest.len()), &longest].concat());
        assert_eq!(decoder.take_run(MAX_DATA_LEN, |_| true).len(), HEADER_LEN + 1);
        assert!(matches!(decoder.decode(), Some(Decoded::Oversized(_))));
    }

    #[test]
    fn what_is_missing_of_the_frame_that_arrives_is_known() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.missing(), 0);
        let header = announce(100);
        for (bytes, missing) in [(&header[..4], 6), (&header[4..], 100), (&[0; 40][..], 60)] {
            decoder.feed(bytes);
            assert_eq!(decoder.decode(), None);
            assert_eq!(decoder.missing(), missing);
        }
        decoder.feed(&[0; 60]);
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.decode(), None);
        assert_eq!(decoder.missing(), 0);
        decoder.feed(&announce(MAX_DATA_LEN + 1));
        assert!(matches!(decoder.decode(), Some(Decoded::Oversized(_))));
        assert_eq!(decoder.missing(), 0, "what is skipped is not waited for in one piece");
    }

    #[test]
    fn only_long_data_is_taken_without_a_copy() {
        for (len, is_copied) in
            [(COPY_BELOW - 1, true), (COPY_BELOW, false), (2 * COPY_BELOW, false)]
        {
            let mut decoder = Decoder::default();
            decoder.feed(&[&announce(len)[..], &vec![7; len], &announce(0)].concat());
            assert!(decoder.decode().is_some());
            let before = decoder.data().as_ptr();
            let data = decoder.take_data();
            assert_eq!(data, vec![7; len]);
            assert_eq!(data.as_ptr() != before, is_copied, "{len} bytes");
            assert!(decoder.data().is_empty() && decoder.decode().is_some());
        }
    }

    /// Numbers that look random, the same ones for the same seed.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (self.0 >> 33) as usize % limit
        }

        fn data_len(&mut self) -> usize {
            match self.below(24) {
                0 => MAX_DATA_LEN + 1 - self.below(3),
                1..=2 => 4 * READ_LEN + self.below(2 * POOL_BYTES),
                3..=6 => READ_LEN + self.below(4 * READ_LEN),
                7..=9 => READ_LEN - HEADER_LEN - 10 + self.below(20),
                10..=15 => self.below(READ_LEN),
                _ => self.below(200),
            }
        }
    }

    #[test]
    fn frames_are_whole_however_they_are_read_and_whoever_holds_them() {
        for seed in 1..=12 {
            let mut random = Random(seed);
            let data: Vec<_> = (0..40).map(|id| vec![id as u8; random.data_len()]).collect();
            let wire: Vec<_> = data
                .iter()
                .zip(0..)
                .map(|(data, stream_id)| {
                    let header = Header { stream_id, ..Header::from_bytes(&announce(data.len())) };
                    [&header.to_bytes()[..], data].concat()
                })
                .collect();
            let wire = wire.concat();
            let (mut decoder, mut rest) = (Decoder::default(), &wire[..]);
            let (mut held, mut seen) = (Vec::new(), 0);
            while !rest.is_empty() {
                if random.below(4) == 0 {
                    decoder.room();
                    decoder.release_room();
                }
                let at_once = [1 + random.below(100), 10_000, READ_LEN, wire.len()];
                read(&mut decoder, &mut rest, at_once[random.below(4)]);
                while let Some(decoded) = decoder.decode() {
                    let (Decoded::Frame(header) | Decoded::Oversized(header)) = decoded;
                    let expected = &data[seen];
                    assert_eq!(
                        (header.stream_id as usize, header.data_len as usize),
                        (seen, expected.len())
                    );
                    seen += 1;
                    if decoded == Decoded::Oversized(header) {
                        continue;
                    }
                    assert!(decoder.data() == expected, "seed {seed}, frame {seen}");
                    match random.below(3) {
                        0 => {}
                        1 => held.push((decoder.take_data(), expected)),
                        _ => held.extend(decoder.take_long_data().map(|data| (data, expected))),
                    }
                    while held.len() > random.below(6) {
                        let (data, expected) = held.swap_remove(random.below(held.len()));
                        assert!(data == expected, "seed {seed}, before frame {seen}");
                    }
                }
            }
            assert_eq!(seen, data.len());
            assert!(
                decoder.is_between_frames() && held.iter().all(|(data, expected)| data == expected)
            );
        }
    }
}
