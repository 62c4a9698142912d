//! 16 floats in two vectors of AVX2.

use super::{CodePair, LANES, STRIPE, Shorts, Sixteen, Weights};
use crate::arch::vector::operations;
use core::arch::x86_64::*;

/// The lower and the upper eight.
pub(in crate::arch) type Floats16 = [__m256; 2];

/// Applies an intrinsic to each half.
macro_rules! halves {
    ($call:ident($($arg:expr),*)) => {
        [$call($($arg[0]),*), $call($($arg[1]),*)]
    };
}

/// The sum of eight lanes, by halves.
///
/// # Safety
/// Needs AVX.
#[inline(always)]
pub(super) unsafe fn sum8(lanes: __m256) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// See [`Sixteen::code_sums`]: 16 integers of 16 bits for each row.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(super) unsafe fn code_sums<const ROWS: usize>(
    pairs: &[CodePair; STRIPE / 2],
    weights: [&Weights; ROWS],
) -> [__m256i; ROWS] {
    // SAFETY: the caller's; the loads are of the 16 bytes of a pair.
    unsafe {
        let mut sums = weights.map(|weights| _mm256_set1_epi16(weights.offset));
        for (at, [first, second]) in pairs.as_chunks::<2>().0.iter().enumerate() {
            let (a, b) = (_mm_loadu_si128(first.as_ptr().cast()), _mm_loadu_si128(second.as_ptr().cast()));
            // Both bytes of each token, with codes that are greater by 8.
            let both = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
            let both = _mm256_xor_si256(both, _mm256_set1_epi8(0x88u8 as i8));
            let low = _mm256_and_si256(both, _mm256_set1_epi8(15));
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), _mm256_set1_epi8(15));
            for (sum, weights) in sums.iter_mut().zip(&weights) {
                let two = |of: [i8; 2]| _mm256_set1_epi16(i16::from_ne_bytes(of.map(|x| x as u8)));
                // Two products take up to 3,810, and a carry of the sum is gone with that of the offset.
                let products = _mm256_add_epi16(
                    _mm256_maddubs_epi16(low, two(weights.low[at])),
                    _mm256_maddubs_epi16(high, two(weights.high[at])),
                );
                *sum = _mm256_add_epi16(*sum, products);
            }
        }
        sums
    }
}

impl Sixteen for Floats16 {
    const ROWS: usize = 4;

    operations! {
        fn splat(x: f32) -> Self = [_mm256_set1_ps(x); 2];
        fn load(from: &[f32; LANES]) -> Self = {
            [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))]
        };
        fn store(self, to: &mut [f32; LANES]) = {
            _mm256_storeu_ps(to.as_mut_ptr(), self[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), self[1]);
        };
        fn widen(from: &Shorts) -> Self = {
            let eight = |at: usize| {
                let shorts = _mm_loadu_si128(from.as_ptr().add(at).cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(shorts)))
            };
            [eight(0), eight(8)]
        };
        fn code_sums<const ROWS: usize>(pairs: &[CodePair; STRIPE / 2], weights: [&Weights; ROWS]) -> [Self; ROWS] = {
            let floats = |eight: __m128i| _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(eight));
            code_sums(pairs, weights)
                .map(|sums| [floats(_mm256_castsi256_si128(sums)), floats(_mm256_extracti128_si256::<1>(sums))])
        };
        fn add(self, other: Self) -> Self = halves!(_mm256_add_ps(self, other));
        fn mul(self, other: Self) -> Self = halves!(_mm256_mul_ps(self, other));
        fn max(self, other: Self) -> Self = halves!(_mm256_max_ps(self, other));
        fn unless_less(self, limit: Self, other: Self) -> Self = {
            let masks = [
                _mm256_cmp_ps::<_CMP_LT_OQ>(self[0], limit[0]),
                _mm256_cmp_ps::<_CMP_LT_OQ>(self[1], limit[1]),
            ];
            halves!(_mm256_andnot_ps(masks, other))
        };
        fn add_exponent(self, other: Self) -> Self = {
            let eight = |bits: __m256, other: __m256| {
                let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(other));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(bits), shifted))
            };
            [eight(self[0], other[0]), eight(self[1], other[1])]
        };
        fn sum(self) -> f32 = sum8(_mm256_add_ps(self[0], self[1]));
    }
}
