//! Results of `mnnkv evaluate`: read, checked and summed, for the commands that show or judge them. Their content is not
//! trusted: each number is checked before it is used.

use crate::input::{short, typed};
use mnnkv_replay::codec::BLOCKS;
use mnnkv_replay::results::{FORMAT, LosslessResult, Results, VERSION};
use serde_json::Value;
use std::collections::BTreeMap;

/// Whether a JSON value is meant as a result of `mnnkv evaluate`.
pub fn is_one(value: &Value) -> bool {
    value.get("format").is_some_and(|format| format == FORMAT)
}

/// A result of `mnnkv evaluate`, checked. The error names the field.
pub fn read(value: &Value) -> Result<Results, String> {
    match value.get("version") {
        Some(version) if *version == VERSION => {}
        Some(version) => return Err(format!("version is {}; {VERSION} expected", short(version))),
        None => return Err(format!("version is missing; {VERSION} expected")),
    }
    let results: Results = typed(value)?;
    check(&results)?;
    Ok(results)
}

/// Checks that every number has a meaning. JSON has no NaN, but it has 1e300 and -1.
fn check(results: &Results) -> Result<(), String> {
    let ratio = |field, value| (field, value, 1e-6, 1e9);
    let target = |value: f64| ("target_ratio", value, 1.0, 1e6);
    let block = |tokens: u32| ("block_tokens", tokens.into(), 1.0, 65536.0);
    let list = |list: &str, i: usize, fields: &[(&str, f64, f64, f64)]| {
        let wrong = fields.iter().find(|(_, value, least, most)| !(least..=most).contains(&value));
        wrong.map_or(Ok(()), |(field, value, least, most)| {
            Err(format!("{list}[{i}].{field} is {value:e}; a number from {least} to {most:e} expected"))
        })
    };
    for (i, layer) in results.layers.iter().enumerate() {
        let (tokens, raw) = (layer.tokens as f64, layer.raw_bytes as f64);
        list("layers", i, &[("tokens", tokens, 1.0, 1e12), ("raw_bytes", raw, 1.0, 1e18)])?;
    }
    for (i, r) in results.lossless.iter().enumerate() {
        let (raw, kept) = (r.raw_bytes as f64, r.kept_bytes as f64);
        let speed = |field, speed: Option<f64>| (field, speed.unwrap_or(1.0), 1.0, 1e15);
        let fields = [
            ("raw_bytes", raw, 1.0, 1e18),
            ("kept_bytes", kept, 1.0, 1e18),
            ("hot_bytes", r.hot_bytes as f64, 0.0, raw.min(kept)),
            ratio("ratio", r.ratio),
            speed("encode_bytes_per_second", r.encode_bytes_per_second),
            speed("decode_bytes_per_second", r.decode_bytes_per_second),
        ];
        list("lossless", i, &fields)?;
        if !["k", "v"].contains(&r.tensor.as_str()) {
            return Err(format!("lossless[{i}].tensor is {:?}; \"k\" or \"v\" expected", short(&r.tensor)));
        }
    }
    for (i, r) in results.whole_cache.iter().enumerate() {
        let fields = [
            target(r.target_ratio),
            block(r.block_tokens),
            ratio("front_lossless", r.front_lossless),
            ratio("deep_lossy", r.deep_lossy),
            ratio("deep_lossless", r.deep_lossless),
            ratio("lossless_only", r.lossless_only),
            ratio("lossy_only", r.lossy_only),
            ratio("joint", r.joint),
            ratio("reference_product", r.reference_product),
        ];
        list("whole_cache", i, &fields)?;
    }
    Ok(())
}

/// Everything that is shown of one evaluation.
pub struct Figures {
    /// The name of the file.
    pub name: String,
    /// As read.
    pub results: Results,
    /// The codec in each cut; that of a session first.
    pub codings: Vec<Coding>,
    /// First layers, which keep all tokens.
    pub front: u32,
    /// The length of blocks that is shown.
    pub block_tokens: u32,
}

/// Bytes of K or V.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    pub raw: f64,
    pub kept: f64,
    encode: f64,
    decode: f64,
    /// Raw bytes whose speed is known.
    timed: f64,
}

impl Sum {
    fn of(r: &LosslessResult) -> Sum {
        let cold = r.raw_bytes as f64 - r.hot_bytes as f64;
        let (timed, encode, decode) = match (r.encode_bytes_per_second, r.decode_bytes_per_second) {
            (Some(encode), Some(decode)) => (cold, cold / encode, cold / decode),
            _ => (0.0, 0.0, 0.0),
        };
        Sum { raw: r.raw_bytes as f64, kept: r.kept_bytes as f64, encode, decode, timed }
    }

    pub fn join(sums: impl IntoIterator<Item = Sum>) -> Sum {
        sums.into_iter().fold(Sum::default(), |a, b| Sum {
            raw: a.raw + b.raw,
            kept: a.kept + b.kept,
            encode: a.encode + b.encode,
            decode: a.decode + b.decode,
            timed: a.timed + b.timed,
        })
    }

    /// Raw over kept.
    pub fn ratio(&self) -> f64 {
        self.raw / self.kept.max(1.0)
    }

    /// Raw bytes per second of encoding, of all bytes over all time.
    pub fn encode(&self) -> Option<f64> {
        (self.encode > 0.0).then(|| self.timed / self.encode)
    }

    /// Raw bytes per second of decoding.
    pub fn decode(&self) -> Option<f64> {
        (self.decode > 0.0).then(|| self.timed / self.decode)
    }
}

/// The codec in one cut.
pub struct Coding {
    pub cut: String,
    /// By layer: K, V.
    pub layers: BTreeMap<u32, [Sum; 2]>,
}

impl Coding {
    /// K (0) or V (1) of the layers before `end`.
    pub fn tensor(&self, tensor: usize, end: u32) -> Sum {
        Sum::join(self.layers.range(..end).map(|(_, layer)| layer[tensor]))
    }

    pub fn total(&self) -> Sum {
        Sum::join(self.layers.values().flatten().copied())
    }
}

impl Figures {
    /// Sums and means of results.
    pub fn new(name: String, results: Results) -> Self {
        let front = results.settings.get("front_layers").and_then(Value::as_u64);
        let front = front.map_or(0, |front| front.min(u32::MAX.into()) as u32);
        let block_tokens = results.whole_cache.first().map_or(0, |whole| whole.block_tokens);
        Figures { name, codings: codings(&results), front, block_tokens, results }
    }
}

fn codings(results: &Results) -> Vec<Coding> {
    let mut found: BTreeMap<(bool, &str), BTreeMap<u32, [Sum; 2]>> = BTreeMap::new();
    for r in &results.lossless {
        let layers = found.entry((r.cut != BLOCKS, &r.cut)).or_default();
        let sum = &mut layers.entry(r.layer).or_default()[usize::from(r.tensor == "v")];
        *sum = Sum::join([*sum, Sum::of(r)]);
    }
    found.into_iter().map(|((_, cut), layers)| Coding { cut: cut.to_owned(), layers }).collect()
}

/// Each item once, in the order of their first appearance.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}
