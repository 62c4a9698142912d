//! Scores of hosts that keep their own.

use crate::status::{Result, bail};

/// Adds a step to the moving average of every block: `score = alpha * score + (1 - alpha) * block_acc / norm`.
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
