//! Bytes to frames.
//!
//! The [`Decoder`] takes bytes in any portions and returns whole frames. The data of a frame that is too long is
//! dropped as it arrives. So a peer that announces 4 GiB costs nothing, and framing is never lost: every length can be
//! skipped.

pub(crate) mod buffer_pool;

use std::mem;

use bytes::{Buf, BufMut, Bytes, buf::Limit};

use buffer_pool::{Pooled, READ_LEN};

use super::{
    frame::{HEADER_LEN, Header, MAX_DATA_LEN},
    payload::Payload,
};

/// Shorter data is copied out of its buffer, and so is data that fills less than half of it. The other data leaves
/// with its buffer, which it keeps alive.
const COPY_BELOW: usize = READ_LEN / 2;

/// The result of [`Decoder::decode`].
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
/// let (frame_type, flags) = (FrameType::Data, Flags::NONE);
/// let header = Header { data_len: 2, stream_id: 1, frame_type, flags };
/// let mut decoder = Decoder::default();
/// decoder.feed(&header.to_bytes());
/// assert_eq!(decoder.decode(), None);
/// decoder.feed(b"hi");
/// assert_eq!(decoder.decode(), Some(Decoded::Frame(header)));
/// assert_eq!(decoder.data(), b"hi");
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the start of `buffer` that are done with.
    start: usize,
    /// Bytes after them that are the current frame's data.
    data_len: usize,
    /// Bytes of an oversized frame that have still to arrive and be dropped.
    skip: usize,
}

