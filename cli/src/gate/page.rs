//! The summary of one case as Markdown.

use super::cells::{Column, Row};
use super::judge::Runtime;
use super::read::Inputs;
use super::verdict::{Gate, Verdict, fixed};
use crate::table;
use std::fmt::Write as _;

/// Rows of the list at the end.
const TOP: usize = 5;

/// Averages in groups, with decimals.
const AVERAGES: [&[(&str, Column, usize)]; 4] = [
    &[
        ("target keep effective", Column::TargetKeep, 4),
        ("floor keep (sink+recent)", Column::FloorKeep, 4),
        ("quantized keep", Column::QuantizedKeep, 4),
        ("evict us", Column::Evict, 2),
        ("codec us", Column::Codec, 2),
    ],
    &[
        ("lossless raw MB", Column::RawMb, 4),
        ("lossless comp MB", Column::CompMb, 4),
        ("lossless comp us", Column::Comp, 2),
        ("lossless decomp us", Column::Decomp, 2),
        ("lossless queue peak", Column::QueuePeak, 2),
        ("lossless fallback", Column::Fallback, 2),
    ],
    &[("lossless backpressure skip", Column::BackpressureSkip, 2)],
    &[
        ("lossless async queue peak", Column::AsyncQueuePeak, 2),
        ("lossless async wait us", Column::AsyncWait, 2),
        ("lossless decode cache hit", Column::CacheHit, 2),
        ("lossless decode cache miss", Column::CacheMiss, 2),
    ],
];

/// Text on one line, so that no input begins a line of its own.
fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// A runtime case as the reference writes it; then, unless faithful, every gate with its reason.
pub fn runtime(case: &Runtime, verdict: &Verdict) -> String {
    let mut page = String::from("# H2O final Summary\n\n");
    let selected = case.selected();
    let mut item = |label: &str, text: String| {
        let _ = writeln!(page, "- {label}: {text}");
    };
    let mean = |column, decimals| fixed(case.mean(column), decimals);
    item("Rows", case.inputs.rows.len().to_string());
    item("Avg keep ratio", mean(Column::Keep, 4));
    item("Avg lossy ratio", mean(Column::Lossy, 4));
    item("Avg runtime lossless ratio", mean(Column::Lossless, 4));
    item("Lossless selected source", selected.source.into());
    item("Lossless selected value", fixed(selected.value, 4));
    let Inputs { upper, online, .. } = case.inputs;
    for (label, offline) in [("Offline upper-bound lossless", upper), ("Offline online-sim lossless", online)] {
        if let Some(offline) = offline {
            item(label, fixed(Some(offline.ratio), 4));
        }
    }
    let total = case.mean(Column::Lossy).zip(selected.value).map(|(lossy, lossless)| lossy * lossless);
    item("Avg total ratio (selected)", fixed(total, 4));
    for (i, group) in AVERAGES.iter().enumerate() {
        if i > 0 {
            page.push('\n');
        }
        for (label, column, decimals) in *group {
            let _ = writeln!(page, "- Avg {label}: {}", mean(*column, *decimals));
        }
    }
    best_rows(&mut page, case);
    page += "\n## Quality Gate\n\n";
    for (key, fact) in &verdict.facts {
        let _ = writeln!(page, "- {key}: {}", line(&fact.text()));
    }
    if !case.faithful {
        page += &gates(verdict);
    }
    page
}

/// The figures of a row in the lists.
struct Shown<'a> {
    total: Option<f64>,
    decode: Option<f64>,
    row: &'a Row,
}

/// A figure of a row.
type Figure<'a> = &'a dyn Fn(&Shown) -> Option<f64>;

