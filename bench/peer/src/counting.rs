//! The same as `bench-peer`, counting allocations.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    bench_load::count_allocations_with(count);
    bench_peer::run_contender();
}

/// Allocations and allocated bytes so far. One that grows in place or moves counts again, with the
/// bytes by which it grew.
fn count() -> (u64, u64) {
    let stats = ALLOCATOR.stats();
    let count = stats.allocations + stats.reallocations;
    (count as u64, stats.bytes_allocated as u64)
}
