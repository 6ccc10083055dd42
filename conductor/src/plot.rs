//! Reports as drawings, in SVG and as images.

mod png;

use std::fmt::{self, Write};

use crate::grid::{Pair, Point, SplitReport};
use crate::report::{Ending, Record, Report, number};
pub use png::{ImageError, png};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;
/// Lines that divide each axis.
const TICKS: f64 = 5.0;
/// Most points of a distribution that are drawn.
const POINTS_MAX: usize = 400;
/// Told apart in any of the common kinds of colour blindness.
const COLORS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it is called in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A chart of lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis, with its unit.
    pub x_label: String,
    /// The vertical axis, with its unit.
    pub y_label: String,
    /// The lines.
    pub series: Vec<Series>,
}

/// A drawing of the charts, one below the other.
#[must_use]
pub fn svg(charts: &[Chart]) -> String {
    let height = HEIGHT * number(charts.len());
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut top = 0.0;
    for chart in charts {
        chart.draw(&mut out, top);
        top += HEIGHT;
    }
    out.push_str("</svg>\n");
    out
}

/// The times to first token and between tokens of those served, and the load over time.
#[must_use]
pub fn run(report: &Report) -> Vec<Chart> {
    let served = |value: fn(&Record) -> f64| {
        let records = report.records.iter();
        let served = records.filter(|record| record.ending == Ending::Served);
        distribution(served.map(value).collect())
    };
    let line = |name: &str, points| Series {
        name: name.to_owned(),
        points,
    };
    let over_time = |value: fn(&crate::report::Sample) -> f64| {
        let points = report.samples.iter();
        points.map(|sample| (sample.at_s, value(sample))).collect()
    };
    vec![
        Chart {
            title: "Time to first token".to_owned(),
            x_label: "seconds".to_owned(),
            y_label: "share of requests served, to the 99th percentile".to_owned(),
            series: vec![line("TTFT", served(|record| record.ttft_s))],
        },
        Chart {
            title: "Time between tokens, mean of the longest tenth".to_owned(),
            x_label: "milliseconds".to_owned(),
            y_label: "share of requests served, to the 99th percentile".to_owned(),
            series: vec![line("TBT", served(|record| record.tbt_s * 1000.0))],
        },
        Chart {
            title: "Load over time".to_owned(),
            x_label: "seconds".to_owned(),
            y_label: "seconds queued, requests".to_owned(),
            series: vec![
                line("prefill queue", over_time(|s| s.prefill_backlog_s)),
                line("decode batch", over_time(|s| number(s.decode_requests))),
            ],
        },
    ]
}

/// Of each split, good requests and good tokens against load, and the mean time to first token under
/// the fixed objective: ours beside Algorithm 1.
#[must_use]
pub fn grid(reports: &[SplitReport]) -> Vec<Chart> {
    let pair = |title: String, y_label: &str, points: &[Point], pick: fn(&Point) -> Pair| {
        let line = |name: &str, value: fn(Pair) -> f64| Series {
            name: name.to_owned(),
            points: points
                .iter()
                .map(|point| (point.speed_up, value(pick(point))))
                .collect(),
        };
        Chart {
            title,
            x_label: "load, as a multiple of the trace's".to_owned(),
            y_label: y_label.to_owned(),
            series: vec![
                line("ours", |pair| pair.ours),
                line("Algorithm 1", |pair| pair.theirs),
            ],
        }
    };
    let of_split = |report: &SplitReport| {
        let (prefill, decode) = report.split;
        let split = format!("{prefill} prefill and {decode} decode instances");
        let proportional = &report.proportional;
        [
            pair(
                format!("Good requests, {split}"),
                "share, proportional objective",
                proportional,
                |point| point.requests,
            ),
            pair(
                format!("Good tokens, {split}"),
                "share, proportional objective",
                proportional,
                |point| point.tokens,
            ),
            pair(
                format!("Mean time to first token, {split}"),
                "seconds, fixed objective",
                &report.fixed,
                |point| point.ttft_s,
            ),
        ]
    };
    reports.iter().flat_map(of_split).collect()
}

/// The share of values that are not above each value. The greatest hundredth is left out: it would
/// press all others against the axis.
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    let last = count - count / 100;
    let step = count.div_ceil(POINTS_MAX).max(1);
    let ranks = (1..=last).filter(|rank| rank % step == 0 || *rank == last);
    ranks
        .map(|rank| (values[rank - 1], number(rank) / number(count)))
        .collect()
}

/// The distance between ticks, a round number, of an axis that holds `max` in about five steps.
fn round_step(max: f64) -> f64 {
    let rough = if max > 0.0 { max } else { 1.0 } / TICKS;
    let magnitude = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0].map(|round| round * magnitude);
    let step = steps.into_iter().find(|step| *step >= rough * (1.0 - 1e-9));
    step.unwrap_or(10.0 * magnitude)
}

/// Where values lie between two ends of the paper.
#[derive(Clone, Copy, Debug)]
struct Axis {
    step: f64,
    max: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that holds values from 0 to `greatest` and ends at a tick.
    fn new(greatest: f64, from: f64, to: f64) -> Self {
        let step = round_step(greatest);
        let max = step * (greatest / step - 1e-9).ceil().max(1.0);
        Self {
            step,
            max,
            from,
            to,
        }
    }

