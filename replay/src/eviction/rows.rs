//! The softmax rows of a layer, from the dump or from Q and K.

use super::{floats, place};
use crate::dumps::{Attention, Layer, Query};
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::ops::Range;

/// Rounding of a row to f16 changes its sum by less.
const SUM_TOLERANCE: f64 = 0.05;

/// Where the rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSource {
    /// Softmax of Q times K.
    Query,
    /// Rows of the dump.
    Attention,
}

impl RowSource {
    /// The source of a layer's rows; Q is preferred, since it has rows for more tokens.
    pub fn of(layer: &Layer) -> Option<Self> {
        let query = layer.query.as_ref().filter(|query| query.rows > 0).map(|query| (RowSource::Query, query.first));
        let given =
            layer.attention.as_ref().filter(|rows| rows.rows > 0).map(|rows| (RowSource::Attention, rows.first));
        [query, given].into_iter().flatten().min_by_key(|(_, first)| *first).map(|(source, _)| source)
    }

    /// In results.
    pub fn name(self) -> &'static str {
        match self {
            RowSource::Query => "query",
            RowSource::Attention => "attention",
        }
    }
}

/// Softmax rows of the tokens from `first` to the last of a layer.
pub struct Rows<'a> {
    heads: usize,
    tokens: usize,
    kind: Kind<'a>,
}

enum Kind<'a> {
    Given(&'a Attention),
    Computed { query: &'a Query, key: Vec<f32>, kv_heads: usize, dims: usize, scale: f32 },
}

impl<'a> Rows<'a> {
    /// The rows of a layer, `None` if the dump has neither Q nor attention rows. Fails if they do not end with the layer's
    /// last token, or a number is not finite.
    pub fn new(layer: &'a Layer, scale: Option<f32>) -> Result<Option<Self>> {
        let info = &layer.info;
        let (kind, name, first, rows, values) = match (RowSource::of(layer), &layer.query, &layer.attention) {
            (Some(RowSource::Query), Some(query), _) => {
                let key = floats(layer, "k", &layer.key)?;
                let scale = scale.or(info.attention_scale).unwrap_or(1.0 / (info.head_dim as f32).sqrt());
                let kind = Kind::Computed { query, key, kv_heads: info.kv_heads, dims: info.head_dim, scale };
                (kind, "q", query.first, query.rows, &query.values)
            }
            (Some(RowSource::Attention), _, Some(given)) => {
                (Kind::Given(given), "attention", given.first, given.rows, &given.values)
            }
            _ => return Ok(None),
        };
        let heads = info.query_heads;
        if heads == 0 || !heads.is_multiple_of(info.kv_heads) {
            let text = format!("{name} has {heads} heads; a multiple of the {} KV heads expected", info.kv_heads);
            return Err(Error::new(place(layer), text));
        }
        if first + rows != info.tokens {
            let text =
                format!("rows of {name} end with token {}; {} expected, the layer's last", first + rows, info.tokens);
            return Err(Error::new(place(layer), text));
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let row = at / (values.len() / heads / rows) % rows;
            let text = format!("{name} of token {} is {}; a finite number expected", first + row, values[at]);
            return Err(Error::new(place(layer), text));
        }
        let source = Rows { heads, tokens: info.tokens, kind };
        source.check_sums(&place(layer))?;
        Ok(Some(source))
    }

    /// Given rows must be softmax rows: no part of one is below 0, and together they are 1.
    fn check_sums(&self, place: &str) -> Result<()> {
        let Kind::Given(given) = &self.kind else { return Ok(()) };
        for (at, row) in given.values.chunks_exact(self.tokens).enumerate() {
            let (head, token) = (at / given.rows, given.first + at % given.rows);
            let seen = &row[..=token];
            let sum: f64 = seen.iter().map(|value| f64::from(*value)).sum();
            if (sum - 1.0).abs() > SUM_TOLERANCE || seen.iter().any(|value| *value < 0.0) {
                let text = format!("attention of head {head}, token {token} has the sum {sum:.4}; parts of 1 expected");
                return Err(Error::new(place, text));
            }
        }
        Ok(())
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// The first token with a row.
    pub fn first(&self) -> usize {
        match &self.kind {
            Kind::Given(given) => given.first,
            Kind::Computed { query, .. } => query.first,
        }
    }

    /// The rows of some tokens: `[token][head][0..=token]`.
    pub fn rows(&self, tokens: Range<usize>) -> Vec<Vec<f32>> {
        tokens.into_par_iter().map(|token| self.row(token)).collect()
    }

    fn row(&self, token: usize) -> Vec<f32> {
        let mut rows = vec![0.0; self.heads * (token + 1)];
        for (head, row) in rows.chunks_exact_mut(token + 1).enumerate() {
            match &self.kind {
                Kind::Given(given) => {
                    let at = (head * given.rows + token - given.first) * self.tokens;
                    row.copy_from_slice(&given.values[at..at + token + 1]);
                }
                Kind::Computed { query, key, kv_heads, dims, scale } => {
                    let query = &query.values[(head * query.rows + token - query.first) * dims..][..*dims];
                    let key = &key[head * kv_heads / self.heads * self.tokens * dims..][..(token + 1) * dims];
                    for (product, key) in row.iter_mut().zip(key.chunks_exact(*dims)) {
                        *product = scale * dot(query, key);
                    }
                    softmax(row);
                }
            }
        }
        rows
    }
}

/// Eight sums at once, so that the compiler uses vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

fn softmax(row: &mut [f32]) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - most).exp();
        sum += f64::from(*value);
    }
    let factor = (1.0 / sum) as f32;
    row.iter_mut().for_each(|value| *value *= factor);
}
