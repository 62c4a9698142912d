//! The sections of a report.

use super::advice;
use super::charts;
use super::document::{Block, Document, Figure, Line, Table, change, name, number, percent, ratio, sentence, speed};
use super::read::Case;
use crate::figures::{Coding, Figures};
use crate::gate::Gate;
use mnnkv::gear::Effort;
use mnnkv_replay::results::WholeCacheResult;

/// Findings and settings that are shown.
const MOST_CHARS: usize = 2000;

/// Cases of gates, each with the name of its file.
pub type Cases = Vec<(String, Case)>;

fn heading(text: impl Into<String>) -> Block {
    Block::Heading(2, text.into())
}

fn paragraph(text: impl Into<Line>) -> Block {
    Block::Paragraph(text.into())
}

/// One evaluation after another, then gates.
pub fn report(rounds: &[Figures], cases: &Cases) -> Document {
    let mut blocks = Vec::new();
    for round in rounds {
        if rounds.len() > 1 {
            blocks.push(heading(name(&round.name)));
        }
        let own = if rounds.len() == 1 { gates(cases) } else { Vec::new() };
        blocks.extend(evaluation(std::slice::from_ref(round), own));
    }
    if rounds.len() != 1 {
        blocks.extend(gates(cases));
    }
    let title = match rounds {
        [one] => format!("KV cache of {}", last_part(&one.results.dumps)),
        [] => "Gates".into(),
        _ => format!("KV caches of {} dumps", rounds.len()),
    };
    let subtitle = match rounds {
        [one] => Line::new(format!("{}.", advice::dump(one))),
        _ => Line::new("mnnkv report"),
    };
    document(title, subtitle, blocks)
}

/// Rounds side by side, then gates.
pub fn comparison(rounds: &[Figures], cases: &Cases) -> Document {
    let mut blocks = vec![heading("Summary")];
    blocks.extend(differences(rounds));
    blocks.extend(plots(rounds));
    blocks.extend(gates(cases));
    for round in rounds {
        blocks.push(heading(format!("Findings and settings: {}", name(&round.name))));
        blocks.extend(provenance(round));
    }
    let names: Vec<String> = rounds.iter().map(|round| name(&round.name)).collect();
    let title = format!("{} rounds side by side", rounds.len());
    document(title, Line::new(format!("{}. Changes are against the first.", names.join(", "))), blocks)
}

fn document(title: String, subtitle: Line, blocks: Vec<Block>) -> Document {
    let footer = Line::new(format!("Written by mnnkv {}, mnnkv report.", env!("CARGO_PKG_VERSION")));
    Document { title, subtitle, blocks, footer }
}

/// The last part of a path.
fn last_part(path: &str) -> String {
    let part = path.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(path);
    name(if part.is_empty() { path } else { part })
}

fn evaluation(rounds: &[Figures], gates: Vec<Block>) -> Vec<Block> {
    let figures = &rounds[0];
    let mut blocks = vec![heading("Summary"), paragraph(intro())];
    blocks.extend(advice::summary(figures));
    // Parts of a dump advise nothing.
    if figures.results.complete {
        blocks.push(heading("Next steps"));
        blocks.push(advice::steps(figures, &figures.name));
    }
    blocks.extend(plots(rounds));
    blocks.extend(gates);
    blocks.push(heading("Findings"));
    blocks.extend(provenance(figures));
    blocks.push(heading("Terms"));
    blocks.push(terms());
    blocks
}

fn intro() -> Line {
    Line::new(
        "A language model keeps the keys and values (K and V) of all tokens in a cache. mnn-kv makes it smaller in two ways: ",
    )
    .strong("lossless")
    .text(" encoding, which brings back every bit, and ")
    .strong("eviction")
    .text(" of tokens that get little attention, which changes what the model computes. This page shows what both would save on a dump, and at what price.")
}

