//! 16 floats in a vector of AVX-512.

use super::{CodePair, LANES, STRIPE, Shorts, Sixteen, Weights, avx2};
use crate::arch::vector::operations;
use core::arch::x86_64::*;

/// The vector, by a name of this crate.
pub(in crate::arch) type Floats16 = __m512;

impl Sixteen for Floats16 {
    const ROWS: usize = 4;

    operations! {
        fn splat(x: f32) -> Self = _mm512_set1_ps(x);
        fn load(from: &[f32; LANES]) -> Self = _mm512_loadu_ps(from.as_ptr());
        fn store(self, to: &mut [f32; LANES]) = _mm512_storeu_ps(to.as_mut_ptr(), self);
        fn widen(from: &Shorts) -> Self = {
            let shorts = _mm256_loadu_si256(from.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(shorts)))
        };
        fn code_sums<const ROWS: usize>(pairs: &[CodePair; STRIPE / 2], weights: [&Weights; ROWS]) -> [Self; ROWS] = {
            avx2::code_sums(pairs, weights).map(|sums| _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(sums)))
        };
        fn add(self, other: Self) -> Self = _mm512_add_ps(self, other);
        fn mul(self, other: Self) -> Self = _mm512_mul_ps(self, other);
        fn max(self, other: Self) -> Self = _mm512_max_ps(self, other);
        fn unless_less(self, limit: Self, other: Self) -> Self = {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self, limit), other)
        };
        fn add_exponent(self, other: Self) -> Self = {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(other));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self), shifted))
        };
        fn sum(self) -> f32 = {
            let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self)));
            avx2::sum8(_mm256_add_ps(_mm512_castps512_ps256(self), upper))
        };
    }
}
