//! Values to codes and back.

use super::shape::Part;
use super::{CacheShape, Scales};
use mnnkv::arch;
use mnnkv::dtype::Dtype;
use mnnkv::status::Result;

/// Turns values into codes, `clamp(rint(value / scale + offset), -128, 127)`, in the order of the values.
///
/// What is beyond the range of codes saturates, infinities too; NaN gets the code of 0. The same at every CPU level,
/// whatever the host does about denormals. All lengths are checked before the first code is written.
pub fn quantize(shape: &CacheShape, values: &[u8], scales: &Scales, codes: &mut [i8]) -> Result<()> {
    shape.check_values(values)?;
    shape.check_codes(codes)?;
    shape.check_channels("scales", scales.scale.len())?;
    let kernels = arch::kernels();
    let kernel = match shape.dtype() {
        Dtype::F16 => kernels.quantize_f16,
        Dtype::Bf16 => kernels.quantize_bf16,
        // No shape has INT8.
        Dtype::F32 | Dtype::Int8 => kernels.quantize_f32,
    };
    for Part { channels, elements } in shape.parts() {
        let Scales { scale, offset } = scales.of(channels);
        kernel(&values[shape.bytes_of(&elements)], scale, offset, &mut codes[elements]);
    }
    Ok(())
}

/// Turns codes into values, `(code - offset) * scale` in f32 rounded to the element type to nearest, ties to even, in
/// the order of the codes.
///
/// What is beyond the largest number of the type becomes infinite, as the rounding of IEEE 754 has it: in F16 that
/// takes a scale over 256. The same at every CPU level, whatever the host does about denormals. All lengths are checked
/// before the first value is written.
pub fn dequantize(shape: &CacheShape, codes: &[i8], scales: &Scales, values: &mut [u8]) -> Result<()> {
    shape.check_codes(codes)?;
    shape.check_values(values)?;
    shape.check_channels("scales", scales.scale.len())?;
    let kernels = arch::kernels();
    let kernel = match shape.dtype() {
        Dtype::F16 => kernels.dequantize_f16,
        Dtype::Bf16 => kernels.dequantize_bf16,
        // No shape has INT8.
        Dtype::F32 | Dtype::Int8 => kernels.dequantize_f32,
    };
    for Part { channels, elements } in shape.parts() {
        let Scales { scale, offset } = scales.of(channels);
        kernel(&codes[elements.clone()], scale, offset, &mut values[shape.bytes_of(&elements)]);
    }
    Ok(())
}
