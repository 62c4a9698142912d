//! The budget of a session's caches in bytes, and what each layer does to hold its share.
//!
//! The mildest step that holds is taken: tokens stay raw while they fit, then K has 8 bits and V 4, then both 4 in the blocks that
//! got the least attention lately, and in new ones, then these go to a file, and where there is none, or it is full, they are dropped, head by head. The first
//! tokens, the newest and pinned ones stay. Layers with a window get what they need; the others have shares by their tokens' sizes,
//! so that none takes another's.

mod holds;
mod ladder;
mod windows;

pub use holds::Holds;
pub(super) use ladder::Ladder;
pub(super) use windows::Needs;

use super::config::MemoryRules;
use super::layer::Layer;
use super::metrics::{Field, numbers};
use super::quant::{self, Encoding};
use super::step::Spare;
use super::tier::Tier;
use super::window::Window;
use super::{Session, State};
use crate::attend::{self, Blocks, Format, WorkPool};
use crate::layout::{Layout, Rows};
use crate::status::{Result, bail};
use crate::sys::{memory, pages};
use windows::Division;

/// What is known of blocks takes at most this share of what there is for them, of 8, if they are in a file alone.
const MOST_LISTS: usize = 7;
/// Blocks of a head that a budget must have room for.
const LEAST_BLOCKS: usize = 2;
/// Working memory of attention, which there is none of yet when a budget is checked.
const LEAST_WORKING: usize = if cfg!(test) { 1 } else { 512 << 10 };
/// Working memory of attention and encoding is freed after each step where it takes more than this part of the budget.
const WORKING_PART: u64 = 8;
/// Room for working memory grows by such parts of the budget.
const WORKING_STEP: u64 = 256;
/// Blocks that are on their way to the file take at most this part of the budget, and no other bytes do.
const WRITING_PART: u64 = 64;
/// Bytes of lists that may be free in the heap before it returns them to the system.
const FREE: usize = 512 << 10;

/// The tokens of a layer, the bytes that one takes in the host's buffers, and the fewest bits that blocks may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    rows: Rows,
    pub(super) token: usize,
    fewest: Format,
}

impl Sizes {
    /// The same in a layer.
    pub(super) fn of(self, layer: &Layer) -> Self {
        Sizes { fewest: layer.fewest(), ..self }
    }

    /// Shares are by the bytes of a token, and by those of blocks where they may not have the fewest bits.
    fn weight(&self) -> usize {
        let block = |shape, format| Blocks::block_bytes(shape, format, self.rows.heads);
        match quant::shape(&self.rows).filter(|_| self.fewest == Format::K8V4) {
            Some(shape) => self.token * block(shape, Format::K8V4) / block(shape, Format::K4V4),
            None => self.token,
        }
    }
}

impl From<&Layout> for Sizes {
    fn from(layout: &Layout) -> Self {
        Sizes { rows: layout.rows(), token: layout.token_bytes(), fewest: Format::K4V4 }
    }
}

/// Without a layout nothing is known of padding.
impl From<&Rows> for Sizes {
    fn from(rows: &Rows) -> Self {
        Sizes { rows: *rows, token: rows.token_bytes(), fewest: Format::K4V4 }
    }
}

/// What a budget needs to know of a model.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) layers: usize,
    pub(super) sizes: Sizes,
    /// Layers without a window whose blocks have k8v4 at least.
    pub(super) k8v4_layers: usize,
    /// Tokens of a layer that stay raw.
    pub(super) least_raw: u32,
    /// Bytes that no layer has.
    pub(super) working: usize,
    /// Of the layers that have one.
    pub(super) windows: Vec<Window>,
}

/// The budget of a session.
pub(super) struct Budget {
    rules: MemoryRules,
    /// The budget now: [`Session::trim`] may have made it smaller.
    bytes: u64,
    /// Set by the first begin.
    model: Option<Model>,
    /// The least that the layers may have, as far as they are known.
    least: u64,
    /// `None` before the first begin.
    holds: Option<Holds>,
    /// Bytes that are kept for working memory; see [`room`]. Shares do not depend on what a pool has at the moment.
    pub(super) working: usize,
    /// There is a file that blocks can go to.
    has_file: bool,
    /// Bytes of lists that were freed since the heap returned its memory.
    freed: usize,
}

