//! Scores of single tokens by their keys and values, without attention.
//!
//! The score of a token is the mean over the KV heads of two ranks: of the key's distance from the mean direction of the keys
//! so far (Park et al. 2025, "KeyDiff"), and of the norm of its value. The numbers that are ranked are computed once, when a
//! token is appended: later its words may be in the store.

use crate::status::Result;
use crate::sys::memory;

/// The numbers of all tokens of a layer; by default of one without tokens.
#[derive(Debug, Default)]
pub struct TokenScores {
    /// Tokens of the cache.
    len: u32,
    /// Numbers of a token: 0 until the first token.
    width: usize,
    /// `[token][head]`: minus the cosine of the key and the mean direction, and the norm of the value. Only tokens of a file
    /// have none, until its first step.
    tokens: Vec<[f32; 2]>,
    /// `[head][dim]`: the sum of the unit keys of all tokens so far, evicted ones included.
    anchors: Vec<f64>,
}

/// Rows of some tokens, `[head][token][dim]`.
#[derive(Clone, Copy, Debug)]
pub struct TokenRows<'a> {
    /// KV heads.
    pub heads: usize,
    /// Elements of a row.
    pub dims: usize,
    /// K, turned back to position 0 where the rotation is known.
    pub keys: &'a [f32],
    /// V.
    pub values: &'a [f32],
}

/// Numbers of tokens to come, for [`TokenScores::take`].
#[derive(Debug)]
pub struct NewTokens {
    width: usize,
    tokens: Vec<[f32; 2]>,
    anchors: Vec<f64>,
}

impl TokenScores {
    /// Scores of `kv_len` tokens that have no numbers yet.
    pub fn unknown(kv_len: u32) -> Self {
        TokenScores { len: kv_len, ..TokenScores::default() }
    }

    /// Drops all tokens. Retains the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.anchors.clear();
        (self.len, self.width) = (0, 0);
    }

    /// The first tokens, which have numbers.
    pub fn known(&self) -> u32 {
        self.tokens.len().checked_div(self.width).unwrap_or(0) as u32
    }

    /// The number of last tokens that have no score.
    pub fn unscored(&self) -> u32 {
        self.len - self.known()
    }

    /// Begins the numbers of `count` tokens behind the known ones.
    pub fn begin(&mut self, heads: usize, dims: usize, count: usize) -> Result<NewTokens> {
        let mut new = NewTokens { width: heads, tokens: Vec::new(), anchors: memory::copied(&self.anchors)? };
        memory::resize(&mut new.anchors, heads * dims)?;
        memory::reserve(&mut new.tokens, heads * count)?;
        memory::reserve_amortized(&mut self.tokens, heads * count)?;
        Ok(new)
    }

    /// Takes the numbers of a cache of `kv_len` tokens, for which [`TokenScores::begin`] has made room. Cannot fail.
    pub fn take(&mut self, new: NewTokens, kv_len: u32) {
        (self.len, self.width, self.anchors) = (kv_len, new.width, new.anchors);
        #[expect(clippy::disallowed_methods, reason = "begin has reserved room")]
        self.tokens.extend_from_slice(&new.tokens);
    }

    /// The scores once all tokens but those of `pairs` (physical offset, length; ascending) are evicted.
    pub fn kept(&self, pairs: &[[i32; 2]]) -> Result<Self> {
        let width = self.width;
        let mut kept = TokenScores { width, anchors: memory::copied(&self.anchors)?, ..TokenScores::default() };
        memory::reserve(&mut kept.tokens, width * pairs.iter().map(|pair| pair[1] as usize).sum::<usize>())?;
        for [at, count] in pairs.iter().map(|pair| pair.map(|number| number as u32)) {
            let end = (at + count).min(self.known());
            memory::extend(&mut kept.tokens, &self.tokens[width * at.min(end) as usize..width * end as usize])?;
            kept.len += count;
        }
        Ok(kept)
    }

    /// Returns `[block]`: the mean score of each block of `block_tokens` tokens. Tokens without a score have 0.
    pub fn ranking(&self, block_tokens: u32) -> Result<Vec<f32>> {
        let (known, width) = (self.known() as usize, self.width.max(1));
        let mut ranks = memory::filled(0u64, known)?;
        let mut order = memory::filled(0u64, known)?;
        for at in 0..2 * width {
            let number = |token: usize| self.tokens[width * token + at / 2][at % 2];
            add_ranks(&mut ranks, &mut order, number);
        }
        let most = (2 * width * known.saturating_sub(1).max(1)) as f64;
        let blocks = (0..self.len).step_by(block_tokens as usize).map(|begin| {
            let end = begin.saturating_add(block_tokens).min(self.len);
            let tokens = known.min(begin as usize)..known.min(end as usize);
            (ranks[tokens].iter().sum::<u64>() as f64 / most / f64::from(end - begin)) as f32
        });
        memory::collect(blocks)
    }
}

