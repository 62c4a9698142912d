//! Eviction of one layer: its scores, its clock, and the plan of its next step.
//!
//! [`Eviction::end`] folds a step's attention into the scores and plans; the next begin applies the plan. A plan is always for
//! the present tokens: what changes them otherwise drops the plan, and makes another.

mod clock;
mod saved;
mod target;

use super::config::EvictionRules;
use super::sums::{self, Attention, Wanted};
use super::tokens::{CacheLengths, Runs, Tokens};
use crate::h2o::{self, BlockScores, ScoredStep};
use crate::layout::Pair;
use crate::status::Result;
use clock::{Clock, Tick};
pub(super) use saved::{SavedEviction, save};
use std::time::Instant;
use target::PlanInput;

/// Counters of one layer since the session was made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EvictionCounts {
    pub(super) evictions: u64,
    /// Tokens that the last eviction removed.
    pub(super) last_evicted: u64,
    /// Tokens that all evictions removed.
    pub(super) evicted: u64,
    pub(super) evict_ns: u64,
    pub(super) scored_steps: u64,
    pub(super) score_ns: u64,
    pub(super) plans: u64,
    pub(super) plan_ns: u64,
    /// Plans dropped because the cache had changed.
    pub(super) stale_plans: u64,
    /// Plans that were not made, or left more than the config says, since tokens have no score.
    pub(super) unscored_plans: u64,
    /// Plans that were not made since memory was refused.
    pub(super) failed_plans: u64,
    /// Steps that left more tokens than the limit.
    pub(super) over_steps: u64,
}

/// How much the last plan keeps, as shares of the length that the ratio is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(super) target: f32,
    pub(super) floor: f32,
    pub(super) quantized: f32,
}

/// A step to close.
#[derive(Debug)]
pub(super) struct ClosingStep {
    /// Query heads that scored, or none.
    pub(super) heads: u32,
    /// Query rows; 0 = the step had no attention.
    pub(super) queries: u32,
    /// Tokens that the host appended.
    pub(super) added: u32,
    /// The attention of the scored rows; `None` where none came.
    pub(super) attention: Option<Attention>,
}

/// The eviction of one layer.
pub(super) struct Eviction {
    rules: EvictionRules,
    scores: BlockScores,
    clock: Clock,
    /// The slots of the tokens that the next begin leaves.
    plan: Option<Vec<Pair>>,
    /// First tokens that stay even where the rules protect fewer: MNN cannot go on from an empty cache whose K is INT8.
    pub(super) least_sink: u32,
    shares: Option<Shares>,
    counts: EvictionCounts,
}

impl Eviction {
    pub(super) fn new(rules: EvictionRules) -> Self {
        Eviction {
            rules,
            scores: BlockScores::new(rules.ema_alpha, rules.block_tokens),
            clock: Clock::default(),
            plan: None,
            least_sink: 0,
            shares: None,
            counts: EvictionCounts::default(),
        }
    }

    pub(super) fn rules(&self) -> &EvictionRules {
        &self.rules
    }

    /// How the attention of the next step is summed.
    pub(super) fn wanted(&self, lengths: CacheLengths) -> Wanted {
        Wanted {
            block_tokens: self.rules.block_tokens as usize,
            prompt_rows: self.rules.prefill_queries,
            empty: lengths.logical == 0,
        }
    }

    pub(super) fn shares(&self) -> Option<Shares> {
        self.shares
    }

    pub(super) fn counts(&self) -> &EvictionCounts {
        &self.counts
    }

    /// The slots of the tokens that the plan leaves; `None` where it takes none.
    pub(super) fn plan(&self) -> Option<&[Pair]> {
        self.plan.as_deref()
    }

    /// The plan was applied, to a cache of `before` tokens, of which it left `after`.
    pub(super) fn evicted(&mut self, before: u32, after: u32, start: Instant) {
        let gone = u64::from(before - after);
        self.plan = None;
        self.counts.evictions += 1;
        self.counts.last_evicted = gone;
        self.counts.evicted += gone;
        self.counts.evict_ns += start.elapsed().as_nanos() as u64;
    }

    /// The scores once only the tokens in these slots stay.
    pub(super) fn scores_of(&self, slots: &[Pair]) -> Result<BlockScores> {
        self.scores.kept(slots)
    }

