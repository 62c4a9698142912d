//! MNN's caches of `attention_mode` 9 to 14: a generator that appends as MNN does, what an eviction must leave, and readers
//! that attend over the result. Made of MNN's formulas, one byte at a time, and without `mnnkv::layout`: the oracle of every
//! test of quantised caches.
#![allow(dead_code, unused_imports)]

mod attention;
mod golden;
mod places;
mod turbo;

pub use attention::{Query, READERS, Reader, attend, exact};
pub use golden::{Golden, goldens};
pub use places::{Kind, Shape, Unit, kinds, round_up};

use crate::common::Random;
use half::f16;
use std::ops::Range;

/// A layer's cache: the buffers and their side arrays, and tokens `0 .. n`.
#[derive(Clone)]
pub struct MnnCache {
    pub shape: Shape,
    pub n: usize,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// f32, [heads][RU(max, h)].
    pub key_sum: Vec<u8>,
    /// f32, [heads][UP(max, F)][RU(D, h)].
    pub value_sum: Vec<u8>,
    /// The centre c, [heads][D].
    pub key_max: Vec<f32>,
}

pub fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn put_f32(bytes: &mut [u8], at: usize, x: f32) {
    bytes[at..at + 4].copy_from_slice(&x.to_le_bytes());
}

fn put(bytes: &mut [u8], places: &[usize], token: &[u8]) {
    assert_eq!(places.len(), token.len());
    places.iter().zip(token).for_each(|(place, byte)| bytes[*place] = *byte);
}

pub fn get(bytes: &[u8], places: &[usize]) -> Vec<u8> {
    places.iter().map(|place| bytes[*place]).collect()
}

/// The extremes of some numbers.
fn extremes(x: impl Iterator<Item = f32>) -> (f32, f32) {
    x.fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), x| (lo.min(x), hi.max(x)))
}

