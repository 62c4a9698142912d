//! The log of a head: the sums and scales that its masses are computed from once the last tile has come.

use crate::status::Result;
use crate::sys::memory;

/// Consecutive tiles without scales, or with scales of 1, but for those of the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Run {
    /// The block of the first piece.
    pub(super) first_block: u32,
    pub(super) pieces: u32,
    /// The first tile has scales.
    pub(super) scaled: bool,
}

/// The runs of a head, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Log {
    /// For each run the scales of its first tile, `[row]`, if it is scaled, then the sums of its values,
    /// `[piece][row]`.
    words: Vec<f32>,
    runs: Vec<Run>,
}

impl Log {
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.runs.clear();
    }

    /// Makes room for what the methods below append, so that they cannot fail.
    pub(super) fn reserve(&mut self, words: usize, runs: usize) -> Result<()> {
        memory::reserve_amortized(&mut self.words, words)?;
        memory::reserve_amortized(&mut self.runs, runs)
    }

    /// Appends scales or sums of the run under way.
    pub(super) fn put(&mut self, words: &[f32]) {
        #[expect(clippy::disallowed_methods, reason = "room is reserved when a tile comes")]
        self.words.extend_from_slice(words);
    }

    /// Appends ended runs. Their words and those of the run under way are there, or come before the next run ends.
    pub(super) fn end_runs(&mut self, runs: &[Run]) {
        #[expect(clippy::disallowed_methods, reason = "room is reserved when a tile comes")]
        self.runs.extend_from_slice(runs);
    }

    /// Appends `count` words for the caller to write.
    pub(super) fn grow(&mut self, count: usize) -> &mut [f32] {
        let begin = self.words.len();
        #[expect(clippy::disallowed_methods, reason = "room is reserved when a tile comes")]
        self.words.resize(begin + count, 0.0);
        &mut self.words[begin..]
    }

    /// Moves the last words to `words`.
    pub(super) fn take_last(&mut self, words: &mut [f32]) {
        let begin = self.words.len() - words.len();
        words.copy_from_slice(&self.words[begin..]);
        self.words.truncate(begin);
    }

    /// Calls `see(run, scales, sums)` for each run, last one first, of a head of `rows` rows. Scales are `[row]`, or
    /// empty.
    pub(super) fn for_each_backwards(&self, rows: usize, mut see: impl FnMut(&Run, &[f32], &[f32])) {
        let mut words = &self.words[..];
        for run in self.runs.iter().rev() {
            let (scales, sums);
            (words, sums) = words.split_at(words.len() - run.pieces as usize * rows);
            (words, scales) = words.split_at(words.len() - if run.scaled { rows } else { 0 });
            see(run, scales, sums);
        }
    }

    /// Words in use and words that there is room for.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.words.len(), self.words.capacity())
    }
}
