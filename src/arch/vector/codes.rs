//! Rows of F16 to int8 codes and back, with the CPU's conversions of F16, which compilers do not derive from the portable
//! loops.

use super::Floats;
use crate::arch::codes;
use crate::arch::values::F16;

/// The operations of codes and values, beside [`Floats`].
///
/// # Safety
/// As [`Floats`].
pub(in crate::arch) trait Codes: Floats {
    /// Converts with the CPU, whose results do not depend on the host's treatment of denormals.
    unsafe fn load_f16(from: *const u8) -> Self;
    unsafe fn load_codes(from: *const i8) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// Zeros in place of NaN.
    unsafe fn or_zero(self) -> Self;
    /// Rounded to nearest, ties to even.
    unsafe fn store_f16(self, to: *mut u8);
    /// Rounded to nearest, ties to even, and clamped.
    unsafe fn store_codes(self, to: *mut i8);
}

/// # Safety
/// See [`Codes`].
#[inline(always)]
pub(in crate::arch) unsafe fn quantize_f16<V: Codes>(values: &[u8], scale: &[f32], offset: &[f32], codes: &mut [i8]) {
    let columns = codes::columns(values.len() / 2, scale, offset, codes.len());
    let whole = columns - columns % V::LEN;
    for (values, codes) in values.chunks_exact(2 * columns).zip(codes.chunks_exact_mut(columns)) {
        for c in (0..whole).step_by(V::LEN) {
            // SAFETY: c + LEN <= columns, and rows are as long.
            unsafe {
                let steps = V::load_f16(values.as_ptr().add(2 * c)).div(V::load(scale.as_ptr().add(c)));
                steps.or_zero().add(V::load(offset.as_ptr().add(c))).store_codes(codes.as_mut_ptr().add(c));
            }
        }
        if whole < columns {
            let (values, codes) = (&values[2 * whole..], &mut codes[whole..]);
            codes::quantize::<F16, 2>(values, &scale[whole..], &offset[whole..], codes);
        }
    }
}

/// # Safety
/// See [`Codes`].
#[inline(always)]
pub(in crate::arch) unsafe fn dequantize_f16<V: Codes>(codes: &[i8], scale: &[f32], offset: &[f32], values: &mut [u8]) {
    // Symmetric parameters are usual, and subtracting zeros is a fifth of the work.
    if offset.iter().all(|offset| *offset == 0.0) {
        // SAFETY: passed on.
        unsafe { dequantize_rows_f16::<V, false>(codes, scale, offset, values) }
    } else {
        // SAFETY: passed on.
        unsafe { dequantize_rows_f16::<V, true>(codes, scale, offset, values) }
    }
}

/// # Safety
/// See [`Codes`].
#[inline(always)]
unsafe fn dequantize_rows_f16<V: Codes, const OFFSETS: bool>(
    codes: &[i8],
    scale: &[f32],
    offset: &[f32],
    values: &mut [u8],
) {
    let columns = codes::columns(values.len() / 2, scale, offset, codes.len());
    let whole = columns - columns % V::LEN;
    for (codes, values) in codes.chunks_exact(columns).zip(values.chunks_exact_mut(2 * columns)) {
        for c in (0..whole).step_by(V::LEN) {
            // SAFETY: c + LEN <= columns, and rows are as long.
            unsafe {
                let mut steps = V::load_codes(codes.as_ptr().add(c));
                if OFFSETS {
                    steps = steps.sub(V::load(offset.as_ptr().add(c)));
                }
                steps.mul(V::load(scale.as_ptr().add(c))).store_f16(values.as_mut_ptr().add(2 * c));
            }
        }
        if whole < columns {
            let (codes, values) = (&codes[whole..], &mut values[2 * whole..]);
            codes::dequantize::<F16, 2>(codes, &scale[whole..], &offset[whole..], values);
        }
    }
}