    pub(super) fn set_scores(&mut self, scores: BlockScores) {
        self.scores = scores;
    }

    /// Makes room for the scores of a cache of so many tokens, so that [`Eviction::end`] cannot fail.
    pub(super) fn reserve(&mut self, physical: u32) -> Result<()> {
        self.scores.grow(physical)
    }

    /// Folds the attention of a step that left these tokens into the scores, advances the clock, and plans when due. A plan for
    /// which memory is refused is counted, and a later step plans.
    pub(super) fn end(&mut self, step: &ClosingStep, tokens: &Tokens, pins: &Runs, start: Instant) {
        let ClosingStep { heads, queries, added, ref attention } = *step;
        let was_empty = tokens.lengths.logical == added;
        self.clock.see(added, was_empty);
        if let Some(Attention { masses, rows }) = attention {
            self.scores.fold(&ScoredStep { masses, heads, rows: *rows });
        }
        let scored = attention.is_some();
        self.counts.scored_steps += u64::from(scored);
        self.counts.score_ns += start.elapsed().as_nanos() as u64;
        let tick = match queries {
            0 => Tick::Unattended,
            _ if sums::is_prompt(queries as usize, was_empty) => Tick::Prompt { scored },
            _ => Tick::Decode,
        };
        let (due, lengths) = (self.clock.tick(tick, self.rules.update_interval), tokens.lengths);
        self.counts.over_steps += u64::from(self.rules.is_over(lengths.physical, 0));
        if (due && lengths.logical >= self.rules.trigger_min_tokens) || self.is_near_limit(lengths) {
            self.try_plan(tokens, pins);
        }
    }

    /// Makes a waiting plan anew, for other tokens or other pins.
    pub(super) fn plan_anew(&mut self, tokens: &Tokens, pins: &Runs) {
        if self.plan.take().is_none() {
            return;
        }
        self.counts.stale_plans += 1;
        if tokens.lengths.logical >= self.rules.trigger_min_tokens || self.is_near_limit(tokens.lengths) {
            self.try_plan(tokens, pins);
        }
    }

    /// The cache was cleared.
    pub(super) fn reset(&mut self) {
        self.scores.clear();
        (self.plan, self.clock) = (None, Clock::default());
    }

    /// Whether the next step may exceed the limit.
    fn is_near_limit(&self, lengths: CacheLengths) -> bool {
        self.rules.is_over(lengths.physical, self.clock.next_step())
    }

    fn try_plan(&mut self, tokens: &Tokens, pins: &Runs) {
        if self.make_plan(tokens, pins).is_err() {
            self.counts.failed_plans += 1;
        }
    }

    fn make_plan(&mut self, tokens: &Tokens, pins: &Runs) -> Result<()> {
        let start = Instant::now();
        let CacheLengths { logical: length, physical } = tokens.lengths;
        // Tokens at the end that no scored row has seen stay.
        let unscored = if self.rules.evict_unscored { 0 } else { self.scores.unscored() };
        if physical > 0 && unscored == physical {
            self.clock.planned();
            self.counts.unscored_plans += 1;
            return Ok(());
        }
        let over = self.is_near_limit(tokens.lengths);
        let pinned = tokens.raw.places_of(pins.pairs())?;
        let usual = self.clock.usual_step();
        let input =
            PlanInput { length, physical, unscored, over, usual, least_sink: self.least_sink, pinned: pinned.pairs() };
        let config = self.rules.plan_config(&input)?;
        let plan = h2o::plan_pinned(&self.scores.ranking()?, physical, &config, pinned.pairs())?;
        let share = physical as f32 / length.max(1) as f32;
        self.shares = Some(Shares {
            target: plan.target_keep_effective * share,
            floor: plan.floor_keep * share,
            quantized: plan.block_quantized_keep * share,
        });
        self.clock.planned();
        self.counts.plans += 1;
        self.counts.unscored_plans += u64::from(unscored > self.rules.recent_tokens);
        self.plan = (plan.evicted_tokens > 0).then_some(plan.pairs);
        self.counts.plan_ns += start.elapsed().as_nanos() as u64;
        Ok(())
    }
}
