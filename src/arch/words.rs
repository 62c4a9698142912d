//! Words as numbers: to a real type that is wide enough to compute with, back to the nearest word, and the distance
//! between two words in steps of their type.
//!
//! Conversions take finite numbers alone, and use no library and no denormal floats. So every machine computes the same
//! bits, also on threads that flush denormals to zero.

use super::{Kernels, RowKernels};
use std::ops::{Add, Mul, Sub};

/// f32 or f64.
pub trait Real:
    Copy + Default + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + 'static
{
    /// The nearest number.
    fn from_f64(x: f64) -> Self;
    /// The nearest f32.
    fn to_f32(self) -> f32;
}

impl Real for f32 {
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x as f32
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Real for f64 {
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
}

/// A floating-point type of a cache, as bits.
pub trait Word {
    /// The type to compute with.
    type Real: Real;
    /// Bytes of a word.
    const BYTES: usize;
    /// Bits of a word.
    const BITS: u32 = 8 * Self::BYTES as u32;
    /// Bits of zero exponent and of an exponent that is too large, without the sign.
    const RANGE: std::ops::Range<u32>;

    /// The bits of a word of [`Word::BYTES`] bytes.
    fn bits(bytes: &[u8]) -> u32;
    /// The number of a word.
    fn real(bits: u32) -> Self::Real;
    /// The bits of the nearest word.
    fn nearest(real: Self::Real) -> u32;
    /// The kernels for rows of such words.
    fn kernels(all: &Kernels) -> &RowKernels<Self::Real>;

    /// Whether arithmetic on the number stays clear of denormals and infinities. Zero does.
    #[inline(always)]
    fn is_moderate(bits: u32) -> bool {
        let magnitude = bits & (u32::MAX >> (33 - Self::BITS));
        magnitude == 0 || Self::RANGE.contains(&magnitude)
    }

    /// The bits as a number that grows with the word's value: one more is the next word.
    #[inline(always)]
    fn order(bits: u32) -> u32 {
        let sign = (bits << (32 - Self::BITS)) as i32 >> 31;
        bits ^ sign as u32 & (u32::MAX >> (33 - Self::BITS))
    }

    /// The steps from `predicted` to `bits`, with the sign at the low end: 0, -1, 1, -2, 2 are 0, 1, 2, 3, 4.
    #[inline(always)]
    fn steps(bits: u32, predicted: u32) -> u32 {
        let difference = (Self::order(bits).wrapping_sub(Self::order(predicted)) << (32 - Self::BITS)) as i32;
        ((difference << 1 ^ difference >> 31) as u32) >> (32 - Self::BITS)
    }

