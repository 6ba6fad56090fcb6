//! Server or client of any contender: `bench-peer server|client --contender NAME --path SOCKET …`.

fn main() {
    bench_peer::run_contender();
}
