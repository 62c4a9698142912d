//! The forward pass of a Llama or a Qwen2 in f32, whose attention is left to the caller.

mod blocks;
mod config;
mod gguf;
mod weights;

#[cfg(test)]
pub(crate) mod tests;

pub use config::Shape;

use crate::error::Result;
use gguf::Gguf;
use std::path::Path;
use weights::Weights;

/// A model.
pub struct Model {
    shape: Shape,
    weights: Weights,
}

/// The input of a layer's attention: rows `[row][head][dim]`. Query and key are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Projected<'a> {
    /// The weights of the query heads.
    pub query: &'a [f32],
    /// The weights of the KV heads.
    pub key: &'a [f32],
    /// The weights of the KV heads.
    pub value: &'a [f32],
}

impl Model {
    /// Reads a GGUF file.
    pub fn open(path: &Path) -> Result<Model> {
        let file = Gguf::open(path)?;
        let shape = file.shape()?;
        Ok(Model { weights: Weights::read(&file, &shape)?, shape })
    }

    /// Its numbers.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Runs rows of tokens at their logical positions through all layers. `attend` gets each layer's number and input, and
    /// adds the output `[row][query head][dim]` to zeros. Returns the last hidden states, `[row][hidden]`.
    ///
    /// Panics if a token is not below the vocabulary.
    pub fn forward<E>(
        &self,
        tokens: &[u32],
        positions: &[usize],
        mut attend: impl FnMut(usize, &Projected<'_>, &mut [f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<Vec<f32>, E> {
        let Shape { hidden, inner, heads, kv_heads, dims, epsilon, .. } = self.shape;
        let mut states = Vec::with_capacity(tokens.len() * hidden);
        for token in tokens {
            states.extend_from_slice(&self.weights.embedding[*token as usize * hidden..][..hidden]);
        }
        let turns = self.turns(positions);
        for (number, layer) in self.weights.layers.iter().enumerate() {
            let projected = layer.projections.apply(&normed(&states, &layer.norm, epsilon));
            let part = |first: usize, heads: usize| -> Vec<f32> {
                let rows = projected.chunks_exact(layer.projections.stride());
                rows.flat_map(|row| &row[first * dims..(first + heads) * dims]).copied().collect()
            };
            let (mut query, mut key) = (part(0, heads), part(heads, kv_heads));
            rotate(&mut query, heads, dims, &turns);
            rotate(&mut key, kv_heads, dims, &turns);
            let value = part(heads + kv_heads, kv_heads);
            let mut attended = vec![0.0; tokens.len() * heads * dims];
            attend(number, &Projected { query: &query, key: &key, value: &value }, &mut attended)?;
            add(&mut states, &layer.output.apply(&attended), hidden, layer.output.stride());

            let gates = layer.gates.apply(&normed(&states, &layer.mlp_norm, epsilon));
            let rows = gates.chunks_exact(layer.gates.stride());
            let gated: Vec<f32> = rows
                .flat_map(|row| row[..inner].iter().zip(&row[inner..2 * inner]).map(|(gate, up)| silu(*gate) * up))
                .collect();
            add(&mut states, &layer.down.apply(&gated), hidden, layer.down.stride());
        }
        Ok(normed(&states, &self.weights.norm, epsilon))
    }

    /// Calls `each` with the number and the logits of every row.
    pub fn predict(&self, states: &[f32], mut each: impl FnMut(usize, &[f32])) {
        let head = &self.weights.head;
        let logits = head.apply(states);
        let rows = logits.chunks_exact(head.stride()).enumerate();
        rows.for_each(|(number, row)| each(number, &row[..self.shape.vocabulary]));
    }

    /// Sine and cosine of each position and pair of dims, `[row][pair]`.
    fn turns(&self, positions: &[usize]) -> Vec<(f32, f32)> {
        let Shape { dims, theta, .. } = self.shape;
        let angle = |position: usize, pair: usize| position as f64 * theta.powf(-2.0 * pair as f64 / dims as f64);
        let turns = positions.iter().flat_map(|at| (0..dims / 2).map(move |pair| angle(*at, pair).sin_cos()));
        turns.map(|(sin, cos)| (sin as f32, cos as f32)).collect()
    }
}

/// RMSNorm of each row.
fn normed(states: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut normed = Vec::with_capacity(states.len());
    for row in states.chunks_exact(weight.len()) {
        let square = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
        let factor = 1.0 / (square + epsilon).sqrt();
        normed.extend(row.iter().zip(weight).map(|(x, weight)| x * factor * weight));
    }
    normed
}

/// RoPE of rows `[row][head][dim]`: dim `i` and dim `i + dims / 2` are a pair.
fn rotate(rows: &mut [f32], heads: usize, dims: usize, turns: &[(f32, f32)]) {
    for (row, turns) in rows.chunks_exact_mut(heads * dims).zip(turns.chunks_exact(dims / 2)) {
        for head in row.chunks_exact_mut(dims) {
            let (low, high) = head.split_at_mut(dims / 2);
            for ((low, high), (sin, cos)) in low.iter_mut().zip(high).zip(turns) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// Adds rows with padding to rows without.
fn add(states: &mut [f32], rows: &[f32], width: usize, stride: usize) {
    for (state, row) in states.chunks_exact_mut(width).zip(rows.chunks_exact(stride)) {
        state.iter_mut().zip(row).for_each(|(state, x)| *state += x);
    }
}

/// The negative logarithm of a token's probability, in nats.
pub fn loss(logits: &[f32], token: u32) -> f64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - greatest).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - greatest)
}

/// The token with the greatest logit, the first of equal ones.
pub fn first_choice(logits: &[f32]) -> u32 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == greatest).unwrap_or(0) as u32
}
