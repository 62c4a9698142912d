//! Moves tokens inside a packed cache.

use super::plane::{Chunk, Place, Plane};
use super::rows;
use super::{Layout, by_element};
use crate::status::{Result, bail};

/// Tokens that stay: an offset and a length.
pub type Pair = [i32; 2];

/// Moves `count` tokens from `src` to `dst`. The ranges may overlap; the result is as if moved through a copy.
pub fn move_tokens(layout: &Layout, key: &mut [u8], value: &mut [u8], src: u32, dst: u32, count: u32) -> Result<()> {
    layout.check_buffers(key, value)?;
    layout.range(src, count)?;
    layout.range(dst, count)?;
    let moves = [Move { src: src as usize, dst: dst as usize, count: count as usize }];
    move_plane(&layout.key, key, moves.iter().copied());
    move_plane(&layout.value, value, moves.iter().copied());
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
/// all arguments before the first byte moves. Tokens from the new length on are undefined.
pub fn compact(
    layout: &Layout,
    key: &mut [u8],
    value: &mut [u8],
    base: u32,
    pairs: &[Pair],
    kv_len: u32,
) -> Result<u32> {
    layout.check_buffers(key, value)?;
    layout.range(0, kv_len)?;
    let Some(tail) = kv_len.checked_sub(base) else {
        bail!(InvalidArgument, "base is {base}; kv_len {kv_len} or less expected");
    };
    let kept = check_pairs(pairs, tail)?;

    let mut next = base as usize;
    let moves = pairs.iter().filter_map(move |[offset, len]| {
        let step = Move { src: base as usize + *offset as usize, dst: next, count: *len as usize };
        next += step.count;
        (step.src != step.dst).then_some(step)
    });
    move_plane(&layout.key, key, moves.clone());
    move_plane(&layout.value, value, moves);
    Ok(base + kept)
}

/// One move of whole tokens.
#[derive(Clone, Copy, Debug)]
struct Move {
    src: usize,
    dst: usize,
    count: usize,
}

fn move_plane(plane: &Plane, packed: &mut [u8], moves: impl Iterator<Item = Move> + Clone) {
    by_element!(plane, move_elements(moves), packed)
}

fn move_elements<const N: usize>(plane: &Plane, packed: &mut [[u8; N]], moves: impl Iterator<Item = Move> + Clone) {
    for head in plane.head_ranges() {
        let packed = &mut packed[head];
        for step in moves.clone() {
            if step.dst <= step.src {
                move_forward(plane, packed, step);
            } else {
                move_backward(plane, packed, step);
            }
        }
    }
}

/// First token first: right for moves to lower tokens, however they overlap.
fn move_forward<const N: usize>(plane: &Plane, packed: &mut [[u8; N]], mut step: Move) {
    while step.count > 0 {
        let (src, dst) = (plane.place(step.src), plane.place(step.dst));
        let blocks = step.count / plane.block();
        let moved = if src.first == 0 && dst.first == 0 && blocks > 0 && plane.is_seamless() {
            // Whole blocks lie side by side: one piece.
            let len = blocks * plane.block_stride();
            packed.copy_within(src.base..src.base + len, dst.base);
            blocks * plane.block()
        } else if dst.first == 0 && blocks > 0 && rows::join(plane, packed, src, dst.base, blocks) {
            blocks * plane.block()
        } else {
            let room = (plane.block() - src.first).min(plane.block() - dst.first);
            let mut count = step.count.min(room);
            if plane.pack() > 1 {
                let (s, d) = (src.first % plane.pack(), dst.first % plane.pack());
                count = match count - count % plane.pack() {
                    panels if s == 0 && d == 0 && panels > 0 => panels,
                    _ => count.min(plane.pack() - s.max(d)),
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
        if plane.pack() > 1 {
            count = count.min((src.first % plane.pack()).min(dst.first % plane.pack()) + 1);
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
    if plane.block() == 1 && plane.pack() == 1 {
        return move_run(packed, src.base, dst.base, plane.dims());
    }
    let (group, pack) = (plane.group(), plane.pack());
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
        s += plane.row_stride();
        d += plane.row_stride();
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
