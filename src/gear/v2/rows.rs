//! Rows that are like earlier ones, without rotation. In the first layer equal tokens have bit-equal V rows; in the
//! next ones, similar V rows. A row is coded as the steps from its words to those of the row it refers to.

use super::near::{CALIBRATION, WINDOW, Window};
use super::repeats::{self, Repeats};
use super::word::Word;
use crate::gear::options::Effort;
use crate::status::Result;
use crate::sys::memory;
use xxhash_rust::xxh3::xxh3_64;

/// Rows that are looked at before it is decided whether to go on.
pub(super) const PROBE: usize = 256;

/// Counts what references save, in bits per element.
pub(super) struct Savings {
    bits: f32,
    worth: f32,
}

impl Savings {
    /// `worth` bits per element are worth the time.
    pub(super) fn new(worth: f32) -> Self {
        Savings { bits: 0.0, worth }
    }

    /// A row of a distance from the one it refers to, as a part of its size: unrelated rows are about 0.7 apart.
    pub(super) fn add(&mut self, distance: f32) {
        self.bits += log2(0.7 / distance.max(1e-4));
    }

    pub(super) fn are_worth_it(&self, rows: usize) -> bool {
        self.bits >= self.worth * rows as f32
    }
}

/// log2, the same on every machine: exponent and mantissa read as one number, at most 0.09 too low.
fn log2(x: f32) -> f32 {
    x.to_bits() as f32 / (1 << 23) as f32 - 127.0
}

/// Rows by their bytes: open addressing over row numbers, one-based.
struct Equal {
    slots: Vec<u32>,
    len: usize,
}

impl Equal {
    fn new() -> Result<Self> {
        let mut slots = Vec::new();
        memory::resize(&mut slots, 2 * PROBE)?;
        Ok(Equal { slots, len: 0 })
    }

