//! Block sums of a head, for a session that ranks tokens by the attention that they get.

use mnnkv::h2o::{BlockSums, SumFields};
use mnnkv::session::{ScoredRows, Session};
use mnnkv::status::Result;

/// The attention of one head's scored rows to all tokens of a cache.
pub(crate) struct HeadSums {
    fields: SumFields,
    /// `[block][row]`
    sums: Vec<f64>,
    /// `[row]`
    factors: Vec<f64>,
}

impl HeadSums {
    /// Without any attention.
    pub(crate) fn new(scored: ScoredRows, tokens: u32) -> Self {
        let ScoredRows { rows, block_tokens } = scored;
        let (flags, blocks) = (SumFields::FIRST | SumFields::LAST, tokens.div_ceil(block_tokens));
        let fields = SumFields { flags, heads: 1, rows, block_tokens, blocks, token_begin: 0, token_end: tokens };
        HeadSums { fields, sums: vec![0.0; (blocks * rows) as usize], factors: vec![1.0; rows as usize] }
    }

    /// Sets the attention of a row to the first tokens: their weights times `factor`.
    pub(crate) fn set(&mut self, row: usize, weights: &[f32], factor: f64) {
        self.factors[row] = factor;
        let rows = self.fields.rows as usize;
        for (block, weights) in weights.chunks(self.fields.block_tokens as usize).enumerate() {
            self.sums[block * rows + row] = weights.iter().map(|weight| f64::from(*weight)).sum();
        }
    }

    /// Adds them to an open layer.
    pub(crate) fn give(&self, session: &Session, layer: u32) -> Result<()> {
        self.fields.check()?;
        session.block_sums(layer, 0, &BlockSums::new(self.fields, &self.sums, Some(&self.factors)))
    }
}
