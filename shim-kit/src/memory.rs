//! Memory that a burst has freed goes back to the system.

/// Gives back the pages that are free in the middle of glibc's heap, which it keeps by itself. Takes
/// about a millisecond; for when a burst is over. Other allocators do this unasked.
#[allow(unsafe_code, reason = "the standard library does not speak of its allocator")]
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called at any time, from any thread (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}
