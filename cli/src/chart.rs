//! One chart as SVG: lines with markers over two linear axes.
//!
//! Elements have classes, and the page's style gives these colours for light and for dark. The colours in the SVG are those
//! of light pages, for readers that know no style.

use crate::table::escaped;
use std::fmt::Write;

/// Size in CSS pixels: a phone shows the chart at about this size, so that text has the size given here.
const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 236.0;
/// The area of points.
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 38.0;
const RIGHT: f64 = WIDTH - 18.0;

/// Colours of series on light pages, in the order of the classes in style.css. They differ in lightness too, and each has a
/// marker of its own.
const COLOURS: [&str; 8] = ["#0b62b0", "#c8500a", "#00795a", "#a8479a", "#8a6a00", "#4b5563", "#5b4fcf", "#9b1c31"];
/// Forms of markers around (0, 0).
const MARKERS: [&str; 8] = [
    "-4,-4 4,-4 4,4 -4,4",
    "-5,4 0,-5 5,4",
    "0,-6 6,0 0,6 -6,0",
    "-5,-4 0,5 5,-4",
    "-6,-1 6,-1 6,1 -6,1",
    "-1,-6 1,-6 1,6 -1,6",
    "-4,-4 4,4 -4,4 4,-4",
    "-3,-6 3,-6 3,6 -3,6",
];

/// Most series of a chart.
pub const MOST_SERIES: usize = COLOURS.len();

/// A linear axis from 0 on, or from less than the least value, with round ticks.
pub struct Axis {
    name: String,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From at most `from` to at least `to`.
    pub fn new(name: &str, from: f64, to: f64, label: impl Fn(f64) -> String) -> Self {
        let step = step((to - from).max(from.abs() * 1e-6).max(1e-9) / 4.0);
        let (first, last) = ((from / step + 1e-9).floor() as i64, (to / step - 1e-9).ceil() as i64);
        let values = (first..=last.max(first + 1)).map(|i| i as f64 * step);
        Axis { name: name.into(), ticks: values.map(|value| (value, label(value))).collect() }
    }

    /// The share of the axis before a value.
    fn at(&self, value: f64) -> f64 {
        let (from, to) = (self.ticks[0].0, self.ticks[self.ticks.len() - 1].0);
        ((value - from) / (to - from)).clamp(0.0, 1.0)
    }
}

/// The round number at or above `least`: 1, 2, 2.5 or 5 times a power of 10.
fn step(least: f64) -> f64 {
    let power = 10f64.powi((least.log10() + 1e-9).floor() as i32);
    [1.0, 2.0, 2.5, 5.0].into_iter().map(|f| f * power).find(|s| *s >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// Points of one series, in the order of their line.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// A chart with a legend, as the elements of a `figure`. `title` and `description` are for readers that do not see it, too.
pub fn figure(title: &str, description: &str, x: &Axis, y: &Axis, series: &[Series]) -> String {
    let (title, description) = (escaped(title), escaped(description));
    let widest = y.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
    let left = 14.0 + 6.6 * widest as f64;
    let place = |point: (f64, f64)| {
        let (right, up) = (x.at(point.0) * (RIGHT - left), y.at(point.1) * (BOTTOM - TOP));
        format!("{:.1},{:.1}", left + right, BOTTOM - up)
    };
    let mut svg = String::new();
    let mut text = |at: (f64, f64), anchor: &str, class: &str, text: &str| {
        let (x, y) = at;
        // A string takes every text.
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            escaped(text)
        );
    };
    text((2.0, 12.0), "start", "ink", &y.name);
    text((WIDTH - 2.0, HEIGHT - 4.0), "end", "ink", &x.name);
    for (value, label) in &x.ticks {
        text((left + x.at(*value) * (RIGHT - left), BOTTOM + 15.0), "middle", "muted", label);
    }
    let heights = y.ticks.iter().map(|(value, label)| (BOTTOM - y.at(*value) * (BOTTOM - TOP), label));
    for (height, label) in heights.clone() {
        text((left - 5.0, height + 4.0), "end", "muted", label);
    }
    for (height, _) in heights {
        let _ = writeln!(svg, "<path class=\"grid\" stroke=\"#d9dee4\" d=\"M{left:.1} {height:.1}H{RIGHT}\"/>");
    }
    let mut legend = String::new();
    for (i, Series { name, points }) in series.iter().take(MOST_SERIES).enumerate() {
        let (colour, marker) = (COLOURS[i], MARKERS[i]);
        let line: Vec<String> = points.iter().map(|point| place(*point)).collect();
        let _ = writeln!(
            svg,
            "<polyline class=\"s{i}\" stroke=\"{colour}\" fill=\"none\" stroke-width=\"2\" points=\"{}\"/>",
            line.join(" ")
        );
        let mark = |at: &str| {
            format!("<polygon class=\"f{i}\" fill=\"{colour}\" points=\"{marker}\" transform=\"translate({at})\"/>\n")
        };
        svg.extend(line.iter().map(|at| mark(at)));
        let sample = format!("<svg viewBox=\"0 0 16 14\" width=\"16\" height=\"14\">{}</svg>", mark("8,7"));
        let _ = writeln!(legend, "<li>{sample}{}</li>", escaped(name));
    }
    format!(
        "<figure><h3>{title}</h3>\n<ul class=\"legend\">\n{legend}</ul>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
         \n<title>{title}</title>\n<desc>{description}</desc>\n{svg}</svg></figure>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_the_values() {
        for (from, to, ticks) in [
            (0.0, 1.0, vec![0.0, 0.25, 0.5, 0.75, 1.0]),
            (1.0, 1.843, vec![1.0, 1.25, 1.5, 1.75, 2.0]),
            (0.0, 0.31, vec![0.0, 0.1, 0.2, 0.3, 0.4]),
            (5.0, 5.0, vec![5.0]),
        ] {
            let axis = Axis::new("", from, to, |v| v.to_string());
            assert!(axis.ticks[0].0 <= from && axis.ticks[axis.ticks.len() - 1].0 >= to);
            let values: Vec<f64> = axis.ticks.iter().map(|t| (t.0 * 1e6).round() / 1e6).collect();
            assert_eq!(values[..ticks.len()], ticks);
        }
    }
}
