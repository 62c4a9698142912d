//! The scores of a layer's blocks, from step to step and across evictions.

use crate::status::{Result, bail};
use crate::sys::memory;

/// Scores of all blocks of a layer. Block `i` begins at physical token `i * block_tokens`.
#[derive(Debug)]
pub struct BlockScores {
    /// Weight of the old score.
    alpha: f32,
    block_tokens: u32,
    /// Moving averages of the mass per head and row. A token has an equal share of its block's.
    blocks: Vec<f64>,
    /// Tokens that the blocks cover.
    len: u32,
    /// The first tokens of these, which a scored row has seen.
    scored: u32,
}

/// Scores of all blocks of a layer, as a chat file has them.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedScores {
    /// Weight of the old score.
    pub alpha: f32,
    /// Tokens per block.
    pub block_tokens: u32,
    /// The first tokens, which a scored row has seen.
    pub scored: u32,
    /// The score of each block.
    pub blocks: Vec<f64>,
}

/// The scored rows of one step.
#[derive(Clone, Copy, Debug)]
pub struct ScoredStep<'a> {
    /// `[block]`: masses, summed over heads and rows. Blocks past the end have none.
    pub masses: &'a [f64],
    /// Query heads.
    pub heads: u32,
    /// Rows per head that count, the last of the step.
    pub rows: u32,
}

impl BlockScores {
    /// Scores of a layer without tokens.
    pub fn new(alpha: f32, block_tokens: u32) -> Self {
        BlockScores { alpha, block_tokens, blocks: Vec::new(), len: 0, scored: 0 }
    }

    /// Returns the scores as a chat file keeps them.
    pub fn saved(&self) -> Result<SavedScores> {
        let BlockScores { alpha, block_tokens, scored, .. } = *self;
        Ok(SavedScores { alpha, block_tokens, scored, blocks: memory::copied(&self.blocks)? })
    }

    /// The scores of a layer with `kv_len` tokens, of which `saved` says what was known. Scores of another alpha, or
    /// of blocks of another size, are unknown: no row has seen their tokens.
    /// CORRUPT: if `saved` has not one finite number of blocks for `kv_len` tokens.
    pub fn with_saved(alpha: f32, block_tokens: u32, saved: &SavedScores, kv_len: u32) -> Result<Self> {
        let mut scores = BlockScores::unknown(alpha, block_tokens, kv_len)?;
        let expected = kv_len.div_ceil(saved.block_tokens.max(1)) as usize;
        let is_finite = saved.blocks.iter().all(|number| number.is_finite() && *number >= 0.0);
        if saved.blocks.len() != expected || saved.scored > kv_len || !is_finite {
            bail!(
                Corrupt,
                "{} blocks of {} tokens have scores, {} tokens are scored; the layer has {kv_len} tokens",
                saved.blocks.len(),
                saved.block_tokens,
                saved.scored
            );
        }
        if (saved.alpha, saved.block_tokens) == (alpha, block_tokens) {
            scores.scored = saved.scored;
            scores.blocks.copy_from_slice(&saved.blocks);
        }
        Ok(scores)
    }

    /// Scores of `kv_len` tokens that no row has seen.
    pub fn unknown(alpha: f32, block_tokens: u32, kv_len: u32) -> Result<Self> {
        let mut scores = BlockScores::new(alpha, block_tokens);
        scores.grow(kv_len)?;
        Ok(scores)
    }

    /// Drops all blocks. Retains the memory.
    pub fn clear(&mut self) {
        self.blocks.clear();
        (self.len, self.scored) = (0, 0);
    }

    /// Returns the number of last tokens that no scored row has seen.
    pub fn unscored(&self) -> u32 {
        self.len - self.scored
    }

    /// Covers `kv_len` tokens, at least as many as before. New tokens add 0 to the scores of their blocks.
    pub fn grow(&mut self, kv_len: u32) -> Result<()> {
        let count = kv_len.div_ceil(self.block_tokens) as usize;
        memory::resize_amortized(&mut self.blocks, count)?;
        self.len = kv_len;
        Ok(())
    }

    /// Folds in the attention of a step, whose last row sees all tokens.
    pub fn fold(&mut self, step: &ScoredStep<'_>) {
        let ScoredStep { masses, heads, rows } = *step;
        self.scored = self.len;
        let (alpha, norm) = (f64::from(self.alpha), f64::from(heads) * f64::from(rows));
        for (i, score) in self.blocks.iter_mut().enumerate() {
            *score = alpha * *score + (1.0 - alpha) * masses.get(i).copied().unwrap_or(0.0) / norm;
        }
    }

    /// Returns the scores after all tokens but those of `pairs` (physical offset, length; ascending) are evicted. A
    /// token takes an equal share of its block's score along.
    pub fn kept(&self, pairs: &[[i32; 2]]) -> Result<Self> {
        let mut kept = BlockScores::new(self.alpha, self.block_tokens);
        let size = self.block_tokens;
        kept.grow(pairs.iter().map(|p| p[1] as u32).sum())?;
        let mut to = 0;
        for [offset, count] in pairs {
            let (mut at, end) = (*offset as u32, (offset + count) as u32);
            kept.scored += end.min(self.scored).saturating_sub(at);
            while at < end {
                let step = (size - at % size).min(size - to % size).min(end - at);
                let share = f64::from(step) / f64::from(self.tokens(at / size));
                kept.blocks[(to / size) as usize] += self.blocks[(at / size) as usize] * share;
                at += step;
                to += step;
            }
        }
        Ok(kept)
    }

    /// Returns `[block]`: the numbers that a plan ranks blocks by.
    pub fn ranking(&self) -> Result<Vec<f32>> {
        memory::collect(self.blocks.iter().map(|score| *score as f32))
    }

    /// Tokens of a block: fewer than `block_tokens` in the last one of a cache.
    fn tokens(&self, block: u32) -> u32 {
        self.block_tokens.min(self.len - block * self.block_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(scores: &mut BlockScores, added: u32, rows: u32, masses: &[f64]) {
        scores.grow(scores.len + added).unwrap();
        scores.fold(&ScoredStep { masses, heads: 2, rows });
    }

    #[test]
    fn ema_is_the_references() {
        let mut scores = BlockScores::new(0.75, 4);
        fold(&mut scores, 8, 1, &[2.0, 0.0]);
        fold(&mut scores, 1, 1, &[1.0, 0.5, 0.5]);
        // 0.75 * (0.25 * 2/2) + 0.25 * 1/2, and so on.
        assert_eq!(scores.ranking().unwrap(), [0.3125, 0.0625, 0.0625]);
    }

    #[test]
    fn a_cut_block_keeps_its_tokens_share_and_whole_blocks_keep_all() {
        let mut scores = BlockScores::new(0.5, 4);
        // Half of the mass per head.
        fold(&mut scores, 10, 1, &[4.0, 8.0, 16.0]);
        scores = scores.kept(&[[4, 6]]).unwrap();
        assert_eq!(scores.ranking().unwrap(), [2.0, 4.0], "whole blocks move");
        scores = scores.kept(&[[0, 5]]).unwrap();
        assert_eq!(scores.ranking().unwrap(), [2.0, 2.0], "half of the last block's two tokens");
        scores = scores.kept(&[[2, 3]]).unwrap();
        assert_eq!(scores.ranking().unwrap(), [3.0], "half of the first and all of the second");
    }
}
