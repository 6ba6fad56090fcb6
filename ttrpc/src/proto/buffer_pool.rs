//! Pools of empty buffers, to be used again.
//!
//! An idle connection keeps no buffers; without the pools a busy one would allocate the same buffers
//! over and over. That costs most for those of some ten KiB and more: what is freed at the end of the heap goes back to
//! the system, and each page of it is faulted in again.
//!
//! Each thread has pools of its own, for which it needs no lock. Long buffers are the process's: what one thread has put
//! another one takes, so that there are no more of them than are in use at a time, and they stay in the processor's caches.

use std::{
    cell::RefCell,
    mem,
    ops::RangeInclusive,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::LocalKey,
    time::Duration,
};

use bytes::BytesMut;
use tokio::time::Instant;

/// Buffers that a thread's pool keeps.
const COUNT: usize = 8;

/// Bytes for which all of them have room. A buffer that has room for more is not kept.
pub(crate) const POOL_BYTES: usize = 520 << 10;

/// The same as [`POOL_BYTES`] for the long ones of a kind: four of 1 MiB, or one of a frame of nearly 4 MiB.
const LONG_POOL_BYTES: usize = 17 << 18;

/// Long buffers of a kind that are kept: as many of the shortest as have room for that.
const LONG_COUNT: usize = 64;

/// How long long buffers are kept that nobody uses.
const LONG_POOL_TIME: Duration = Duration::from_secs(1);

/// Capacity, in bytes, below which a buffer is not worth it.
pub(crate) const MIN_CAPACITY: usize = 1 << 10;

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
pub(crate) struct BufferPool<B>(RefCell<Kept<B>>);

#[derive(Debug)]
struct Kept<B> {
    /// The one that was put last at the end.
    buffers: Vec<B>,
    /// Bytes for which all of them have room.
    bytes: usize,
    /// How many they may be, and bytes for which they may have room.
    most: (usize, usize),
    /// Whether somebody has asked for one. What is put here by those who never do would be of no use.
    is_used: bool,
}

impl<B: Buffer> BufferPool<B> {
    pub(crate) const fn new() -> Self {
        BufferPool(RefCell::new(Kept::new((COUNT, POOL_BYTES))))
    }

    fn take(&self, capacities: RangeInclusive<usize>) -> Option<B> {
        self.0.borrow_mut().take(capacities)
    }

    fn put(&self, mut buffer: B) {
        if (MIN_CAPACITY..=POOL_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            let mut kept = self.0.borrow_mut();
            kept.put(buffer);
            while kept.evict().is_some() {}
        }
    }
}

impl<B: Buffer> Kept<B> {
    const fn new(most: (usize, usize)) -> Self {
        Kept { buffers: Vec::new(), bytes: 0, most, is_used: false }
    }

    fn take(&mut self, capacities: RangeInclusive<usize>) -> Option<B> {
        self.is_used = true;
        let (least, most) = capacities.into_inner();
        let fits = |buffer: &B| (buffer.capacity() >= least) & (buffer.capacity() <= most);
        // Most of the time, and then nothing moves up.
        let last = self.buffers.pop_if(|buffer| fits(buffer));
        let taken =
            last.or_else(|| Some(self.buffers.remove(self.buffers.iter().rposition(fits)?)))?;
        self.bytes -= taken.capacity();
        Some(taken)
    }

    fn put(&mut self, buffer: B) {
        if !self.is_used {
            return;
        }
        self.bytes += buffer.capacity();
        self.buffers.push(buffer);
    }

    /// A buffer that is too much: nobody has wanted it for the longest time.
    fn evict(&mut self) -> Option<B> {
        (self.buffers.len() > self.most.0 || self.bytes > self.most.1).then(|| {
            let evicted = self.buffers.remove(0);
            self.bytes -= evicted.capacity();
            evicted
        })
    }
}

/// An empty buffer of one of these capacities, if the pool has one: the one that was put last. A thread that is ending
/// has none.
#[inline]
pub(crate) fn take<B: Buffer>(
    pool: &'static LocalKey<BufferPool<B>>,
    capacities: RangeInclusive<usize>,
) -> Option<B> {
    pool.try_with(|pool| pool.take(capacities)).ok().flatten()
}

