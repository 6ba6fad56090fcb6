//! The process's pool of empty buffers, which frames are read into and written from.
//!
//! An idle connection holds no buffer. Without the pool a busy one would allocate and free the same buffers over and over,
//! which is slow for those of some ten KiB and more: glibc returns what is freed at the end of its heap to the system, and
//! each page is faulted in again. One pool serves all threads, since a frame is often made by one thread and freed by another.
//!
//! The pool is bounded. Buffers longer than [`READ_LEN`] leave it when one of any length is returned after a second in
//! which no long one was used. So a process that goes idle keeps what the pool holds.

use std::{
    mem,
    ops::RangeInclusive,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Capacity of the buffers that frames are read into: hundreds of short ones, or a message of 64 KiB and its envelope.
pub(crate) const READ_LEN: usize = 65 << 10;

/// Buffers that the pool holds at most.
const MAX_BUFFERS: usize = 32;

/// Bytes that the pool holds at most: the frames of two messages of 4 MiB.
const MAX_BYTES: usize = 17 << 19;

/// Shortest capacity that is worth pooling.
pub(crate) const MIN_CAPACITY: usize = 1 << 10;

/// Time without use after which the next buffer that is returned evicts those longer than [`READ_LEN`].
const LONG_IDLE_TIME: Duration = Duration::from_secs(1);

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a buffer of one of these capacities, or a new one of the least. What is in it has no meaning.
pub(crate) fn take(capacities: RangeInclusive<usize>) -> Vec<u8> {
    let least = *capacities.start();
    try_take(capacities).unwrap_or_else(|| Vec::with_capacity(least))
}

/// Returns a buffer of one of these capacities if the pool has one.
pub(crate) fn try_take(capacities: RangeInclusive<usize>) -> Option<Vec<u8>> {
    pool().take(capacities)
}

/// Returns a buffer to the pool.
pub(crate) fn put(buffer: Vec<u8>) {
    if (MIN_CAPACITY..=MAX_BYTES).contains(&buffer.capacity()) {
        let evicted = pool().put(buffer);
        // Freed without the lock.
        drop(evicted);
    }
}

#[derive(Debug)]
struct Pool {
    /// The one that was put last at the end, most often.
    buffers: Vec<Vec<u8>>,
    /// The sum of their capacities.
    bytes: usize,
    /// When a long one was last taken or put; `None` if there are none.
    long_used: Option<Instant>,
}

impl Pool {
    const fn new() -> Self {
        Pool { buffers: Vec::new(), bytes: 0, long_used: None }
    }

    fn take(&mut self, capacities: RangeInclusive<usize>) -> Option<Vec<u8>> {
        let fits = |buffer: &Vec<u8>| capacities.contains(&buffer.capacity());
        let buffer = self.buffers.swap_remove(self.buffers.iter().rposition(fits)?);
        self.bytes -= buffer.capacity();
        self.note_use(&buffer);
        Some(buffer)
    }

    /// Returns the buffers that leave the pool for this one.
    fn put(&mut self, buffer: Vec<u8>) -> Vec<Vec<u8>> {
        let mut evicted = Vec::new();
        if self.long_used.is_some_and(|used| used.elapsed() >= LONG_IDLE_TIME) {
            self.long_used = None;
            evicted.extend(self.buffers.extract_if(.., |kept| kept.capacity() > READ_LEN));
            self.bytes -= evicted.iter().map(Vec::capacity).sum::<usize>();
        }
        self.note_use(&buffer);
        self.bytes += buffer.capacity();
        self.buffers.push(buffer);
        while self.buffers.len() > MAX_BUFFERS || self.bytes > MAX_BYTES {
            let oldest = self.buffers.remove(0);
            self.bytes -= oldest.capacity();
            evicted.push(oldest);
        }
        evicted
    }

    fn note_use(&mut self, buffer: &Vec<u8>) {
        if buffer.capacity() > READ_LEN {
            self.long_used = Some(Instant::now());
        }
    }
}

/// A buffer that returns to the pool when it is dropped.
#[derive(Debug)]
pub(super) struct Pooled(pub(super) Vec<u8>);

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

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const ANY: RangeInclusive<usize> = 0..=usize::MAX;

    fn put(pool: &mut Pool, kib: usize) {
        pool.put(Vec::with_capacity(kib << 10));
    }

    fn kib(pool: &mut Pool) -> Vec<usize> {
        std::iter::from_fn(|| pool.take(ANY)).map(|buffer| buffer.capacity() >> 10).collect()
    }

    #[test]
    fn the_buffer_that_was_put_last_is_taken_of_those_that_fit() {
        let mut pool = Pool::new();
        for len in [2, 5, 3] {
            put(&mut pool, len);
        }
        for taken in [Some(3), Some(5), None] {
            let buffer = pool.take(3 << 10..=9 << 10);
            assert_eq!(buffer.map(|buffer| buffer.capacity() >> 10), taken);
        }
        assert_eq!((kib(&mut pool), pool.bytes), (vec![2], 0));
    }

    #[test]
    fn a_pool_holds_the_last_buffers_up_to_its_limits() {
        let mut pool = Pool::new();
        (1..=MAX_BUFFERS + 2).for_each(|len| put(&mut pool, len));
        assert_eq!(kib(&mut pool), (3..=MAX_BUFFERS + 2).rev().collect::<Vec<_>>());
        for len in [3000, 10, 4096, 2000] {
            put(&mut pool, len);
        }
        assert_eq!(kib(&mut pool), [2000, 4096, 10], "the oldest left");
        assert_eq!(pool.bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn long_buffers_leave_the_pool_when_none_was_used_for_a_while() {
        let mut pool = Pool::new();
        (0..3).for_each(|_| put(&mut pool, 1024));
        put(&mut pool, READ_LEN >> 10);
        advance(LONG_IDLE_TIME / 2).await;
        assert!(pool.take(1 << 20..=1 << 20).is_some());
        advance(LONG_IDLE_TIME / 2).await;
        put(&mut pool, 2);
        assert_eq!(pool.buffers.len(), 4, "one was taken a moment ago");
        advance(LONG_IDLE_TIME / 2).await;
        put(&mut pool, 3);
        assert_eq!(kib(&mut pool), [3, 2, READ_LEN >> 10]);
        assert_eq!(pool.bytes, 0);
    }
}
