//! One layer: the checks of the host's contract, its lengths, its open step, and its owners.

use super::budget::{self, Share, Sizes};
use super::config::Config;
use super::eviction::Eviction;
use super::lanes::Wanted;
use super::lossless::Lossless;
use super::offload::Offload;
use super::pins::Pins;
use super::quant::{self, Quant};
use crate::attend::Found;
use crate::layout::{self, Cache, Layout, Rows, TokenRange};
use crate::status::{Result, bail};
use crate::store::Store;
use crate::sys::pages;

/// Tokens of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLengths {
    /// Tokens of the chat since the last reset, less those that an edit of the history removed.
    pub logical: u32,
    /// Tokens in the cache.
    pub physical: u32,
}

/// A step between begin and end.
#[derive(Clone)]
pub(super) struct OpenStep {
    /// How attention is summed; `None` where nothing is scored.
    pub(super) wanted: Option<Wanted>,
}

/// The layout of a cache, and the addresses of its buffers, which are compared and never read through.
struct SeenCache {
    layout: Layout,
    addresses: (usize, usize),
}

/// The state of one layer.
pub(super) struct Layer {
    pub(super) number: u32,
    pub(super) lengths: CacheLengths,
    pub(super) step: Option<OpenStep>,
    pub(super) eviction: Eviction,
    /// Tokens that are never evicted.
    pub(super) pins: Pins,
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
    /// The most tokens of a cache, and the longest step that can keep to it.
    pub(super) fn limit(&self) -> Option<(u32, u32)> {
        let rules = self.eviction.rules()?;
        rules.max_tokens.map(|limit| (limit, rules.longest_step(limit)))
    }

    /// Remembers a step that was too long for the limit.
    pub(super) fn see_step(&mut self, added: u32) {
        self.last_step = added;
        self.chunk = budget::chunk(added);
        if self.limit().is_some_and(|(limit, most)| self.lengths.physical > limit && added > most) {
            self.too_long_step = self.too_long_step.max(added);
        }
    }

    pub(super) fn new(number: u32, config: &Config) -> Self {
        Layer {
            number,
            lengths: CacheLengths::default(),
            step: None,
            eviction: Eviction::new(number, config),
            pins: Pins::default(),
            lossless: Lossless::new(number, config),
            quant: Quant::new(number, config),
            rows: None,
            too_long_step: 0,
            last_step: 0,
            chunk: 0,
            used: false,
            buffer_tokens: 0,
            seen: None,
            value_scales: Vec::new(),
        }
    }

    /// Whether steps attend by the session: never over a cache that the host quantises.
    pub(super) fn attends(&self) -> bool {
        self.quant.as_ref().is_some_and(Quant::attends) && self.rows.as_ref().is_none_or(quant::is_float)
    }

    /// Opens a step; returns how its attention is summed.
    pub(super) fn open(&mut self, cache: Option<&Cache<'_>>) -> Option<Wanted> {
        match cache {
            Some(cache) => self.see(cache),
            None => self.buffer_tokens = 0,
        }
        self.chunk = 0;
        let wanted = self.wanted();
        self.step = Some(OpenStep { wanted });
        wanted
    }

    pub(super) fn close(&mut self, cache: Option<&Cache<'_>>) {
        self.step = None;
        if let Some(cache) = cache {
            self.see(cache);
        }
    }

    /// The cache was cleared.
    pub(super) fn reset(&mut self, store: &mut Store, offload: Option<&mut Offload>) {
        self.lengths = CacheLengths::default();
        (self.last_step, self.chunk) = (0, 0);
        self.step = None;
        self.rows = None;
        self.value_scales = Vec::new();
        self.pins.clear();
        self.eviction.reset();
        if let Some(quant) = &mut self.quant {
            quant.reset(offload);
        }
        store.truncated(self.number, 0);
        self.lossless.iter_mut().for_each(|lossless| lossless.reset(store));
    }

    /// Takes what a step has found, and lets blocks leave until the layer holds its share beside so many raw tokens.
    pub(super) fn fit(&mut self, found: Found, share: Option<&Share>, raw_tokens: u32, offload: Option<&mut Offload>) {
        if let Some(quant) = &mut self.quant {
            quant.fit(found, share, raw_tokens, &self.pins, offload);
        }
    }

