//! The formulas element by element, in f64: a quotient, sum or product of two f32 that is rounded to f64 and then to
//! f32 is the one that is rounded to f32 at once.

use half::{bf16, f16};
use mnnkv::dtype::Dtype;
use mnnkv_model::c8::Order;

/// K or V, seen as `[token][head][dim]` wherever elements lie.
#[derive(Clone, Debug)]
pub struct Brute {
    pub dtype: Dtype,
    pub order: Order,
    pub heads: usize,
    pub dims: usize,
    pub tokens: usize,
}

impl Brute {
    /// Token and channel of an element.
    pub fn place(&self, i: usize) -> (usize, usize) {
        let (row, dim) = (i / self.dims, i % self.dims);
        let (token, head) = match self.order {
            Order::TokenHeadDim => (row / self.heads, row % self.heads),
            Order::HeadTokenDim => (row % self.tokens, row / self.tokens),
        };
        (token, head * self.dims + dim)
    }

    pub fn number(&self, values: &[u8], i: usize) -> f32 {
        let at = |n: usize| &values[i * n..(i + 1) * n];
        match self.dtype {
            Dtype::F16 => f16::from_ne_bytes(at(2).try_into().unwrap()).to_f32(),
            Dtype::Bf16 => bf16::from_ne_bytes(at(2).try_into().unwrap()).to_f32(),
            _ => f32::from_ne_bytes(at(4).try_into().unwrap()),
        }
    }

    pub fn bytes(&self, number: f32) -> Vec<u8> {
        match self.dtype {
            Dtype::F16 => f16::from_f32(number).to_ne_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(number).to_ne_bytes().to_vec(),
            _ => number.to_ne_bytes().to_vec(),
        }
    }

    /// The code before it is clamped; NaN counts as 0.
    pub fn unclamped(value: f32, scale: f32, offset: f32) -> f64 {
        let value = if value.is_nan() { 0.0 } else { f64::from(value) };
        let quotient = f64::from((value / f64::from(scale)) as f32);
        let sum = f64::from((quotient + f64::from(offset)) as f32);
        let (low, over) = (sum.floor(), sum - sum.floor());
        match over {
            _ if sum.is_infinite() => sum,
            _ if over < 0.5 => low,
            _ if over > 0.5 => low + 1.0,
            _ if low % 2.0 == 0.0 => low,
            _ => low + 1.0,
        }
    }

    pub fn codes(&self, values: &[u8], scale: &[f32], offset: &[f32]) -> Vec<i8> {
        let code = |i: usize| {
            let (_, c) = self.place(i);
            Self::unclamped(self.number(values, i), scale[c], offset[c]).clamp(-128.0, 127.0) as i8
        };
        (0..self.heads * self.dims * self.tokens).map(code).collect()
    }

    pub fn values(&self, codes: &[i8], scale: &[f32], offset: &[f32]) -> Vec<u8> {
        let number = |(i, code): (usize, &i8)| {
            let (_, c) = self.place(i);
            ((f64::from(*code) - f64::from(offset[c])) * f64::from(scale[c])) as f32
        };
        codes.iter().enumerate().map(number).flat_map(|x| self.bytes(x)).collect()
    }
}
