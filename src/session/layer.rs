//! One layer: its clock, its lengths, its scores, the plan that waits, and what it has counted.

use super::config::{Basis, H2o};
use super::eviction::Due;
use super::lanes::{MOST_DECODE_ROWS, Wanted};
use super::metrics::WaitTimes;
use super::positions::Positions;
use crate::h2o::{self, BlockScores, Plan, ScoredStep};
use crate::layout::{self, Layout, Pair, Rows, TokenRange};
use crate::status::{Result, bail};
use crate::store::Cache;
use crate::sys::pages;
use std::time::Instant;

/// Tokens of a layer since its reset, and those in its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// The chat's.
    pub logical: u32,
    /// The cache's.
    pub physical: u32,
}

/// A step under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// How its tiles are summed; `None` where nothing is scored.
    pub(super) wanted: Option<Wanted>,
}

/// What a layer counted since the session was made, besides the store's own counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// What begin spent on restoring.
    pub(super) waits: WaitTimes,
    pub(super) wait_ns: u64,
    pub(super) evict_ns: u64,
    pub(super) evictions: u64,
    pub(super) last_evicted: u64,
    pub(super) evicted: u64,
    pub(super) score_ns: u64,
    pub(super) scored_steps: u64,
    pub(super) plan_ns: u64,
    pub(super) plans: u64,
    pub(super) stale_plans: u64,
    /// Given back to the system behind evicted tokens.
    pub(super) released_bytes: u64,
    /// Plans that were not made, or left more than the config says, for want of scores.
    pub(super) unscored_plans: u64,
    /// Steps that left more tokens than the limit.
    pub(super) over_steps: u64,
    /// Blocks that could not be submitted or committed for lack of memory.
    pub(super) fallbacks: u64,
}

/// A layer's books after an edit of its cache, made before the first byte moves.
pub(super) struct Edit {
    positions: Positions,
    scores: Option<BlockScores>,
    logical: u32,
    physical: u32,
}

fn sum(pairs: &[Pair]) -> u32 {
    pairs.iter().map(|p| p[1] as u32).sum()
}

/// How much the last plan kept and why, as shares of the length its target was taken of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(super) target: f32,
    pub(super) floor: f32,
    pub(super) quantized: f32,
}

/// How many tokens steps append.
#[derive(Clone, Copy, Debug, Default)]
struct Growth {
    /// The last step, and the one before it.
    last: [u32; 2],
    /// The largest step since the reset that was no prompt.
    largest_draft: u32,
}

impl Growth {
    fn see(&mut self, added: u32, empty: bool) {
        self.last = [added, self.last[0]];
        if !empty && added as usize <= MOST_DECODE_ROWS {
            self.largest_draft = self.largest_draft.max(added);
        }
    }

    /// What the next step may append: as much as any draft, or the next chunk of a prompt.
    fn next(&self) -> u32 {
        self.largest_draft.max(self.last[0]).max(1)
    }

    /// The same where one large step is taken for a prompt of one piece, and only two for chunks: to make room for
    /// another prompt would cost tokens that the answer to this one needs.
    fn usual(&self) -> u32 {
        self.largest_draft.max(self.last[0].min(self.last[1]))
    }
}

/// A cache as a call handed it over. Of its addresses only the places within a page are kept.
pub(super) struct Seen {
    pub(super) layout: Layout,
    offsets: (usize, usize),
}

impl Seen {
    /// Bytes of the whole pages that a release of these tokens gives back.
    pub(super) fn pages_of(&self, range: TokenRange) -> u64 {
        layout::whole_pages(&self.layout, range, self.offsets, pages::page_size())
    }
}

/// The state of one layer.
pub(super) struct Layer {
    pub(super) number: u32,
    pub(super) lengths: Lengths,
    pub(super) positions: Positions,
    /// What the host's layouts must agree with, from the first call on.
    rows: Option<Rows>,
    /// A host has named it, before a reset perhaps.
    used: bool,
    /// Tokens that its buffers had room for at the last call.
    pub(super) buffer_tokens: usize,
    /// What its cache looked like then.
    pub(super) seen: Option<Seen>,
    pub(super) step: Option<Step>,
    /// Where tokens are evicted.
    scores: Option<BlockScores>,
    plan: Option<Plan>,
    pub(super) shares: Option<Shares>,
    /// Decode steps since the last plan.
    since_plan: u32,
    growth: Growth,
    /// Closed steps since the reset.
    pub(super) steps: u64,
    /// Cold tokens were handed to the store since the reset.
    pub(super) submitted: bool,
    pub(super) counts: Counts,
}

impl Layer {
    pub(super) fn new(number: u32, h2o: Option<&H2o>) -> Self {
        let evicts = h2o.filter(|h| (h.first_layer..h.end_layer).contains(&number));
        Layer {
            number,
            lengths: Lengths::default(),
            positions: Positions::default(),
            rows: None,
            used: false,
            buffer_tokens: 0,
            seen: None,
            step: None,
            scores: evicts.map(|h| BlockScores::new(h.aggregation, h.block_tokens)),
            plan: None,
            shares: None,
            since_plan: 0,
            growth: Growth::default(),
            steps: 0,
            submitted: false,
            counts: Counts::default(),
        }
    }

