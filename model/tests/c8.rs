//! The cache as int8: what exporters' own files say, a brute-force restatement of the formulas, and bad input.

#[path = "c8/brute.rs"]
mod brute;
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "c8/figures.rs"]
mod figures;
#[path = "c8/goldens.rs"]
mod goldens;
#[path = "../../tests/common/npy.rs"]
mod npy;
#[path = "c8/properties.rs"]
mod properties;
#[path = "c8/refusals.rs"]
mod refusals;

use mnnkv::dtype::Dtype;
use mnnkv_model::c8::{CacheShape, Order, Scales, Symmetry, dequantize, parameters, quantize, ranges};

/// Ranges of one batch.
fn ranges_of(shape: &CacheShape, values: &[u8]) -> (Vec<f32>, Vec<f32>) {
    let (mut min, mut max) = (vec![0.0; shape.channels()], vec![0.0; shape.channels()]);
    ranges::clear(&mut min, &mut max);
    ranges::update(shape, values, &mut min, &mut max).unwrap();
    (min, max)
}

fn parameters_of((min, max): &(Vec<f32>, Vec<f32>), symmetry: Symmetry, dtype: Dtype) -> (Vec<f32>, Vec<f32>) {
    let (mut scale, mut offset) = (vec![f32::NAN; min.len()], vec![f32::NAN; min.len()]);
    parameters(min, max, symmetry, dtype, &mut scale, &mut offset).unwrap();
    (scale, offset)
}

fn codes_of(shape: &CacheShape, values: &[u8], scale: &[f32], offset: &[f32]) -> Vec<i8> {
    let mut codes = vec![55; shape.elements()];
    quantize(shape, values, &Scales::new(scale, offset).unwrap(), &mut codes).unwrap();
    codes
}

fn values_of(shape: &CacheShape, codes: &[i8], scale: &[f32], offset: &[f32]) -> Vec<u8> {
    let mut values = vec![0xEE; shape.bytes()];
    dequantize(shape, codes, &Scales::new(scale, offset).unwrap(), &mut values).unwrap();
    values
}

/// Numbers as values of F32.
fn f32_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn f32_shape(heads: usize, dims: usize, tokens: usize) -> CacheShape {
    CacheShape::new(Dtype::F32, Order::TokenHeadDim, heads, dims, tokens).unwrap()
}

#[test]
fn a_worked_example() {
    // Two channels, three tokens to calibrate with, and a token that is beyond what they had.
    let shape = f32_shape(1, 2, 3);
    let calibration = f32_bytes(&[0.5, -4.0, 1.5, 2.0, -0.25, 3.0]);
    let token = f32_bytes(&[0.7, -6.0]);
    let ranges = ranges_of(&shape, &calibration);
    assert_eq!(ranges, (vec![-0.25, -4.0], vec![1.5, 3.0]));

    let (scale, offset) = parameters_of(&ranges, Symmetry::Symmetric, Dtype::F32);
    assert_eq!((&scale[..], &offset[..]), (&[0.011811024, 0.031496063][..], &[0.0, 0.0][..]));
    assert_eq!(codes_of(&shape, &calibration, &scale, &offset), [42, -127, 127, 64, -21, 95]);
    let codes = codes_of(&f32_shape(1, 2, 1), &token, &scale, &offset);
    assert_eq!(codes, [59, -128]);
    assert_eq!(values_of(&f32_shape(1, 2, 1), &codes, &scale, &offset), f32_bytes(&[59.0 * 0.011811024, -4.031496]));

    let (scale, offset) = parameters_of(&ranges, Symmetry::Asymmetric, Dtype::F32);
    assert_eq!((&scale[..], &offset[..]), (&[0.006862745, 0.02745098][..], &[-92.0, 18.0][..]));
    assert_eq!(codes_of(&shape, &calibration, &scale, &offset), [-19, -128, 127, 91, -128, 127]);
    let codes = codes_of(&f32_shape(1, 2, 1), &token, &scale, &offset);
    assert_eq!(codes, [10, -128]);
    let restored = values_of(&f32_shape(1, 2, 1), &codes, &scale, &offset);
    assert_eq!(restored, f32_bytes(&[102.0 * 0.006862745, -146.0 * 0.02745098]));
}
