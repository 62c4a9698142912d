//! AVX-512.

use super::avx2;
use crate::arch::level::{kernel, level};
use crate::arch::values::{Bf16, F32};
use crate::arch::vector::{self, Codes, Floats, Vector, operations};
use crate::arch::{attend, codes, estimates};
use core::arch::x86_64::*;

level! {
    /// AVX-512 F, BW, VL, VBMI, VBMI2 and VNNI, which every CPU with VBMI2 has. The intrinsics are stable since Rust 1.89.
    Avx512: is_x86_feature_detected ["avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx2", "f16c", "fma", "popcnt", "bmi2"], below avx2::KERNELS, avx2::MODEL_KERNELS;
    kernels: {
        split2: shuffle = vector::split2::<__m512i>;
        split4: shuffle = vector::split4::<__m512i>;
        merge2: shuffle = vector::merge2::<__m512i>;
        merge4: shuffle = vector::merge4::<__m512i>;
        delta: shuffle = vector::delta::<__m512i>;
        xor: shuffle = vector::xor::<__m512i>;
        repeats: scan = vector::repeats::<__m512i>;
        next_run: scan = vector::next_run::<__m512i>;
        run_len: scan = vector::run_len::<__m512i>;
        places: places = vector::places::<__m512i>;
        estimates: estimates = estimates::avx512::Floats16;
        attend: attend = attend::avx512::Vnni512;
        // 24 sums, two vectors of B and one of A, of 32 registers.
        product: product = vector::product::<__m512, 12, 2, 1>;
    }
    model: {
        quantize_f32: quantize = codes::quantize::<F32, 4>;
        quantize_bf16: quantize = codes::quantize::<Bf16, 2>;
        dequantize_f32: dequantize = codes::dequantize::<F32, 4>;
        dequantize_bf16: dequantize = codes::dequantize::<Bf16, 2>;
        quantize_f16: quantize = vector::quantize_f16::<__m512>;
        dequantize_f16: dequantize = vector::dequantize_f16::<__m512>;
    }
}

/// The source of each byte of a vector, in the first of two vectors (0 to 63) or the second (64 to 127).
struct Places([u8; 64]);

/// Attention over rows of a host's own cache.
pub(in crate::arch) fn row_kernels(_: Avx512) -> &'static attend::rows::RowKernels {
    static ROWS: attend::rows::RowKernels =
        kernel!(["avx512f", "avx512bw", "avx512vl", "avx2", "f16c", "fma"] attend_rows estimates::avx512::Floats16);
    &ROWS
}

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
        // Two planes in the halves of a vector, which then change places.
        fn split4(from: *const u8) -> [Self; 4] = {
            const PLANES01: Places = Places::strided(4, 0, 1);
            const PLANES23: Places = Places::strided(4, 2, 3);
            let (a, b) = (Self::load(from), Self::load(from.add(64)));
            let (c, d) = (Self::load(from.add(128)), Self::load(from.add(192)));
            let (ab01, ab23) = (PLANES01.of(a, b), PLANES23.of(a, b));
            let (cd01, cd23) = (PLANES01.of(c, d), PLANES23.of(c, d));
            [
                _mm512_shuffle_i64x2::<0x44>(ab01, cd01),
                _mm512_shuffle_i64x2::<0xEE>(ab01, cd01),
                _mm512_shuffle_i64x2::<0x44>(ab23, cd23),
                _mm512_shuffle_i64x2::<0xEE>(ab23, cd23),
            ]
        };
        fn merge2(planes: [Self; 2], to: *mut u8) = {
            const LOWER: Places = Places::zipped(1, 0);
            const UPPER: Places = Places::zipped(1, 32);
            LOWER.of(planes[0], planes[1]).store(to);
            UPPER.of(planes[0], planes[1]).store(to.add(64));
        };
        fn merge4(planes: [Self; 4], to: *mut u8) = {
            const LOWER: Places = Places::zipped(1, 0);
            const UPPER: Places = Places::zipped(1, 32);
            const LOWER_PAIRS: Places = Places::zipped(2, 0);
            const UPPER_PAIRS: Places = Places::zipped(2, 32);
            let [l0, l1, l2, l3] = planes;
            let (ab, cd) = (LOWER.of(l0, l1), LOWER.of(l2, l3));
            LOWER_PAIRS.of(ab, cd).store(to);
            UPPER_PAIRS.of(ab, cd).store(to.add(64));
            let (ab, cd) = (UPPER.of(l0, l1), UPPER.of(l2, l3));
            LOWER_PAIRS.of(ab, cd).store(to.add(128));
            UPPER_PAIRS.of(ab, cd).store(to.add(192));
        };
    }
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
