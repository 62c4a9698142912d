//! One layer: the checks of the host's contract, its step, the moves of its tokens, and its owners.

use super::budget::{self, Sizes};
use super::config::Config;
use super::eviction::{ClosingStep, Eviction};
use super::lossless::Lossless;
use super::quant::Quant;
use super::step::{Slot, Spare, Step};
use super::sums::{Sums, Wanted};
use super::tier::Tier;
use super::tokens::{CacheLengths, Edit, Runs, Tokens};
use super::window::Window;
use crate::attend::Format;
use crate::layout::{self, Cache, Kind, Layout, Rows, TokenRange};
use crate::status::{Error, Result, bail, error};
use crate::store::Store;
use crate::sys::{Shared, memory, pages};
use std::time::Instant;

/// The layout of a cache, and the addresses of its buffers, which are compared and never read through.
struct SeenCache {
    layout: Layout,
    addresses: (usize, usize),
}

/// The state of one layer.
pub(super) struct Layer {
    pub(super) number: u32,
    /// Its tokens, and its step: threads share it while that is open.
    pub(super) step: Shared<Step>,
    /// Where threads find the step while it is open.
    pub(super) slot: Shared<Slot>,
    /// Positions of tokens, and of those to come, that are never evicted.
    pub(super) pins: Runs,
    /// `None` where rows attend to all tokens. Of the chat: the host's, or that of the file that was opened.
    pub(super) window: Option<Window>,
    /// As the host has told it, if it has: the inner one is `None` where rows attend to all tokens.
    pub(super) own_window: Option<Option<Window>>,
    /// The eviction of a layer that has a window, which is not evicted from.
    pub(super) set_aside: Option<Eviction>,
    /// `None` where no token is evicted.
    pub(super) eviction: Option<Eviction>,
    /// `None` where the config compresses nothing.
    pub(super) lossless: Option<Lossless>,
    /// `None` where tokens stay raw.
    pub(super) quant: Option<Quant>,
    /// Heads, dims and dtypes, which every layout must have from the first call on.
    pub(super) rows: Option<Rows>,
    /// The longest step that was too long for the limit; 0 = none was.
    pub(super) too_long_step: u32,
    /// Tokens that the last step appended.
    pub(super) last_step: u32,
    /// The tokens of a step of a prompt, until the next begin.
    pub(super) chunk: u32,
    /// Bytes returned to the system behind tokens that have left the cache.
    pub(super) released_bytes: u64,
    /// Some call had a cache of the layer.
    used: bool,
    /// Tokens for which the buffers had room at the last call.
    pub(super) buffer_tokens: usize,
    /// The cache of the last call that had one.
    seen: Option<SeenCache>,
    /// The scales of INT8 V of a layer that was loaded from a file and has no cache yet.
    pub(super) value_scales: Vec<u8>,
}

impl Layer {
    pub(super) fn new(number: u32, config: &Config) -> Result<Self> {
        Ok(Layer {
            number,
            step: Shared::new(Step::new())?,
            slot: Shared::new(Slot::default())?,
            pins: Runs::default(),
            window: None,
            own_window: None,
            set_aside: None,
            eviction: config.eviction_of(number).map(Eviction::new),
            lossless: Lossless::new(number, config),
            quant: Quant::new(number, config),
            rows: None,
            too_long_step: 0,
            last_step: 0,
            chunk: 0,
            released_bytes: 0,
            used: false,
            buffer_tokens: 0,
            seen: None,
            value_scales: Vec::new(),
        })
    }

    pub(super) fn tokens(&self) -> &Tokens {
        &self.step.tokens
    }

    pub(super) fn lengths(&self) -> CacheLengths {
        self.step.tokens.lengths
    }

    /// The step and the tokens, to be changed.
    /// BUSY: if the step is open, or a thread still attends in it.
    pub(super) fn step_mut(&mut self) -> Result<&mut Step> {
        let number = self.number;
        self.step.get_mut().ok_or_else(|| busy(number))
    }