    /// The slot of the row equal to row `number`, or the free one where it belongs.
    fn slot(&self, matrix: &[u8], row_bytes: usize, number: usize) -> usize {
        let row = |n: usize| &matrix[n * row_bytes..(n + 1) * row_bytes];
        let mask = self.slots.len() - 1;
        let mut slot = xxh3_64(row(number)) as usize & mask;
        while self.slots[slot] != 0 && row(self.slots[slot] as usize - 1) != row(number) {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Remembers row `number`; returns the last row equal to it.
    fn replace(&mut self, matrix: &[u8], row_bytes: usize, number: usize) -> Result<Option<usize>> {
        if 2 * self.len >= self.slots.len() {
            let old = std::mem::take(&mut self.slots);
            memory::resize(&mut self.slots, 2 * old.len())?;
            for known in old.into_iter().filter(|n| *n > 0) {
                let slot = self.slot(matrix, row_bytes, known as usize - 1);
                self.slots[slot] = known;
            }
        }
        let slot = self.slot(matrix, row_bytes, number);
        let before = std::mem::replace(&mut self.slots[slot], number as u32 + 1);
        self.len += (before == 0) as usize;
        Ok((before > 0).then(|| before as usize - 1))
    }
}

/// Finds the rows of `matrix` that are like earlier ones. Returns false, with `repeats` undefined, when that promises
/// little.
pub(super) fn find<W: Word>(matrix: &[u8], row_len: usize, effort: Effort, repeats: &mut Repeats) -> Result<bool> {
    let row_bytes = row_len * W::BYTES;
    let count = matrix.len() / row_bytes;
    // Of shorter rows, references are not worth their distances.
    if row_bytes < 16 || count < 2 || count > u32::MAX as usize {
        return Ok(false);
    }
    repeats.start(false);
    memory::reserve(&mut repeats.distances, count)?;
    let bytes_of = |number: usize| &matrix[number * row_bytes..(number + 1) * row_bytes];
    let sample = matrix[..CALIBRATION.min(count) * row_bytes].chunks_exact(W::BYTES);
    let sample: Vec<_> = sample.map(|word| W::real(W::bits(word))).collect();
    // To look for rows that are merely near takes several times as long as all the rest, and as long for short rows as
    // for long ones: it must promise much per row.
    let (capacity, worth) = match effort.get() {
        1..=3 => (0, f32::INFINITY),
        4..=6 => (PROBE, 80.0 / row_len as f32),
        _ => (WINDOW, 0.2),
    };
    let mut window = (capacity > 0).then(|| Window::<W::Real>::new(row_len, capacity, &sample)).transpose()?;
    let mut equal = Equal::new()?;
    let mut row = vec![W::Real::default(); row_len];
    let mut savings = Savings::new(worth);
    let mut equal_savings = Savings::new(0.75);
    for number in 0..count {
        if number == PROBE && !savings.are_worth_it(number) {
            if !equal_savings.are_worth_it(number) {
                return Ok(false);
            }
            window = None;
        }
        if let Some(before) = equal.replace(matrix, row_bytes, number)? {
            savings.add(0.0);
            equal_savings.add(0.0);
            memory::reserve_amortized(&mut repeats.kinds, 1)?;
            repeats.distances.push((number - before) as u32);
            repeats.kinds.push(0);
            continue;
        }
        let Some(window) = &mut window else {
            repeats.distances.push(0);
            continue;
        };
        let bytes = bytes_of(number);
        row.iter_mut().zip(bytes.chunks_exact(W::BYTES)).for_each(|(r, word)| *r = W::real(W::bits(word)));
        let sketch = window.sketch(&row);
        let near = window.find(&row, &sketch);
        let mut distance = 0;
        if let Some(near) = near {
            savings.add(near.distance);
            distance = number as u32 - near.owner;
            memory::reserve_amortized(&mut repeats.kinds, 1)?;
            let sum = push_steps::<W>(bytes, bytes_of(near.owner as usize), &mut repeats.steps)?;
            repeats.kinds.push(repeats::kind(sum, row_len));
            window.touch(&near);
        }
        repeats.distances.push(distance);
        window.insert(&row, &sketch, number as u32);
    }
    Ok(count > PROBE || savings.are_worth_it(count) || equal_savings.are_worth_it(count))
}

/// Appends the steps from `reference` to `row`; returns their sum.
fn push_steps<W: Word>(row: &[u8], reference: &[u8], steps: &mut Vec<u8>) -> Result<u64> {
    let start = steps.len();
    memory::reserve_amortized(steps, row.len())?;
    steps.resize(start + row.len(), 0);
    let words = row.chunks_exact(W::BYTES).zip(reference.chunks_exact(W::BYTES));
    let mut sum = 0;
    for ((word, reference), out) in words.zip(steps[start..].chunks_exact_mut(W::BYTES)) {
        let steps = W::steps(W::bits(word), W::bits(reference));
        sum += steps as u64;
        out.copy_from_slice(&steps.to_le_bytes()[..W::BYTES]);
    }
    Ok(sum)
}

/// Replaces `out` by the new rows of `matrix`.
pub(super) fn keep_new(matrix: &[u8], row_bytes: usize, distances: &[u32], out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    memory::reserve(out, matrix.len())?;
    for (row, distance) in matrix.chunks_exact(row_bytes).zip(distances) {
        if *distance == 0 {
            out.extend_from_slice(row);
        }
    }
    Ok(())
}

/// Writes all rows from the new ones and the steps of the others: the inverse of [`find`] and [`keep_new`].
pub(super) fn expand<W: Word>(new: &[u8], repeats: &Repeats, row_len: usize, matrix: &mut [u8]) {
    let row_bytes = row_len * W::BYTES;
    let (mut new, mut steps) = (new.chunks_exact(row_bytes), repeats.steps.chunks_exact(row_bytes));
    let mut kinds = repeats.kinds.iter();
    for (number, distance) in repeats.distances.iter().enumerate() {
        let (before, row) = matrix.split_at_mut(number * row_bytes);
        let row = &mut row[..row_bytes];
        if *distance == 0 {
            row.copy_from_slice(new.next().expect("as many as there are zeros"));
            continue;
        }
        let reference = &before[(number - *distance as usize) * row_bytes..][..row_bytes];
        if *kinds.next().expect("as many as there are distances") == 0 {
            row.copy_from_slice(reference);
            continue;
        }
        let steps = steps.next().expect("as many as there are kinds above 0");
        let words = row.chunks_exact_mut(W::BYTES).zip(reference.chunks_exact(W::BYTES));
        for ((word, reference), steps) in words.zip(steps.chunks_exact(W::BYTES)) {
            let bits = W::walk(W::bits(steps), W::bits(reference));
            word.copy_from_slice(&bits.to_le_bytes()[..W::BYTES]);
        }
    }
}
