//! Entropy coding alone, in standard ZSTD frames (RFC 8878).
//!
//! For bytes in which a match finder finds nothing: the blocks written here hold Huffman coded literals and no
//! sequences. Any ZSTD decoder reads them.

#![forbid(unsafe_code)]

mod bits;
mod estimate;
mod frame;
mod fse;
mod huffman;
mod streams;
#[cfg(test)]
mod tests;

use super::histogram;
use crate::arch::pack::CodeWord;
use frame::{BLOCK_HEADER, BLOCK_MAX, Block, Tree};
use huffman::Lengths;

/// Streams are written by whole words, and a block that grows is noticed only afterwards.
const SLACK: usize = 16;

/// The room that [`stored`] and [`literals`] need for `len` bytes; what they write is shorter.
pub(super) const fn bound(len: usize) -> usize {
    frame::HEADER_MAX + len + BLOCK_HEADER * (len / BLOCK_MAX + 1) + SLACK
}

/// Writes a frame that stores `src` to `out`, which holds at least [`bound`] bytes; returns the length.
pub(super) fn stored(src: &[u8], out: &mut [u8]) -> usize {
    blocks(src, out, frame::raw_block)
}

/// Writes a frame of Huffman blocks to `out`, which holds at least [`bound`] bytes; returns the length. A block that
/// would not shrink is stored, and one that repeats a single byte becomes a run.
pub(super) fn literals(src: &[u8], out: &mut [u8]) -> usize {
    let mut previous = None;
    blocks(src, out, |part, last, out| block(part, &histogram::of(part), last, &mut previous, out))
}

/// About how many bytes [`literals`] takes for one block with this histogram.
pub(super) fn estimate(counts: &[u32; 256]) -> usize {
    estimate::block(counts)
}

/// Writes a frame, block by block.
fn blocks(src: &[u8], out: &mut [u8], mut block: impl FnMut(&[u8], bool, &mut [u8]) -> usize) -> usize {
    let mut len = frame::begin(src.len(), out);
    let mut rest = src;
    loop {
        let (part, after) = rest.split_at(rest.len().min(BLOCK_MAX));
        len += block(part, after.is_empty(), &mut out[len..]);
        if after.is_empty() {
            return len;
        }
        rest = after;
    }
}

/// A tree that a block was written with, for the blocks after it.
struct Code {
    lengths: Lengths,
    words: [CodeWord; 256],
}

/// Writes one block; returns its length.
fn block(src: &[u8], counts: &[u32; 256], last: bool, previous: &mut Option<Code>, out: &mut [u8]) -> usize {
    let Some(&first) = src.first() else { return frame::raw_block(src, last, out) };
    if counts[first as usize] as usize == src.len() {
        out[..BLOCK_HEADER].copy_from_slice(&frame::block_header(Block::Rle, src.len(), last));
        out[BLOCK_HEADER] = first;
        return BLOCK_HEADER + 1;
    }
    match compressed(src, counts, previous, &mut out[BLOCK_HEADER..]) {
        Some(len) => {
            out[..BLOCK_HEADER].copy_from_slice(&frame::block_header(Block::Compressed, len, last));
            BLOCK_HEADER + len
        }
        None => frame::raw_block(src, last, out),
    }
}

/// Writes the content of a compressed block; returns its length, or `None` when it is no shorter than `src`.
fn compressed(src: &[u8], counts: &[u32; 256], previous: &mut Option<Code>, out: &mut [u8]) -> Option<usize> {
    let lengths = Lengths::new(counts);
    let mut description = [0; huffman::DESCRIPTION_ROOM];
    let own = lengths.describe(&mut description);
    let own_cost = own.map(|len| len + lengths.cost(counts).expect("made for these counts").div_ceil(8));
    let old_cost = previous.as_ref().and_then(|code| code.lengths.cost(counts)).map(|bits| bits.div_ceil(8));

    let layout = frame::layout(src.len());
    let cost = own_cost.unwrap_or(usize::MAX).min(old_cost.unwrap_or(usize::MAX));
    if cost >= src.len() - layout.header_len.min(src.len()) {
        return None;
    }
    let fresh = (old_cost != Some(cost)).then(|| Code { words: lengths.codes(), lengths });
    let (tree, code) = match &fresh {
        Some(code) => (Tree::Own, code),
        None => (Tree::Previous, previous.as_ref()?),
    };
    let mut len = layout.header_len;
    if tree == Tree::Own {
        let own = own?;
        out[len..len + own].copy_from_slice(&description[..own]);
        len += own;
    }
    let encode = if layout.streams == 1 { streams::one } else { streams::four };
    len += encode(&code.words, src, &mut out[len..]);
    layout.write(tree, src.len(), len - layout.header_len, out);
    out[len] = frame::NO_SEQUENCES;
    len += 1;
    if len >= src.len() {
        return None;
    }
    if fresh.is_some() {
        *previous = fresh;
    }
    Some(len)
}
