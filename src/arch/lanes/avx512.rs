//! Prefix codes with AVX-512 VBMI and VBMI2: tables of 256 entries lie in four registers each.

use super::{DecodeTable, EncodeTable, GROUP, Pending, Source, Target, Windows};
use core::arch::x86_64::*;

/// The ternary logic of (c and b) or (not c and a).
const CHOOSE: i32 = 0xD8;

/// A table of 256 bytes in registers.
#[derive(Clone, Copy)]
struct Table([__m512i; 4]);

impl Table {
    /// # Safety
    /// Needs AVX-512 F.
    #[inline(always)]
    unsafe fn load(bytes: &[u8]) -> Self {
        assert!(bytes.len() >= 256);
        // SAFETY: the caller's; there are four vectors.
        unsafe { Self(core::array::from_fn(|i| _mm512_loadu_si512(bytes.as_ptr().add(64 * i).cast()))) }
    }

    /// The entry of each index. `high` has the top bits of the indices.
    ///
    /// # Safety
    /// Needs AVX-512 VBMI.
    #[inline(always)]
    unsafe fn at(&self, index: __m512i, high: __mmask64) -> __m512i {
        let [a, b, c, d] = self.0;
        // SAFETY: the caller's.
        unsafe {
            let low = _mm512_permutex2var_epi8(a, index, b);
            _mm512_mask_blend_epi8(high, low, _mm512_permutex2var_epi8(c, index, d))
        }
    }
}

/// The even and the odd of 64 words.
///
/// # Safety
/// Needs AVX-512 BW, and 64 words.
#[inline(always)]
unsafe fn load_pairs(words: *const u16) -> [__m512i; 2] {
    const EVEN: [u16; 32] = places(0, 2);
    const ODD: [u16; 32] = places(1, 2);
    // SAFETY: the caller's.
    unsafe {
        let (a, b) = (_mm512_loadu_si512(words.cast()), _mm512_loadu_si512(words.add(32).cast()));
        [EVEN, ODD].map(|places| _mm512_permutex2var_epi16(a, _mm512_loadu_si512(places.as_ptr().cast()), b))
    }
}

/// The inverse of [`load_pairs`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn store_pairs([even, odd]: [__m512i; 2], words: *mut u16) {
    const LOWER: [u16; 32] = zipped(0);
    const UPPER: [u16; 32] = zipped(16);
    // SAFETY: the caller's.
    unsafe {
        for (i, places) in [LOWER, UPPER].iter().enumerate() {
            let places = _mm512_loadu_si512(places.as_ptr().cast());
            _mm512_storeu_si512(words.add(32 * i).cast(), _mm512_permutex2var_epi16(even, places, odd));
        }
    }
}

/// Every `step`-th word of two vectors from `first` on.
const fn places(first: u16, step: u16) -> [u16; 32] {
    let mut places = [0; 32];
    let mut i = 0;
    while i < 32 {
        places[i] = first + step * i as u16;
        i += 1;
    }
    places
}

/// Words of two vectors in turn, from word `first` of each on.
const fn zipped(first: u16) -> [u16; 32] {
    let mut places = [0; 32];
    let mut i = 0;
    while i < 32 {
        places[i] = first + i as u16 / 2 + if i % 2 == 1 { 32 } else { 0 };
        i += 1;
    }
    places
}

/// The bytes of the even and of the odd lanes as words.
///
/// # Safety
/// Needs AVX-512 BW.
#[inline(always)]
unsafe fn widen(bytes: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller's.
    unsafe { [_mm512_and_si512(bytes, _mm512_set1_epi16(0x00FF)), _mm512_srli_epi16::<8>(bytes)] }
}

/// See [`super::Decode`].
///
/// # Safety
/// Needs AVX-512 F, BW, VBMI and VBMI2.
#[inline(always)]
pub(in crate::arch) unsafe fn decode(
    table: &DecodeTable,
    windows: &mut Windows,
    source: &Source<'_>,
    out: &mut [u8],
) -> bool {
    source.check(windows);
    // SAFETY: the caller's; `windows` has begun inside of the streams, and there is padding.
    unsafe {
        match windows.lanes {
            GROUP => decode_groups::<1>(table, windows, source, out),
            _ => decode_groups::<2>(table, windows, source, out),
        }
    }
}

