//! Eviction of one layer: its scores, its clock, the plan of its next step, and the positions of its tokens.
//!
//! [`Eviction::end`] folds a step's attention into the scores and plans; [`Eviction::begin`] of the next step applies the
//! plan. A plan is always for the present length of the cache: [`Eviction::keep`] and [`Eviction::reset`], which alone
//! change it otherwise, drop the plan, and `keep` makes another.

mod attention;
mod clock;
mod compaction;
mod positions;
mod saved;
mod target;

use super::config::{Config, EvictionRules};
use super::lanes::{self, AllLanes, Wanted};
use super::layer::CacheLengths;
use super::pins::Pins;
use crate::h2o::{self, BlockScores, ScoredStep};
use crate::layout::{Cache, Kind, Pair};
use crate::status::{Result, bail};
use crate::store::Store;
use clock::{Clock, Tick};
use positions::PositionMap;
pub(super) use saved::{Loaded, SavedEviction};
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
    /// Bytes returned to the system behind evicted and erased tokens.
    pub(super) released_bytes: u64,
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
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosingStep {
    /// Query heads that scored, or none.
    pub(super) heads: u32,
    /// Query rows; 0 = the step had no attention.
    pub(super) queries: u32,
    /// Tokens that the host appended.
    pub(super) added: u32,
    /// How attention was summed; `None` where nothing is scored.
    pub(super) wanted: Option<Wanted>,
    /// K is INT8: MNN cannot go on from an empty cache, so token 0 stays.
    pub(super) keeps_first: bool,
}

/// The rules and the scores of a layer that tokens are evicted from.
struct Ranking {
    rules: EvictionRules,
    scores: BlockScores,
}

impl Ranking {
    /// Tokens at the end that no scored row has seen and that must therefore stay.
    fn unscored(&self) -> u32 {
        if self.rules.evict_unscored { 0 } else { self.scores.unscored() }
    }
}

/// The eviction of one layer. Positions are kept of every layer, all else of those that tokens are evicted from.
pub(super) struct Eviction {
    number: u32,
    ranking: Option<Ranking>,
    positions: PositionMap,
    clock: Clock,
    /// The tokens that the next begin leaves, as (offset, length); ascending.
    plan: Option<Vec<Pair>>,
    /// As of the last step; see [`ClosingStep`].
    keeps_first: bool,
    shares: Option<Shares>,
    counts: EvictionCounts,
}

impl Eviction {
    pub(super) fn new(number: u32, config: &Config) -> Self {
        let rules = config.eviction_of(number);
        Eviction {
            number,
            ranking: rules
                .map(|rules| Ranking { rules, scores: BlockScores::new(rules.ema_alpha, rules.block_tokens) }),
            positions: PositionMap::default(),
            clock: Clock::default(),
            plan: None,
            keeps_first: false,
            shares: None,
            counts: EvictionCounts::default(),
        }
    }

    /// The rules, where tokens are evicted.
    pub(super) fn rules(&self) -> Option<&EvictionRules> {
        self.ranking.as_ref().map(|ranking| &ranking.rules)
    }

    /// How the attention of the next step is summed; `None` where nothing is scored.
    pub(super) fn wanted(&self, lengths: CacheLengths) -> Option<Wanted> {
        let (rules, empty) = (self.rules()?, lengths.logical == 0);
        let (block_tokens, prompt_rows) = (rules.block_tokens as usize, rules.prefill_queries);
        Some(Wanted { block_tokens, prompt_rows, empty })
    }

    /// The logical positions of the cache in physical order, as runs.
    pub(super) fn positions(&self) -> &[Pair] {
        self.positions.runs()
    }

    pub(super) fn shares(&self) -> Option<Shares> {
        self.shares
    }

    pub(super) fn counts(&self) -> &EvictionCounts {
        &self.counts
    }

    /// Whether bytes behind the tokens were returned to the system.
    pub(super) fn has_released(&self) -> bool {
        self.counts.released_bytes > 0
    }

    /// Applies the plan; returns the lengths afterwards. On an error nothing has changed.
    pub(super) fn begin(
        &mut self,
        cache: &mut Cache<'_>,
        store: &mut Store,
        before: CacheLengths,
    ) -> Result<CacheLengths> {
        let Some(plan) = self.plan.take() else { return Ok(before) };
        let start = Instant::now();
        let positions = self.positions.evicted(&plan);
        if let Err(error) = positions.and_then(|left| self.leave(&plan, left, cache, store, before)) {
            self.plan = Some(plan);
            return Err(error);
        }
        Ok(self.evicted(&plan, before, start))
    }

