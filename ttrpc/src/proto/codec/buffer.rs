//! The memory that frames arrive in.
//!
//! Short frames are read together, into a buffer of the thread's pool. A frame that does not fit into that moves to a
//! buffer of its own when the first is full. That is one of the process's pool, if one has room for the frame, and
//! else a new one, which doubles as the frame arrives.

use std::mem;

use bytes::{Buf, BufMut, Bytes, BytesMut, buf::Limit};

use super::super::{
    buffer_pool::{self, BufferPool, LongPool, MIN_CAPACITY},
    frame::HEADER_LEN,
};

thread_local! {
    static POOL: BufferPool<BytesMut> = const { BufferPool::new() };
}

/// The process's pool of long buffers.
#[cfg(not(test))]
fn long_pool() -> &'static LongPool<BytesMut> {
    static LONG_POOL: LongPool<BytesMut> = LongPool::new();
    &LONG_POOL
}

/// Each test has its own, so that what it finds there is what it has put. A thread that is ending has none.
#[cfg(test)]
fn long_pool() -> std::rc::Rc<LongPool<BytesMut>> {
    thread_local! {
        static LONG_POOL: std::rc::Rc<LongPool<BytesMut>> = LongPool::new().into();
    }
    LONG_POOL.try_with(Clone::clone).unwrap_or_else(|_| LongPool::new().into())
}

/// Bytes for which there is room when frames are read: enough for hundreds of small ones, or for a message of 64 KiB and
/// what stands around it.
pub(crate) const READ_LEN: usize = 65 << 10;

/// A buffer that the pool gets back once nobody holds a part of it any more.
struct Pooled(BytesMut);

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        put(mem::take(&mut self.0));
    }
}

/// Puts a buffer into the thread's pool or that of long ones, if frames are read into such.
fn put(buffer: BytesMut) {
    match buffer.capacity() {
        ..READ_LEN => {}
        READ_LEN => buffer_pool::put(&POOL, buffer),
        _ => long_pool().put(buffer),
    }
}

/// Bytes that have arrived, and room for more.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    /// `bytes` is a part of an allocation of so many bytes, or the whole of one if this is 0.
    rest_of: usize,
}

impl ReadBuffer {
    /// What has arrived.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds bytes that have arrived elsewhere.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        if self.bytes.capacity() == 0 || self.rest_of > 0 {
            let buffer = buffer_pool::take(&POOL, READ_LEN..=READ_LEN);
            self.replace(buffer.unwrap_or_else(|| BytesMut::with_capacity(MIN_CAPACITY)));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Room for some frames.
    pub(super) fn room_for_frames(&mut self) -> Limit<&mut BytesMut> {
        if self.bytes.capacity() == 0 {
            self.bytes = buffer_pool::take_or_new(&POOL, READ_LEN..=READ_LEN);
        } else if self.bytes.capacity() < READ_LEN || self.allocated() > READ_LEN {
            self.make_room_for_frames();
        }
        (&mut self.bytes).limit(READ_LEN)
    }

    fn make_room_for_frames(&mut self) {
        // The whole buffer, if nobody holds a frame any more that was taken out of it.
        let missing = READ_LEN - self.bytes.len();
        if self.allocated() <= READ_LEN && self.bytes.try_reclaim(missing) {
            self.rest_of = 0;
        } else {
            self.replace(buffer_pool::take_or_new(&POOL, READ_LEN..=READ_LEN));
        }
    }

    /// Room for more of the one frame that has begun to arrive, at least [`READ_LEN`] bytes of it, and of which so many are
    /// missing. There is none for what comes behind it: so its buffer goes back to the pool as a whole.
    pub(super) fn room_for_long_frame(&mut self, missing: usize) -> Limit<&mut BytesMut> {
        if self.bytes.capacity() == self.bytes.len() {
            self.make_room_for_long_frame(self.bytes.len() + missing);
        }
        (&mut self.bytes).limit(missing)
    }

    fn make_room_for_long_frame(&mut self, len: usize) {
        // One that is twice as long would not be taken with the frame's data.
        if let Some(buffer) = long_pool().take(len..=2 * (len - HEADER_LEN)) {
            return self.replace(buffer);
        }
        debug_assert_eq!(self.rest_of, 0, "what is left behind data that was taken is shorter");
        let arrived = self.bytes.len();
        if self.bytes.capacity() == READ_LEN {
            // Of buffers that begin small malloc gives fewer back.
            let mut buffer = BytesMut::with_capacity(MIN_CAPACITY);
            buffer.reserve(len.min(2 * arrived));
            self.replace(buffer);
        } else {
            // It doubles, also where fewer bytes are missing.
            self.bytes.reserve(arrived.min(len - arrived));
        }
    }

