//! Prefix codes with AVX2.
//!
//! Byte look-ups have 16 entries, so a code's length comes from comparisons, its rank among all codes from the length, and
//! its symbol from look-ups of 16 ranks each. A multiplication by a power of two is a shift of each word by its own
//! number of bits. Packed words of 16 lanes each have the order 0 to 7, 16 to 23, 8 to 15, 24 to 31 ([`natural`]).

use super::shuffles::{COMPRESS, EXPAND};
use super::{DecodeTable, EncodeTable, MAX_LANES, Pending, SLACK, Source, Target, Windows};
use core::arch::x86_64::*;

/// Lanes of two vectors of words.
const PAIR: usize = 32;

/// Packed bytes to the order of lanes, and back.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn natural(bytes: __m256i) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_permute4x64_epi64::<0xD8>(bytes) }
}

/// Words of `2^n`, for words whose bytes are both n, 0 to 15.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn powers(twice: __m256i) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        // The upper byte is looked up eight entries further: 0 below 8, and from 8 on it wraps around.
        let table = _mm256_setr_epi64x(0x8040_2010_0804_0201u64 as i64, 0, 0x8040_2010_0804_0201u64 as i64, 0);
        _mm256_shuffle_epi8(table, _mm256_add_epi8(twice, _mm256_set1_epi16(0x0800)))
    }
}

/// [`powers`] of packed bytes.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn powers_of(packed: __m256i) -> [__m256i; 2] {
    // SAFETY: the caller's.
    unsafe { [powers(_mm256_unpacklo_epi8(packed, packed)), powers(_mm256_unpackhi_epi8(packed, packed))] }
}

/// See [`super::Decode`].
///
/// # Safety
/// Needs AVX2 and POPCNT.
#[inline(always)]
pub(in crate::arch) unsafe fn decode(
    table: &DecodeTable,
    windows: &mut Windows,
    source: &Source<'_>,
    out: &mut [u8],
) -> bool {
    source.check(windows);
    let from = source.bytes.as_ptr();
    let lanes = windows.lanes;
    // SAFETY: the caller has the features. A step begins with both places at most at the ends of their streams, takes at
    // most a byte of each for every lane, and these are behind the ends, too.
    unsafe {
        let flip = _mm256_set1_epi8(-128);
        let last: [__m256i; 7] =
            std::array::from_fn(|i| _mm256_xor_si256(_mm256_set1_epi8(table.last[i + 1] as i8), flip));
        let min_len = _mm256_set1_epi8(table.min_len as i8);
        let base = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.base.as_ptr().cast()));
        let escape = _mm256_set1_epi8(table.escape_rank as i8);
        let has_escape = if table.escape_size > 0 { u32::MAX } else { 0 };
        let eight = _mm256_set1_epi8(8);
        let blocks = &table.ranked.as_chunks::<16>().0[..table.count.div_ceil(16).min(16)];
        let (mut at, mut escape_at) = (windows.at, windows.escape_at);
        let mut is_inside = true;
        for step in out.chunks_exact_mut(lanes) {
            for (i, out) in step.as_chunks_mut::<PAIR>().0.iter_mut().enumerate() {
                let bits = windows.bits.as_mut_ptr().add(PAIR * i).cast::<__m256i>();
                let (a, b) = (_mm256_loadu_si256(bits), _mm256_loadu_si256(bits.add(1)));
                let first = _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
                let first = _mm256_xor_si256(first, flip);
                let mut len = min_len;
                for last in last {
                    len = _mm256_sub_epi8(len, _mm256_cmpgt_epi8(first, last));
                }
                let [power_a, power_b] = powers_of(len);
                let code = _mm256_packus_epi16(_mm256_mulhi_epu16(a, power_a), _mm256_mulhi_epu16(b, power_b));
                let rank = natural(_mm256_sub_epi8(code, _mm256_shuffle_epi8(base, len)));

                // Ranks of other blocks look up nothing: from 16 on, and below 0, the high bit is set.
                let mut symbol = _mm256_setzero_si256();
                let mut place = rank;
                for block in blocks {
                    let block = _mm256_broadcastsi128_si256(_mm_loadu_si128(block.as_ptr().cast()));
                    let found = _mm256_shuffle_epi8(block, _mm256_adds_epu8(place, _mm256_set1_epi8(0x70)));
                    symbol = _mm256_or_si256(symbol, found);
                    place = _mm256_sub_epi8(place, _mm256_set1_epi8(16));
                }
                _mm256_storeu_si256(out.as_mut_ptr().cast(), symbol);
                let mut escaped = _mm256_movemask_epi8(_mm256_cmpeq_epi8(rank, escape)) as u32 & has_escape;
                while escaped != 0 {
                    out[escaped.trailing_zeros() as usize % PAIR] = *from.add(escape_at);
                    escape_at += 1;
                    escaped &= escaped - 1;
                }

                let free = windows.free.as_mut_ptr().add(PAIR * i).cast::<__m256i>();
                let more = _mm256_add_epi8(natural(_mm256_loadu_si256(free)), len);
                let short = _mm256_cmpgt_epi8(more, eight);
                let still_free = _mm256_sub_epi8(more, _mm256_and_si256(short, eight));
                _mm256_storeu_si256(free, natural(still_free));
                let short = _mm256_movemask_epi8(natural(short)) as u32;
                let mut next = [_mm_setzero_si128(); 4];
                for (i, next) in next.iter_mut().enumerate() {
                    let mask = (short >> (8 * i)) as u8;
                    let places = _mm_loadl_epi64(EXPAND[mask as usize].as_ptr().cast());
                    *next = _mm_cvtepu8_epi16(_mm_shuffle_epi8(_mm_loadl_epi64(from.add(at).cast()), places));
                    at += mask.count_ones() as usize;
                }
                let [free_a, free_b] = powers_of(still_free);
                let next_a = _mm256_mullo_epi16(_mm256_set_m128i(next[1], next[0]), free_a);
                let next_b = _mm256_mullo_epi16(_mm256_set_m128i(next[3], next[2]), free_b);
                _mm256_storeu_si256(bits, _mm256_or_si256(_mm256_mullo_epi16(a, power_a), next_a));
                _mm256_storeu_si256(bits.add(1), _mm256_or_si256(_mm256_mullo_epi16(b, power_b), next_b));
            }
            if at > source.end || escape_at > source.escape_end {
                is_inside = false;
                break;
            }
        }
        (windows.at, windows.escape_at) = (at, escape_at);
        is_inside
    }
}

