//! Sums to JSON.

use super::options::{CodecMode, Lists, Options, Predictor};
use super::select::Selection;
use super::stream::Counts;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Sizes of K or of V, of a unit or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TensorSums {
    pub raw: u64,
    pub compressed: u64,
    /// The bytes among `compressed` that tell chunks or entries apart.
    pub overhead: u64,
    pub chunks: u64,
    pub hi: Counts,
    pub lo: Counts,
}

impl TensorSums {
    pub fn add(&mut self, other: &TensorSums) {
        self.raw += other.raw;
        self.compressed = self.compressed.saturating_add(other.compressed);
        self.overhead = self.overhead.saturating_add(other.overhead);
        self.chunks += other.chunks;
        self.hi.iter_mut().zip(other.hi).for_each(|(sum, n)| *sum += n);
        self.lo.iter_mut().zip(other.lo).for_each(|(sum, n)| *sum += n);
    }
}

/// Sizes of all units.
#[derive(Default)]
pub struct Sums {
    pub key: TensorSums,
    pub value: TensorSums,
}

/// The result with the keys of the reference system, in its order.
pub fn build(
    root: &Path,
    options: &Options,
    predictors: &[Lists; 2],
    selection: &Selection,
    sums: &Sums,
) -> Map<String, Value> {
    let Sums { key, value } = sums;
    let ratio = |raw: u64, compressed: u64| if compressed == 0 { 0.0 } else { raw as f64 / compressed as f64 };
    let raw = key.raw + value.raw;
    let compressed = key.compressed.saturating_add(value.compressed);
    let whole = ratio(raw, compressed);
    let names = |list: &[Predictor]| Value::from_iter(list.iter().map(|predictor| predictor.name()));
    let counts = |list: &[Predictor], legacy: Predictor, counts: &Counts| -> Value {
        let list = if options.codec_mode == CodecMode::Legacy { vec![legacy] } else { list.to_vec() };
        let list = if selection.units.is_empty() { vec![] } else { list };
        list.iter().map(|predictor| (predictor.name().to_owned(), json!(counts[*predictor as usize]))).collect()
    };
    let [[k_hi_predictors, k_lo_predictors], [v_hi_predictors, v_lo_predictors]] = predictors;
    let skipped: u64 = selection.skips.iter().map(|(_, count)| count).sum();
    let asked = json!({
        "schema_version": 3,
        "dump_dir": root.to_string_lossy(),
        "stage": options.stage.name(),
        "scope": options.scope.name(),
        "front_n": options.front_n,
        "layer_start": options.layer_start,
        "layer_end": options.layer_end,
        "layer_ids": options.layer_ids,
        "selected_layers": selection.layers,
        "selected_entries": selection.entries.len(),
        "selected_dumps": selection.dumps,
        "entry_mode": options.entry_mode.name(),
        "online_chunk_seq": options.online_chunk_seq,
        "online_framing_bytes": options.online_framing_bytes,
        "aggregate_by_stage": options.aggregate_by_stage,
        "aggregate_groups": selection.groups,
        "online_chunks": key.chunks + value.chunks,
        "codec": "fp16_gear_predictive_zstd",
        "codec_mode": options.codec_mode.name(),
        "bitshuffle": options.bitshuffle,
        "adaptive_block_seq": options.adaptive_block_seq,
        "k_hi_predictors": names(k_hi_predictors),
        "k_lo_predictors": names(k_lo_predictors),
        "v_hi_predictors": names(v_hi_predictors),
        "v_lo_predictors": names(v_lo_predictors),
        "zstd_level": options.zstd_level,
    });
    let sizes = json!({
        "k_raw_bytes": key.raw,
        "k_compressed_bytes": key.compressed,
        "v_raw_bytes": value.raw,
        "v_compressed_bytes": value.compressed,
        "k_chunk_meta_bytes": key.overhead,
        "v_chunk_meta_bytes": value.overhead,
        "raw_bytes": raw,
        "compressed_bytes": compressed,
        "k_lossless_ratio": ratio(key.raw, key.compressed),
        "v_lossless_ratio": ratio(value.raw, value.compressed),
        "lossless_ratio": whole,
        "weighted_lossless_ratio": whole,
        "k_hi_mode_counts": counts(k_hi_predictors, Predictor::DeltaSeq, &key.hi),
        "k_lo_mode_counts": counts(k_lo_predictors, Predictor::Raw, &key.lo),
        "v_hi_mode_counts": counts(v_hi_predictors, Predictor::DeltaSeq, &value.hi),
        "v_lo_mode_counts": counts(v_lo_predictors, Predictor::Raw, &value.lo),
    });
    let metas = json!({
        "scanned_entries": selection.scanned,
        "converted_fp32_entries": selection.converted,
        "skipped_entries": skipped,
        "skip_reasons": selection.skips.iter().map(|(reason, n)| (reason.clone(), json!(n))).collect::<Map<_, _>>(),
    });
    let mended = match selection.mended.as_slice() {
        [] => json!({}),
        list => json!({ "mended": list }),
    };
    let parts = [asked, sizes, metas, mended];
    parts.iter().filter_map(Value::as_object).flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// JSON as Python's `json.dumps(result, indent=2)` writes it: ASCII only, without a last newline.
pub fn python_json(result: &Map<String, Value>) -> String {
    let mut text = String::new();
    // Characters beyond ASCII occur in strings only.
    for c in format!("{:#}", Value::from(result.clone())).chars() {
        match c {
            c if c.is_ascii() && c != '\u{7f}' => text.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}")),
        }
    }
    text
}
