//! Byte products with AVX-512 VNNI.

use super::{Dots, KEY_ZERO, LANES, Line, Shorts};
use crate::arch::vector::operations;
use core::arch::x86_64::*;

/// `vpdpbusd` on 64 bytes.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Vnni512;

impl Dots for Vnni512 {
    type Floats = __m512;
    type Ints = __m512i;
    type Bytes = __m512i;
    const KEY_BIAS: i32 = KEY_ZERO;

    operations! {
        fn widen(from: &Shorts) -> Self::Floats = _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()));
        fn widen_ints(from: &Shorts) -> Self::Floats = {
            _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(from.as_ptr().cast())))
        };
        fn abs(x: Self::Floats) -> Self::Floats = _mm512_abs_ps(x);
        fn highest(x: Self::Floats) -> f32 = _mm512_reduce_max_ps(x);
        fn total(ints: Self::Ints) -> i32 = _mm512_reduce_add_epi32(ints);
        fn keys(from: &Line) -> Self::Bytes = _mm512_load_si512(from.0.as_ptr().cast());
        fn raw(from: &Line) -> Self::Bytes = Self::keys(from);
        fn part<const SHIFT: i32>(bytes: Self::Bytes, mask: u8) -> Self::Bytes = {
            _mm512_and_si512(_mm512_srlv_epi16(bytes, _mm512_set1_epi16(SHIFT as i16)), _mm512_set1_epi8(mask as i8))
        };
        fn above(high: Self::Bytes, low: Self::Bytes) -> Self::Bytes = {
            _mm512_or_si512(_mm512_slli_epi16::<4>(high), low)
        };
        fn store(bytes: Self::Bytes, to: &mut Line) = _mm512_store_si512(to.0.as_mut_ptr().cast(), bytes);
        fn nibbles(from: &Line) -> [Self::Bytes; 2] = {
            let (both, high) = (_mm512_load_si512(from.0.as_ptr().cast()), _mm512_set1_epi8(-16));
            [_mm512_and_si512(_mm512_slli_epi16::<4>(both), high), _mm512_and_si512(both, high)]
        };
        fn zero() -> Self::Ints = _mm512_setzero_si512();
        fn add_keys(sums: Self::Ints, keys: Self::Bytes, four: i32) -> Self::Ints = {
            _mm512_dpbusd_epi32(sums, keys, _mm512_set1_epi32(four))
        };
        fn add_values(sums: Self::Ints, nibbles: Self::Bytes, four: i32) -> Self::Ints = {
            _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(four), nibbles)
        };
        fn join<const SHIFT: i32>(high: Self::Ints, low: Self::Ints) -> Self::Ints = {
            _mm512_add_epi32(_mm512_sllv_epi32(high, _mm512_set1_epi32(SHIFT)), low)
        };
        fn add_all(sums: Self::Ints, addend: i32) -> Self::Ints = _mm512_add_epi32(sums, _mm512_set1_epi32(addend));
        fn floats(ints: Self::Ints) -> Self::Floats = _mm512_cvtepi32_ps(ints);
        fn nearest(x: Self::Floats) -> Self::Ints = {
            _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
        };
        fn bytes(x: Self::Ints, to: &mut [i8; LANES]) = {
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x))
        };
        fn line(x: Self::Ints, to: &mut Line) = _mm512_store_si512(to.0.as_mut_ptr().cast(), x);
        fn words(from: &Line) -> Self::Ints = _mm512_load_si512(from.0.as_ptr().cast());
        fn field<const UP: i32, const DOWN: i32>(x: Self::Ints) -> Self::Ints = {
            _mm512_srlv_epi32(_mm512_sllv_epi32(x, _mm512_set1_epi32(UP)), _mm512_set1_epi32(DOWN))
        };
        fn nibble<const SHIFT: i32>(x: Self::Ints) -> Self::Ints = {
            _mm512_srai_epi32::<28>(_mm512_sllv_epi32(x, _mm512_set1_epi32(SHIFT)))
        };
        fn split<const SHIFT: i32, const ROUND: i32>(x: Self::Ints, high: &mut [i8; LANES], low: &mut [i8; LANES]) = {
            let shift = _mm512_set1_epi32(SHIFT);
            let upper = _mm512_srav_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(ROUND)), shift);
            let lower = _mm512_sub_epi32(x, _mm512_sllv_epi32(upper, shift));
            _mm_storeu_si128(high.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(upper));
            _mm_storeu_si128(low.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(lower));
        };
    }
}