/// The bytes of one layer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    bytes: usize,
    /// Of a raw token, and of the pages that tokens take in part.
    token: usize,
    pages: usize,
    /// Tokens that the step will append, a prompt's chunk aside.
    next: u32,
}

/// What a session does to hold its budget, in the order of the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// All tokens are as the host wrote them.
    #[default]
    Raw,
    /// Tokens are in 8 and 4 bits.
    K8V4,
    /// Some have fewer bits.
    K4V4,
    /// Some are in a file alone.
    File,
    /// Some were dropped.
    Dropping,
}

impl Rung {
    /// In metrics.
    pub fn name(self) -> &'static str {
        match self {
            Rung::Raw => "raw",
            Rung::K8V4 => "k8v4",
            Rung::K4V4 => "k4v4",
            Rung::File => "file",
            Rung::Dropping => "dropping",
        }
    }
}

numbers! {
    /// The memory of a session's caches.
    MemoryStats: u64 = 0;
    {
        /// The furthest step of any layer.
        rung: Rung
    }
    bytes budget_bytes: "the budget; 0 without",
    tokens raw_tokens: "of a chat that half of the budget holds at least, raw; 0 before the first begin",
    tokens quantised_tokens: "of a chat that the budget holds in k4v4, likewise",
    bytes bytes: "raw_bytes + block_bytes + working_bytes",
    bytes raw_bytes: "raw tokens in the host's buffers, with padding; of a loaded layer before its begin, without",
    bytes block_bytes: "blocks, and what is known of those in the file",
    bytes working_bytes: "working memory of begin and attend",
    bytes file_bytes: "length of the file",
    bytes base_bytes: "blocks of kv_memory_base, which sessions of the process share; not in bytes",
    tokens file_tokens: "only in the file, over all layers; that of one of n KV heads counts 1 / n",
    tokens dropped_tokens: "dropped since the resets, likewise",
    count reads: "heads of blocks that steps have read from the file",
    count late_reads: "heads of blocks that came too late for a step",
    count returned: "heads of blocks that came back to stay",
    bytes written_bytes: "written to the file by steps, not by saves",
    count failed_writes: "writes that failed, or had no room in kv_memory_file_mb",
    count late_writes: "begins and ends of layers that did not wait for all blocks on their way to the file",
    count failed_reads: "reads that failed",
    count lost: "heads of blocks that the file had no more",
    count over_steps: "steps of up to 16 tokens that ended above the share of their layer; a chunk of more may",
    ns wait_ns: "that attention, begin and end waited for the file",
}

impl Budget {
    /// One line: what it does, as it is now, with such a file.
    pub(super) fn outlook(&self, tier: Option<&Tier>) -> Result<String> {
        self.rules.outlook(self.bytes, self.holds, tier.map(|tier| (tier.path().display(), tier.is_missing())))
    }

    pub(super) fn new(rules: MemoryRules) -> Self {
        Budget { bytes: rules.bytes, rules, model: None, least: 0, holds: None, working: 0, has_file: false, freed: 0 }
    }

    /// Bytes that are kept for blocks on their way to the file.
    fn writing_bytes(&self) -> u64 {
        if self.has_file { self.bytes / WRITING_PART } else { 0 }
    }

    /// The share of a layer with such tokens, whose steps append `next` of them. `working`: bytes that no layer has.
    pub(super) fn share(&self, layers: &[Layer], layer: (u32, &Sizes), next: u32, working: usize) -> Share {
        let (number, sizes) = layer;
        let of = |layer: &Layer| match layer.number == number {
            true => Needs { sizes: sizes.of(layer), ..Needs::of(layer, sizes) },
            false => Needs::of(layer, sizes),
        };
        self.share_among(layers.iter().map(of), &of(&layers[number as usize]), next, working)
    }

    /// The share of one of these layers, likewise.
    pub(super) fn share_among(
        &self,
        layers: impl Iterator<Item = Needs> + Clone,
        layer: &Needs,
        next: u32,
        working: usize,
    ) -> Share {
        let bytes = usize::try_from(self.bytes - self.writing_bytes()).unwrap_or(usize::MAX).saturating_sub(working);
        let least_raw = self.model.as_ref().map_or(0, |model| model.least_raw);
        Share::new(Division::new(bytes, least_raw, layers).of(layer), &layer.sizes, next)
    }

