//! The x86-64 levels. A kernel that gains nothing at a level is that of the level below.

mod avx2;
// The intrinsics are stable since Rust 1.89.
mod avx512;
mod sse2;

use super::{Kernels, Level, PORTABLE};

/// The tables that this CPU can run, lowest first. This is the only way to reach them, so their functions may take the
/// features for granted.
pub(super) fn available() -> impl Iterator<Item = &'static Kernels> {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("fma");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi");
    [(true, &SSE2), (avx2, &AVX2), (avx512, &AVX512)].into_iter().filter_map(|(there, table)| there.then_some(table))
}

static SSE2: Kernels = Kernels {
    level: Level::Sse2,
    split2: sse2::split2,
    split4: sse2::split4,
    merge2: sse2::merge2,
    merge4: sse2::merge4,
    transpose2: sse2::transpose2,
    transpose4: sse2::transpose4,
    delta: sse2::delta,
    xor: sse2::xor,
    undo_delta: sse2::undo_delta,
    undo_xor: sse2::undo_xor,
    next_run: sse2::next_run,
    run_len: sse2::run_len,
    planes1: sse2::planes1,
    planes2: sse2::planes2,
    planes4: sse2::planes4,
    unplanes1: sse2::unplanes1,
    unplanes2: sse2::unplanes2,
    unplanes4: sse2::unplanes4,
    ..PORTABLE
};

static AVX2: Kernels = Kernels {
    level: Level::Avx2,
    split2: avx2::split2,
    split4: avx2::split4,
    merge2: avx2::merge2,
    merge4: avx2::merge4,
    transpose2: avx2::transpose2,
    transpose4: avx2::transpose4,
    delta: avx2::delta,
    xor: avx2::xor,
    undo_delta: avx2::undo_delta,
    undo_xor: avx2::undo_xor,
    repeats: avx2::repeats,
    next_run: avx2::next_run,
    run_len: avx2::run_len,
    planes1: avx2::planes1,
    planes2: avx2::planes2,
    planes4: avx2::planes4,
    unplanes1: avx2::unplanes1,
    unplanes2: avx2::unplanes2,
    unplanes4: avx2::unplanes4,
    sum_f32: avx2::sum_f32,
    sum_f16: avx2::sum_f16,
    sum_bf16: avx2::sum_bf16,
    row_sums_f32: avx2::row_sums_f32,
    row_sums_f16: avx2::row_sums_f16,
    row_sums_bf16: avx2::row_sums_bf16,
    quantize_f32: avx2::quantize_f32,
    quantize_f16: avx2::quantize_f16,
    quantize_bf16: avx2::quantize_bf16,
    dequantize_f32: avx2::dequantize_f32,
    dequantize_f16: avx2::dequantize_f16,
    dequantize_bf16: avx2::dequantize_bf16,
    product: avx2::product,
    ..SSE2
};

static AVX512: Kernels = Kernels {
    level: Level::Avx512,
    split2: avx512::split2,
    split4: avx512::split4,
    merge2: avx512::merge2,
    merge4: avx512::merge4,
    delta: avx512::delta,
    xor: avx512::xor,
    repeats: avx512::repeats,
    next_run: avx512::next_run,
    run_len: avx512::run_len,
    planes1: avx512::planes1,
    planes2: avx512::planes2,
    planes4: avx512::planes4,
    unplanes1: avx512::unplanes1,
    unplanes2: avx512::unplanes2,
    unplanes4: avx512::unplanes4,
    quantize_f32: avx512::quantize_f32,
    quantize_f16: avx512::quantize_f16,
    quantize_bf16: avx512::quantize_bf16,
    dequantize_f32: avx512::dequantize_f32,
    dequantize_f16: avx512::dequantize_f16,
    dequantize_bf16: avx512::dequantize_bf16,
    product: avx512::product,
    ..AVX2
};
