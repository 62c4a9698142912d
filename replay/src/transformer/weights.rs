//! The weights of a model as linear maps in f32.

use super::Shape;
use super::gguf::Gguf;
use crate::error::Result;
use mnnkv::arch::{self, PANEL, Product};

/// Whether a model has a tensor of this name: one with others computes something else.
fn is_read(name: &str, shape: &Shape) -> bool {
    const MODEL: [&str; 3] = ["token_embd.weight", "output_norm.weight", "output.weight"];
    const NORMS: [&str; 2] = ["attn_norm", "ffn_norm"];
    const GEMMA_NORMS: [&str; 4] = ["attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"];
    const MAPS: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return MODEL.contains(&name);
    };
    let is_gemma = shape.gemma.is_some();
    let is_part = match part.split_once('.') {
        Some((map, "bias")) => MAPS.contains(&map) && !is_gemma,
        Some((part, "weight")) => {
            MAPS.contains(&part) || NORMS.contains(&part) || is_gemma && GEMMA_NORMS.contains(&part)
        }
        _ => false,
    };
    is_part && layer.parse::<usize>().is_ok_and(|number| number < shape.layers && number.to_string() == layer)
}

/// A linear map in the order of the kernel.
pub(super) struct Linear {
    depth: usize,
    /// `[panel][depth][PANEL]`
    panels: Vec<[f32; PANEL]>,
    /// `[panel][PANEL]`
    bias: Vec<[f32; PANEL]>,
}

impl Linear {
    /// Rearranges a weight `[columns][depth]`. The bias has no elements, or one for each column.
    fn new(weight: &[f32], depth: usize, bias: &[f32]) -> Self {
        let count = (weight.len() / depth).div_ceil(PANEL);
        let mut panels = vec![[0.0; PANEL]; count * depth];
        arch::pack_panels(weight, depth, &mut panels);
        let mut padded = vec![[0.0; PANEL]; count];
        padded.as_flattened_mut()[..bias.len()].copy_from_slice(bias);
        Linear { depth, panels, bias: padded }
    }

    /// From one row of a result to the next: the columns, and padding up to a whole panel.
    pub(super) fn stride(&self) -> usize {
        self.bias.len() * PANEL
    }

    /// The weights of a column.
    pub(super) fn column(&self, number: usize) -> impl Iterator<Item = f32> {
        let panel = &self.panels[number / PANEL * self.depth..][..self.depth];
        panel.iter().map(move |columns| columns[number % PANEL])
    }

    /// Maps rows.
    pub(super) fn apply(&self, rows: &[f32]) -> Vec<f32> {
        let mut result = vec![[0.0; PANEL]; rows.len() / self.depth * self.bias.len()];
        let product =
            Product { a: rows, stride: self.depth, depth: self.depth, panels: &self.panels, bias: &self.bias };
        (arch::kernels().product)(&product, &mut result);
        result.into_flattened()
    }
}

/// A layer.
pub(super) struct Layer {
    pub(super) norm: Vec<f32>,
    /// Query, key and value, side by side.
    pub(super) projections: Linear,
    /// Of each head of the query, and of the key.
    pub(super) head_norms: Option<[Vec<f32>; 2]>,
    pub(super) output: Linear,
    pub(super) output_norm: Option<Vec<f32>>,
    pub(super) mlp_norm: Vec<f32>,
    /// Gate and up, side by side.
    pub(super) gates: Linear,
    pub(super) down: Linear,
    pub(super) down_norm: Option<Vec<f32>>,
}

/// All weights.
pub(super) struct Weights {
    /// A column for each token.
    pub(super) embedding: Linear,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Vec<f32>,
    /// None if it is the embedding.
    pub(super) head: Option<Linear>,
}

impl Weights {
    /// Reads all tensors. Query, key and value have a bias where the model has one.
    pub(super) fn read(tensors: &Gguf, shape: &Shape) -> Result<Weights> {
        let Shape { hidden, inner, heads, kv_heads, dims, .. } = *shape;
        let names = tensors.names();
        if let Some(own) = names.iter().find(|name| !is_read(name, shape)) {
            let (architecture, layers) = (tensors.architecture()?, shape.layers);
            return Err(
                tensors.fail(format!("tensor {own}: is none of a {architecture} of {layers} layers with plain RoPE"))
            );
        }
        // Maps of the same rows, side by side.
        let map = |layer: usize, parts: &[(&str, usize)], depth: usize| -> Result<Linear> {
            let (mut weight, mut bias) = (Vec::new(), Vec::new());
            for (name, columns) in parts {
                let name = |what: &str| format!("blk.{layer}.{name}.{what}");
                weight.extend(tensors.tensor(&name("weight"), &[*columns, depth])?);
                bias.extend(match names.contains(&name("bias").as_str()) {
                    true => tensors.tensor(&name("bias"), &[*columns])?,
                    false => vec![0.0; *columns],
                });
            }
            Ok(Linear::new(&weight, depth, &bias))
        };
        let vector = |name: String| tensors.tensor(&name, &[hidden]);
        let rows = |name: &str| Ok(Linear::new(&tensors.tensor(name, &[shape.vocabulary, hidden])?, hidden, &[]));
        let embedding = rows("token_embd.weight")?;
        let gemma_norm = |layer: usize, name: &str, len: usize| {
            let read = || tensors.tensor(&format!("blk.{layer}.{name}.weight"), &[len]);
            shape.gemma.map(|_| read()).transpose()
        };
        let layer = |layer: usize| -> Result<Layer> {
            let projections = [("attn_q", heads), ("attn_k", kv_heads), ("attn_v", kv_heads)];
            Ok(Layer {
                norm: vector(format!("blk.{layer}.attn_norm.weight"))?,
                projections: map(layer, &projections.map(|(name, heads)| (name, heads * dims)), hidden)?,
                head_norms: gemma_norm(layer, "attn_q_norm", dims)?
                    .zip(gemma_norm(layer, "attn_k_norm", dims)?)
                    .map(Into::into),
                output: map(layer, &[("attn_output", hidden)], heads * dims)?,
                output_norm: gemma_norm(layer, "post_attention_norm", hidden)?,
                mlp_norm: vector(format!("blk.{layer}.ffn_norm.weight"))?,
                gates: map(layer, &[("ffn_gate", inner), ("ffn_up", inner)], hidden)?,
                down: map(layer, &[("ffn_down", hidden)], inner)?,
                down_norm: gemma_norm(layer, "post_ffw_norm", hidden)?,
            })
        };
        Ok(Weights {
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            norm: vector("output_norm.weight".into())?,
            head: if shape.tied { None } else { Some(rows("output.weight")?) },
            embedding,
        })
    }
}
