//! Curves as SVG, both axes logarithmic: what grows in proportion is a straight line.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// Colours that people who see few of them can tell apart (Okabe and Ito), and that show on white.
const COLOURS: [&str; 5] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000"];

/// One contender's points, from left to right.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A drawing of several curves.
pub(crate) struct Plot<'a> {
    pub(crate) title: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) curves: &'a [Curve],
}

/// A logarithmic axis, from its first value to its last. Zero, which has no logarithm, stands where
/// one half would.
struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

fn logarithm(value: f64) -> f64 {
    value.max(0.5).log10()
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (from, to) = values
            .map(logarithm)
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        // A single value would leave nothing to divide by.
        let to = if to > from { to } else { from + 1.0 };
        Scale { from, to, start, end }
    }

    fn place(&self, value: f64) -> f64 {
        let part = (logarithm(value) - self.from) / (self.to - self.from);
        self.start + part * (self.end - self.start)
    }

    /// The powers of ten between the ends.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        (self.from.ceil() as i32..=self.to.floor() as i32).map(|exponent| 10_f64.powi(exponent))
    }
}

impl Plot<'_> {
    /// The drawing.
    pub(crate) fn to_svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = Scale::new(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Scale::new(points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        put_text(&mut svg, WIDTH / 2.0, 22.0, "middle", self.title);
        put_text(&mut svg, LEFT - 8.0, TOP - 10.0, "end", self.unit);
        for value in x.ticks() {
            let at = x.place(value);
            put_line(&mut svg, [at, TOP, at, HEIGHT - BOTTOM]);
            put_text(&mut svg, at, HEIGHT - BOTTOM + 18.0, "middle", &short(value));
        }
        for value in y.ticks() {
            let at = y.place(value);
            put_line(&mut svg, [LEFT, at, WIDTH - RIGHT, at]);
            put_text(&mut svg, LEFT - 8.0, at + 4.0, "end", &short(value));
        }
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            put_curve(&mut svg, curve, colour, &x, &y);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn put_curve(svg: &mut String, curve: &Curve, colour: &str, x: &Scale, y: &Scale) {
    let places: Vec<_> =
        curve.points.iter().map(|point| (x.place(point.0), y.place(point.1))).collect();
    let Some(last) = places.last() else { return };
    let line: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    put(
        svg,
        format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <g fill=\"{colour}\">",
            line.join(" ")
        ),
    );
    for (x, y) in &places {
        put(svg, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"));
    }
    put_text(svg, last.0 + 8.0, last.1 + 4.0, "start", curve.name);
    svg.push_str("</g>\n");
}

fn put_line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    put(
        svg,
        format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>\n"
        ),
    );
}

fn put_text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    put(
        svg,
        format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"),
    );
}

fn put(svg: &mut String, arguments: std::fmt::Arguments<'_>) {
    svg.write_fmt(arguments).expect("a string takes everything");
}

/// 1000 as 1k, a million as 1M.
fn short(value: f64) -> String {
    match value {
        1e6.. => format!("{}M", value / 1e6),
        1e3.. => format!("{}k", value / 1e3),
        _ => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_logarithmic_and_has_powers_of_ten_for_ticks() {
        let scale = Scale::new([1.0, 10_000.0].into_iter(), 0.0, 400.0);
        assert_eq!(scale.place(100.0), 200.0);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        assert!(scale.place(0.0) < scale.place(1.0));
    }

    #[test]
    fn a_drawing_names_its_curves() {
        let curves = [Curve { name: "ours", points: vec![(1.0, 5e4), (64.0, 5e5)] }];
        let svg = Plot { title: "Load", unit: "calls/s", curves: &curves }.to_svg();
        assert!(svg.contains(">ours</text>") && svg.ends_with("</svg>\n"));
    }
}