fn terms() -> Block {
    let term = |word: &str, text: &str| Line::default().strong(word).text(format!(": {text}"));
    Block::List(vec![
        term("ratio", "raw bytes over kept bytes. 2 means half the memory; 1 saves nothing."),
        term("block", "consecutive tokens that are encoded, or evicted, as one."),
        term(
            "one token in 3.5",
            "the target of eviction (kv_h2o_target_lossy_ratio): of 3.5 tokens one stays. First and recent tokens always stay, so a short cache keeps more.",
        ),
        term(
            "policy",
            "how attention becomes a score of a block: a moving average (ema), a sum, or a sum per row (norm_sum).",
        ),
        term(
            "error",
            "|output of attention with the kept tokens - output with all| / |output with all|, L2 norm over all steps and heads of a layer.",
        ),
        term("effort", "how long the encoder searches, 1 to 9."),
        term("v1, v2", "formats of encoded blocks. v2 can use the model's rotation (RoPE) to predict keys."),
        term("front layers", "the first layers (kv_h2o_layer_start), which keep all tokens."),
    ])
}

/// A section of charts, or why it is left out.
fn section(title: &str, source: Line, figures: Vec<Option<Figure>>, otherwise: &str, more: Vec<Block>) -> Vec<Block> {
    let mut blocks = vec![heading(title)];
    let found: Vec<Block> = figures.into_iter().flatten().map(|figure| Block::Figure(Box::new(figure))).collect();
    if found.is_empty() && more.is_empty() {
        blocks.push(paragraph(otherwise));
    } else {
        blocks.push(paragraph(source));
        blocks.extend(found);
        blocks.extend(more);
    }
    blocks
}

/// The cut that is shown first, and the others.
fn cuts(rounds: &[Figures]) -> Vec<String> {
    let cuts: std::collections::BTreeSet<&String> = rounds.iter().flat_map(|r| &r.codings).map(|c| &c.cut).collect();
    cuts.into_iter().take(4).cloned().collect()
}

fn plots(rounds: &[Figures]) -> Vec<Block> {
    let mut blocks = whole_cache(rounds);
    blocks.extend(by_layer(rounds));
    blocks.extend(by_speed(rounds));
    blocks.extend(by_policy(rounds));
    blocks.extend(memory(rounds));
    blocks
}

fn folded(summary: &str, figure: Option<Figure>) -> Option<Block> {
    let figure = Block::Figure(Box::new(figure?));
    Some(Block::Details(summary.into(), std::iter::once(figure).collect()))
}

fn by_layer(rounds: &[Figures]) -> Vec<Block> {
    let base = rounds.iter().find_map(|r| r.base()).map_or(Effort::DEFAULT.get(), |coding| coding.effort);
    let cuts = cuts(rounds);
    let first = cuts.first().and_then(|cut| charts::layers(rounds, cut, |effort| effort == base));
    let mut more = Vec::new();
    for (i, cut) in cuts.iter().enumerate() {
        let words = charts::cut_name(cut);
        if i > 0 {
            more.extend(folded(&format!("Effort {base}, {words}"), charts::layers(rounds, cut, |e| e == base)));
        }
        more.extend(folded(&format!("Other efforts, {words}"), charts::layers(rounds, cut, |e| e != base)));
    }
    let cut = cuts.first().map_or(String::new(), |cut| charts::cut_name(cut));
    let source = Line::new(format!(
        "Raw over kept bytes of K and of V, {cut}, effort {base}; one chart per encoding. 1 saves nothing. Source: "
    ))
    .code("lossless")
    .text(" of the results.");
    section(
        "Ratio by layer",
        source,
        vec![first],
        "No tensor was encoded (--skip lossless), so there are no ratios.",
        more,
    )
}

