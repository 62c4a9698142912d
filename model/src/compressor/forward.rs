//! Computes the rows of a compressed cache.

use super::mlp::{Mlp, ROWS};
use super::read::WeightPlace;
use super::{Compressor, LengthPlan, Place, SLOTS, Segment};
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{Endian, rounded, widen};
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;
use std::ops::Range;

/// Type and heads of the dense rows `[head][token][dim]` of K and of V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Element type of both: F16, BF16 or F32, in native byte order.
    pub dtype: Dtype,
    /// KV heads.
    pub heads: usize,
}

/// Working memory of one thread, reused by every call.
#[derive(Clone, Debug, Default)]
pub struct Workspace(Mlp);

impl Compressor {
    /// UNSUPPORTED: if a weight of the layer exceeds the range of the type, or the type is not F16, BF16 or F32.
    /// [`Compressor::run`] then fails the same way.
    pub fn check_dtype(&self, layer: usize, dtype: Dtype) -> Result<()> {
        if dtype == Dtype::Int8 {
            bail!(Unsupported, "a cache of {}; F16, BF16 or F32 expected", dtype.name());
        }
        for (index, block) in self.blocks(layer)?.iter().enumerate() {
            if rounded(dtype, block.largest).is_finite() {
                continue;
            }
            let (weight, _) = self.elements(block);
            let mut row = memory::filled(0.0, block.cols)?;
            for (r, bytes) in weight.chunks_exact(block.cols * self.header.dtype.bytes()).enumerate() {
                widen(self.header.dtype, Endian::Little, bytes, &mut row);
                if let Some(col) = row.iter().position(|x| !rounded(dtype, *x).is_finite()) {
                    return self.too_large(Place { layer, block: index }, WeightPlace::Weight { row: r, col }, dtype);
                }
            }
            let mut bias = memory::filled(0.0, block.bias_len())?;
            widen(self.header.dtype, Endian::Little, self.elements(block).1, &mut bias);
            let row = bias.iter().position(|x| !rounded(dtype, *x).is_finite()).unwrap_or(0);
            return self.too_large(Place { layer, block: index }, WeightPlace::Bias { row }, dtype);
        }
        Ok(())
    }

    fn too_large(&self, place: Place, what: WeightPlace, dtype: Dtype) -> Result<()> {
        bail!(Unsupported, "{place}: {what} of the weights file is too large for a cache of {}", dtype.name())
    }

    /// Compresses the cache of one layer: `plan.len()` tokens of `key` and `value` become `plan.new_len()` of `key_out`
    /// and `value_out`, all dense rows `[head][token][dim]`.
    ///
    /// The image's groups come first, then its remaining tokens, then those of the text. A group is `factor`
    /// neighbouring tokens of one head, oldest first, as one row `x`. Its result is `W2 * relu(W1 * relu(W0 * x + b0) +
    /// b1) + b2`, with weights in the cache's type, sums in f32 by fused operations in ascending order, the bias added
    /// last, and one rounding to the cache's type per layer. Keys are those of the cache, after RoPE.
    ///
    /// INVALID_ARGUMENT: if the layer does not exist, a length or the plan does not fit, or a result is not finite in
    /// the cache's type. UNSUPPORTED: as [`Compressor::check_dtype`]. On failure the outputs are unspecified.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        layer: usize,
        plan: &LengthPlan,
        tokens: Tokens,
        key: &[u8],
        value: &[u8],
        key_out: &mut [u8],
        value_out: &mut [u8],
        work: &mut Workspace,
    ) -> Result<()> {
        self.check_dtype(layer, tokens.dtype)?;
        if plan.factor != self.header.factor as usize || (plan.image.groups > 0 && !self.has_image()) {
            bail!(InvalidArgument, "the plan is of other weights");
        }
        let token_bytes = tokens.heads.checked_mul(self.head_dim * tokens.dtype.bytes());
        for (name, given, count) in [
            ("key", key.len(), plan.len()),
            ("value", value.len(), plan.len()),
            ("key_out", key_out.len(), plan.new_len()),
            ("value_out", value_out.len(), plan.new_len()),
        ] {
            let expected = token_bytes.and_then(|bytes| bytes.checked_mul(count));
            if expected != Some(given) {
                let Tokens { heads, dtype } = tokens;
                let (dims, dtype) = (self.head_dim, dtype.name());
                bail!(
                    InvalidArgument,
                    "{name} has {given} bytes; {heads} heads of {count} tokens of {dims} {dtype} expected"
                );
            }
        }
        for (index, from, to) in [(0, key, key_out), (1, value, value_out)] {
            self.run_plane(layer, index, plan, tokens, from, to, work)?;
        }
        Ok(())
    }

    /// K (0) or V (1).
    #[allow(clippy::too_many_arguments)]
    fn run_plane(
        &self,
        layer: usize,
        plane: usize,
        plan: &LengthPlan,
        tokens: Tokens,
        from: &[u8],
        to: &mut [u8],
        work: &mut Workspace,
    ) -> Result<()> {
        let mut new_begin = 0;
        // The first two networks are those of text, the others those of images.
        for (segment, network) in [(plan.image, 2 + plane), (plan.text, plane)] {
            let bytes = self.head_dim * tokens.dtype.bytes();
            let spans = Spans {
                bytes,
                factor: plan.factor,
                old_head: plan.len() * bytes,
                new_head: plan.new_len() * bytes,
                old_begin: segment.begin * bytes,
                new_begin: new_begin * bytes,
            };
            spans.copy_rest(&segment, tokens.heads, from, to);
            if segment.groups > 0 {
                let blocks = &self.blocks(layer)?[network * SLOTS..][..SLOTS];
                work.0.load(self, blocks, tokens.dtype)?;
                if let Some((head, group)) = spans.run_groups(segment.groups, tokens, from, to, &mut work.0) {
                    let place = Place { layer, block: network * SLOTS };
                    let token = segment.begin + group * plan.factor;
                    bail!(
                        InvalidArgument,
                        "{place}: head {head}: the result of the tokens from {token} on is not finite in {}",
                        tokens.dtype.name()
                    );
                }
            }
            new_begin += segment.new_len();
        }
        Ok(())
    }
}