    /// Whether a thread has the step, beside the slot that gave it `open`.
    pub(super) fn is_shared(&self, open: Option<&Shared<Step>>) -> bool {
        self.step.owners() > 1 + usize::from(open.is_some())
    }

    /// Takes the step from its slot, which is locked, so that no other thread reaches it. BUSY: if one has it; it stays.
    pub(super) fn shut(&self, open: &mut Option<Shared<Step>>) -> Result<()> {
        if self.is_shared(open.as_ref()) {
            return Err(busy(self.number));
        }
        *open = None;
        Ok(())
    }

    /// The host has written the raw tokens in these slots anew, also while the step is open.
    /// BUSY: if a thread has the step.
    pub(super) fn rewritten(&mut self, slots: std::ops::Range<u32>) -> Result<()> {
        if self.tokens().in_file.raw.is_empty() {
            return Ok(());
        }
        let slot = self.slot.clone();
        let mut open = slot.lock()?;
        let is_open = open.is_some();
        self.shut(&mut open)?;
        let rewritten = self.step_mut().and_then(|step| step.tokens.rewritten(slots));
        *open = is_open.then(|| self.step.clone());
        rewritten
    }

    /// Tokens in the cache that the next begin quantises, as far as is known: no block makes room for them.
    pub(super) fn leaving(&self) -> u32 {
        match &self.quant {
            Some(quant) if quant.is_short() => self.lengths().physical.saturating_sub(quant.least_raw()),
            _ => self.chunk,
        }
    }

    /// The most tokens of a cache, and the longest step that can keep to it.
    pub(super) fn limit(&self) -> Option<(u32, u32)> {
        let rules = self.eviction.as_ref()?.rules();
        rules.max_tokens.map(|limit| (limit, rules.longest_step(limit)))
    }

    /// Remembers a step that was too long for the limit.
    pub(super) fn see_step(&mut self, added: u32) {
        self.last_step = added;
        self.chunk = budget::chunk(added);
        if self.limit().is_some_and(|(limit, most)| self.lengths().physical > limit && added > most) {
            self.too_long_step = self.too_long_step.max(added);
        }
    }

    /// Whether steps attend by the session: never over a cache that the host quantises.
    pub(super) fn attends(&self) -> bool {
        self.quant.as_ref().is_some_and(|quant| quant.attends(self.tokens()))
            && self.rows.is_none_or(|rows| !rows.is_quantised())
    }

