//! An estimate of the gain of a match finder.

use super::zstd::Search;
use super::{estimate, histogram};
use crate::arch;

/// The bytes of a sample.
const PIECE: usize = 24 << 10;
/// The cost of a match beside the bits of its distance, in bits.
const COST: f64 = 10.0;

/// The expected gain of codes and matches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Survey {
    /// Codes for single bytes save nothing.
    pub(super) is_noise: bool,
    /// The search for matches, if they are worth it.
    pub(super) search: Option<Search>,
}

/// The pieces of a histogram of a sample.
const PIECES: usize = 16;

/// The histogram of pieces all over `bytes`, `len` bytes in all or a little less.
fn sample(bytes: &[u8], len: usize) -> [u32; 256] {
    let len = (len / PIECES).min(bytes.len());
    let step = (bytes.len() - len) / (PIECES - 1);
    let mut counts = [0; 256];
    for piece in 0..PIECES {
        (arch::kernels().histogram)(&bytes[piece * step..][..len], &mut counts);
    }
    counts
}

/// Whether codes for single bytes save nothing at the start of `bytes`.
pub(super) fn is_noise(bytes: &[u8]) -> bool {
    !histogram::is_uneven(&histogram::of(&bytes[..bytes.len().min(PIECE)]))
}

/// Surveys `bytes`. Places with one byte value are compared with the last place that begins like them: both ends of a
/// match have it at the same places, so a sample of places finds as much as all of them would.
pub(super) fn survey(bytes: &[u8]) -> Survey {
    let counts = sample(bytes, PIECE / 2);
    let is_noise = !histogram::is_uneven(&counts);
    let total = counts.iter().sum::<u32>();
    let bits = if is_noise { 8.0 } else { estimate::frame(&counts) as f64 * 8.0 / total.max(1) as f64 };
    let share = (bytes.len() / PLACES).max(SHARE) as u32;
    let wanted = total / if bits < FEW_BITS { share / 2 } else { share };
    let distance = |value: &u8| counts[*value as usize].abs_diff(wanted);
    let marker = (0..=u8::MAX).min_by_key(distance).expect("there are values");
    let gain = gain(bytes, marker, bits);
    Survey { is_noise, search: gain.search(bits) }
}

/// About so many places are compared, or twice as many of [`FEW_BITS`]: rare bytes are seldom in a match there.
const PLACES: usize = 4096;
/// One byte in so many is compared at most.
const SHARE: usize = 32;
/// Bytes that take fewer bits than this have only long matches worth their cost.
const FEW_BITS: f64 = 4.0;
/// Bytes whose places are listed at once.
const CHUNK: usize = 4096;
/// Longer matches are as good.
const LONGEST: usize = 32;

/// Bits per byte that matches save.
#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    all: f64,
    /// Those among them by matches of eight bytes or more.
    long: f64,
}

impl Gain {
    /// The search for matches that take `bits` per byte without, if it pays for its time.
    fn search(&self, bits: f64) -> Option<Search> {
        let (share, long) = (self.all / bits, self.long / self.all);
        match () {
            _ if share.is_nan() || share < 0.014 => None,
            _ if bits < FEW_BITS => Some(Search::fast(7)),
            _ if long > 0.65 && !(0.12..0.4).contains(&share) => Some(Search::fast(5)),
            _ if share > 0.1 => Some(Search::planes(4)),
            _ => Some(Search::fast(4)),
        }
    }
}

/// The gain of matches over codes of `bits` per byte, from the places of `marker`.
fn gain(bytes: &[u8], marker: u8, bits: f64) -> Gain {
    let four_at = |at: usize| bytes.get(at..)?.first_chunk::<4>().copied();
    let places = arch::kernels().places;
    // One more than the last place of four bytes with this hash.
    let mut last = [0u32; 4096];
    let mut list = [0u16; CHUNK];
    let (mut gain, mut count) = (Gain::default(), 0);
    for (number, chunk) in bytes.chunks(CHUNK).enumerate() {
        let found = places(chunk, marker, &mut list);
        count += found;
        for place in &list[..found] {
            let at = number * CHUNK + *place as usize;
            let Some(four) = four_at(at) else { break };
            let slot = &mut last[(u32::from_le_bytes(four).wrapping_mul(2_654_435_761) >> 20) as usize];
            let Some(before) = (std::mem::replace(slot, at as u32 + 1) as usize).checked_sub(1) else { continue };
            if four_at(before) != Some(four) {
                continue;
            }
            let len = (common_start(&bytes[at..], &bytes[before..]) + common_end(&bytes[..at], &bytes[..before]))
                .min(LONGEST);
            let cost = COST + (at - before).ilog2() as f64;
            // So many places of a match are found by their four bytes.
            let saved = (len as f64 * bits - cost).max(0.0) / (len - 3) as f64;
            gain.all += saved;
            gain.long += if len >= 8 { saved } else { 0.0 };
        }
    }
    let count = count.max(1) as f64;
    Gain { all: gain.all / count, long: gain.long / count }
}

/// Equal bytes at the start of both, up to 24, by whole words.
fn common_start(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0).take(3);
    let mut len = 0;
    for (a, b) in words {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        len += differing.trailing_zeros() as usize / 8;
        if differing != 0 {
            return len;
        }
    }
    len.max(4)
}

/// Equal bytes at the end of both, up to 8.
fn common_end(a: &[u8], b: &[u8]) -> usize {
    let (Some(a), Some(b)) = (a.last_chunk(), b.last_chunk()) else { return 0 };
    (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b)).leading_zeros() as usize / 8
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
        let rows = noise(40_000);
        assert!(survey(&rows).search.is_none());
        assert!(survey(&rows[..64].repeat(400)).search.is_some());
        assert!(survey(&[rows.clone(), rows].concat()).search.is_some());
        assert!(survey(&[]).search.is_none() && survey(&[1, 2, 3]).search.is_none());
    }
}
