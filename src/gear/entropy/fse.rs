//! FSE (tANS) coding of Huffman weights (RFC 8878, 4.1 and 4.2.1.2).

use super::bits::BitWriter;

/// Weights go from 0 to the longest code length.
const SYMBOLS: usize = super::huffman::MAX_LOG + 1;
/// Table sizes the format allows for weights.
const LOGS: [u32; 2] = [5, 6];
const MAX_SIZE: usize = 1 << LOGS[1];

pub(super) type Frequencies = [u32; SYMBOLS];

/// Compresses `weights`, which occur as often as `counts` says, into `out`; returns the length. `None` if they are
/// fewer than two or all the same, which FSE cannot express.
pub(super) fn compress(weights: &[u8], counts: &Frequencies, out: &mut [u8]) -> Option<usize> {
    if counts.iter().filter(|&&c| c > 0).count() < 2 {
        return None;
    }
    // A larger table fits the counts better, but its description is longer.
    let log = LOGS[(weights.len() > 40) as usize];
    let frequencies = normalize(counts, 1 << log);
    let head = describe(&frequencies, log, out);
    Some(head + encode(weights, &frequencies, log, &mut out[head..]))
}

/// Scales `counts` to a sum of `size`, with at least 1 for each that is not zero.
fn normalize(counts: &Frequencies, size: u32) -> Frequencies {
    let total: u32 = counts.iter().sum();
    let mut scaled = counts.map(|c| if c == 0 { 0 } else { ((2 * c * size + total) / (2 * total)).max(1) });
    // A step at frequency f changes the cost by about count / f, so the step goes where that is least or most.
    let gain = |i: usize, f: u32| counts[i] as f32 / f as f32;
    loop {
        let sum: u32 = scaled.iter().sum();
        let used = (0..SYMBOLS).filter(|&i| counts[i] > 0);
        if sum < size {
            let best = used.max_by(|&i, &j| gain(i, scaled[i]).total_cmp(&gain(j, scaled[j])));
            scaled[best.expect("some count is not zero")] += 1;
        } else if sum > size {
            let spare = used.filter(|&i| scaled[i] > 1);
            let best = spare.min_by(|&i, &j| gain(i, scaled[i] - 1).total_cmp(&gain(j, scaled[j] - 1)));
            scaled[best.expect("the table is larger than the alphabet")] -= 1;
        } else {
            return scaled;
        }
    }
}

/// Writes the table: each frequency plus one, in as many bits as the points that are left allow for. A zero is
/// followed by the number of further zeros, in base 3 with the digit 3 for "and more".
fn describe(frequencies: &Frequencies, log: u32, out: &mut [u8]) -> usize {
    let mut bits = BitWriter::new(out);
    bits.push((log - LOGS[0]) as u64, 4);
    let mut left = 1u32 << log;
    let mut i = 0;
    while left > 0 {
        // Values go up to left + 1. The first `short` of them need one bit less than the others; of these, the ones
        // that would look short in their low bits move up.
        let width = (left + 1).ilog2() + 1;
        let short = (1 << width) - 2 - left;
        let value = frequencies[i] + 1;
        if value < short {
            bits.push(value as u64, width - 1);
        } else if value < 1 << (width - 1) {
            bits.push(value as u64, width);
        } else {
            bits.push((value + short) as u64, width);
        }
        left -= frequencies[i];
        i += 1;
        if value == 1 {
            let mut zeros = frequencies[i..].iter().take_while(|&&f| f == 0).count();
            i += zeros;
            while zeros >= 3 {
                bits.push(3, 2);
                zeros -= 3;
            }
            bits.push(zeros as u64, 2);
        }
    }
    bits.finish()
}

/// The encoder's view of a table. A state stands for a table entry plus the table size; the entries of a weight are
/// ranked in table order, counted from its frequency f: f, f + 1, .. 2f - 1.
struct Table {
    weights: [Step; 16],
    states: [u8; MAX_SIZE],
}

/// The transition of a weight.
#[derive(Clone, Copy, Default)]
struct Step {
    frequency: u32,
    /// Bits to write from states that are this frequency or more after the shift; one less from others.
    bits: u32,
    /// Index in `states` of rank 0, which no entry has.
    origin: i32,
}

impl Table {
    fn new(frequencies: &Frequencies, log: u32) -> Self {
        let size = 1 << log;
        let step = (size >> 1) + (size >> 3) + 3;
        // The weight of each entry.
        let mut entries = [0; MAX_SIZE];
        let mut at = 0;
        let mut weights = [Step::default(); 16];
        let mut next = [0; SYMBOLS];
        let mut begin = 0;
        for (w, &f) in frequencies.iter().enumerate() {
            for _ in 0..f {
                entries[at] = w;
                at = (at + step) & (size - 1);
            }
            let bits = log - f.max(1).ilog2();
            weights[w] = Step { frequency: f, bits, origin: begin as i32 - f as i32 };
            next[w] = begin;
            begin += f as usize;
        }
        let mut states = [0; MAX_SIZE];
        for (entry, &w) in entries[..size].iter().enumerate() {
            states[next[w]] = (size + entry) as u8;
            next[w] += 1;
        }
        Table { weights, states }
    }

    fn state(&self, step: Step, rank: u32) -> u32 {
        self.states[(step.origin + rank as i32) as usize & (MAX_SIZE - 1)] as u32
    }

    /// The last state, which decodes to `weight`: the one that reads the most bits. It reads at least one, whose
    /// absence is the end for a decoder.
    fn last(&self, weight: u8) -> u32 {
        let step = self.weights[weight as usize & 15];
        self.state(step, step.frequency)
    }

    /// The state that decodes to `weight` and then leads to `state`.
    fn before(&self, weight: u8, state: u32, bits: &mut BitWriter<'_>) -> u32 {
        let step = self.weights[weight as usize & 15];
        let count = step.bits - (state >> step.bits < step.frequency) as u32;
        bits.push((state & ((1 << count) - 1)) as u64, count);
        self.state(step, state >> count)
    }
}

/// Writes the weights: two states take turns, from the last weight to the first.
fn encode(weights: &[u8], frequencies: &Frequencies, log: u32, out: &mut [u8]) -> usize {
    let table = Table::new(frequencies, log);
    let mut bits = BitWriter::new(out);
    let (rest, tail) = weights.split_at(weights.len() - 2);
    let mut states = [0; 2];
    for (i, &w) in tail.iter().enumerate() {
        states[(rest.len() + i) & 1] = table.last(w);
    }
    for (i, &w) in rest.iter().enumerate().rev() {
        states[i & 1] = table.before(w, states[i & 1], &mut bits);
    }
    for state in [states[1], states[0]] {
        bits.push((state - (1 << log)) as u64, log);
    }
    bits.finish_backward()
}
