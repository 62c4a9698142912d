//! Byte products with AVX2, with and without VNNI.

use super::{Dots, KEY_ZERO, LANES, Line, Shorts};
use crate::arch::estimates::avx2::Floats16;
use crate::arch::vector::operations;
use core::arch::x86_64::*;

/// `vpmaddubsw` and `vpmaddwd`.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Maddubs;

/// `vpdpbusd` on 32 bytes.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Vnni256;

/// Applies an expression to each half. Not a closure, which would not have the features of its caller.
macro_rules! halves {
    (|$i:ident| $each:expr) => {
        [
            {
                let $i = 0;
                $each
            },
            {
                let $i = 1;
                $each
            },
        ]
    };
}

/// All but the products, which differ.
macro_rules! dots {
    ($name:ident, |$sums:ident, $bytes:ident, $signed:ident| $add:expr) => {
        impl Dots for $name {
            type Floats = Floats16;
            type Ints = [__m256i; 2];
            type Bytes = [__m256i; 2];
            const KEY_BIAS: i32 = KEY_ZERO;

            operations! {
                fn widen(from: &Shorts) -> Self::Floats = {
                    let from: *const __m128i = from.as_ptr().cast();
                    [_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))]
                };
                fn widen_ints(from: &Shorts) -> Self::Floats = {
                    let from: *const __m128i = from.as_ptr().cast();
                    halves!(|i| _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(from.add(i)))))
                };
                fn abs(x: Self::Floats) -> Self::Floats = halves!(|i| _mm256_andnot_ps(_mm256_set1_ps(-0.0), x[i]));
                fn highest(x: Self::Floats) -> f32 = {
                    let eight = _mm256_max_ps(x[0], x[1]);
                    let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
                    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
                };
                fn total(ints: Self::Ints) -> i32 = {
                    let eight = _mm256_add_epi32(ints[0], ints[1]);
                    let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
                    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b11_10_11_10>(four));
                    _mm_cvtsi128_si32(two).wrapping_add(_mm_extract_epi32::<1>(two))
                };
                fn keys(from: &Line) -> Self::Bytes = {
                    let from: *const __m256i = from.0.as_ptr().cast();
                    [_mm256_load_si256(from), _mm256_load_si256(from.add(1))]
                };
                fn raw(from: &Line) -> Self::Bytes = Self::keys(from);
                fn part<const SHIFT: i32>(bytes: Self::Bytes, mask: u8) -> Self::Bytes = {
                    let mask = _mm256_set1_epi8(mask as i8);
                    halves!(|i| _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(bytes[i]), mask))
                };
                fn above(high: Self::Bytes, low: Self::Bytes) -> Self::Bytes = {
                    halves!(|i| _mm256_or_si256(_mm256_slli_epi16::<4>(high[i]), low[i]))
                };
                fn store(bytes: Self::Bytes, to: &mut Line) = Self::line(bytes, to);
                fn nibbles(from: &Line) -> [Self::Bytes; 2] = {
                    let (both, high) = (Self::keys(from), _mm256_set1_epi8(-16));
                    [
                        halves!(|i| _mm256_and_si256(_mm256_slli_epi16::<4>(both[i]), high)),
                        halves!(|i| _mm256_and_si256(both[i], high)),
                    ]
                };
                fn zero() -> Self::Ints = [_mm256_setzero_si256(); 2];
                fn add_keys(sums: Self::Ints, keys: Self::Bytes, four: i32) -> Self::Ints = {
                    let $signed = _mm256_set1_epi32(four);
                    halves!(|i| {
                        let ($sums, $bytes) = (sums[i], keys[i]);
                        $add
                    })
                };
                fn add_values(sums: Self::Ints, nibbles: Self::Bytes, four: i32) -> Self::Ints = {
                    let $bytes = _mm256_set1_epi32(four);
                    halves!(|i| {
                        let ($sums, $signed) = (sums[i], nibbles[i]);
                        $add
                    })
                };
                fn join<const SHIFT: i32>(high: Self::Ints, low: Self::Ints) -> Self::Ints = {
                    halves!(|i| _mm256_add_epi32(_mm256_slli_epi32::<SHIFT>(high[i]), low[i]))
                };
                fn add_all(sums: Self::Ints, addend: i32) -> Self::Ints = {
                    halves!(|i| _mm256_add_epi32(sums[i], _mm256_set1_epi32(addend)))
                };
                fn floats(ints: Self::Ints) -> Self::Floats = halves!(|i| _mm256_cvtepi32_ps(ints[i]));
                fn nearest(x: Self::Floats) -> Self::Ints = {
                    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
                    halves!(|i| _mm256_cvttps_epi32(_mm256_round_ps::<NEAREST>(x[i])))
                };
                fn bytes(x: Self::Ints, to: &mut [i8; LANES]) = store(x, to);
                fn line(x: Self::Ints, to: &mut Line) = {
                    let to: *mut __m256i = to.0.as_mut_ptr().cast();
                    _mm256_store_si256(to, x[0]);
                    _mm256_store_si256(to.add(1), x[1]);
                };
                fn words(from: &Line) -> Self::Ints = Self::keys(from);
                fn field<const UP: i32, const DOWN: i32>(x: Self::Ints) -> Self::Ints = {
                    halves!(|i| _mm256_srli_epi32::<DOWN>(_mm256_slli_epi32::<UP>(x[i])))
                };
                fn nibble<const SHIFT: i32>(x: Self::Ints) -> Self::Ints = {
                    halves!(|i| _mm256_srai_epi32::<28>(_mm256_slli_epi32::<SHIFT>(x[i])))
                };
                fn split<const SHIFT: i32, const ROUND: i32>(
                    x: Self::Ints,
                    high: &mut [i8; LANES],
                    low: &mut [i8; LANES]
                ) = {
                    let round = _mm256_set1_epi32(ROUND);
                    let upper = halves!(|i| _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(x[i], round)));
                    store(upper, high);
                    store(halves!(|i| _mm256_sub_epi32(x[i], _mm256_slli_epi32::<SHIFT>(upper[i]))), low);
                };
            }
        }
    };
}

dots!(Maddubs, |sums, bytes, signed| {
    let pairs = _mm256_maddubs_epi16(bytes, signed);
    _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
});
dots!(Vnni256, |sums, bytes, signed| _mm256_dpbusd_avx_epi32(sums, bytes, signed));

/// 16 integers that are bytes.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn store(ints: [__m256i; 2], to: &mut [i8; LANES]) {
    // SAFETY: the caller's.
    unsafe {
        // Lanes of 128 bits are packed apart: units of 8 bytes 0, 2, 1, 3.
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(ints[0], ints[1]));
        let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
    }
}
