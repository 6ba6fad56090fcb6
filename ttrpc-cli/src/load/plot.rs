//! Pictures of a load.

use std::time::Duration;

use hdrhistogram::Histogram;
use plotters::{coord::Shift, prelude::*};

use super::{
    measured::{Measured, nanos},
    plan::Pace,
    timeline::Slot,
};
use crate::failure::Failure;

const SIZE: (u32, u32) = (800, 480);

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Latencies by percentile, as SVG. Percentiles stand as "one call in so many is slower".
///
/// # Errors
/// If it cannot be drawn.
pub fn percentiles(measured: &Measured) -> Result<String, Failure> {
    svg(|area| draw_percentiles(area, measured))
}

/// Calls a second over the time of the load, as SVG.
///
/// # Errors
/// If it cannot be drawn.
pub fn rates(measured: &Measured) -> Result<String, Failure> {
    let per_second = measured.timeline.len.as_secs_f64().max(1e-9);
    let of = |count: fn(&Slot) -> u64| {
        let slots = measured.timeline.slots.iter();
        slots.map(|slot| count(slot) as f64 / per_second).collect()
    };
    let lines: [(&str, RGBColor, Vec<f64>); 2] = [
        ("succeeded", BLUE, of(|slot| slot.latency.len())),
        ("failed", RED, of(|slot| slot.failed)),
    ];
    svg(|area| draw_timeline(area, measured, "calls a second", &lines, |rate| format!("{rate:.0}")))
}

/// Latencies over the time of the load, as SVG.
///
/// # Errors
/// If it cannot be drawn.
pub fn latencies(measured: &Measured) -> Result<String, Failure> {
    let of = |percentile| {
        measured.timeline.slots.iter().map(|slot| slot.percentile(percentile) as f64).collect()
    };
    let lines: [(&str, RGBColor, Vec<f64>); 2] =
        [("50 %", BLUE, of(50.0)), ("99 %", RED, of(99.0))];
    svg(|area| draw_timeline(area, measured, "latency", &lines, |value| nanos(*value as u64)))
}

fn svg(draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn) -> Result<String, Failure> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&area));
    let drawn = drawn.and_then(|()| Ok(area.present()?));
    drawn.map_err(|error| Failure::Other(format!("the picture cannot be drawn: {error}")))?;
    drop(area);
    Ok(text)
}

fn draw_percentiles(area: &DrawingArea<SVGBackend<'_>, Shift>, measured: &Measured) -> Drawn {
    let is_open = matches!(measured.plan.pace, Pace::Open { .. });
    let (latency, service_time) = (points(&measured.latency), points(&measured.service_time));
    let last = (measured.latency.len() as f64).max(10.0);
    let low = measured.service_time.min().max(1) as f64 / 1.2;
    let high = measured.latency.max() as f64 * 1.2;
    let mut chart = ChartBuilder::on(area)
        .caption(measured.plan.name(), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d((1.0..last).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("one call in so many is slower")
        .y_desc("latency")
        .x_label_formatter(&|count| format!("{count:.0}"))
        .y_label_formatter(&|value| nanos(*value as u64))
        .draw()?;
    let mut line = |points, name: &str, colour: RGBColor| {
        let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        series.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    if is_open {
        line(latency, "since each call was due", RED)?;
    }
    line(service_time, "since each call began", BLUE)?;
    legend(&mut chart.configure_series_labels())
}

fn draw_timeline(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    measured: &Measured,
    name: &str,
    lines: &[(&str, RGBColor, Vec<f64>)],
    label: fn(&f64) -> String,
) -> Drawn {
    let len = measured.timeline.len.as_secs_f64();
    let values = lines.iter().flat_map(|(_, _, values)| values).copied();
    let high = values.fold(1.0, f64::max) * 1.1;
    let whole = (measured.timeline.slots.len() as f64 * len).max(1e-9);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..whole, 0.0..high)?;
    let time = |seconds: &f64| crate::output::duration(Duration::from_secs_f64(seconds.max(0.0)));
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("time").y_desc(name).x_label_formatter(&time).y_label_formatter(&label).draw()?;
    for (name, colour, values) in lines {
        let colour = *colour;
        // Each slot is a step.
        let step = |(at, value): (usize, &f64)| {
            [(at as f64 * len, *value), ((at + 1) as f64 * len, *value)]
        };
        let points: Vec<_> = values.iter().enumerate().flat_map(step).collect();
        let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        series.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    legend(&mut chart.configure_series_labels())
}

fn legend<'a, 'b, C: CoordTranslate>(
    labels: &mut plotters::chart::SeriesLabelStyle<'a, 'b, SVGBackend<'a>, C>,
) -> Drawn {
    labels
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// For each quantile q, 1 / (1 - q) and the latency there.
fn points(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    times
        .iter_quantiles(5)
        .map(|step| {
            let beyond = (1.0 - step.quantile_iterated_to()).max(1.0 / times.len() as f64);
            (1.0 / beyond, step.value_iterated_to() as f64)
        })
        .collect()
}
