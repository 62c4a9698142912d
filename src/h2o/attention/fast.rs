//! The path of plain tiles, which most tiles of a decode step are: neither the first nor the last of their head, of few
//! rows that each lie side by side.
//!
//! An attention reads much memory between two tiles, so every cache line that a tile needs comes from far. A plain tile
//! needs one or two: [`Near`] has its state at the front, and room for the words of some tiles behind.

use super::log::{Log, Run};
use super::rows::sum_of;
use super::tile::{CheckedTile, MAX_TOKENS};
use crate::arch::Sum;
use crate::dtype::Dtype;

/// Words that wait for the log at most. An ended run counts as [`RUN_WORDS`].
const MAX_WAITING: usize = 224;
const RUN_WORDS: usize = 2;
/// Runs that wait at most: each also has a scale and a sum.
const MAX_ENDED: usize = MAX_WAITING / (RUN_WORDS + 2);
/// Blocks and rows that a plain tile may touch.
const MAX_PIECES: usize = 4;
const MAX_ROWS: usize = 16;

/// The state of a head that plain tiles need.
#[derive(Clone)]
#[repr(C)]
pub(super) struct Near {
    /// Sums the values of a row. `None` where the next tile cannot be a plain one.
    sum: Option<Sum>,
    dtype: Dtype,
    rows: u32,
    /// The token after the last tile.
    next: u32,
    /// The rest of that token's block.
    left: u32,
    block_tokens: u32,
    /// The run under way.
    run: Run,
    /// Numbers of words and runs that wait. Where there are words, they end with the last piece.
    waiting: u8,
    ended: u8,
    words: [f32; MAX_WAITING],
    runs: [Run; MAX_ENDED],
}

impl Default for Near {
    fn default() -> Self {
        Near {
            sum: None,
            dtype: Dtype::F32,
            rows: 0,
            next: 0,
            left: 1,
            block_tokens: 1,
            run: Run::default(),
            waiting: 0,
            ended: 0,
            words: [0.0; MAX_WAITING],
            runs: [Run::default(); MAX_ENDED],
        }
    }
}

impl Near {
    pub(super) fn start(&mut self, block_tokens: usize) {
        self.block_tokens = block_tokens.clamp(1, MAX_TOKENS as usize) as u32;
        self.sum = None;
    }

    pub(super) fn block_tokens(&self) -> usize {
        self.block_tokens as usize
    }

    /// The token after the head's last tile.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Adds a plain tile. Returns `false` for any other, without a change.
    #[inline(always)]
    pub(super) fn add(&mut self, tile: &CheckedTile<'_>) -> bool {
        let (Some(sum), Some(scales)) = (self.sum, tile.update_scale) else { return false };
        let (dtype, rows, block_tokens) = (self.dtype, self.rows as usize, self.block_tokens as usize);
        let row_len = if tile.pack == 0 { tile.tokens } else { tile.pack };
        let used = self.waiting as usize + RUN_WORDS * self.ended as usize;
        let is_plain = !(tile.first | tile.last)
            && tile.dtype == dtype
            && tile.queries == rows
            && tile.token_begin == self.next
            && tile.tokens <= self.left as usize + (MAX_PIECES - 1) * block_tokens
            && used <= MAX_WAITING - RUN_WORDS - (1 + MAX_PIECES) * rows
            && (rows == 1 || row_len >= tile.tokens)
            && scales.iter().all(|scale| is_scale(*scale));
        if !is_plain {
            return false;
        }
        // Compared as bits: a float constant of 1 is another line of memory.
        let is_scaled = scales.iter().any(|scale| scale.to_bits() != const { 1f32.to_bits() });
        if is_scaled {
            self.begin_run(scales);
        }
        let mut begin = 0;
        while begin < tile.tokens {
            let end = tile.tokens.min(begin + self.left as usize);
            let is_new = self.left == self.block_tokens || (is_scaled && begin == 0);
            let at = self.waiting as usize - if is_new { 0 } else { rows };
            for (row, total) in self.words[at..at + rows].iter_mut().enumerate() {
                let values = &tile.data[(row * row_len + begin) * dtype.bytes()..(row * row_len + end) * dtype.bytes()];
                *total = if is_new { sum(values) } else { *total + sum(values) };
            }
            self.run.pieces += u32::from(is_new);
            self.waiting = (at + rows) as u8;
            self.left -= (end - begin) as u32;
            if self.left == 0 {
                self.left = self.block_tokens;
            }
            begin = end;
        }
        self.next += tile.tokens as u32;
        true
    }

    /// Ends the run and begins one with these scales, where the last tile ended.
    fn begin_run(&mut self, scales: &[f32]) {
        self.runs[self.ended as usize] = self.run;
        self.ended += 1;
        for scale in scales {
            self.words[self.waiting as usize] = *scale;
            self.waiting += 1;
        }
        self.run = Run { first_block: self.next / self.block_tokens, pieces: 0, scaled: true };
    }

    /// Numbers of words and runs that [`Near::flush`] moves.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.waiting as usize, self.ended as usize)
    }

    /// Drops what waits.
    pub(super) fn clear(&mut self) {
        (self.waiting, self.ended) = (0, 0);
    }

    /// Moves what waits to the log, where there is room for it, and ends the run under way.
    pub(super) fn flush(&mut self, log: &mut Log) {
        log.put(&self.words[..self.waiting as usize]);
        log.end_runs(&self.runs[..self.ended as usize]);
        self.clear();
        log.end_runs(&[self.run]);
    }

    /// Begins a run whose words are in the log.
    pub(super) fn set_run(&mut self, run: Run) {
        self.run = run;
    }

    /// Follows a tile that was not plain up to token `end`.
    pub(super) fn follow(&mut self, end: u32) {
        (self.next, self.left) = (end, self.block_tokens - end % self.block_tokens);
        self.sum = None;
    }

    /// After that makes way for plain tiles of this type, where their rows are few. The last piece, which they may
    /// continue, moves here from the log.
    pub(super) fn expect_plain(&mut self, dtype: Dtype, rows: usize, log: &mut Log) {
        if rows <= MAX_ROWS {
            (self.sum, self.dtype, self.rows) = (Some(sum_of(dtype)), dtype, rows as u32);
            log.take_last(&mut self.words[..rows]);
            self.waiting = rows as u8;
        }
    }
}

#[inline]
pub(super) fn is_scale(scale: f32) -> bool {
    (0.0..f32::INFINITY).contains(&scale)
}