    /// How the attention of the next step is summed; `None` where nothing is scored.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        self.eviction.as_ref().map(|eviction| eviction.wanted(self.lengths()))
    }

    /// Applies an edit of the tokens: the raw ones that stay move together, in the store, too, and the pages behind them are
    /// released. On an error nothing has changed.
    pub(super) fn apply(
        &mut self,
        edit: Edit,
        cache: Option<&mut Cache<'_>>,
        store: &mut Store,
        tier: Option<&mut Tier>,
    ) -> Result<()> {
        let (number, before, slots) = (self.number, self.lengths().physical, edit.slots.pairs());
        let scores = self.eviction.as_ref().map(|eviction| eviction.scores_of(slots)).transpose()?;
        let tokens = &mut self.take_found()?.tokens;
        // Without a cache there are no tokens in it.
        let mut released = 0;
        if let Some(cache) = cache {
            let after = edit.lengths().physical;
            let behind = cache.layout.range(after, before - after)?;
            // MNN's appends have written to all of the tail of INT8 V.
            let values = if cache.layout.value_sum_bytes() > 0 { cache.layout.tail(after)? } else { behind };
            store.compacted(number, slots)?;
            layout::compact(cache, 0, slots, before)?;
            released = layout::release_apart(cache, behind, values, &mut pages::give_back);
        }
        tokens.apply(edit, tier);
        self.released_bytes += released;
        if let Some((eviction, scores)) = self.eviction.as_mut().zip(scores) {
            eviction.set_scores(scores);
        }
        Ok(())
    }

    /// Applies the plan that the last step has made. On an error nothing has changed.
    pub(super) fn evict(&mut self, cache: &mut Cache<'_>, store: &mut Store) -> Result<()> {
        let Some(plan) = self.eviction.as_ref().and_then(Eviction::plan) else { return Ok(()) };
        let (start, before) = (Instant::now(), self.lengths().physical);
        let edit = self.tokens().left_in(plan)?;
        self.apply(edit, Some(cache), store, None)?;
        let after = self.lengths().physical;
        self.eviction.iter_mut().for_each(|eviction| eviction.evicted(before, after, start));
        Ok(())
    }

    /// Makes all that a step needs, so that [`Layer::open`] cannot fail.
    /// BUSY: if a thread still attends in the last one.
    pub(super) fn prepare(&mut self, spare: &mut Spare, lanes: u32) -> Result<()> {
        let wanted = self.wanted();
        // What layers have found that read this one. Blocks that came for them are read again.
        self.take_found()?.close();
        let Some(step) = self.step.get_mut() else { return Err(busy(self.number)) };
        self.quant.iter().for_each(|quant| quant.hold(&mut step.tokens));
        step.tokens.reserve()?;
        step.wanted = wanted;
        step.round.all_found().masses = std::mem::take(&mut spare.masses);
        if let Some(wanted) = wanted {
            if step.sums.is_empty() || step.sums.is_poisoned() {
                step.sums = spare.sums.pop().map_or_else(|| Sums::new(lanes), Ok)?;
            }
            step.sums.start(wanted.block_tokens);
        }
        Ok(())
    }

    /// Opens the step for threads.
    pub(super) fn open(&mut self, cache: Option<&Cache<'_>>, tier: Option<&Tier>) -> Result<()> {
        match cache {
            Some(cache) => self.see(cache),
            None => self.buffer_tokens = 0,
        }
        self.chunk = 0;
        let (attends, rows, window) = (self.attends(), self.rows, self.window.map(|window| window.tokens));
        let weighs = self.quant.as_ref().is_some_and(Quant::weighs);
        let learns = self.quant.as_ref().is_some_and(Quant::learns);
        let step = self.step_mut()?;
        (step.rows, step.attends, step.window) = (rows, attends, window);
        (step.weighs, step.learns) = (weighs, learns);
        step.file = tier.filter(|_| attends).and_then(Tier::source);
        *self.slot.lock()? = Some(self.step.clone());
        Ok(())
    }

    /// Closes the books of a step that threads no longer reach: what it has summed and found goes back to its owners.
    /// On an error nothing has changed.
    /// INVALID_ARGUMENT: if the sums are not those of the step.
    pub(super) fn end(&mut self, mut closing: ClosingStep) -> Result<()> {
        let (number, start, after) = (self.number, Instant::now(), self.lengths().physical + closing.added);
        let step = self.step_mut()?;
        if let Some(wanted) = step.wanted.filter(|_| closing.queries > 0) {
            let rows = wanted.rows(closing.queries as usize) as u32;
            closing.attention = step.sums.gather(number, closing.heads, rows, after)?;
        }
        if let Some(eviction) = &mut self.eviction {
            eviction.reserve(after)?;
        }
        let step = self.step_mut()?;
        step.tokens.append(closing.added)?;
        if let Some(eviction) = &mut self.eviction {
            eviction.end(&closing, &self.step.tokens, &self.pins, start);
        }
        Ok(())
    }

    /// A step has ended, of which nothing is wanted any more.
    pub(super) fn close(&mut self, spare: &mut Spare) {
        if let Some(step) = self.step.get_mut() {
            step.close();
            spare.masses = std::mem::take(&mut step.round.all_found().masses);
            let sums = std::mem::take(&mut step.sums);
            if !sums.is_empty() && !sums.is_poisoned() {
                // One that there is no room for is made anew.
                let _ = memory::push(&mut spare.sums, sums);
            }
        }
    }

    /// Makes a waiting plan anew.
    pub(super) fn plan_anew(&mut self) {
        if let Some(eviction) = &mut self.eviction {
            eviction.plan_anew(&self.step.tokens, &self.pins);
        }
    }

    /// The cache was cleared. BUSY: if a thread still attends; nothing has changed.
    pub(super) fn reset(&mut self, store: &mut Store, tier: Option<&mut Tier>) -> Result<()> {
        let step = self.step_mut()?;
        step.close();
        step.tokens.clear(tier);
        (self.last_step, self.chunk) = (0, 0);
        self.rows = None;
        self.value_scales = Vec::new();
        self.pins = Runs::default();
        self.set_window(self.own_window.flatten());
        self.eviction.iter_mut().for_each(Eviction::reset);
        self.quant.iter_mut().for_each(Quant::reset);
        store.truncated(self.number, 0);
        self.lossless.iter_mut().for_each(|lossless| lossless.reset(store));
        Ok(())
    }

    /// Takes what a file has of the layer, after a reset. Raw tokens that the next begin quantises are like those of a chunk.
    pub(super) fn take(&mut self, tokens: Tokens, rows: Rows, value_scales: Vec<u8>) -> Result<()> {
        let physical = tokens.lengths.physical;
        self.step_mut()?.tokens = tokens;
        self.chunk = self.quant.as_ref().map_or(0, |quant| physical.saturating_sub(quant.least_raw()));
        (self.rows, self.value_scales, self.used) = (Some(rows), value_scales, true);
        Ok(())
    }

    /// INVALID_ARGUMENT: if a step is open, or `kv_len` is not the length of the cache.
    pub(super) fn check_closed(&self, kv_len: u32) -> Result<()> {
        if self.slot.is_open() {
            bail!(
                InvalidArgument,
                "layer {} is open already; end comes first (abort when the step failed)",
                self.number
            );
        }
        self.check_length(kv_len)
    }

    /// Why `call` is refused between steps.
    pub(super) fn is_not_open(&self, call: &str) -> Error {
        error!(InvalidArgument, "layer {} is not open; begin comes before {call}", self.number)
    }

    /// INVALID_ARGUMENT: if `kv_len` is not the length of the cache.
    pub(super) fn check_length(&self, kv_len: u32) -> Result<()> {
        let CacheLengths { physical, .. } = self.lengths();
        if kv_len != physical {
            let layer = self.number;
            bail!(
                InvalidArgument,
                "kv_len of layer {layer} is {kv_len}; {physical} expected, as the last call left it"
            );
        }
        Ok(())
    }

    /// INVALID_ARGUMENT: if this cannot be the layer's cache. Without tokens there need be none.
    pub(super) fn check_cache(&self, cache: Option<&Cache<'_>>, kv_len: u32) -> Result<()> {
        let layer = self.number;
        let Some(cache) = cache else {
            if kv_len > 0 {
                bail!(InvalidArgument, "layer {layer} has {kv_len} tokens and no cache is given");
            }
            return Ok(());
        };
        let given = cache.layout.rows();
        if let Some(known) = self.rows.filter(|known| *known != given) {
            bail!(InvalidArgument, "layer {layer} has {known}; the layout has {given:#}");
        }
        let max_tokens = cache.layout.max_tokens();
        if kv_len as usize > max_tokens || kv_len > i32::MAX as u32 {
            bail!(InvalidArgument, "kv_len of layer {layer} is {kv_len}; max_tokens is {max_tokens}");
        }
        Ok(())
    }

    /// The tokens that the open step has appended. INVALID_ARGUMENT: if the cache has become shorter, or the chat too long.
    pub(super) fn check_growth(&self, kv_len: u32) -> Result<u32> {
        let (layer, CacheLengths { logical, physical }) = (self.number, self.lengths());
        let Some(added) = kv_len.checked_sub(physical) else {
            bail!(
                InvalidArgument,
                "kv_len of layer {layer} is {kv_len}; {physical} or more expected, as begin left it"
            );
        };
        if added > i32::MAX as u32 - logical {
            bail!(InvalidArgument, "layer {layer} would have more than {} logical tokens", i32::MAX);
        }
        Ok(added)
    }

    /// Remembers the layout of the cache.
    pub(super) fn see(&mut self, cache: &Cache<'_>) {
        if let Some(eviction) = &mut self.eviction {
            eviction.least_sink = u32::from(cache.layout.rows().key == Kind::Int8);
        }
        self.rows = Some(cache.layout.rows());
        self.used = true;
        self.buffer_tokens = cache.layout.max_tokens();
        let addresses = (cache.key.as_ptr().addr(), cache.value.as_ptr().addr());
        self.seen = Some(SeenCache { layout: cache.layout.clone(), addresses });
    }

    /// The layout of the last call's cache.
    pub(super) fn seen_layout(&self) -> Option<&Layout> {
        self.seen.as_ref().map(|seen| &seen.layout)
    }

    /// Whether any call had a cache of the layer.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    /// The tokens as the last call's cache had them; `None` after a reset.
    pub(super) fn sizes(&self) -> Option<Sizes> {
        let rows = self.rows?;
        Some(self.seen_layout().filter(|layout| layout.rows() == rows).map_or((&rows).into(), Sizes::from))
    }

    /// The fewest bits that a block may have.
    pub(super) fn fewest(&self) -> Format {
        self.quant.as_ref().map_or(Format::K4V4, Quant::fewest)
    }

    /// Bytes that a token takes in the host's buffers.
    pub(super) fn token_bytes(&self) -> usize {
        self.sizes().map_or(0, |sizes| sizes.token)
    }

    /// Raw bytes of the tokens in the cache.
    pub(super) fn raw_bytes(&self) -> usize {
        self.token_bytes() * self.lengths().physical as usize
    }

    /// Bytes of the buffers behind the tokens.
    pub(super) fn tail_bytes(&self) -> u64 {
        self.buffer_tokens.saturating_sub(self.lengths().physical as usize) as u64 * self.token_bytes() as u64
    }

    /// Bytes of the whole pages that the layer's compressed tokens have left.
    pub(super) fn compressed_page_bytes(&self, store: &Store) -> u64 {
        let runs = self.seen.as_ref().map(|seen| (seen, store.released_runs(self.number, &seen.layout)));
        runs.map_or(0, |(seen, runs)| runs.into_iter().map(|run| seen.page_bytes(run)).sum())
    }

    /// Bytes that evicted tokens have left: the whole pages behind the tokens, as far as the tokens of the chat reach, and
    /// the tokens for which the buffers have no room.
    pub(super) fn evicted_bytes(&self) -> u64 {
        let (max, CacheLengths { logical, physical }) = (self.buffer_tokens as u32, self.lengths());
        let beyond = logical.saturating_sub(max.max(physical));
        let behind = logical.min(max).saturating_sub(physical);
        let pages = match &self.seen {
            // 0 where the system drops no pages.
            Some(seen) if self.released_bytes > 0 => {
                seen.layout.range(physical, behind).map_or(0, |range| seen.page_bytes(range))
            }
            _ => 0,
        };
        pages + u64::from(beyond) * self.token_bytes() as u64
    }
}

/// Why a call is refused while a thread has the step of a layer.
pub(super) fn busy(layer: u32) -> Error {
    error!(Busy, "a thread still attends, or adds sums, in layer {layer}")
}

impl SeenCache {
    /// Bytes of the whole pages that a release of these tokens returns.
    fn page_bytes(&self, range: TokenRange) -> u64 {
        layout::whole_pages(&self.layout, range, self.addresses, pages::page_size())
    }
}
