//! Rows that are like earlier ones, without rotation. In the first layer equal tokens have bit-equal V rows; in the
//! next ones, similar V rows. A row is coded as the steps from its words to those of the row it refers to.

use super::form::RowForm;
use super::near::{WINDOW, Window};
use super::repeats::{self, References, Repeats};
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

/// Slots that are looked at for a row. Rows that were made to collide are taken for new ones.
const MAX_PROBES: usize = 64;

impl Equal {
    fn new() -> Result<Self> {
        Ok(Equal { slots: memory::filled(0, 2 * PROBE)?, len: 0 })
    }

    /// The slot of the row equal to row `number`, or the free one where it belongs, or one that it may take.
    fn slot(&self, matrix: &[u8], row_bytes: usize, number: usize) -> usize {
        let row = |n: usize| &matrix[n * row_bytes..(n + 1) * row_bytes];
        let mask = self.slots.len() - 1;
        let mut slot = xxh3_64(row(number)) as usize & mask;
        for _ in 0..MAX_PROBES {
            if self.slots[slot] == 0 || row(self.slots[slot] as usize - 1) == row(number) {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Remembers row `number`; returns the last row equal to it.
    fn replace(&mut self, matrix: &[u8], row_bytes: usize, number: usize) -> Result<Option<usize>> {
        if 2 * self.len >= self.slots.len() {
            let old = std::mem::take(&mut self.slots);
            self.slots = memory::filled(0, 2 * old.len())?;
            for known in old.into_iter().filter(|n| *n > 0) {
                let slot = self.slot(matrix, row_bytes, known as usize - 1);
                self.slots[slot] = known;
            }
        }
        let slot = self.slot(matrix, row_bytes, number);
        let before = std::mem::replace(&mut self.slots[slot], number as u32 + 1) as usize;
        self.len += (before == 0) as usize;
        let row = |n: usize| &matrix[n * row_bytes..(n + 1) * row_bytes];
        Ok(before.checked_sub(1).filter(|before| row(*before) == row(number)))
    }
}

/// Rows that are remembered.
fn window(effort: Effort) -> usize {
    match effort.get() {
        1..=3 => 0,
        4..=6 => PROBE,
        _ => WINDOW,
    }
}

/// The bytes that [`find`] takes for `count` rows of `len` bytes in all, at most.
pub(super) fn room(len: usize, count: usize, form: RowForm, effort: Effort) -> usize {
    // Numbers take up to 8 bytes.
    let window = (2 * len).min(window(effort) * form.len * 8);
    len + window + 32 * count + 16 * form.len
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
    repeats.start(false, count)?;
    let bytes_of = |number: usize| &matrix[number * row_bytes..(number + 1) * row_bytes];
    let read = |number: usize, row: &mut [W::Real]| {
        let words = bytes_of(number).chunks_exact(W::BYTES);
        row.iter_mut().zip(words).for_each(|(r, word)| *r = W::real(W::bits(word)));
    };
    // To look for rows that are merely near takes several times as long as all the rest, and as long for short rows as
    // for long ones: it must promise much per row.
    let capacity = window(effort);
    let worth = match effort.get() {
        1..=3 => f32::INFINITY,
        4..=6 => 80.0 / row_len as f32,
        _ => 0.2,
    };
    let mut window = match capacity {
        0 => None,
        _ => Some(Window::<W::Real>::new(row_len, (capacity, 2 * matrix.len()), count, |number, row| {
            read(number, row);
            Ok(())
        })?),
    };
    let mut equal = Equal::new()?;
    let mut row = memory::filled(W::Real::default(), row_len)?;
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
            memory::push(&mut repeats.distances, (number - before) as u32)?;
            memory::push(&mut repeats.kinds, 0)?;
            continue;
        }
        let Some(window) = &mut window else {
            memory::push(&mut repeats.distances, 0)?;
            continue;
        };
        read(number, &mut row);
        let sketch = window.sketch(&row);
        let near = window.find(&row, &sketch);
        let mut distance = 0;
        if let Some(near) = near {
            savings.add(near.distance);
            distance = number as u32 - near.owner;
            let steps = repeats.add_steps(row_bytes, matrix.len())?;
            let sum = put_steps::<W>(bytes_of(number), bytes_of(near.owner as usize), steps);
            memory::push(&mut repeats.kinds, repeats::kind(sum, row_len))?;
            window.touch(&near);
        }
        memory::push(&mut repeats.distances, distance)?;
        window.insert(&row, &sketch, number as u32)?;
    }
    Ok(count > PROBE || savings.are_worth_it(count) || equal_savings.are_worth_it(count))
}

/// Writes the steps from `reference` to `row`; returns their sum.
fn put_steps<W: Word>(row: &[u8], reference: &[u8], steps: &mut [u8]) -> u64 {
    let words = row.chunks_exact(W::BYTES).zip(reference.chunks_exact(W::BYTES));
    let mut sum = 0;
    for ((word, reference), out) in words.zip(steps.chunks_exact_mut(W::BYTES)) {
        let steps = W::steps(W::bits(word), W::bits(reference));
        sum += steps as u64;
        out.copy_from_slice(&steps.to_le_bytes()[..W::BYTES]);
    }
    sum
}

/// Writes the new rows of `matrix` to the start of `out`; returns their length.
pub(super) fn keep_new(matrix: &[u8], row_bytes: usize, distances: &[u32], out: &mut [u8]) -> usize {
    let mut len = 0;
    for (row, distance) in matrix.chunks_exact(row_bytes).zip(distances) {
        if *distance == 0 {
            out[len..len + row_bytes].copy_from_slice(row);
            len += row_bytes;
        }
    }
    len
}

/// Completes a matrix of new rows and, in the places of the others, their steps: the inverse of [`find`].
pub(super) fn expand<W: Word>(references: &References, row_len: usize, matrix: &mut [u8]) {
    let row_bytes = row_len * W::BYTES;
    let mut kinds = references.kinds().iter();
    for (number, distance) in references.distances().iter().enumerate().filter(|(_, distance)| **distance > 0) {
        let (before, row) = matrix.split_at_mut(number * row_bytes);
        let row = &mut row[..row_bytes];
        let reference = &before[(number - *distance as usize) * row_bytes..][..row_bytes];
        if kinds.next().is_none_or(|kind| *kind == 0) {
            row.copy_from_slice(reference);
            continue;
        }
        let words = row.chunks_exact_mut(W::BYTES).zip(reference.chunks_exact(W::BYTES));
        for (word, reference) in words {
            let bits = W::walk(W::bits(word), W::bits(reference));
            word.copy_from_slice(&bits.to_le_bytes()[..W::BYTES]);
        }
    }
}
