//! One chart as SVG, drawn by plotters.
//!
//! Colours are roles: an element gets a class, and the page's style gives the class a colour for light and for dark. The
//! colours in the SVG are those of light pages, for readers that know no style.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// Size in CSS pixels: a phone shows the chart at about this size, so that text has the size given here.
pub const WIDTH: u32 = 340;
pub const HEIGHT: u32 = 236;
/// Units per pixel. The backend rounds to units.
const UNIT: u32 = 4;
/// Size of text in pixels.
const TEXT: f64 = 12.0;

/// Roles beyond the series.
const INK: u8 = 90;
const MUTED: u8 = 91;
const GRID: u8 = 92;
const AXIS: u8 = 93;
/// A second, weaker mark of a series.
const WEAK: u8 = 20;

/// Colours of series on light pages, in the order of the classes in style.css. They differ in lightness too, and each
/// has a marker and a dash of its own.
const SERIES: [u32; 8] = [0x0b62b0, 0xc8500a, 0x00795a, 0xa8479a, 0x8a6a00, 0x4b5563, 0x5b4fcf, 0x9b1c31];

/// Most series of a chart.
pub const MOST_SERIES: usize = SERIES.len();

/// A linear axis. Logarithms are taken before.
#[derive(Clone)]
pub struct Axis {
    pub name: String,
    pub from: f64,
    pub to: f64,
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From `from` to at least `to`, with round ticks.
    pub fn linear(name: &str, from: f64, to: f64, label: impl Fn(f64) -> String) -> Self {
        let step = step((to - from).max(from.abs() * 1e-6).max(1e-9) / 4.0);
        let (first, last) = ((from / step + 1e-9).floor() as i64, (to / step - 1e-9).ceil() as i64);
        let values = (first..=last.max(first + 1)).map(|i| i as f64 * step);
        let ticks: Vec<(f64, String)> = values.map(|value| (value, label(value))).collect();
        Axis { name: name.into(), from: ticks[0].0, to: ticks[ticks.len() - 1].0, ticks }
    }

    /// Decades around positive values. Points on it are logarithms to the base of 10.
    pub fn decades(name: &str, least: f64, most: f64, label: impl Fn(f64) -> String) -> Self {
        let (first, last) = ((least.log10() + 1e-9).floor() as i32, (most.log10() - 1e-9).ceil() as i32);
        let ticks = (first..=last.max(first + 1)).map(|i| (f64::from(i), label(10f64.powi(i)))).collect::<Vec<_>>();
        Axis { name: name.into(), from: ticks[0].0, to: ticks[ticks.len() - 1].0, ticks }
    }

    /// One slot per name, around 0, 1, 2 ...; as many names are shown as fit.
    pub fn slots(name: &str, names: &[String]) -> Self {
        let every = names.len().div_ceil(10).max(1);
        let ticks = names.iter().enumerate().step_by(every).map(|(i, name)| (i as f64, name.clone())).collect();
        Axis { name: name.into(), from: -0.5, to: names.len().max(1) as f64 - 0.5, ticks }
    }
}

