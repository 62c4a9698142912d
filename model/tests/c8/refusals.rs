//! Bad input is refused by name, and nothing is half-done.

use super::{f32_bytes, f32_shape};
use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, Status};
use mnnkv_model::c8::{
    CacheShape, LEAST_SCALE, Order, Scales, Symmetry, dequantize, errors, parameters, quantize, ranges,
};

/// INVALID_ARGUMENT with all of these words in its text.
fn refused<T: std::fmt::Debug>(result: Result<T>, words: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    for word in words {
        assert!(error.message().contains(word), "{word:?} is not in: {error}");
    }
}

#[test]
fn calibration_data_that_is_not_finite_is_refused_with_its_place_and_changes_no_range() {
    // Where token 1, head 2, dim 1 is among 3 tokens, 3 heads and 2 dims.
    for (order, place) in [(Order::TokenHeadDim, (3 + 2) * 2 + 1), (Order::HeadTokenDim, (2 * 3 + 1) * 2 + 1)] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let shape = CacheShape::new(Dtype::F32, order, 3, 2, 3).unwrap();
            let mut values = vec![9.0f32; 18];
            values[place] = bad;
            let (mut min, mut max) = (vec![-1.0; 6], vec![1.0; 6]);
            let words = ["token 1, channel 5 (head 2, dim 1)", &bad.to_string()];
            refused(ranges::update(&shape, &f32_bytes(&values), &mut min, &mut max), &words);
            assert_eq!((min, max), (vec![-1.0; 6], vec![1.0; 6]));
            let scales = Scales::new(&[1.0; 6], &[0.0; 6]).unwrap();
            refused(errors(&shape, &f32_bytes(&values), &scales), &words);
        }
    }
}

#[test]
fn ranges_that_are_no_ranges_are_refused() {
    let shape = f32_shape(1, 2, 1);
    for (low, high) in [(1.0, -1.0), (f32::NAN, 1.0), (0.0, f32::INFINITY), (f32::INFINITY, 1.0)] {
        let (mut min, mut max) = (vec![0.0, low], vec![0.0, high]);
        refused(ranges::update(&shape, &f32_bytes(&[1.0, 1.0]), &mut min, &mut max), &["channel 1"]);
        refused(ranges::merge(&mut [0.0; 2], &mut [0.0; 2], &min, &max), &["channel 1"]);
        let (mut scale, mut offset) = (vec![7.0; 2], vec![7.0; 2]);
        let made = parameters(&min, &max, Symmetry::Symmetric, Dtype::F32, &mut scale, &mut offset);
        refused(made, &["channel 1"]);
        assert_eq!((scale, offset), (vec![7.0; 2], vec![7.0; 2]));
    }
    refused(ranges::merge(&mut [0.0; 2], &mut [0.0; 2], &[0.0], &[0.0]), &["2", "1"]);
}

#[test]
fn channels_without_observations_or_too_wide_for_a_scale_are_refused_by_number() {
    let all = [Symmetry::Symmetric, Symmetry::Asymmetric];
    for symmetry in all {
        let (mut min, mut max) = (vec![0.0; 3], vec![0.0; 3]);
        ranges::clear(&mut min, &mut max);
        (min[0], max[0]) = (-1.0, 1.0);
        let (mut scale, mut offset) = (vec![7.0; 3], vec![7.0; 3]);
        let made = parameters(&min, &max, symmetry, Dtype::F32, &mut scale, &mut offset);
        refused(made, &["channel 1", "nothing was observed"]);
        assert_eq!((scale, offset), (vec![7.0; 3], vec![7.0; 3]));
    }
    for (symmetry, dtype, width) in
        [(all[1], Dtype::F32, 3e38), (all[0], Dtype::F16, 1e7), (all[1], Dtype::F16, 1e7), (all[1], Dtype::Bf16, 3e38)]
    {
        let (mut scale, mut offset) = ([7.0; 2], [7.0; 2]);
        let made = parameters(&[0.0, -width], &[1.0, width], symmetry, dtype, &mut scale, &mut offset);
        refused(made, &["channel 1", dtype.name()]);
        assert_eq!((scale, offset), ([7.0; 2], [7.0; 2]));
    }
    refused(parameters(&[0.0], &[1.0], all[0], Dtype::Int8, &mut [0.0], &mut [0.0]), &["INT8"]);
    refused(parameters(&[0.0], &[1.0], all[0], Dtype::F32, &mut [0.0; 2], &mut [0.0]), &["2 scales"]);
}

