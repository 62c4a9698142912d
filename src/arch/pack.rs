//! Codes of symbols side by side, four at a time: the part of a Huffman encoder that does not wait for itself.

/// The longest code.
pub const LONGEST: u32 = 11;

/// A code and its length, which is in the low four bits.
pub type CodeWord = u16;

/// See [`super::Kernels::pack`].
pub fn portable(codes: &[CodeWord; 256], symbols: &[[u8; 4]], groups: &mut [u64]) {
    for (group, four) in groups.iter_mut().zip(symbols) {
        let (mut packed, mut count) = (0, 0);
        for symbol in four {
            let code = codes[*symbol as usize];
            packed = packed << (code & 15) | u64::from(code >> 4);
            count += u32::from(code & 15);
        }
        *group = packed << (64 - count) | u64::from(count);
    }
}
