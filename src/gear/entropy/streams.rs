//! Symbols to Huffman bit streams.

use super::bits::BitWriter;
use crate::arch;
use crate::arch::pack::CodeWord;

/// The jump table: the lengths of all streams but the last.
pub(super) const JUMP_TABLE: usize = 6;

/// Symbols of a group, whose codes are packed before they are written.
const GROUP: usize = 4;
/// Groups that are packed at once.
const GROUPS: usize = 256;

/// Writes `src` as one stream, the last symbol first; returns the length.
pub(super) fn one(codes: &[CodeWord; 256], src: &[u8], out: &mut [u8]) -> usize {
    let pack = arch::kernels().pack;
    let mut bits = BitWriter::new(out);
    let mut packed = [0; GROUPS];
    let (first, groups) = src.as_rchunks::<GROUP>();
    for groups in groups.rchunks(GROUPS) {
        pack(codes, groups, &mut packed);
        for group in packed[..groups.len()].iter().rev() {
            bits.push_top(*group, *group as u32 % 64);
        }
    }
    for symbol in first.iter().rev() {
        let code = codes[*symbol as usize];
        bits.push(u64::from(code >> 4), u32::from(code & 15));
    }
    bits.finish_backward()
}

/// Writes `src` as a jump table and four streams; returns the length of all.
pub(super) fn four(codes: &[CodeWord; 256], src: &[u8], out: &mut [u8]) -> usize {
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
