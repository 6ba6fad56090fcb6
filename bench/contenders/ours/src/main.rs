//! The smallest server: what size and memory are measured of.

use bench_load::Contender;

fn main() {
    bench_load::serve_alone(contender_ours::Ours::serve);
}
