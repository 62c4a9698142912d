//! The tables of an evaluation, for terminals and for pages.

use crate::bytes;
use crate::output::visible;
use crate::results::{Coding, Figures, Sum, distinct};
use crate::table::Table;
use mnnkv_replay::results::{LayerResult, Results, WholeCacheResult};
use std::path::Path;

/// Most findings that are printed; the file has all.
const MOST_FINDINGS: usize = 12;

/// The tables, the first findings, and where the rest is.
pub fn text(figures: &Figures, output: Option<&Path>) -> String {
    let results = &figures.results;
    let tables = [dump(results), codec(figures), whole_cache(figures)];
    let mut text = tables.iter().map(Table::text).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
    if !results.findings.is_empty() {
        text += &format!("\n{}\n", bytes::plural(results.findings.len() as u64, "finding"));
        for finding in results.findings.iter().take(MOST_FINDINGS) {
            text += &format!("  {}: {}: {}\n", finding.reason, visible(&finding.place), visible(&finding.text));
        }
        let more = results.findings.len().saturating_sub(MOST_FINDINGS);
        if more > 0 {
            text += &format!("  and {more} more: --json has all\n");
        }
    }
    if !results.complete {
        text += "\nStopped: the results above are those that were finished.\n";
    }
    if let Some(path) = output {
        text += &format!("\n{}: mnnkv report shows it as a page\n", path.display());
    }
    text
}

/// What was evaluated.
pub fn dump(results: &Results) -> Table {
    let rows = distinct(results.layers.iter().map(|layer| &layer.run)).into_iter().map(|run| {
        let layers: Vec<_> = results.layers.iter().filter(|layer| layer.run == *run).collect();
        let each = |of: &dyn Fn(&LayerResult) -> String| distinct(layers.iter().map(|layer| of(layer))).join(", ");
        vec![
            run.clone(),
            layers.len().to_string(),
            each(&|l| bytes::count(l.tokens as u64)),
            each(&|l| format!("{} x {}", l.kv_heads, l.head_dim)),
            each(&|l| l.dtype.clone()),
            bytes::format(layers.iter().fold(0, |sum: u64, l| sum.saturating_add(l.raw_bytes))),
        ]
    });
    Table::new("Dump", &["run", "layers", "tokens", "KV heads x dims", "type", "K and V"], rows)
}

/// The codec in both cuts, of all layers and of the first ones.
pub fn codec(figures: &Figures) -> Table {
    let ratio = |sum: Sum| if sum.raw > 0.0 { format!("{:.3}", sum.ratio()) } else { String::new() };
    let speed = |bytes: Option<f64>| bytes.map_or(String::new(), |bytes| format!("{:.0} MB/s", bytes / 1e6));
    let row = |coding: &Coding| {
        let total = coding.total();
        vec![
            coding.cut.clone(),
            ratio(coding.tensor(0, u32::MAX)),
            ratio(coding.tensor(1, u32::MAX)),
            ratio(coding.tensor(0, figures.front)),
            ratio(coding.tensor(1, figures.front)),
            speed(total.encode()),
            speed(total.decode()),
        ]
    };
    let title = format!(
        "Codec: raw over kept bytes of all layers and of those before {}; bytes per second of one thread",
        figures.front
    );
    let head = ["cut", "K", "V", "K, first layers", "V, first layers", "encoded", "decoded"];
    Table::new(title, &head, figures.codings.iter().map(row))
}

/// Ratios over all layers, as a session cuts, by ratio; the shown block length. The file has all.
pub fn whole_cache(figures: &Figures) -> Table {
    let Figures { results, block_tokens, .. } = figures;
    let cut = figures.codings.first().map_or("", |coding| &coding.cut);
    let row = |r: &WholeCacheResult| {
        let numbers = [r.lossless_only, r.lossy_only, r.joint, r.reference_product].map(|ratio| format!("{ratio:.2}"));
        [vec![r.run.clone(), r.target_ratio.to_string()], numbers.to_vec()].concat()
    };
    let shown = results.whole_cache.iter().filter(|r| r.block_tokens == *block_tokens && r.cut == cut);
    let title = format!("Whole cache, {cut}: all raw over all kept bytes");
    Table::new(title, &["run", "ratio", "lossless", "eviction", "both", "reference's product"], shown.map(row))
}
