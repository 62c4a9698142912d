//! INT8 V beside its tokens: the scales of its blocks, and the sums of its values.
//!
//! Scales and biases are per head and dim; all value blocks have those of the first one. A value sum is the sum of all
//! values of a block in one dim, and MNN's Arm and plain C kernels read the codes of a block behind its last token. So
//! whatever shortens or rewrites a cache must clear those codes and sum anew ([`changed`]), and an append into a block
//! whose scales MNN has not copied must copy them ([`appended`]).

use super::kind::{F32, QUANTISED_BLOCK};
use super::tensor::Tensor;
use super::{Cache, CacheRef, Spec, TokenRange, clear};
use crate::status::{Error, Result, bail};

/// Tokens of a value block.
pub(super) const BLOCK: usize = QUANTISED_BLOCK as usize;

/// Where the scales and the value sums of INT8 V are; sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueScales {
    heads: usize,
    dims: usize,
    /// Value blocks of a head.
    blocks: usize,
    /// From one block to the next.
    block: usize,
    /// Dims of a group, and their bytes: codes, then scales, then biases.
    group_dims: usize,
    group: usize,
    /// Tokens of a panel of codes.
    pack: usize,
    /// From one block's sums to the next's.
    block_sums: usize,
}

impl ValueScales {
    pub(super) fn new(value: &Tensor, spec: &Spec) -> Result<Self> {
        let (plane, heads) = (value.plane(), value.heads());
        let (dims, group_dims) = (plane.dims, plane.group);
        let blocks = (spec.max_tokens as usize).div_ceil(BLOCK);
        // Fewer bytes than V has.
        let block_sums = dims.next_multiple_of(group_dims) * F32;
        Ok(ValueScales {
            heads,
            dims,
            blocks,
            block: value.block_stride(),
            group_dims,
            group: plane.row_stride,
            pack: plane.pack,
            block_sums,
        })
    }

    /// Bytes of the value sums of all heads.
    pub(super) fn sum_bytes(&self) -> usize {
        self.heads * self.head_sums()
    }

    fn head_sums(&self) -> usize {
        self.blocks * self.block_sums
    }

    /// Codes of a group.
    fn codes(&self) -> usize {
        self.group_dims * BLOCK
    }

    /// Scales and biases of a group.
    fn lanes(&self) -> usize {
        2 * self.group_dims * F32
    }

    /// The first byte of the scales of each group of a block.
    fn scale_lanes(&self, block: usize) -> impl Iterator<Item = usize> + use<> {
        let (start, group, codes) = (block * self.block, self.group, self.codes());
        (0..self.block / group).map(move |number| start + number * group + codes)
    }

    /// Writes the sums of the first `tokens` tokens of a block of a head: token by token, product and sum rounded one by
    /// one. The scales are those of the first block, as in MNN: its own may still be missing.
    fn sum_block(&self, value: &[u8], block: usize, sums: &mut [u8], tokens: usize) {
        let groups = value[block * self.block..][..self.block].chunks_exact(self.group);
        for ((group, scales), sums) in groups.zip(self.scale_lanes(0)).zip(sums.chunks_exact_mut(self.group_dims * F32))
        {
            let codes = &group[..self.codes()];
            let (scales, biases) = value[scales..][..self.lanes()].split_at(self.group_dims * F32);
            match (self.group_dims, self.pack) {
                (8, 4) => sum_group::<8, 4>(codes, scales, biases, sums, tokens),
                (64, 4) => sum_group::<64, 4>(codes, scales, biases, sums, tokens),
                (8, 8) => sum_group::<8, 8>(codes, scales, biases, sums, tokens),
                (4, 16) => sum_group::<4, 16>(codes, scales, biases, sums, tokens),
                (32, 4) => sum_group::<32, 4>(codes, scales, biases, sums, tokens),
                _ => unreachable!("Layout::new refuses other units"),
            }
        }
    }
}