#[test]
fn scales_that_cannot_divide_and_offsets_that_are_no_codes_are_refused_by_channel() {
    for scale in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40, LEAST_SCALE / 2.0] {
        refused(Scales::new(&[1.0, scale], &[0.0; 2]), &["scale of channel 1", &format!("{scale:e}")]);
    }
    for offset in [0.5, -129.0, 128.0, f32::NAN, f32::INFINITY, 1e-40] {
        refused(Scales::new(&[1.0; 2], &[0.0, offset]), &["offset of channel 1", &offset.to_string()]);
    }
    refused(Scales::new(&[1.0; 2], &[0.0]), &["2 scales", "1 offsets"]);
    assert!(Scales::new(&[LEAST_SCALE, f32::MAX], &[-128.0, 127.0]).is_ok());
}

#[test]
fn lengths_that_do_not_fit_are_refused_before_anything_is_written() {
    let shape = f32_shape(2, 3, 4);
    let good = ([1.0; 6], [0.0; 6]);
    let scales = Scales::new(&good.0, &good.1).unwrap();
    let few = scales.of(0..5);
    let values = vec![0; shape.bytes()];
    let mut codes = vec![55; shape.elements()];
    refused(quantize(&shape, &values[1..], &scales, &mut codes), &["95 bytes", "96 expected"]);
    refused(quantize(&shape, &values, &few, &mut codes), &["5 channels", "6 expected"]);
    refused(quantize(&shape, &values, &scales, &mut codes[1..]), &["23 codes", "24 expected"]);
    assert!(codes.iter().all(|c| *c == 55));
    let mut values = vec![0xEE; shape.bytes()];
    refused(dequantize(&shape, &codes[1..], &scales, &mut values), &["23 codes"]);
    refused(dequantize(&shape, &codes, &few, &mut values), &["5 channels"]);
    refused(dequantize(&shape, &codes, &scales, &mut values[1..]), &["95 bytes"]);
    assert!(values.iter().all(|x| *x == 0xEE));
    refused(errors(&shape, &values[1..], &scales), &["95 bytes"]);
    refused(errors(&shape, &values, &few), &["5 channels"]);
    refused(ranges::update(&shape, &values[1..], &mut [0.0; 6], &mut [0.0; 6]), &["95 bytes"]);
    refused(ranges::update(&shape, &values, &mut [0.0; 5], &mut [0.0; 6]), &["min", "5 channels"]);
    refused(ranges::update(&shape, &values, &mut [0.0; 6], &mut [0.0; 5]), &["max", "5 channels"]);
}

#[test]
fn shapes_without_channels_or_beyond_memory_are_refused() {
    let new = |dtype, heads, dims, tokens| CacheShape::new(dtype, Order::TokenHeadDim, heads, dims, tokens);
    refused(new(Dtype::Int8, 1, 1, 1), &["INT8"]);
    refused(new(Dtype::F16, 0, 1, 1), &["kv_heads is 0"]);
    refused(new(Dtype::F16, 1, 0, 1), &["head_dim is 0"]);
    refused(new(Dtype::F32, 1 << 31, 1 << 30, 1), &["overflow"]);
    refused(new(Dtype::F32, usize::MAX, 2, 0), &["overflow"]);
    assert_eq!(new(Dtype::F32, 2, 3, 0).unwrap().bytes(), 0);
}