/// # Safety
/// As [`decode`], after [`Source::check`].
#[inline(always)]
unsafe fn decode_groups<const N: usize>(
    table: &DecodeTable,
    windows: &mut Windows,
    source: &Source<'_>,
    out: &mut [u8],
) -> bool {
    let from = source.bytes.as_ptr();
    // SAFETY: the caller has the features. A step begins with both places at most at the ends of their streams, takes at
    // most a byte of each for every lane, and these are behind the ends, too.
    unsafe {
        let (symbols, lens) = (Table::load(&table.symbols), Table::load(&table.lens));
        let mut pairs: [_; N] = std::array::from_fn(|i| load_pairs(windows.bits.as_ptr().add(GROUP * i)));
        let mut free: [_; N] = std::array::from_fn(|i| _mm512_loadu_si512(windows.free.as_ptr().add(GROUP * i).cast()));
        let escape = _mm512_set1_epi8(table.escape as i8);
        let escape_size = _mm512_set1_epi8(table.escape_size as i8);
        let (low, eight) = (_mm512_set1_epi16(0x00FF), _mm512_set1_epi8(8));
        let (mut at, mut escape_at) = (windows.at, windows.escape_at);
        let mut is_inside = true;
        for step in out.chunks_exact_mut(N * GROUP) {
            for (i, ([even, odd], free)) in pairs.iter_mut().zip(&mut free).enumerate() {
                // The first bytes of all lanes; odd ones are in their places.
                let first = _mm512_ternarylogic_epi32::<CHOOSE>(*odd, _mm512_srli_epi16::<8>(*even), low);
                let high = _mm512_movepi8_mask(first);
                let (symbol, len) = (symbols.at(first, high), lens.at(first, high));
                let escaped = _mm512_cmplt_epu8_mask(_mm512_sub_epi8(first, escape), escape_size);
                let bytes = _mm512_loadu_si512(from.add(escape_at).cast());
                let symbol = _mm512_mask_expand_epi8(symbol, escaped, bytes);
                escape_at += escaped.count_ones() as usize;
                _mm512_storeu_si512(step.as_mut_ptr().add(GROUP * i).cast(), symbol);

                let more = _mm512_add_epi8(*free, len);
                let short = _mm512_cmpgt_epu8_mask(more, eight);
                *free = _mm512_mask_sub_epi8(more, short, more, eight);
                let next = _mm512_maskz_expand_epi8(short, _mm512_loadu_si512(from.add(at).cast()));
                at += short.count_ones() as usize;
                let [even_len, odd_len] = widen(len);
                let ([even_next, odd_next], [even_free, odd_free]) = (widen(next), widen(*free));
                *even = _mm512_or_si512(_mm512_sllv_epi16(*even, even_len), _mm512_sllv_epi16(even_next, even_free));
                *odd = _mm512_or_si512(_mm512_sllv_epi16(*odd, odd_len), _mm512_sllv_epi16(odd_next, odd_free));
            }
            if at > source.end || escape_at > source.escape_end {
                is_inside = false;
                break;
            }
        }
        for (i, (pairs, free)) in pairs.into_iter().zip(free).enumerate() {
            store_pairs(pairs, windows.bits.as_mut_ptr().add(GROUP * i));
            _mm512_storeu_si512(windows.free.as_mut_ptr().add(GROUP * i).cast(), free);
        }
        (windows.at, windows.escape_at) = (at, escape_at);
        is_inside
    }
}

