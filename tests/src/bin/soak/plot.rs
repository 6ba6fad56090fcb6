//! Samples as SVG: one drawing above the other, over the same time.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const PANEL: f64 = 210.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 34.0;

/// Colours that people who see few of them can tell apart (Okabe and Ito), and that show on white.
const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];

/// Columns that are drawn; of what falls into one, the highest value is.
const COLUMNS: usize = 500;

/// One line.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<f64>,
}

/// Lines of the same unit.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) curves: Vec<Curve>,
}

/// The drawing of all panels; the samples go over this many minutes.
pub(crate) fn to_svg(title: &str, minutes: f64, panels: &[Panel]) -> String {
    let height = TOP + PANEL * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    put_text(&mut svg, [LEFT, 20.0], "start", title);
    for (index, panel) in panels.iter().enumerate() {
        put_panel(&mut svg, panel, TOP + PANEL * index as f64, minutes);
    }
    svg.push_str("</svg>\n");
    svg
}

fn put_panel(svg: &mut String, panel: &Panel, top: f64, minutes: f64) {
    let (above, below) = (top + 22.0, top + PANEL - BOTTOM);
    let values = panel.curves.iter().flat_map(|curve| &curve.values);
    let step = tick_step(values.copied().fold(1.0, f64::max));
    let highest = step * (values_max(panel) / step).ceil().max(1.0);
    let y = |value: f64| below - (below - above) * value / highest;
    put_text(svg, [LEFT, above - 8.0], "start", panel.title);
    for tick in 0..=(highest / step).round() as u32 {
        let value = step * f64::from(tick);
        put_line(svg, [LEFT, y(value), WIDTH - RIGHT, y(value)]);
        put_text(svg, [LEFT - 6.0, y(value) + 4.0], "end", &format!("{value}"));
    }
    for part in 0..=4 {
        let at = LEFT + (WIDTH - RIGHT - LEFT) * f64::from(part) / 4.0;
        let minute = minutes * f64::from(part) / 4.0;
        put_text(svg, [at, below + 16.0], "middle", &format!("{minute:.1} min"));
    }
    for (index, curve) in panel.curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        put_curve(svg, &curve.values, colour, y);
        let at = [WIDTH - RIGHT + 10.0, above + 16.0 * index as f64 + 8.0];
        let _ = write!(svg, "<g fill=\"{colour}\">");
        put_text(svg, at, "start", curve.name);
        svg.push_str("</g>\n");
    }
}

fn values_max(panel: &Panel) -> f64 {
    panel.curves.iter().flat_map(|curve| &curve.values).copied().fold(0.0, f64::max)
}

/// A round number of which a few make up the highest value.
fn tick_step(highest: f64) -> f64 {
    let power = 10_f64.powf((highest / 4.0).max(1.0).log10().floor());
    let steps = [power, 2.0 * power, 5.0 * power, 10.0 * power];
    steps.into_iter().find(|step| highest / step <= 5.0).unwrap_or(10.0 * power)
}

fn put_curve(svg: &mut String, values: &[f64], colour: &str, y: impl Fn(f64) -> f64) {
    let column = values.len().div_ceil(COLUMNS).max(1);
    let columns: Vec<f64> =
        values.chunks(column).map(|chunk| chunk.iter().copied().fold(0.0, f64::max)).collect();
    let width = (WIDTH - RIGHT - LEFT) / (columns.len().max(2) - 1) as f64;
    let place = |(index, value): (usize, &f64)| {
        format!("{:.1},{:.1}", LEFT + width * index as f64, y(*value))
    };
    let points: Vec<_> = columns.iter().enumerate().map(place).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\"/>",
        points.join(" ")
    );
}

fn put_line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>"
    );
}

fn put_text(svg: &mut String, [x, y]: [f64; 2], anchor: &str, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}
