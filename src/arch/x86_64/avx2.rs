//! AVX2.

use super::sse2;
use crate::arch::level::{has_features, kernel, level};
use crate::arch::vector::{self, Floats, Sums, Vector, operations};
use crate::arch::{attend, estimates};
use core::arch::x86_64::*;

level! {
    /// AVX2, with conversions of F16 and fused multiplication and addition.
    Avx2: is_x86_feature_detected ["avx2", "f16c", "fma", "popcnt"], below sse2::KERNELS;
    kernels: {
        split2: shuffle = vector::split2::<__m256i>;
        split4: shuffle = vector::split4::<__m256i>;
        merge2: shuffle = vector::merge2::<__m256i>;
        merge4: shuffle = vector::merge4::<__m256i>;
        // Two parts gain nothing on the short tiles of 2-byte elements.
        transpose2: transpose2 = vector::transpose2::<__m128i>;
        transpose4: transpose4 = vector::transpose4::<__m256i>;
        delta: shuffle = vector::delta::<__m256i>;
        xor: shuffle = vector::xor::<__m256i>;
        undo_delta: undo = vector::undo_delta::<__m256i>;
        undo_xor: undo = vector::undo_xor::<__m256i>;
        repeats: scan = vector::repeats::<__m256i>;
        next_run: scan = vector::next_run::<__m256i>;
        run_len: scan = vector::run_len::<__m256i>;
        places: places = vector::places::<__m256i>;
        estimates: estimates = estimates::avx2::Floats16;
        attend: attend = attend::avx2::Maddubs;
        // 12 sums, two vectors of B and one of A fill the 16 registers.
        product: product = vector::product::<__m256, 6, 2, 2>;
    }
}

/// Attention with VNNI on vectors of AVX2; `None` where the CPU has not both.
pub(in crate::arch) fn attend_with_vnni() -> Option<&'static attend::AttendKernels> {
    static VNNI: attend::AttendKernels = kernel!(["avx2", "f16c", "fma", "avxvnni"] attend attend::avx2::Vnni256);
    has_features!(is_x86_feature_detected ["avx2", "f16c", "fma", "avxvnni"]).then_some(&VNNI)
}

/// Attention over rows of a host's own cache.
pub(in crate::arch) fn row_kernels(_: Avx2) -> &'static attend::rows::RowKernels {
    static ROWS: attend::rows::RowKernels =
        kernel!(["avx2", "f16c", "fma"] attend_rows_narrow estimates::avx2::Floats16);
    &ROWS
}

impl Vector for __m256i {
    const LEN: usize = 32;
    const MASK_BITS: u32 = 1;
    type Half = __m128i;

