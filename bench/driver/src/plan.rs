//! Who runs, what they do, and how often.

/// One implementation.
#[derive(Debug)]
pub(crate) struct Contender {
    /// Its name in tables and on the command line.
    pub(crate) name: &'static str,
    /// The crate and program of its smallest server, where size and memory are compared.
    pub(crate) minimal: Option<Minimal>,
    /// Whether it is a program in Go.
    pub(crate) is_go: bool,
    /// Whether it is the project at another commit, whose program `--base` names.
    pub(crate) is_base: bool,
    /// Whether the figures that grow are drawn.
    pub(crate) is_drawn: bool,
    /// Whether it runs only if it is named.
    pub(crate) is_named: bool,
}

impl Contender {
    /// The contender's name on the command line of its program.
    pub(crate) fn argument(&self) -> &'static str {
        if self.is_base { OURS } else { self.name }
    }
}

/// A crate whose program is a server and nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Minimal {
    pub(crate) package: &'static str,
    pub(crate) program: &'static str,
}

const fn contender(name: &'static str) -> Contender {
    Contender {
        name,
        minimal: None,
        is_go: false,
        is_base: false,
        is_drawn: false,
        is_named: false,
    }
}

const fn minimal(package: &'static str, program: &'static str) -> Option<Minimal> {
    Some(Minimal { package, program })
}

/// The name by which the project goes here.
pub(crate) const OURS: &str = "ours";
/// The implementation that the project would replace.
pub(crate) const INCUMBENT: &str = "ttrpc-rust";
/// The floor of a single call.
pub(crate) const FLOOR: &str = "raw-batch";
/// The floor of many calls, and of streams.
pub(crate) const CALLERS_FLOOR: &str = "mux-defer";

/// All contenders, in the order of the tables.
static CONTENDERS: [Contender; 15] = [
    contender("raw-blocking"),
    contender(FLOOR),
    Contender { minimal: minimal("contender-raw", "min-raw"), ..contender("mux-inline") },
    contender("mux-spawn"),
    Contender { is_drawn: true, ..contender(CALLERS_FLOOR) },
    Contender { minimal: minimal("contender-ours", "min-ours"), is_drawn: true, ..contender(OURS) },
    contender("ours-blocking"),
    Contender {
        minimal: minimal("contender-ttrpc-rust", "min-ttrpc-rust"),
        is_drawn: true,
        ..contender(INCUMBENT)
    },
    Contender {
        minimal: minimal("contender-ttrpc-rust-sync", "min-ttrpc-rust-sync"),
        ..contender("ttrpc-rust-sync")
    },
    Contender { minimal: minimal("contender-trapeze", "min-trapeze"), ..contender("trapeze") },
    Contender {
        minimal: minimal("contender-tonic", "min-tonic"),
        is_drawn: true,
        ..contender("tonic")
    },
    Contender { minimal: minimal("contender-tarpc", "min-tarpc"), ..contender("tarpc") },
    Contender { is_go: true, ..contender("go-ttrpc") },
    Contender { is_named: true, ..contender("ours-observed") },
    Contender { is_named: true, ..contender("ours-intercepted") },
];

/// The project at another commit.
pub(crate) static BASE: Contender = Contender { is_base: true, ..contender("base") };

/// The contenders with these names, separated by commas; without, all that need not be named.
pub(crate) fn contenders(only: Option<&str>) -> Result<Vec<&'static Contender>, String> {
    let Some(only) = only else {
        return Ok(CONTENDERS.iter().filter(|contender| !contender.is_named).collect());
    };
    let find = |name: &str| {
        let found = CONTENDERS.iter().find(|contender| contender.name == name);
        found.ok_or_else(|| format!("no contender is called {name:?}"))
    };
    only.split(',').map(find).collect()
}

/// The CPUs that client and server share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cpus {
    /// Both processes are on the same one: what is compared is work.
    One,
    /// All there are: work that overlaps counts too, and so do wake-ups between CPUs.
    All,
}

/// Where the load runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) title: &'static str,
    pub(crate) cpus: Cpus,
    pub(crate) is_current_thread: bool,
}

impl Setting {
    pub(crate) const ALL: [Setting; 3] = [
        Setting {
            title: "Both processes on one CPU, two workers each",
            cpus: Cpus::One,
            is_current_thread: false,
        },
        Setting { title: "All CPUs, two workers each", cpus: Cpus::All, is_current_thread: false },
        Setting {
            title: "Both processes on one CPU, current-thread runtime",
            cpus: Cpus::One,
            is_current_thread: true,
        },
    ];
}

/// What a client does, and which of its figures is the one to look at.
#[derive(Debug)]
pub(crate) struct Workload {
    /// Its column in tables.
    pub(crate) title: &'static str,
    /// The client's options.
    pub(crate) options: &'static [&'static str],
    /// The figure in the table.
    pub(crate) figure: &'static str,
    /// Whether the options say how many calls there are; otherwise the pace says for how long.
    pub(crate) is_counted: bool,
}

pub(crate) const SEQUENTIAL: &str = "1 call, µs";
pub(crate) const IN_FLIGHT_16: &str = "16 in flight, calls/s";
pub(crate) const IN_FLIGHT_64: &str = "64 in flight, calls/s";
pub(crate) const IN_FLIGHT_256: &str = "256 in flight, calls/s";
pub(crate) const KIB_4: &str = "4 KiB × 64, calls/s";
pub(crate) const MIB_1: &str = "1 MiB × 4, MB/s";
pub(crate) const MIB_2: &str = "64 × 2 MiB, s";
pub(crate) const STREAM: &str = "stream, messages/s";
pub(crate) const PING_PONG: &str = "ping-pong, µs";

const fn timed(
    title: &'static str,
    options: &'static [&'static str],
    figure: &'static str,
) -> Workload {
    Workload { title, options, figure, is_counted: false }
}

const fn counted(
    title: &'static str,
    options: &'static [&'static str],
    figure: &'static str,
) -> Workload {
    Workload { title, options, figure, is_counted: true }
}

/// All workloads, in the order of the tables. 64 bytes unless said.
pub(crate) static WORKLOADS: [Workload; 9] = [
    timed(SEQUENTIAL, &["--in-flight", "1"], "p50_us"),
    timed(IN_FLIGHT_16, &["--in-flight", "16"], "per_second"),
    timed(IN_FLIGHT_64, &["--in-flight", "64"], "per_second"),
    timed(IN_FLIGHT_256, &["--in-flight", "256"], "per_second"),
    timed(KIB_4, &["--in-flight", "64", "--size", "4096"], "per_second"),
    timed(MIB_1, &["--in-flight", "4", "--size", "1048576"], "megabytes_per_second"),
    counted(
        MIB_2,
        &["--in-flight", "64", "--size", "2097152", "--calls", "64", "--warm-up-millis", "0"],
        "seconds",
    ),
    counted(STREAM, &["--workload", "stream", "--calls", "300000"], "per_second"),
    counted(PING_PONG, &["--workload", "ping-pong", "--calls", "10000"], "p50_us"),
];

/// How long everything takes.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Times that each contender runs each workload; the median counts.
    pub(crate) rounds: usize,
    /// Milliseconds of a timed run.
    pub(crate) millis: u32,
}

impl Pace {
    pub(crate) const FULL: Pace = Pace { rounds: 5, millis: 800 };
    pub(crate) const QUICK: Pace = Pace { rounds: 2, millis: 300 };
}
