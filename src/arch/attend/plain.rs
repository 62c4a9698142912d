//! Arrays as vectors.

use super::{Dots, KEY_ZERO, LANES, Line, Shorts};
use half::f16;

/// Arrays, which define every operation.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Dots for Plain {
    type Floats = [f32; LANES];
    type Ints = [i32; LANES];
    type Bytes = [[i32; 4]; LANES];
    const KEY_BIAS: i32 = KEY_ZERO;
    const ABREAST: bool = false;

    #[inline(never)]
    unsafe fn widen(from: &Shorts) -> Self::Floats {
        from.map(|bytes| f16::from_le_bytes(bytes).to_f32())
    }
    #[inline(always)]
    unsafe fn widen_ints(from: &Shorts) -> Self::Floats {
        from.map(|bytes| f32::from(i16::from_le_bytes(bytes)))
    }
    #[inline(always)]
    unsafe fn abs(x: Self::Floats) -> Self::Floats {
        x.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn highest(x: Self::Floats) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn keys(from: &Line) -> Self::Bytes {
        std::array::from_fn(|i| std::array::from_fn(|j| i32::from(from.0[4 * i + j])))
    }
    #[inline(always)]
    unsafe fn raw(from: &Line) -> Self::Bytes {
        // SAFETY: arrays need no CPU features.
        unsafe { Self::keys(from) }
    }
    #[inline(always)]
    unsafe fn part<const SHIFT: i32>(bytes: Self::Bytes, mask: u8) -> Self::Bytes {
        bytes.map(|four| four.map(|byte| byte >> SHIFT & i32::from(mask)))
    }
    #[inline(always)]
    unsafe fn above(high: Self::Bytes, low: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| std::array::from_fn(|j| high[i][j] << 4 | low[i][j]))
    }
    #[inline(always)]
    unsafe fn store(bytes: Self::Bytes, to: &mut Line) {
        to.0.iter_mut().zip(bytes.as_flattened()).for_each(|(to, byte)| *to = *byte as u8);
    }
    #[inline(always)]
    unsafe fn nibbles(from: &Line) -> [Self::Bytes; 2] {
        let half = |shift: u32| {
            std::array::from_fn(|i| std::array::from_fn(|j| i32::from((from.0[4 * i + j] << shift & 0xF0) as i8)))
        };
        [half(4), half(0)]
    }
    #[inline(always)]
    unsafe fn zero() -> Self::Ints {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn add_keys(sums: Self::Ints, keys: Self::Bytes, four: i32) -> Self::Ints {
        let four = four.to_ne_bytes();
        std::array::from_fn(|i| sums[i] + (0..4).map(|j| keys[i][j] * i32::from(four[j] as i8)).sum::<i32>())
    }
    #[inline(always)]
    unsafe fn add_values(sums: Self::Ints, nibbles: Self::Bytes, four: i32) -> Self::Ints {
        // SAFETY: arrays need no CPU features.
        unsafe { Self::add_keys(sums, nibbles, four) }
    }
    #[inline(always)]
    unsafe fn join<const SHIFT: i32>(high: Self::Ints, low: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| (high[i] << SHIFT) + low[i])
    }
    #[inline(always)]
    unsafe fn add_all(sums: Self::Ints, addend: i32) -> Self::Ints {
        sums.map(|sum| sum + addend)
    }
    #[inline(always)]
    unsafe fn total(ints: Self::Ints) -> i32 {
        ints.into_iter().sum()
    }
    #[inline(always)]
    unsafe fn floats(ints: Self::Ints) -> Self::Floats {
        ints.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn nearest(x: Self::Floats) -> Self::Ints {
        x.map(|x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn bytes(x: Self::Ints, to: &mut [i8; LANES]) {
        *to = x.map(|x| x as i8);
    }
    #[inline(always)]
    unsafe fn line(x: Self::Ints, to: &mut Line) {
        to.0.as_chunks_mut::<4>().0.iter_mut().zip(x).for_each(|(to, x)| *to = x.to_le_bytes());
    }
    #[inline(always)]
    unsafe fn words(from: &Line) -> Self::Ints {
        std::array::from_fn(|i| i32::from_le_bytes(std::array::from_fn(|j| from.0[4 * i + j])))
    }
    #[inline(always)]
    unsafe fn field<const UP: i32, const DOWN: i32>(x: Self::Ints) -> Self::Ints {
        x.map(|x| ((x as u32) << UP >> DOWN) as i32)
    }
    #[inline(always)]
    unsafe fn nibble<const SHIFT: i32>(x: Self::Ints) -> Self::Ints {
        x.map(|x| x << SHIFT >> 28)
    }
    #[inline(always)]
    unsafe fn split<const SHIFT: i32, const ROUND: i32>(x: Self::Ints, high: &mut [i8; LANES], low: &mut [i8; LANES]) {
        for i in 0..LANES {
            let upper = (x[i] + ROUND) >> SHIFT;
            high[i] = upper as i8;
            low[i] = (x[i] - (upper << SHIFT)) as i8;
        }
    }
}
