//! Byte products with NEON, with and without `sdot`.

use super::{Dots, LANES, Line, Shorts};
use crate::arch::estimates::neon::Floats16;
use crate::arch::vector::operations;
use core::arch::aarch64::*;
use core::arch::asm;

/// Widening products and pairwise sums.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Widening;

/// `sdot`.
#[derive(Clone, Copy)]
pub(in crate::arch) struct Dotprod;

/// Applies an expression to each quarter.
macro_rules! quarters {
    (|$i:ident| $each:expr) => {
        [
            {
                let $i = 0;
                $each
            },
            {
                let $i = 1;
                $each
            },
            {
                let $i = 2;
                $each
            },
            {
                let $i = 3;
                $each
            },
        ]
    };
}
pub(super) use quarters;

/// All but the products, which differ.
macro_rules! dots {
    ($name:ident, $add:ident) => {
        impl Dots for $name {
            type Floats = Floats16;
            type Ints = [int32x4_t; 4];
            type Bytes = [int8x16_t; 4];
            // Codes of K become signed.
            const KEY_BIAS: i32 = 0;

            operations! {
                fn widen(from: &Shorts) -> Self::Floats = {
                    let from: *const u16 = from.as_ptr().cast();
                    quarters!(|i| widen_four(vld1_u16(from.add(4 * i))))
                };
                fn widen_ints(from: &Shorts) -> Self::Floats = {
                    let from: *const i16 = from.as_ptr().cast();
                    quarters!(|i| vcvtq_f32_s32(vmovl_s16(vld1_s16(from.add(4 * i)))))
                };
                fn abs(x: Self::Floats) -> Self::Floats = quarters!(|i| vabsq_f32(x[i]));
                fn highest(x: Self::Floats) -> f32 = {
                    vmaxvq_f32(vmaxq_f32(vmaxq_f32(x[0], x[1]), vmaxq_f32(x[2], x[3])))
                };
                fn total(ints: Self::Ints) -> i32 = {
                    vaddvq_s32(vaddq_s32(vaddq_s32(ints[0], ints[1]), vaddq_s32(ints[2], ints[3])))
                };
                fn keys(from: &Line) -> Self::Bytes = {
                    let from = from.0.as_ptr();
                    quarters!(|i| vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from.add(16 * i)), vdupq_n_u8(0x80))))
                };
                fn raw(from: &Line) -> Self::Bytes = {
                    let from: *const i8 = from.0.as_ptr().cast();
                    quarters!(|i| vld1q_s8(from.add(16 * i)))
                };
                fn part<const SHIFT: i32>(bytes: Self::Bytes, mask: u8) -> Self::Bytes = {
                    quarters!(|i| {
                        let down = vshlq_u8(vreinterpretq_u8_s8(bytes[i]), vdupq_n_s8(-(SHIFT as i8)));
                        vreinterpretq_s8_u8(vandq_u8(down, vdupq_n_u8(mask)))
                    })
                };
                fn above(high: Self::Bytes, low: Self::Bytes) -> Self::Bytes = {
                    quarters!(|i| vorrq_s8(vshlq_n_s8::<4>(high[i]), low[i]))
                };
                fn store(bytes: Self::Bytes, to: &mut Line) = {
                    let to: *mut i8 = to.0.as_mut_ptr().cast();
                    quarters!(|i| vst1q_s8(to.add(16 * i), bytes[i]));
                };
                fn nibbles(from: &Line) -> [Self::Bytes; 2] = {
                    let from = from.0.as_ptr();
                    let both = quarters!(|i| vld1q_u8(from.add(16 * i)));
                    [
                        quarters!(|i| vreinterpretq_s8_u8(vshlq_n_u8::<4>(both[i]))),
                        quarters!(|i| vreinterpretq_s8_u8(vandq_u8(both[i], vdupq_n_u8(0xF0)))),
                    ]
                };
                fn zero() -> Self::Ints = [vdupq_n_s32(0); 4];
                fn add_keys(sums: Self::Ints, keys: Self::Bytes, four: i32) -> Self::Ints = {
                    let four = vreinterpretq_s8_s32(vdupq_n_s32(four));
                    quarters!(|i| $add(sums[i], keys[i], four))
                };
                fn add_values(sums: Self::Ints, nibbles: Self::Bytes, four: i32) -> Self::Ints = {
                    Self::add_keys(sums, nibbles, four)
                };
                fn join<const SHIFT: i32>(high: Self::Ints, low: Self::Ints) -> Self::Ints = {
                    quarters!(|i| vaddq_s32(vshlq_s32(high[i], vdupq_n_s32(SHIFT)), low[i]))
                };
                fn add_all(sums: Self::Ints, addend: i32) -> Self::Ints = {
                    quarters!(|i| vaddq_s32(sums[i], vdupq_n_s32(addend)))
                };
                fn floats(ints: Self::Ints) -> Self::Floats = quarters!(|i| vcvtq_f32_s32(ints[i]));
                fn nearest(x: Self::Floats) -> Self::Ints = quarters!(|i| vcvtnq_s32_f32(x[i]));
                fn bytes(x: Self::Ints, to: &mut [i8; LANES]) = store(x, to);
                fn line(x: Self::Ints, to: &mut Line) = {
                    let to: *mut i32 = to.0.as_mut_ptr().cast();
                    quarters!(|i| vst1q_s32(to.add(4 * i), x[i]));
                };
                fn words(from: &Line) -> Self::Ints = {
                    let from: *const i32 = from.0.as_ptr().cast();
                    quarters!(|i| vld1q_s32(from.add(4 * i)))
                };
                fn field<const UP: i32, const DOWN: i32>(x: Self::Ints) -> Self::Ints = {
                    quarters!(|i| {
                        let up = vreinterpretq_u32_s32(vshlq_s32(x[i], vdupq_n_s32(UP)));
                        vreinterpretq_s32_u32(vshlq_u32(up, vdupq_n_s32(-DOWN)))
                    })
                };
                fn nibble<const SHIFT: i32>(x: Self::Ints) -> Self::Ints = {
                    quarters!(|i| vshrq_n_s32::<28>(vshlq_s32(x[i], vdupq_n_s32(SHIFT))))
                };
                fn split<const SHIFT: i32, const ROUND: i32>(
                    x: Self::Ints,
                    high: &mut [i8; LANES],
                    low: &mut [i8; LANES]
                ) = {
                    let upper = quarters!(|i| {
                        vshlq_s32(vaddq_s32(x[i], vdupq_n_s32(ROUND)), vdupq_n_s32(-SHIFT))
                    });
                    store(upper, high);
                    store(quarters!(|i| vsubq_s32(x[i], vshlq_s32(upper[i], vdupq_n_s32(SHIFT)))), low);
                };
            }
        }
    };
}

