//! The charts of a report. One evaluation is told apart by encoding, tensor, policy; several by round.

use super::chart::{Axis, MOST_SERIES, Mark, Panel, Shape};
use super::document::{Figure, Table, name, number, percent, ratio, speed, tick};
use super::memory::{Bytes, KINDS, Memory};
use crate::figures::{Coding, Curve, Figures, Point, Sum};
use std::collections::BTreeSet;

/// More layers than this are a line instead of bars.
const MOST_BARS: usize = 24;
/// Layers are averaged in groups beyond this.
const MOST_LAYERS: usize = 200;
/// Charts in one grid, at most.
const MOST_PANELS: usize = 12;

const TENSORS: [&str; 2] = ["K", "V"];

/// A round's name as the first cell, where there are several rounds.
pub fn prefixed(rounds: &[Figures], round: &Figures, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    let first = (rounds.len() > 1).then(|| name(&round.name));
    first.into_iter().chain(cells).collect()
}

/// The heading for such rows.
pub fn head<'a>(rounds: &[Figures], head: &[&'a str]) -> Vec<&'a str> {
    let first = (rounds.len() > 1).then_some("round");
    first.into_iter().chain(head.iter().copied()).collect()
}

/// Names in the order of their first appearance in any round.
fn in_any<'a, T: Ord + Clone>(rounds: &'a [Figures], of: impl Fn(&'a Figures) -> Vec<T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    rounds.iter().flat_map(of).filter(|item| seen.insert(item.clone())).collect()
}

/// The samples of a legend: of one evaluation its `kinds`, else the rounds.
fn legend<T: Into<String>>(
    rounds: &[Figures],
    shape: impl Fn() -> Shape,
    kinds: impl IntoIterator<Item = T>,
) -> Vec<(usize, Shape, String)> {
    let names: Vec<String> = match rounds {
        [_] => kinds.into_iter().map(T::into).collect(),
        rounds => rounds.iter().map(|round| name(&round.name)).collect(),
    };
    names.into_iter().enumerate().map(|(i, name)| (i, shape(), name)).collect()
}

// Ratio by layer

/// Ratio by layer of encodings of one cut, chosen by effort; a chart per encoding, in rounds one for K and one for V.
pub fn layers(rounds: &[Figures], cut: &str, efforts: impl Fn(u8) -> bool) -> Option<Figure> {
    let labels: Vec<String> = in_any(rounds, |round| {
        round.codings.iter().filter(|c| c.cut == cut && efforts(c.effort)).map(Coding::label).collect()
    });
    let mut groups: Vec<(String, Vec<(usize, Values)>)> = Vec::new();
    for label in labels.iter().take(MOST_PANELS) {
        let found = |i: usize, tensor| Some(values(rounds[i].coding(label, cut)?, tensor));
        let shown = name(label);
        if rounds.len() == 1 {
            groups.push((shown, (0..2).filter_map(|tensor| Some((tensor, found(0, tensor)?))).collect()));
            continue;
        }
        for (tensor, letter) in TENSORS.iter().enumerate() {
            let series = (0..rounds.len()).filter_map(|i| Some((i, found(i, tensor)?)));
            groups.push((format!("{letter}, {shown}"), series.collect()));
        }
    }
    groups.retain(|(_, series)| series.iter().any(|(_, values)| !values.is_empty()));
    groups.truncate(MOST_PANELS);
    let all = || groups.iter().flat_map(|(_, series)| series).flat_map(|(_, values)| values).map(|(_, ratio)| *ratio);
    let (least, most) = (all().fold(1.0, f64::min), all().fold(1.0, f64::max));
    if groups.is_empty() {
        return None;
    }
    let axis = Axis::linear("raw over kept bytes", least, most.max(least + 0.1), tick);
    let panels = groups.iter().map(|(title, series)| layer_panel(title, series, &axis)).collect();
    let lines = groups.iter().any(|(_, series)| !is_bars(series));
    let bars = move || if lines { Shape::Plain } else { Shape::Bars { base: 1.0, width: 0.0 } };
    let legend = legend(rounds, bars, ["K, keys", "V, values"]);
    let rows = rounds.iter().flat_map(|round| {
        let codings = labels.iter().filter_map(|label| round.coding(label, cut));
        codings.flat_map(move |coding| {
            coding.layers.iter().map(move |(layer, tensors)| {
                let cell = |tensor: usize| tensors[tensor].map_or("—".into(), |sum| ratio(sum.ratio()));
                prefixed(rounds, round, [name(&coding.label()), layer.to_string(), cell(0), cell(1)])
            })
        })
    });
    let caption = format!("Ratio by layer, {}", cut_name(cut));
    let table = Table::new(caption, &head(rounds, &["encoding", "layer", "K", "V"]), rows);
    Some(Figure { legend, panels, table })
}