/// The same, or a new one that has room for the least of these.
pub(crate) fn take_or_new<B: Buffer>(
    pool: &'static LocalKey<BufferPool<B>>,
    capacities: RangeInclusive<usize>,
) -> B {
    let least = *capacities.start();
    take(pool, capacities).unwrap_or_else(|| B::with_capacity(least))
}

/// Puts a buffer into the pool; what is in it is lost. Its capacity has to be all that it keeps
/// allocated.
pub(crate) fn put<B: Buffer>(pool: &'static LocalKey<BufferPool<B>>, buffer: B) {
    // A thread that is ending keeps nothing.
    let _ = pool.try_with(|pool| pool.put(buffer));
}

/// Empty long buffers of a kind, of the whole process.
#[derive(Debug)]
pub(crate) struct LongPool<B> {
    long: Mutex<LongKept<B>>,
    /// Whether there are some, for a look without the lock.
    has_some: AtomicBool,
}

#[derive(Debug)]
struct LongKept<B> {
    kept: Kept<B>,
    /// When one was last taken or put.
    used_at: Option<Instant>,
}

impl<B: Buffer> LongPool<B> {
    pub(crate) const fn new() -> Self {
        let long = LongKept { kept: Kept::new((LONG_COUNT, LONG_POOL_BYTES)), used_at: None };
        LongPool { long: Mutex::new(long), has_some: AtomicBool::new(false) }
    }

    /// An empty buffer of one of these capacities, if there is one: the one that was put last.
    pub(crate) fn take(&self, capacities: RangeInclusive<usize>) -> Option<B> {
        self.with(|long| {
            let taken = long.kept.take(capacities)?;
            long.used_at = Some(Instant::now());
            Some(taken)
        })
    }

    /// Puts a buffer into the pool; what is in it is lost. Its capacity has to be all that it keeps allocated.
    pub(crate) fn put(&self, mut buffer: B) {
        if buffer.capacity() > LONG_POOL_BYTES {
            return;
        }
        buffer.clear();
        self.with(|long| {
            long.used_at = Some(Instant::now());
            long.kept.put(buffer);
        });
        // Each is dropped without the lock.
        while self.with(|long| long.kept.evict()).is_some() {}
    }

    /// Drops all that nobody has used for a while.
    #[inline]
    pub(crate) fn drop_unused(&self) {
        if self.has_some.load(Relaxed) {
            drop(self.take_unused());
        }
    }

    fn take_unused(&self) -> Option<Vec<B>> {
        let now = Instant::now();
        self.with(|long| {
            let is_unused = now.duration_since(long.used_at?) >= LONG_POOL_TIME;
            is_unused.then(|| {
                long.kept.bytes = 0;
                mem::take(&mut long.kept.buffers)
            })
        })
    }