fn best_rows(page: &mut String, case: &Runtime) {
    let selected = case.selected();
    let number = |row: &Row, column| row.number(column).or(case.faithful.then_some(0.0));
    let rows = case.inputs.rows.iter().map(|row| {
        let total = number(row, Column::Lossy).zip(selected.value).map(|(lossy, lossless)| lossy * lossless);
        Shown { total, decode: row.decode.number(), row }
    });
    let rows = rows.collect::<Vec<_>>();
    let texts = |shown: &Shown| {
        let of = |column, decimals| fixed(number(shown.row, column), decimals);
        [
            ("total ratio".to_owned(), fixed(shown.total, 4)),
            ("keep ratio".into(), of(Column::Keep, 4)),
            ("lossy ratio".into(), of(Column::Lossy, 4)),
            (format!("lossless ratio ({})", selected.source), fixed(selected.value, 4)),
            ("runtime lossless ratio".into(), of(Column::Lossless, 4)),
            ("decode tps".into(), fixed(shown.decode, 2)),
            ("log".into(), format!("`{}`", line(&shown.row.place.file))),
        ]
    };
    // The order of the items differs between the three lists.
    let lists: [(&str, Figure, &[usize]); 3] = [
        ("Best Lossy Ratio", &|s| number(s.row, Column::Lossy), &[2, 1, 3, 4, 0, 5, 6]),
        ("Best Decode TPS", &|s| s.decode, &[5, 1, 2, 3, 4, 0, 6]),
        ("Best Total Ratio", &|s| s.total, &[0, 2, 3, 4, 5, 6]),
    ];
    for (title, figure, order) in lists {
        let best = rows
            .iter()
            .filter(|s| figure(s).is_some())
            .reduce(|best, s| if figure(s) > figure(best) { s } else { best });
        let Some(best) = best else { continue };
        let _ = write!(page, "\n## {title}\n\n");
        let items = texts(best);
        for i in order {
            let _ = writeln!(page, "- {}: {}", items[*i].0, items[*i].1);
        }
    }
    let mut sorted: Vec<&Shown> = rows.iter().collect();
    let order =
        |a: Option<f64>, b: Option<f64>| a.unwrap_or(f64::NEG_INFINITY).total_cmp(&b.unwrap_or(f64::NEG_INFINITY));
    sorted.sort_by(|a, b| order(b.total, a.total).then(order(b.decode, a.decode)));
    *page += "\n## Pareto Top-5 (by selected total then decode)\n\n";
    for (i, shown) in sorted.iter().take(TOP).enumerate() {
        let lossy = fixed(number(shown.row, Column::Lossy), 4);
        let (total, decode) = (fixed(shown.total, 4), fixed(shown.decode, 2));
        let (lossless, log) = (fixed(selected.value, 4), line(&shown.row.place.file));
        let _ = writeln!(
            page,
            "{}. total={total}, decode={decode}, lossy={lossy}, lossless={lossless}, log=`{log}`",
            i + 1
        );
    }
}

/// The columns of a table of gates.
pub const HEAD: [&str; 5] = ["gate", "verdict", "value", "target", "reason"];

/// Every gate with its reason, and the warnings.
pub fn gates(verdict: &Verdict) -> String {
    let row = |gate: &Gate| row(gate).iter().map(|cell| line(cell).replace('|', "\\|")).collect();
    let rows = verdict.gates.iter().map(row);
    let mut page = format!("\n## Gates\n\n{}", table::markdown(&HEAD, |_| false, rows));
    if !verdict.warnings.is_empty() {
        page += "\n## Warnings\n\n";
        verdict.warnings.iter().for_each(|warning| page += &format!("- {}\n", line(warning)));
    }
    page
}

/// The cells of a gate.
pub fn row(gate: &Gate) -> Vec<String> {
    let number = |n: Option<f64>| n.map_or_else(String::new, short);
    let verdict = match (gate.enabled, gate.pass) {
        (false, _) => "off",
        (true, true) => "pass",
        (true, false) => "FAIL",
    };
    let target = number(gate.target.filter(|_| gate.enabled));
    vec![gate.key.to_string(), verdict.into(), number(gate.value), target, gate.reason.clone()]
}

/// At most four decimals.
fn short(number: f64) -> String {
    let text = fixed(Some(number), 4);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A case without rows: an llm_demo case, an evaluation or a perplexity.
pub fn other(verdict: &Verdict) -> String {
    let mut page = format!("# {} summary\n\n- overall_pass: {}\n", verdict.suite, verdict.passed());
    for (key, fact) in &verdict.facts {
        let _ = writeln!(page, "- {key}: {}", line(&fact.text()));
    }
    page + &gates(verdict)
}
