//! The compressor as its paper and its file say, one number at a time: slow and obvious.

use half::{bf16, f16};
use mnnkv::dtype::Dtype;
use mnnkv_model::compressor::{LinearWeights, Weights};

/// How sums are made.
#[derive(Clone, Copy, PartialEq)]
pub enum Arithmetic {
    /// In f64, rounded nowhere.
    Exact,
    /// As the library defines it, for caches of a type.
    Defined(Dtype),
}

impl Arithmetic {
    /// A number after rounding to the stored type.
    fn stored(self, x: f64) -> f64 {
        match self {
            Arithmetic::Exact => x,
            Arithmetic::Defined(Dtype::F16) => f16::from_f32(x as f32).to_f64(),
            Arithmetic::Defined(Dtype::Bf16) => bf16::from_f32(x as f32).to_f64(),
            Arithmetic::Defined(_) => f64::from(x as f32),
        }
    }

    fn row(self, linear: &LinearWeights, row: usize, x: &[f64]) -> f64 {
        let weight = |col: usize| self.stored(linear.weight[row * linear.cols + col].into());
        let bias = linear.bias.as_ref().map_or(0.0, |bias| self.stored(bias[row].into()));
        if self == Arithmetic::Exact {
            return (0..linear.cols).map(|col| weight(col) * x[col]).sum::<f64>() + bias;
        }
        let sum = (0..linear.cols).fold(0.0f32, |sum, col| (weight(col) as f32).mul_add(x[col] as f32, sum));
        self.stored((sum + bias as f32).into())
    }

    fn network(self, blocks: &[LinearWeights], x: &[f64]) -> Vec<f64> {
        let mut x = x.to_vec();
        for (slot, linear) in blocks.iter().enumerate() {
            let y = (0..linear.rows).map(|row| self.row(linear, row, &x));
            x = y.map(|y| if slot < 2 { y.max(0.0) } else { y }).collect();
        }
        x
    }
}

/// Compresses one head's tokens `[token][dim]`, K (0) or V (1).
pub fn compress(
    weights: &Weights,
    arithmetic: Arithmetic,
    (layer, kv): (usize, usize),
    image_len: usize,
    min_groups: usize,
    head: &[f64],
) -> Vec<f64> {
    let (dims, factor) = (weights.head_dim as usize, weights.factor as usize);
    let tokens: Vec<&[f64]> = head.chunks(dims).collect();
    let (image, text) = tokens.split_at(image_len.min(tokens.len()));
    let mut out = Vec::new();
    for (segment, network) in [(image, 2 + kv), (text, kv)] {
        let blocks = weights.layers[layer].get(network * 3..network * 3 + 3);
        let groups = segment.len() / factor;
        match blocks {
            Some(blocks) if groups >= min_groups => {
                for group in segment.chunks_exact(factor) {
                    out.extend(arithmetic.network(blocks, &group.concat()));
                }
                out.extend(segment[groups * factor..].concat());
            }
            _ => out.extend(segment.concat()),
        }
    }
    out
}