impl Decoder {
    /// Adds bytes that arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.drop_done();
        self.buffer.extend_from_slice(bytes);
        self.drop_skipped();
    }

    /// Returns the memory for what a reader reads next: for some frames, or for the rest of a long one.
    ///
    /// Memory grows with what a peer sends, not with what it announces: the buffer of a long frame at most doubles, unless
    /// the pool has one for the whole frame. The caller has seen [`Decoder::decode`] return `None`, and calls
    /// [`Decoder::drop_skipped`] afterwards, or [`Decoder::release_spare`] if nothing has arrived.
    pub(crate) fn spare(&mut self) -> Limit<&mut Vec<u8>> {
        self.drop_done();
        let arrived = self.buffer.len();
        let missing = if arrived >= READ_LEN { self.missing() } else { 0 };
        if missing > 0 {
            if arrived == self.buffer.capacity() {
                self.grow(arrived + missing);
            }
            // The next frame does not share this buffer, so it returns to the pool as a whole.
            return (&mut self.buffer).limit(missing);
        }
        if self.buffer.capacity() != READ_LEN {
            self.move_to(buffer_pool::take(READ_LEN..=READ_LEN));
        }
        (&mut self.buffer).limit(READ_LEN - arrived)
    }

    /// Makes the full buffer of a frame of so many bytes longer.
    fn grow(&mut self, frame_len: usize) {
        // A buffer more than twice as long would not be taken with the frame's data.
        match buffer_pool::try_take(frame_len..=2 * (frame_len - HEADER_LEN)) {
            Some(buffer) => self.move_to(buffer),
            None if self.buffer.len() == READ_LEN => {
                self.move_to(Vec::with_capacity(frame_len.min(2 * READ_LEN)));
            }
            None => self.buffer.reserve_exact(self.buffer.len().min(frame_len - self.buffer.len())),
        }
    }

    /// Moves what has arrived to this buffer, and returns the present one to the pool.
    fn move_to(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        if self.buffer.capacity() == 0 {
            self.buffer = buffer;
            return;
        }
        buffer.extend_from_slice(&self.buffer);
        let before = mem::replace(&mut self.buffer, buffer);
        // Shorter ones are of no use to the next frame.
        if before.capacity() >= READ_LEN {
            buffer_pool::put(before);
        }
    }

    /// Drops what has arrived of an oversized frame.
    pub(crate) fn drop_skipped(&mut self) {
        let skipped = self.skip.min(self.rest().len());
        self.start += skipped;
        self.skip -= skipped;
    }

    /// Keeps little memory while nothing arrives: none between frames.
    pub(crate) fn release_spare(&mut self) {
        let arrived = self.buffer.len();
        if self.rest().is_empty() {
            self.release_idle_memory();
        } else if arrived < READ_LEN / 4 && self.buffer.capacity() >= READ_LEN {
            self.move_to(Vec::with_capacity(arrived));
        }
    }

    /// Returns the next whole frame, if it is there.
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

    /// Goes over the frames after the current one while they are whole, come to no more than `max_len` bytes (less than a
    /// frame may have), and `goes_on` says so of their headers. Returns all of them, back to back. No frame is the
    /// current one then.
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
        &self.buffer[run]
    }

    /// Bytes not yet done with, the current frame's data first.
    fn rest(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Drops the bytes that are done with: once per read, and not per frame.
    fn drop_done(&mut self) {
        match mem::take(&mut self.start) {
            0 => {}
            all if all == self.buffer.len() => self.buffer.clear(),
            start => drop(self.buffer.drain(..start)),
        }
    }

    /// Returns the data of the current frame.
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

    /// Takes the data of the current frame if it is so long that [`Decoder::take_data`] does not copy it. Messages that
    /// are decoded from the result need no copy either.
    pub fn take_long_data(&mut self) -> Option<Bytes> {
        let (start, data_len) = (self.start, self.data_len);
        if data_len < COPY_BELOW || data_len < self.buffer.capacity().div_ceil(2) {
            return None;
        }
        // What has arrived of the next frames is shorter than this one.
        let next = &self.buffer[start + data_len..];
        let mut rest =
            if next.is_empty() { Vec::new() } else { buffer_pool::take(READ_LEN..=READ_LEN) };
        rest.clear();
        rest.extend_from_slice(next);
        let mut taken = Bytes::from_owner(Pooled(mem::replace(&mut self.buffer, rest)));
        (self.start, self.data_len) = (0, 0);
        taken.advance(start);
        taken.truncate(data_len);
        Some(taken)
    }

    /// Returns the data of the current frame, to be decoded or kept. `long_data` is what
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

    /// Bytes that have arrived after the current frame.
    pub(crate) fn bytes_left(&self) -> usize {
        self.rest().len() - self.data_len
    }

    /// Returns whether the bytes so far end where a frame ends, so that an end of file here is clean.
    pub fn is_between_frames(&self) -> bool {
        self.bytes_left() == 0 && self.skip == 0
    }

    /// Returns the buffer to the pool if nothing is in it: an idle connection has none.
    pub fn release_idle_memory(&mut self) {
        if self.rest().is_empty() {
            self.start = 0;
            buffer_pool::put(mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::{
        super::frame::{Flags, FrameType},
        *,
    };

    /// Reads of these bytes what the decoder has memory for, as a reader does, and at most so many at once.
    fn read(decoder: &mut Decoder, rest: &mut &[u8], at_once: usize) {
        let mut spare = decoder.spare();
        let len = spare.remaining_mut().min(spare.chunk_mut().len());
        assert!(len > 0, "it would look like the end");
        let (now, later) = rest.split_at(len.min(at_once).min(rest.len()));
        spare.put_slice(now);
        decoder.drop_skipped();
        *rest = later;
    }

    fn announce(data_len: usize) -> [u8; HEADER_LEN] {
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
                1..=2 => 4 * READ_LEN + self.below(1 << 20),
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
                    decoder.spare();
                    decoder.release_spare();
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

    #[test]
    fn a_decoder_keeps_nothing_of_what_is_skipped_or_done() {
        let mut decoder = Decoder::default();
        decoder.feed(&announce(MAX_DATA_LEN + 1));
        assert!(matches!(decoder.decode(), Some(Decoded::Oversized(_))));
        decoder.feed(&[1; 1000]);
        assert_eq!(decoder.decode(), None);
        assert!(decoder.rest().is_empty());
        decoder.release_idle_memory();
        assert_eq!(decoder.buffer.capacity(), 0);

        let mut decoder = Decoder::default();
        decoder.feed(&announce(100_000));
        decoder.feed(&[0; 100_000]);
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.decode(), None);
        decoder.release_idle_memory();
        assert_eq!(decoder.buffer.capacity(), 0);
    }

    #[test]
    fn room_is_for_many_frames_and_at_most_doubles_with_what_has_arrived_of_a_long_one() {
        let mut decoder = Decoder::default();
        let mut arrive = |mut bytes: &[u8]| {
            while !bytes.is_empty() {
                read(&mut decoder, &mut bytes, usize::MAX);
                while decoder.decode().is_some() {}
            }
            decoder.buffer.capacity()
        };
        let short = [&announce(90)[..], &[7; 90]].concat();
        assert_eq!(arrive(&short.repeat(600)), READ_LEN);
        assert_eq!(arrive(&announce(MAX_DATA_LEN)), READ_LEN, "what is done with is gone");
        let mut capacities = Vec::new();
        for arrived in (HEADER_LEN..READ_LEN + MAX_DATA_LEN / 2).step_by(4 << 10) {
            let capacity = arrive(&[7; 4 << 10]);
            assert!(capacity <= 2 * (arrived + (4 << 10)).max(READ_LEN), "{arrived}: {capacity}");
            capacities.push(capacity);
        }
        capacities.dedup();
        assert!(capacities.len() <= 12, "it is seldom copied: {capacities:?}");
    }

    #[test]
    fn the_beginning_of_a_frame_takes_little_room_while_nothing_arrives() {
        let mut decoder = Decoder::default();
        decoder.spare().put_slice(&announce(1000));
        decoder.release_spare();
        assert!(decoder.buffer.capacity() < 100);
        decoder.spare().put_slice(&[7; 1000]);
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.data(), [7; 1000]);
        assert_eq!(decoder.decode(), None);
        decoder.spare();
        decoder.release_spare();
        assert_eq!(decoder.buffer.capacity(), 0);
    }

    #[test]
    fn a_long_frame_moves_once_when_the_usual_room_is_full() {
        let mut decoder = Decoder::default();
        decoder.spare().put_slice(&announce(100 << 10));
        let mut moves = 0;
        while decoder.missing() > 0 {
            assert_eq!(decoder.decode(), None);
            let before = decoder.buffer.as_ptr();
            read(&mut decoder, &mut &[7; 1 << 10][..], 1 << 10);
            moves += usize::from(decoder.buffer.as_ptr() != before);
        }
        assert!(decoder.decode().is_some());
        assert_eq!(moves, 1);
    }

    #[test]
    fn a_small_buffer_is_exchanged_for_one_of_the_usual_length() {
        let mut decoder = Decoder::default();
        decoder.spare().put_slice(&announce(1000));
        let before = decoder.buffer.as_ptr();
        decoder.spare().put_slice(&[7; 10]);
        assert_eq!((decoder.buffer.as_ptr(), decoder.buffer.capacity()), (before, READ_LEN));
        decoder.release_spare();
        decoder.spare();
        assert_eq!(decoder.buffer.capacity(), READ_LEN);
        assert_eq!(decoder.rest(), [&announce(1000)[..], &[7; 10]].concat());
    }

    /// Reads so many bytes of a frame, as a reader does.
    fn read_frame(decoder: &mut Decoder, data_len: usize) {
        let frame = [&announce(data_len)[..], &vec![7; data_len]].concat();
        let mut rest = &frame[..];
        while !rest.is_empty() {
            read(decoder, &mut rest, usize::MAX);
            assert_eq!(decoder.decode().is_some(), rest.is_empty());
        }
    }

    /// Else a peer could have a server keep 4 MiB for each message of some KiB that waits.
    #[test]
    fn what_is_taken_keeps_at_most_twice_its_length_alive_also_behind_a_longer_frame() {
        let long = [&announce(MAX_DATA_LEN)[..], &vec![7; MAX_DATA_LEN]].concat();
        let short = [&announce(COPY_BELOW)[..], &[7; COPY_BELOW]].concat();
        let bytes = [&long[..], &short, &short, &short[..HEADER_LEN + 5]].concat();
        let mut decoder = Decoder::default();
        decoder.feed(&bytes);
        let taken = take_all(&mut decoder);
        let are_parts: Vec<_> = taken.iter().map(Option::is_some).collect();
        assert_eq!(are_parts, [true, false, false], "those behind the first are copied");
        decoder.spare();
        assert_eq!((decoder.buffer.capacity(), decoder.rest().len()), (READ_LEN, HEADER_LEN + 5));

        let taken = read_and_take(&mut Decoder::default(), &bytes);
        assert!(taken.iter().all(Option::is_some), "they are read into a buffer of their own");
    }

    /// Else most of each frame is copied once more: as its buffer grows, or after the frame before it, for which it has to
    /// make space.
    #[test]
    fn long_frames_that_follow_each_other_move_once_each() {
        const FRAMES: usize = 8;
        for data_len in [READ_LEN, 200 << 10, 1 << 20, MAX_DATA_LEN] {
            let wire = [&announce(data_len)[..], &vec![7; data_len]].concat().repeat(FRAMES);
            let (mut decoder, mut rest) = (Decoder::default(), &wire[..]);
            let (mut moves, mut frames) = ([0; FRAMES], 0);
            while !rest.is_empty() {
                let (before, had_some) = (decoder.buffer.as_ptr(), !decoder.rest().is_empty());
                // No more than a socket holds.
                read(&mut decoder, &mut rest, 208 << 10);
                if had_some && decoder.buffer.as_ptr() != before {
                    moves[frames] += 1;
                }
                while decoder.decode().is_some() {
                    assert!(decoder.take_long_data().is_some());
                    frames += 1;
                }
            }
            assert_eq!(moves[1..], [1; FRAMES - 1], "{data_len} bytes");
        }
    }

    fn take_all(decoder: &mut Decoder) -> Vec<Option<Bytes>> {
        let mut taken = Vec::new();
        while decoder.decode().is_some() {
            taken.push(decoder.take_long_data());
        }
        taken
    }

    /// Reads these bytes, and returns what was taken of their frames.
    fn read_and_take(decoder: &mut Decoder, mut bytes: &[u8]) -> Vec<Option<Bytes>> {
        let mut taken = Vec::new();
        while !bytes.is_empty() {
            read(decoder, &mut bytes, usize::MAX);
            taken.append(&mut take_all(decoder));
        }
        taken
    }

    /// Else a peer that sends no more could have 8 MiB kept for each connection.
    #[test]
    fn the_beginning_of_a_frame_does_not_keep_the_buffer_of_a_longer_one_before_it() {
        let long = [&announce(MAX_DATA_LEN)[..], &vec![7; MAX_DATA_LEN]].concat();
        for (data_len, is_held) in [(70 << 10, false), (70 << 10, true), (MAX_DATA_LEN, true)] {
            let mut decoder = Decoder::default();
            let bytes = [&long[..], &announce(data_len), &[7; 17 << 10]].concat();
            let taken = read_and_take(&mut decoder, &bytes);
            let held = is_held.then_some(taken);
            decoder.spare();
            decoder.release_spare();
            assert!(decoder.buffer.capacity() <= READ_LEN, "{} bytes", decoder.buffer.capacity());
            drop(held);
        }
    }

    #[test]
    fn messages_behind_a_longer_frame_are_soon_taken_without_a_copy() {
        let frame = |len| [&announce(len)[..], &vec![7; len]].concat();
        let bytes = [frame(300 << 10), frame(60 << 10).repeat(50)].concat();
        let taken = read_and_take(&mut Decoder::default(), &bytes);
        let copied = taken.iter().filter(|taken| taken.is_none()).count();
        assert!(copied <= 5, "{copied} of {} were copied", taken.len());
    }

    #[test]
    fn what_is_left_of_a_buffer_is_not_filled_byte_by_byte() {
        let mut decoder = Decoder::default();
        let taken = [&announce(40 << 10)[..], &[7; 40 << 10]].concat();
        let next = [&announce(1 << 20)[..], &[7; READ_LEN]].concat();
        let bytes = [&taken[..], &next[..READ_LEN - taken.len() - 1]].concat();
        assert!(read_and_take(&mut decoder, &bytes)[0].is_some());
        assert!(decoder.spare().chunk_mut().len() > READ_LEN / 2);
    }

    #[test]
    fn much_of_a_frame_stays_where_it_is_while_nothing_arrives() {
        let mut decoder = Decoder::default();
        decoder.spare().put_slice(&[&announce(30 << 10)[..], &[7; 20 << 10]].concat());
        let before = decoder.buffer.as_ptr();
        decoder.release_spare();
        assert_eq!((decoder.buffer.as_ptr(), decoder.buffer.capacity()), (before, READ_LEN));
    }

    #[test]
    fn data_that_is_taken_returns_its_buffer_to_the_pool_once_nobody_holds_a_part_of_it() {
        // No other test has frames of this length.
        const LEN: usize = 777_777;
        let mut decoder = Decoder::default();
        read_frame(&mut decoder, LEN);
        let taken = decoder.take_data();
        let (part, address) = (taken.slice(1..2), taken.as_ptr());
        drop(taken);
        let pooled = || buffer_pool::try_take(LEN..=LEN + HEADER_LEN);
        assert!(pooled().is_none(), "a part is held");
        drop(part);
        let buffer = pooled().expect("nobody holds it any more");
        assert_eq!(buffer.as_ptr().wrapping_add(HEADER_LEN), address);
    }

    #[test]
    fn what_arrived_after_a_frame_that_is_taken_moves_to_a_buffer_of_its_own() {
        let mut decoder = Decoder::default();
        let (next, len) = ([&announce(70)[..], &[7; 30]].concat(), COPY_BELOW + 100);
        decoder.spare().put_slice(&[&announce(len)[..], &vec![7; len], &next].concat());
        assert!(decoder.decode().is_some());
        let taken = decoder.take_long_data().expect("it is long");
        assert!(taken == vec![7; len] && decoder.decode().is_none());
        assert_eq!((decoder.rest(), decoder.buffer.capacity()), (&next[..], READ_LEN));
        decoder.spare().put_slice(&[7; 40]);
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.data(), [7; 70]);
    }
}
