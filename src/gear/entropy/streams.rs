//! Symbols to Huffman bit streams.

use super::bits::BitWriter;

/// The jump table: the lengths of all streams but the last.
pub(super) const JUMP_TABLE: usize = 6;

/// Symbols that are packed before they are written. Their codes fit together almost always, and those of half as many
/// do always.
const GROUP: usize = 6;

/// Writes `src` as one stream, the last symbol first; returns the length. Groups do not depend on one another, which
/// leaves the CPU several to work on at a time.
pub(super) fn one(codes: &[u64; 256], src: &[u8], out: &mut [u8]) -> usize {
    let mut bits = BitWriter::new(out);
    let (first, groups) = src.as_rchunks::<GROUP>();
    for group in groups.iter().rev() {
        let (packed, count) = pack(codes, group);
        if count <= BitWriter::MAX_PUSH {
            bits.push_top(packed, count);
        } else {
            bits = push_halves(codes, group, bits);
        }
    }
    push_halves(codes, first, bits).finish_backward()
}

/// Writes `src` as a jump table and four streams; returns the length of all.
pub(super) fn four(codes: &[u64; 256], src: &[u8], out: &mut [u8]) -> usize {
    let mut len = JUMP_TABLE;
    for (i, part) in src.chunks(src.len().div_ceil(4)).enumerate() {
        let written = one(codes, part, &mut out[len..]);
        if i < 3 {
            out[2 * i..2 * i + 2].copy_from_slice(&(written as u16).to_le_bytes());
        }
        len += written;
    }
    len
}

/// Writes at most a group. Takes and returns the writer, so that the caller can keep it in registers.
#[cold]
#[inline(never)]
fn push_halves<'a>(codes: &[u64; 256], group: &[u8], mut bits: BitWriter<'a>) -> BitWriter<'a> {
    let (left, right) = group.split_at(group.len() / 2);
    for half in [right, left] {
        let (packed, count) = pack(codes, half);
        if count > 0 {
            bits.push_top(packed, count);
        }
    }
    bits
}

/// The codes of a group at the top of a word, the first symbol's on top, and how many bits they are.
#[inline(always)]
fn pack(codes: &[u64; 256], group: &[u8]) -> (u64, u32) {
    // A code's length shifts out of the low byte or stays in its low four bits.
    let (mut packed, mut count) = (0u64, 0u8);
    for &symbol in group.iter().rev() {
        let code = codes[symbol as usize];
        packed = packed.wrapping_shr(code as u32) | code;
        count = count.wrapping_add(code as u8);
    }
    (packed, count as u32)
}
