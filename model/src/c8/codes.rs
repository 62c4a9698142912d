//! Conversions between values and codes.

use super::shape::Part;
use super::{CacheShape, Scales};
use mnnkv::arch;
use mnnkv::dtype::Dtype;
use mnnkv::status::Result;

/// Converts values to codes, `clamp(rint(value / scale + offset), -128, 127)`, in the order of the values.
///
/// Values outside the range of codes saturate, infinities included. NaN becomes the code of 0. The result depends
/// neither on the CPU level nor on the host's treatment of denormals. Lengths are checked before the first write.
pub fn quantize(shape: &CacheShape, values: &[u8], scales: &Scales, codes: &mut [i8]) -> Result<()> {
    shape.check_values(values)?;
    shape.check_codes(codes)?;
    shape.check_channels("scales", scales.scale.len())?;
    let kernels = arch::model_kernels();
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

/// Converts codes to values, `(code - offset) * scale` in f32 rounded to the element type, ties to even, in the order
/// of the codes.
///
/// Results above the range of the type become infinite: in F16 with scales over 256, in F32 where a value is within a
/// scale of its greatest. The result depends neither on the CPU level nor on the host's treatment of denormals. Lengths
/// are checked before the first write.
pub fn dequantize(shape: &CacheShape, codes: &[i8], scales: &Scales, values: &mut [u8]) -> Result<()> {
    shape.check_codes(codes)?;
    shape.check_values(values)?;
    shape.check_channels("scales", scales.scale.len())?;
    let kernels = arch::model_kernels();
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