    operations! {
        fn load(from: *const u8) -> Self = _mm256_loadu_si256(from.cast());
        fn store(self, to: *mut u8) = _mm256_storeu_si256(to.cast(), self);
        fn load_parts(from: *const u8, stride: usize) -> Self = {
            let low = _mm256_castsi128_si256(__m128i::load(from));
            _mm256_inserti128_si256::<1>(low, __m128i::load(from.add(stride)))
        };
        fn zero() -> Self = _mm256_setzero_si256();
        fn splat(byte: u8) -> Self = _mm256_set1_epi8(byte as i8);
        fn add(self, other: Self) -> Self = _mm256_add_epi8(self, other);
        fn sub(self, other: Self) -> Self = _mm256_sub_epi8(self, other);
        fn xor(self, other: Self) -> Self = _mm256_xor_si256(self, other);
        fn equal(self, other: Self) -> u64 = _mm256_movemask_epi8(_mm256_cmpeq_epi8(self, other)) as u32 as u64;
        fn zip_lo<const UNIT: usize>(self, other: Self) -> Self = match UNIT {
            1 => _mm256_unpacklo_epi8(self, other),
            2 => _mm256_unpacklo_epi16(self, other),
            4 => _mm256_unpacklo_epi32(self, other),
            _ => _mm256_unpacklo_epi64(self, other),
        };
        fn zip_hi<const UNIT: usize>(self, other: Self) -> Self = match UNIT {
            1 => _mm256_unpackhi_epi8(self, other),
            2 => _mm256_unpackhi_epi16(self, other),
            4 => _mm256_unpackhi_epi32(self, other),
            _ => _mm256_unpackhi_epi64(self, other),
        };
        // Each part packs by itself, so the first parts hold the first half of the words.
        fn split2(from: *const u8) -> [Self; 2] = {
            let (a, b) = (Self::load_parts(from, 32), Self::load_parts(from.add(16), 32));
            let low = _mm256_set1_epi16(0x00FF);
            [
                _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)),
                _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b)),
            ]
        };
        // Bytes of the same plane come together in each part, and then from four vectors.
        fn split4(from: *const u8) -> [Self; 4] = {
            let together = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
            ));
            let v0 = _mm256_shuffle_epi8(Self::load_parts(from, 64), together);
            let v1 = _mm256_shuffle_epi8(Self::load_parts(from.add(16), 64), together);
            let v2 = _mm256_shuffle_epi8(Self::load_parts(from.add(32), 64), together);
            let v3 = _mm256_shuffle_epi8(Self::load_parts(from.add(48), 64), together);
            let (a, b) = (v0.zip_lo::<4>(v1), v2.zip_lo::<4>(v3));
            let (c, d) = (v0.zip_hi::<4>(v1), v2.zip_hi::<4>(v3));
            [a.zip_lo::<8>(b), a.zip_hi::<8>(b), c.zip_lo::<8>(d), c.zip_hi::<8>(d)]
        };
        fn merge2(planes: [Self; 2], to: *mut u8) = {
            let (a, b) = (planes[0].zip_lo::<1>(planes[1]), planes[0].zip_hi::<1>(planes[1]));
            _mm256_permute2x128_si256::<0x20>(a, b).store(to);
            _mm256_permute2x128_si256::<0x31>(a, b).store(to.add(32));
        };
        fn merge4(planes: [Self; 4], to: *mut u8) = {
            let [l0, l1, l2, l3] = planes;
            let (ab0, ab1) = (l0.zip_lo::<1>(l1), l0.zip_hi::<1>(l1));
            let (cd0, cd1) = (l2.zip_lo::<1>(l3), l2.zip_hi::<1>(l3));
            let (x0, x1) = (ab0.zip_lo::<2>(cd0), ab0.zip_hi::<2>(cd0));
            let (x2, x3) = (ab1.zip_lo::<2>(cd1), ab1.zip_hi::<2>(cd1));
            _mm256_permute2x128_si256::<0x20>(x0, x1).store(to);
            _mm256_permute2x128_si256::<0x20>(x2, x3).store(to.add(32));
            _mm256_permute2x128_si256::<0x31>(x0, x1).store(to.add(64));
            _mm256_permute2x128_si256::<0x31>(x2, x3).store(to.add(96));
        };
    }
}

impl Sums for __m256i {
    operations! {
        fn up<const BY: i32>(self) -> Self = _mm256_slli_si256::<BY>(self);
        fn carried(self) -> Self = {
            let lower = _mm256_permute2x128_si256::<0x08>(self, self);
            _mm256_shuffle_epi8(lower, _mm256_set1_epi8(15))
        };
        fn last(self) -> Self = _mm256_shuffle_epi8(_mm256_permute4x64_epi64::<0xFF>(self), _mm256_set1_epi8(15));
    }
}

impl Floats for __m256 {
    const LEN: usize = size_of::<Self>() / size_of::<f32>();

    operations! {
        fn zero() -> Self = _mm256_setzero_ps();
        fn load(from: *const f32) -> Self = _mm256_loadu_ps(from);
        fn store(self, to: *mut f32) = _mm256_storeu_ps(to, self);
        fn repeat(from: *const f32) -> Self = _mm256_set1_ps(*from);
        fn add_product(self, a: Self, b: Self) -> Self = _mm256_fmadd_ps(a, b, self);
        fn add(self, other: Self) -> Self = _mm256_add_ps(self, other);
    }
}
