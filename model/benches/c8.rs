//! A cache of 8 heads x 128 x 4,096 tokens as int8 and back, beside memcpy of the bytes that go in and a loop over scalars.
//!
//! Codes and values are checked against the scalar
//! loop, to the bit, before anything is timed.

#[path = "../../benches/common/mod.rs"]
mod common;

use common::{Random, Rivals, Table, cells};
use half::{bf16, f16};
use mnnkv::dtype::Dtype;
use mnnkv_model::c8::{CacheShape, Order, Scales, dequantize, quantize};
use std::hint::black_box;

const HEADS: usize = 8;
const DIMS: usize = 128;
const TOKENS: usize = 4096;
const CHANNELS: usize = HEADS * DIMS;

/// A plain loop for `[token][head][dim]`.
trait Scalar: Copy {
    const DTYPE: Dtype;
    fn of(number: f32) -> Self;
    fn number(self) -> f32;
    fn bytes(self) -> Vec<u8>;
}

macro_rules! scalar {
    ($type:ty, $dtype:ident, $of:expr, $number:expr) => {
        impl Scalar for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline(always)]
            fn of(number: f32) -> Self {
                $of(number)
            }
            #[inline(always)]
            fn number(self) -> f32 {
                $number(self)
            }
            fn bytes(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
        }
    };
}
scalar!(f16, F16, f16::from_f32, f16::to_f32);
scalar!(bf16, Bf16, bf16::from_f32, bf16::to_f32);
scalar!(f32, F32, |x| x, |x| x);

fn scalar_codes<T: Scalar>(values: &[T], scale: &[f32], offset: &[f32], codes: &mut [i8]) {
    for (i, (code, value)) in codes.iter_mut().zip(values).enumerate() {
        let channel = i % CHANNELS;
        let steps = value.number() / scale[channel] + offset[channel];
        *code = steps.round_ties_even().clamp(-128.0, 127.0) as i8;
    }
}

fn scalar_values<T: Scalar>(codes: &[i8], scale: &[f32], offset: &[f32], values: &mut [T]) {
    for (i, (value, code)) in values.iter_mut().zip(codes).enumerate() {
        let channel = i % CHANNELS;
        *value = T::of((f32::from(*code) - offset[channel]) * scale[channel]);
    }
}

/// `offsets`: how many different ones there are; 1 is symmetric.
fn bench<T: Scalar>(table: &mut Table, offsets: usize) {
    let n = CHANNELS * TOKENS;
    let mut random = Random(5);
    let numbers: Vec<T> = (0..n).map(|_| T::of((random.below(20_001) as f32 - 10_000.0) / 2500.0)).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.bytes()).collect();
    let scale: Vec<f32> = (0..CHANNELS).map(|c| 0.02 + c as f32 * 1e-5).collect();
    let offset: Vec<f32> = (0..CHANNELS).map(|c| (c % offsets) as f32).collect();
    let scales = Scales::new(&scale, &offset).unwrap();
    let name = format!("{}{}", T::DTYPE.name(), if offsets > 1 { " with offsets" } else { "" });

    let (mut codes, mut other_codes, mut restored) = (vec![0; n], vec![0; n], vec![0; bytes.len()]);
    let mut other_values = numbers.clone();
    scalar_codes(&numbers, &scale, &offset, &mut other_codes);
    scalar_values(&other_codes, &scale, &offset, &mut other_values);
    let expected: Vec<u8> = other_values.iter().flat_map(|x| x.bytes()).collect();

    let (mut copied, mut copied_codes) = (vec![0; bytes.len()], vec![0; n]);
    let shape = CacheShape::new(T::DTYPE, Order::TokenHeadDim, HEADS, DIMS, TOKENS).unwrap();
    quantize(&shape, &bytes, &scales, &mut codes).unwrap();
    assert!(codes == other_codes, "codes");
    dequantize(&shape, &codes, &scales, &mut restored).unwrap();
    assert!(restored == expected, "values");
    let medians = Rivals::new()
        .add("quantize", || quantize(&shape, &bytes, &scales, &mut codes).unwrap())
        .add("scalar loop", || scalar_codes(&numbers, &scale, &offset, &mut other_codes))
        .add("memcpy", || black_box(&mut copied).copy_from_slice(black_box(&bytes)))
        .run(1500);
    table.row([format!("{name} to int8")].into_iter().chain(cells(bytes.len(), &medians)));
    let medians = Rivals::new()
        .add("dequantize", || dequantize(&shape, &codes, &scales, &mut restored).unwrap())
        .add("scalar loop", || scalar_values(&codes, &scale, &offset, &mut other_values))
        .add("memcpy", || black_box(&mut copied_codes).copy_from_slice(black_box(&codes)))
        .run(1500);
    table.row([format!("int8 to {name}")].into_iter().chain(cells(n, &medians)));
}

fn main() {
    let mut table = Table::new("c8", "one thread", &["direction", "MB/s", "x scalar loop", "x memcpy"]);
    bench::<f16>(&mut table, 1);
    bench::<f16>(&mut table, 5);
    bench::<bf16>(&mut table, 1);
    bench::<f32>(&mut table, 1);
    table.print();
}
