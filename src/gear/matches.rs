//! Whether a match finder would find anything.

use super::zstd::Search;

/// What is looked at: the start of the bytes.
pub(super) const PIECE: usize = 24 << 10;
/// What a match costs, in bits.
const COST: f64 = 22.0;

/// Shortest matches that a finder can be told to take.
const SHORTEST: std::ops::RangeInclusive<usize> = 4..=7;

/// How to search `bytes`, of which each takes about `bits` otherwise, if the matches that a simple finder sees save more
/// than an eighth of a percent. Looks at every `step`-th place: 1, or more where only whole rows can repeat.
pub(super) fn search(bytes: &[u8], bits: f64, step: usize) -> Option<Search> {
    let bytes = &bytes[..bytes.len().min(PIECE)];
    let four_at = |at: usize| bytes[at..].first_chunk::<4>().copied();
    // What matches of 4, 5, 6, and 7 or more bytes save.
    let mut saved = [0.0; 4];
    // Where four bytes with this hash were last.
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
    // Short matches take long to find, and of bytes with few bits they cost more than they save.
    let mut rest = total;
    let min_match = SHORTEST.zip(saved).find(|(_, saved)| {
        rest -= saved;
        rest < total * 0.995
    });
    let min_match = min_match.map_or(*SHORTEST.end(), |(len, _)| len) as u32;
    (total * 800.0 > bytes.len() as f64 * bits).then_some(Search::Lanes { min_match })
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
            assert!(search(&rows[..4096], 8.0, step).is_none());
            assert!(search(&noise(64).repeat(40), 8.0, step).is_some());
            assert!(search(&[], 8.0, step).is_none() && search(&[1, 2, 3], 8.0, step).is_none());
        }
    }
}
