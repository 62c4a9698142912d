//! The summary of an evaluation in sentences, and the next steps.

use super::document::{Block, Line, Table, Tile, name, number, percent, ratio, speed};
use crate::figures::{Coding, Figures, Point, distinct};
use crate::{bytes, dtype};
use mnnkv::h2o::{self, PlanConfig, Target};
use mnnkv::layout::{Kind, Rows};
use mnnkv::session::Holds;
use mnnkv_model::sizing::CacheElement;
use mnnkv_replay::eviction::policies;
use mnnkv_replay::results::{LayerResult, WholeCacheResult};
use serde_json::{Map, Value, json};

/// Errors of the attention output that a ratio is chosen by.
const LIMITS: [f64; 3] = [0.05, 0.10, 0.20];
/// The limit whose ratio the config below the summary has.
const ADVISED: f64 = LIMITS[1];
/// The budget of the config that is advised first, in MB, where the model takes no more.
const BUDGET_MB: u64 = 64;
/// More than any model has.
const MOST_HEADS: usize = 1 << 16;

/// The dump in a sentence: `1 chat, 6 layers of 2 KV heads x 64 dims, F16, 1,088 tokens, 3.2 MiB of K and V`.
pub fn dump(figures: &Figures) -> String {
    let layers = &figures.results.layers;
    let Some(first) = layers.first() else { return "no layers".into() };
    let chats = layers.iter().map(|l| &l.run).collect::<std::collections::BTreeSet<_>>().len();
    let same =
        layers.iter().all(|l| (l.kv_heads, l.head_dim, &l.dtype) == (first.kv_heads, first.head_dim, &first.dtype));
    let shape = if same {
        format!("{} KV heads × {} dims in {}", first.kv_heads, first.head_dim, name(&first.dtype))
    } else {
        "several shapes".into()
    };
    let tokens = layers.iter().map(|l| l.tokens).max().unwrap_or(0);
    let raw = layers.iter().fold(0, |sum: u64, l| sum.saturating_add(l.raw_bytes));
    let (s, longest) = if chats == 1 { ("", "") } else { ("s", "at most ") };
    format!(
        "{chats} chat{s}, {} layers of {shape}, {longest}{} tokens, {} of K and V",
        layers.len(),
        bytes::count(tokens as u64),
        bytes::format(raw),
    )
}

/// The ratio of the first sentences: a session's default, or the nearest that evicts.
pub fn headline(figures: &Figures) -> Option<f64> {
    let Target::LossyRatio(default) = PlanConfig::default().target else { return None };
    let distance = |ratio: &f64| (ratio - f64::from(default)).abs();
    let nearest = |ratios: &mut dyn Iterator<Item = f64>| ratios.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    match figures.curve() {
        Some(curve) => nearest(&mut curve.points.iter().filter(|p| p.evicts).map(|p| p.ratio)),
        None => nearest(&mut figures.wholes.iter().filter(|w| w.lossy_only > 1.0).map(|w| w.target_ratio)),
    }
}

/// Ratios that are worth a chart: the advised ones and the default, without repetition.
pub fn ratios(figures: &Figures) -> Vec<f64> {
    let advised = LIMITS[..2].iter().rev().filter_map(|limit| figures.stands(*limit)).map(|point| point.ratio);
    let mut ratios = distinct(advised.chain(headline(figures)));
    if ratios.is_empty() {
        ratios.push(1.0);
    }
    ratios
}

/// An encoding and its cut in words.
fn coding_name(coding: &Coding) -> String {
    let cut = if coding.cut == "blocks" { "blocks" } else { "blobs of whole tensors" };
    let effort = if coding.format == "lanes" { String::new() } else { format!(" at effort {}", coding.effort) };
    format!("{} {cut}{effort}", name(&coding.family()))
}

/// Lossless alone: over all tensors.
fn lossless(coding: &Coding) -> f64 {
    coding.total().ratio()
}

fn point_at(figures: &Figures, ratio: f64) -> Option<&Point> {
    figures.curve()?.points.iter().find(|point| point.ratio == ratio)
}

/// The figures that are read first.
pub fn tiles(figures: &Figures) -> Vec<Tile> {
    let tile = |value: String, label: String, note: String| Tile { value, label, note };
    let mut tiles = Vec::new();
    let Some(base) = figures.base() else { return tiles };
    let less = |r: f64| format!("{} less memory", percent((1.0 - 1.0 / r).max(0.0)));
    tiles.push(tile(
        times_less(lossless(base)),
        "lossless alone".into(),
        format!("{}; every bit comes back ({})", less(lossless(base)), coding_name(base)),
    ));
    let ratios = [figures.stands(ADVISED).map(|point| point.ratio), headline(figures)];
    for (i, at) in ratios.into_iter().flatten().enumerate() {
        let Some(whole) = figures.whole_at(base, at) else { continue };
        if i > 0 && figures.stands(ADVISED).is_some_and(|point| point.ratio == at) {
            continue;
        }
        let note = match point_at(figures, at) {
            Some(point) => format!("the attention output changes by {}", percent(point.error)),
            None => "the error was not measured".into(),
        };
        let note = format!("{}; {note}", less(whole.joint));
        tiles.push(tile(times_less(whole.joint), format!("both, one token in {} stays", number(at)), note));
    }
    tiles
}

