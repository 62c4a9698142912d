//! Layers whose K and V are one tensor each: of flat files, NumPy and safetensors.

use super::files::Words;
use super::names::Kind;
use super::{Found, Layer, LayerInfo, Source};
use crate::error::{Finding, Result};
use mnnkv::dtype::Dtype;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A tensor of a layer, `[head][token][dim]`.
pub(super) struct Tensor {
    pub(super) run: String,
    pub(super) layer: u32,
    pub(super) kind: Kind,
    pub(super) shape: [usize; 3],
    pub(super) words: Words,
    /// The file, and the tensor in it.
    pub(super) place: String,
}

/// The three lengths of a shape, which may begin with a batch of 1.
pub(super) fn three(shape: &[u64]) -> std::result::Result<[usize; 3], String> {
    let lengths = match shape {
        [1, rest @ ..] if rest.len() == 3 => rest,
        _ => shape,
    };
    let lengths: Vec<usize> = lengths.iter().filter_map(|length| usize::try_from(*length).ok()).collect();
    lengths.try_into().map_err(|_| format!("the shape is {shape:?}; [heads, tokens, dims] or [1, ...] expected"))
}

/// The tensors of a layer.
#[derive(Debug)]
pub(super) struct Whole {
    key: Words,
    value: Words,
}

/// Makes layers of tensors. A layer of several types becomes one layer for each.
pub(super) fn join(tensors: Vec<Tensor>, findings: &mut Vec<Finding>) -> Vec<Found> {
    let mut layers: BTreeMap<(String, u32), Vec<Tensor>> = BTreeMap::new();
    for tensor in tensors {
        layers.entry((tensor.run.clone(), tensor.layer)).or_default().push(tensor);
    }
    layers.into_values().flat_map(|tensors| layer(&tensors, findings)).collect()
}

fn layer(tensors: &[Tensor], findings: &mut Vec<Finding>) -> Vec<Found> {
    let mut found = Vec::new();
    for dtype in Dtype::ALL {
        let of = |kind| longest(tensors, kind, dtype);
        let (keys, values) = (of(Kind::Key), of(Kind::Value));
        // Of the longest pair; without a pair, the longest of each.
        let pair = keys.iter().find_map(|key| Some((*key, *values.iter().find(|value| value.shape == key.shape)?)));
        let (key, value) =
            match pair.map_or((keys.first().copied(), values.first().copied()), |(k, v)| (Some(k), Some(v))) {
                (None, None) => continue,
                (Some(key), Some(value)) => (key, value),
                (Some(alone), None) | (None, Some(alone)) => {
                    let other = if alone.kind == Kind::Key { "V" } else { "K" };
                    let text = format!("the layer has no {other} of {}", dtype.name());
                    findings.push(Finding::new("missing", &alone.place, text));
                    continue;
                }
            };
        if key.shape != value.shape {
            let text = format!("the shape is {:?}, that of {} is {:?}", value.shape, key.place, key.shape);
            findings.push(Finding::new("shape", &value.place, text));
            continue;
        }
        for (kept, all) in [(key, keys), (value, values)] {
            findings.extend(all.iter().filter(|other| other.place != kept.place).map(|other| {
                let text = format!("is left out: {} is the same tensor of the layer", kept.place);
                Finding::new("duplicate", &other.place, text)
            }));
        }
        let [kv_heads, tokens, head_dim] = key.shape;
        let (run, layer, dtype) = (key.run.clone(), key.layer, key.words.dtype);
        let info = LayerInfo { run, layer, begin: 0, tokens, kv_heads, head_dim, dtype };
        let whole = Whole { key: key.words.clone(), value: value.words.clone() };
        found.push(Found { info, source: Source::Whole(whole), place: key.place.clone() });
    }
    found
}

/// The tensors of a kind and type, the longest first.
fn longest(tensors: &[Tensor], kind: Kind, dtype: Dtype) -> Vec<&Tensor> {
    let mut found: Vec<_> = tensors.iter().filter(|t| t.kind == kind && t.words.dtype == dtype).collect();
    found.sort_by_key(|tensor| Reverse(tensor.shape[1]));
    found
}

impl Whole {
    pub(super) fn load(&self, info: &LayerInfo) -> Result<Layer> {
        Ok(Layer { info: info.clone(), key: self.key.read()?, value: self.value.read()? })
    }
}