/// See [`super::Encode`].
///
/// # Safety
/// Needs AVX-512 F, BW, VBMI and VBMI2.
#[inline(always)]
pub(in crate::arch) unsafe fn encode(
    table: &EncodeTable,
    pending: &mut Pending,
    symbols: &[u8],
    target: &mut Target<'_>,
) {
    target.check(symbols.len());
    // SAFETY: the caller's; there is room.
    unsafe {
        match pending.lanes {
            GROUP => encode_groups::<1>(table, pending, symbols, target),
            _ => encode_groups::<2>(table, pending, symbols, target),
        }
    }
}

/// # Safety
/// As [`encode`], after [`Target::check`].
#[inline(always)]
unsafe fn encode_groups<const N: usize>(
    table: &EncodeTable,
    pending: &mut Pending,
    symbols: &[u8],
    target: &mut Target<'_>,
) {
    let (to, escapes_to) = (target.bytes.as_mut_ptr(), target.escapes.as_mut_ptr());
    // SAFETY: the caller has the features. A symbol takes at most a byte of each stream, for which there is room.
    unsafe {
        let (codes, lens) = (Table::load(&table.codes), Table::load(&table.lens));
        let mut pairs: [_; N] = std::array::from_fn(|i| load_pairs(pending.bits.as_ptr().add(GROUP * i)));
        let mut counts: [_; N] =
            std::array::from_fn(|i| _mm512_loadu_si512(pending.count.as_ptr().add(GROUP * i).cast()));
        let (low, eight) = (_mm512_set1_epi16(0x00FF), _mm512_set1_epi8(8));
        let (mut at, mut escape_at) = (target.at, target.escape_at);
        for step in symbols.chunks_exact(N * GROUP).rev() {
            for (i, ([even, odd], count)) in pairs.iter_mut().zip(&mut counts).enumerate().rev() {
                let symbol = _mm512_loadu_si512(step.as_ptr().add(GROUP * i).cast());
                let high = _mm512_movepi8_mask(symbol);
                let (code, len) = (codes.at(symbol, high), lens.at(symbol, high));
                let escaped = _mm512_movepi8_mask(len);
                let len = _mm512_and_si512(len, _mm512_set1_epi8(!EncodeTable::ESCAPED as i8));
                escape_at -= escaped.count_ones() as usize;
                store_chosen(escaped, symbol, escapes_to.add(escape_at));

                let more = _mm512_add_epi8(*count, len);
                let full = _mm512_cmpgt_epu8_mask(more, _mm512_set1_epi8(15));
                at -= full.count_ones() as usize;
                let bytes = _mm512_ternarylogic_epi32::<CHOOSE>(_mm512_slli_epi16::<8>(*odd), *even, low);
                store_chosen(full, bytes, to.add(at));
                *count = _mm512_mask_sub_epi8(more, full, more, eight);
                let [even_gone, odd_gone] = widen(_mm512_maskz_mov_epi8(full, eight));
                let ([even_code, odd_code], [even_place, odd_place]) =
                    (widen(code), widen(_mm512_sub_epi8(*count, len)));
                *even = _mm512_or_si512(_mm512_srlv_epi16(*even, even_gone), _mm512_sllv_epi16(even_code, even_place));
                *odd = _mm512_or_si512(_mm512_srlv_epi16(*odd, odd_gone), _mm512_sllv_epi16(odd_code, odd_place));
            }
        }
        for (i, (pairs, count)) in pairs.into_iter().zip(counts).enumerate() {
            store_pairs(pairs, pending.bits.as_mut_ptr().add(GROUP * i));
            _mm512_storeu_si512(pending.count.as_mut_ptr().add(GROUP * i).cast(), count);
        }
        (target.at, target.escape_at) = (at, escape_at);
    }
}

/// Writes the bytes of the lanes in `chosen`, one after another, and no others.
///
/// # Safety
/// Needs AVX-512 BW and VBMI2, and room for the bytes.
#[inline(always)]
unsafe fn store_chosen(chosen: __mmask64, bytes: __m512i, to: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        let together = _mm512_maskz_compress_epi8(chosen, bytes);
        _mm512_mask_storeu_epi8(to.cast(), _bzhi_u64(u64::MAX, chosen.count_ones()), together);
    }
}