    /// Bytes that the buffer keeps allocated.
    fn allocated(&self) -> usize {
        if self.rest_of > 0 { self.rest_of } else { self.bytes.capacity() }
    }

    /// Drops so many bytes. What is behind them is mostly a part of a frame, and moves to the start, so that the buffer
    /// stays whole.
    #[inline]
    pub(super) fn drop_front(&mut self, count: usize) {
        if count > 0 {
            let len = self.bytes.len();
            self.bytes.copy_within(count.., 0);
            self.bytes.truncate(len - count);
        }
    }

    /// Takes so many bytes, and drops all before them. They keep the buffer: `None` if they are less than half of it.
    pub(super) fn take(&mut self, start: usize, len: usize) -> Option<Bytes> {
        let allocated = self.allocated();
        if len < allocated.div_ceil(2) {
            return None;
        }
        // What lies behind is less than half of the allocation, and nothing is taken out of that.
        debug_assert_eq!(self.rest_of, 0);
        // Where they are the last, nothing would be left to go on with but a little room that keeps all of this allocated.
        if start + len == self.bytes.len() {
            let mut taken = Bytes::from_owner(Pooled(mem::take(&mut self.bytes)));
            taken.advance(start);
            return Some(taken);
        }
        self.bytes.advance(start);
        self.rest_of = allocated;
        Some(self.bytes.split_to(len).freeze())
    }

    /// Nothing more arrives: keeps no more than room for what is there if that is little.
    pub(super) fn release_room(&mut self) {
        let arrived = self.bytes.len();
        if arrived < READ_LEN / 4 && self.allocated() >= READ_LEN {
            self.replace(BytesMut::with_capacity(arrived));
        }
    }

    /// Gives the buffer away, with what is in it.
    pub(super) fn release(&mut self) {
        let buffer = mem::take(&mut self.bytes);
        if mem::take(&mut self.rest_of) == 0 {
            put(buffer);
        }
        long_pool().drop_unused();
    }

    /// Moves what has arrived to this buffer, and gives the present one to the pool.
    fn replace(&mut self, mut buffer: BytesMut) {
        buffer.extend_from_slice(&self.bytes);
        let before = mem::replace(&mut self.bytes, buffer);
        if mem::take(&mut self.rest_of) == 0 {
            put(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            super::{buffer_pool::POOL_BYTES, frame::MAX_DATA_LEN},
            COPY_BELOW, Decoded, Decoder,
            tests::{announce, read},
        },
        *,
    };

    #[test]
    fn a_decoder_keeps_nothing_of_what_is_skipped_or_done() {
        let mut decoder = Decoder::default();
        decoder.feed(&announce(MAX_DATA_LEN + 1));
        assert!(matches!(decoder.decode(), Some(Decoded::Oversized(_))));
        decoder.feed(&[1; 1000]);
        assert_eq!(decoder.decode(), None);
        assert!(decoder.rest().is_empty());
        decoder.release_idle_memory();
        assert_eq!(decoder.buffer.bytes.capacity(), 0);

        let mut decoder = Decoder::default();
        decoder.feed(&announce(100_000));
        decoder.feed(&[0; 100_000]);
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.decode(), None);
        decoder.release_idle_memory();
        assert_eq!(decoder.buffer.bytes.capacity(), 0);
    }