fn by_speed(rounds: &[Figures]) -> Vec<Block> {
    let cuts = cuts(rounds);
    let first = cuts.first().and_then(|cut| charts::speeds(rounds, cut));
    let more = cuts.iter().skip(1);
    let more =
        more.filter_map(|cut| folded(&format!("The same, {}", charts::cut_name(cut)), charts::speeds(rounds, cut)));
    let cut = cuts.first().map_or(String::new(), |cut| charts::cut_name(cut));
    let source = Line::new(format!(
        "All layers, K and V together, {cut}: up is smaller, right is faster. Numbers beside points are efforts. Speeds are \
         raw bytes over time of one thread of the machine that evaluated; hot tokens are in the ratio and not in the speed. \
         Source: "
    ))
    .code("lossless")
    .text(" of the results.");
    section(
        "Ratio against speed",
        source,
        vec![first],
        "No tensor was encoded (--skip lossless, or a dump shorter than its hot zones), so there are no speeds.",
        more.collect(),
    )
}

fn by_policy(rounds: &[Figures]) -> Vec<Block> {
    let block = rounds.iter().map(|r| r.block_tokens).find(|block| *block > 0).unwrap_or(0);
    let skipped = rounds.iter().any(|r| r.front > 0);
    let front = rounds.iter().map(|r| r.front).max().unwrap_or(0);
    let layers =
        if skipped { format!(", layers from {front} on (those before keep all tokens)") } else { String::new() };
    let source = Line::new(format!(
        "Relative L2 error of the attention output against the share of tokens that are kept, both over the steps from the \
         first eviction on; blocks of {block} tokens{layers}. A point is a ratio; left is smaller, down is better. Points at \
         100% evicted nothing: the ratio asked for fewer tokens than are protected. Source: "
    ))
    .code("eviction")
    .text(" of the results.");
    section(
        "Output error against kept tokens",
        source,
        vec![charts::errors(rounds)],
        "Eviction was not replayed: the dump has neither Q nor attention rows, or --skip eviction was given.",
        Vec::new(),
    )
}

fn memory(rounds: &[Figures]) -> Vec<Block> {
    let first = rounds.first();
    let ratios = first.map_or_else(Vec::new, advice::ratios);
    let coding = rounds.iter().find_map(|r| r.base()).map_or(String::new(), |c| name(&c.label()));
    let source = Line::new(format!(
        "One chat, all layers, {coding}. Up to the length of the dump this follows from measured ratios; beyond it is an \
         extrapolation: encoded tokens are taken to shrink as they did in the dump, and protected tokens stay as many."
    ));
    let none = "Without ratios of the codec, or without layers, memory cannot be computed.";
    section("Memory against tokens", source, vec![charts::memory(rounds, &ratios)], none, Vec::new())
}

// Whole cache

fn whole_cache(rounds: &[Figures]) -> Vec<Block> {
    let head = ["one token in", "both", "error", "lossless only", "eviction only", "encoding", "reference's product"];
    let row = |figures: &Figures, whole: &WholeCacheResult| {
        let point =
            figures.curve().and_then(|curve| curve.points.iter().find(|point| point.ratio == whole.target_ratio));
        let cells = [
            number(whole.target_ratio),
            ratio(whole.joint),
            point.map_or("unknown".into(), |point| match point.evicts {
                true => percent(point.error),
                false => "nothing evicted".into(),
            }),
            ratio(whole.lossless_only),
            ratio(whole.lossy_only),
            name(&whole.lossless),
            ratio(whole.reference_product),
        ];
        charts::prefixed(rounds, figures, cells)
    };
    let columns = charts::head(rounds, &head);
    let base = rounds.iter().flat_map(|figures| {
        let wholes = figures.base().map(|base| figures.wholes_of(base));
        wholes.into_iter().flatten().map(|whole| row(figures, whole))
    });
    let main = Table::new("Ratios of the whole cache, raw over kept bytes", &columns, base);
    if main.rows.is_empty() {
        return vec![
            heading("The whole cache"),
            paragraph("Ratios of the whole cache need the codec on every layer, which the results do not have."),
        ];
    }
    let others = rounds.iter().flat_map(|figures| {
        let cut = figures.base().map_or("", |base| &base.cut);
        let same = figures.wholes.iter().filter(move |w| w.cut == cut && w.block_tokens == figures.block_tokens);
        same.map(|whole| row(figures, whole))
    });
    let others = Table::new("All encodings of the same cut", &columns, others);
    let text = Line::new(
        "All raw bytes over all kept bytes. The first layers keep all tokens, encoded; the others keep the tokens that eviction \
         leaves, encoded too. ",
    )
    .strong("Both")
    .text(" is the number to plan with. The reference's product multiplies the lossless ratio of the first layers with the eviction ratio of the others. Source: ")
    .code("whole_cache")
    .text(" of the results.");
    vec![
        heading("The whole cache"),
        paragraph(text),
        Block::Table(main),
        Block::Details("All encodings".into(), std::iter::once(Block::Table(others)).collect()),
    ]
}

