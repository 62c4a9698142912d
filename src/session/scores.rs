//! How much attention each block of a layer has gathered, from step to step.

use super::config::Aggregation;
use crate::layout::Pair;
use crate::status::Result;
use crate::sys::memory;

/// One block's history.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Score {
    /// The moving average, or the sum, of the block's share of a softmax row.
    value: f64,
    /// For every token of the block the rows that could have looked at it, summed.
    seen: f64,
}

/// Scores of all blocks of a layer. Block `i` is the physical tokens from `i * block_tokens` on.
#[derive(Debug)]
pub(super) struct Scores {
    aggregation: Aggregation,
    block_tokens: u32,
    blocks: Vec<Score>,
    /// Tokens the blocks cover.
    len: u32,
    /// The first of them, which a scored row has seen. What came since has no score to be judged by.
    scored: u32,
}

/// The scored rows of one step.
pub(super) struct Attention<'a> {
    /// Mass per block, summed over heads and rows; blocks past the end gathered none.
    pub(super) masses: &'a [f64],
    pub(super) heads: u32,
    /// Rows that count, the last of the step.
    pub(super) rows: u32,
}

impl Scores {
    pub(super) fn new(aggregation: Aggregation, block_tokens: u32) -> Self {
        Scores { aggregation, block_tokens, blocks: Vec::new(), len: 0, scored: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        (self.len, self.scored) = (0, 0);
    }

    /// How many of the last tokens no scored row has seen.
    pub(super) fn unscored(&self) -> u32 {
        self.len - self.scored
    }

    /// Follows the cache to `kv_len` tokens: new ones have no score yet.
    pub(super) fn grow(&mut self, kv_len: u32) -> Result<()> {
        let count = kv_len.div_ceil(self.block_tokens) as usize;
        memory::resize_amortized(&mut self.blocks, count)?;
        self.len = kv_len;
        Ok(())
    }

    /// Folds a step in. Its last `added` tokens were appended in it; a row sees the tokens before it and its own.
    pub(super) fn fold(&mut self, attention: &Attention<'_>, added: u32) {
        let Attention { masses, heads, rows } = *attention;
        let (heads, rows_f) = (f64::from(heads), f64::from(rows));
        let mass = |i: usize| masses.get(i).copied().unwrap_or(0.0);
        let (size, len) = (self.block_tokens, self.len);
        // The last row sees all tokens.
        self.scored = len;
        for (i, block) in self.blocks.iter_mut().enumerate() {
            match self.aggregation {
                Aggregation::Ema { alpha } => {
                    let alpha = f64::from(alpha);
                    block.value = alpha * block.value + (1.0 - alpha) * mass(i) / (heads * rows_f);
                }
                Aggregation::Sum => block.value += mass(i) / heads,
                Aggregation::NormSum => {
                    block.value += mass(i) / heads;
                    let (begin, end) = (i as u32 * size, ((i as u32 + 1) * size).min(len));
                    let old_end = (len - added).clamp(begin, end);
                    let new_tokens = (old_end..end).map(|t| f64::from(rows.min(len - t)));
                    block.seen += f64::from(old_end - begin) * rows_f + new_tokens.sum::<f64>();
                }
            }
        }
    }

    /// When only these physical ranges are left, moved together. A block that is cut keeps its tokens' share.
    pub(super) fn kept(&self, pairs: &[Pair]) -> Result<Self> {
        let mut kept = Scores::new(self.aggregation, self.block_tokens);
        let size = self.block_tokens;
        kept.grow(pairs.iter().map(|p| p[1] as u32).sum())?;
        let mut to = 0;
        for [offset, count] in pairs {
            let (mut at, end) = (*offset as u32, (offset + count) as u32);
            kept.scored += end.min(self.scored).saturating_sub(at);
            while at < end {
                let step = (size - at % size).min(size - to % size).min(end - at);
                let from = self.blocks[(at / size) as usize];
                let share = f64::from(step) / f64::from(size.min(self.len - at / size * size));
                let into = &mut kept.blocks[(to / size) as usize];
                into.value += from.value * share;
                into.seen += from.seen * share;
                at += step;
                to += step;
            }
        }
        Ok(kept)
    }

    /// The numbers that a plan ranks blocks by.
    pub(super) fn ranking(&self) -> Result<Vec<f32>> {
        memory::collect(self.blocks.iter().enumerate().map(|(i, block)| match self.aggregation {
            Aggregation::Ema { .. } | Aggregation::Sum => block.value as f32,
            Aggregation::NormSum if block.seen == 0.0 => 0.0,
            Aggregation::NormSum => {
                let tokens = self.block_tokens.min(self.len - i as u32 * self.block_tokens);
                (block.value * f64::from(tokens) / block.seen) as f32
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(scores: &mut Scores, added: u32, rows: u32, masses: &[f64]) {
        scores.grow(scores.len + added).unwrap();
        scores.fold(&Attention { masses, heads: 2, rows }, added);
    }

    #[test]
    fn ema_is_the_references() {
        let mut scores = Scores::new(Aggregation::Ema { alpha: 0.75 }, 4);
        fold(&mut scores, 8, 1, &[2.0, 0.0]);
        fold(&mut scores, 1, 1, &[1.0, 0.5, 0.5]);
        // 0.75 * (0.25 * 2/2) + 0.25 * 1/2, and so on.
        assert_eq!(scores.ranking().unwrap(), [0.3125, 0.0625, 0.0625]);
    }

    #[test]
    fn sum_grows_with_age_and_norm_sum_does_not() {
        let mut scores = Scores::new(Aggregation::Sum, 4);
        let mut norm = Scores::new(Aggregation::NormSum, 4);
        for scores in [&mut scores, &mut norm] {
            // Two rows over four tokens, then one row over eight that looks at all blocks alike.
            fold(scores, 4, 2, &[4.0]);
            fold(scores, 4, 1, &[1.0, 1.0]);
        }
        assert_eq!(scores.ranking().unwrap(), [2.5, 0.5]);
        // First block: the first step's rows see 2 + 2 + 2 + 1 tokens of it, the second's all 4. The second block's
        // tokens are all visible to the last row only as far as they are not behind it.
        let [first, second] = norm.ranking().unwrap()[..] else { panic!() };
        assert!((f64::from(first) - 2.5 * 4.0 / 11.0).abs() < 1e-6, "{first}");
        assert!((f64::from(second) - 0.5 * 4.0 / 4.0).abs() < 1e-6, "{second}");
    }

    #[test]
    fn a_cut_block_keeps_its_tokens_share_and_whole_blocks_keep_all() {
        let mut scores = Scores::new(Aggregation::Sum, 4);
        fold(&mut scores, 10, 1, &[2.0, 4.0, 8.0]);
        scores = scores.kept(&[[4, 6]]).unwrap();
        assert_eq!(scores.ranking().unwrap(), [2.0, 4.0], "whole blocks move");
        scores = scores.kept(&[[0, 5]]).unwrap();
        assert_eq!(scores.ranking().unwrap(), [2.0, 2.0], "half of the last block's two tokens");
        scores = scores.kept(&[[2, 3]]).unwrap();
        assert_eq!(scores.ranking().unwrap(), [3.0], "half of the first and all of the second");
    }
}
