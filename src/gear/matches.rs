//! An estimate of the gain of a match finder.

use super::zstd::Search;
use super::{entropy, histogram};
use crate::arch;

/// The bytes of a sample, from the start.
pub(super) const PIECE: usize = 24 << 10;
/// The cost of a match, in bits.
const COST: f64 = 22.0;

/// The expected gain of codes and matches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Survey {
    /// Codes for single bytes save nothing.
    pub(super) is_noise: bool,
    /// Bits per byte that matches save. A lower bound, because the sample is short.
    pub(super) saved: f64,
    /// The search for matches, if they save anything.
    pub(super) search: Option<Search>,
}

/// Bits per byte that a code for single bytes takes, from pieces all over `bytes`.
pub(super) fn bits(bytes: &[u8]) -> f64 {
    const PIECES: usize = 16;
    let len = (PIECE / PIECES).min(bytes.len());
    let step = (bytes.len() - len) / (PIECES - 1);
    let mut counts = [0; 256];
    for piece in 0..PIECES {
        (arch::kernels().histogram)(&bytes[piece * step..][..len], &mut counts);
    }
    entropy::estimate(&counts) as f64 * 8.0 / (PIECES * len).max(1) as f64
}

/// Surveys the start of `bytes`.
pub(super) fn survey(bytes: &[u8]) -> Survey {
    let piece = &bytes[..bytes.len().min(PIECE)];
    let counts = histogram::of(piece);
    let is_noise = !histogram::is_uneven(&counts);
    let bits = if is_noise { 8.0 } else { entropy::estimate(&counts) as f64 * 8.0 / piece.len() as f64 };
    // In noise only whole rows can repeat.
    let (saved, search) = search(piece, bits, if is_noise { 8 } else { 1 });
    Survey { is_noise, saved, search }
}

/// The least lengths of a match that a finder takes.
const SHORTEST: std::ops::RangeInclusive<usize> = 4..=7;

/// The bits per byte that the matches of a simple finder save, and the search for them if that is more than an eighth of
/// a percent. Without matches a byte takes about `bits`. Visits every `step`-th place.
fn search(bytes: &[u8], bits: f64, step: usize) -> (f64, Option<Search>) {
    let four_at = |at: usize| bytes.get(at..)?.first_chunk::<4>().copied();
    // Bits that matches of 4, 5, 6, and 7 or more bytes save.
    let mut saved = [0.0; 4];
    // The last place of four bytes with this hash.
    let mut last = [0u16; 4096];
    let mut at = 0;
    while let Some(four) = four_at(at) {
        let slot = &mut last[(u32::from_le_bytes(four).wrapping_mul(2_654_435_761) >> 20) as usize];
        let before = std::mem::replace(slot, at as u16) as usize;
        let mut len = 0;
        if before < at && four_at(before) == Some(four) {
            len = bytes[at..].iter().zip(&bytes[before..]).take_while(|(a, b)| a == b).count();
            saved[len.min(*SHORTEST.end()) - SHORTEST.start()] += (len as f64 * bits - COST).max(0.0);
        }
        at += len.max(step).next_multiple_of(step);
    }
    let total: f64 = saved.iter().sum();
    // Short matches take long to find, and cost more than they save where bytes have few bits.
    let mut rest = total;
    let min_match = SHORTEST.zip(saved).find(|(_, saved)| {
        rest -= saved;
        rest < total * 0.995
    });
    let min_match = min_match.map_or(*SHORTEST.end(), |(len, _)| len) as u32;
    let saved = total / bytes.len().max(1) as f64;
    (saved, (saved * 800.0 > bits).then_some(Search::planes(min_match)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    #[test]
    fn noise_has_none_and_repeated_rows_have_many() {
        let rows = [noise(4096), noise(4096)].concat();
        for step in [1, 8] {
            assert!(search(&rows[..4096], 8.0, step).1.is_none());
            assert!(search(&noise(64).repeat(40), 8.0, step).1.is_some());
            assert!(search(&[7; 300], 8.0, step).1.is_some());
            assert!(search(&[], 8.0, step).1.is_none() && search(&[1, 2, 3], 8.0, step).1.is_none());
        }
    }
}