/// The places of a segment's rows before and after, in bytes.
struct Spans {
    /// Bytes of a row.
    bytes: usize,
    /// Rows that become one.
    factor: usize,
    /// From one head to the next.
    old_head: usize,
    new_head: usize,
    /// From the start of a head to the segment.
    old_begin: usize,
    new_begin: usize,
}

impl Spans {
    /// Copies the tokens outside groups.
    fn copy_rest(&self, segment: &Segment, heads: usize, from: &[u8], to: &mut [u8]) {
        let len = segment.rest * self.bytes;
        for head in 0..heads {
            let old = head * self.old_head + self.old_begin + segment.groups * self.factor * self.bytes;
            let new = head * self.new_head + self.new_begin + segment.groups * self.bytes;
            to[new..new + len].copy_from_slice(&from[old..old + len]);
        }
    }

    /// Runs the groups of all heads, as many at once as the network has room for, across heads. Returns the head and
    /// group of a result that is not finite.
    fn run_groups(
        &self,
        groups: usize,
        tokens: Tokens,
        from: &[u8],
        to: &mut [u8],
        mlp: &mut Mlp,
    ) -> Option<(usize, usize)> {
        let Tokens { dtype, heads } = tokens;
        let group_bytes = self.factor * self.bytes;
        let total = heads * groups;
        for first in (0..total).step_by(ROWS) {
            let rows = first..total.min(first + ROWS);
            let mut input = mlp.input(rows.len());
            for (head, range) in pieces(rows.clone(), groups) {
                let old = head * self.old_head + self.old_begin;
                let bytes = &from[old + range.start * group_bytes..old + range.end * group_bytes];
                let (numbers, rest) = input.split_at_mut(bytes.len() / dtype.bytes());
                widen(dtype, Endian::Native, bytes, numbers);
                input = rest;
            }
            let results = mlp.run(rows.len());
            let mut done = 0;
            for (head, range) in pieces(rows, groups) {
                let new = head * self.new_head + self.new_begin;
                let bytes = &mut to[new + range.start * self.bytes..new + range.end * self.bytes];
                if let Some(bad) = results.store(done, range.len(), bytes) {
                    return Some((head, range.start + bad));
                }
                done += range.len();
            }
        }
        None
    }
}

/// The heads and their groups of a range of rows `[head][group]`.
fn pieces(rows: Range<usize>, groups: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut at = rows.start;
    std::iter::from_fn(move || {
        let (head, group) = (at / groups, at % groups);
        let len = (groups - group).min(rows.end - at);
        at += len;
        (len > 0).then_some((head, group..group + len))
    })
}