/// See [`super::Encode`].
///
/// # Safety
/// Needs AVX2 and POPCNT.
#[inline(always)]
pub(in crate::arch) unsafe fn encode(
    table: &EncodeTable,
    pending: &mut Pending,
    symbols: &[u8],
    target: &mut Target<'_>,
) {
    target.check(symbols.len());
    // Code and length of each symbol in a word.
    let entries: [u16; 256] = std::array::from_fn(|i| table.codes[i] as u16 | (table.lens[i] as u16) << 8);
    let lanes = pending.lanes.min(MAX_LANES);
    let to = target.bytes.as_mut_ptr();
    let (mut at, mut escape_at) = (target.at, target.escape_at);
    // SAFETY: the caller has the features. A symbol takes at most a byte of each stream, for which there is room, with
    // slack for what a store of eight bytes writes before them.
    unsafe {
        let low = _mm256_set1_epi16(0x00FF);
        let mut all_found = [0; MAX_LANES];
        for step in symbols.chunks_exact(lanes).rev() {
            // All look-ups come before the vectors, which else would wait for the stores of single words.
            for (found, symbol) in all_found.iter_mut().zip(step) {
                *found = entries[*symbol as usize];
            }
            for (i, symbols) in step.as_chunks::<PAIR>().0.iter().enumerate().rev() {
                let found: [__m256i; 2] =
                    std::array::from_fn(|j| _mm256_loadu_si256(all_found.as_ptr().add(PAIR * i + 16 * j).cast()));
                let mut escaped = _mm256_movemask_epi8(natural(_mm256_packs_epi16(found[0], found[1]))) as u32;
                while escaped != 0 {
                    let lane = escaped.ilog2();
                    escape_at -= 1;
                    target.escapes[escape_at] = symbols[lane as usize % PAIR];
                    escaped ^= 1 << lane;
                }
                let bits = pending.bits.as_mut_ptr().add(PAIR * i).cast::<__m256i>();
                let counts = pending.count.as_mut_ptr().add(PAIR * i);
                let mut full = [_mm256_setzero_si256(); 2];
                let mut bytes = full;
                let mut new_counts = full;
                for i in 0..2 {
                    let word = _mm256_loadu_si256(bits.add(i));
                    let count = _mm256_cvtepu8_epi16(_mm_loadu_si128(counts.add(16 * i).cast()));
                    let len = _mm256_and_si256(_mm256_srli_epi16::<8>(found[i]), _mm256_set1_epi16(15));
                    let more = _mm256_add_epi16(count, len);
                    full[i] = _mm256_cmpgt_epi16(more, _mm256_set1_epi16(15));
                    bytes[i] = _mm256_and_si256(word, low);
                    let word = _mm256_blendv_epi8(word, _mm256_srli_epi16::<8>(word), full[i]);
                    new_counts[i] = _mm256_sub_epi16(more, _mm256_and_si256(full[i], _mm256_set1_epi16(8)));
                    let place = _mm256_sub_epi16(new_counts[i], len);
                    let place = powers(_mm256_or_si256(place, _mm256_slli_epi16::<8>(place)));
                    let code = _mm256_mullo_epi16(_mm256_and_si256(found[i], low), place);
                    _mm256_storeu_si256(bits.add(i), _mm256_or_si256(word, code));
                }
                let new_counts = natural(_mm256_packus_epi16(new_counts[0], new_counts[1]));
                _mm256_storeu_si256(counts.cast(), new_counts);
                let full = _mm256_movemask_epi8(natural(_mm256_packs_epi16(full[0], full[1]))) as u32;
                let bytes = natural(_mm256_packus_epi16(bytes[0], bytes[1]));
                let (a, b) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
                let eights = [a, _mm_srli_si128::<8>(a), b, _mm_srli_si128::<8>(b)];
                for (i, eight) in eights.into_iter().enumerate().rev() {
                    let mask = (full >> (8 * i)) as u8;
                    let places = _mm_loadl_epi64(COMPRESS[mask as usize].as_ptr().cast());
                    _mm_storel_epi64(to.add(at - SLACK).cast(), _mm_shuffle_epi8(eight, places));
                    at -= mask.count_ones() as usize;
                }
            }
        }
    }
    (target.at, target.escape_at) = (at, escape_at);
}
