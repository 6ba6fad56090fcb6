//! Latencies by percentile, as a picture.

use hdrhistogram::Histogram;
use plotters::prelude::*;

use super::{
    measured::{Measured, nanos},
    run::Pace,
};
use crate::failure::Failure;

const SIZE: (u32, u32) = (800, 480);

/// The picture as SVG. Percentiles stand as "one call in so many is slower".
///
/// # Errors
/// If it cannot be drawn.
pub fn svg(measured: &Measured) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, measured)
        .map_err(|error| Failure::Other(format!("the picture cannot be drawn: {error}")))?;
    Ok(text)
}

fn draw(text: &mut String, measured: &Measured) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let is_open = matches!(measured.plan.pace, Pace::Open { .. });
    let (latency, service_time) = (points(&measured.latency), points(&measured.service_time));
    let last = (measured.latency.len() as f64).max(10.0);
    let low = measured.service_time.min().max(1) as f64 / 1.2;
    let high = measured.latency.max() as f64 * 1.2;
    let mut chart = ChartBuilder::on(&area)
        .caption(&measured.plan.name, ("sans-serif", 18))
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
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    drop(chart);
    drop(area);
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
