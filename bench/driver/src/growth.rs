//! How throughput grows with calls in flight, connections and payload, drawn as curves.

use std::{fs, io};

use ttrpc_plot::{Curve, Panel, Scale};

use crate::{
    bench::Bench,
    plan::{Contender, Cpus},
    process::move_to,
    report::{Report, median, number},
};

/// Bytes of the largest payload: a frame of 4 MiB, which is the protocol's limit, has to hold the
/// names of service and method too.
const LARGEST: u32 = (4 << 20) - 256;

pub(crate) const CALLS_IN_FLIGHT: &str = "Calls in flight on one connection, 64 bytes";
pub(crate) const CONNECTIONS: &str = "Connections with one call in flight each, 64 bytes";

/// One axis along which load grows.
struct Axis {
    title: &'static str,
    /// The end of the drawing's file name.
    file: &'static str,
    points: &'static [u32],
    /// The client's options at a point.
    options: fn(u32) -> Vec<String>,
    figure: &'static str,
    unit: &'static str,
}

fn option(name: &str, value: u32) -> [String; 2] {
    [name.to_owned(), value.to_string()]
}

static AXES: [Axis; 3] = [
    Axis {
        title: CALLS_IN_FLIGHT,
        file: "in-flight.svg",
        points: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
        options: |count| option("--in-flight", count).to_vec(),
        figure: "per_second",
        unit: "calls/s",
    },
    Axis {
        title: CONNECTIONS,
        file: "connections.svg",
        points: &[1, 3, 10, 30, 100, 300, 1000],
        options: |count| [option("--in-flight", count), option("--connections", count)].concat(),
        figure: "per_second",
        unit: "calls/s",
    },
    Axis {
        title: "Bytes of payload, 4 calls in flight",
        file: "payload.svg",
        points: &[0, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, LARGEST],
        options: |size| [option("--in-flight", 4), option("--size", size)].concat(),
        figure: "per_second",
        unit: "calls/s",
    },
];

/// Adds tables and, beside the report's file, drawings.
pub(crate) fn measure(bench: &mut Bench) -> io::Result<()> {
    move_to(Cpus::One);
    bench.report.heading(2, "Growth");
    bench.report.text("Both processes on one CPU, two workers each.\n");
    for axis in &AXES {
        let mut curves = Vec::new();
        for contender in bench.drawn() {
            eprintln!("{}: {}", axis.title, contender.name);
            let mut points = Vec::new();
            for &at in axis.points {
                if let Some(value) = measure_point(bench, contender, axis, at)? {
                    points.push((f64::from(at), value));
                }
            }
            curves.push(Curve { name: contender.name, points });
        }
        bench.goals.add_curves(axis.title, &curves);
        add_axis(axis, &curves, &mut bench.report)?;
    }
    Ok(())
}

fn measure_point(
    bench: &Bench,
    contender: &Contender,
    axis: &Axis,
    at: u32,
) -> io::Result<Option<f64>> {
    let mut options = (axis.options)(at);
    options.extend(option("--millis", bench.pace.millis / 2));
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let runs = bench.runs(bench.pace.rounds.div_ceil(2), contender, &options)?;
    Ok(median(runs.iter().filter_map(|run| run.get(axis.figure))))
}

fn add_axis(axis: &Axis, curves: &[Curve], report: &mut Report) -> io::Result<()> {
    report.heading(3, &format!("{}: {}", axis.title, axis.unit));
    if let Some(path) = report.beside(axis.file) {
        let panel = Panel { x: axis.title, y: axis.unit, scale: Scale::Logarithmic, curves };
        let picture = ttrpc_plot::svg(axis.title, &[panel])?;
        fs::write(&path, picture)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        report.text(&format!("![{}]({name})\n", axis.title));
    }
    let mut head = vec![String::new()];
    head.extend(axis.points.iter().map(u32::to_string));
    let mut rows = vec![head];
    for curve in curves {
        let mut row = vec![curve.name.to_owned()];
        row.extend(axis.points.iter().map(|&at| {
            let point = curve.points.iter().find(|point| point.0 == f64::from(at));
            number(point.map(|point| point.1))
        }));
        rows.push(row);
    }
    report.table(&rows);
    Ok(())
}
