//! Codes of symbols from tables in registers.

use crate::arch::pack::{CodeWord, portable};
use core::arch::x86_64::*;

/// Symbols of a vector of codes.
const SYMBOLS: usize = 32;

/// See [`crate::arch::Kernels::pack`]. The table is eight registers; a permute looks up two of them.
///
/// # Safety
/// Needs AVX-512 F, BW and VL.
#[inline(always)]
pub(super) unsafe fn pack(codes: &[CodeWord; 256], symbols: &[[u8; 4]], groups: &mut [u64]) {
    let (symbols, rest) = symbols[..symbols.len().min(groups.len())].as_chunks::<{ SYMBOLS / 4 }>();
    let (groups, rest_groups) = groups.split_at_mut(SYMBOLS / 4 * symbols.len());
    // SAFETY: the caller has the features. A table has 8 x 32 codes, eight fours are 32 bytes, and so are eight groups 64.
    unsafe {
        let table: [__m512i; 8] = std::array::from_fn(|i| _mm512_loadu_si512(codes.as_ptr().add(32 * i).cast()));
        for (fours, out) in symbols.iter().zip(groups.as_chunks_mut::<{ SYMBOLS / 4 }>().0) {
            let bytes = _mm256_loadu_si256(fours.as_ptr().cast());
            let at = _mm512_cvtepu8_epi16(bytes);
            // The permutes look at the low six bits of a symbol.
            let bit6 = _mm512_test_epi16_mask(at, _mm512_set1_epi16(64));
            let bit7 = _mm512_test_epi16_mask(at, _mm512_set1_epi16(128));
            let part = |i: usize| _mm512_permutex2var_epi16(table[2 * i], at, table[2 * i + 1]);
            let low = _mm512_mask_blend_epi16(bit6, part(0), part(1));
            let high = _mm512_mask_blend_epi16(bit6, part(2), part(3));
            let codes = _mm512_mask_blend_epi16(bit7, low, high);
            // Pairs: the first code above the second, in 32 bits.
            let words = _mm512_srli_epi16::<4>(codes);
            let lens = _mm512_and_si512(codes, _mm512_set1_epi16(15));
            let first = _mm512_and_si512(words, _mm512_set1_epi32(0xFFFF));
            let second_len = _mm512_srli_epi32::<16>(lens);
            let pair = _mm512_or_si512(_mm512_sllv_epi32(first, second_len), _mm512_srli_epi32::<16>(words));
            let pair_len = _mm512_and_si512(_mm512_add_epi32(lens, second_len), _mm512_set1_epi32(0xFFFF));
            // Pairs of pairs, in 64 bits.
            let low = _mm512_set1_epi64(0xFFFF_FFFF);
            let second_len = _mm512_srli_epi64::<32>(pair_len);
            let first = _mm512_sllv_epi64(_mm512_and_si512(pair, low), second_len);
            let four = _mm512_or_si512(first, _mm512_srli_epi64::<32>(pair));
            let len = _mm512_and_si512(_mm512_add_epi64(pair_len, second_len), low);
            let top = _mm512_sllv_epi64(four, _mm512_sub_epi64(_mm512_set1_epi64(64), len));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_or_si512(top, len));
        }
    }
    portable(codes, rest, rest_groups);
}