    /// The inverse of [`Word::steps`].
    #[inline(always)]
    fn walk(steps: u32, predicted: u32) -> u32 {
        let difference = (steps >> 1) ^ 0u32.wrapping_sub(steps & 1);
        let mask = u32::MAX >> (32 - Self::BITS);
        // `order` is its own inverse.
        Self::order(Self::order(predicted).wrapping_add(difference) & mask) & mask
    }
}

/// IEEE binary16.
pub struct F16;
/// The upper half of binary32.
pub struct Bf16;
/// IEEE binary32.
pub struct F32;
/// Two's complement bytes, which are as far apart as their values.
pub struct Int8;

/// f32 bits rounded to the nearest multiple of 2^`shift`, ties to even.
#[inline(always)]
fn round(bits: u32, shift: u32) -> u32 {
    bits.wrapping_add((1 << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift
}

/// The bytes of a word, for a single load.
#[inline(always)]
fn chunk<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("a whole word")
}

impl Word for F16 {
    type Real = f32;
    const BYTES: usize = 2;
    const RANGE: std::ops::Range<u32> = 1..0x7C00;

    #[inline(always)]
    fn bits(bytes: &[u8]) -> u32 {
        u16::from_le_bytes(*chunk(bytes)) as u32
    }

    #[inline(always)]
    fn real(bits: u32) -> f32 {
        let magnitude = bits & 0x7FFF;
        let denormal = magnitude as f32 * (1.0 / 16_777_216.0);
        let normal = f32::from_bits((magnitude << 13) + (112 << 23));
        let x = if magnitude < 0x400 { denormal } else { normal };
        f32::from_bits(x.to_bits() | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn nearest(real: f32) -> u32 {
        let sign = real.to_bits() >> 16 & 0x8000;
        let x = f32::from_bits(real.to_bits() & 0x7FFF_FFFF);
        // Adding 2^23 rounds to a whole number and leaves it in the mantissa.
        let denormal = (x * 16_777_216.0 + 8_388_608.0).to_bits() & 0x7FFF;
        let normal = round(x.to_bits(), 13).wrapping_sub(112 << 10).min(0x7C00);
        sign | if x < 1.0 / 16_384.0 { denormal } else { normal }
    }

    fn kernels(all: &Kernels) -> &RowKernels<f32> {
        &all.rows_f16
    }
}

impl Word for Bf16 {
    type Real = f32;
    const BYTES: usize = 2;
    const RANGE: std::ops::Range<u32> = 87 << 7..167 << 7;

    #[inline(always)]
    fn bits(bytes: &[u8]) -> u32 {
        u16::from_le_bytes(*chunk(bytes)) as u32
    }

    #[inline(always)]
    fn real(bits: u32) -> f32 {
        f32::from_bits(bits << 16)
    }

    #[inline(always)]
    fn nearest(real: f32) -> u32 {
        round(real.to_bits(), 16)
    }

    fn kernels(all: &Kernels) -> &RowKernels<f32> {
        &all.rows_bf16
    }
}

impl Word for F32 {
    type Real = f64;
    const BYTES: usize = 4;
    const RANGE: std::ops::Range<u32> = 87 << 23..167 << 23;

    #[inline(always)]
    fn bits(bytes: &[u8]) -> u32 {
        u32::from_le_bytes(*chunk(bytes))
    }

    #[inline(always)]
    fn real(bits: u32) -> f64 {
        f32::from_bits(bits) as f64
    }

    #[inline(always)]
    fn nearest(real: f64) -> u32 {
        (real as f32).to_bits()
    }

    fn kernels(all: &Kernels) -> &RowKernels<f64> {
        &all.rows_f32
    }
}

impl Word for Int8 {
    type Real = f32;
    const BYTES: usize = 1;
    const RANGE: std::ops::Range<u32> = 0..256;

    #[inline(always)]
    fn bits(bytes: &[u8]) -> u32 {
        bytes[0] as u32
    }

    #[inline(always)]
    fn real(bits: u32) -> f32 {
        bits as u8 as i8 as f32
    }

    #[inline(always)]
    fn nearest(real: f32) -> u32 {
        real as i8 as u8 as u32
    }

    #[inline(always)]
    fn order(bits: u32) -> u32 {
        bits
    }

    fn kernels(all: &Kernels) -> &RowKernels<f32> {
        &all.rows_int8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_agree_with_another_library_for_every_word() {
        for bits in 0..=u16::MAX {
            let (f, b) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
            if f.is_finite() {
                assert_eq!(F16::real(bits as u32).to_bits(), f.to_f32().to_bits());
                assert_eq!(F16::nearest(f.to_f32()), bits as u32);
            }
            if Bf16::is_moderate(bits as u32) {
                assert_eq!(Bf16::real(bits as u32).to_bits(), b.to_f32().to_bits());
                assert_eq!(Bf16::nearest(b.to_f32()), bits as u32);
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        // Every f32 whose upper half is any word, just below, at and above the ties.
        for upper in 0..=u16::MAX as u32 {
            for lower in [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let x = f32::from_bits(upper << 16 | lower);
                if x.abs() < 65_000.0 && (x == 0.0 || x.abs() > 1e-30) {
                    assert_eq!(F16::nearest(x), half::f16::from_f32(x).to_bits() as u32, "{x:e}");
                }
                if x.abs() < 1e30 && (x == 0.0 || x.abs() > 1e-30) {
                    assert_eq!(Bf16::nearest(x), half::bf16::from_f32(x).to_bits() as u32, "{x:e}");
                }
            }
        }
    }

    #[test]
    fn steps_count_words_between_words() {
        // 1.0 and the words around it, and the two zeros.
        assert_eq!(F16::steps(0x3C00, 0x3C00), 0);
        assert_eq!(F16::steps(0x3BFF, 0x3C00), 1);
        assert_eq!(F16::steps(0x3C01, 0x3C00), 2);
        assert_eq!(F16::steps(0xBC01, 0xBC00), 1);
        assert_eq!(F16::steps(0x8000, 0x0000), 1);
        assert_eq!(F32::steps(0x3F80_0001, 0x3F80_0000), 2);
    }

    #[test]
    fn any_word_is_reached_from_any_prediction() {
        let words = [0u32, 1, 0x3C00, 0x7BFF, 0x7C00, 0x7FFF, 0x8000, 0x8001, 0xBC00, 0xFBFF, 0xFE01, 0xFFFF, 0x1234];
        for (a, b) in words.iter().flat_map(|a| words.map(|b| (*a, b))) {
            assert_eq!(F16::walk(F16::steps(a, b), b), a);
            assert_eq!(Bf16::walk(Bf16::steps(a, b), b), a);
            let (wide_a, wide_b) = (a << 16 | b, b << 16 | a);
            assert_eq!(F32::walk(F32::steps(wide_a, wide_b), wide_b), wide_a);
        }
    }
}
