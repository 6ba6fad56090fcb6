//! A pool of empty buffers, to be used again.
//!
//! An idle connection keeps no buffers; without the pool a busy one would allocate the same buffers
//! over and over.

use std::{cell::RefCell, ops::RangeInclusive, thread::LocalKey};

use bytes::BytesMut;

/// Buffers that a pool keeps.
const COUNT: usize = 2;

/// Capacities, in bytes, of buffers that are worth it.
const USEFUL: RangeInclusive<usize> = 1 << 10..=64 << 10;

/// What a pool can keep.
pub(crate) trait Buffer {
    /// An empty one with room for this many bytes.
    fn with_capacity(bytes: usize) -> Self;

    /// Drops what is in it.
    fn clear(&mut self);

    /// Bytes for which it has room.
    fn capacity(&self) -> usize;
}

impl Buffer for BytesMut {
    fn with_capacity(bytes: usize) -> Self {
        BytesMut::with_capacity(bytes)
    }

    fn clear(&mut self) {
        self.clear();
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }
}

impl Buffer for Vec<u8> {
    fn with_capacity(bytes: usize) -> Self {
        Vec::with_capacity(bytes)
    }

    fn clear(&mut self) {
        self.clear();
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }
}

/// Empty buffers; each thread has its own pool.
#[derive(Debug)]
pub(crate) struct BufferPool<B>(RefCell<Vec<B>>);

impl<B: Buffer> BufferPool<B> {
    pub(crate) const fn new() -> Self {
        BufferPool(RefCell::new(Vec::new()))
    }

    fn take(&self) -> Option<B> {
        self.0.borrow_mut().pop()
    }

    fn put(&self, mut buffer: B) {
        buffer.clear();
        let mut kept = self.0.borrow_mut();
        if USEFUL.contains(&buffer.capacity()) && kept.len() < COUNT {
            kept.push(buffer);
        }
    }
}

/// An empty buffer with some room, from the pool if it has one. A thread that is ending has none.
pub(crate) fn take<B: Buffer>(pool: &'static LocalKey<BufferPool<B>>) -> B {
    let kept = pool.try_with(BufferPool::take).ok().flatten();
    kept.unwrap_or_else(|| B::with_capacity(*USEFUL.start()))
}

/// Puts a buffer into the pool; what is in it is lost. Its capacity has to be all that it keeps
/// allocated.
pub(crate) fn put<B: Buffer>(pool: &'static LocalKey<BufferPool<B>>, buffer: B) {
    // A thread that is ending keeps nothing.
    let _ = pool.try_with(|pool| pool.put(buffer));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_buffers_are_kept_and_none_that_is_large() {
        let pool = BufferPool::new();
        for capacity in [100, 100 << 10, 2 << 10, 3 << 10, 4 << 10] {
            pool.put(Vec::with_capacity(capacity));
        }
        let kept = [pool.take(), pool.take(), pool.take()]
            .map(|buffer: Option<Vec<u8>>| buffer.map(|buffer| buffer.capacity() >> 10));
        assert_eq!(kept, [Some(3), Some(2), None]);
    }

    thread_local! {
        static BYTES: BufferPool<BytesMut> = const { BufferPool::new() };
        static VECS: BufferPool<Vec<u8>> = const { BufferPool::new() };
    }

    #[test]
    fn a_buffer_that_was_put_is_taken_next_and_a_new_one_has_some_room() {
        put(&BYTES, BytesMut::with_capacity(5000));
        put(&VECS, Vec::with_capacity(5000));
        for capacity in [5000, *USEFUL.start()] {
            let (bytes, vec): (BytesMut, Vec<u8>) = (take(&BYTES), take(&VECS));
            assert_eq!((bytes.capacity(), vec.capacity()), (capacity, capacity));
        }
    }
}
