//! What is measured beside the time: CPU of both processes, and allocations.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use nix::{time::ClockId, unistd::Pid};

use crate::Options;

/// Gives allocations and allocated bytes since the process started.
type CountAllocations = fn() -> (u64, u64);

static COUNT_ALLOCATIONS: OnceLock<CountAllocations> = OnceLock::new();

/// Says how allocations and allocated bytes are counted, in a build whose allocator counts.
pub fn count_allocations_with(count: CountAllocations) {
    COUNT_ALLOCATIONS.get_or_init(|| count);
}

/// Allocations and allocated bytes so far; zeros in a build that does not count.
pub(crate) fn allocations() -> (u64, u64) {
    COUNT_ALLOCATIONS.get().map_or((0, 0), |count| count())
}

/// What was used up since the measurement started.
pub(crate) struct Meter {
    server_pid: Option<i32>,
    started: Instant,
    client_cpu: Duration,
    server_cpu: Duration,
    allocations: (u64, u64),
}

impl Meter {
    pub(crate) fn start(options: &Options) -> Self {
        Meter {
            server_pid: options.server_pid,
            server_cpu: server_cpu(options.server_pid),
            client_cpu: client_cpu(),
            allocations: allocations(),
            started: Instant::now(),
        }
    }

    /// Prints what was measured: `name=value` pairs on one line.
    ///
    /// `units` are calls or messages; `nanos` their durations, where they were taken.
    pub(crate) fn report(self, options: &Options, units: usize, mut nanos: Vec<u32>) {
        let seconds = self.started.elapsed().as_secs_f64();
        let client_cpu = client_cpu() - self.client_cpu;
        let server_cpu = server_cpu(self.server_pid) - self.server_cpu;
        let (count, bytes) = allocations();
        let per_unit = |amount: f64| amount / units as f64;
        nanos.sort_unstable();
        let fields = [
            ("units", units as f64),
            ("seconds", seconds),
            ("per_second", units as f64 / seconds),
            ("megabytes_per_second", (units * options.size) as f64 / seconds / 1e6),
            ("p50_us", quantile_us(&nanos, 0.5)),
            ("p99_us", quantile_us(&nanos, 0.99)),
            ("p999_us", quantile_us(&nanos, 0.999)),
            ("longest_us", nanos.last().map_or(0.0, |nanos| f64::from(*nanos) / 1e3)),
            ("client_cpu_us", per_unit(client_cpu.as_secs_f64() * 1e6)),
            ("server_cpu_us", per_unit(server_cpu.as_secs_f64() * 1e6)),
            ("client_allocations", per_unit((count - self.allocations.0) as f64)),
            ("client_allocated_bytes", per_unit((bytes - self.allocations.1) as f64)),
        ];
        println!("{}", fields.map(|(name, value)| format!("{name}={value}")).join(" "));
    }
}

/// The value below which this part of the sorted values lies, in microseconds.
fn quantile_us(sorted_nanos: &[u32], part: f64) -> f64 {
    let index = (sorted_nanos.len() as f64 * part) as usize;
    sorted_nanos.get(index).map_or(0.0, |nanos| f64::from(*nanos) / 1e3)
}

fn client_cpu() -> Duration {
    ClockId::CLOCK_PROCESS_CPUTIME_ID.now().expect("a process has a CPU clock").into()
}

/// CPU time of another process.
fn server_cpu(pid: Option<i32>) -> Duration {
    let Some(pid) = pid else { return Duration::ZERO };
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).expect("the server runs");
    clock.now().expect("the server runs").into()
}
