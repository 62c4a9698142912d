//! The softmax of a step as block sums, in parts as hosts have them, and its exact masses.

use crate::common::Random;
use crate::h2o::{BlockSums, SumFields};
use crate::status::Result;

/// The attention of one layer in one step.
pub(super) struct Attention {
    pub(super) queries: usize,
    /// The last rows, which are scored.
    pub(super) counted: usize,
    /// `[head][scored row][token]`: softmax values.
    exact: Vec<Vec<Vec<f64>>>,
    /// `[token]`: the softmax values of scored rows, summed over heads.
    pub(super) masses: Vec<f64>,
}

impl Attention {
    /// `worth` is the attention that each token of the cache draws, the step's own included. A row sees the tokens
    /// before it and its own.
    pub(super) fn new(worth: &[f64], heads: usize, queries: usize, counted: usize, random: &mut Random) -> Self {
        let len = worth.len();
        let mut row = |row: usize| {
            let sees = len.saturating_sub(queries - 1 - row).max(1);
            let weights: Vec<f64> = worth[..sees].iter().map(|worth| (worth + random.unit()).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut softmax: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
            softmax.resize(len, 0.0);
            softmax
        };
        let exact: Vec<Vec<Vec<f64>>> =
            (0..heads).map(|_| (queries - counted..queries).map(&mut row).collect()).collect();
        let mut masses = vec![0.0; len];
        for row in exact.iter().flatten() {
            masses.iter_mut().zip(row).for_each(|(mass, value)| *mass += value);
        }
        Attention { queries, counted, exact, masses }
    }

    pub(super) fn heads(&self) -> usize {
        self.exact.len()
    }

    /// The block sums of a head as a host makes them, in parts of its tokens, with any factors.
    pub(super) fn block_sums(&self, head: usize, block_tokens: u32, random: &mut Random) -> Vec<OwnedSums> {
        let cuts = cuts(self.masses.len(), random);
        let parts = cuts.iter().enumerate().map(|(number, (begin, count))| {
            let flags = u32::from(number == 0) + if number + 1 == cuts.len() { 2 } else { 0 };
            let factors = self.exact[head].iter().map(|_| 0.01 + random.unit()).collect();
            OwnedSums::new((flags, 1), block_tokens, *begin..*begin + *count, &self.exact[head], factors)
        });
        parts.collect()
    }
}

/// Block sums with their memory.
#[derive(Clone)]
pub(super) struct OwnedSums {
    pub(super) fields: SumFields,
    pub(super) sums: Vec<f64>,
    pub(super) factors: Vec<f64>,
}

impl OwnedSums {
    /// The sums of some tokens of `rows`, `[row][token]`.
    fn new(
        (flags, heads): (u32, u32),
        block_tokens: u32,
        tokens: std::ops::Range<usize>,
        rows: &[Vec<f64>],
        factors: Vec<f64>,
    ) -> Self {
        let (token_begin, token_end) = (tokens.start as u32, tokens.end as u32);
        let first_block = token_begin / block_tokens;
        let blocks = token_end.div_ceil(block_tokens) - first_block;
        let mut sums = vec![0.0; blocks as usize * rows.len()];
        for token in tokens {
            let block = token / block_tokens as usize - first_block as usize;
            let sums = &mut sums[block * rows.len()..][..rows.len()];
            for (sum, (row, factor)) in sums.iter_mut().zip(rows.iter().zip(&factors)) {
                *sum += row[token] / factor;
            }
        }
        let rows = rows.len() as u32;
        let fields = SumFields { flags, heads, rows, block_tokens, blocks, token_begin, token_end };
        OwnedSums { fields, sums, factors }
    }

    /// Those of whole heads, whose weights need not sum to 1.
    pub(super) fn of_heads(heads: u32, block_tokens: u32, weights: &[Vec<f64>]) -> Self {
        let ones = vec![1.0; weights.len()];
        let sums = OwnedSums::new((3, heads), block_tokens, 0..weights[0].len(), weights, ones);
        let factors = weights.iter().map(|row| 1.0 / row.iter().sum::<f64>()).collect();
        OwnedSums { factors, ..sums }
    }

    pub(super) fn checked(&self) -> Result<BlockSums<'_>> {
        self.fields.check()?;
        Ok(BlockSums::new(self.fields, &self.sums, Some(&self.factors)))
    }
}

/// Ranges that cover all tokens once.
fn cuts(len: usize, random: &mut Random) -> Vec<(usize, usize)> {
    let most = if random.once_in(3) { len } else { random.from(1, 24) };
    let mut cuts = Vec::new();
    let mut at = 0;
    while at < len {
        let count = random.from(1, most).min(len - at);
        cuts.push((at, count));
        at += count;
    }
    cuts
}
