//! AVX-512, where it pays: attention, sketches, and products of matrices.

use super::avx2;
use crate::arch::level::{kernel, level};
use crate::arch::vector::{self, Floats, operations};
use crate::arch::{attend, estimates};
use core::arch::x86_64::*;

level! {
    /// AVX-512 F, BW, VL, VBMI, VBMI2 and VNNI, which every CPU with VBMI2 has. The intrinsics are stable since Rust 1.89.
    Avx512: is_x86_feature_detected ["avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx2", "f16c", "fma", "popcnt", "bmi2"], below avx2::KERNELS;
    kernels: {
        estimates: estimates = estimates::avx512::Floats16;
        attend: attend = attend::avx512::Vnni512;
        // 24 sums, two vectors of B and one of A, of 32 registers.
        product: product = vector::product::<__m512, 12, 2, 1>;
    }
}

/// Attention over rows of a host's own cache.
pub(in crate::arch) fn row_kernels(_: Avx512) -> &'static attend::rows::RowKernels {
    static ROWS: attend::rows::RowKernels =
        kernel!(["avx512f", "avx512bw", "avx512vl", "avx2", "f16c", "fma"] attend_rows estimates::avx512::Floats16);
    &ROWS
}

impl Floats for __m512 {
    const LEN: usize = size_of::<Self>() / size_of::<f32>();

    operations! {
        fn zero() -> Self = _mm512_setzero_ps();
        fn load(from: *const f32) -> Self = _mm512_loadu_ps(from);
        fn store(self, to: *mut f32) = _mm512_storeu_ps(to, self);
        fn repeat(from: *const f32) -> Self = _mm512_set1_ps(*from);
        fn add_product(self, a: Self, b: Self) -> Self = _mm512_fmadd_ps(a, b, self);
        fn add(self, other: Self) -> Self = _mm512_add_ps(self, other);
    }
}
