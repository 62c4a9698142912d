//! Moves tokens inside a packed cache.

use super::plane::{Chunk, Place, Plane};
use super::tensor::Tensor;
use super::{Cache, TokenRange, by_element, int8, panels, rows};
use crate::status::{Result, bail};

/// Tokens that stay: an offset and a length.
pub type Pair = [i32; 2];

/// Moves `count` tokens from `src` to `dst`. The ranges may overlap; the result is as if moved through a copy. The value
/// sums of INT8 V stay, see [`changed`](super::changed).
pub fn move_tokens(cache: &mut Cache<'_>, src: u32, dst: u32, count: u32) -> Result<()> {
    cache.layout.range(src, count)?;
    let target = cache.layout.range(dst, count)?;
    let moves = [Move { src: src as usize, dst: dst as usize, count: count as usize }];
    move_all(cache, moves.iter().copied());
    int8::appended(cache, target);
    Ok(())
}

/// Checks that pairs ascend without overlap and end by `limit` tokens. Returns the number of tokens that they keep. A
/// pair of length 0 is allowed.
pub fn check_pairs(pairs: &[Pair], limit: u32) -> Result<u32> {
    let mut end = 0i64;
    let mut kept = 0;
    for (i, [offset, len]) in pairs.iter().copied().enumerate() {
        if offset < 0 || len < 0 {
            bail!(InvalidArgument, "pair {i} is ({offset}, {len}); an offset and a length from 0 on expected");
        }
        let (offset, len) = (offset as i64, len as i64);
        if offset < end {
            bail!(InvalidArgument, "pair {i} begins at {offset}; {end} or more expected (ascending, disjoint)");
        }
        end = offset + len;
        if end > limit as i64 {
            bail!(InvalidArgument, "pair {i} ends at {end}; {limit} or less expected");
        }
        kept += len as u32;
    }
    Ok(kept)
}

/// Keeps tokens `0..base` and the pairs, which are relative to `base`, and closes the gaps. Returns the new length. Checks
/// all arguments before the first byte moves. Tokens from the new length on are undefined; those of INT8 V are zero, and
/// its value sums are those of the tokens that are left.
pub fn compact(cache: &mut Cache<'_>, base: u32, pairs: &[Pair], kv_len: u32) -> Result<u32> {
    cache.layout.tail(kv_len)?;
    let Some(tail) = kv_len.checked_sub(base) else {
        bail!(InvalidArgument, "base is {base}; kv_len {kv_len} or less expected");
    };
    let kept = check_pairs(pairs, tail)?;

    let mut next = base as usize;
    let moves = pairs.iter().filter_map(move |[offset, len]| {
        let step = Move { src: base as usize + *offset as usize, dst: next, count: *len as usize };
        next += step.count;
        (step.src != step.dst && step.count > 0).then_some(step)
    });
    let new_len = base + kept;
    // The first token that the moves replace or remove.
    let first = moves.clone().next().map_or(new_len as usize, |step| step.dst);
    move_all(cache, moves.clone());
    let changed = TokenRange { begin: first, count: kv_len as usize - first };
    int8::settle_moved(cache, changed, new_len as usize, whole_sources(moves));
    Ok(new_len)
}

/// One move of whole tokens.
#[derive(Clone, Copy, Debug)]
struct Move {
    src: usize,
    dst: usize,
    count: usize,
}

/// Returns, for a value block of INT8 V, the block that has become this one as a whole. Blocks are asked for in ascending
/// order, head after head.
fn whole_sources(moves: impl Iterator<Item = Move> + Clone) -> impl FnMut(usize) -> Option<usize> {
    let tokens = int8::BLOCK;
    let mut left = moves.clone().peekable();
    let mut last = 0;
    move |block| {
        if block < last {
            left = moves.clone().peekable();
        }
        last = block;
        let (begin, end) = (block * tokens, (block + 1) * tokens);
        while left.next_if(|step| step.dst + step.count < end).is_some() {}
        let step = left.peek()?;
        let shift = step.src - step.dst;
        (step.dst <= begin && shift.is_multiple_of(tokens)).then(|| block + shift / tokens)
    }
}

fn move_all(cache: &mut Cache<'_>, moves: impl Iterator<Item = Move> + Clone) {
    let layout = cache.layout;
    move_tensor(&layout.key, cache.key, moves.clone());
    if let Some(sums) = &layout.key_sums {
        move_tensor(sums, cache.key_sums, moves.clone());
    }
    move_tensor(&layout.value, cache.value, moves);
}

fn move_tensor(tensor: &Tensor, packed: &mut [u8], moves: impl Iterator<Item = Move> + Clone) {
    for head in tensor.head_ranges() {
        for part in tensor.parts() {
            let (plane, packed) = (&part.plane, &mut packed[head.clone()]);
            by_element!(plane, move_elements(moves.clone()), packed);
        }
    }
}

