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
