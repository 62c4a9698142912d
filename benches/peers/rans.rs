//! Order-0 range ANS (Duda 2013) over bytes, as fast as portable code makes it: 12-bit tables, eight interleaved
//! states of 31 bits, renormalised by 16 bits without branches; one table per 128 KiB, as ZSTD's blocks have.

use super::peer::Peer;

const BITS: u32 = 12;
const TOTAL: u32 = 1 << BITS;
/// The least state; states stay below this << 16.
const LOW: u32 = 1 << 15;
const STATES: usize = 8;
pub const BLOCK: usize = 128 << 10;

#[derive(Default)]
pub struct Rans {
    blob: Vec<u8>,
    words: Vec<u16>,
}

impl Peer for Rans {
    fn encode(&mut self, symbols: &[u8]) {
        self.blob.clear();
        for block in symbols.chunks(BLOCK) {
            encode(block, &mut self.words, &mut self.blob);
        }
    }

    fn decode(&mut self, symbols: &mut [u8]) {
        let mut blob = &self.blob[..];
        for block in symbols.chunks_mut(BLOCK) {
            decode(&mut blob, block);
        }
    }

    fn encoded_len(&self) -> usize {
        self.blob.len()
    }
}

pub fn histogram(symbols: &[u8]) -> [u32; 256] {
    // Four histograms: in one, equal bytes would wait for the previous store.
    let mut counts = [[0u32; 256]; 4];
    let (quads, tail) = symbols.as_chunks::<4>();
    for quad in quads {
        for (counts, symbol) in counts.iter_mut().zip(quad) {
            counts[*symbol as usize] += 1;
        }
    }
    tail.iter().for_each(|symbol| counts[0][*symbol as usize] += 1);
    std::array::from_fn(|i| counts.iter().map(|c| c[i]).sum())
}

/// Shares of [`TOTAL`], at least 1 for every symbol that occurs.
fn shares(counts: &[u32; 256], len: usize) -> [u32; 256] {
    let scale = |count: u32| (count as u64 * TOTAL as u64 + len as u64 / 2) / len as u64;
    let mut shares = counts.map(|count| if count == 0 { 0 } else { scale(count).max(1) as u32 });
    let mut sum: u32 = shares.iter().sum();
    while sum != TOTAL {
        let most = shares.iter_mut().max().unwrap();
        if sum > TOTAL {
            (*most, sum) = (*most - 1, sum - 1);
        } else {
            (*most, sum) = (*most + TOTAL - sum, TOTAL);
        }
    }
    shares
}

#[derive(Clone, Copy, Default)]
struct Step {
    /// States from this one on emit 16 bits first.
    limit: u32,
    /// 2^(31 + shift) / share, rounded up: exact quotients for states below 2^31.
    reciprocal: u32,
    shift: u8,
    start: u16,
    others: u16,
}

impl Step {
    fn new(share: u32, start: u32) -> Step {
        let shift = share.next_power_of_two().trailing_zeros();
        Step {
            limit: share << 19,
            reciprocal: (1u64 << (31 + shift)).div_ceil(share as u64) as u32,
            shift: 31 + shift as u8,
            start: start as u16,
            others: (TOTAL - share) as u16,
        }
    }
}

fn encode(symbols: &[u8], words: &mut Vec<u16>, blob: &mut Vec<u8>) {
    let shares = shares(&histogram(symbols), symbols.len());
    let mut steps = [Step::default(); 256];
    let mut present = [0u8; 32];
    let mut start = 0;
    for (symbol, share) in shares.iter().enumerate().filter(|(_, share)| **share > 0) {
        present[symbol / 8] |= 1 << (symbol % 8);
        steps[symbol] = Step::new(*share, start);
        start += share;
    }
    blob.extend(present);
    for less_one in shares.iter().filter(|share| **share > 0).map(|share| share - 1) {
        match less_one {
            0..128 => blob.push(less_one as u8),
            _ => blob.extend([less_one as u8 | 128, (less_one >> 7) as u8]),
        }
    }

    // Backwards, for a decoder that reads forwards. At most one word per symbol.
    words.resize(BLOCK, 0);
    let mut at = words.len();
    let mut states = [LOW; STATES];
    let mut put = |state: &mut u32, symbol: u8| {
        let step = &steps[symbol as usize];
        let full = *state >= step.limit;
        words[at - 1] = *state as u16;
        at -= full as usize;
        let x = if full { *state >> 16 } else { *state };
        let quotient = ((x as u64 * step.reciprocal as u64) >> step.shift) as u32;
        *state = x + step.start as u32 + quotient * step.others as u32;
    };
    let (groups, tail) = symbols.as_chunks::<STATES>();
    for (state, symbol) in states.iter_mut().zip(tail).rev() {
        put(state, *symbol);
    }
    for group in groups.iter().rev() {
        for k in (0..STATES).rev() {
            put(&mut states[k], group[k]);
        }
    }
    blob.extend(((words.len() - at) as u32).to_le_bytes());
    blob.extend(states.map(u32::to_le_bytes).as_flattened());
    blob.extend(words[at..].iter().flat_map(|word| word.to_le_bytes()));
}

fn decode(blob: &mut &[u8], symbols: &mut [u8]) {
    let mut take = |len| blob.split_off(..len).unwrap();
    let present = take(32);
    // Symbol, share less one and offset within it, from the low bits up.
    let mut slots = [0u32; TOTAL as usize];
    let mut start = 0;
    for symbol in (0..256).filter(|s| present[s / 8] >> (s % 8) & 1 == 1) {
        let low = take(1)[0] as u32;
        let less_one = if low < 128 { low } else { low & 127 | (take(1)[0] as u32) << 7 };
        for offset in 0..=less_one {
            slots[(start + offset) as usize] = symbol as u32 | less_one << 8 | offset << 20;
        }
        start += less_one + 1;
    }
    let count = u32::from_le_bytes(*take(4).first_chunk().unwrap()) as usize;
    let starts = take(STATES * 4).as_chunks::<4>().0;
    let mut states: [u32; STATES] = std::array::from_fn(|i| u32::from_le_bytes(starts[i]));
    let mut words = take(count * 2).as_chunks::<2>().0;

    let (groups, tail) = symbols.as_chunks_mut::<STATES>();
    for group in groups {
        // The last groups may need fewer words than their states could take.
        let mut last = [[0; 2]; STATES];
        let next = words.first_chunk::<STATES>().unwrap_or_else(|| {
            last[..words.len()].copy_from_slice(words);
            &last
        });
        let mut used = 0;
        for (state, symbol) in states.iter_mut().zip(group) {
            let slot = slots[(*state % TOTAL) as usize];
            *symbol = slot as u8;
            let x = ((slot >> 8 & 0xFFF) + 1) * (*state >> BITS) + (slot >> 20);
            // A conditional move: the branch would be unpredictable.
            let empty = x < LOW;
            let refilled = x << 16 | u16::from_le_bytes(next[used % STATES]) as u32;
            *state = if empty { refilled } else { x };
            used += empty as usize;
        }
        words = &words[used.min(words.len())..];
    }
    for (state, symbol) in states.iter().zip(tail) {
        *symbol = slots[(*state % TOTAL) as usize] as u8;
    }
}
