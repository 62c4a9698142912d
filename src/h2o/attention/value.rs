//! Values of a tile as f32, without branches, so that loops over them become vectors.

/// A type of `N` bytes.
pub(super) trait Value<const N: usize> {
    /// What a widened 1 is to be multiplied with to get 1.
    const UNIT: f32;
    /// So many values of at most 1 have a sum in f32.
    const MAX_RUN: usize;
    /// The value divided by [`Value::UNIT`], exactly; infinity and NaN stay what they are.
    fn widen(bytes: [u8; N]) -> f32;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Value<4> for F32 {
    const UNIT: f32 = 1.0;
    const MAX_RUN: usize = usize::MAX;

    #[inline(always)]
    fn widen(bytes: [u8; 4]) -> f32 {
        f32::from_ne_bytes(bytes)
    }
}

impl Value<2> for Bf16 {
    const UNIT: f32 = 1.0;
    const MAX_RUN: usize = usize::MAX;

    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
    }
}

/// What the largest exponent of f32 is more than that of f16, in place. Moved by so much, infinity and NaN of f16 are
/// infinity and NaN of f32, and numbers are 2^112 times what they were.
const EXPONENT: u32 = (255 - 31) << 23;

impl Value<2> for F16 {
    const UNIT: f32 = f32::from_bits((127 - 112) << 23);
    const MAX_RUN: usize = 1 << 15;

    /// Never computes with a denormal f32: that may be slow, or wrong where the host has them turned off.
    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> f32 {
        /// The least number that is not a denormal of f16.
        const NORMAL: f32 = f32::from_bits(EXPONENT + (1 << 23));
        let half = u32::from(u16::from_ne_bytes(bytes));
        let number = f32::from_bits(((half & 0x7fff) << 13) + EXPONENT);
        // Denormals got a hidden bit that they do not have, and half of their unit: they should be twice that, less
        // NORMAL. They are what is below it.
        let below = number - NORMAL;
        let number = number + if below < 0.0 { below } else { 0.0 };
        f32::from_bits(number.to_bits() | (half & 0x8000) << 16)
    }
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
