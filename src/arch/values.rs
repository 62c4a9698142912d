//! Values of floating-point types, widened to f32.

/// A type of `N` bytes.
pub(super) trait Value<const N: usize> {
    /// The factor from a widened value to the value.
    const UNIT: f32;

    /// The value divided by [`Value::UNIT`], exactly; infinity and NaN stay what they are.
    fn widen(bytes: [u8; N]) -> f32;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Value<4> for F32 {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn widen(bytes: [u8; 4]) -> f32 {
        f32::from_ne_bytes(bytes)
    }
}

impl Value<2> for Bf16 {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
    }
}

/// The difference of the largest exponents of f32 and f16, in place. Moved by it, infinity and NaN of f16 are infinity
/// and NaN of f32, and numbers are multiplied by 2^112.
const EXPONENT: u32 = (255 - 31) << 23;

impl Value<2> for F16 {
    const UNIT: f32 = f32::from_bits((127 - 112) << 23);

    /// Never computes with a denormal f32: that may be slow, or wrong where the host has them turned off.
    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> f32 {
        /// The least number that is not a denormal of f16.
        const NORMAL: f32 = f32::from_bits(EXPONENT + (1 << 23));
        let half = u32::from(u16::from_ne_bytes(bytes));
        let number = f32::from_bits(((half & 0x7fff) << 13) + EXPONENT);
        // Denormals, which are below NORMAL, got a hidden bit that they do not have, and half of their unit: the value is
        // twice the number, less NORMAL.
        // Selected by sign: a comparison would become a branch in the loops of codes.
        let below = (number - NORMAL).to_bits();
        let number = number + f32::from_bits(below & ((below as i32) >> 31) as u32);
        f32::from_bits(number.to_bits() | (half & 0x8000) << 16)
    }
}

/// The sum of partial sums, a power of two of them, by halves.
#[inline(always)]
pub(super) fn across<const P: usize>(mut sums: [f32; P]) -> f32 {
    let mut half = P / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, exact) = (F16::widen(bits.to_ne_bytes()) * F16::UNIT, f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == exact.to_bits() || ours.is_nan() && exact.is_nan(), "{bits:#x}: {ours} {exact}");
        }
    }
}