    /// The logical positions of the tokens at these physical ranges, as runs.
    pub(super) fn positions_of(&self, physical: &[Pair]) -> Result<Vec<Pair>> {
        Ok(self.positions.evicted(physical)?.into_runs())
    }

    /// Leaves only the tokens at these physical ranges in the cache; the others go on elsewhere. Returns the lengths
    /// afterwards. On an error nothing has changed.
    pub(super) fn take_out(
        &mut self,
        left: &[Pair],
        cache: &mut Cache<'_>,
        store: &mut Store,
        before: CacheLengths,
    ) -> Result<CacheLengths> {
        let positions = self.positions.evicted(left)?;
        self.leave(left, positions, cache, store, before)?;
        Ok(CacheLengths { physical: tokens(left), ..before })
    }

    /// Counts an eviction.
    fn evicted(&mut self, left: &[Pair], before: CacheLengths, start: Instant) -> CacheLengths {
        let after = CacheLengths { physical: tokens(left), ..before };
        let gone = u64::from(before.physical - after.physical);
        self.counts.evictions += 1;
        self.counts.last_evicted = gone;
        self.counts.evicted += gone;
        self.counts.evict_ns += start.elapsed().as_nanos() as u64;
        after
    }

    /// Folds the attention of a step into the scores, advances the clock and plans when due; returns the lengths
    /// afterwards. On an error nothing has changed. A plan for which memory is refused is no error: it is counted, and a
    /// later step plans.
    /// INVALID_ARGUMENT: if the sums in `lanes` are not those of the step.
    pub(super) fn end(
        &mut self,
        lanes: &AllLanes<'_>,
        step: &ClosingStep,
        before: CacheLengths,
        pins: &Pins,
    ) -> Result<CacheLengths> {
        let start = Instant::now();
        let ClosingStep { heads, queries, added, wanted, keeps_first } = *step;
        let after = CacheLengths { logical: before.logical + added, physical: before.physical + added };
        let attention = match &wanted {
            Some(wanted) if queries > 0 => {
                attention::gather(lanes, self.number, wanted, heads, queries, after.physical)?
            }
            _ => None,
        };
        self.positions.reserve()?;
        if let Some(ranking) = &mut self.ranking {
            ranking.scores.grow(after.physical)?;
        }
        self.positions.append(before.logical, added)?;

        // Nothing below fails.
        self.keeps_first = keeps_first;
        self.clock.see(added, before.logical == 0);
        if let Some(ranking) = &mut self.ranking {
            if let Some(gathered) = &attention {
                let step = ScoredStep { masses: &gathered.masses, heads, rows: gathered.rows };
                ranking.scores.fold(&step);
            }
            let scored = attention.is_some();
            self.counts.scored_steps += u64::from(scored);
            self.counts.score_ns += start.elapsed().as_nanos() as u64;
            let tick = match queries {
                0 => Tick::Unattended,
                _ if lanes::is_prompt(queries as usize, before.logical == 0) => Tick::Prompt { scored },
                _ => Tick::Decode,
            };
            self.tick(tick, after, pins);
        }
        Ok(after)
    }

    /// Leaves only the tokens at these logical positions, and counts logical positions anew over them, as `pins` already
    /// does; returns the lengths afterwards. A waiting plan is made anew. On an error nothing has changed.
    /// INVALID_ARGUMENT: if INT8 K would have no token left of a chat that has some.
    pub(super) fn keep(
        &mut self,
        logical: &[Pair],
        cache: Option<&mut Cache<'_>>,
        store: &mut Store,
        before: CacheLengths,
        pins: &Pins,
    ) -> Result<CacheLengths> {
        let physical = self.positions.find(logical)?;
        let is_int8 = cache.as_ref().is_some_and(|cache| cache.layout.rows().key == Kind::Int8);
        if is_int8 && tokens(&physical) == 0 && tokens(logical) > 0 {
            bail!(
                InvalidArgument,
                "layer {} would have {} tokens in its chat and none in its cache, whose K is INT8: MNN's quantiser must \
                 begin with more than one token; clear the cache and reset the layer (mnnkv_session_reset)",
                self.number,
                tokens(logical)
            );
        }
        let positions = self.positions.kept(logical)?;
        // Without a cache there are no tokens in it.
        if let Some(cache) = cache {
            self.leave(&physical, positions, cache, store, before)?;
        }
        let after = CacheLengths { logical: tokens(logical), physical: tokens(&physical) };
        self.plan_anew(after, pins);
        Ok(after)
    }