    /// Takes note of the windows that layers have.
    pub(super) fn see_windows(&mut self, layers: &[Layer]) -> Result<()> {
        let Some(model) = &mut self.model else { return Ok(()) };
        let windows = || layers.iter().filter_map(|layer| layer.window);
        if !windows().eq(model.windows.iter().copied()) {
            model.windows = memory::collect(windows())?;
            model.k8v4_layers = k8v4_layers(layers);
            self.set(self.bytes);
        }
        Ok(())
    }

    /// A layer is to have such tokens. `known`: those of each layer, `None` of layers that are like the first.
    /// INVALID_ARGUMENT: if a budget like this can never hold.
    pub(super) fn check(
        &mut self,
        all: &[Layer],
        known: impl Fn(&Layer) -> Option<Sizes>,
        sizes: &Sizes,
        least_raw: u32,
        working: usize,
    ) -> Result<()> {
        let layers = all.len();
        let unknown = || {
            let k8v4_layers = k8v4_layers(all);
            Model { layers, sizes: *sizes, k8v4_layers, least_raw, working, windows: Vec::new() }
        };
        let mut model = self.model.take().unwrap_or_else(unknown);
        if model.sizes.rows == sizes.rows {
            model.sizes = *sizes;
        }
        let of = |layer: &Layer| known(layer).unwrap_or(model.sizes).of(layer);
        let least = holds::least_bytes(all.iter().map(of), least_raw, model.working);
        let budget = self.rules.bytes.max(self.bytes);
        if budget < least {
            let working = model.working.max(LEAST_WORKING) as f64 / 1e6;
            self.model = Some(model).filter(|_| self.least > 0);
            bail!(
                InvalidArgument,
                "the budget is {} MB (kv_memory_mb or kv_memory_bytes); at least {:.1} MB expected: working memory takes {:.1}, \
                 and each of {layers} layers has {least_raw} raw tokens, of {} bytes in this one, and {LEAST_BLOCKS} blocks",
                budget as f64 / 1e6,
                (least as f64 / 1e5).ceil() / 10.0,
                working,
                sizes.token
            );
        }
        (self.model, self.least) = (Some(model), least);
        self.set(self.bytes);
        Ok(())
    }

    /// Whether a layer has begun.
    pub(super) fn is_checked(&self) -> bool {
        self.model.is_some()
    }

    /// Sets the budget, or the least that the model may have where that is more and a layer has begun. Never to 0, which would
    /// be none.
    fn set(&mut self, bytes: u64) {
        self.bytes = bytes.max(self.least).max(1);
        self.working = self.working.min((self.bytes / WORKING_PART) as usize);
        self.holds = self.model.as_ref().map(|model| Holds::new(self.bytes, model));
    }

    /// Keeps the room for working memory that a chat had when it was saved.
    pub(super) fn take_working(&mut self, working: u64) {
        let most = self.bytes / WORKING_PART;
        self.working = self.working.max(working.min(most) as usize);
    }

    /// Keeps room for so much working memory from now on. `steady`: what does not depend on how threads share the parts of a
    /// step; room for twice as much holds the rest, but for lists of unusual lengths. Returns the bytes that are kept.
    fn keep_for(&mut self, working: usize, steady: usize) -> usize {
        if steady > 0 {
            self.working = self.working.max(room(self.bytes, steady));
        }
        if working > self.working {
            self.working = room(self.bytes, working);
        }
        self.working
    }

    /// Lets blocks of layers without an open step leave until the budget holds.
    fn fit_all(&mut self, layers: &mut [Layer], mut tier: Option<&mut Tier>, working: usize) {
        for at in 0..layers.len() {
            let layer = &layers[at];
            // Parts of rows that read a closed layer count on its blocks.
            let is_read = layer.step.round.done().is_err();
            if let (false, Some(sizes)) = (layer.slot.is_open() || is_read, layer.sizes()) {
                let raw = layer.lengths().physical.saturating_sub(layer.leaving());
                let share = self.share(layers, (at as u32, &sizes), 1, working);
                layers[at].fit(Some(&share), raw, tier.as_deref_mut());
            }
        }
    }

    /// Takes note of freed lists and working memory, whose memory the heap returns once there is much of it.
    pub(super) fn see_freed(&mut self, bytes: usize) {
        self.freed += bytes;
        if self.freed > FREE {
            self.freed = 0;
            pages::trim_heap();
        }
    }
}