/// The sums of `H` dims over panels of `L` tokens.
fn sum_group<const H: usize, const L: usize>(
    codes: &[u8],
    scales: &[u8],
    biases: &[u8],
    sums: &mut [u8],
    tokens: usize,
) {
    /// Codes of a dim that are taken as one word, so that the work on neighbouring dims is the same.
    const WORD: usize = 4;
    let (scales, biases) = (floats::<H>(scales), floats::<H>(biases));
    let (mut sum, mut words) = ([0f32; H], [0i32; H]);
    let mut left = tokens;
    for panel in codes.as_chunks::<L>().0.as_chunks::<H>().0 {
        for first in (0..L).step_by(WORD) {
            for (word, dim) in words.iter_mut().zip(panel) {
                *word = i32::from_le_bytes([dim[first], dim[first + 1], dim[first + 2], dim[first + 3]]);
            }
            for token in 0..WORD.min(left) {
                for dim in 0..H {
                    let code = words[dim] << (8 * (WORD - 1 - token)) >> (8 * (WORD - 1));
                    sum[dim] += code as f32 * scales[dim] + biases[dim];
                }
            }
            left = left.saturating_sub(WORD);
        }
    }
    for (to, sum) in sums.as_chunks_mut::<F32>().0.iter_mut().zip(sum) {
        *to = sum.to_ne_bytes();
    }
}

fn floats<const H: usize>(bytes: &[u8]) -> [f32; H] {
    let mut values = [0.0; H];
    values.iter_mut().zip(bytes.as_chunks::<F32>().0).for_each(|(value, bytes)| *value = f32::from_ne_bytes(*bytes));
    values
}

/// Does what an append of these tokens requires, before attention reads V: the value blocks that they touch
/// get the scales and biases of the first one. Other caches stay as they are.
pub fn appended(cache: &mut Cache<'_>, range: TokenRange) {
    let Some(scales) = cache.layout.value_scales.filter(|_| !range.is_empty()) else { return };
    for head in cache.layout.value.head_ranges() {
        let value = &mut cache.value[head];
        for block in (range.begin / BLOCK).max(1)..range.end().div_ceil(BLOCK) {
            for (from, to) in scales.scale_lanes(0).zip(scales.scale_lanes(block)) {
                value.copy_within(from..from + scales.lanes(), to);
            }
        }
    }
}

/// Does what a change of these tokens requires, where the cache has `kv_len` tokens afterwards (truncation, tokens written or
/// moved): codes of INT8 V become zero from `kv_len` on, as far as the range and the last block reach, and value sums are
/// those of the tokens that the blocks have, 0 behind the last one. Other caches stay as they are.
/// INVALID_ARGUMENT: if `kv_len` is out of range.
pub fn changed(cache: &mut Cache<'_>, range: TokenRange, kv_len: u32) -> Result<()> {
    let rest = cache.layout.tail(kv_len)?;
    settle(cache, range, kv_len as usize);
    if range.end() >= rest.begin {
        // A truncation, whatever its range: kernels read the last block up to its end.
        let count = rest.count.min(rest.begin.next_multiple_of(BLOCK) - rest.begin);
        settle(cache, TokenRange { count, ..rest }, kv_len as usize);
    }
    Ok(())
}

/// [`changed`], of a checked length.
pub(super) fn settle(cache: &mut Cache<'_>, range: TokenRange, kv_len: usize) {
    settle_moved(cache, range, kv_len, |_| None);
}

/// [`settle`] after a move. `source`: the block that a block was as a whole, whose sums it takes along.
pub(super) fn settle_moved(
    cache: &mut Cache<'_>,
    range: TokenRange,
    kv_len: usize,
    source: impl FnMut(usize) -> Option<usize>,
) {
    let layout = cache.layout;
    let Some(scales) = layout.value_scales.filter(|_| !range.is_empty()) else { return };
    let begin = kv_len.clamp(range.begin, range.end());
    let behind = TokenRange { begin, count: range.end() - begin };
    clear::walk(&layout.value, behind, clear::Padding::Kept, &mut |run| cache.value[run].fill(0));
    sum_blocks(cache, &scales, range, kv_len, source);
}

/// Does what a restore or a release requires that leaves the right codes, of a cache of `kv_len` tokens: the value blocks of
/// the range, and the rest of the block that it begins in, get the scales of the first block and sums as of [`changed`].
/// Codes stay, and released ones take no memory. Other caches stay as they are.
/// INVALID_ARGUMENT: if `kv_len` is out of range.
pub fn mended(cache: &mut Cache<'_>, range: TokenRange, kv_len: u32) -> Result<()> {
    let Some(scales) = cache.layout.value_scales else { return Ok(()) };
    let all = cache.layout.range(0, kv_len)?;
    appended(cache, TokenRange { count: range.end().min(all.count).saturating_sub(range.begin), ..range });
    sum_blocks(cache, &scales, range, all.count, |_| None);
    Ok(())
}