/// The cut in words.
pub fn cut_name(cut: &str) -> String {
    match cut {
        "blocks" => "cut into blocks as in a session".into(),
        "whole" => "each tensor as one blob".into(),
        other => name(other),
    }
}

/// Layers and ratios.
type Values = Vec<(String, f64)>;

/// The ratios of a tensor by layer. Neighbours of many layers are averaged.
fn values(coding: &Coding, tensor: usize) -> Values {
    let each: Vec<(u32, f64)> =
        coding.layers.iter().filter_map(|(layer, sums)| Some((*layer, sums[tensor]?.ratio()))).collect();
    let group = each.len().div_ceil(MOST_LAYERS).max(1);
    let mean = |group: &[(u32, f64)]| group.iter().map(|(_, ratio)| ratio).sum::<f64>() / group.len() as f64;
    each.chunks(group).map(|group| (group[0].0.to_string(), mean(group))).collect()
}

fn is_bars(series: &[(usize, Values)]) -> bool {
    let longest = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    longest * series.len() <= 2 * MOST_BARS
}

fn layer_panel(title: &str, series: &[(usize, Values)], axis: &Axis) -> Panel {
    let names: Vec<String> = series
        .iter()
        .map(|(_, values)| values)
        .max_by_key(|values| values.len())
        .map_or_else(Vec::new, |values| values.iter().map(|(layer, _)| layer.clone()).collect());
    let bars = is_bars(series);
    let width = 0.8 / series.len().max(1) as f64;
    let mark = |(i, (number, values)): (usize, &(usize, Values))| {
        let shift = if bars { (i as f64 + 0.5) * width - 0.4 } else { 0.0 };
        let points = values.iter().enumerate().map(|(slot, (_, ratio))| (slot as f64 + shift, *ratio)).collect();
        let shape = if bars { Shape::Bars { base: 1.0, width: width * 0.9 } } else { Shape::Plain };
        Mark::new(*number, shape, points)
    };
    let spread = |(_, values): &(usize, Values)| {
        let each = || values.iter().map(|(_, ratio)| *ratio);
        format!("{} to {}", ratio(each().fold(f64::INFINITY, f64::min)), ratio(each().fold(0.0, f64::max)))
    };
    let spreads = series.iter().filter(|(_, values)| !values.is_empty()).map(spread).collect::<Vec<_>>().join("; ");
    Panel {
        title: title.into(),
        description: format!("Ratio of raw to kept bytes of {} layers, by series from {spreads}.", names.len()),
        x: Axis::slots("layer", &names),
        y: axis.clone(),
        marks: series.iter().enumerate().map(mark).collect(),
    }
}

// Ratio against speed

/// Logarithms of speeds, ratios, efforts.
type Speeds = Vec<(f64, f64, String)>;