/// The room for so much working memory in a budget: twice as much and more, up to its greatest part, since what leaves memory is
/// not to depend on how lists have grown.
pub(super) fn room(budget: u64, working: usize) -> usize {
    let step = (budget / WORKING_STEP).max(1) as usize;
    let twice = step * (2 * working).div_ceil(step).next_power_of_two();
    twice.min((budget / WORKING_PART) as usize).max(working)
}

/// Those without a window.
fn k8v4_layers(layers: &[Layer]) -> usize {
    layers.iter().filter(|layer| layer.window.is_none() && layer.fewest() == Format::K8V4).count()
}

/// Tokens of a step that are a prompt's chunk: they leave in the next begin, and nothing is dropped to make room for them.
pub(super) fn chunk(added: u32) -> u32 {
    if added as usize > attend::FEW_ROWS { added } else { 0 }
}

impl Session {
    /// Sets the budget, or the least that the model may have where that is more, and lets blocks leave until it holds, in layers
    /// without an open step. Raw tokens that take more leave in the next begin of their layer. Returns the bytes in use
    /// afterwards.
    /// INVALID_ARGUMENT: if the config sets no budget.
    pub fn trim(&self, bytes: u64) -> Result<u64> {
        let mut state = self.state()?;
        let Some(budget) = &mut state.budget else {
            bail!(InvalidArgument, "the config sets no budget to be changed: kv_memory_mb or kv_memory_bytes does");
        };
        budget.set(bytes);
        let (mut used, mut written) = (self.fit(&mut state)?, 0);
        // As long as writes end well.
        while state.finish_writes()? && state.tier.as_ref().is_some_and(|tier| tier.counts()[1] > written) {
            written = state.tier.as_ref().map_or(0, |tier| tier.counts()[1]);
            used = self.fit(&mut state)?;
        }
        pages::trim_heap();
        Ok(used)
    }

    /// Frees the working memory of attention and of encoding where it takes more than its part of the budget: blocks make no
    /// room for what one step has needed. Returns the bytes that are kept for working memory.
    pub(super) fn fit_working(&self, state: &mut State) -> Result<usize> {
        let Some(budget) = &mut state.budget else { return Ok(0) };
        let mut parts = self.parts()?;
        let others = state.spare.bytes() + state.encoding.bytes();
        let (mut bytes, mut steady) = (others + parts.bytes(), others + parts.steady_bytes(self.lanes as usize));
        if bytes.max(steady) as u64 > budget.bytes / WORKING_PART {
            (*parts, state.encoding, state.spare) = (WorkPool::default(), Encoding::default(), Spare::default());
            budget.see_freed(bytes);
            (bytes, steady) = (0, 0);
        }
        // A chat that was saved has a file, too.
        budget.has_file = state.tier.is_some();
        if let Some(tier) = &mut state.tier {
            (tier.most_waiting, tier.wait) = (budget.writing_bytes() as usize, budget.rules.wait);
            bytes += tier.bytes();
        }
        Ok(budget.keep_for(bytes, steady))
    }

    /// Lets blocks of layers without an open step leave until the budget holds. Returns the bytes in use afterwards.
    /// INTERNAL: if a thread has panicked.
    pub(super) fn fit(&self, state: &mut State) -> Result<u64> {
        let working = self.fit_working(state)?;
        if let State { layers, budget: Some(budget), tier, .. } = &mut *state {
            budget.fit_all(layers, tier.as_mut(), working);
        }
        Ok(state.memory_stats(self.working_bytes(state)?).bytes)
    }

    /// The memory of the session's caches.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let mut state = self.state()?;
        let working = self.working_bytes(&state)?;
        Ok(state.memory_stats(working))
    }
}

impl State {
    /// Waits until blocks that are on their way are in the file. Returns whether there were any.
    pub(super) fn finish_writes(&mut self) -> Result<bool> {
        let State { layers, tier: Some(tier), .. } = self else { return Ok(false) };
        tier.drain()?;
        let mut are_new = false;
        for layer in layers {
            are_new |= layer.tokens().blocks.list().iter().any(|placed| placed.ticket > 0);
            layer.collect(Some(tier))?;
        }
        Ok(are_new)
    }

