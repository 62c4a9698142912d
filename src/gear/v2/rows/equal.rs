//! An index of rows by their bytes.

use super::PROBE;
use crate::status::Result;
use crate::sys::memory;
use xxhash_rust::xxh3::xxh3_64;

/// Row numbers by the bytes of their rows, in open addressing.
pub(super) struct Equal {
    /// One more than the number of a row; 0 in free slots.
    slots: Vec<u32>,
    len: usize,
    /// The rows there are.
    rows: usize,
}

/// The longest search for a row. Rows that were made to collide are taken for new ones.
const MAX_PROBES: usize = 64;

impl Equal {
    /// An index with room for the probe of `rows` rows; it grows once.
    pub(super) fn new(rows: usize) -> Result<Self> {
        Ok(Equal { slots: memory::filled(0, 2 * PROBE)?, len: 0, rows })
    }

    /// The slot of a row equal to row `number`, or the free slot for it, or one that it may take.
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

    /// Inserts row `number`. Returns the last row equal to it.
    pub(super) fn replace(&mut self, matrix: &[u8], row_bytes: usize, number: usize) -> Result<Option<usize>> {
        if 2 * self.len >= self.slots.len() {
            let old = std::mem::take(&mut self.slots);
            self.slots = memory::filled(0, (2 * self.rows).next_power_of_two().max(2 * old.len()))?;
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