    /// Makes a waiting plan anew, for other tokens or other pins.
    pub(super) fn plan_anew(&mut self, lengths: CacheLengths, pins: &Pins) {
        if self.plan.take().is_some() {
            self.counts.stale_plans += 1;
            self.plan_if_due(lengths, pins);
        }
    }

    fn plan_if_due(&mut self, lengths: CacheLengths, pins: &Pins) {
        let due = |ranking: &Ranking| lengths.logical >= ranking.rules.trigger_min_tokens;
        if self.ranking.as_ref().is_some_and(due) || self.is_near_limit(lengths) {
            self.try_plan(lengths, pins);
        }
    }

    /// The cache was cleared.
    pub(super) fn reset(&mut self) {
        self.positions.clear();
        self.ranking.iter_mut().for_each(|ranking| ranking.scores.clear());
        self.plan = None;
        self.clock = Clock::default();
    }

    /// Leaves only the tokens at these physical positions, whose logical ones are `positions`. On an error nothing has
    /// changed.
    fn leave(
        &mut self,
        physical: &[Pair],
        positions: PositionMap,
        cache: &mut Cache<'_>,
        store: &mut Store,
        before: CacheLengths,
    ) -> Result<()> {
        let scores = self.ranking.as_ref().map(|ranking| ranking.scores.kept(physical)).transpose()?;
        self.counts.released_bytes += compaction::compact(self.number, cache, store, before.physical, physical)?;
        self.positions = positions;
        if let (Some(ranking), Some(scores)) = (&mut self.ranking, scores) {
            ranking.scores = scores;
        }
        Ok(())
    }

    /// Advances the clock by a step, and plans when due.
    fn tick(&mut self, tick: Tick, lengths: CacheLengths, pins: &Pins) {
        let Some(ranking) = &self.ranking else { return };
        let rules = &ranking.rules;
        let due = self.clock.tick(tick, rules.update_interval);
        self.counts.over_steps += u64::from(rules.is_over(lengths.physical, 0));
        if (due && lengths.logical >= rules.trigger_min_tokens) || self.is_near_limit(lengths) {
            self.try_plan(lengths, pins);
        }
    }

    /// Whether the next step may exceed the limit.
    fn is_near_limit(&self, lengths: CacheLengths) -> bool {
        self.rules().is_some_and(|rules| rules.is_over(lengths.physical, self.clock.next_step()))
    }

    fn try_plan(&mut self, lengths: CacheLengths, pins: &Pins) {
        if self.make_plan(lengths, pins).is_err() {
            self.counts.failed_plans += 1;
        }
    }

    fn make_plan(&mut self, lengths: CacheLengths, pins: &Pins) -> Result<()> {
        let Some(ranking) = &self.ranking else { return Ok(()) };
        let start = Instant::now();
        let (length, physical) = (lengths.logical, lengths.physical);
        let unscored = ranking.unscored();
        if physical > 0 && unscored == physical {
            self.clock.planned();
            self.counts.unscored_plans += 1;
            return Ok(());
        }
        let over = self.is_near_limit(lengths);
        let least_sink = u32::from(self.keeps_first);
        let pinned = &self.positions.find(pins.runs())?;
        let input = PlanInput { length, physical, unscored, over, usual: self.clock.usual_step(), least_sink, pinned };
        let config = ranking.rules.plan_config(&input)?;
        let plan = h2o::plan_pinned(&ranking.scores.ranking()?, physical, &config, pinned)?;
        let share = physical as f32 / length.max(1) as f32;
        self.shares = Some(Shares {
            target: plan.target_keep_effective * share,
            floor: plan.floor_keep * share,
            quantized: plan.block_quantized_keep * share,
        });
        self.clock.planned();
        self.counts.plans += 1;
        self.counts.unscored_plans += u64::from(unscored > ranking.rules.recent_tokens);
        self.plan = (plan.evicted_tokens > 0).then_some(plan.pairs);
        self.counts.plan_ns += start.elapsed().as_nanos() as u64;
        Ok(())
    }
}

/// Tokens in the ranges.
fn tokens(pairs: &[Pair]) -> u32 {
    pairs.iter().map(|pair| pair[1] as u32).sum()
}
