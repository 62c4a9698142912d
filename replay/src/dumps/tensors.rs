//! Layers whose K and V are one tensor each: of flat files, NumPy and safetensors.

use super::files::Words;
use super::names::Kind;
use super::{Attention, Found, Layer, LayerInfo, Query, Source};
use crate::error::{Finding, Result};
use mnnkv::dtype::Dtype;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// A tensor of a layer, `[head][token][dim]`; attention is `[query head][row][token]`.
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
    /// Words and rows of a head.
    query: Option<(Words, usize)>,
    attention: Option<(Words, usize)>,
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
        found.push(with_scores(key, value, tensors, findings));
    }
    let others = |kind| tensors.iter().filter(move |tensor| tensor.kind == kind);
    if others(Kind::Key).chain(others(Kind::Value)).next().is_none() {
        let text = "the layer has neither K nor V";
        findings.extend(tensors.first().map(|tensor| Finding::new("missing", &tensor.place, text)));
    }
    found
}

/// The tensors of a kind and type, the longest first.
fn longest(tensors: &[Tensor], kind: Kind, dtype: Dtype) -> Vec<&Tensor> {
    let mut found: Vec<_> = tensors.iter().filter(|t| t.kind == kind && t.words.dtype == dtype).collect();
    found.sort_by_key(|tensor| Reverse(tensor.shape[1]));
    found
}

fn with_scores(key: &Tensor, value: &Tensor, tensors: &[Tensor], findings: &mut Vec<Finding>) -> Found {
    let [kv_heads, tokens, head_dim] = key.shape;
    let mut scores = |kind, reason, expected: String, fits: &dyn Fn([usize; 3]) -> bool| {
        // Scores that fit come first, then those of the type of K.
        let mut of: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.kind == kind).collect();
        of.sort_by_key(|tensor| (!fits(tensor.shape), tensor.words.dtype != key.words.dtype));
        let tensor = of.first()?;
        if !fits(tensor.shape) {
            let text = format!("is left out: the shape is {:?}; {expected} expected", tensor.shape);
            findings.push(Finding::new(reason, &tensor.place, text));
            return None;
        }
        Some((tensor.shape[0], tensor.words.clone(), tensor.shape[1]))
    };
    let heads = |heads: usize| heads.is_multiple_of(kv_heads);
    let expected = format!("[a multiple of {kv_heads}, at most {tokens}, {head_dim}]");
    let query =
        scores(Kind::Query, "query", expected, &|[q, rows, dims]| heads(q) && rows <= tokens && dims == head_dim);
    let of_query = query.as_ref().map(|query| query.0);
    let expected = match of_query {
        Some(q) => format!("[{q}, at most {tokens}, {tokens}]"),
        None => format!("[a multiple of {kv_heads}, at most {tokens}, {tokens}]"),
    };
    let attention = scores(Kind::Attention, "attention", expected, &|[q, rows, columns]| {
        heads(q) && of_query.is_none_or(|of_query| q == of_query) && rows <= tokens && columns == tokens
    });
    let info = LayerInfo {
        run: key.run.clone(),
        layer: key.layer,
        begin: 0,
        tokens,
        prompt_tokens: 0,
        kv_heads,
        head_dim,
        dtype: key.words.dtype,
        query_heads: query.as_ref().or(attention.as_ref()).map_or(0, |scores| scores.0),
        attention_scale: None,
    };
    let whole = Whole {
        key: key.words.clone(),
        value: value.words.clone(),
        query: query.map(|(_, words, rows)| (words, rows)),
        attention: attention.map(|(_, words, rows)| (words, rows)),
    };
    Found { info, source: Source::Whole(whole), place: key.place.clone() }
}

impl Whole {
    /// The tokens with rows of Q and of attention, which are the last of the layer.
    pub(super) fn score_ranges(&self, tokens: usize) -> (Range<usize>, Range<usize>) {
        let range = |scores: &Option<(Words, usize)>| tokens - scores.as_ref().map_or(0, |scores| scores.1)..tokens;
        (range(&self.query), range(&self.attention))
    }

    pub(super) fn load(&self, info: &LayerInfo) -> Result<Layer> {
        // Rows are those of the last tokens.
        let scores = |scores: &Option<(Words, usize)>| -> Result<Option<(usize, usize, Vec<f32>)>> {
            let Some((words, rows)) = scores else { return Ok(None) };
            Ok(Some((info.tokens - rows, *rows, words.values()?)))
        };
        let query = scores(&self.query)?.map(|(first, rows, values)| Query { first, rows, values });
        let attention = scores(&self.attention)?.map(|(first, rows, values)| Attention { first, rows, values });
        Ok(Layer { info: info.clone(), key: self.key.read()?, value: self.value.read()?, query, attention })
    }
}
