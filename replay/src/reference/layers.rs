//! Byte entropies and ZSTD ratios of each entry and head, as the reference's analyser of dumps reports them.

use super::Refused;
use super::options::{Options, Predictor, Stage};
use super::planes::predict;
use super::stream::{Shape, compressed};
use crate::dumps::folder::{self, Entry};
use crate::error::Finding;
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Numbers by name.
pub type Row = Map<String, Value>;

/// Rows as JSON, with the names of the reference system.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// A row for each entry.
    pub layers: Vec<Row>,
    /// A row for each head of each entry.
    pub heads: Vec<Row>,
    /// `weighted_*`: ratios over the bytes of all rows, `avg_*`: their means.
    pub summary: Row,
    /// Skipped metas, gaps and overlaps.
    pub findings: Vec<Finding>,
}

/// Measures the entries of all layers. Among the options, stage, lengths and the level of ZSTD count.
pub fn profile(root: &Path, options: &Options) -> Result<Profile, Refused> {
    options.check()?;
    let scan = folder::scan(root)?;
    let at_most = if options.max_seq_len == 0 { i64::MAX } else { options.max_seq_len };
    let kept = |entry: &&Entry| {
        let stage = options.stage == Stage::Both || options.stage.name() == entry.stage;
        stage && (options.min_seq_len..=at_most).contains(&i64::try_from(entry.seq_len).unwrap_or(i64::MAX))
    };
    let entries: Vec<&Entry> = scan.entries.iter().filter(kept).collect();
    if entries.is_empty() {
        let first = scan.findings.first().map(|f| format!("; {}: {}", f.place, f.text)).unwrap_or_default();
        return Err(Refused(format!("{}: no entries to measure{first}", root.display())));
    }
    let measured: Result<Vec<_>, Refused> =
        entries.par_iter().map(|entry| measure(entry, options.zstd_level)).collect();
    let mut profile = Profile { findings: scan.findings, ..Profile::default() };
    for (layer, heads) in measured? {
        profile.layers.push(layer);
        profile.heads.extend(heads);
    }
    profile.summary = summary(&entries, &profile.layers);
    Ok(profile)
}