// Rounds

/// Figures of rounds side by side, with their change against the first.
fn differences(rounds: &[Figures]) -> Vec<Block> {
    let mut rows = Vec::new();
    let mut add = |label: String, shown: fn(f64) -> String, of: &dyn Fn(&Figures) -> Option<f64>| {
        let values: Vec<Option<f64>> = rounds.iter().map(of).collect();
        if values.iter().all(Option::is_none) {
            return;
        }
        let cell = |value: &Option<f64>| value.map_or("—".into(), shown);
        let against = |value: &Option<f64>| match (values[0], value) {
            (Some(first), Some(value)) => change(first, *value),
            _ => "—".into(),
        };
        let others = values[1..].iter().flat_map(|value| [cell(value), against(value)]);
        rows.push(std::iter::once(label).chain(std::iter::once(cell(&values[0]))).chain(others).collect::<Vec<_>>());
    };
    let Some(base) = rounds.iter().find_map(Figures::base) else {
        return std::iter::once(paragraph("No round has ratios of the codec.")).collect();
    };
    let (label, cut) = (base.label(), &base.cut);
    let sum = |figures: &Figures| figures.coding(&label, cut).map(Coding::total);
    let shown = name(&label);
    add(format!("ratio, lossless, {shown}"), ratio, &|f| Some(sum(f)?.ratio()));
    add(format!("encode, {shown}"), speed, &|f| sum(f)?.encode());
    add(format!("decode, {shown}"), speed, &|f| sum(f)?.decode());
    let mut ratios: Vec<f64> = rounds.iter().flat_map(|r| r.wholes_of(base)).map(|whole| whole.target_ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    for at in ratios.into_iter().take(12) {
        let whole = |f: &Figures| Some(f.whole_at(f.coding(&label, cut)?, at)?.joint);
        add(format!("ratio, both, one token in {}", number(at)), ratio, &whole);
        let error = |f: &Figures| f.curve()?.points.iter().find(|p| p.ratio == at && p.evicts).map(|p| p.error);
        add(format!("error, one token in {}", number(at)), percent, &error);
    }
    let names = rounds.iter().map(|round| name(&round.name)).collect::<Vec<_>>();
    let mut head = vec!["figure", names[0].as_str()];
    names[1..].iter().for_each(|name| head.extend([name.as_str(), "change"]));
    let rows: Vec<Vec<String>> = rows;
    let mut sentences = Vec::new();
    for round in &rounds[1..] {
        if let (Some(from), Some(to)) = (sum(&rounds[0]), sum(round)) {
            sentences.push(
                Line::new(format!("{} against {}: the lossless ratio is ", name(&round.name), names[0]))
                    .strong(format!("{} ({})", ratio(to.ratio()), change(from.ratio(), to.ratio())))
                    .text(format!(
                        ", {} before. Ratios and errors repeat exactly on the same dump; speeds vary with the machine.",
                        ratio(from.ratio())
                    )),
            );
        }
    }
    let mut blocks: Vec<Block> = std::iter::once(Block::List(sentences)).collect();
    let different = rounds[1..].iter().any(|round| round.results.dumps != rounds[0].results.dumps);
    if different {
        let text = "The rounds are of different dumps: differences are of the dumps as much as of the program.";
        blocks.push(Block::Note(text.into()));
    }
    blocks.push(Block::Table(Table::new("Key figures", &head, rows)));
    blocks
}

// Gates

fn gates(cases: &Cases) -> Vec<Block> {
    if cases.is_empty() {
        return Vec::new();
    }
    let failed = cases.iter().filter(|(_, case)| !case.overall_pass).count();
    let verdict =
        if failed == 0 { "All cases pass.".into() } else { format!("{failed} of {} cases fail.", cases.len()) };
    let mut blocks = vec![heading("Gates"), paragraph(Line::default().strong(verdict))];
    for (file, case) in cases.iter().take(24) {
        let title = if case.case.is_empty() { name(file) } else { name(&case.case) };
        let suite = if case.suite.is_empty() { String::new() } else { format!(" ({})", name(&case.suite)) };
        let verdict = if case.overall_pass { "passes" } else { "fails" };
        blocks.push(Block::Heading(3, format!("{title}{suite} {verdict}")));
        let (on, off): (Vec<&Gate>, Vec<&Gate>) = case.gates.iter().partition(|gate| gate.enabled);
        let head = ["gate", "verdict", "value", "target", "reason"];
        blocks.push(Block::Table(Table::new(format!("Gates of {title}"), &head, on.into_iter().map(gate_row))));
        blocks.extend(case.warnings.iter().take(20).map(|w| Block::Note(Line::new(format!("Warning: {}", name(w))))));
        if !off.is_empty() {
            let table = Table::new(format!("Gates of {title} that are off"), &head, off.into_iter().map(gate_row));
            blocks.push(Block::Details("Gates that are off".into(), std::iter::once(Block::Table(table)).collect()));
        }
    }
    blocks
}

fn gate_row(gate: &Gate) -> Vec<String> {
    let verdict = match (gate.enabled, gate.pass) {
        (false, _) => "off",
        (true, true) => "✓ pass",
        (true, false) => "✗ fail",
    };
    let cell = |value: Option<f64>| value.map_or("—".into(), number);
    vec![name(&gate.key), verdict.into(), cell(gate.value), cell(gate.target), name(&gate.reason)]
}

// Findings, settings, provenance

fn provenance(figures: &Figures) -> Vec<Block> {
    let results = &figures.results;
    let mut blocks = Vec::new();
    if results.findings.is_empty() {
        blocks.push(paragraph("The evaluator found nothing unusual in the dump."));
    } else {
        let rows = results.findings.iter().map(|f| vec![name(&f.reason), name(&f.place), sentence(&f.text)]);
        blocks.push(Block::Table(Table::new("Findings of the evaluator", &["kind", "place", "finding"], rows)));
    }
    let state = if results.complete { "complete" } else { "stopped early" };
    let fact = |key: &str, value: String| vec![key.to_owned(), value];
    let own = [
        fact("program", format!("mnn-kv {}", name(&results.program))),
        fact("file", name(&figures.name)),
        fact("dump", name(&results.dumps)),
        fact("content", advice::dump(figures)),
        fact("evaluation", state.into()),
    ];
    let settings = results.settings.iter().flat_map(|(key, value)| match value.as_object() {
        Some(object) => object.iter().collect::<Vec<_>>(),
        None => std::iter::once((key, value)).collect(),
    });
    let setting = |(key, value): (&String, &serde_json::Value)| {
        let text: String = value.to_string().chars().take(MOST_CHARS).collect();
        vec![name(key), name(&text)]
    };
    let rows = own.into_iter().chain(settings.map(setting));
    blocks.push(Block::Table(Table::new("Where the figures come from", &["setting", "value"], rows)));
    blocks
}