/// The summary in sentences.
pub fn summary(figures: &Figures) -> Vec<Block> {
    let mut blocks = Vec::new();
    if !figures.results.complete {
        let text = "The evaluation was stopped early. The figures below are those that were finished; ratios of the whole \
                    cache need all layers.";
        blocks.push(Block::Note(text.into()));
        return blocks;
    }
    let tiles = tiles(figures);
    if !tiles.is_empty() {
        blocks.push(Block::Tiles(tiles));
    }
    if let Some(base) = figures.base() {
        let line = Line::new("Lossless compression alone shrinks the cache ")
            .strong(times_less(lossless(base)))
            .text(format!(" with {}, ", coding_name(base)))
            .text(match base.cut.as_str() {
                "blocks" => "in blocks as a session stores them. The most recent and the first tokens stay raw.",
                _ => "and every bit comes back.",
            });
        blocks.push(Block::Paragraph(line));
        if let Some(whole) = headline(figures).and_then(|at| figures.whole_at(base, at)) {
            blocks.push(Block::Paragraph(both(figures, base, whole)));
            blocks.push(Block::Paragraph(product(whole)));
        }
    }
    blocks.extend(limits(figures));
    blocks
}

fn both(figures: &Figures, base: &Coding, whole: &WholeCacheResult) -> Line {
    let line = Line::new(format!("At one token in {} the whole cache shrinks ", number(whole.target_ratio)))
        .strong(times_less(whole.joint))
        .text(format!(" with {} ({} by eviction alone). ", coding_name(base), times_less(whole.lossy_only)));
    let Some(point) = point_at(figures, whole.target_ratio) else {
        return line.text("The dump has neither Q nor attention rows, so the error of that is unknown.");
    };
    let (layer, worst) = point.worst();
    line.text("The attention output changes by ").strong(percent(point.error)).text(format!(
        " (relative L2, mean of {} layers; {} in layer {layer}, the worst).",
        point.layers.len(),
        percent(worst)
    ))
}

/// Raw to kept bytes, such as `1.73:1`.
fn times_less(r: f64) -> String {
    format!("{}:1", ratio(r))
}

fn product(whole: &WholeCacheResult) -> Line {
    let product = ratio(whole.reference_product);
    Line::new("The reference system would report ").strong(product).text(
        ": the lossless ratio of the first layers times the ratio of eviction in the others. These are different layers, \
         so the product is the ratio of no cache.",
    )
}

/// Which ratio stays under which error.
fn limits(figures: &Figures) -> Vec<Block> {
    let Some(curve) = figures.curve() else { return Vec::new() };
    let base = figures.base();
    let row = |limit: f64| {
        let point = figures.stands(limit)?;
        let whole = base.and_then(|base| figures.whole_at(base, point.ratio));
        let cell = |of: fn(&WholeCacheResult) -> f64| whole.map_or("—".into(), |w| times_less(of(w)));
        Some(vec![
            percent(limit),
            number(point.ratio),
            cell(|w| w.joint),
            percent(point.error),
            percent(point.kept_share),
            format!("{} (layer {})", percent(point.worst().1), point.worst().0),
            cell(|w| w.lossy_only),
        ])
    };
    let rows: Vec<Vec<String>> = LIMITS.into_iter().filter_map(row).collect();
    let line = Line::new("Which ratio does this model stand? ").text(format!(
        "The rule here: the highest measured ratio up to which the mean error stays at or under a limit, with policy {:?} \
         and blocks of {} tokens.",
        name(&curve.policy),
        curve.block_tokens
    ));
    if rows.is_empty() {
        let text = format!(" No measured ratio that evicts tokens stays under {}.", percent(LIMITS[LIMITS.len() - 1]));
        return std::iter::once(Block::Paragraph(line.text(text))).collect();
    }
    let head = ["error up to", "one token in", "cache, both", "error", "kept", "worst layer", "cache, eviction only"];
    vec![
        Block::Paragraph(line),
        Block::Table(Table::new("The highest ratio under a limit of the error", &head, rows)),
        Block::Note(
            "An error of the attention output is not yet an error of the text. It ranks ratios and policies; \
             perplexity decides (see the next steps)."
                .into(),
        ),
    ]
}

