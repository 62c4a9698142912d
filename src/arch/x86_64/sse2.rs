//! SSE2.

use crate::arch::PORTABLE;
use crate::arch::level::level;
use crate::arch::vector::{self, Sums, Vector, operations};
use core::arch::x86_64::*;

level! {
    /// Every x86-64 has these features.
    Sse2: is_x86_feature_detected ["sse2"], below PORTABLE;
    kernels: {
        split2: shuffle = vector::split2::<__m128i>;
        split4: shuffle = vector::split4::<__m128i>;
        merge2: shuffle = vector::merge2::<__m128i>;
        merge4: shuffle = vector::merge4::<__m128i>;
        transpose2: transpose2 = vector::transpose2::<__m128i>;
        transpose4: transpose4 = vector::transpose4::<__m128i>;
        delta: shuffle = vector::delta::<__m128i>;
        xor: shuffle = vector::xor::<__m128i>;
        undo_delta: undo = vector::undo_delta::<__m128i>;
        undo_xor: undo = vector::undo_xor::<__m128i>;
        next_run: scan = vector::next_run::<__m128i>;
        run_len: scan = vector::run_len::<__m128i>;
        places: places = vector::places::<__m128i>;
    }
}

/// Two vectors of 2-byte words: their lower and their upper bytes.
///
/// # Safety
/// Needs SSE2.
#[inline(always)]
unsafe fn bytes_of(a: __m128i, b: __m128i) -> [__m128i; 2] {
    // SAFETY: the caller's.
    unsafe {
        let low = _mm_set1_epi16(0x00FF);
        [
            _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low)),
            _mm_packus_epi16(_mm_srli_epi16::<8>(a), _mm_srli_epi16::<8>(b)),
        ]
    }
}

impl Vector for __m128i {
    const LEN: usize = 16;
    const MASK_BITS: u32 = 1;
    type Half = Self;

    operations! {
        fn load(from: *const u8) -> Self = _mm_loadu_si128(from.cast());
        fn store(self, to: *mut u8) = _mm_storeu_si128(to.cast(), self);
        fn load_parts(from: *const u8, _stride: usize) -> Self = Self::load(from);
        fn zero() -> Self = _mm_setzero_si128();
        fn splat(byte: u8) -> Self = _mm_set1_epi8(byte as i8);
        fn add(self, other: Self) -> Self = _mm_add_epi8(self, other);
        fn sub(self, other: Self) -> Self = _mm_sub_epi8(self, other);
        fn xor(self, other: Self) -> Self = _mm_xor_si128(self, other);
        fn equal(self, other: Self) -> u64 = _mm_movemask_epi8(_mm_cmpeq_epi8(self, other)) as u64;
        fn zip_lo<const UNIT: usize>(self, other: Self) -> Self = match UNIT {
            1 => _mm_unpacklo_epi8(self, other),
            2 => _mm_unpacklo_epi16(self, other),
            4 => _mm_unpacklo_epi32(self, other),
            _ => _mm_unpacklo_epi64(self, other),
        };
        fn zip_hi<const UNIT: usize>(self, other: Self) -> Self = match UNIT {
            1 => _mm_unpackhi_epi8(self, other),
            2 => _mm_unpackhi_epi16(self, other),
            4 => _mm_unpackhi_epi32(self, other),
            _ => _mm_unpackhi_epi64(self, other),
        };
        fn split2(from: *const u8) -> [Self; 2] = bytes_of(Self::load(from), Self::load(from.add(16)));
        fn split4(from: *const u8) -> [Self; 4] = {
            let [even0, odd0] = Self::split2(from);
            let [even1, odd1] = Self::split2(from.add(32));
            let ([l0, l2], [l1, l3]) = (bytes_of(even0, even1), bytes_of(odd0, odd1));
            [l0, l1, l2, l3]
        };
        fn merge2(planes: [Self; 2], to: *mut u8) = {
            _mm_unpacklo_epi8(planes[0], planes[1]).store(to);
            _mm_unpackhi_epi8(planes[0], planes[1]).store(to.add(16));
        };
        fn merge4(planes: [Self; 4], to: *mut u8) = {
            let [l0, l1, l2, l3] = planes;
            let (ab, cd) = (_mm_unpacklo_epi8(l0, l1), _mm_unpacklo_epi8(l2, l3));
            _mm_unpacklo_epi16(ab, cd).store(to);
            _mm_unpackhi_epi16(ab, cd).store(to.add(16));
            let (ab, cd) = (_mm_unpackhi_epi8(l0, l1), _mm_unpackhi_epi8(l2, l3));
            _mm_unpacklo_epi16(ab, cd).store(to.add(32));
            _mm_unpackhi_epi16(ab, cd).store(to.add(48));
        };
    }
}

impl Sums for __m128i {
    operations! {
        fn up<const BY: i32>(self) -> Self = _mm_slli_si128::<BY>(self);
        fn carried(self) -> Self = _mm_setzero_si128();
        fn last(self) -> Self = {
            let twice = _mm_unpackhi_epi8(self, self);
            _mm_shuffle_epi32::<0xFF>(_mm_shufflehi_epi16::<0xFF>(twice))
        };
    }
}
