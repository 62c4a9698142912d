//! 16 floats in two vectors of AVX2.

use super::{CodePair, LANES, Shorts, Sixteen};
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

/// Eight integers to the floats of their codes.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn both(pairs: __m256i) -> [__m256; 2] {
    // SAFETY: the caller's.
    unsafe {
        let high = _mm256_and_si256(pairs, _mm256_set1_epi32(!15));
        [_mm256_cvtepi32_ps(_mm256_slli_epi32::<28>(pairs)), _mm256_cvtepi32_ps(high)]
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
        fn codes(from: &CodePair) -> [Self; 2] = {
            let pairs = _mm_loadu_si128(from.as_ptr().cast());
            let [first, second] = [_mm256_cvtepi8_epi32(pairs), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(pairs))];
            let ([low0, high0], [low1, high1]) = (both(first), both(second));
            [[low0, low1], [high0, high1]]
        };
        fn add(self, other: Self) -> Self = halves!(_mm256_add_ps(self, other));
        fn mul(self, other: Self) -> Self = halves!(_mm256_mul_ps(self, other));
        fn add_exact(self, a: Self, b: Self) -> Self = halves!(_mm256_fmadd_ps(a, b, self));
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