dots!(Widening, add_widening);
dots!(Dotprod, add_dotprod);

/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn add_widening(sums: int32x4_t, bytes: int8x16_t, four: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let (low, high) = (vmull_s8(vget_low_s8(bytes), vget_low_s8(four)), vmull_high_s8(bytes, four));
        vpadalq_s16(sums, vpaddq_s16(low, high))
    }
}

/// # Safety
/// Needs NEON and dotprod.
#[inline(always)]
unsafe fn add_dotprod(mut sums: int32x4_t, bytes: int8x16_t, four: int8x16_t) -> int32x4_t {
    // The intrinsic is unstable.
    // SAFETY: the caller's; the instruction touches these registers alone.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums,
            in(vreg) bytes,
            in(vreg) four,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Four f16; the intrinsic is unstable.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
pub(super) unsafe fn widen_four(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: the caller's; the instruction touches these registers alone.
    unsafe {
        asm!(
            "fcvtl {0:v}.4s, {1:v}.4h",
            out(vreg) wide,
            in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    wide
}

/// 16 integers that are bytes.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn store(ints: [int32x4_t; 4], to: &mut [i8; LANES]) {
    // SAFETY: the caller's.
    unsafe {
        let first = vcombine_s16(vmovn_s32(ints[0]), vmovn_s32(ints[1]));
        let second = vcombine_s16(vmovn_s32(ints[2]), vmovn_s32(ints[3]));
        vst1q_s8(to.as_mut_ptr(), vcombine_s8(vmovn_s16(first), vmovn_s16(second)));
    }
}