fn floats(elem: usize, x: &[f32]) -> Vec<u8> {
    match elem {
        2 => x.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn from_floats(elem: usize, bytes: &[u8]) -> Vec<f32> {
    match elem {
        2 => bytes.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
    }
}

impl MnnCache {
    /// A cleared cache. Key sums are not zeroed.
    pub fn new(shape: Shape) -> Self {
        let ((key, value), (key_sum, value_sum)) = (shape.bytes(), shape.sum_bytes());
        MnnCache {
            shape,
            n: 0,
            key: vec![0; key],
            value: vec![0; value],
            key_sum: f32::NAN.to_le_bytes().repeat(shape.heads * key_sum / 4),
            value_sum: vec![0; shape.heads * value_sum],
            key_max: vec![f32::MIN; shape.heads * shape.dims],
        }
    }

    /// Appends tokens, `[heads][m][D]`.
    pub fn append(&mut self, keys: &[f32], values: &[f32]) {
        let (s, old) = (self.shape, self.n);
        let m = keys.len() / (s.heads * s.dims);
        assert!(old + m <= s.max);
        self.n += m;
        for head in 0..s.heads {
            let keys = &keys[head * m * s.dims..][..m * s.dims];
            let values = &values[head * m * s.dims..][..m * s.dims];
            if m > 1 {
                for (i, k) in keys.iter().enumerate() {
                    let c = &mut self.key_max[head * s.dims + i % s.dims];
                    *c = c.max(*k);
                }
            }
            if s.value == Kind::Int8 && old == 0 {
                self.set_value_scales(head, values);
            }
            if s.value == Kind::Int8 && old.is_multiple_of(s.block) {
                (1..s.max.div_ceil(s.block)).for_each(|b| self.copy_value_scales(head, b));
            }
            for (i, (key, value)) in keys.chunks(s.dims).zip(values.chunks(s.dims)).enumerate() {
                self.put_key(head, old + i, key);
                self.put_value(head, old + i, value);
            }
        }
    }

    fn put_key(&mut self, head: usize, t: usize, key: &[f32]) {
        let s = self.shape;
        let bytes = match s.key {
            Kind::Float => floats(s.elem, key),
            Kind::Int8 => {
                let x: Vec<f32> = key.iter().zip(&self.key_max[head * s.dims..]).map(|(k, c)| k - c).collect();
                let (lo, hi) = extremes(x.iter().copied());
                let (scale, bias) = ((hi - lo) / 255.0, lo + 128.0 * (hi - lo) / 255.0);
                let code = |x: f32| ((x - lo) / (hi - lo) * 255.0 - 128.0).round() as i8;
                let codes: Vec<i8> = x.iter().map(|x| code(*x)).collect();
                let sum = codes.iter().fold(0.0, |sum, code| sum + (f32::from(*code) * scale + bias));
                put_f32(&mut self.key_sum, s.key_sum(head, t), sum);
                let codes = codes.into_iter().map(|code| code as u8);
                codes.chain(scale.to_le_bytes()).chain(bias.to_le_bytes()).collect()
            }
            tq => turbo::encode(tq, key),
        };
        put(&mut self.key, &s.key_places(head, t), &bytes);
    }

    fn put_value(&mut self, head: usize, t: usize, value: &[f32]) {
        let s = self.shape;
        let bytes = match s.value {
            Kind::Float => floats(s.elem, value),
            Kind::Int8 => (0..s.dims)
                .map(|d| {
                    let (scale, bias) = self.value_scale(head, 0, d);
                    let code = if scale == 0.0 { 0.0 } else { (value[d] / scale - bias / scale).round() };
                    let code = code.clamp(-128.0, 127.0);
                    let at = s.value_sum(head, t / s.block, d);
                    let sum = f32_at(&self.value_sum, at) + (code * scale + bias);
                    put_f32(&mut self.value_sum, at, sum);
                    code as i8 as u8
                })
                .collect(),
            tq => turbo::encode(tq, value),
        };
        put(&mut self.value, &s.value_places(head, t), &bytes);
    }

    /// Scale and bias of a dim in block `b` of int8 V.
    pub fn value_scale(&self, head: usize, b: usize, d: usize) -> (f32, f32) {
        let at = head * self.shape.strides().1 + self.shape.value_scale(b, d);
        (f32_at(&self.value, at), f32_at(&self.value, at + 4 * self.shape.unit.h))
    }

    fn put_value_scale(&mut self, head: usize, b: usize, d: usize, (scale, bias): (f32, f32)) {
        let at = head * self.shape.strides().1 + self.shape.value_scale(b, d);
        put_f32(&mut self.value, at, scale);
        put_f32(&mut self.value, at + 4 * self.shape.unit.h, bias);
    }

    /// The scales of block 0, from the first append.
    fn set_value_scales(&mut self, head: usize, values: &[f32]) {
        for d in 0..self.shape.dims {
            let (lo, hi) = extremes(values.iter().copied().skip(d).step_by(self.shape.dims));
            let range = hi - lo;
            let pair = if range < 1e-6 { (0.0, hi) } else { (range / 255.0, range / 255.0 * 128.0 + lo) };
            self.put_value_scale(head, 0, d, pair);
        }
    }

    /// Copies the scales of block 0 to block `b`.
    fn copy_value_scales(&mut self, head: usize, b: usize) {
        for d in 0..self.shape.dims {
            self.put_value_scale(head, b, d, self.value_scale(head, 0, d));
        }
    }

    /// Makes room for `max` tokens: heads are prefixes of larger ones.
    pub fn grow(&mut self, max: usize) {
        let mut grown = MnnCache::new(Shape { max, ..self.shape });
        let ((key, value), (key_sum, value_sum)) = (self.shape.head_bytes(), self.shape.sum_bytes());
        for head in 0..self.shape.heads {
            let copy = |from: &[u8], to: &mut [u8], (old, new): (usize, usize), len: usize| {
                to[head * new..][..len].copy_from_slice(&from[head * old..][..len]);
            };
            let (old, new) = (self.shape.strides(), grown.shape.strides());
            copy(&self.key, &mut grown.key, (old.0, new.0), key);
            copy(&self.value, &mut grown.value, (old.1, new.1), value);
            let new = grown.shape.sum_bytes();
            copy(&self.key_sum, &mut grown.key_sum, (key_sum, new.0), key_sum);
            copy(&self.value_sum, &mut grown.value_sum, (value_sum, new.1), value_sum);
        }
        (grown.n, grown.key_max) = (self.n, std::mem::take(&mut self.key_max));
        *self = grown;
    }

    /// Copies token `from` of another cache of these kinds, packed as it may be, to token `to`. Neither value scales nor
    /// value sums change.
    pub fn copy_token(&mut self, of: &MnnCache, from: usize, to: usize) {
        let (s, o) = (self.shape, of.shape);
        for head in 0..s.heads {
            put(&mut self.key, &s.key_places(head, to), &get(&of.key, &o.key_places(head, from)));
            put(&mut self.value, &s.value_places(head, to), &get(&of.value, &o.value_places(head, from)));
            if s.key == Kind::Int8 {
                put_f32(&mut self.key_sum, s.key_sum(head, to), f32_at(&of.key_sum, o.key_sum(head, from)));
            }
        }
    }

    /// Operation A: clears the codes of V of the tokens from `n` on and makes the value sums those of the rest.
    pub fn cut(&mut self, n: usize) {
        let s = self.shape;
        let old = std::mem::replace(&mut self.n, n);
        if s.value != Kind::Int8 {
            return;
        }
        for head in 0..s.heads {
            for t in n..old {
                put(&mut self.value, &s.value_places(head, t), &vec![0; s.dims]);
            }
            for (b, d) in (0..s.max.div_ceil(s.block)).flat_map(|b| (0..s.dims).map(move |d| (b, d))) {
                let (scale, bias) = self.value_scale(head, 0, d);
                let codes = (b * s.block..n.min((b + 1) * s.block)).map(|t| self.value_code(head, t, d));
                let sum = codes.fold(0.0, |sum, code| sum + (f32::from(code) * scale + bias));
                put_f32(&mut self.value_sum, s.value_sum(head, b, d), sum);
            }
        }
    }

    /// The cache of the tokens of these pairs (offset, length) alone: tokens move down and what is behind them stays,
    /// except for what operation A changes.
    pub fn kept(&self, pairs: &[(usize, usize)]) -> MnnCache {
        let mut out = self.clone();
        let tokens = pairs.iter().flat_map(|&(from, len)| from..from + len);
        let kept = tokens.enumerate().map(|(to, from)| out.copy_token(self, from, to)).count();
        out.cut(kept);
        out
    }

    /// Tokens `src .. src + count` as they are now at `dst`, in a cache of `n` tokens afterwards.
    pub fn overwrite(&mut self, src: usize, dst: usize, count: usize, n: usize) {
        let before = self.clone();
        (0..count).for_each(|i| self.copy_token(&before, src + i, dst + i));
        *self = self.mended(dst, count);
        self.n = n;
        self.cut(n);
    }

    /// All tokens of another cache, with their scales.
    pub fn take(&mut self, of: &MnnCache) {
        (0..of.n).for_each(|t| self.copy_token(of, t, t));
        if self.shape.value == Kind::Int8 {
            for i in 0..self.shape.heads * self.shape.dims {
                let (head, d) = (i / self.shape.dims, i % self.shape.dims);
                self.put_value_scale(head, 0, d, of.value_scale(head, 0, d));
            }
        }
        *self = self.mended(0, of.n);
        self.n = of.n;
        self.cut(of.n);
    }

    /// Zeroes tokens and their key sums.
    pub fn zero(&mut self, tokens: Range<usize>) {
        let s = self.shape;
        for (head, t) in (0..s.heads).flat_map(|head| tokens.clone().map(move |t| (head, t))) {
            s.key_places(head, t).into_iter().for_each(|at| self.key[at] = 0);
            s.value_places(head, t).into_iter().for_each(|at| self.value[at] = 0);
            if s.key == Kind::Int8 {
                put_f32(&mut self.key_sum, s.key_sum(head, t), 0.0);
            }
        }
    }

    /// The contents of the buffers after the memory behind the tokens went back to the system: zeros, also in padding dims, and
    /// no scales in whole blocks of V but the first. Side arrays stay.
    pub fn release_tail(&mut self) {
        let (s, (key, value)) = (self.shape, self.shape.padded());
        for (head, t) in (0..s.heads).flat_map(|head| (self.n..s.max).map(move |t| (head, t))) {
            key.key_places(head, t).into_iter().for_each(|at| self.key[at] = 0);
            value.value_places(head, t).into_iter().for_each(|at| self.value[at] = 0);
        }
        if s.value == Kind::Int8 {
            for b in self.n.div_ceil(s.block).max(1)..s.max / s.block {
                (0..s.heads * s.dims).for_each(|i| self.put_value_scale(i / s.dims, b, i % s.dims, (0.0, 0.0)));
            }
        }
    }

    /// Fills an empty cache with noise where it may hold anything: lanes and gaps between heads, but not int8 V.
    pub fn fill_free_bytes(&mut self, random: &mut Random) {
        let (s, (key, value)) = (self.shape, self.shape.padded());
        let lanes = |kind: Kind, float: usize| match kind {
            Kind::Float => round_up(s.max, float),
            Kind::Int8 => round_up(s.max, s.unit.h),
            _ => s.max,
        };
        let values = if s.value == Kind::Int8 { 0 } else { lanes(s.value, s.block) };
        let ((key_bytes, value_bytes), (key_stride, value_stride)) = (s.head_bytes(), s.strides());
        let mut noise = |bytes: &mut [u8], places: &mut dyn Iterator<Item = usize>| {
            places.for_each(|place| bytes[place] = random.bytes(1)[0]);
        };
        for head in 0..s.heads {
            noise(&mut self.key, &mut (0..lanes(s.key, s.pack.1)).flat_map(|t| key.key_places(head, t)));
            noise(&mut self.value, &mut (0..values).flat_map(|t| value.value_places(head, t)));
        }
        for head in 1..s.heads {
            noise(&mut self.key, &mut ((head - 1) * key_stride + key_bytes..head * key_stride));
            noise(&mut self.value, &mut ((head - 1) * value_stride + value_bytes..head * value_stride));
        }
    }

    /// Operation B: the blocks of V of the appended tokens `begin .. begin + count` get the scales of block 0.
    pub fn mended(&self, begin: usize, count: usize) -> MnnCache {
        let mut out = self.clone();
        if self.shape.value == Kind::Int8 && count > 0 {
            let last = (begin + count - 1) / self.shape.block;
            for head in 0..self.shape.heads {
                ((begin / self.shape.block).max(1)..=last).for_each(|b| out.copy_value_scales(head, b));
            }
        }
        out
    }

    fn value_code(&self, head: usize, t: usize, d: usize) -> i8 {
        self.value[head * self.shape.strides().1 + self.shape.value_code(t, d)] as i8
    }

    /// K of a token as it is read, which is without the centre c.
    pub fn key(&self, head: usize, t: usize) -> Vec<f32> {
        let s = self.shape;
        let bytes = get(&self.key, &s.key_places(head, t));
        match s.key {
            Kind::Float => from_floats(s.elem, &bytes),
            Kind::Int8 => {
                let (scale, bias) = (f32_at(&bytes, s.dims), f32_at(&bytes, s.dims + 4));
                bytes[..s.dims].iter().map(|code| f32::from(*code as i8) * scale + bias).collect()
            }
            tq => turbo::decode(tq, &bytes),
        }
    }

    /// V of a token as it was coded: with the scales of block 0.
    pub fn value(&self, head: usize, t: usize) -> Vec<f32> {
        let s = self.shape;
        let bytes = get(&self.value, &s.value_places(head, t));
        match s.value {
            Kind::Float => from_floats(s.elem, &bytes),
            Kind::Int8 => (0..s.dims)
                .map(|d| {
                    let (scale, bias) = self.value_scale(head, 0, d);
                    f32::from(bytes[d] as i8) * scale + bias
                })
                .collect(),
            tq => turbo::decode(tq, &bytes),
        }
    }
}

/// Compares all that a reader may read of two caches of one shape, and names the first difference. Sums may differ by
/// `tolerance`, relative; 0 compares their bits.
pub fn live_bytes_equal(actual: &MnnCache, expected: &MnnCache, tolerance: f32) -> Result<(), String> {
    let (s, n) = (expected.shape, expected.n);
    if (actual.shape, actual.n) != (s, n) {
        return Err(format!("{} tokens of {:?}; {n} of {s:?} expected", actual.n, actual.shape));
    }
    let bytes = |name: &str, (a, e): (&[u8], &[u8]), head: usize, t: usize, places: &[usize]| match places
        .iter()
        .position(|place| a[*place] != e[*place])
    {
        Some(i) => {
            let at = places[i];
            Err(format!("{name}: head {head}, token {t}, byte {i} of the token, at {at}: {} for {}", a[at], e[at]))
        }
        None => Ok(()),
    };
    let sum = |name: &str, place: [usize; 3], a: f32, e: f32| match a {
        _ if a.to_bits() == e.to_bits() || (a - e).abs() <= tolerance * e.abs() => Ok(()),
        _ => Err(format!("{name}: [head, token or block, dim] {place:?}: {a} for {e}")),
    };
    for head in 0..s.heads {
        for t in 0..n {
            bytes("key", (&actual.key, &expected.key), head, t, &s.key_places(head, t))?;
            bytes("value", (&actual.value, &expected.value), head, t, &s.value_places(head, t))?;
            if s.key == Kind::Int8 {
                let at = s.key_sum(head, t);
                sum("key_sum", [head, t, 0], f32_at(&actual.key_sum, at), f32_at(&expected.key_sum, at))?;
            }
        }
        if s.value != Kind::Int8 {
            continue;
        }
        for t in n..round_up(n, s.block) {
            if let Some(at) = s.value_places(head, t).into_iter().find(|at| actual.value[*at] != 0) {
                return Err(format!("value behind the tokens: head {head}, token {t}, at {at}: {}", actual.value[at]));
            }
        }
        for (b, d) in (0..s.max.div_ceil(s.block)).flat_map(|b| (0..s.dims).map(move |d| (b, d))) {
            let (at, live) = (s.value_sum(head, b, d), b * s.block < n);
            let expected_sum = if live { f32_at(&expected.value_sum, at) } else { 0.0 };
            sum("value_sum", [head, b, d], f32_at(&actual.value_sum, at), expected_sum)?;
            if live {
                let ((scale, bias), e) = (actual.value_scale(head, b, d), expected.value_scale(head, b, d));
                sum("value scale", [head, b, d], scale, e.0)?;
                sum("value bias", [head, b, d], bias, e.1)?;
            }
        }
    }
    Ok(())
}
