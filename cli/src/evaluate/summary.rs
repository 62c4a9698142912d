//! The results of an evaluation as tables.

use crate::bytes;
use crate::output::table;
use mnnkv_replay::results::{EvictionResult, LosslessResult, Results, WholeCacheResult};
use std::path::Path;

/// Most findings that are printed; the file has all.
const MOST_FINDINGS: usize = 12;

/// Tables of the dump, the codec, eviction and the whole cache.
pub fn text(results: &Results, output: Option<&Path>) -> String {
    let block = results.eviction.first().map_or(0, |r| r.block_tokens);
    let evicted = format!(
        "Eviction with blocks of {block}, mean of the layers from {} on, over the steps from the first eviction on: share \
         of tokens and of attention kept, error of the output",
        front_layers(results)
    );
    let mut text = dump(results);
    for (title, table) in [
        ("Codec, all layers: raw over kept bytes; bytes per second of one thread", lossless(results)),
        (&evicted, eviction(results)),
        ("Whole cache: all raw over all kept bytes", whole_cache(results)),
    ] {
        if !table.is_empty() {
            text += &format!("\n{title}\n{table}");
        }
    }
    if !results.findings.is_empty() {
        let count = results.findings.len();
        text += &format!("\n{count} finding{}\n", if count == 1 { "" } else { "s" });
        for finding in results.findings.iter().take(MOST_FINDINGS) {
            text += &format!("  {}: {}: {}\n", finding.reason, finding.place, finding.text);
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

fn rows(head: &[&str], body: Vec<Vec<String>>) -> String {
    if body.is_empty() {
        return String::new();
    }
    let mut rows = vec![head.iter().map(|cell| (*cell).to_string()).collect()];
    rows.extend(body);
    table(&rows)
}

/// The values of a key in the order of their first appearance.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    items.for_each(|item| {
        if !found.contains(&item) {
            found.push(item);
        }
    });
    found
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    if count > 0 { sum / f64::from(count) } else { 0.0 }
}

