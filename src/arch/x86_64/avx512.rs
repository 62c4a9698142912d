//! With AVX-512 F, BW, VL and VBMI.

use crate::arch::int8::int8_kernels;
use crate::arch::vector::{self, Codes, Floats, Vector, operations, vectorised};
use crate::arch::{PANEL, Product};
use core::arch::x86_64::*;

vectorised! { "avx512f,avx512bw,avx512vl,avx512vbmi,popcnt", __m512i:
    split2 = split2(src: &[u8], dst: &mut [u8]);
    split4 = split4(src: &[u8], dst: &mut [u8]);
    merge2 = merge2(src: &[u8], dst: &mut [u8]);
    merge4 = merge4(src: &[u8], dst: &mut [u8]);
    delta = delta(src: &[u8], dst: &mut [u8]);
    xor = xor(src: &[u8], dst: &mut [u8]);
    repeats = repeats(src: &[u8]) -> usize;
    next_run = next_run(src: &[u8]) -> usize;
    run_len = run_len(src: &[u8]) -> usize;
    planes1 = planes<1>(src: &[u8], row_len: usize, dst: &mut [u8]);
    planes2 = planes<2>(src: &[u8], row_len: usize, dst: &mut [u8]);
    planes4 = planes<4>(src: &[u8], row_len: usize, dst: &mut [u8]);
    unplanes1 = unplanes<1>(src: &[u8], row_len: usize, dst: &mut [u8]);
    unplanes2 = unplanes<2>(src: &[u8], row_len: usize, dst: &mut [u8]);
    unplanes4 = unplanes<4>(src: &[u8], row_len: usize, dst: &mut [u8]);
}

int8_kernels! { "avx512f,avx512bw,avx512vl" }

vectorised! { "avx512f,avx512bw,avx512vl", __m512:
    quantize_f16 = quantize_f16(values: &[u8], scale: &[f32], offset: &[f32], codes: &mut [i8]);
    dequantize_f16 = dequantize_f16(codes: &[i8], scale: &[f32], offset: &[f32], values: &mut [u8]);
}

/// Where each byte of a vector comes from, in the first of two vectors (0 to 63) or the second (64 to 127).
struct Places([u8; 64]);

impl Places {
    /// Every `step`-th byte from `first` on, and after 32 of them from `second` on.
    const fn strided(step: usize, first: usize, second: usize) -> Self {
        let mut places = [0; 64];
        let mut i = 0;
        while i < 64 {
            places[i] = (if i < 32 { first + i * step } else { second + (i - 32) * step }) as u8;
            i += 1;
        }
        Self(places)
    }

    /// Units of both vectors in turn, from byte `first` of each on.
    const fn zipped(unit: usize, first: usize) -> Self {
        let mut places = [0; 64];
        let mut i = 0;
        while i < 64 {
            let pair = i / (2 * unit);
            places[i] = (first + pair * unit + i % unit + if i / unit % 2 == 1 { 64 } else { 0 }) as u8;
            i += 1;
        }
        Self(places)
    }

    /// # Safety
    /// Needs AVX-512 VBMI.
    #[inline(always)]
    unsafe fn of(&self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's; there are 64 places.
        unsafe { _mm512_permutex2var_epi8(a, _mm512_loadu_si512(self.0.as_ptr().cast()), b) }
    }
}

const EVEN: Places = Places::strided(2, 0, 64);
const ODD: Places = Places::strided(2, 1, 65);

impl Codes for __m512 {
    operations! {
        fn load_f16(from: *const u8) -> Self = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        fn load_codes(from: *const i8) -> Self = {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))
        };
        fn sub(self, other: Self) -> Self = _mm512_sub_ps(self, other);
        fn mul(self, other: Self) -> Self = _mm512_mul_ps(self, other);
        fn div(self, other: Self) -> Self = _mm512_div_ps(self, other);
        fn or_zero(self) -> Self = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(self, self), self);
        fn store_f16(self, to: *mut u8) = {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self);
            _mm256_storeu_si256(to.cast(), halves);
        };
        // As with AVX2.
        fn store_codes(self, to: *mut i8) = {
            let codes = _mm512_cvtps_epi32(_mm512_min_ps(self, _mm512_set1_ps(127.0)));
            _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(codes));
        };
    }
}

impl Vector for __m512i {
    const LEN: usize = 64;
    const MASK_BITS: u32 = 1;
    type Half = __m256i;