/// Ratio against speed of encoding and of decoding, for one cut.
pub fn speeds(rounds: &[Figures], cut: &str) -> Option<Figure> {
    let families: Vec<String> = in_any(rounds, |round| timed(round, cut).map(Coding::family).collect());
    let points = |round: &Figures, family: &str, way: usize| -> Speeds {
        let same = timed(round, cut).filter(|c| c.family() == family);
        same.map(|c| (speed_of(c, way).log10(), c.total().ratio(), c.effort.to_string())).collect()
    };
    let all = || rounds.iter().flat_map(|round| timed(round, cut));
    let speeds = || all().flat_map(|c| [speed_of(c, 0), speed_of(c, 1)]);
    let (least, most) = (speeds().fold(f64::INFINITY, f64::min), speeds().fold(0.0, f64::max));
    if most <= 0.0 {
        return None;
    }
    let ratios = || all().map(|c| c.total().ratio());
    let (low, high) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
    let x = |name: &str| Axis::decades(name, least, most, |v| speed(v).replace(".0 ", " ").replace("/s", ""));
    let y = Axis::linear("raw over kept bytes", low, high.max(low + 0.05), tick);
    let panel = |title: String, way: usize, series: Vec<(usize, Speeds)>| {
        let best = |series: &[(f64, f64, String)]| series.iter().map(|p| p.1).fold(0.0, f64::max);
        let mark = |(number, points): &(usize, Speeds)| Mark {
            labels: points.iter().map(|p| p.2.clone()).collect(),
            ..Mark::new(*number, Shape::Line, points.iter().map(|p| (p.0, p.1)).collect())
        };
        let described = series.iter().map(|(_, points)| format!("up to {}", ratio(best(points)))).collect::<Vec<_>>();
        let verb = ["encoded", "decoded"][way];
        Panel {
            title,
            description: format!("Ratio against raw bytes {verb} per second; by series {}.", described.join("; ")),
            x: x(&format!("raw bytes {verb} per second, log")),
            y: y.clone(),
            marks: series.iter().map(mark).collect(),
        }
    };
    let mut panels = Vec::new();
    for (way, verb) in ["Encode", "Decode"].into_iter().enumerate() {
        if rounds.len() == 1 {
            let series = families.iter().take(MOST_SERIES).enumerate();
            panels.push(panel(verb.into(), way, series.map(|(i, f)| (i, points(&rounds[0], f, way))).collect()));
            continue;
        }
        for family in families.iter().take(MOST_PANELS / 2) {
            let series = rounds.iter().enumerate().map(|(i, round)| (i, points(round, family, way)));
            panels.push(panel(format!("{verb}, {}", name(family)), way, series.collect()));
        }
    }
    let legend = legend(rounds, || Shape::Line, families.iter().take(MOST_SERIES).map(|family| name(family)));
    let row = |round| timed(round, cut).map(move |coding| prefixed(rounds, round, coding_row(coding)));
    let rows = rounds.iter().flat_map(row);
    let caption = format!("Encodings, {}; speeds of one thread", cut_name(cut));
    let table = Table::new(caption, &head(rounds, &["encoding", "K", "V", "both", "encode", "decode"]), rows);
    Some(Figure { legend, panels, table })
}

/// The encodings of a cut whose speed is known.
fn timed<'a>(round: &'a Figures, cut: &'a str) -> impl Iterator<Item = &'a Coding> {
    round.codings.iter().filter(move |coding| coding.cut == cut && speed_of(coding, 0) > 0.0)
}

/// Speed of encoding (0) or decoding (1); 0 where nothing was encoded.
fn speed_of(coding: &Coding, way: usize) -> f64 {
    let total = coding.total();
    [total.encode(), total.decode()][way].unwrap_or(0.0)
}

fn coding_row(coding: &Coding) -> Vec<String> {
    let (k, v, total) = (coding.tensor(0), coding.tensor(1), coding.total());
    let cell = |sum: &Sum| if sum.raw > 0.0 { ratio(sum.ratio()) } else { "—".into() };
    let shown = |bytes: Option<f64>| bytes.map_or("—".into(), speed);
    vec![name(&coding.label()), cell(&k), cell(&v), cell(&total), shown(total.encode()), shown(total.decode())]
}

// Output error against kept share

/// Error of the attention output against the kept share: all policies, then each with its layers; in rounds each policy.
pub fn errors(rounds: &[Figures]) -> Option<Figure> {
    let policies: Vec<String> = in_any(rounds, |round| round.shown_curves().map(|c| c.policy.clone()).collect());
    let shown: Vec<&String> = policies.iter().take(MOST_SERIES).collect();
    if shown.is_empty() {
        return None;
    }
    let worst = |round: &Figures| {
        let points = round.shown_curves().flat_map(|c| &c.points);
        points.map(|point| point.worst().1).fold(0.0, f64::max)
    };
    let most = rounds.iter().map(worst).fold(0.01, f64::max);
    let panel = |title: String, description: String, marks: Vec<Mark>| Panel {
        title,
        description,
        x: Axis::linear("kept share of the tokens", 0.0, 1.0, percent),
        y: Axis::linear("error of the attention output", 0.0, most, percent),
        marks,
    };
    let mean = |number: usize, curve: &Curve| Mark::new(number, Shape::Line, by_share(curve, |point| point.error));
    let mut panels = Vec::new();
    let mut legend = legend(rounds, || Shape::Line, shown.iter().map(|policy| name(policy)));
    if let [round] = rounds {
        let curves: Vec<&Curve> = shown.iter().filter_map(|policy| curve(round, policy)).collect();
        let marks = curves.iter().enumerate().map(|(i, curve)| mean(i, curve)).collect();
        let description = format!("Mean error over layers, by {} policies.", curves.len());
        panels.push(panel("All policies, means of layers".into(), description, marks));
        for (i, curve) in curves.iter().enumerate() {
            let mut marks = vec![Mark::new(i, Shape::Area, band(curve))];
            marks.extend(layer_lines(curve).into_iter().map(|points| Mark::new(i, Shape::Thin, points)));
            marks.push(mean(i, curve));
            panels.push(panel(name(&curve.policy), described(curve), marks));
        }
        legend.push((0, Shape::Area, "from the best layer to the worst".into()));
    } else {
        for policy in &shown {
            let of = |(i, round): (usize, &Figures)| Some(mean(i, curve(round, policy)?));
            let marks: Vec<Mark> = rounds.iter().enumerate().filter_map(of).collect();
            let description = format!("Mean error over layers of {} rounds.", marks.len());
            panels.push(panel(name(policy), description, marks));
        }
    }
    Some(Figure { legend, panels, table: error_table(rounds) })
}

