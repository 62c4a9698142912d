//! 16 floats in four vectors of NEON.

use super::{CodePair, LANES, STRIPE, Shorts, Sixteen, Weights};
use crate::arch::vector::operations;
use core::arch::aarch64::*;

/// Four lanes each.
pub(in crate::arch) type Floats16 = [float32x4_t; 4];

/// Applies an intrinsic to each part.
macro_rules! parts {
    ($call:ident($($arg:expr),*)) => {
        [$call($($arg[0]),*), $call($($arg[1]),*), $call($($arg[2]),*), $call($($arg[3]),*)]
    };
}

/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn and_not(mask: uint32x4_t, x: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe { vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), mask)) }
}

/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn exponent(bits: float32x4_t, other: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let shifted = vshlq_n_u32::<23>(vreinterpretq_u32_f32(other));
        vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(bits), shifted))
    }
}

impl Sixteen for Floats16 {
    const ROWS: usize = 4;

    operations! {
        fn splat(x: f32) -> Self = [vdupq_n_f32(x); 4];
        fn load(from: &[f32; LANES]) -> Self = {
            let from = from.as_ptr();
            [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))]
        };
        fn store(self, to: &mut [f32; LANES]) = {
            let to = to.as_mut_ptr();
            vst1q_f32(to, self[0]);
            vst1q_f32(to.add(4), self[1]);
            vst1q_f32(to.add(8), self[2]);
            vst1q_f32(to.add(12), self[3]);
        };
        fn widen(from: &Shorts) -> Self = {
            let from: *const u16 = from.as_ptr().cast();
            let four = |at: usize| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(at))));
            [four(0), four(4), four(8), four(12)]
        };
        fn code_sums<const ROWS: usize>(pairs: &[CodePair; STRIPE / 2], weights: [&Weights; ROWS]) -> [Self; ROWS] = {
            let mut sums = [[vdupq_n_s16(0); 2]; ROWS];
            for (at, two) in pairs.as_chunks::<2>().0.iter().enumerate() {
                for (half, pair) in two.iter().enumerate() {
                    let pair = vld1q_s8(pair.as_ptr().cast());
                    let (low, high) = (vshrq_n_s8::<4>(vshlq_n_s8::<4>(pair)), vshrq_n_s8::<4>(pair));
                    for (sums, weights) in sums.iter_mut().zip(&weights) {
                        for (codes, weight) in [(low, weights.low[at][half]), (high, weights.high[at][half])] {
                            sums[0] = vmlal_s8(sums[0], vget_low_s8(codes), vdup_n_s8(weight));
                            sums[1] = vmlal_high_s8(sums[1], codes, vdupq_n_s8(weight));
                        }
                    }
                }
            }
            sums.map(|[first, second]| [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(first))),
                vcvtq_f32_s32(vmovl_high_s16(first)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(second))),
                vcvtq_f32_s32(vmovl_high_s16(second)),
            ])
        };
        fn add(self, other: Self) -> Self = parts!(vaddq_f32(self, other));
        fn mul(self, other: Self) -> Self = parts!(vmulq_f32(self, other));
        fn max(self, other: Self) -> Self = parts!(larger(self, other));
        fn unless_less(self, limit: Self, other: Self) -> Self = {
            let masks = parts!(vcltq_f32(self, limit));
            parts!(and_not(masks, other))
        };
        fn add_exponent(self, other: Self) -> Self = parts!(exponent(self, other));
        fn sum(self) -> f32 = {
            let four = vaddq_f32(vaddq_f32(self[0], self[2]), vaddq_f32(self[1], self[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        };
    }
}
