//! The smallest server: what size and memory are measured of.

fn main() {
    bench_load::serve_blocking_alone::<contender_ttrpc_rust_sync::TtrpcRustSync>();
}