    pub(super) fn evicts(&self) -> bool {
        self.scores.is_some()
    }

    /// How a step's tiles are summed; `None` where nothing is scored.
    pub(super) fn wanted(&self, h2o: Option<&H2o>) -> Option<Wanted> {
        let now = || {
            h2o.filter(|_| self.evicts()).map(|h2o| Wanted {
                block_tokens: h2o.block_tokens as usize,
                prompt_rows: h2o.prefill_queries,
                empty: self.lengths.logical == 0,
            })
        };
        self.step.map_or_else(now, |step| step.wanted)
    }

    /// Whether a host has ever named it.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    /// Raw bytes of the tokens in its cache.
    pub(super) fn raw_bytes(&self) -> usize {
        self.token_bytes() * self.lengths.physical as usize
    }

    pub(super) fn token_bytes(&self) -> usize {
        self.rows.map_or(0, |rows| rows.key_bytes(1) + rows.value_bytes(1))
    }

    /// Its cache was cleared.
    pub(super) fn reset(&mut self) {
        self.lengths = Lengths::default();
        self.positions.clear();
        self.rows = None;
        self.step = None;
        self.scores.iter_mut().for_each(BlockScores::clear);
        self.plan = None;
        self.growth = Growth::default();
        (self.since_plan, self.steps, self.submitted) = (0, 0, false);
    }

    /// Fails when what the host hands over cannot be this layer's cache.
    pub(super) fn check(&self, layout: &Layout, kv_len: u32) -> Result<()> {
        let layer = self.number;
        if let Some(known) = self.rows.filter(|known| *known != layout.rows()) {
            let given = layout.rows();
            bail!(
                InvalidArgument,
                "layer {layer} has {} heads x {} ({}, {}); the layout has {} x {} ({}, {})",
                known.heads,
                known.dims,
                known.key_dtype.name(),
                known.value_dtype.name(),
                given.heads,
                given.dims,
                given.key_dtype.name(),
                given.value_dtype.name()
            );
        }
        if kv_len as usize > layout.max_tokens() || kv_len > i32::MAX as u32 {
            bail!(InvalidArgument, "kv_len of layer {layer} is {kv_len}; max_tokens is {}", layout.max_tokens());
        }
        Ok(())
    }

    /// Fails while a step is open, or when the host has another length in mind.
    pub(super) fn check_closed(&self, kv_len: u32) -> Result<()> {
        if self.step.is_some() {
            bail!(
                InvalidArgument,
                "layer {} is open already; end comes first (abort when the step failed)",
                self.number
            );
        }
        self.check_length(kv_len)
    }

    /// Fails when the host has another length in mind.
    pub(super) fn check_length(&self, kv_len: u32) -> Result<()> {
        if kv_len != self.lengths.physical {
            bail!(
                InvalidArgument,
                "kv_len of layer {} is {kv_len}; {} expected, as the last call left it",
                self.number,
                self.lengths.physical
            );
        }
        Ok(())
    }

    /// Remembers what its cache looks like.
    pub(super) fn see(&mut self, cache: &Cache<'_>) {
        self.rows = Some(cache.layout.rows());
        self.used = true;
        self.buffer_tokens = cache.layout.max_tokens();
        let page = pages::page_size();
        let offsets = (cache.key.as_ptr().addr() % page, cache.value.as_ptr().addr() % page);
        self.seen = Some(Seen { layout: cache.layout.clone(), offsets });
    }

    /// Bytes that the buffers do not take since tokens were evicted: the whole pages behind the tokens that are left, as
    /// far as the chat's tokens reach, and the tokens that the buffers have no room for.
    pub(super) fn evicted_bytes(&self) -> u64 {
        let (max, Lengths { logical, physical }) = (self.buffer_tokens as u32, self.lengths);
        let beyond = logical.saturating_sub(max.max(physical));
        let behind = logical.min(max).saturating_sub(physical);
        let pages = match &self.seen {
            // Memory that the system does not drop stays.
            Some(seen) if self.counts.released_bytes > 0 => {
                seen.layout.range(physical, behind).map_or(0, |range| seen.pages_of(range))
            }
            _ => 0,
        };
        pages + u64::from(beyond) * self.token_bytes() as u64
    }

    /// The plan that waits. It is for the layer's length: nothing changes that without dropping it.
    pub(super) fn plan(&self) -> Option<&[Pair]> {
        self.plan.as_ref().map(|plan| &plan.pairs[..])
    }

    /// The plan is carried out: `edit` is what became of the layer.
    pub(super) fn apply_plan(&mut self, edit: Edit) {
        self.plan = None;
        let gone = u64::from(self.lengths.physical - edit.physical);
        self.counts.evictions += 1;
        self.counts.last_evicted = gone;
        self.counts.evicted += gone;
        self.apply(edit);
    }

