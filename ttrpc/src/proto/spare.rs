//! Buffers that run empty, kept for whoever needs one next.
//!
//! A busy connection would else allocate the same buffers over and over, since an idle one keeps none.

use std::cell::RefCell;

use bytes::BytesMut;

/// Buffers that each thread keeps.
const COUNT: usize = 2;

/// Capacities of buffers that are worth it.
const USEFUL: std::ops::RangeInclusive<usize> = 1 << 10..=64 << 10;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, one that was given back before if there is one.
pub(crate) fn take() -> BytesMut {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Gives a buffer back; what is in it is lost.
pub(crate) fn give_back(mut buffer: BytesMut) {
    buffer.clear();
    if USEFUL.contains(&buffer.capacity()) {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < COUNT {
                spare.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_few_buffers_and_none_that_is_large() {
        for capacity in [100, 100 << 10, 2 << 10, 3 << 10, 4 << 10] {
            give_back(BytesMut::with_capacity(capacity));
        }
        let kept = [take(), take(), take()].map(|buffer| buffer.capacity() >> 10);
        assert_eq!(kept, [3, 2, 0]);
    }
}
