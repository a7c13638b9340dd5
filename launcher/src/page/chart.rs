//! Line charts as inline SVG: no script, no network, colours from the page's style sheet.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::numbers::short;

/// Points of a curve at most.
const MOST_POINTS: usize = 2000;

/// The picture, in units that the page scales: whole, and the part that curves are drawn in.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 350.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 160.0;

/// Intervals between grid lines, about.
const INTERVALS: f64 = 5.0;

/// Curves over one axis.
pub(super) struct Chart<'a> {
    /// What is shown.
    pub(super) title: &'a str,
    /// The unit along the horizontal axis.
    pub(super) along: &'a str,
    /// The curves.
    pub(super) lines: Vec<Line<'a>>,
    /// Places along the axis at which something happened.
    pub(super) marks: Vec<f64>,
}

/// A curve.
pub(super) struct Line<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// `(along, value)` in ascending order; what is no number is left out.
    pub(super) points: Vec<(f64, f64)>,
}

impl Chart<'_> {
    /// The chart with its legend and its numbers in words; nothing, if no curve has a point.
    pub(super) fn figure(mut self) -> Option<Markup> {
        for line in &mut self.lines {
            line.points.retain(|(x, y)| x.is_finite() && y.is_finite());
        }
        self.lines.retain(|line| !line.points.is_empty());
        let frame = Frame::around(&self.lines)?;
        let label = self.lines.iter().map(Line::words).collect::<Vec<_>>().join("; ");
        Some(html! {
            figure {
                figcaption { (self.title) }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(format!("{}: {label}", self.title)) {
                    (frame.grid(self.along))
                    @for mark in &self.marks { (frame.mark(*mark)) }
                    @for (place, line) in self.lines.iter().enumerate() { (frame.curve(place, line)) }
                }
                ul class="legend" {
                    @for (place, line) in self.lines.iter().enumerate() {
                        li { span class=(format!("key c{place}")) {} (line.words()) }
                    }
                }
            }
        })
    }
}

impl Line<'_> {
    /// `loss: 5.2 first, 0.55 last, 0.54 to 5.2`.
    fn words(&self) -> String {
        let values = || self.points.iter().map(|(_, y)| *y);
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        let first = values().next().unwrap_or_default();
        let last = values().next_back().unwrap_or_default();
        let name = self.name;
        if low == high {
            return format!("{name}: {} throughout", short(low));
        }
        format!("{name}: {} first, {} last, {} to {}", short(first), short(last), short(low), short(high))
    }
}

/// The axes.
struct Frame {
    x: Axis,
    y: Axis,
}

impl Frame {
    fn around(lines: &[Line<'_>]) -> Option<Frame> {
        let points = || lines.iter().flat_map(|line| &line.points);
        points().next()?;
        let span = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
        };
        let (low, high) = span(&mut points().map(|(_, y)| *y));
        // Curves that come near zero stand on it.
        let low = if low > 0.0 && low < high * 0.6 { 0.0 } else { low };
        Some(Frame { x: Axis::over(span(&mut points().map(|(x, _)| *x))), y: Axis::over((low, high)).rounded() })
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (LEFT + self.x.share(x) * (RIGHT - LEFT), BOTTOM - self.y.share(y) * (BOTTOM - TOP))
    }

    fn grid(&self, along: &str) -> Markup {
        html! {
            @for value in self.y.ticks() {
                @let y = self.place((self.x.low, value)).1;
                line class="grid" x1=(LEFT) x2=(RIGHT) y1=(decimal(y)) y2=(decimal(y)) {}
                text x=(LEFT - 5.0) y=(decimal(y + 3.5)) text-anchor="end" { (short(value)) }
            }
            @for value in self.x.ticks() {
                @let x = self.place((value, self.y.low)).0;
                text x=(decimal(x)) y=(BOTTOM + 14.0) text-anchor="middle" { (short(value)) }
            }
            text x=((LEFT + RIGHT) / 2.0) y=(HEIGHT - 2.0) text-anchor="middle" { (along) }
        }
    }

    fn mark(&self, x: f64) -> Markup {
        let x = self.place((x, self.y.low)).0.clamp(LEFT, RIGHT);
        html! { line class="mark" x1=(decimal(x)) x2=(decimal(x)) y1=(TOP) y2=(BOTTOM) {} }
    }

