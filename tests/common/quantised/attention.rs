//! The attention of one head and one query over a cache, as MNN's int8 kernels read it: a block of V at a time, with
//! probabilities of 8 bits.

use super::{Kind, MnnCache, extremes, f32_at, round_up};

/// A family of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub name: &'static str,
    /// Whether codes of probabilities are signed: 0 is then -128, also that of padding.
    pub signed: bool,
    /// Tokens of a tile's pack, to which a block is padded.
    pub pack: usize,
}

pub const READERS: [Reader; 4] = [
    Reader { name: "x86", signed: false, pack: 4 },
    Reader { name: "plain C", signed: true, pack: 4 },
    Reader { name: "sdot or i8mm, f32", signed: true, pack: 4 },
    Reader { name: "sdot or i8mm, f16", signed: true, pack: 8 },
];

/// A query of 8 bits per dim: code*scale + zero.
pub struct Query {
    codes: Vec<i8>,
    scale: f32,
    zero: f32,
}

impl Query {
    pub fn new(q: &[f32]) -> Self {
        let (lo, hi) = extremes(q.iter().copied());
        let (scale, zero) = ((hi - lo) / 255.0, lo + 128.0 * (hi - lo) / 255.0);
        Query { codes: q.iter().map(|q| ((q - zero) / scale).round() as i8).collect(), scale, zero }
    }

    fn dim(&self, d: usize) -> f64 {
        f64::from(f32::from(self.codes[d]) * self.scale + self.zero)
    }

    fn dot(&self, key: &[f32]) -> f64 {
        key.iter().enumerate().map(|(d, k)| self.dim(d) * f64::from(*k)).sum()
    }
}

/// Softmax attention over the tokens that the cache holds, in f64.
pub fn exact(cache: &MnnCache, head: usize, query: &Query) -> Vec<f64> {
    let root = (cache.shape.dims as f64).sqrt();
    let scores: Vec<f64> = (0..cache.n).map(|t| query.dot(&cache.key(head, t)) / root).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = p.iter().sum();
    weighted(cache, head, p.into_iter().enumerate()).iter().map(|out| out / total).collect()
}

/// The sum of V of these tokens and weights.
fn weighted(cache: &MnnCache, head: usize, tokens: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
    let mut out = vec![0.0; cache.shape.dims];
    for (t, p) in tokens {
        out.iter_mut().zip(cache.value(head, t)).for_each(|(out, v)| *out += p * f64::from(v));
    }
    out
}

/// The same as the kernels do it: from codes, key sums and value sums.
pub fn attend(cache: &MnnCache, head: usize, query: &Query, reader: Reader) -> Vec<f64> {
    let (s, mut out) = (cache.shape, vec![0.0; cache.shape.dims]);
    let (mut max, mut total) = (f64::NEG_INFINITY, 0.0);
    for b in 0..cache.n.div_ceil(s.block) {
        let tokens = b * s.block..cache.n.min((b + 1) * s.block);
        let scores: Vec<f64> = tokens.clone().map(|t| score(cache, head, query, t)).collect();
        let before = max;
        max = scores.iter().copied().fold(max, f64::max);
        let update = (before - max).exp();
        let p: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        total = total * update + p.iter().sum::<f64>();
        let block = match s.value {
            Kind::Int8 => int8_block(cache, head, b, &p, reader),
            _ => weighted(cache, head, tokens.zip(p)),
        };
        out.iter_mut().zip(block).for_each(|(out, block)| *out = *out * update + block);
    }
    out.iter().map(|out| out / total).collect()
}

fn score(cache: &MnnCache, head: usize, query: &Query, t: usize) -> f64 {
    let (s, base) = (cache.shape, head * cache.shape.strides().0);
    let root = (s.dims as f64).sqrt();
    if s.key != Kind::Int8 {
        return query.dot(&cache.key(head, t)) / root;
    }
    let codes: i32 =
        (0..s.dims).map(|d| i32::from(query.codes[d]) * i32::from(cache.key[base + s.key_code(t, d)] as i8)).sum();
    let queries: i32 = query.codes.iter().map(|code| i32::from(*code)).sum();
    let scale = f32_at(&cache.key, base + s.key_scale(t));
    let bias = f32_at(&cache.key, base + s.key_scale(t) + 4 * s.unit.h);
    let sum = f32_at(&cache.key_sum, s.key_sum(head, t));
    f64::from(query.scale * (codes as f32 * scale + queries as f32 * bias) + query.zero * sum) / root
}

/// A block of int8 V: sums*scale + sum(p)*bias + zero*valueSum, the sums over all that the kernel visits.
fn int8_block(cache: &MnnCache, head: usize, b: usize, p: &[f64], reader: Reader) -> Vec<f64> {
    let s = cache.shape;
    let zero = if reader.signed { 128.0 } else { 0.0 };
    let mut codes: Vec<f64> = p.iter().map(|p| (p * 255.0).round() - zero).collect();
    let probabilities: f64 = codes.iter().sum();
    codes.resize(round_up(p.len(), reader.pack).min(s.block), -zero);
    (0..s.dims)
        .map(|d| {
            let (scale, bias) = cache.value_scale(head, b, d);
            let code = |u: usize| f64::from(cache.value_code(head, b * s.block + u, d));
            let sums: f64 = codes.iter().enumerate().map(|(u, p)| p * code(u)).sum();
            let value_sum = f64::from(f32_at(&cache.value_sum, s.value_sum(head, b, d)));
            (sums * f64::from(scale) + probabilities * f64::from(bias) + zero * value_sum) / 255.0
        })
        .collect()
}
