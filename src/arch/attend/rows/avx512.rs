//! Rows in vectors of AVX-512.

use super::Lanes;
use crate::arch::estimates::avx512::Floats16;
use crate::arch::vector::operations;
use core::arch::x86_64::*;

impl Lanes for Floats16 {
    operations! {
        fn add_product(self, a: Self, b: Self) -> Self = _mm512_fmadd_ps(a, b, self);
        fn half(from: *const u8) -> Self = {
            let bits = i32::from(from.cast::<u16>().read_unaligned());
            _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
        };
        fn halves(from: *const u8) -> Self = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        fn signed(from: *const u8, scale: Self) -> Self = {
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))), scale)
        };
        fn nibbles(from: *const u8, scale: Self) -> [Self; 2] = {
            // A table of the 16 numbers, by the lower four bits of an index.
            let codes = _mm512_set_ps(7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0);
            let (numbers, pairs) = (_mm512_mul_ps(codes, scale), _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())));
            [
                _mm512_permutexvar_ps(pairs, numbers),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(pairs), numbers),
            ]
        };
        fn sums(four: [Self; 4]) -> [f32; 4] = {
            // Halves of two vectors side by side, and again: 128 bits of each. Then by halves within these.
            let ab = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(four[0], four[1]),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(four[0], four[1]),
            );
            let cd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(four[2], four[3]),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(four[2], four[3]),
            );
            let all = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            let two = _mm512_add_ps(all, _mm512_permute_ps::<0b01_00_11_10>(all));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
            let mut sums = [0.0; 4];
            let firsts = _mm512_maskz_compress_ps(0b0001_0001_0001_0001, one);
            _mm_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps128(firsts));
            sums
        };
    }
}
