//! Byte planes and what is done to them before ZSTD. Every function maps slices to slices.

use super::options::Predictor;
use super::stream::Shape;

/// The high and the low bytes of words.
#[derive(Default)]
pub struct Planes {
    pub hi: Vec<u8>,
    pub lo: Vec<u8>,
}

impl Planes {
    pub fn reserve(&mut self, words: usize) -> Result<(), String> {
        let reserved = self.hi.try_reserve_exact(words).and_then(|()| self.lo.try_reserve_exact(words));
        reserved.map_err(|_| format!("no memory for a tensor of {words} words"))
    }

    /// Appends little-endian words of two bytes.
    pub fn append(&mut self, words: &[u8]) {
        self.lo.extend(words.chunks_exact(2).map(|word| word[0]));
        self.hi.extend(words.chunks_exact(2).map(|word| word[1]));
    }
}

/// Writes the output of a predictor on `block`, whole tokens, to `out` of the same length.
pub fn predict(predictor: Predictor, block: &[u8], shape: Shape, out: &mut [u8]) {
    match predictor {
        Predictor::Raw => out.copy_from_slice(block),
        Predictor::DeltaSeq => by_token(block, shape.row, out, u8::wrapping_sub),
        Predictor::XorSeq => by_token(block, shape.row, out, |byte, before| byte ^ before),
        Predictor::PairDelta => pair_delta(block, shape.dim, out),
        Predictor::PairDeltaDeltaSeq => {
            pair_delta(block, shape.dim, out);
            // From the last token on, so that each still finds its predecessor.
            for token in (1..out.len() / shape.row).rev() {
                let (before, rest) = out.split_at_mut(token * shape.row);
                let before = &before[(token - 1) * shape.row..];
                rest[..shape.row].iter_mut().zip(before).for_each(|(byte, before)| *byte = byte.wrapping_sub(*before));
            }
        }
    }
}

fn by_token(block: &[u8], row: usize, out: &mut [u8], join: impl Fn(u8, u8) -> u8) {
    let (first, rest) = out.split_at_mut(row.min(block.len()));
    first.copy_from_slice(&block[..first.len()]);
    let pairs = block[first.len()..].iter().zip(block);
    rest.iter_mut().zip(pairs).for_each(|(out, (byte, before))| *out = join(*byte, *before));
}

fn pair_delta(block: &[u8], dim: usize, out: &mut [u8]) {
    out.copy_from_slice(block);
    // Rows of an even length are one row.
    let dim = if dim.is_multiple_of(2) { out.len() } else { dim };
    for row in out.chunks_exact_mut(dim.max(1)) {
        row.chunks_exact_mut(2).for_each(|pair| pair[1] = pair[1].wrapping_sub(pair[0]));
    }
}

/// Writes the lowest bit of every byte, then the next one, lowest first. `out` has the length of `bytes`.
pub fn bitshuffle(bytes: &[u8], out: &mut [u8]) {
    let mut written = out.iter_mut();
    let (mut pending, mut count) = (0u8, 0);
    for plane in 0..8 {
        for byte in bytes {
            pending |= (byte >> plane & 1) << count;
            count += 1;
            if count == 8 {
                // `out` has a byte for every eight bits.
                written.next().into_iter().for_each(|out| *out = pending);
                (pending, count) = (0, 0);
            }
        }
    }
}