    #[test]
    fn room_is_for_many_frames_and_at_most_doubles_with_what_has_arrived_of_a_long_one() {
        let mut decoder = Decoder::default();
        let mut arrive = |mut bytes: &[u8]| {
            while !bytes.is_empty() {
                read(&mut decoder, &mut bytes, usize::MAX);
                while decoder.decode().is_some() {}
            }
            decoder.buffer.bytes.capacity()
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
        decoder.room().put_slice(&announce(1000));
        decoder.release_room();
        assert!(decoder.buffer.bytes.capacity() < 100);
        decoder.room().put_slice(&[7; 1000]);
        assert!(decoder.decode().is_some());
        assert_eq!(decoder.data(), [7; 1000]);
        assert_eq!(decoder.decode(), None);
        decoder.room();
        decoder.release_room();
        assert_eq!(decoder.buffer.bytes.capacity(), 0);
    }

    #[test]
    fn a_long_frame_moves_once_when_the_usual_room_is_full() {
        let mut decoder = Decoder::default();
        decoder.room().put_slice(&announce(100 << 10));
        let mut moves = 0;
        while decoder.missing() > 0 {
            assert_eq!(decoder.decode(), None);
            let before = decoder.buffer.bytes.as_ptr();
            read(&mut decoder, &mut &[7; 1 << 10][..], 1 << 10);
            moves += usize::from(decoder.buffer.bytes.as_ptr() != before);
        }
        assert!(decoder.decode().is_some());
        assert_eq!(moves, 1);
    }

    #[test]
    fn a_small_buffer_is_exchanged_for_one_of_the_usual_length() {
        let mut decoder = Decoder::default();
        decoder.room().put_slice(&announce(1000));
        let before = decoder.buffer.bytes.as_ptr();
        decoder.room().put_slice(&[7; 10]);
        assert_eq!(
            (decoder.buffer.bytes.as_ptr(), decoder.buffer.bytes.capacity()),
            (before, READ_LEN)
        );
        decoder.release_room();
        decoder.room();
        assert_eq!(decoder.buffer.bytes.capacity(), READ_LEN);
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

    #[test]
    fn a_long_frame_has_its_buffer_to_itself_and_the_next_one_has_it_when_nobody_holds_it_any_more()
    {
        for data_len in [READ_LEN, 200 << 10, 1 << 20, MAX_DATA_LEN] {
            let mut decoder = Decoder::default();
            let mut take = || {
                read_frame(&mut decoder, data_len);
                let taken = decoder.take_data();
                assert_eq!(taken, vec![7; data_len]);
                taken
            };
            let (first, second) = (take(), take());
            let addresses = [first.as_ptr(), second.as_ptr()];
            assert_ne!(addresses[0], addresses[1]);
            let part = first.slice(1..2);
            drop(first);
            let third = take();
            assert!(!addresses.contains(&third.as_ptr()), "of the first there is something left");
            drop(part);
            let kept = long_pool().take(data_len..=2 * data_len).expect("it is long");
            assert_eq!(kept.as_ptr().wrapping_add(HEADER_LEN), addresses[0], "{data_len} bytes");
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
        assert!(decoder.buffer.allocated() > POOL_BYTES, "they lie behind it");
        decoder.room();
        assert_eq!((decoder.buffer.allocated(), decoder.rest().len()), (READ_LEN, HEADER_LEN + 5));

        let taken = read_and_take(&mut Decoder::default(), &bytes);
        assert!(taken.iter().all(Option::is_some), "they are read into a buffer of their own");
    }

    /// Else most of each frame is copied once more: as its buffer grows, or behind the frame before it, for which it has to
    /// make room.
    #[test]
    fn long_frames_that_follow_each_other_move_once_each() {
        const FRAMES: usize = 8;
        for data_len in [READ_LEN, 200 << 10, 1 << 20, MAX_DATA_LEN] {
            let wire = [&announce(data_len)[..], &vec![7; data_len]].concat().repeat(FRAMES);
            let (mut decoder, mut rest) = (Decoder::default(), &wire[..]);
            let (mut moves, mut frames) = ([0; FRAMES], 0);
            while !rest.is_empty() {
                let (before, had_some) =
                    (decoder.buffer.bytes.as_ptr(), !decoder.rest().is_empty());
                // No more than a socket holds.
                read(&mut decoder, &mut rest, 208 << 10);
                if had_some && decoder.buffer.bytes.as_ptr() != before {
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
            decoder.room();
            decoder.release_room();
            assert!(decoder.buffer.allocated() <= READ_LEN, "{} bytes", decoder.buffer.allocated());
            drop(held);
        }
    }

    /// Else frames that arrive slowly would push the buffers out of the pool that others are read into.
    #[test]
    fn a_frame_that_arrives_with_pauses_leaves_nothing_in_the_pool_that_none_is_read_into() {
        let mut decoder = Decoder::default();
        read_frame(&mut decoder, 200 << 10);
        decoder.take_data();
        for data_len in [30 << 10, 1 << 20] {
            for _ in 0..8 {
                decoder.room().put_slice(&announce(data_len));
                for _ in 0..8 {
                    decoder.room().put_slice(&[7; 200]);
                    decoder.release_room();
                    assert!(decoder.buffer.allocated() <= READ_LEN);
                }
                decoder = Decoder::default();
            }
        }
        assert!(long_pool().take(200 << 10..=400 << 10).is_some(), "it is still there");
        let other = buffer_pool::take(&POOL, 0..=POOL_BYTES);
        assert!(other.is_none_or(|buffer| buffer.capacity() == READ_LEN));
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
        assert!(decoder.room().chunk_mut().len() > READ_LEN / 2);
    }

    #[test]
    fn what_grows_behind_a_frame_that_was_taken_has_its_whole_buffer() {
        for (is_held, is_fed) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut decoder = Decoder::default();
            let next = [&announce(170 << 10)[..], &[7; 170 << 10]].concat();
            let wire = [&announce(60 << 10)[..], &[7; 60 << 10], &next].concat();
            let (now, mut rest) = wire.split_at(READ_LEN);
            decoder.room().put_slice(now);
            assert!(decoder.decode().is_some());
            let taken = decoder.take_long_data().expect("it is long");
            let held = is_held.then_some(taken);
            assert_eq!(decoder.decode(), None);
            if is_fed {
                decoder.feed(mem::take(&mut rest));
            }
            while !rest.is_empty() {
                read(&mut decoder, &mut rest, usize::MAX);
            }
            assert!(decoder.decode().is_some() && decoder.data() == [7; 170 << 10]);
            let allocated = decoder.buffer.allocated();
            assert_eq!(Vec::from(mem::take(&mut decoder.buffer.bytes)).capacity(), allocated);
            drop(held);
        }
    }

    #[test]
    fn a_frame_that_is_the_last_in_its_buffer_takes_it_along() {
        let mut decoder = Decoder::default();
        let frame = |len| [&announce(len)[..], &vec![7; len]].concat();
        let (first, second) = (frame(COPY_BELOW), frame(4 * COPY_BELOW));
        decoder.feed(&[&first[..], &second[..20]].concat());
        assert!(decoder.decode().is_some() && decoder.take_long_data().is_some());
        assert_eq!(decoder.decode(), None);
        decoder.feed(&second[20..]);
        assert!(decoder.decode().is_some() && decoder.take_long_data().is_some());
        assert_eq!((decoder.buffer.bytes.capacity(), decoder.buffer.rest_of), (0, 0));
    }

    #[test]
    fn what_is_read_behind_a_frame_goes_on_in_the_same_buffer_once_nobody_holds_the_frame() {
        for is_held in [false, true] {
            let mut decoder = Decoder::default();
            decoder
                .room()
                .put_slice(&[&announce(COPY_BELOW)[..], &[7; COPY_BELOW], &[0; 5]].concat());
            let before = decoder.buffer.bytes.as_ptr();
            assert!(decoder.decode().is_some());
            let taken = decoder.take_data();
            let held = is_held.then_some(taken);
            assert_eq!(decoder.decode(), None);
            let room = decoder.room().remaining_mut();
            assert_eq!((room, decoder.buffer.bytes.capacity()), (READ_LEN, READ_LEN));
            assert_eq!(decoder.buffer.bytes.as_ptr() == before, !is_held);
            assert_eq!(decoder.rest(), [0; 5]);
            assert!(held.is_none_or(|held| held == [7; COPY_BELOW][..]));
        }
    }

    #[test]
    fn much_of_a_frame_stays_where_it_is_while_nothing_arrives() {
        let mut decoder = Decoder::default();
        decoder.room().put_slice(&[&announce(30 << 10)[..], &[7; 20 << 10]].concat());
        let before = decoder.buffer.bytes.as_ptr();
        decoder.release_room();
        assert_eq!(
            (decoder.buffer.bytes.as_ptr(), decoder.buffer.bytes.capacity()),
            (before, READ_LEN)
        );
    }

    #[test]
    fn a_buffer_that_runs_empty_is_used_again_and_what_is_left_of_a_shared_one_is_not() {
        let capacity = |decoder: &mut Decoder| {
            decoder.feed(&[0]);
            decoder.buffer.bytes.capacity()
        };
        let mut decoder = Decoder::default();
        decoder.room().put_slice(&[&announce(5000)[..], &[7; 5000]].concat());
        assert!(decoder.decode().is_some() && decoder.decode().is_none());
        decoder.release_idle_memory();
        assert_eq!(capacity(&mut Decoder::default()), READ_LEN);

        let long = [&announce(COPY_BELOW)[..], &[7; COPY_BELOW]].concat();
        let give_back = [Decoder::release_idle_memory, |decoder: &mut Decoder| {
            decoder.room();
        }];
        for give_back in give_back {
            let mut decoder = Decoder::default();
            decoder.room().put_slice(&[&long[..], &announce(3000), &[7; 3000]].concat());
            assert!(decoder.decode().is_some());
            let _shared = decoder.take_data();
            assert!(decoder.decode().is_some() && decoder.decode().is_none());
            give_back(&mut decoder);
            assert_eq!(capacity(&mut Decoder::default()), 1 << 10, "none was kept");
        }
    }
}