/// The round number at or above `least`: 1, 2, 2.5 or 5 times a power of 10.
fn step(least: f64) -> f64 {
    let power = 10f64.powi((least.log10() + 1e-9).floor() as i32);
    [1.0, 2.0, 2.5, 5.0].into_iter().map(|f| f * power).find(|s| *s >= least * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// How points are drawn.
pub enum Shape {
    /// A line with markers.
    Line,
    /// A line without markers.
    Plain,
    /// A weak line without markers.
    Thin,
    /// Bars from `base`, each from x - width / 2 to x + width / 2.
    Bars { base: f64, width: f64 },
    /// The area between a point and the one as far from the end of the list.
    Area,
    /// A vertical line through the first point.
    Rule,
}

/// Points of one series.
pub struct Mark {
    pub series: usize,
    pub shape: Shape,
    pub points: Vec<(f64, f64)>,
    /// Beside the points: as many as there are points, or none.
    pub labels: Vec<String>,
}

impl Mark {
    pub fn new(series: usize, shape: Shape, points: Vec<(f64, f64)>) -> Self {
        Mark { series, shape, points, labels: Vec::new() }
    }
}

/// A chart. The title is a line of the page, not of the SVG.
pub struct Panel {
    pub title: String,
    /// For readers that do not see it.
    pub description: String,
    pub x: Axis,
    pub y: Axis,
    pub marks: Vec<Mark>,
}

/// An axis with ticks at given values.
struct Ticked(RangedCoordf64, Range<f64>, Vec<f64>);

impl Ticked {
    fn new(axis: &Axis) -> Self {
        let range = axis.from..axis.to;
        Ticked(range.clone().into(), range, axis.ticks.iter().map(|(value, _)| *value).collect())
    }
}

impl Ranged for Ticked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.0.map(value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.2.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.1.clone()
    }
}

impl ValueFormatter<f64> for Ticked {}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
/// The place of a point.
type At<'a> = dyn Fn(&(f64, f64)) -> (i32, i32) + 'a;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn colour(role: u8) -> RGBColor {
    RGBColor(1, 0, role)
}

fn fill(role: u8) -> ShapeStyle {
    colour(role).filled()
}

fn stroke(role: u8, width: f64) -> ShapeStyle {
    colour(role).stroke_width((width * f64::from(UNIT)) as u32)
}

fn px(pixels: f64) -> i32 {
    (pixels * f64::from(UNIT)).round() as i32
}

fn text(role: u8, h: HPos, v: VPos) -> TextStyle<'static> {
    // The backend writes the size divided by 1.24.
    ("sans-serif", TEXT * f64::from(UNIT) * 1.24).into_font().color(&colour(role)).pos(Pos::new(h, v))
}

impl Panel {
    /// The elements of the chart's SVG, in a view box of [`view_box`].
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH * UNIT, HEIGHT * UNIT)).into_drawing_area();
            // The backend writes to a string, which does not fail.
            let drawn = self.draw(&root).and_then(|()| root.present());
            debug_assert!(drawn.is_ok());
        }
        finished(&svg)
    }

    fn draw(&self, root: &Area) -> Drawn {
        let widest = self.y.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
        // Half of the last label lies right of the axis.
        let right = self.x.ticks.last().map_or(14.0, |(_, label)| 6.0 + 3.6 * label.chars().count() as f64).max(14.0);
        let mut builder = ChartBuilder::on(root);
        builder
            .margin_top(px(24.0))
            .margin_right(px(right))
            .margin_bottom(px(18.0))
            .x_label_area_size(px(20.0))
            .y_label_area_size(px(12.0 + 6.6 * widest as f64));
        let mut chart = builder.build_cartesian_2d(Ticked::new(&self.x), Ticked::new(&self.y))?;
        let label = |axis: &Axis, value: f64| {
            let nearest = axis.ticks.iter().min_by(|a, b| (a.0 - value).abs().total_cmp(&(b.0 - value).abs()));
            nearest.map_or(String::new(), |(_, label)| label.clone())
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .bold_line_style(stroke(GRID, 1.0))
            .axis_style(stroke(AXIS, 1.0))
            .x_label_style(text(MUTED, HPos::Center, VPos::Top))
            .y_label_style(text(MUTED, HPos::Right, VPos::Center))
            .x_label_formatter(&|value| label(&self.x, *value))
            .y_label_formatter(&|value| label(&self.y, *value))
            .set_all_tick_mark_size(px(3.0))
            .draw()?;
        let (width, height) = root.dim_in_pixel();
        root.draw(&Text::new(self.y.name.clone(), (px(2.0), px(2.0)), text(INK, HPos::Left, VPos::Top)))?;
        let right = (width as i32 - px(right), height as i32 - px(2.0));
        root.draw(&Text::new(self.x.name.clone(), right, text(INK, HPos::Right, VPos::Bottom)))?;
        let at = |point: &(f64, f64)| chart.backend_coord(&(clamped(&self.x, point.0), clamped(&self.y, point.1)));
        self.marks.iter().try_for_each(|mark| mark.draw(root, &self.y, &at))?;
        labels(root, &self.marks, &at, at(&(self.x.from, self.y.from)))
    }
}

/// Parts of a line between two markers that labels avoid.
const STEPS: i32 = 8;