fn move_elements<const N: usize>(plane: &Plane, packed: &mut [[u8; N]], moves: impl Iterator<Item = Move>) {
    for step in moves {
        if step.dst <= step.src {
            move_forward(plane, packed, step);
        } else {
            move_backward(plane, packed, step);
        }
    }
}

/// First token first: right for moves to lower tokens, however they overlap.
fn move_forward<const N: usize>(plane: &Plane, packed: &mut [[u8; N]], mut step: Move) {
    while step.count > 0 {
        let (src, dst) = (plane.place(step.src), plane.place(step.dst));
        let blocks = step.count / plane.block;
        let moved = if src.first == 0 && dst.first == 0 && blocks > 0 && plane.is_seamless() {
            // Whole blocks lie side by side: one piece.
            let len = blocks * plane.block_stride;
            packed.copy_within(src.base..src.base + len, dst.base);
            blocks * plane.block
        } else if dst.first == 0 && blocks > 0 && rows::join(plane, packed, src, dst.base, blocks) {
            blocks * plane.block
        } else {
            let room = (plane.block - src.first).min(plane.block - dst.first);
            let mut count = step.count.min(room);
            let joined = panels::join(plane, packed.as_flattened_mut(), src, dst, count);
            if joined > 0 {
                step = Move { src: step.src + joined, dst: step.dst + joined, count: step.count - joined };
                continue;
            }
            if plane.pack > 1 {
                let (s, d) = (src.first % plane.pack, dst.first % plane.pack);
                count = match count - count % plane.pack {
                    panels if s == 0 && d == 0 && panels > 0 => panels,
                    _ => count.min(plane.pack - s.max(d)),
                };
            }
            move_chunk(plane, packed, &Chunk { src, dst, count });
            count
        };
        step = Move { src: step.src + moved, dst: step.dst + moved, count: step.count - moved };
    }
}

/// Last token first: right for moves to higher tokens. Rare (no plan needs it), so only chunks, no whole blocks.
fn move_backward<const N: usize>(plane: &Plane, packed: &mut [[u8; N]], step: Move) {
    let mut left = step.count;
    while left > 0 {
        let (src, dst) = (plane.place(step.src + left - 1), plane.place(step.dst + left - 1));
        let mut count = left.min(src.first.min(dst.first) + 1);
        if plane.pack > 1 {
            count = count.min((src.first % plane.pack).min(dst.first % plane.pack) + 1);
        }
        let back = |p: Place| Place { base: p.base, first: p.first + 1 - count };
        move_chunk(plane, packed, &Chunk { src: back(src), dst: back(dst), count });
        left -= count;
    }
}

/// Moves a chunk row by row: whole runs of tokens where a row is full, single pieces in a row with padding dims.
fn move_chunk<const N: usize>(plane: &Plane, packed: &mut [[u8; N]], chunk: &Chunk) {
    if rows::blend(plane, packed, chunk) {
        return;
    }
    let Chunk { src, dst, count } = *chunk;
    if plane.block == 1 && plane.pack == 1 {
        return move_run(packed, src.base, dst.base, plane.dims);
    }
    let (group, pack) = (plane.group, plane.pack);
    let panel = group * pack;
    let start = |p: Place| p.base + (p.first / pack) * panel + p.first % pack;
    let (mut s, mut d) = (start(src), start(dst));
    let whole_panels = count.is_multiple_of(pack);
    for _ in 0..plane.full_rows() {
        if whole_panels {
            move_run(packed, s, d, count * group);
        } else {
            for dim in 0..group {
                move_run(packed, s + dim * pack, d + dim * pack, count);
            }
        }
        s += plane.row_stride;
        d += plane.row_stride;
    }
    let tail = plane.tail_dims();
    if tail == 0 {
        return;
    }
    if pack == 1 {
        // Tokens are `group` apart. The order matters when source and target share a block.
        let piece =
            |packed: &mut [[u8; N]], t: usize| packed.copy_within(s + t * group..s + t * group + tail, d + t * group);
        if d <= s {
            (0..count).for_each(|t| piece(packed, t));
        } else {
            (0..count).rev().for_each(|t| piece(packed, t));
        }
        return;
    }
    for first in (0..count).step_by(pack) {
        for dim in 0..tail {
            let at = (first / pack) * panel + dim * pack;
            move_run(packed, s + at, d + at, pack.min(count - first));
        }
    }
}

/// Moves `len` neighbouring elements, which may overlap.
#[inline]
fn move_run<const N: usize>(packed: &mut [[u8; N]], src: usize, dst: usize, len: usize) {
    packed.copy_within(src..src + len, dst);
}