/// Writes the sums of the value blocks of the range, and 0 behind the last token. `source`: as of [`settle_moved`].
fn sum_blocks(
    cache: &mut Cache<'_>,
    scales: &ValueScales,
    range: TokenRange,
    kv_len: usize,
    mut source: impl FnMut(usize) -> Option<usize>,
) {
    let sums = cache.value_sums.chunks_exact_mut(scales.head_sums());
    for (head, sums) in cache.layout.value.head_ranges().zip(sums) {
        let value = &cache.value[head];
        for block in range.begin / BLOCK..scales.blocks {
            let own = block * scales.block_sums;
            let tokens = kv_len.saturating_sub(block * BLOCK).min(BLOCK);
            if tokens == 0 {
                // Those of all later blocks, too.
                sums[own..].fill(0);
                break;
            }
            // Tokens before the range, and blocks behind it, have the sums that they had.
            if block * BLOCK >= range.end() {
                continue;
            }
            match source(block) {
                // The source's are still there: tokens move to lower blocks, in order.
                Some(from) => sums.copy_within(from * scales.block_sums..(from + 1) * scales.block_sums, own),
                None => scales.sum_block(value, block, &mut sums[own..own + scales.block_sums], tokens),
            }
        }
    }
}

/// Copies the scales of INT8 V, `[head][2][dim]` f32, scales before biases. `out` has [`Layout::scale_bytes`]
/// (super::Layout::scale_bytes) bytes, none where V has no scales.
pub fn gather_scales(cache: &CacheRef<'_>, out: &mut [u8]) -> Result<()> {
    let Some(scales) = cache.layout.value_scales else { return Ok(()) };
    let needed = cache.layout.scale_bytes();
    if out.len() < needed {
        return Err(Error::too_small("cap_each (bytes)", out.len(), needed));
    }
    let head_out = needed / scales.heads;
    for (head, out) in cache.layout.value.head_ranges().zip(out.chunks_exact_mut(head_out)) {
        let value = &cache.value[head];
        for_each_lane(&scales, |packed, dense| out[dense].copy_from_slice(&value[packed]));
    }
    Ok(())
}

/// Gives INT8 V the scales that tokens `range` were gathered with. With token 0 among them they become those of the first
/// value block; otherwise V must have them.
/// INVALID_ARGUMENT: if V has other scales.
pub fn scatter_scales(cache: &mut Cache<'_>, range: TokenRange, given: &[u8]) -> Result<()> {
    let Some(scales) = cache.layout.value_scales.filter(|_| !range.is_empty()) else { return Ok(()) };
    let head_in = cache.layout.scale_bytes() / scales.heads;
    for (number, (head, given)) in cache.layout.value.head_ranges().zip(given.chunks_exact(head_in)).enumerate() {
        let value = &mut cache.value[head];
        let mut other = None;
        for_each_lane(&scales, |packed, dense| {
            if range.begin == 0 {
                value[packed].copy_from_slice(&given[dense]);
            } else if value[packed] != given[dense.clone()] {
                other = Some(dense.start / F32 % scales.dims);
            }
        });
        if let Some(dim) = other {
            bail!(
                InvalidArgument,
                "value_in has other scales than V, in head {number} near dim {dim}; tokens from {} on cannot have their \
                 own (token 0 brings scales along)",
                range.begin
            );
        }
    }
    Ok(())
}

/// Calls `visit` with the bytes of the scales, then of the biases, of every group of the first block, and their place in
/// `[2][dim]` f32.
fn for_each_lane(scales: &ValueScales, mut visit: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>)) {
    for (group, start) in scales.scale_lanes(0).enumerate() {
        let dim = group * scales.group_dims;
        let len = scales.group_dims.min(scales.dims - dim) * F32;
        for (lane, row) in [(start, 0), (start + scales.group_dims * F32, scales.dims)] {
            let dense = (row + dim) * F32;
            visit(lane..lane + len, dense..dense + len);
        }
    }
}
