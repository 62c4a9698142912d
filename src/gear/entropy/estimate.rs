//! The size of a block from its histogram alone, without a tree.

use super::frame::{self, BLOCK_HEADER, BLOCK_MAX};
use super::streams;

/// log2 of `x`, within 0.001; 0 for 0.
#[inline(always)]
fn log2(x: u32) -> f32 {
    let bits = (x.max(1) as i32 as f32).to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let m = f32::from_bits(bits & 0x7F_FFFF | 0x3F80_0000) - 1.0;
    // A cubic that meets the logarithm at both ends of the octave.
    exponent as f32 + m * (1.4228 + m * (-0.582 + m * 0.1592))
}

/// Sum of count * log2(count).
fn sum(counts: &[u32; 256]) -> f32 {
    let mut sums = [0.0; 8];
    for group in counts.as_chunks::<8>().0 {
        for (sum, &count) in sums.iter_mut().zip(group) {
            *sum += count as i32 as f32 * log2(count);
        }
    }
    sums.iter().sum()
}

/// See [`super::estimate`].
pub(super) fn block(counts: &[u32; 256]) -> usize {
    let total = counts.iter().sum::<u32>() as usize;
    let frames = frame::HEADER_MAX - 4 + BLOCK_HEADER * total.div_ceil(BLOCK_MAX).max(1);
    let distinct = counts.iter().filter(|&&c| c > 0).count();
    if distinct < 2 {
        return frames + distinct;
    }
    let last = counts.iter().rposition(|&c| c > 0).unwrap_or(0);
    let tree = (5 + tree_bits(distinct as u32, last as u32 + 1) / 8).min(1 + last.div_ceil(2));
    let layout = frame::layout(total);
    let jumps = if layout.streams == 1 { 1 } else { streams::JUMP_TABLE + 2 };
    frames + (layout.header_len + tree + jumps + 1 + code_bits(counts) / 8).min(total)
}

/// Bits that tell which of `span` symbols have a code, and how long each of these is. The latter is fitted to real
/// planes.
fn tree_bits(distinct: u32, span: u32) -> usize {
    let term = |n: u32| n as f32 * log2(n);
    (term(span) - term(distinct) - term(span - distinct) + 2.7 * distinct as f32) as usize
}

/// Bits that a Huffman code takes: the entropy and a little, but a symbol never takes less than one bit.
fn code_bits(counts: &[u32; 256]) -> usize {
    let mut counts = *counts;
    let mut left: u32 = counts.iter().sum();
    let mut bits = 0;
    loop {
        // A symbol more frequent than this has a code of one bit, and that bit sets all others apart.
        let most = counts.iter().copied().max().unwrap_or(0);
        if most <= left / 5 * 2 || most == left {
            break;
        }
        bits += left as usize;
        left -= most;
        *counts.iter_mut().find(|c| **c == most).expect("the maximum is there") = 0;
    }
    let left_f = left as f32;
    bits + ((log2(left) + 0.05) * left_f - sum(&counts)).max(0.0) as usize
}
