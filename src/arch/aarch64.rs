//! NEON.

use super::level::{has_features, kernel, level};
use super::vector::{self, Floats, Sums, Vector, operations};
use super::{PORTABLE, attend, estimates};
use core::arch::aarch64::*;

level! {
    /// Every AArch64 has NEON. The compiler's version of `portable` is as good for `repeats`.
    Neon: is_aarch64_feature_detected ["neon"], below PORTABLE;
    kernels: {
        split2: shuffle = vector::split2::<uint8x16_t>;
        split4: shuffle = vector::split4::<uint8x16_t>;
        merge2: shuffle = vector::merge2::<uint8x16_t>;
        merge4: shuffle = vector::merge4::<uint8x16_t>;
        transpose2: transpose2 = vector::transpose2::<uint8x16_t>;
        transpose4: transpose4 = vector::transpose4::<uint8x16_t>;
        delta: shuffle = vector::delta::<uint8x16_t>;
        xor: shuffle = vector::xor::<uint8x16_t>;
        undo_delta: undo = vector::undo_delta::<uint8x16_t>;
        undo_xor: undo = vector::undo_xor::<uint8x16_t>;
        next_run: scan = vector::next_run::<uint8x16_t>;
        run_len: scan = vector::run_len::<uint8x16_t>;
        places: places = vector::places::<uint8x16_t>;
        estimates: estimates = estimates::neon::Floats16;
        attend: attend = attend::neon::Widening;
        // 24 sums, four vectors of B and one of A, of 32 registers.
        product: product = vector::product::<float32x4_t, 6, 4, 4>;
    }
}

/// Attention with `sdot`; `None` where the CPU has none.
pub(super) fn attend_with_dotprod() -> Option<&'static attend::AttendKernels> {
    static DOTPROD: attend::AttendKernels = kernel!(["neon", "dotprod"] attend attend::neon::Dotprod);
    has_features!(is_aarch64_feature_detected ["neon", "dotprod"]).then_some(&DOTPROD)
}

/// Attention over rows of a host's own cache.
pub(super) fn row_kernels(_: Neon) -> &'static attend::rows::RowKernels {
    static ROWS: attend::rows::RowKernels = kernel!(["neon"] attend_rows_narrowest estimates::neon::Floats16);
    &ROWS
}

impl Vector for uint8x16_t {
    const LEN: usize = 16;
    const MASK_BITS: u32 = 4;
    type Half = Self;

    operations! {
        fn load(from: *const u8) -> Self = vld1q_u8(from);
        fn store(self, to: *mut u8) = vst1q_u8(to, self);
        fn load_parts(from: *const u8, _stride: usize) -> Self = Self::load(from);
        fn zero() -> Self = vdupq_n_u8(0);
        fn splat(byte: u8) -> Self = vdupq_n_u8(byte);
        fn add(self, other: Self) -> Self = vaddq_u8(self, other);
        fn sub(self, other: Self) -> Self = vsubq_u8(self, other);
        fn xor(self, other: Self) -> Self = veorq_u8(self, other);
        // The middle of each pair of bytes: half of each.
        fn equal(self, other: Self) -> u64 = {
            let halves = vshrn_n_u16::<4>(vreinterpretq_u16_u8(vceqq_u8(self, other)));
            vget_lane_u64::<0>(vreinterpret_u64_u8(halves))
        };
        fn zip_lo<const UNIT: usize>(self, other: Self) -> Self = match UNIT {
            1 => vzip1q_u8(self, other),
            2 => vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(self), vreinterpretq_u16_u8(other))),
            4 => vreinterpretq_u8_u32(vzip1q_u32(vreinterpretq_u32_u8(self), vreinterpretq_u32_u8(other))),
            _ => vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(self), vreinterpretq_u64_u8(other))),
        };
        fn zip_hi<const UNIT: usize>(self, other: Self) -> Self = match UNIT {
            1 => vzip2q_u8(self, other),
            2 => vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(self), vreinterpretq_u16_u8(other))),
            4 => vreinterpretq_u8_u32(vzip2q_u32(vreinterpretq_u32_u8(self), vreinterpretq_u32_u8(other))),
            _ => vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(self), vreinterpretq_u64_u8(other))),
        };
        fn split2(from: *const u8) -> [Self; 2] = {
            let uint8x16x2_t(l0, l1) = vld2q_u8(from);
            [l0, l1]
        };
        fn split4(from: *const u8) -> [Self; 4] = {
            let uint8x16x4_t(l0, l1, l2, l3) = vld4q_u8(from);
            [l0, l1, l2, l3]
        };
        fn merge2(planes: [Self; 2], to: *mut u8) = vst2q_u8(to, uint8x16x2_t(planes[0], planes[1]));
        fn merge4(planes: [Self; 4], to: *mut u8) = vst4q_u8(to, uint8x16x4_t(planes[0], planes[1], planes[2], planes[3]));
    }
}

impl Sums for uint8x16_t {
    operations! {
        fn up<const BY: i32>(self) -> Self = match BY {
            1 => vextq_u8::<15>(Self::zero(), self),
            2 => vextq_u8::<14>(Self::zero(), self),
            4 => vextq_u8::<12>(Self::zero(), self),
            _ => vextq_u8::<8>(Self::zero(), self),
        };
        fn carried(self) -> Self = Self::zero();
        fn last(self) -> Self = vdupq_laneq_u8::<15>(self);
    }
}

impl Floats for float32x4_t {
    const LEN: usize = size_of::<Self>() / size_of::<f32>();

    operations! {
        fn zero() -> Self = vdupq_n_f32(0.0);
        fn load(from: *const f32) -> Self = vld1q_f32(from);
        fn store(self, to: *mut f32) = vst1q_f32(to, self);
        fn repeat(from: *const f32) -> Self = vld1q_dup_f32(from);
        fn add_product(self, a: Self, b: Self) -> Self = vfmaq_f32(self, a, b);
        fn add(self, other: Self) -> Self = vaddq_f32(self, other);
    }
}
