//! The AArch64 level: NEON, which every one has. What the compiler makes of `portable` is as good for repeats.

use super::vector::{self, Floats, Sums, Vector, operations, vectorised};
use super::{Kernels, Level, PANEL, PORTABLE, Product, Transposition};
use core::arch::aarch64::*;

pub(super) static NEON: Kernels = Kernels {
    level: Level::Neon,
    split2,
    split4,
    merge2,
    merge4,
    transpose2,
    transpose4,
    delta,
    xor,
    undo_delta,
    undo_xor,
    next_run,
    run_len,
    planes1,
    planes2,
    planes4,
    unplanes1,
    unplanes2,
    unplanes4,
    product,
    ..PORTABLE
};

vectorised! { "neon", uint8x16_t:
    split2 = split2(src: &[u8], dst: &mut [u8]);
    split4 = split4(src: &[u8], dst: &mut [u8]);
    merge2 = merge2(src: &[u8], dst: &mut [u8]);
    merge4 = merge4(src: &[u8], dst: &mut [u8]);
    transpose2 = transpose2(shape: &Transposition, src: &[[u8; 2]], dst: &mut [[u8; 2]]);
    transpose4 = transpose4(shape: &Transposition, src: &[[u8; 4]], dst: &mut [[u8; 4]]);
    delta = delta(src: &[u8], dst: &mut [u8]);
    xor = xor(src: &[u8], dst: &mut [u8]);
    undo_delta = undo_delta(lane: &mut [u8]);
    undo_xor = undo_xor(lane: &mut [u8]);
    next_run = next_run(src: &[u8]) -> usize;
    run_len = run_len(src: &[u8]) -> usize;
    planes1 = planes<1>(src: &[u8], row_len: usize, dst: &mut [u8]);
    planes2 = planes<2>(src: &[u8], row_len: usize, dst: &mut [u8]);
    planes4 = planes<4>(src: &[u8], row_len: usize, dst: &mut [u8]);
    unplanes1 = unplanes<1>(src: &[u8], row_len: usize, dst: &mut [u8]);
    unplanes2 = unplanes<2>(src: &[u8], row_len: usize, dst: &mut [u8]);
    unplanes4 = unplanes<4>(src: &[u8], row_len: usize, dst: &mut [u8]);
}

impl Vector for uint8x16_t {
    const LEN: usize = 16;
    const MASK_BITS: u32 = 4;
    type Half = Self;

    operations! {
        fn load(from: *const u8) -> Self = vld1q_u8(from);
        fn store(self, to: *mut u8) = vst1q_u8(to, self);
        fn load_parts(from: *const u8, _stride: usize) -> Self = Self::load(from);
        fn store_parts(self, to: *mut u8, _stride: usize) = self.store(to);
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
        fn merge2(lanes: [Self; 2], to: *mut u8) = vst2q_u8(to, uint8x16x2_t(lanes[0], lanes[1]));
        fn merge4(lanes: [Self; 4], to: *mut u8) = vst4q_u8(to, uint8x16x4_t(lanes[0], lanes[1], lanes[2], lanes[3]));
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

/// 24 sums, four vectors of B and one of A, of 32 registers.
pub(super) fn product(product: &Product, result: &mut [[f32; PANEL]]) {
    #[target_feature(enable = "neon")]
    fn enabled(product: &Product, result: &mut [[f32; PANEL]]) {
        // SAFETY: the features that the vector needs are enabled.
        unsafe { vector::product::<float32x4_t, 6, 4, 4>(product, result) }
    }
    // SAFETY: reached only through the table of its level, which is handed out after detection.
    unsafe { enabled(product, result) }
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
