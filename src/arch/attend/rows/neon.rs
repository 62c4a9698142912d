//! Rows in vectors of NEON.

use super::Lanes;
use crate::arch::attend::neon::{quarters, widen_four};
use crate::arch::estimates::neon::Floats16;
use crate::arch::vector::operations;
use core::arch::aarch64::*;

impl Lanes for Floats16 {
    operations! {
        fn add_product(self, a: Self, b: Self) -> Self = quarters!(|i| vfmaq_f32(self[i], a[i], b[i]));
        fn half(from: *const u8) -> Self = [widen_four(vdup_n_u16(from.cast::<u16>().read_unaligned())); 4];
        fn halves(from: *const u8) -> Self = quarters!(|i| widen_four(vld1_u16(from.add(8 * i).cast())));
        fn signed(from: *const u8, scale: Self) -> Self = numbers(vld1q_s8(from.cast()), scale);
        fn nibbles(from: *const u8, scale: Self) -> [Self; 2] = {
            let (pairs, eight) = (vld1q_u8(from), vdupq_n_s8(8));
            let halves = [vandq_u8(pairs, vdupq_n_u8(15)), vshrq_n_u8::<4>(pairs)];
            [
                numbers(vsubq_s8(vreinterpretq_s8_u8(halves[0]), eight), scale),
                numbers(vsubq_s8(vreinterpretq_s8_u8(halves[1]), eight), scale),
            ]
        };
    }
}

/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn numbers(codes: int8x16_t, scale: Floats16) -> Floats16 {
    // SAFETY: the caller's.
    unsafe {
        let eights = [vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)];
        let fours = [
            vmovl_s16(vget_low_s16(eights[0])),
            vmovl_high_s16(eights[0]),
            vmovl_s16(vget_low_s16(eights[1])),
            vmovl_high_s16(eights[1]),
        ];
        quarters!(|i| vmulq_f32(vcvtq_f32_s32(fours[i]), scale[i]))
    }
}