fn curve<'a>(round: &'a Figures, policy: &str) -> Option<&'a Curve> {
    round.shown_curves().find(|curve| curve.policy == policy)
}

/// Points in the order of their kept shares.
fn by_share(curve: &Curve, of: impl Fn(&Point) -> f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = curve.points.iter().map(|point| (point.kept_share, of(point))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    points
}

/// The area between the errors of the best and the worst layer.
fn band(curve: &Curve) -> Vec<(f64, f64)> {
    let mut area = by_share(curve, Point::least);
    area.extend(by_share(curve, |point| point.worst().1).into_iter().rev());
    area
}

/// A line per layer; none of many layers.
fn layer_lines(curve: &Curve) -> Vec<Vec<(f64, f64)>> {
    let layers: BTreeSet<u32> = curve.points.iter().flat_map(|point| point.layers.iter().map(|l| l.0)).collect();
    if layers.len() > MOST_BARS {
        return Vec::new();
    }
    let line = |layer: u32| {
        let of = |point: &Point| Some((point.kept_share, point.layers.iter().find(|l| l.0 == layer)?.2));
        let mut line: Vec<(f64, f64)> = curve.points.iter().filter_map(of).collect();
        line.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        line
    };
    layers.into_iter().map(line).collect()
}

fn described(curve: &Curve) -> String {
    let at = |point: &Point| format!("{} at {} of the tokens", percent(point.error), percent(point.kept_share));
    let points: Vec<String> = curve.points.iter().filter(|point| point.evicts).map(at).collect();
    format!("Mean error and spread of layers: {}.", points.join("; "))
}

fn error_table(rounds: &[Figures]) -> Table {
    let row = |round: &Figures, curve: &Curve, point: &Point| {
        let (layer, worst) = point.worst();
        let note = if point.evicts { String::new() } else { ", nothing evicted".into() };
        prefixed(
            rounds,
            round,
            [
                format!("{}{note}", name(&curve.policy)),
                number(point.ratio),
                curve.block_tokens.to_string(),
                percent(point.kept_share),
                percent(point.error),
                format!("{} (layer {layer})", percent(worst)),
                format!("{:.4}", point.cosine),
                percent(point.kept_mass),
                number(point.moved),
                point.restored.map_or("—".into(), |bytes| crate::bytes::format(bytes as u64)),
            ],
        )
    };
    let rows = rounds.iter().flat_map(|round| {
        let curves = round.shown_curves().chain(round.curves.iter().filter(|c| c.block_tokens != round.block_tokens));
        curves.flat_map(move |curve| curve.points.iter().map(move |point| row(round, curve, point)))
    });
    let columns = [
        "policy",
        "one token in",
        "block",
        "kept",
        "error, mean",
        "error, worst layer",
        "cosine",
        "kept mass",
        "moved tokens",
        "restored per step",
    ];
    Table::new("Eviction, means over layers", &head(rounds, &columns), rows)
}

// Memory against tokens

/// A curve of [`memory`]: the place of its round, its ratio, and bytes by tokens.
struct Growth {
    round: usize,
    ratio: f64,
    dump: usize,
    bytes: Vec<(usize, Bytes)>,
}

/// Bytes of the cache against tokens. One evaluation: a chart for each ratio; rounds: a chart for each kind of saving, at
/// the first ratio.
pub fn memory(rounds: &[Figures], ratios: &[f64]) -> Option<Figure> {
    let mut ratios = ratios.to_vec();
    if rounds.len() > 1 {
        ratios.truncate(1);
    }
    ratios.sort_by(f64::total_cmp);
    let growth = |round: usize, ratio: f64| {
        let model = Memory::new(&rounds[round], rounds[round].base()?, ratio)?;
        let bytes = model.lengths().into_iter().map(|tokens| (tokens, model.at(tokens))).collect();
        Some(Growth { round, ratio, dump: model.tokens, bytes })
    };
    let each = || (0..rounds.len()).flat_map(|round| ratios.iter().map(move |ratio| (round, *ratio)));
    let curves: Vec<Growth> = each().filter_map(|(round, ratio)| growth(round, ratio)).collect();
    let last = || curves.iter().filter_map(|curve| curve.bytes.last());
    let (tokens, most) = (last().map(|l| l.0).max()?, last().map(|l| l.1[0]).fold(0.0, f64::max));
    let (unit, factor) = unit(most);
    let dump = curves.iter().map(|curve| curve.dump).max()?;
    let panel = |title: String, series: &[(usize, &Growth, usize)]| {
        let mark = |&(number, curve, of): &(usize, &Growth, usize)| {
            let points = curve.bytes.iter().map(|(tokens, bytes)| (*tokens as f64, bytes[of] / factor));
            Mark::new(number, Shape::Plain, points.collect())
        };
        let ends = series.iter().map(|&(_, curve, of)| {
            let end = curve.bytes.last().map_or(0.0, |(_, bytes)| bytes[of]);
            format!("{} {}", KINDS[of], crate::bytes::format(end as u64))
        });
        let rule = Mark::new(0, Shape::Rule, std::iter::once((dump as f64, 0.0)).collect());
        Panel {
            title,
            description: format!(
                "Bytes of the cache against tokens; at {tokens} tokens: {}.",
                ends.collect::<Vec<_>>().join("; ")
            ),
            x: Axis::linear("tokens", 0.0, tokens as f64, |v| crate::bytes::count(v as u64)),
            y: Axis::linear(unit, 0.0, most / factor, tick),
            marks: std::iter::once(rule).chain(series.iter().map(mark)).collect(),
        }
    };
    let evicted = rounds.iter().any(|round| !round.curves.is_empty() || !round.wholes.is_empty());
    let kinds = if evicted { 4 } else { 2 };
    let title = |ratio: f64| format!("One token in {} stays", number(ratio));
    let single =
        |curve: &Growth| panel(title(curve.ratio), &(0..kinds).map(|kind| (kind, curve, kind)).collect::<Vec<_>>());
    let panels = if rounds.len() == 1 {
        curves.iter().map(single).collect()
    } else {
        let of = |kind: usize| curves.iter().map(|curve| (curve.round, curve, kind)).collect::<Vec<_>>();
        let name = |kind: usize| match (kind, ratios.first()) {
            (2.., Some(ratio)) => format!("{}, one token in {}", KINDS[kind], number(*ratio)),
            _ => KINDS[kind].to_owned(),
        };
        // Raw bytes tell dumps apart, not rounds.
        (1..kinds).map(|kind| panel(name(kind), &of(kind))).collect()
    };
    let mut legend = legend(rounds, || Shape::Plain, KINDS[..kinds].iter().copied());
    legend.push((0, Shape::Rule, "length of the dump; beyond it an extrapolation".into()));
    let rows = curves.iter().flat_map(|curve| {
        curve.bytes.iter().filter(|(tokens, _)| *tokens > 0).map(move |(tokens, bytes)| {
            let first = [number(curve.ratio), crate::bytes::count(*tokens as u64)];
            let cells = (0..kinds).map(|of| crate::bytes::format(bytes[of] as u64));
            prefixed(rounds, &rounds[curve.round], first.into_iter().chain(cells))
        })
    });
    let columns: Vec<&str> = ["one token in", "tokens"].into_iter().chain(KINDS[..kinds].iter().copied()).collect();
    Some(Figure { legend, panels, table: Table::new("Bytes of the cache", &head(rounds, &columns), rows) })
}

fn unit(bytes: f64) -> (&'static str, f64) {
    match bytes {
        b if b >= 2.0 * 1024f64.powi(3) => ("GiB", 1024f64.powi(3)),
        b if b >= 2.0 * 1024f64.powi(2) => ("MiB", 1024f64.powi(2)),
        _ => ("KiB", 1024.0),
    }
}