/// Puts each label beside its point, where it covers the fewest markers and parts of lines. A label that has
/// no place beside other labels is left out. `area` is the lower left corner of the
/// area of points, beyond which the axes have their labels.
fn labels(root: &Area, marks: &[Mark], at: &At, area: (i32, i32)) -> Drawn {
    let labelled = || marks.iter().filter(|mark| !mark.labels.is_empty());
    let r = px(5.0);
    let around = |(x, y): (i32, i32), r: i32| [x - r, y - r, x + r, y + r];
    let markers = labelled().flat_map(|mark| &mark.points).map(|point| around(at(point), r));
    let lines = labelled().flat_map(|mark| mark.points.windows(2)).flat_map(|pair| {
        let (a, b) = (at(&pair[0]), at(&pair[1]));
        (1..STEPS).map(move |i| around((a.0 + (b.0 - a.0) * i / STEPS, a.1 + (b.1 - a.1) * i / STEPS), 1))
    });
    let (width, height) = (px(WIDTH.into()), px(HEIGHT.into()));
    let taken: Vec<[i32; 4]> = markers.chain(lines).collect();
    // Labels of the axes.
    let mut labels = vec![[0, 0, width, px(20.0)], [0, 0, area.0, height], [0, area.1, width, height]];
    for (point, label) in labelled().flat_map(|mark| mark.points.iter().zip(&mark.labels)) {
        let (x, y) = at(point);
        let (w, h) = (px(label.chars().count() as f64 * 7.0) / 2, px(TEXT) / 2);
        let away = px(6.0);
        let places = [(x, y - h - away), (x + w + away, y), (x - w - away, y), (x, y + h + away)];
        let covered = |boxes: &[[i32; 4]], (x, y): (i32, i32)| {
            boxes.iter().filter(|b| b[0] < x + w && x - w < b[2] && b[1] < y + h && y - h < b[3]).count()
        };
        let free = places.into_iter().filter(|place| covered(&labels, *place) == 0);
        let Some((x, y)) = free.min_by_key(|place| covered(&taken, *place)) else { continue };
        labels.push([x - w, y - h, x + w, y + h]);
        root.draw(&Text::new(label.clone(), (x, y), text(INK, HPos::Center, VPos::Center)))?;
    }
    Ok(())
}

fn clamped(axis: &Axis, value: f64) -> f64 {
    value.clamp(axis.from, axis.to)
}

impl Mark {
    fn draw(&self, root: &Area, y: &Axis, at: &At) -> Drawn {
        let role = (self.series % MOST_SERIES) as u8;
        let pixels: Vec<(i32, i32)> = self.points.iter().map(at).collect();
        let edges = |width: f64, base: f64| {
            self.points.iter().map(move |&(x, y)| (at(&(x - width / 2.0, base)), at(&(x + width / 2.0, y))))
        };
        match self.shape {
            Shape::Line => {
                root.draw(&PathElement::new(pixels.clone(), stroke(role, 2.0)))?;
                pixels.iter().try_for_each(|&point| marker(root, role, point))?;
            }
            Shape::Plain => root.draw(&PathElement::new(pixels.clone(), stroke(role, 2.0)))?,
            Shape::Thin => root.draw(&PathElement::new(pixels.clone(), stroke(WEAK + role, 1.0)))?,
            Shape::Bars { base, width } => {
                edges(width, base).try_for_each(|(from, to)| root.draw(&Rectangle::new([from, to], fill(role))))?
            }
            Shape::Area => root.draw(&Polygon::new(pixels.clone(), fill(WEAK + role)))?,
            Shape::Rule => {
                if let Some(&(x, _)) = self.points.first() {
                    root.draw(&PathElement::new([at(&(x, y.from)), at(&(x, y.to))], stroke(AXIS, 1.0)))?;
                }
            }
        }
        Ok(())
    }
}