    /// What becomes of the layer when only these physical ranges are left and logical positions stay.
    pub(super) fn after_eviction(&self, pairs: &[Pair]) -> Result<Edit> {
        let positions = self.positions.evicted(pairs)?;
        Ok(Edit { positions, scores: self.scores_of(pairs)?, logical: self.lengths.logical, physical: sum(pairs) })
    }

    /// What becomes of the layer when only these logical ranges are left, which lie at these physical ones.
    pub(super) fn after_keep(&self, logical: &[Pair], physical: &[Pair]) -> Result<Edit> {
        let positions = self.positions.kept(logical)?;
        Ok(Edit { positions, scores: self.scores_of(physical)?, logical: sum(logical), physical: sum(physical) })
    }

    fn scores_of(&self, pairs: &[Pair]) -> Result<Option<BlockScores>> {
        self.scores.as_ref().map(|scores| scores.kept(pairs)).transpose()
    }

    /// Follows an edit that the cache has gone through.
    pub(super) fn apply(&mut self, edit: Edit) {
        self.positions = edit.positions;
        self.scores = edit.scores;
        self.lengths = Lengths { logical: edit.logical, physical: edit.physical };
    }

    /// A plan for another length is never applied; one for this length is made in its place.
    pub(super) fn replan(&mut self, h2o: &H2o) -> Result<()> {
        if self.plan.take().is_none() {
            return Ok(());
        }
        self.counts.stale_plans += 1;
        if self.basis(h2o) < h2o.trigger_min_tokens && !self.is_over_cap(h2o) {
            return Ok(());
        }
        self.make_plan(h2o)
    }

    /// Tokens were appended. Without memory nothing changes.
    pub(super) fn append(&mut self, added: u32) -> Result<()> {
        self.positions.reserve()?;
        if let Some(scores) = &mut self.scores {
            scores.grow(self.lengths.physical + added)?;
        }
        self.positions.append(self.lengths.logical, added)?;
        self.growth.see(added, self.lengths.logical == 0);
        self.lengths.logical += added;
        self.lengths.physical += added;
        Ok(())
    }

    /// Folds a step's attention into the scores.
    pub(super) fn fold(&mut self, attention: &ScoredStep<'_>, added: u32) {
        if let Some(scores) = &mut self.scores {
            scores.fold(attention, added);
            self.counts.scored_steps += 1;
        }
    }

    /// The length that the trigger and the target are taken of.
    fn basis(&self, h2o: &H2o) -> u32 {
        match h2o.basis {
            Basis::Logical => self.lengths.logical,
            Basis::Physical => self.lengths.physical,
        }
    }

    /// Advances the clock by a step, and plans when it is time. `prompt`: the rows of a prompt do not move the clock,
    /// but when some of them were scored the first plan need not wait. `failed`: nor does a step without attention, but
    /// what it leaves in the cache counts towards the limit.
    pub(super) fn tick(&mut self, h2o: &H2o, failed: bool, prompt: bool, scored: bool) -> Result<()> {
        let due = if failed {
            false
        } else if prompt {
            scored
        } else {
            self.since_plan = self.since_plan.saturating_add(1);
            self.since_plan >= h2o.update_interval
        };
        self.counts.over_steps += u64::from(h2o.is_over(self.lengths.physical, 0));
        if (due && self.basis(h2o) >= h2o.trigger_min_tokens) || self.is_over_cap(h2o) {
            self.make_plan(h2o)?;
        }
        Ok(())
    }

    /// Whether the next step might be one too many for what the cache may hold.
    fn is_over_cap(&self, h2o: &H2o) -> bool {
        h2o.is_over(self.lengths.physical, self.growth.next())
    }

    fn make_plan(&mut self, h2o: &H2o) -> Result<()> {
        let Some(scores) = &self.scores else { return Ok(()) };
        let start = Instant::now();
        let (length, physical) = (self.basis(h2o), self.lengths.physical);
        let unscored = if h2o.evict_unscored { 0 } else { scores.unscored() };
        if physical > 0 && unscored == physical {
            self.since_plan = 0;
            self.counts.unscored_plans += 1;
            return Ok(());
        }
        let due = Due { length, physical, unscored, over: self.is_over_cap(h2o), usual: self.growth.usual() };
        let plan = h2o::plan(&scores.ranking()?, physical, &h2o.plan_config(&due)?)?;
        let share = physical as f32 / length.max(1) as f32;
        self.shares = Some(Shares {
            target: plan.target_keep_effective * share,
            floor: plan.floor_keep * share,
            quantized: plan.block_quantized_keep * share,
        });
        self.since_plan = 0;
        self.counts.plans += 1;
        self.counts.unscored_plans += u64::from(unscored > h2o.recent_tokens);
        self.plan = (plan.evicted_tokens > 0).then_some(plan);
        self.counts.plan_ns += start.elapsed().as_nanos() as u64;
        Ok(())
    }
}