    /// The values of its ticks.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (step, end) = (self.step, self.max + self.step / 2.0);
        let ticks = (0_u8..=u8::MAX).map(move |tick| f64::from(tick) * step);
        ticks.take_while(move |value| *value < end)
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * value / self.max
    }
}

impl Chart {
    fn draw(&self, out: &mut String, top: f64) {
        let greatest = |value: fn(&(f64, f64)) -> f64| {
            let points = self.series.iter().flat_map(|series| &series.points);
            points.map(value).fold(0.0, f64::max)
        };
        let x = Axis::new(greatest(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Axis::new(greatest(|point| point.1), top + HEIGHT - BOTTOM, top + TOP);
        self.draw_frame(out, x, y);
        for (series, at) in self.series.iter().zip(0_u8..) {
            let color = COLORS[usize::from(at) % COLORS.len()];
            let mut path = String::new();
            for &(across, up) in &series.points {
                add(
                    &mut path,
                    format_args!("{:.1},{:.1} ", x.at(across), y.at(up)),
                );
            }
            add(
                out,
                format_args!(
                    "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>\n",
                    path.trim_end()
                ),
            );
            let (left, line) = (x.to + 12.0, y.to + 10.0 + 18.0 * f64::from(at));
            let name = escaped(&series.name);
            add(
                out,
                format_args!("<text x=\"{left}\" y=\"{line}\" fill=\"{color}\">{name}</text>\n"),
            );
        }
    }

    fn draw_frame(&self, out: &mut String, x: Axis, y: Axis) {
        let text = |out: &mut String, at: (f64, f64), anchor: &str, text: &str| {
            let text = escaped(text);
            add(
                out,
                format_args!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>\n",
                    at.0, at.1
                ),
            );
        };
        let line = |out: &mut String, path: fmt::Arguments<'_>| {
            add(out, format_args!("<path stroke=\"#ddd\" d=\"{path}\"/>\n"));
        };
        for tick in x.ticks() {
            let across = x.at(tick);
            line(out, format_args!("M{across:.1} {:.1}V{:.1}", y.from, y.to));
            text(out, (across, y.from + 16.0), "middle", &shown(tick));
        }
        for tick in y.ticks() {
            let up = y.at(tick);
            line(out, format_args!("M{:.1} {up:.1}H{:.1}", x.from, x.to));
            text(out, (x.from - 6.0, up + 4.0), "end", &shown(tick));
        }
        let middle = f64::midpoint(x.from, x.to);
        text(out, (middle, y.from + 34.0), "middle", &self.x_label);
        let title = format!("{} ({})", self.title, self.y_label);
        text(out, (x.from, y.to - 12.0), "start", &title);
    }
}

/// A tick's value, which is round, in as few digits as it has.
fn shown(value: f64) -> String {
    let digits = format!("{value:.3}");
    digits
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn add(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        Chart {
            title: "a < b & c".to_owned(),
            x_label: "x".to_owned(),
            y_label: "y".to_owned(),
            series: vec![Series {
                name: "one".to_owned(),
                points,
            }],
        }
    }

    #[test]
    fn axes_end_at_round_numbers_that_hold_their_values() {
        let ends = [0.0, 0.99, 1.0, 31.4, 146.0, 291.0, 1170.0];
        let ends = ends.map(|greatest| Axis::new(greatest, 0.0, 1.0).max);
        assert_eq!(ends, [0.2, 1.0, 1.0, 40.0, 150.0, 300.0, 1250.0]);
        let ticks: Vec<f64> = Axis::new(146.0, 0.0, 1.0).ticks().collect();
        assert_eq!(ticks, [0.0, 50.0, 100.0, 150.0]);
    }

    #[test]
    fn the_greatest_point_lies_in_the_corner_of_its_frame() {
        let drawn = svg(&[chart(vec![(0.0, 0.0), (5.0, 10.0)])]);
        let corners = format!(
            "points=\"{LEFT:.1},{:.1} {:.1},{TOP:.1}\"",
            HEIGHT - BOTTOM,
            WIDTH - RIGHT
        );
        assert!(drawn.contains(&corners), "{drawn}");
        assert!(drawn.contains("a &lt; b &amp; c"));
    }

    #[test]
    fn a_chart_of_nothing_is_still_a_drawing() {
        let drawn = svg(&[chart(vec![])]);
        assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"));
        assert!(!drawn.contains("NaN"), "{drawn}");
    }

    #[test]
    fn a_distribution_ends_at_its_99th_percentile_and_is_thinned_out() {
        let points = distribution((0..10_000).map(f64::from).collect());
        assert!(points.len() <= POINTS_MAX + 1);
        assert_eq!(points.last(), Some(&(9_899.0, 0.99)));
        assert!(points.is_sorted_by(|a, b| a.1 < b.1));
        assert_eq!(distribution(vec![3.0]), [(3.0, 1.0)]);
        assert_eq!(distribution(vec![]), []);
    }
}