/// The marker of a series. It is told from others by its form.
fn marker(root: &Area, role: u8, (x, y): (i32, i32)) -> Drawn {
    let polygon = |corners: &[(f64, f64)]| {
        let corners = corners.iter().map(|&(dx, dy)| (x + px(dx), y + px(dy))).collect::<Vec<_>>();
        root.draw(&Polygon::new(corners, fill(role)))
    };
    let r = 4.0;
    match role {
        0 => root.draw(&Circle::new((x, y), px(r), fill(role))),
        1 => polygon(&[(-r, -r), (r, -r), (r, r), (-r, r)]),
        2 => polygon(&[(-r * 1.2, r), (0.0, -r * 1.2), (r * 1.2, r)]),
        3 => polygon(&[(0.0, -r * 1.4), (r * 1.4, 0.0), (0.0, r * 1.4), (-r * 1.4, 0.0)]),
        4 => polygon(&[(-r * 1.2, -r), (0.0, r * 1.2), (r * 1.2, -r)]),
        5 => polygon(&[(-r * 1.4, -1.2), (r * 1.4, -1.2), (r * 1.4, 1.2), (-r * 1.4, 1.2)]),
        6 => polygon(&[(-1.4, -r * 1.4), (1.4, -r * 1.4), (1.4, r * 1.4), (-1.4, r * 1.4)]),
        _ => root.draw(&Circle::new((x, y), px(r), stroke(role, 1.5))),
    }
}

/// The view box of every chart.
pub fn view_box() -> String {
    format!("0 0 {} {}", WIDTH * UNIT, HEIGHT * UNIT)
}

/// The elements of a legend's sample, and its view box.
pub fn sample(series: usize, shape: &Shape) -> (String, String) {
    let (width, height) = (30, 14);
    let role = (series % MOST_SERIES) as u8;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width * UNIT, height * UNIT)).into_drawing_area();
        let middle = px(f64::from(height) / 2.0);
        let line = |role, thick| root.draw(&PathElement::new([(0, middle), (px(30.0), middle)], stroke(role, thick)));
        let drawn = match shape {
            Shape::Line => line(role, 2.0).and_then(|()| marker(&root, role, (px(15.0), middle))),
            Shape::Plain => line(role, 2.0),
            Shape::Thin => line(WEAK + role, 1.0),
            Shape::Rule => line(AXIS, 1.0),
            Shape::Bars { .. } => root.draw(&Rectangle::new([(px(8.0), px(1.0)), (px(22.0), px(13.0))], fill(role))),
            Shape::Area => root.draw(&Rectangle::new([(0, px(1.0)), (px(30.0), px(13.0))], fill(WEAK + role))),
        };
        debug_assert!(drawn.and_then(|()| root.present()).is_ok());
    }
    (finished(&svg), format!("0 0 {} {}", width * UNIT, height * UNIT))
}

/// The elements inside the backend's `svg`, with a class and a light colour for each role, without defaults.
fn finished(svg: &str) -> String {
    let inner = svg.find(">\n").map_or("", |at| &svg[at + 2..]);
    let mut text = inner.trim_end().trim_end_matches("</svg>").to_owned();
    for noise in [" opacity=\"1\"", " font-family=\"sans-serif\"", " stroke=\"none\"", " stroke-width=\"1\""] {
        text = text.replace(noise, "");
    }
    let series = SERIES.iter().enumerate();
    let strong = series.clone().map(|(i, rgb)| (i as u8, *rgb));
    let weak = series.map(|(i, rgb)| (WEAK + i as u8, *rgb));
    let others = [(INK, 0x1c2430), (MUTED, 0x56616e), (GRID, 0xe3e7ec), (AXIS, 0x98a2ae)];
    for (role, rgb) in strong.chain(weak).chain(others) {
        for (attribute, class) in [("fill", 'f'), ("stroke", 's')] {
            let from = format!("{attribute}=\"#0100{role:02X}\"");
            text = text.replace(&from, &format!("class=\"{class}{role}\" {attribute}=\"#{rgb:06x}\""));
        }
    }
    text
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
            let axis = Axis::linear("", from, to, |v| v.to_string());
            assert!(axis.from <= from && axis.to >= to && axis.from < axis.to);
            let values: Vec<f64> = axis.ticks.iter().map(|t| (t.0 * 1e6).round() / 1e6).collect();
            assert_eq!(values[..ticks.len()], ticks);
        }
        let axis = Axis::decades("", 2.1e6, 3.3e9, |v| v.to_string());
        assert_eq!((axis.from, axis.to, axis.ticks.len()), (6.0, 10.0, 5));
        assert_eq!(Axis::slots("", &vec![String::new(); 80]).ticks.len(), 10);
    }
}