/// The rows of an entry and of its heads.
fn measure(entry: &Entry, level: i32) -> Result<(Row, Vec<Row>), Refused> {
    let width = entry.bytes_per_elem;
    let shape = Shape { row: entry.kv_heads * entry.head_dim * width, dim: entry.head_dim * width };
    let [key, value] = [entry.load(&entry.key)?, entry.load(&entry.value)?];
    let mut layer = Map::new();
    let place = json!({
        "layer_id": entry.layer_id, "stage": entry.stage, "seq_start": entry.seq_start, "seq_len": entry.seq_len,
        "kv_heads": entry.kv_heads, "head_dim": entry.head_dim, "bytes_per_elem": width,
    });
    layer.extend(place.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    let mut heads = Vec::new();
    for head in 0..entry.kv_heads {
        let mut row = layer.clone();
        row.shift_remove("kv_heads");
        row.insert("head_id".into(), json!(head));
        for (name, words) in [("k", &key), ("v", &value)] {
            let tokens = words.chunks_exact(shape.row).flat_map(|token| &token[head * shape.dim..][..shape.dim]);
            let words: Vec<u8> = tokens.copied().collect();
            add(&mut row, name, width, &metrics(&words, Shape { row: shape.dim, ..shape }, width, level));
        }
        heads.push(row);
    }
    for (name, words) in [("k", &key), ("v", &value)] {
        // The names of the other width are there with zeros.
        add(&mut layer, name, 6 - width, &[0.0; METRICS.len()]);
        add(&mut layer, name, width, &metrics(words, shape, width, level));
    }
    Ok((layer, heads))
}

/// The measures of a tensor: for f16 of its high and low bytes, for f32 of its high and low halves.
const METRICS: [(&str, &str); 9] = [
    ("entropy", "entropy"),
    ("zstd_ratio", "zstd_ratio"),
    ("hi_entropy", "hi16_entropy"),
    ("lo_entropy", "lo16_entropy"),
    ("hi_ratio", "hi16_ratio"),
    ("lo_ratio", "lo16_ratio"),
    ("gear_ratio", "split16_ratio"),
    ("hi_delta_ratio", "hi16_delta_ratio"),
    ("gear_delta_ratio", "split16_delta_ratio"),
];

fn add(row: &mut Row, tensor: &str, width: usize, values: &[f64; METRICS.len()]) {
    for ((narrow, wide), value) in METRICS.iter().zip(values) {
        let name = if width == 2 { narrow } else { wide };
        row.insert(format!("{tensor}_{name}"), json!(value));
    }
}

fn metrics(words: &[u8], shape: Shape, width: usize, level: i32) -> [f64; METRICS.len()] {
    let half = width / 2;
    let part = |offset: usize| -> Vec<u8> {
        words.chunks_exact(width).flat_map(|word| &word[offset..offset + half]).copied().collect()
    };
    let [lo, hi] = [part(0), part(half)];
    let mut delta = vec![0; hi.len()];
    let row = shape.row / 2;
    if half == 1 {
        predict(Predictor::DeltaSeq, &hi, Shape { row, dim: shape.dim / 2 }, &mut delta);
    } else {
        delta_of_halves(&hi, row, &mut delta);
    }
    let [whole, lo_size, hi_size, delta_size] = [words, &lo, &hi, &delta].map(|bytes| compressed(bytes, level) as f64);
    let ratio = |bytes: &[u8], size: f64| bytes.len() as f64 / size;
    [
        entropy(words),
        ratio(words, whole),
        entropy(&hi),
        entropy(&lo),
        ratio(&hi, hi_size),
        ratio(&lo, lo_size),
        ratio(words, hi_size + lo_size),
        ratio(&hi, delta_size),
        ratio(words, delta_size + lo_size),
    ]
}

/// Words of two bytes minus those one token of `row` bytes before.
fn delta_of_halves(words: &[u8], row: usize, out: &mut [u8]) {
    out.copy_from_slice(words);
    let pairs = words.get(row..).unwrap_or_default().chunks_exact(2).zip(words.chunks_exact(2));
    for (out, (word, before)) in out[row.min(words.len())..].chunks_exact_mut(2).zip(pairs) {
        let difference =
            u16::from_le_bytes([word[0], word[1]]).wrapping_sub(u16::from_le_bytes([before[0], before[1]]));
        out.copy_from_slice(&difference.to_le_bytes());
    }
}

/// Bits per byte, of order 0.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0u64; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let share = |count: &u64| *count as f64 / bytes.len() as f64;
    -counts.iter().filter(|count| **count > 0).map(|count| share(count) * share(count).log2()).sum::<f64>()
}

/// Means and weighted means of ratios. Rows without a ratio do not count.
fn summary(entries: &[&Entry], rows: &[Row]) -> Row {
    let mut summary = Map::new();
    for name in ["zstd_ratio", "gear_ratio", "gear_delta_ratio"] {
        for tensor in ["k", "v"] {
            let key = format!("{tensor}_{name}");
            let ratios = rows.iter().map(|row| row.get(&key).and_then(Value::as_f64).unwrap_or_default());
            let raw = entries.iter().map(|entry| entry.tensor_bytes().unwrap_or_default() as f64);
            let both: Vec<(f64, f64)> = raw.zip(ratios).filter(|(_, ratio)| *ratio > 0.0).collect();
            if both.is_empty() {
                continue;
            }
            let mean = both.iter().map(|(_, ratio)| ratio).sum::<f64>() / both.len() as f64;
            let raw: f64 = both.iter().map(|(raw, _)| raw).sum();
            let kept: f64 = both.iter().map(|(raw, ratio)| raw / ratio).sum();
            summary.insert(format!("avg_{key}"), json!(mean));
            summary.insert(format!("weighted_{key}"), json!(raw / kept));
        }
    }
    summary
}
