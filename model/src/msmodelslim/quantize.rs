//! The format's arithmetic on one number, in f32 in the order of the formulas, equal on every machine.

/// The code of a number, `clamp(round(x / scale + offset), -128, 127)`, rounded half to even. NaN gives 0.
pub fn quantize(x: f32, scale: f32, offset: f32) -> i8 {
    (x / scale + offset).round_ties_even().clamp(-128.0, 127.0) as i8
}

/// The number of a code.
pub fn dequantize(code: i8, scale: f32, offset: f32) -> f32 {
    (f32::from(code) - offset) * scale
}
