//! The size of a frame of Huffman codes from a histogram alone, without a tree (RFC 8878).

/// A frame's header without its magic, the header of a block, and the longest block.
const FRAME_HEADER: usize = 9;
const BLOCK_HEADER: usize = 3;
const BLOCK_MAX: usize = 1 << 17;

/// log2 of `x`, within 0.001; 0 for 0.
#[inline(always)]
fn log2(x: u32) -> f32 {
    let bits = (x.max(1) as i32 as f32).to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let m = f32::from_bits(bits & 0x7F_FFFF | 0x3F80_0000) - 1.0;
    // A cubic that meets the logarithm at both ends of the octave.
    exponent as f32 + m * (1.4228 + m * (-0.582 + m * 0.1592))
}

/// Sum of count * log2(count).
fn sum(counts: &[u32; 256]) -> f32 {
    let mut sums = [0.0; 8];
    for group in counts.as_chunks::<8>().0 {
        for (sum, &count) in sums.iter_mut().zip(group) {
            *sum += count as i32 as f32 * log2(count);
        }
    }
    sums.iter().sum()
}

/// About how many bytes [`super::zstd::Search::Literals`] takes for bytes with this histogram.
pub(super) fn frame(counts: &[u32; 256]) -> usize {
    let total = counts.iter().sum::<u32>() as usize;
    let frames = FRAME_HEADER + BLOCK_HEADER * total.div_ceil(BLOCK_MAX).max(1);
    let distinct = counts.iter().filter(|&&c| c > 0).count();
    if distinct < 2 {
        return frames + distinct;
    }
    let last = counts.iter().rposition(|&c| c > 0).unwrap_or(0);
    let tree = (5 + tree_bits(distinct as u32, last as u32 + 1) / 8).min(1 + last.div_ceil(2));
    // The header of the literals; the ends of one stream, or of four, which a table of six bytes parts; no sequences.
    let section = match total {
        0..1024 => 3 + 1,
        1024..16_384 => 4 + 8,
        _ => 5 + 8,
    };
    frames + (section + tree + 1 + code_bits(counts) / 8).min(total)
}

/// Bits that tell which of `span` symbols have a code, and how long each of these is. The latter is fitted to real
/// planes.
fn tree_bits(distinct: u32, span: u32) -> usize {
    let term = |n: u32| n as f32 * log2(n);
    (term(span) - term(distinct) - term(span - distinct) + 2.7 * distinct as f32) as usize
}

/// Bits that a Huffman code takes: the entropy and a little, but a symbol never takes less than one bit.
fn code_bits(counts: &[u32; 256]) -> usize {
    let mut counts = *counts;
    let mut left: u32 = counts.iter().sum();
    let mut bits = 0;
    loop {
        // A symbol more frequent than this has a code of one bit, and that bit sets all others apart.
        let most = counts.iter().copied().max().unwrap_or(0);
        if most <= left / 5 * 2 || most == left {
            break;
        }
        bits += left as usize;
        left -= most;
        *counts.iter_mut().find(|c| **c == most).expect("the maximum is there") = 0;
    }
    let left_f = left as f32;
    bits + ((log2(left) + 0.05) * left_f - sum(&counts)).max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Random, testdata};
    use crate::gear::histogram;
    use crate::gear::zstd::{Compressor, Search, bound};
    use std::io::Read;

    /// `len` bytes of `symbols` values in random order, each `ratio` times as frequent as the one before.
    fn sample(symbols: usize, ratio: f64, len: usize) -> Vec<u8> {
        let shares: Vec<f64> = (0..symbols).map(|i| ratio.powi(i as i32)).collect();
        let total: f64 = shares.iter().sum();
        let mut random = Random::new(7);
        let mut draw = || {
            let mut left = random.unit() * total;
            shares.iter().position(|share| (left -= share, left < 0.0).1).unwrap_or(0) as u8
        };
        (0..len).map(|_| draw()).collect()
    }

    /// The high bytes of the bundled caches.
    fn real_planes() -> Vec<Vec<u8>> {
        let files = std::fs::read_dir(testdata("kv")).unwrap();
        let paths = files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "f16"));
        paths.map(|path| std::fs::read(path).unwrap().chunks_exact(2).map(|word| word[1]).collect()).collect()
    }

    #[test]
    fn estimates_are_near_frames_that_another_decoder_reads() {
        let mut samples: Vec<(Vec<u8>, f64)> = real_planes().into_iter().map(|plane| (plane, 0.01)).collect();
        assert!(samples.len() >= 8);
        for (symbols, ratio) in [(2, 0.004), (5, 0.6), (30, 0.6), (30, 0.9), (200, 1.0), (200, 0.97), (256, 1.0)] {
            samples.push((sample(symbols, ratio, BLOCK_MAX), 0.05));
        }
        let mut zstd = Compressor::default();
        for (number, (bytes, tolerance)) in samples.iter().enumerate() {
            for len in [2000, 10_000, BLOCK_MAX] {
                let bytes = &bytes[..len.min(bytes.len())];
                let mut encoded = vec![0; bound(bytes.len())];
                let len = zstd.encode(bytes, Search::Literals, &mut encoded).unwrap();
                let mut decoded = Vec::new();
                let mut source = &encoded[..len];
                ruzstd::decoding::StreamingDecoder::new(&mut source).unwrap().read_to_end(&mut decoded).unwrap();
                assert!(decoded == bytes && source.is_empty(), "{number}");
                let about = frame(&histogram::of(bytes));
                let off = about.abs_diff(len) as f64;
                assert!(off <= len as f64 * tolerance + 16.0, "{number}, {} bytes: {about} for {len}", bytes.len());
            }
        }
    }
}
