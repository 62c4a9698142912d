//! The forward pass of a Llama, a Qwen2 or a Gemma 3 in f32, whose attention is left to the caller.

mod blocks;
mod config;
mod gguf;
mod weights;

#[cfg(test)]
pub(crate) mod tests;

pub use config::{Gemma, Shape};

use crate::error::Result;
use gguf::Gguf;
use std::path::Path;
use weights::{Linear, Weights};

/// A model.
pub struct Model {
    shape: Shape,
    weights: Weights,
    first_token: Option<u32>,
}

/// The input of a layer's attention: rows `[row][head][dim]`. Query and key are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Projected<'a> {
    /// Rows of the query heads.
    pub query: &'a [f32],
    /// Rows of the KV heads.
    pub key: &'a [f32],
    /// Rows of the KV heads.
    pub value: &'a [f32],
}

impl Model {
    /// Reads a GGUF file.
    pub fn open(path: &Path) -> Result<Model> {
        let file = Gguf::open(path)?;
        let shape = file.shape()?;
        Ok(Model { weights: Weights::read(&file, &shape)?, first_token: file.first_token(shape.vocabulary)?, shape })
    }

    /// Its numbers.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The token that every text begins with, if the model wants one.
    pub fn first_token(&self) -> Option<u32> {
        self.first_token
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
        let Shape { hidden, inner, heads, kv_heads, dims, epsilon, theta, gemma, .. } = self.shape;
        let scale = if gemma.is_some() { (hidden as f32).sqrt() } else { 1.0 };
        let mut states = Vec::with_capacity(tokens.len() * hidden);
        for token in tokens {
            states.extend(self.weights.embedding.column(*token as usize).map(|x| x * scale));
        }
        let whole = self.turns(positions, theta, gemma.map_or(1.0, |gemma| gemma.stretch));
        let local = gemma.map(|gemma| self.turns(positions, gemma.theta, 1.0));
        for (number, layer) in self.weights.layers.iter().enumerate() {
            let turns = local.as_ref().filter(|_| self.shape.window(number).is_some()).unwrap_or(&whole);
            let projected = layer.projections.apply(&normed(&states, &layer.norm, epsilon));
            let part = |first: usize, heads: usize| -> Vec<f32> {
                let rows = projected.chunks_exact(layer.projections.stride());
                rows.flat_map(|row| &row[first * dims..(first + heads) * dims]).copied().collect()
            };
            let (mut query, mut key) = (part(0, heads), part(heads, kv_heads));
            if let Some([of_query, of_key]) = &layer.head_norms {
                (query, key) = (normed(&query, of_query, epsilon), normed(&key, of_key, epsilon));
            }
            rotate(&mut query, heads, dims, turns);
            rotate(&mut key, kv_heads, dims, turns);
            let value = part(heads + kv_heads, kv_heads);
            let mut attended = vec![0.0; tokens.len() * heads * dims];
            attend(number, &Projected { query: &query, key: &key, value: &value }, &mut attended)?;
            self.add(&mut states, &layer.output, &attended, layer.output_norm.as_deref());

            let gates = layer.gates.apply(&normed(&states, &layer.mlp_norm, epsilon));
            let rows = gates.chunks_exact(layer.gates.stride());
            let activated = |gate: f32| if gemma.is_some() { gelu(gate) } else { silu(gate) };
            let gated: Vec<f32> = rows
                .flat_map(|row| row[..inner].iter().zip(&row[inner..2 * inner]).map(|(gate, up)| activated(*gate) * up))
                .collect();
            self.add(&mut states, &layer.down, &gated, layer.down_norm.as_deref());
        }
        Ok(normed(&states, &self.weights.norm, epsilon))
    }

    /// Calls `each` with the number and the logits of every row.
    pub fn predict(&self, states: &[f32], mut each: impl FnMut(usize, &[f32])) {
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embedding);
        let logits = head.apply(states);
        let rows = logits.chunks_exact(head.stride()).enumerate();
        rows.for_each(|(number, row)| each(number, &row[..self.shape.vocabulary]));
    }

    /// Maps rows, and adds them to the states, behind a norm if there is one.
    fn add(&self, states: &mut [f32], map: &Linear, rows: &[f32], norm: Option<&[f32]>) {
        let Shape { hidden, epsilon, .. } = self.shape;
        let mapped = map.apply(rows);
        for (state, row) in states.chunks_exact_mut(hidden).zip(mapped.chunks_exact(map.stride())) {
            let row = &row[..hidden];
            match norm {
                Some(norm) => state.iter_mut().zip(normed(row, norm, epsilon)).for_each(|(state, x)| *state += x),
                None => state.iter_mut().zip(row).for_each(|(state, x)| *state += x),
            }
        }
    }

    /// Sine and cosine of each position over `stretch` and pair of dims, `[row][pair]`.
    fn turns(&self, positions: &[usize], theta: f64, stretch: f64) -> Vec<(f32, f32)> {
        let dims = self.shape.dims;
        let speeds: Vec<f64> =
            (0..dims / 2).map(|pair| theta.powf(-2.0 * pair as f64 / dims as f64) / stretch).collect();
        let turns = positions.iter().flat_map(|at| speeds.iter().map(|speed| (*at as f64 * speed).sin_cos()));
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

/// GELU by its approximation with tanh.
fn gelu(x: f32) -> f32 {
    const FACTOR: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
    0.5 * x * (1.0 + (FACTOR * (x + 0.044_715 * x * x * x)).tanh())
}

/// The negative logarithm of a token's probability, in nats.
pub fn loss(logits: &[f32], token: u32) -> f64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - greatest).exp()).sum();
    sum.ln() - f64::from(logits[token as usize] - greatest)
}

/// The Kullback-Leibler divergence of a prediction from the `whole` one, in nats.
pub fn divergence(whole: &[f32], logits: &[f32]) -> f64 {
    let greatest = |logits: &[f32]| f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let tops = [greatest(whole), greatest(logits)];
    let (mut sums, mut sum) = ([0.0, 0.0], 0.0);
    for (whole, own) in whole.iter().zip(logits) {
        let (whole, own) = (f64::from(*whole) - tops[0], f64::from(*own) - tops[1]);
        let weight = whole.exp();
        sum += weight * (whole - own);
        sums = [sums[0] + weight, sums[1] + own.exp()];
    }
    sum / sums[0] - sums[0].ln() + sums[1].ln()
}

/// The token with the greatest logit, the first of equal ones.
pub fn first_choice(logits: &[f32]) -> u32 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == greatest).unwrap_or(0) as u32
}