    /// See [`Session::memory_stats`].
    pub(super) fn memory_stats(&mut self, working: usize) -> MemoryStats {
        let mut all = stats(&self.layers, self.budget.as_ref(), self.tier.as_ref(), working);
        let stored = self.store.statistics(None);
        let pages = self.layers.iter().map(|layer| layer.compressed_page_bytes(&self.store)).sum::<u64>();
        // The system may drop no pages.
        all.raw_bytes -= if stored.released_bytes > 0 { pages.min(all.raw_bytes) } else { 0 };
        all.block_bytes += stored.compressed_bytes + stored.decoded_cache_bytes;
        all.bytes = all.raw_bytes + all.block_bytes + all.working_bytes;
        all.base_bytes = self.base.as_ref().map_or(0, |base| base.bytes() as u64);
        all
    }
}

fn stats(layers: &[Layer], budget: Option<&Budget>, tier: Option<&Tier>, working: usize) -> MemoryStats {
    let mut all = MemoryStats { working_bytes: working as u64, ..MemoryStats::default() };
    if let Some(budget) = budget {
        let holds = budget.holds.unwrap_or_default();
        all.budget_bytes = budget.bytes;
        (all.raw_tokens, all.quantised_tokens) = (holds.raw_tokens, holds.quantised_tokens);
    }
    if let Some(tier) = tier {
        [all.file_bytes, all.written_bytes, all.failed_writes, all.late_writes] = tier.counts();
        all.working_bytes += tier.waiting_bytes() as u64;
    }
    for layer in layers {
        all.raw_bytes += layer.raw_bytes() as u64;
        let Some(quant) = &layer.quant else { continue };
        let (blocks, ladder) = (&layer.tokens().blocks, &quant.ladder);
        let heads = layer.rows.map_or(1, |rows| rows.heads.max(1) as u64);
        let file_tokens = file_tokens(blocks);
        all.block_bytes += blocks.bytes() as u64;
        all.file_tokens += file_tokens / heads;
        all.dropped_tokens += ladder.dropped / heads;
        all.reads += ladder.reads.read;
        all.late_reads += ladder.reads.late;
        all.failed_reads += ladder.reads.failed;
        all.wait_ns += ladder.reads.wait_ns;
        all.returned += ladder.returned;
        all.lost += ladder.lost;
        all.over_steps += ladder.over_steps;
        all.rung = all.rung.max(match blocks.list() {
            _ if ladder.has_dropped() => Rung::Dropping,
            [] => Rung::Raw,
            _ if file_tokens > 0 => Rung::File,
            _ if blocks.has_few() => Rung::K4V4,
            _ => Rung::K8V4,
        });
    }
    all
}

/// Tokens that are in a file alone, a token of each head as one.
fn file_tokens(blocks: &Blocks) -> u64 {
    let tokens = |block: &u32| u64::from(blocks.list()[*block as usize].tokens());
    (0..blocks.heads()).flat_map(|head| blocks.away(head)).map(tokens).sum()
}

impl Share {
    fn new(bytes: usize, sizes: &Sizes, next: u32) -> Self {
        let (token, pages) = (sizes.token, 2 * sizes.rows.heads * pages::page_size());
        Share { bytes, token, pages, next: if chunk(next) > 0 { 0 } else { next.max(1) } }
    }

    fn raw(&self, tokens: u32) -> usize {
        (tokens + self.next) as usize * self.token + self.pages
    }

    /// Whether so many raw tokens, and those of the step, fit twice: a host that grows its buffers has the old ones beside the
    /// new, and blocks are made beside the tokens that they replace.
    pub(super) fn holds_raw(&self, tokens: u32) -> bool {
        self.raw(tokens).saturating_mul(2) <= self.bytes
    }

    /// The most raw tokens that fit twice.
    fn raw_tokens(&self) -> u64 {
        ((self.bytes / 2).saturating_sub(self.pages) / self.token.max(1)) as u64
    }

    /// Whether so many raw tokens and the blocks take more than the share.
    pub(super) fn is_exceeded(&self, raw_tokens: u32, blocks: usize) -> bool {
        raw_tokens as usize * self.token + self.pages + blocks > self.bytes
    }

    /// What is left for blocks beside so many raw tokens.
    pub(super) fn for_blocks(&self, raw_tokens: u32) -> usize {
        self.bytes.saturating_sub(self.raw(raw_tokens))
    }
}

#[cfg(test)]
mod tests;
