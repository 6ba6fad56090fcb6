//! What the server and this process use, sampled, drawn, and judged.

use std::{fs, io, path::Path, time::Duration};

use ttrpc_plot::{Curve, Panel, Scale};
use ttrpc_tests::{
    conformance::{ConformanceClient, Empty, StatsResponse},
    harness::alive_tasks,
    process::{Process, Usage},
    trend::Trend,
};

use crate::load::{GENEROUS, unexpected};

/// One look at both processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) server: Usage,
    pub(crate) stats: StatsResponse,
    own: Usage,
    own_tasks: usize,
}

/// A figure, read from a sample.
type Figure = fn(&Sample) -> f64;

/// The figures that must not rise, with the room that each is given: what it may grow by, besides a
/// tenth, since the load is random. See [`Trend::rises`].
const FIGURES: [(&str, Figure, f64); 7] = [
    ("server, resident MiB", |sample| mebibytes(sample.server.memory), 2.0),
    ("clients, resident MiB", |sample| mebibytes(sample.own.memory), 2.0),
    ("server, descriptors", |sample| sample.server.descriptors as f64, 10.0),
    ("clients, descriptors", |sample| sample.own.descriptors as f64, 10.0),
    ("server, tasks", |sample| sample.stats.tasks_alive as f64, 50.0),
    ("server, calls in flight", |sample| sample.stats.calls_in_flight as f64, 50.0),
    ("clients, tasks", |sample| sample.own_tasks as f64, 50.0),
];

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Samples, in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    /// Takes one more.
    ///
    /// # Errors
    /// If the server does not tell.
    pub(crate) async fn take(
        &mut self,
        server: &Process,
        conformance: &ConformanceClient,
    ) -> Result<Sample, String> {
        let stats = conformance.stats(Empty {}).timeout(GENEROUS).await;
        let text = |error: io::Error| format!("the server is gone: {error}");
        let sample = Sample {
            stats: stats.map_err(unexpected("a call for figures"))?,
            server: server.usage().map_err(text)?,
            own: Usage::of_this_process().map_err(text)?,
            own_tasks: alive_tasks(),
        };
        self.0.push(sample);
        Ok(sample)
    }

    fn values(&self, figure: Figure) -> Vec<f64> {
        self.0.iter().map(figure).collect()
    }

    /// Prints how each figure went, and says which of them rose.
    pub(crate) fn judge(&self) -> Vec<&'static str> {
        let mut rising = Vec::new();
        println!("{:26} {:>12} {:>12} {:>8}", "median of", "third eighth", "last eighth", "peak");
        for (name, figure, room) in FIGURES {
            let values = self.values(figure);
            let trend = Trend::of(&values);
            let (early, late) = trend.ends();
            let peak = values.iter().copied().fold(0.0, f64::max);
            println!("{name:26} {early:>12.1} {late:>12.1} {peak:>8.1}");
            if trend.rises(room) {
                rising.push(name);
            }
        }
        rising
    }

    /// Writes a drawing of the samples.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn plot(&self, file: &Path, elapsed: Duration) -> io::Result<()> {
        let minutes = elapsed.as_secs_f64() / 60.0;
        let curve = |name, index: usize| {
            let (_, figure, _) = FIGURES[index];
            Curve { name, points: columns(&self.values(figure), minutes) }
        };
        let memory = [curve("server", 0), curve("clients", 1)];
        let descriptors = [curve("server", 2), curve("clients", 3)];
        let work =
            [curve("server's tasks", 4), curve("server's calls", 5), curve("clients' tasks", 6)];
        let panels = [
            ("resident memory, MiB", &memory[..]),
            ("descriptors", &descriptors),
            ("tasks, and calls in flight", &work),
        ]
        .map(|(y, curves)| Panel { x: "minutes", y, scale: Scale::Linear, curves });
        let title = format!("ttrpc-soak, {minutes:.0} minutes: the highest value of each moment");
        fs::write(file, ttrpc_plot::svg(&title, &panels)?)
    }
}

/// Columns that are drawn; of what falls into one, the highest value is.
const COLUMNS: usize = 500;

/// The values over the minutes of a run, as points.
fn columns(values: &[f64], minutes: f64) -> Vec<(f64, f64)> {
    let column = values.len().div_ceil(COLUMNS).max(1);
    let width = minutes * column as f64 / values.len().max(1) as f64;
    let highest = values.chunks(column).map(|chunk| chunk.iter().copied().fold(0.0, f64::max));
    highest.enumerate().map(|(index, value)| (width * index as f64, value)).collect()
}