    operations! {
        fn load(from: *const u8) -> Self = _mm512_loadu_si512(from.cast());
        fn store(self, to: *mut u8) = _mm512_storeu_si512(to.cast(), self);
        fn load_parts(from: *const u8, stride: usize) -> Self = {
            let v = _mm512_castsi128_si512(__m128i::load(from));
            let v = _mm512_inserti32x4::<1>(v, __m128i::load(from.add(stride)));
            let v = _mm512_inserti32x4::<2>(v, __m128i::load(from.add(2 * stride)));
            _mm512_inserti32x4::<3>(v, __m128i::load(from.add(3 * stride)))
        };
        fn store_parts(self, to: *mut u8, stride: usize) = {
            _mm512_castsi512_si128(self).store(to);
            _mm512_extracti32x4_epi32::<1>(self).store(to.add(stride));
            _mm512_extracti32x4_epi32::<2>(self).store(to.add(2 * stride));
            _mm512_extracti32x4_epi32::<3>(self).store(to.add(3 * stride));
        };
        fn zero() -> Self = _mm512_setzero_si512();
        fn splat(byte: u8) -> Self = _mm512_set1_epi8(byte as i8);
        fn add(self, other: Self) -> Self = _mm512_add_epi8(self, other);
        fn sub(self, other: Self) -> Self = _mm512_sub_epi8(self, other);
        fn xor(self, other: Self) -> Self = _mm512_xor_si512(self, other);
        fn equal(self, other: Self) -> u64 = _mm512_cmpeq_epi8_mask(self, other);
        fn zip_lo<const UNIT: usize>(self, other: Self) -> Self = match UNIT {
            1 => _mm512_unpacklo_epi8(self, other),
            2 => _mm512_unpacklo_epi16(self, other),
            4 => _mm512_unpacklo_epi32(self, other),
            _ => _mm512_unpacklo_epi64(self, other),
        };
        fn zip_hi<const UNIT: usize>(self, other: Self) -> Self = match UNIT {
            1 => _mm512_unpackhi_epi8(self, other),
            2 => _mm512_unpackhi_epi16(self, other),
            4 => _mm512_unpackhi_epi32(self, other),
            _ => _mm512_unpackhi_epi64(self, other),
        };
        fn split2(from: *const u8) -> [Self; 2] = {
            let (a, b) = (Self::load(from), Self::load(from.add(64)));
            [EVEN.of(a, b), ODD.of(a, b)]
        };
        // Two lanes in the halves of a vector, which then change places.
        fn split4(from: *const u8) -> [Self; 4] = {
            const LANES01: Places = Places::strided(4, 0, 1);
            const LANES23: Places = Places::strided(4, 2, 3);
            let (a, b) = (Self::load(from), Self::load(from.add(64)));
            let (c, d) = (Self::load(from.add(128)), Self::load(from.add(192)));
            let (ab01, ab23) = (LANES01.of(a, b), LANES23.of(a, b));
            let (cd01, cd23) = (LANES01.of(c, d), LANES23.of(c, d));
            [
                _mm512_shuffle_i64x2::<0x44>(ab01, cd01),
                _mm512_shuffle_i64x2::<0xEE>(ab01, cd01),
                _mm512_shuffle_i64x2::<0x44>(ab23, cd23),
                _mm512_shuffle_i64x2::<0xEE>(ab23, cd23),
            ]
        };
        fn merge2(lanes: [Self; 2], to: *mut u8) = {
            const LOWER: Places = Places::zipped(1, 0);
            const UPPER: Places = Places::zipped(1, 32);
            LOWER.of(lanes[0], lanes[1]).store(to);
            UPPER.of(lanes[0], lanes[1]).store(to.add(64));
        };
        fn merge4(lanes: [Self; 4], to: *mut u8) = {
            const LOWER: Places = Places::zipped(1, 0);
            const UPPER: Places = Places::zipped(1, 32);
            const LOWER_PAIRS: Places = Places::zipped(2, 0);
            const UPPER_PAIRS: Places = Places::zipped(2, 32);
            let [l0, l1, l2, l3] = lanes;
            let (ab, cd) = (LOWER.of(l0, l1), LOWER.of(l2, l3));
            LOWER_PAIRS.of(ab, cd).store(to);
            UPPER_PAIRS.of(ab, cd).store(to.add(64));
            let (ab, cd) = (UPPER.of(l0, l1), UPPER.of(l2, l3));
            LOWER_PAIRS.of(ab, cd).store(to.add(128));
            UPPER_PAIRS.of(ab, cd).store(to.add(192));
        };
    }
}

/// 24 sums, two vectors of B and one of A, of 32 registers.
pub(super) fn product(product: &Product, result: &mut [[f32; PANEL]]) {
    #[target_feature(enable = "avx512f")]
    fn enabled(product: &Product, result: &mut [[f32; PANEL]]) {
        // SAFETY: the features that the vector needs are enabled.
        unsafe { vector::product::<__m512, 12, 2, 1>(product, result) }
    }
    // SAFETY: reached only through the table of its level, which is handed out after detection.
    unsafe { enabled(product, result) }
}

impl Floats for __m512 {
    const LEN: usize = size_of::<Self>() / size_of::<f32>();

    operations! {
        fn zero() -> Self = _mm512_setzero_ps();
        fn load(from: *const f32) -> Self = _mm512_loadu_ps(from);
        fn store(self, to: *mut f32) = _mm512_storeu_ps(to, self);
        fn repeat(from: *const f32) -> Self = _mm512_set1_ps(*from);
        fn add_product(self, a: Self, b: Self) -> Self = _mm512_fmadd_ps(a, b, self);
        fn add(self, other: Self) -> Self = _mm512_add_ps(self, other);
    }
}