/// For hosts that attend: a budget, and what it holds of this model.
fn budget(figures: &Figures) -> Option<(Line, Vec<Block>)> {
    let layers = &figures.results.layers;
    let first = layers.first()?;
    let shape = (first.kv_heads, first.head_dim, &first.dtype);
    let differs = |layer: &LayerResult| (layer.kv_heads, layer.head_dim, &layer.dtype) != shape;
    if first.kv_heads > MOST_HEADS || layers.iter().any(differs) {
        return None;
    }
    let kind = Kind::Float(dtype::float(CacheElement::from_name(&first.dtype)?)?);
    let rows = Rows { key: kind, value: kind, heads: first.kv_heads, dims: first.head_dim };
    let count = layers.iter().map(|layer| layer.layer).max()?.saturating_add(1);
    let of = |mb: u64| Holds::of(mb.saturating_mul(1_000_000), count, &rows);
    let mb = BUDGET_MB.max(of(0)?.least_bytes.div_ceil(1_000_000));
    let Holds { raw_tokens, quantised_tokens, file_tokens, .. } = of(mb)?;
    let line = Line::new("Where the host attends by ")
        .code("mnnkv_session_attend")
        .text(", set a budget first. It loses least: ")
        .text(format!(
            "{} tokens stay raw in {mb} MB, and {} with K in 8 bits and V in 4. Longer chats, up to {} tokens, go to a file if ",
            bytes::count(raw_tokens),
            bytes::count(quantised_tokens),
            bytes::count(file_tokens)
        ))
        .code("kv_memory_file")
        .text(" names one; without it their tokens are dropped.");
    Some((line, vec![Block::Code(format!("{{\n  \"kv_memory_mb\": {mb}\n}}"))]))
}

/// The next steps.
pub fn steps(figures: &Figures, file: &str) -> Block {
    let mut steps = Vec::new();
    let advised = figures.stands(ADVISED);
    let budget = budget(figures);
    let keys = match &budget {
        Some(_) => {
            "Else set these keys, which do not go together with a budget: eviction loses what evicted tokens said, \
             lossless compression nothing."
        }
        None => "Set these keys in the host's config.",
    };
    steps.extend(budget);
    let set = match (advised, figures.curve()) {
        (Some(point), _) => format!(
            "{keys} Eviction keeps one token in {}, the highest ratio under {} of error, a \
             limit that this page chooses for a start.",
            number(point.ratio),
            percent(ADVISED)
        ),
        (None, Some(_)) => {
            format!("{keys} Eviction is off, since no measured ratio stays under {} of error.", percent(ADVISED))
        }
        (None, None) => format!("{keys} Eviction is off, since its error was not measured on this dump."),
    };
    steps.push((Line::new(set), std::iter::once(Block::Code(snippet(figures, advised))).collect()));
    steps.extend(price(figures).map(|line| (line, Vec::new())));
    steps.extend(smaller(figures).map(|line| (line, Vec::new())));
    let perplexity = Line::new("Bound the loss of quality: decode the same text with and without these keys, and run ")
        .code("mnnkv gate --ppl baseline.json candidate.json")
        .text(". Errors of single layers cannot tell it.");
    steps.push((perplexity, Vec::new()));
    let gate = Line::new("Keep releases honest: ")
        .code(format!("mnnkv gate {}", name(file)))
        .text(" checks these results against thresholds, and ")
        .code("mnnkv report --compare")
        .text(" shows two rounds side by side.");
    steps.push((gate, Vec::new()));
    if figures.results.findings.iter().any(|finding| finding.reason == "short") {
        let tokens = figures.results.layers.iter().map(|l| l.tokens).max().unwrap_or(0);
        let text = format!(
            "Dump a longer chat. With {} tokens fewer recent tokens were protected than a session protects by default, and \
             most blocks are near a hot zone; ratios grow with the length (chart of memory).",
            bytes::count(tokens as u64)
        );
        steps.push((text.into(), Vec::new()));
    }
    if figures.results.eviction.is_empty() {
        let text = "Dump Q too (or attention rows): then eviction is replayed, and its error is known.";
        steps.push((text.into(), Vec::new()));
    }
    Block::Steps(steps)
}

/// First layers that the config stores.
fn stored_layers(figures: &Figures) -> u32 {
    if figures.front > 0 { figures.front } else { 2 }
}

/// The time that the store of the config takes: a step restores all cold tokens of its layers.
fn price(figures: &Figures) -> Option<Line> {
    let base = figures.base().filter(|base| base.cut == "blocks")?;
    let layers = stored_layers(figures);
    let sums = base.layers.iter().filter(|(layer, _)| **layer < layers).flat_map(|(_, sums)| sums.iter().flatten());
    let bytes: f64 = sums.map(|sum| sum.raw - sum.hot).sum();
    let seconds = bytes / base.total().decode()?;
    Some(Line::new("Mind the speed: ").text(format!(
        "a step restores every stored token, here {} of the first {layers} layers, about {:.2} ms on one core at the measured \
         speed. The figures above store all layers (\"front_n_and_h2o_kept\"); the keys store the first ones only. Measure \
         decoding with your engine before more layers are stored.",
        bytes::format(bytes as u64),
        seconds * 1e3
    )))
}

