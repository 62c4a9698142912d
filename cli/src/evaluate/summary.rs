//! The results of an evaluation as tables.

use crate::bytes;
use crate::figures::{Curve, Figures, Point, Sum, distinct};
use crate::output::visible;
use crate::table;
use mnnkv_replay::results::{LayerResult, Results, WholeCacheResult};
use std::path::Path;

/// Most findings that are printed; the file has all.
const MOST_FINDINGS: usize = 12;

/// Tables of the dump, the codec, eviction and the whole cache.
pub fn text(figures: &Figures, output: Option<&Path>) -> String {
    let results = &figures.results;
    let evicted = format!(
        "Eviction with blocks of {}, mean of the layers from {} on, over the steps from the first eviction on: share \
         of tokens and of attention kept, error of the output",
        figures.block_tokens, figures.front
    );
    let mut text = dump(results);
    for (title, table) in [
        ("Codec, all layers: raw over kept bytes; bytes per second of one thread", lossless(figures)),
        (&evicted, eviction(figures)),
        ("Whole cache: all raw over all kept bytes", whole_cache(results)),
    ] {
        if !table.is_empty() {
            text += &format!("\n{title}\n{table}");
        }
    }
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

fn dump(results: &Results) -> String {
    let body = distinct(results.layers.iter().map(|layer| &layer.run)).into_iter().map(|run| {
        let layers: Vec<_> = results.layers.iter().filter(|layer| layer.run == *run).collect();
        let each = |of: &dyn Fn(&LayerResult) -> String| distinct(layers.iter().map(|layer| of(layer))).join(", ");
        vec![
            run.clone(),
            layers.len().to_string(),
            each(&|l| bytes::count(l.tokens as u64)),
            each(&|l| format!("{} x {}", l.kv_heads, l.head_dim)),
            each(&|l| l.dtype.clone()),
            bytes::format(layers.iter().map(|l| l.raw_bytes).sum()),
            each(&|l| l.scores_from.clone().unwrap_or_else(|| "none".into())),
        ]
    });
    table::text(&["run", "layers", "tokens", "KV heads x dims", "type", "K and V", "attention"], body)
}

fn lossless(figures: &Figures) -> String {
    let ratio = |sum: Sum| if sum.raw > 0.0 { format!("{:.3}", sum.ratio()) } else { String::new() };
    let speed = |bytes: Option<f64>| bytes.map_or(String::new(), |bytes| format!("{:.0} MB/s", bytes / 1e6));
    let body = figures.codings.iter().map(|coding| {
        let first =
            |tensor: usize| Sum::join(coding.layers.range(..figures.front).filter_map(|(_, sums)| sums[tensor]));
        let total = coding.total();
        vec![
            coding.label(),
            coding.cut.clone(),
            ratio(coding.tensor(0)),
            ratio(coding.tensor(1)),
            ratio(first(0)),
            ratio(first(1)),
            speed(total.encode()),
            speed(total.decode()),
        ]
    });
    let front = |tensor: &str| format!("{tensor}, layers < {}", figures.front);
    let head = ["encoding", "cut", "K", "V", &front("K"), &front("V"), "encoded", "decoded"];
    table::text(&head, body)
}

/// Policies by ratio, with one block length and the layers that a session evicts from; the file has all.
fn eviction(figures: &Figures) -> String {
    let row = |curve: &Curve, point: &Point| {
        vec![
            curve.policy.clone(),
            point.ratio.to_string(),
            format!("{:.3}", point.kept_share),
            format!("{:.4}", point.kept_mass),
            format!("{:.4}", point.error),
            format!("{:.4}", point.cosine),
            format!("{:.0}", point.moved),
            point.restored.map_or(String::new(), |restored| bytes::format(restored as u64)),
        ]
    };
    // A ratio that evicts nothing tells nothing.
    let body = figures
        .shown_curves()
        .flat_map(|curve| curve.points.iter().filter(|point| point.evicts).map(move |point| row(curve, point)));
    table::text(&["policy", "ratio", "kept", "mass", "error", "cosine", "moved", "restored per step"], body)
}

/// Each encoding of the default effort, or all without one of that, by ratio; the first block length. The file has all.
fn whole_cache(results: &Results) -> String {
    let Some(first) = results.whole_cache.first() else { return String::new() };
    let of_block = || results.whole_cache.iter().filter(|r| r.block_tokens == first.block_tokens);
    let usual = format!("effort {}", mnnkv::gear::Effort::DEFAULT.get());
    let is_usual = |r: &&WholeCacheResult| r.lossless.contains(&usual);
    let has_usual = of_block().any(|r| is_usual(&r));
    // A session cuts blocks, so these are shown where there are any.
    let cut = if of_block().any(|r| r.cut == "blocks") { "blocks" } else { "whole" };
    let body = of_block().filter(|r| r.cut == cut && (!has_usual || is_usual(r) || r.lossless == "lanes")).map(|r| {
        let numbers = [r.lossless_only, r.lossy_only, r.joint, r.reference_product].map(|ratio| format!("{ratio:.2}"));
        let mut row = vec![r.run.clone(), r.lossless.clone(), r.cut.clone(), r.target_ratio.to_string()];
        row.extend(numbers);
        row
    });
    let head = ["run", "encoding", "cut", "ratio", "lossless", "eviction", "both", "reference's product"];
    table::text(&head, body)
}
