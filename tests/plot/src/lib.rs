//! Pictures of benchmarks and long runs, as SVG.

use std::{error::Error, io};

use plotters::{
    coord::{Shift, ranged1d::AsRangedCoord, ranged1d::ValueFormatter},
    prelude::*,
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 760;
const PANEL_HEIGHT: u32 = 320;
const TITLE_HEIGHT: u32 = 36;

/// Colours that people who see few of them can tell apart (Okabe and Ito), and that show on white.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    BLACK,
];

/// A line, from left to right.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name in the legend.
    pub name: &'static str,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// Lines with the same axes.
#[derive(Clone, Debug)]
pub struct Panel<'a> {
    /// The unit of the x axis.
    pub x: &'a str,
    /// The unit of the y axis.
    pub y: &'a str,
    /// The scale of both axes.
    pub scale: Scale,
    /// The lines.
    pub curves: &'a [Curve],
}

/// The scale of a panel's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// What grows in proportion is a straight line. Zero stands where one half would.
    Logarithmic,
}

/// Draws panels, one above the other.
///
/// # Errors
/// If plotters cannot draw them.
pub fn svg(title: &str, panels: &[Panel<'_>]) -> io::Result<String> {
    let mut text = String::new();
    draw(&mut text, title, panels).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(text)
}

fn draw(text: &mut String, title: &str, panels: &[Panel<'_>]) -> Result<(), Box<dyn Error>> {
    let size = (WIDTH, TITLE_HEIGHT + PANEL_HEIGHT * panels.len() as u32);
    let area = SVGBackend::with_string(text, size).into_drawing_area();
    area.fill(&WHITE)?;
    let rest = area.titled(title, ("sans-serif", 16))?;
    for (panel, area) in panels.iter().zip(rest.split_evenly((panels.len(), 1))) {
        draw_panel(&area, panel)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel<'_>) -> Result<(), Box<dyn Error>> {
    let points = || panel.curves.iter().flat_map(|curve| &curve.points);
    let (x, y) = (highest(points().map(|point| point.0)), highest(points().map(|point| point.1)));
    // The legend has the space above the lines.
    match panel.scale {
        Scale::Linear => draw_curves(area, panel, 0.0..x, 0.0..y * 1.4),
        Scale::Logarithmic => {
            let x = (lowest(points().map(|point| point.0))..x).log_scale();
            let y = (lowest(points().map(|point| point.1)) / 1.5..y * 4.0).log_scale();
            draw_curves(area, panel, x, y)
        }
    }
}

fn draw_curves<X, Y>(area: &Area<'_>, panel: &Panel<'_>, x: X, y: Y) -> Result<(), Box<dyn Error>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc(panel.x)
        .y_desc(panel.y)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    let lowest = if panel.scale == Scale::Linear { 0.0 } else { 0.5 };
    for (curve, colour) in panel.curves.iter().zip(COLOURS.into_iter().cycle()) {
        let points = curve.points.iter().map(|&(x, y)| (x.max(lowest), y.max(lowest)));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// The end of an axis: above zero, also without values.
fn highest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(1.0, f64::max)
}

/// The start of a logarithmic axis.
fn lowest(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value.max(0.5)).reduce(f64::min).unwrap_or(0.5)
}

/// 1000 as 1k, a million as 1M.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        1e6.. => (value / 1e6, "M"),
        1e3.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    format!("{}{unit}", (value * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_names_its_curves_and_units_on_both_scales() {
        let curves = [
            Curve { name: "ours", points: vec![(1.0, 0.0), (64.0, 5e5)] },
            Curve { name: "empty", points: Vec::new() },
        ];
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let panel = Panel { x: "callers", y: "calls/s", scale, curves: &curves };
            let svg = svg("Load", &[panel.clone(), panel]).unwrap();
            for text in ["Load", "ours", "callers", "calls/s"] {
                assert!(svg.contains(text), "{text} is missing");
            }
            assert!(svg.trim_end().ends_with("</svg>"));
        }
    }

    #[test]
    fn a_single_point_can_be_drawn() {
        let curves = [Curve { name: "one", points: vec![(1.0, 1.0)] }];
        for scale in [Scale::Linear, Scale::Logarithmic] {
            svg("One", &[Panel { x: "x", y: "y", scale, curves: &curves }]).unwrap();
        }
    }

    #[test]
    fn large_numbers_are_short() {
        assert_eq!([0.5, 640.0, 1500.0, 2e6].map(short), ["0.5", "640", "1.5k", "2M"]);
    }
}
