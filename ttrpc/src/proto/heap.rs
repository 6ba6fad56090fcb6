//! What an allocation costs: more than the bytes that were asked for.

/// What the allocator adds to a block, with what it rounds up: glibc's blocks have a header of 8 bytes and are multiples
/// of 16.
pub(crate) const HEAP_HEADER: usize = 16;

/// The smallest block of glibc's allocator.
const SMALLEST_BLOCK: usize = 32;

/// Bytes of memory that an allocation of this length takes. Nothing is allocated for nothing.
///
/// Other allocators take less for short blocks, and up to a quarter more for some lengths above.
pub(crate) const fn heap_cost(len: usize) -> usize {
    match len {
        0 => 0,
        1..=24 => SMALLEST_BLOCK,
        _ => (len + 8).next_multiple_of(16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_a_header_and_is_rounded_up() {
        let costs = [0, 1, 15, 16, 17, 24, 25, 31, 33, 40, 41].map(heap_cost);
        assert_eq!(costs, [0, 32, 32, 32, 32, 32, 48, 48, 48, 48, 64]);
    }
}
