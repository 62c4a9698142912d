//! Rows in vectors of AVX2, with F16C and FMA.

use super::Lanes;
use crate::arch::estimates::avx2::Floats16;
use crate::arch::vector::operations;
use core::arch::x86_64::*;

impl Lanes for Floats16 {
    operations! {
        fn add_product(self, a: Self, b: Self) -> Self = {
            [_mm256_fmadd_ps(a[0], b[0], self[0]), _mm256_fmadd_ps(a[1], b[1], self[1])]
        };
        fn half(from: *const u8) -> Self = {
            let bits = i32::from(from.cast::<u16>().read_unaligned());
            [_mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))); 2]
        };
        fn halves(from: *const u8) -> Self = {
            let from: *const __m128i = from.cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))]
        };
        fn signed(from: *const u8, scale: Self) -> Self = {
            let codes = [_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast())];
            [
                _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes[0])), scale[0]),
                _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes[1])), scale[1]),
            ]
        };
        fn nibbles(from: *const u8, scale: Self) -> [Self; 2] = {
            let (pairs, low, eight) = (_mm_loadu_si128(from.cast()), _mm_set1_epi8(15), _mm_set1_epi8(8));
            let halves = [_mm_and_si128(pairs, low), _mm_and_si128(_mm_srli_epi16::<4>(pairs), low)];
            let [first, second] = [_mm_sub_epi8(halves[0], eight), _mm_sub_epi8(halves[1], eight)];
            [numbers(first, scale), numbers(second, scale)]
        };
    }
}

/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn numbers(codes: __m128i, scale: Floats16) -> Floats16 {
    // SAFETY: the caller's.
    unsafe {
        [
            _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale[0]),
            _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(codes))), scale[1]),
        ]
    }
}
