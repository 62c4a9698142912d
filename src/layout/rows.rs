//! Moves tokens if a row is a short run of tokens: MNN's keys with lP = 1, `[dim][hP tokens]` per block.
//!
//! An unaligned move there is thousands of pieces of a few bytes each. Here a row is always read and written whole, and a
//! mask drops the bytes of other tokens, so pieces of every length cost the same. Both functions return whether they did
//! the work. Unusual row sizes, and rows whose whole read would leave the head, are left to the caller.

use super::plane::{Chunk, Place, Plane};

/// Bytes per row, if rows are runs of tokens.
fn row_bytes<const N: usize>(plane: &Plane) -> Option<usize> {
    (plane.group == 1 && plane.pack == 1).then_some(plane.block * N)
}

/// Fills whole target blocks from source blocks that are cut elsewhere: a row is the end of a source row and the start
/// of the same row in the next block. Blocks that are not cut have no next one, and are left to the caller.
pub(super) fn join<const N: usize>(
    plane: &Plane,
    packed: &mut [[u8; N]],
    src: Place,
    dst_base: usize,
    blocks: usize,
) -> bool {
    let join = match row_bytes::<N>(plane).filter(|_| src.first > 0) {
        Some(8) => join_block::<8>,
        Some(16) => join_block::<16>,
        Some(32) => join_block::<32>,
        Some(64) => join_block::<64>,
        Some(128) => join_block::<128>,
        Some(256) => join_block::<256>,
        _ => return false,
    };
    let bytes = packed.as_flattened_mut();
    for block in 0..blocks {
        let at = |base: usize| (base + block * plane.block_stride) * N;
        join(
            bytes,
            at(src.base),
            at(src.base) + plane.block_stride * N,
            src.first * N,
            at(dst_base),
            plane.block_len() * N,
        );
    }
    true
}

/// One block of `len` bytes, from the source blocks at `src` and `next`; `cut` is the place, in bytes, at which source
/// rows are cut. The tokens exist, so both source blocks do, and a whole read from either stays between the start of the
/// first and the end of the second.
fn join_block<const W: usize>(bytes: &mut [u8], src: usize, next: usize, cut: usize, dst: usize, len: usize) {
    let from_first: [u8; W] = std::array::from_fn(|i| if i < W - cut { 0xFF } else { 0 });
    for row in (0..len).step_by(W) {
        let first: [u8; W] = load(bytes, src + row + cut);
        let second: [u8; W] = load(bytes, next + row + cut - W);
        bytes[dst + row..][..W].copy_from_slice(&select(&from_first, &first, &second));
    }
}

/// Moves tokens from one block to another, or within one.
pub(super) fn blend<const N: usize>(plane: &Plane, packed: &mut [[u8; N]], chunk: &Chunk) -> bool {
    let blend = match row_bytes::<N>(plane) {
        Some(8) => blend_block::<8>,
        Some(16) => blend_block::<16>,
        Some(32) => blend_block::<32>,
        Some(64) => blend_block::<64>,
        Some(128) => blend_block::<128>,
        Some(256) => blend_block::<256>,
        _ => return false,
    };
    let Chunk { src, dst, count } = *chunk;
    // The place of a read of a source row that aligns its tokens with the target's.
    let Some(from) = (src.base + src.first).checked_sub(dst.first) else { return false };
    if from + plane.block_len() > packed.len() {
        return false;
    }
    let tokens = dst.first * N..(dst.first + count) * N;
    blend(packed.as_flattened_mut(), from * N, dst.base * N, plane.block_len() * N, tokens);
    true
}

fn blend_block<const W: usize>(
    bytes: &mut [u8],
    from: usize,
    dst: usize,
    block: usize,
    tokens: std::ops::Range<usize>,
) {
    let moved: [u8; W] = std::array::from_fn(|i| if tokens.contains(&i) { 0xFF } else { 0 });
    for row in (0..block).step_by(W) {
        let new: [u8; W] = load(bytes, from + row);
        let old: [u8; W] = load(bytes, dst + row);
        bytes[dst + row..][..W].copy_from_slice(&select(&moved, &new, &old));
    }
}

fn load<const W: usize>(bytes: &[u8], at: usize) -> [u8; W] {
    *bytes[at..].first_chunk().expect("callers stay inside the head")
}

/// Bits of `a` where the mask is set, else of `b`.
fn select<const W: usize>(mask: &[u8; W], a: &[u8; W], b: &[u8; W]) -> [u8; W] {
    std::array::from_fn(|i| (a[i] & mask[i]) | (b[i] & !mask[i]))
}
