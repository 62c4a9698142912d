//! Softmax attention of rows of queries over packed keys and values, in blocks of rows: memory for one block alone.

use crate::transformer::Shape;
use mnnkv::arch::{self, PANEL, Product};
use std::ops::Range;

/// Tokens of a flash block, as MNN has them on x86.
pub(super) const FLASH_BLOCK: usize = 64;

/// A cache that is attended to: K is `[head][token / PANEL][dim][PANEL]`, V is
/// `[head][token / FLASH_BLOCK][dim / PANEL][FLASH_BLOCK][PANEL]`. Both are what a matrix product reads.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub(super) key: &'a [[f32; PANEL]],
    pub(super) value: &'a [[f32; PANEL]],
}

/// Rows of queries that share a KV head and attend at once. Rows of output are where those of the queries are.
pub(super) struct Block<'a> {
    pub(super) kv_head: usize,
    /// The first element of the first row, and from one row to the next.
    pub(super) first: usize,
    pub(super) stride: usize,
    /// Tokens that each row sees, at least one. Neither their begins nor their ends descend.
    pub(super) seen: &'a [Range<usize>],
}

/// Memory of the attention, reused by every block.
#[derive(Default)]
pub(super) struct Work {
    zeros: Vec<[f32; PANEL]>,
    rows: Vec<[f32; PANEL]>,
    sums: Vec<[f32; PANEL]>,
}

impl Block<'_> {
    /// Tokens that a row sees, up to whole flash blocks: those of the softmax rows.
    pub(super) fn tokens(&self) -> Range<usize> {
        let begin = self.seen.first().map_or(0, |seen| seen.start);
        let end = self.seen.last().map_or(0, |seen| seen.end);
        begin / FLASH_BLOCK * FLASH_BLOCK..end.next_multiple_of(FLASH_BLOCK)
    }

    /// Adds the outputs. Returns the softmax rows over [`Self::tokens`], with zeros for those that the row does not see.
    pub(super) fn attend<'a>(
        &self,
        shape: &Shape,
        query: &[f32],
        cache: Packed<'_>,
        work: &'a mut Work,
        output: &mut [f32],
    ) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        self.weigh(shape, query, cache, work);
        self.sum(shape, cache, work, output);
        work.rows.as_flattened().chunks_exact(self.tokens().len()).take(self.seen.len())
    }

    fn weigh(&self, shape: &Shape, query: &[f32], cache: Packed<'_>, work: &mut Work) {
        let (dims, tokens) = (shape.dims, self.tokens());
        let panels = tokens.len() / PANEL;
        work.zeros.resize(panels.max(dims.div_ceil(PANEL)), [0.0; PANEL]);
        work.rows.resize(self.seen.len() * panels, [0.0; PANEL]);
        let product = Product {
            a: &query[self.first..],
            stride: self.stride,
            depth: dims,
            panels: &head_of(shape, cache.key, self.kv_head)[tokens.start / PANEL * dims..][..panels * dims],
            bias: &work.zeros[..panels],
        };
        (arch::kernels().product)(&product, &mut work.rows);
        for (row, seen) in work.rows.as_flattened_mut().chunks_exact_mut(tokens.len()).zip(self.seen) {
            let (row, behind) = row.split_at_mut(seen.end - tokens.start);
            let (before, row) = row.split_at_mut(seen.start - tokens.start);
            before.fill(0.0);
            behind.fill(0.0);
            softmax(row, 1.0 / (dims as f32).sqrt());
        }
    }

    /// Adds the values, weighted by softmax rows.
    fn sum(&self, shape: &Shape, cache: Packed<'_>, work: &mut Work, output: &mut [f32]) {
        let (dims, tokens) = (shape.dims, self.tokens());
        let panels = dims.div_ceil(PANEL);
        work.sums.resize(self.seen.len() * panels, [0.0; PANEL]);
        let value = &head_of(shape, cache.value, self.kv_head)[tokens.start * panels..][..tokens.len() * panels];
        for (number, block) in value.chunks_exact(FLASH_BLOCK * panels).enumerate() {
            let product = Product {
                a: &work.rows.as_flattened()[number * FLASH_BLOCK..],
                stride: tokens.len(),
                depth: FLASH_BLOCK,
                panels: block,
                bias: &work.zeros[..panels],
            };
            (arch::kernels().product)(&product, &mut work.sums);
            for (row, sums) in work.sums.as_flattened().chunks_exact(panels * PANEL).enumerate() {
                let to = &mut output[self.first + row * self.stride..][..dims];
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum);
            }
        }
    }
}

/// The part of a buffer that a KV head has.
fn head_of<'a>(shape: &Shape, buffer: &'a [[f32; PANEL]], head: usize) -> &'a [[f32; PANEL]] {
    let each = buffer.len() / shape.kv_heads;
    &buffer[head * each..][..each]
}

/// Sums and maxima are of so many columns apart, so that the compiler has vectors of them.
const LANES: usize = 16;

/// The softmax of logits times a factor.
fn softmax(row: &mut [f32], scale: f32) {
    let mut greatest = [f32::NEG_INFINITY; LANES];
    for values in row.chunks(LANES) {
        greatest.iter_mut().zip(values).for_each(|(most, x)| *most = if *x > *most { *x } else { *most });
    }
    let greatest = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = exp((*x - greatest) * scale));
    let mut sums = [0.0; LANES];
    for values in row.chunks(LANES) {
        sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
    }
    let factor = 1.0 / sums.iter().sum::<f32>();
    row.iter_mut().for_each(|x| *x *= factor);
}

/// e to the power of a number up to 0, within 3e-7 of it; without calls or branches, which vectors of the compiler cannot
/// have. Less than e^-87 is e^-87.
fn exp(x: f32) -> f32 {
    // Adding it rounds to a whole number, which is then in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x > -87.0 { x } else { -87.0 };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let whole = rounded - ROUND;
    let part = x - whole * LN2_HIGH - whole * LN2_LOW;
    let series = 1.0 / 720.0;
    let series = series * part + 1.0 / 120.0;
    let series = series * part + 1.0 / 24.0;
    let series = series * part + 1.0 / 6.0;
    let series = series * part + 0.5;
    let series = (series * part + 1.0) * part + 1.0;
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    series * f32::from_bits(exponent << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_that_of_the_standard_library() {
        for number in 0..=870_000 {
            let x = -(number as f32 * 1e-4);
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 3e-7, "e^{x} is {}; {expected} expected", exp(x));
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }
}
