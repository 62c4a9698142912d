//! C8: any shape, values and parameters.

use super::given::Given;
use mnnkv::dtype::Dtype;
use mnnkv_model::c8::{CacheShape, Order, Scales, Symmetry, dequantize, errors, parameters, quantize, ranges};

/// Refused, or codes whose values are within half a step of those that were given.
pub fn c8(data: &[u8]) {
    let mut given = Given::new(data);
    let dtype = given.pick(&[Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::Int8]);
    let order = given.pick(&[Order::TokenHeadDim, Order::HeadTokenDim]);
    let lengths = [given.below(5), given.below(9), given.below(20)];
    let Ok(shape) = CacheShape::new(dtype, order, lengths[0], lengths[1], lengths[2]) else { return };
    let channels = shape.channels();
    let symmetry = given.pick(&[Symmetry::Symmetric, Symmetry::Asymmetric]);
    let mut of_scales: Vec<(f32, f32)> = Vec::new();
    if given.flag() {
        of_scales = (0..channels).map(|_| (given.float(), f32::from(given.byte() as i8))).collect();
    }
    let mut values = given.rest().to_vec();
    values.resize(shape.bytes(), 1);
    let (mut min, mut max) = (vec![0.0; channels], vec![0.0; channels]);
    ranges::clear(&mut min, &mut max);
    let observed = ranges::update(&shape, &values, &mut min, &mut max);
    let (mut scale, mut offset): (Vec<f32>, Vec<f32>) = of_scales.iter().copied().unzip();
    let is_own = scale.is_empty();
    if is_own {
        (scale, offset) = (vec![0.0; channels], vec![0.0; channels]);
        if observed.is_err() || parameters(&min, &max, symmetry, Dtype::F32, &mut scale, &mut offset).is_err() {
            return;
        }
    }
    let Ok(scales) = Scales::new(&scale, &offset) else { return assert!(!is_own, "own parameters are refused") };
    let mut codes = vec![0; shape.elements()];
    if quantize(&shape, &values, &scales, &mut codes).is_err() {
        return assert!(observed.is_err(), "finite values are refused");
    }
    let mut back = vec![0; shape.bytes()];
    if dequantize(&shape, &codes, &scales, &mut back).is_err() {
        return;
    }
    if let Ok(found) = errors(&shape, &values, &scales) {
        assert!(found.worst_channel() < channels);
    }
    if is_own && dtype == Dtype::F32 {
        let channel = |at: usize| match order {
            Order::TokenHeadDim => at % channels,
            Order::HeadTokenDim => at / (lengths[1] * lengths[2].max(1)) * lengths[1] + at % lengths[1],
        };
        let numbers = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect::<Vec<_>>();
        for (at, (value, back)) in numbers(&values).into_iter().zip(numbers(&back)).enumerate() {
            let (value, back, step) = (f64::from(value), f64::from(back), f64::from(scale[channel(at)]));
            // Half a step by rounding, half by the offset, and what f32 rounds. Beyond the greatest number: infinite.
            let beyond = back.is_infinite() && value.abs() + 1.01 * step > f64::from(f32::MAX);
            assert!(beyond || (value - back).abs() <= 1.01 * step, "{value} became {back} by steps of {step}");
        }
    }
}