/// The fastest encoding among the smallest ones that a session has, where it is smaller than the default by a per cent.
fn smaller(figures: &Figures) -> Option<Line> {
    let base = figures.base()?;
    // Sessions have no rotation hint.
    let others = || figures.codings.iter().filter(|c| c.cut == base.cut && c.rotation.is_none());
    let most = others().map(lossless).fold(0.0, f64::max);
    let fast = |coding: &&Coding| coding.total().encode().unwrap_or(0.0);
    let best = others().filter(|c| lossless(c) >= most * 0.98).max_by(|a, b| fast(a).total_cmp(&fast(b)))?;
    let (from, to) = (base.total(), best.total());
    if to.ratio() < from.ratio() * 1.01 {
        return None;
    }
    let speeds = |from: Option<f64>, to: Option<f64>| match (from, to) {
        (Some(from), Some(to)) => format!("{} instead of {}", speed(to), speed(from)),
        _ => "at unknown speed".into(),
    };
    let line = Line::new(format!("Or shrink further: {} reaches ", coding_name(best)))
        .strong(times_less(to.ratio()))
        .text(format!(
            " alone. It encodes {} and decodes {}. Set ",
            speeds(from.encode(), to.encode()),
            speeds(from.decode(), to.decode())
        ))
        .code(format!("\"kv_lossless_codec_runtime\": \"{}\"", runtime_name(&best.format)))
        .text(" and ")
        .code(format!("\"kv_lossless_effort\": {}", best.effort));
    Some(line.text("."))
}

/// The least length from which a session with this ratio evicts, and at least the default. A smaller key has no effect.
fn first_eviction(ratio: f64, block_tokens: u32) -> u32 {
    const DEFAULT: u32 = 512;
    const MOST: u32 = 1 << 16;
    let config = PlanConfig { block_tokens, target: Target::LossyRatio(ratio as f32), ..PlanConfig::default() };
    let evicts = |tokens: &u32| h2o::plan(&[], *tokens, &config).is_ok_and(|plan| plan.evicted_tokens > 0);
    (DEFAULT..MOST).find(evicts).unwrap_or(DEFAULT)
}

fn runtime_name(format: &str) -> &'static str {
    match format {
        "v2" => "gear_v2",
        "lanes" => "gear_lanes",
        _ => "gear_v1",
    }
}

/// Keys of a host's config.
fn snippet(figures: &Figures, advised: Option<&Point>) -> String {
    let mut keys = Map::new();
    let mut set = |key: &str, value: Value| {
        keys.insert(key.into(), value);
    };
    if let (Some(point), Some(curve)) = (advised, figures.curve()) {
        set("kv_h2o_enable", true.into());
        set("kv_h2o_policy", "mass".into());
        set("kv_h2o_layer_start", figures.front.into());
        set("kv_h2o_target_lossy_ratio", json!(point.ratio));
        set("kv_h2o_block_tokens", curve.block_tokens.into());
        set("kv_h2o_trigger_min_tokens", first_eviction(point.ratio, curve.block_tokens).into());
        let policy = policies().into_iter().find(|policy| policy.name == curve.policy);
        policy.iter().flat_map(|policy| &policy.keys).for_each(|(key, value)| set(key, value.clone()));
    }
    set("kv_lossless_enable", true.into());
    set("kv_lossless_runtime_enable", true.into());
    set("kv_lossless_runtime_mode", "store".into());
    // To restore more layers in every step is slow; see `price`.
    set("kv_lossless_scope", "front_n".into());
    set("kv_lossless_front_n", stored_layers(figures).into());
    if let Some(base) = figures.base() {
        set("kv_lossless_codec_runtime", runtime_name(&base.format).into());
        set("kv_lossless_effort", base.effort.into());
    }
    // Zones that were made smaller for a short dump are no advice.
    if !figures.results.findings.iter().any(|finding| finding.reason == "short") {
        let config = figures.results.settings.get("config").and_then(Value::as_object);
        let number = |(_, value): &(&String, &Value)| value.is_number() || value.is_boolean();
        let known = |(key, _): &(&String, &Value)| key.ends_with("_tokens") && key.starts_with("kv_");
        for (key, value) in config.into_iter().flatten().filter(number).filter(known) {
            if key != "kv_h2o_block_tokens" && (advised.is_some() || key.starts_with("kv_lossless_")) {
                set(&name(key), value.clone());
            }
        }
    }
    let text = serde_json::to_string_pretty(&Value::Object(keys));
    text.unwrap_or_default()
}