fn dump(results: &Results) -> String {
    let body = distinct(results.layers.iter().map(|layer| &layer.run)).into_iter().map(|run| {
        let layers: Vec<_> = results.layers.iter().filter(|layer| layer.run == *run).collect();
        let each = |of: &dyn Fn(&mnnkv_replay::results::LayerResult) -> String| {
            distinct(layers.iter().map(|layer| of(layer))).join(", ")
        };
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
    rows(&["run", "layers", "tokens", "KV heads x dims", "type", "K and V", "attention"], body.collect())
}

/// The first layer that a session evicts from.
fn front_layers(results: &Results) -> u64 {
    results.settings.get("front_layers").and_then(serde_json::Value::as_u64).unwrap_or(0)
}

fn lossless(results: &Results) -> String {
    let whole: Vec<_> = results.lossless.iter().filter(|r| r.head.is_none()).collect();
    let front = front_layers(results);
    let keys = distinct(whole.iter().map(|r| (&r.cut, &r.format, r.effort, &r.rotation)));
    let body = keys.into_iter().map(|(cut, format, effort, rotation)| {
        let of = |tensor: &str| -> Vec<&LosslessResult> {
            let same =
                |r: &&&LosslessResult| (&r.cut, &r.format, r.effort, &r.rotation) == (cut, format, effort, rotation);
            whole.iter().filter(same).filter(|r| r.tensor == tensor).copied().collect()
        };
        let ratio = |results: &[&LosslessResult]| {
            let sum = |of: fn(&LosslessResult) -> u64| results.iter().map(|r| of(r)).sum::<u64>() as f64;
            if results.is_empty() {
                String::new()
            } else {
                format!("{:.3}", sum(|r| r.raw_bytes) / sum(|r| r.kept_bytes))
            }
        };
        let (key, value) = (of("k"), of("v"));
        let first = |list: &[&LosslessResult]| {
            ratio(&list.iter().filter(|r| u64::from(r.layer) < front).copied().collect::<Vec<_>>())
        };
        let all: Vec<_> = key.iter().chain(&value).copied().collect();
        let speed = |of: fn(&LosslessResult) -> Option<f64>| {
            let speeds: Vec<f64> = all.iter().filter_map(|r| of(r)).collect();
            if speeds.is_empty() { String::new() } else { format!("{:.0} MB/s", mean(speeds.into_iter()) / 1e6) }
        };
        let hint = rotation.as_ref().map_or(String::new(), |hint| format!(" {hint}"));
        vec![
            format!("{format} effort {effort}{hint}"),
            cut.clone(),
            ratio(&key),
            ratio(&value),
            first(&key),
            first(&value),
            speed(|r| r.encode_bytes_per_second),
            speed(|r| r.decode_bytes_per_second),
        ]
    });
    let front = |tensor: &str| format!("{tensor}, layers < {front}");
    let head = ["encoding", "cut", "K", "V", &front("K"), &front("V"), "encoded", "decoded"];
    rows(&head, body.collect())
}

/// Policies by ratio, with the first block length and the layers that a session evicts from; the file has all.
fn eviction(results: &Results) -> String {
    let Some(block) = results.eviction.first().map(|r| r.block_tokens) else { return String::new() };
    let is_shown = |r: &&EvictionResult| r.block_tokens == block && u64::from(r.layer) >= front_layers(results);
    let of_block: Vec<&EvictionResult> = results.eviction.iter().filter(is_shown).collect();
    let ratios = distinct(of_block.iter().map(|r| r.target_ratio));
    let mut body = Vec::new();
    for policy in distinct(of_block.iter().map(|r| &r.policy)) {
        for ratio in &ratios {
            let same = |r: &&&EvictionResult| (&r.policy, r.target_ratio) == (policy, *ratio);
            let mean_of = |of: fn(&EvictionResult) -> f64| mean(of_block.iter().filter(same).map(|r| of(r)));
            // A ratio that evicts nothing tells nothing.
            if mean_of(|r| r.evictions as f64) == 0.0 {
                continue;
            }
            body.push(vec![
                policy.clone(),
                ratio.to_string(),
                format!("{:.3}", mean_of(|r| r.kept_share)),
                format!("{:.4}", mean_of(|r| r.kept_mass)),
                format!("{:.4}", mean_of(|r| r.relative_l2)),
                format!("{:.4}", mean_of(|r| r.cosine)),
                format!("{:.0}", mean_of(|r| r.moved_tokens)),
                bytes::format(mean_of(|r| r.restored_bytes_per_step.unwrap_or(0.0)) as u64),
            ]);
        }
    }
    rows(&["policy", "ratio", "kept", "mass", "error", "cosine", "moved", "restored per step"], body)
}

/// Each encoding of the default effort, or of the first one, by ratio; the first block length. The file has all.
fn whole_cache(results: &Results) -> String {
    let Some(first) = results.whole_cache.first() else { return String::new() };
    let of_block = || results.whole_cache.iter().filter(|r| r.block_tokens == first.block_tokens);
    let usual = format!("effort {}", mnnkv::gear::Effort::DEFAULT.get());
    let is_usual = |r: &&WholeCacheResult| r.lossless.contains(&usual);
    let has_usual = of_block().any(|r| is_usual(&r));
    // A session cuts blocks, so these are shown where there are any.
    let cut = if of_block().any(|r| r.cut == "blocks") { "blocks" } else { "whole" };
    let body = of_block().filter(|r| r.cut == cut && (!has_usual || is_usual(r))).map(|r| {
        let numbers = [r.lossless_only, r.lossy_only, r.joint, r.reference_product].map(|ratio| format!("{ratio:.2}"));
        let mut row = vec![r.run.clone(), r.lossless.clone(), r.cut.clone(), r.target_ratio.to_string()];
        row.extend(numbers);
        row
    });
    let head = ["run", "encoding", "cut", "ratio", "lossless", "eviction", "both", "reference's product"];
    rows(&head, body.collect())
}
