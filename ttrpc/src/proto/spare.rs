//! Buffers that run empty, kept for whoever needs one next.
//!
//! A busy connection would else allocate the same buffers over and over, since an idle one keeps none.

use std::{cell::RefCell, ops::RangeInclusive, thread::LocalKey};

use bytes::BytesMut;

/// Buffers of one type that are kept.
const COUNT: usize = 2;

/// Capacities, in bytes, of buffers that are worth it.
const USEFUL: RangeInclusive<usize> = 1 << 10..=64 << 10;

/// What can be kept.
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

/// Empty buffers; each thread has its own.
#[derive(Debug)]
pub(crate) struct Spare<B>(RefCell<Vec<B>>);

impl<B: Buffer> Spare<B> {
    pub(crate) const fn new() -> Self {
        Spare(RefCell::new(Vec::new()))
    }

    fn take(&self) -> Option<B> {
        self.0.borrow_mut().pop()
    }

    fn give_back(&self, mut buffer: B) {
        buffer.clear();
        let mut kept = self.0.borrow_mut();
        if USEFUL.contains(&buffer.capacity()) && kept.len() < COUNT {
            kept.push(buffer);
        }
    }
}

/// An empty buffer with some room, one that was given back before if there is one. A thread that is
/// ending has none.
pub(crate) fn take<B: Buffer>(spare: &'static LocalKey<Spare<B>>) -> B {
    let kept = spare.try_with(Spare::take).ok().flatten();
    kept.unwrap_or_else(|| B::with_capacity(*USEFUL.start()))
}

/// Gives a buffer back; what is in it is lost. Its capacity has to be all that it keeps allocated.
pub(crate) fn give_back<B: Buffer>(spare: &'static LocalKey<Spare<B>>, buffer: B) {
    // A thread that is ending keeps nothing.
    let _ = spare.try_with(|spare| spare.give_back(buffer));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_buffers_are_kept_and_none_that_is_large() {
        let spare = Spare::new();
        for capacity in [100, 100 << 10, 2 << 10, 3 << 10, 4 << 10] {
            spare.give_back(Vec::with_capacity(capacity));
        }
        let kept = [spare.take(), spare.take(), spare.take()]
            .map(|buffer: Option<Vec<u8>>| buffer.map(|buffer| buffer.capacity() >> 10));
        assert_eq!(kept, [Some(3), Some(2), None]);
    }
}
