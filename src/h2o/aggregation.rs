//! Score aggregations: how the attention of one step changes the score of a block.
//!
//! A new aggregation is a variant of [`Aggregation`] and an arm in each of its methods.

use crate::status::{Result, bail};

/// How the attention of steps adds up to a block's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregation {
    /// Exponential moving average of the mass per head and row.
    Ema {
        /// Weight of the old score, 0 to 1.
        alpha: f32,
    },
    /// Sum of the mass per head.
    Sum,
    /// As `Sum`, divided by the number of rows that saw the block.
    NormSum,
}

/// The history of one block. Both numbers are sums over its tokens, so a part of a block has a share of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BlockScore {
    /// The average or the sum of masses.
    value: f64,
    /// Pairs of a token and a scored row that saw it. [`Aggregation::NormSum`] alone counts them.
    seen: f64,
}

impl BlockScore {
    /// Value, and pairs seen.
    pub(super) fn numbers(&self) -> [f64; 2] {
        [self.value, self.seen]
    }

    pub(super) fn of([value, seen]: [f64; 2]) -> Self {
        BlockScore { value, seen }
    }

    /// Adds `share` of the tokens of another block.
    pub(super) fn add_share(&mut self, from: BlockScore, share: f64) {
        self.value += from.value * share;
        self.seen += from.seen * share;
    }
}

/// One block in one scored step.
pub(super) struct BlockStep<S> {
    /// The mass of the block, summed over heads and rows.
    pub(super) mass: f64,
    pub(super) heads: f64,
    pub(super) rows: f64,
    /// Returns the pairs of a token of the block and a row that saw it.
    pub(super) seen: S,
}

impl Aggregation {
    /// Folds a step into the score of a block.
    pub(super) fn fold(self, score: &mut BlockScore, step: BlockStep<impl FnOnce() -> f64>) {
        let BlockStep { mass, heads, rows, seen } = step;
        match self {
            Aggregation::Ema { alpha } => {
                let alpha = f64::from(alpha);
                score.value = alpha * score.value + (1.0 - alpha) * mass / (heads * rows);
            }
            Aggregation::Sum => score.value += mass / heads,
            Aggregation::NormSum => {
                score.value += mass / heads;
                score.seen += seen();
            }
        }
    }

    /// Returns the number that a plan ranks a block of `tokens` tokens by.
    pub(super) fn rank(self, score: &BlockScore, tokens: u32) -> f32 {
        match self {
            Aggregation::Ema { .. } | Aggregation::Sum => score.value as f32,
            Aggregation::NormSum if score.seen == 0.0 => 0.0,
            Aggregation::NormSum => (score.value * f64::from(tokens) / score.seen) as f32,
        }
    }
}

/// [`Aggregation::Ema`] in f32, for hosts that keep their own scores: `score = alpha * score + (1 - alpha) * block_acc /
/// norm` for every block.
///
/// `block_acc` is the mass of each block, summed over heads and rows; `norm` is the number of heads times rows. On an
/// error no score has changed.
pub fn update_scores(scores: &mut [f32], block_acc: &[f32], alpha: f32, norm: f32) -> Result<()> {
    if scores.len() != block_acc.len() {
        bail!(InvalidArgument, "{} scores and {} block sums; equal numbers expected", scores.len(), block_acc.len());
    }
    if !(0.0..=1.0).contains(&alpha) {
        bail!(InvalidArgument, "alpha is {alpha}; 0 to 1 expected");
    }
    if !(norm.is_finite() && norm > 0.0) {
        bail!(InvalidArgument, "norm is {norm}; a positive number (heads * queries) expected");
    }
    if let Some(i) = block_acc.iter().position(|acc| !(acc / norm).is_finite()) {
        bail!(InvalidArgument, "block_acc[{i}] is {} and norm {norm}; a finite quotient expected", block_acc[i]);
    }
    for (score, acc) in scores.iter_mut().zip(block_acc) {
        *score = alpha * *score + (1.0 - alpha) * (acc / norm);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worked_example() {
        let mut scores = [0.5, 0.0, 1.0];
        update_scores(&mut scores, &[8.0, 16.0, 0.0], 0.75, 16.0).unwrap();
        assert_eq!(scores, [0.5, 0.25, 0.75]);
    }

    #[test]
    fn bad_numbers_change_no_score() {
        let nan = f32::NAN;
        for (acc, alpha, norm) in [
            ([1.0, nan], 0.9, 1.0),
            ([f32::INFINITY, 1.0], 0.9, 1.0),
            ([1.0, 3e38], 0.9, 1e-30),
            ([1.0, 1.0], nan, 1.0),
            ([1.0, 1.0], -0.1, 1.0),
            ([1.0, 1.0], 1.1, 1.0),
            ([1.0, 1.0], 0.9, 0.0),
            ([1.0, 1.0], 0.9, -1.0),
            ([1.0, 1.0], 0.9, nan),
            ([1.0, 1.0], 0.9, f32::INFINITY),
        ] {
            let mut scores = [0.25, 0.5];
            assert!(update_scores(&mut scores, &acc, alpha, norm).is_err(), "{acc:?} {alpha} {norm}");
            assert_eq!(scores, [0.25, 0.5]);
        }
        assert!(update_scores(&mut [0.0], &[], 0.9, 1.0).is_err());
        assert!(update_scores(&mut [], &[], 0.9, 1.0).is_ok());
    }
}