    fn with<R>(&self, act: impl FnOnce(&mut LongKept<B>) -> R) -> R {
        let mut long = self.long.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let result = act(&mut long);
        self.has_some.store(!long.kept.buffers.is_empty(), Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const ANY: RangeInclusive<usize> = 0..=usize::MAX;

    /// Of a thread that has asked for a buffer.
    fn used_pool() -> BufferPool<Vec<u8>> {
        let pool = BufferPool::new();
        assert!(pool.take(ANY).is_none());
        pool
    }

    fn capacities(pool: &BufferPool<Vec<u8>>) -> Vec<usize> {
        let kept = std::iter::from_fn(|| pool.take(ANY));
        kept.map(|buffer| buffer.capacity() >> 10).collect()
    }

    #[test]
    fn a_pool_keeps_the_last_buffers_and_none_that_is_very_short_or_long() {
        let pool = used_pool();
        for capacity in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] {
            pool.put(Vec::with_capacity(capacity << 10));
        }
        pool.put(Vec::with_capacity(MIN_CAPACITY - 1));
        pool.put(Vec::with_capacity(POOL_BYTES + 1));
        assert_eq!(capacities(&pool), [10, 9, 8, 7, 6, 5, 4, 3]);
    }

    #[test]
    fn a_pool_keeps_so_many_bytes() {
        let pool = used_pool();
        for capacity in [100, 10, 200, 212, 100] {
            pool.put(Vec::with_capacity(capacity << 10));
        }
        assert_eq!(capacities(&pool), [100, 212, 200], "the oldest made room");
        for capacity in [10, POOL_BYTES >> 10] {
            pool.put(Vec::with_capacity(capacity << 10));
        }
        assert_eq!(capacities(&pool), [POOL_BYTES >> 10]);
    }

    /// Else threads that only drop messages would keep their buffers.
    #[test]
    fn a_thread_that_never_takes_a_buffer_keeps_none() {
        let pool = BufferPool::new();
        pool.put(vec![0; 5000]);
        assert_eq!(capacities(&pool), []);
    }

    #[tokio::test(start_paused = true)]
    async fn long_buffers_are_kept_for_all_threads_until_nobody_has_used_them_for_a_while() {
        static POOL: LongPool<Vec<u8>> = LongPool::new();
        const MIB: usize = 1 << 20;
        assert!(POOL.take(ANY).is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| POOL.put(vec![7; MIB]));
        });
        POOL.drop_unused();
        let taken = POOL.take(MIB..=2 * MIB).expect("it was used a moment ago");
        assert_eq!((taken.len(), taken.capacity()), (0, MIB));
        for capacity in [1, 1, 1, 1, 1, 8].map(|mib| mib * MIB) {
            POOL.put(Vec::with_capacity(capacity));
        }
        let taken: Vec<_> = std::iter::from_fn(|| POOL.take(ANY)).collect();
        assert_eq!(taken.len(), 4, "there is room for four, and one that is too long takes none");
        assert!(!POOL.has_some.load(Relaxed));
        POOL.put(Vec::with_capacity(4 * MIB));
        advance(LONG_POOL_TIME / 2).await;
        assert!(POOL.take(8 * MIB..=9 * MIB).is_none(), "that is no use of the other");
        POOL.drop_unused();
        assert!(POOL.has_some.load(Relaxed));
        advance(LONG_POOL_TIME / 2).await;
        POOL.drop_unused();
        assert!(!POOL.has_some.load(Relaxed) && POOL.take(ANY).is_none());
    }

    /// Else a few shorter ones would push out one that is long.
    #[test]
    fn more_long_buffers_are_kept_than_a_thread_keeps_while_their_bytes_have_room() {
        let pool: LongPool<Vec<u8>> = LongPool::new();
        assert!(pool.take(ANY).is_none());
        let long = 2 << 20;
        pool.put(Vec::with_capacity(long));
        for _ in 0..4 * COUNT {
            pool.put(Vec::with_capacity(67 << 10));
        }
        let taken = pool.take(long..=long).expect("there is room for it beside the others");
        assert_eq!(taken.capacity(), long);
        for _ in 0..2 * LONG_COUNT {
            pool.put(Vec::with_capacity(1 << 10));
        }
        let kept = std::iter::from_fn(|| pool.take(ANY)).count();
        assert_eq!(kept, LONG_COUNT);
    }

    thread_local! {
        static BYTES_MUT: BufferPool<BytesMut> = const { BufferPool::new() };
        static VECS: BufferPool<Vec<u8>> = const { BufferPool::new() };
    }

    #[test]
    fn the_buffer_that_was_put_last_is_taken_of_those_that_fit() {
        assert!(take(&BYTES_MUT, ANY).is_none() && take(&VECS, ANY).is_none());
        for capacity in [2000, 5000, 3000] {
            put(&BYTES_MUT, BytesMut::with_capacity(capacity));
            put(&VECS, vec![7; capacity]);
        }
        for (capacities, taken) in
            [(2500..=9000, Some(3000)), (2500..=9000, Some(5000)), (2500..=9000, None)]
        {
            let bytes = take(&BYTES_MUT, capacities.clone());
            assert_eq!(bytes.map(|bytes| bytes.capacity()), taken);
            let vec = take(&VECS, capacities);
            assert_eq!(vec.map(|vec| (vec.len(), vec.capacity())), taken.map(|taken| (0, taken)));
        }
    }
}
