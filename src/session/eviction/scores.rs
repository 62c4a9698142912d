//! The scores of a layer, by the policy.

use crate::h2o::{BlockScores, NewTokens, SavedScores, ScoredStep, TokenScores};
use crate::session::config::{EvictionRules, Policy};
use crate::status::Result;

/// The scores that a plan ranks blocks by.
pub(super) enum Scores {
    /// Masses of blocks, from block sums.
    Masses(BlockScores),
    /// Numbers of tokens, from keys and values.
    Tokens(TokenScores),
}

impl Scores {
    /// Scores of a layer without tokens.
    pub(super) fn new(rules: &EvictionRules) -> Self {
        match rules.policy {
            Policy::Mass => Scores::Masses(BlockScores::new(rules.aggregation, rules.block_tokens)),
            Policy::KeyDiff => Scores::Tokens(TokenScores::default()),
        }
    }

    /// The scores of a layer of `kv_len` tokens in a chat file.
    pub(super) fn loaded(rules: &EvictionRules, saved: Option<SavedScores>, kv_len: u32) -> Result<Self> {
        let (aggregation, size) = (rules.aggregation, rules.block_tokens);
        Ok(match rules.policy {
            Policy::Mass => Scores::Masses(match saved {
                Some(saved) => BlockScores::with_saved(aggregation, size, &saved, kv_len)?,
                None => BlockScores::unknown(aggregation, size, kv_len)?,
            }),
            Policy::KeyDiff => Scores::Tokens(TokenScores::unknown(kv_len)),
        })
    }

    /// The scores as a chat file has them. Those of tokens are made of their keys and values again.
    pub(super) fn saved(&self) -> Option<Result<SavedScores>> {
        match self {
            Scores::Masses(scores) => Some(scores.saved()),
            Scores::Tokens(_) => None,
        }
    }

    /// Whether tokens that came with a chat file have not been read yet. Their words are in the cache once it has begun.
    pub(super) fn is_loaded(&self) -> bool {
        matches!(self, Scores::Tokens(scores) if scores.unscored() > 0)
    }

    pub(super) fn clear(&mut self) {
        match self {
            Scores::Masses(scores) => scores.clear(),
            Scores::Tokens(scores) => scores.clear(),
        }
    }

    /// Makes room for a cache of `kv_len` tokens, and reads those that the policy ranks by their rows.
    pub(super) fn prepare(
        &mut self,
        kv_len: u32,
        read: impl FnOnce(&mut TokenScores) -> Result<NewTokens>,
    ) -> Result<Option<NewTokens>> {
        match self {
            Scores::Masses(scores) => scores.grow(kv_len).map(|()| None),
            Scores::Tokens(scores) => read(scores).map(Some),
        }
    }

    /// Takes what [`Scores::prepare`] returned. Cannot fail.
    pub(super) fn take(&mut self, new: Option<NewTokens>, kv_len: u32) {
        if let (Scores::Tokens(scores), Some(new)) = (self, new) {
            scores.take(new, kv_len);
        }
    }

    /// The number of last tokens without a score.
    pub(super) fn unscored(&self) -> u32 {
        match self {
            Scores::Masses(scores) => scores.unscored(),
            Scores::Tokens(scores) => scores.unscored(),
        }
    }

    /// The scores once only the tokens of these physical ranges stay.
    pub(super) fn kept(&self, physical: &[[i32; 2]]) -> Result<Self> {
        Ok(match self {
            Scores::Masses(scores) => Scores::Masses(scores.kept(physical)?),
            Scores::Tokens(scores) => Scores::Tokens(scores.kept(physical)?),
        })
    }

    /// Folds in the attention of a step, which appended the last `added` tokens.
    pub(super) fn fold(&mut self, step: &ScoredStep<'_>, added: u32) {
        match self {
            Scores::Masses(scores) => scores.fold(step, added),
            Scores::Tokens(_) => {}
        }
    }

    /// Returns `[block]`: the numbers that a plan ranks blocks by.
    pub(super) fn ranking(&self, block_tokens: u32) -> Result<Vec<f32>> {
        match self {
            Scores::Masses(scores) => scores.ranking(),
            Scores::Tokens(scores) => scores.ranking(block_tokens),
        }
    }
}