    fn curve(&self, place: usize, line: &Line<'_>) -> Markup {
        let points: Vec<_> = thinned(&line.points).into_iter().map(|point| self.place(point)).collect();
        if let [(x, y)] = points[..] {
            return html! { circle class=(format!("point c{place}")) cx=(decimal(x)) cy=(decimal(y)) r="2.5" {} };
        }
        let mut path = String::new();
        for (x, y) in points {
            write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' }).expect("text takes any text");
        }
        html! { path class=(format!("curve c{place}")) d=(path) {} }
    }
}

/// A span of numbers with marks at round ones.
struct Axis {
    low: f64,
    high: f64,
    interval: f64,
}

impl Axis {
    /// An axis from the lowest to the highest value; of some width, even if these are the same.
    fn over((low, high): (f64, f64)) -> Axis {
        let width = (high - low).max(low.abs().max(high.abs()) * 1e-6).max(1e-12);
        let raw = width / INTERVALS;
        let power = 10_f64.powf(raw.log10().floor());
        let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|round| round * power >= raw * 0.999).unwrap_or(10.0);
        Axis { low, high: low + width, interval: round * power }
    }

    /// Widened to whole intervals.
    fn rounded(self) -> Axis {
        let Axis { low, high, interval } = self;
        Axis { low: (low / interval).floor() * interval, high: (high / interval).ceil() * interval, interval }
    }

    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    fn ticks(&self) -> Vec<f64> {
        let (first, last) = ((self.low / self.interval - 1e-6).ceil(), (self.high / self.interval + 1e-6).floor());
        let count = (last - first).clamp(0.0, 2.0 * INTERVALS + 2.0) as u32;
        (0..=count).map(|number| (first + f64::from(number)) * self.interval).collect()
    }
}

/// At most [`MOST_POINTS`]: of each stretch its lowest and its highest, so that no peak is lost.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(MOST_POINTS / 2);
    let extremes = |points: &[(f64, f64)]| {
        let places = 0..points.len();
        let lowest = places.clone().min_by(|a, b| points[*a].1.total_cmp(&points[*b].1)).unwrap_or(0);
        let highest = places.max_by(|a, b| points[*a].1.total_cmp(&points[*b].1)).unwrap_or(0);
        [points[lowest.min(highest)], points[lowest.max(highest)]]
    };
    points.chunks(stretch).flat_map(extremes).collect()
}

fn decimal(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(points: Vec<(f64, f64)>) -> Option<String> {
        let lines = vec![Line { name: "loss", points }];
        Chart { title: "Loss", along: "step", lines, marks: vec![1.0] }.figure().map(Markup::into_string)
    }

    #[test]
    fn long_curves_are_thinned_and_keep_their_peaks() {
        let mut points: Vec<_> = (0..1_000_000).map(|step| (f64::from(step), f64::from(step % 7))).collect();
        points[123_456].1 = 99.0;
        points[777_777].1 = -99.0;
        let kept = thinned(&points);
        assert!(kept.len() <= MOST_POINTS && kept.len() > MOST_POINTS / 2, "{}", kept.len());
        assert!(kept.contains(&(123_456.0, 99.0)) && kept.contains(&(777_777.0, -99.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 <= b.0));
        assert_eq!(thinned(&points[..2000]).len(), 2000);
        let svg = drawn(points).unwrap();
        let (_, path) = svg.split_once("d=\"M").unwrap();
        assert_eq!(path.split('"').next().unwrap().split('L').count(), kept.len());
    }

    #[test]
    fn what_is_no_number_is_left_out_and_nothing_leaves_the_frame() {
        assert_eq!(drawn(vec![]), None);
        assert_eq!(drawn(vec![(1.0, f64::NAN), (f64::INFINITY, 1.0)]), None);
        for points in [vec![(0.0, 0.0)], vec![(1e300, -1e300), (1.1e300, 1e300)], vec![(3.0, 5.0), (3.0, 5.0)]] {
            let svg = drawn(points).unwrap();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let frame = Frame::around(&[Line { name: "", points: vec![(10.0, 0.3), (800.0, 5.17)] }]).unwrap();
        assert_eq!(frame.place((10.0, 0.0)), (LEFT, BOTTOM));
        assert!(frame.place((800.0, 5.17)).1 >= TOP);
    }

    #[test]
    fn grid_lines_are_at_round_numbers() {
        assert_eq!(Axis::over((0.0, 5.2)).rounded().ticks(), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(Axis::over((10.0, 800.0)).ticks(), [200.0, 400.0, 600.0, 800.0]);
        assert_eq!(Axis::over((3.0, 3.0)).ticks().len(), 4);
    }
}