    /// As [`Layer::fit`], in a step. Where the step was refused memory, nothing leaves to make room for tokens that the next
    /// one quantises.
    pub(super) fn fit_step(
        &mut self,
        found: Found,
        share: Option<&Share>,
        raw_tokens: u32,
        offload: Option<&mut Offload>,
    ) {
        let is_short = self.quant.as_ref().is_some_and(Quant::is_short);
        self.fit(found, share.filter(|_| !is_short), raw_tokens, offload);
    }

    /// A step has ended: counts one above the share.
    pub(super) fn see_share(&mut self, share: Option<&Share>, raw_tokens: u32) {
        if let (Some(share), Some(quant)) = (share, &mut self.quant) {
            quant.see_share(share, raw_tokens);
        }
    }

    /// Takes what a file has of the layer, after a reset. Raw tokens that the next begin quantises are like those of a chunk.
    pub(super) fn take(&mut self, lengths: CacheLengths, rows: Rows, value_scales: Vec<u8>) {
        self.chunk = self.quant.as_ref().map_or(0, |quant| lengths.physical.saturating_sub(quant.least_raw()));
        (self.lengths, self.rows, self.value_scales, self.used) = (lengths, Some(rows), value_scales, true);
    }

    /// Replaces the pins. A waiting plan is made anew.
    pub(super) fn set_pins(&mut self, pins: Pins) {
        self.pins = pins;
        self.eviction.plan_anew(self.lengths, &self.pins);
    }

    /// How attention is summed, of the open step or of the next; `None` where nothing is scored.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        self.step.as_ref().map_or_else(|| self.eviction.wanted(self.lengths), |step| step.wanted)
    }

    /// INVALID_ARGUMENT: if a step is open, or `kv_len` is not the length of the cache.
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

    /// The open step. INVALID_ARGUMENT: if there is none; `call` is the name of the caller.
    pub(super) fn check_open(&self, call: &str) -> Result<OpenStep> {
        match &self.step {
            Some(step) => Ok(step.clone()),
            None => bail!(InvalidArgument, "layer {} is not open; begin comes before {call}", self.number),
        }
    }

    /// INVALID_ARGUMENT: if `kv_len` is not the length of the cache.
    pub(super) fn check_length(&self, kv_len: u32) -> Result<()> {
        let CacheLengths { physical, .. } = self.lengths;
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
        let (layer, CacheLengths { logical, physical }) = (self.number, self.lengths);
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

    /// Bytes that a token takes in the host's buffers.
    pub(super) fn token_bytes(&self) -> usize {
        self.sizes().map_or(0, |sizes| sizes.token)
    }

    /// Raw bytes of the tokens in the cache.
    pub(super) fn raw_bytes(&self) -> usize {
        self.token_bytes() * self.lengths.physical as usize
    }

    /// Bytes of the buffers behind the tokens.
    pub(super) fn tail_bytes(&self) -> u64 {
        self.buffer_tokens.saturating_sub(self.lengths.physical as usize) as u64 * self.token_bytes() as u64
    }

    /// Bytes of the whole pages that the layer's compressed tokens have left.
    pub(super) fn compressed_page_bytes(&self, store: &Store) -> u64 {
        let runs = self.seen.as_ref().map(|seen| (seen, store.released_runs(self.number, &seen.layout)));
        runs.map_or(0, |(seen, runs)| runs.into_iter().map(|run| seen.page_bytes(run)).sum())
    }

    /// Bytes that evicted tokens have left: the whole pages behind the tokens, as far as the tokens of the chat reach, and
    /// the tokens for which the buffers have no room.
    pub(super) fn evicted_bytes(&self) -> u64 {
        let (max, CacheLengths { logical, physical }) = (self.buffer_tokens as u32, self.lengths);
        let beyond = logical.saturating_sub(max.max(physical));
        let behind = logical.min(max).saturating_sub(physical);
        let pages = match &self.seen {
            // 0 where the system drops no pages.
            Some(seen) if self.eviction.counts().released_bytes > 0 => {
                seen.layout.range(physical, behind).map_or(0, |range| seen.page_bytes(range))
            }
            _ => 0,
        };
        pages + u64::from(beyond) * self.token_bytes() as u64
    }
}

impl SeenCache {
    /// Bytes of the whole pages that a release of these tokens returns.
    fn page_bytes(&self, range: TokenRange) -> u64 {
        layout::whole_pages(&self.layout, range, self.addresses, pages::page_size())
    }
}