impl NewTokens {
    /// Reads the next tokens, which are compared with the mean direction of all up to them.
    pub fn see(&mut self, rows: &TokenRows<'_>) -> Result<()> {
        let TokenRows { heads, dims, keys, values } = *rows;
        let (first, count) = (self.tokens.len(), keys.len() / (heads * dims));
        memory::resize(&mut self.tokens, first + heads * count)?;
        let mut mean = memory::filled(0f32, dims)?;
        for (head, anchor) in self.anchors.chunks_exact_mut(dims).enumerate() {
            let rows = head * count * dims..(head + 1) * count * dims;
            let rows = || keys[rows.clone()].chunks_exact(dims).zip(values[rows.clone()].chunks_exact(dims));
            mean.fill(0.0);
            for (token, (key, value)) in rows().enumerate() {
                let inverse = inverse(dot(key, key).sqrt());
                if inverse > 0.0 {
                    mean.iter_mut().zip(key).for_each(|(sum, key)| *sum += key * inverse);
                }
                self.tokens[first + token * heads + head] = [-inverse, dot(value, value).sqrt()];
            }
            anchor.iter_mut().zip(&mean).for_each(|(anchor, sum)| *anchor += f64::from(*sum));
            mean.iter_mut().zip(&*anchor).for_each(|(mean, sum)| *mean = *sum as f32);
            let factor = inverse(dot(&mean, &mean).sqrt());
            for (token, (key, _)) in rows().enumerate() {
                self.tokens[first + token * heads + head][0] *= dot(key, &mean) * factor;
            }
        }
        Ok(())
    }
}

/// The inverse of a length; 0 where there is no direction: zeros, or numbers that are not finite.
fn inverse(length: f32) -> f32 {
    if length > 0.0 && length < f32::INFINITY { 1.0 / length } else { 0.0 }
}

/// Adds to each token the rank of its number, from 0 for the lowest. NaN is the lowest, and of equal numbers the later.
/// `order` is working memory of the same length.
fn add_ranks(ranks: &mut [u64], order: &mut [u64], number: impl Fn(usize) -> f32) {
    for (token, key) in order.iter_mut().enumerate() {
        let number = number(token);
        let bits = (number + 0.0).to_bits();
        let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        let ascending = if number.is_nan() { 0 } else { ascending };
        *key = u64::from(ascending) << 32 | u64::from(!(token as u32));
    }
    order.sort_unstable();
    order.iter().enumerate().for_each(|(rank, key)| ranks[!(*key as u32) as usize] += rank as u64);
}

/// The dot product, in lanes that compile to SIMD.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    const WIDTH: usize = 16;
    let (left, last_left) = left.as_chunks::<WIDTH>();
    let (right, last_right) = right.as_chunks::<WIDTH>();
    let mut lanes = [0f32; WIDTH];
    for (left, right) in left.iter().zip(right) {
        lanes.iter_mut().zip(left.iter().zip(right)).for_each(|(lane, (left, right))| *lane += left * right);
    }
    let last: f32 = last_left.iter().zip(last_right).map(|(left, right)| left * right).sum();
    last + lanes.iter().sum::<f32>()
}
