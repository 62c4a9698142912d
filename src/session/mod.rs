//! A session: eviction and compression of one model's caches, as a config says.
//!
//! Per layer and step a host calls [`Session::begin`], appends tokens, hands sums to [`Session::block_sums`] from its threads,
//! and calls [`Session::end`], or [`Session::abort`] after a failure. A plan made at the end of a step is applied at the
//! begin of the layer's next one; besides, only [`Session::keep`] moves tokens.
//!
//! This file checks the contract and sequences the owners of a layer: [`eviction`], [`lossless`] and [`quant`]. [`State`] is
//! behind one mutex; sums are in [`lanes`], without locks. Lock order: the state, then all lanes (a lane in use is refused),
//! then the queue of the store.

mod budget;
pub mod config;
mod eviction;
mod file;
mod host;
mod lanes;
mod layer;
mod lossless;
pub mod metrics;
mod offload;
mod park;
mod pins;
mod quant;
mod report;
mod tail;
mod warnings;

pub use crate::attend::Queries;
pub use budget::{Holds, MemoryStats, Rung};
pub use file::Saved;
pub use host::Host;
pub use lanes::ScoredRows;
pub use layer::CacheLengths;

use crate::attend::{Found, Work};
use crate::h2o::BlockSums;
use crate::layout::{self, Cache, Kind, Layout, Pair};
use crate::status::{Error, Result, bail};
use crate::store::{Settings, Spares, Store};
use crate::sys::{Mutex, MutexGuard, memory};
use budget::{Budget, Share, Sizes};
use config::Config;
use eviction::ClosingStep;
use lanes::{Lanes, Wanted};
use layer::Layer;
use offload::Offload;
use quant::{Encoding, RawTokens, Slot};
use std::sync::atomic::{AtomicBool, Ordering};

/// Beyond any model and any machine; a wrong number must not become a large allocation.
const MOST_LAYERS: u32 = 4096;

/// The eviction and compression of one model's caches.
pub struct Session {
    outlook: String,
    warnings: Vec<String>,
    state: Mutex<State>,
    lanes: Lanes,
    /// The open steps of layers whose tokens are quantised, and of no others.
    attending: Vec<Slot>,
    /// Working memory of parts.
    parts: Mutex<Vec<Work>>,
    /// See [`Session::interrupt`].
    interrupted: AtomicBool,
}

/// A step that was opened.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Tokens in the cache.
    pub kv_len: u32,
    /// The host calls [`Session::attend`] in place of its own attention.
    pub attends: bool,
    /// Changes where the session warns of something new, once for all layers of a forward.
    pub warnings: u32,
    wanted: Option<Wanted>,
}

impl Begun {
    /// The rows and blocks that a host sums where the step has `queries` rows per head.
    pub fn scored_rows(&self, queries: u32) -> ScoredRows {
        self.wanted.map_or(ScoredRows::default(), |wanted| ScoredRows {
            rows: wanted.rows(queries as usize) as u32,
            block_tokens: wanted.block_tokens as u32,
        })
    }
}

struct State {
    /// See [`Begun::warnings`]: the kinds of warnings at begins of the first layer so far.
    warnings: u32,
    layers: Vec<Layer>,
    store: Store,
    /// Working memory of quantisation.
    encoding: Encoding,
    /// `None` where the config sets none.
    budget: Option<Budget>,
}

impl Session {
    /// A session for `layers` layers, whose attention runs on up to `lanes` threads. Keys of `defaults_json` hold where
    /// `config_json` has none; see [`config`].
    /// INVALID_ARGUMENT: if `layers` or `lanes` is out of range, or a config is refused by [`Config::parse`].
    pub fn new(config_json: &[u8], defaults_json: &[u8], layers: u32, lanes: u32) -> Result<Self> {
        Session::with_host(config_json, defaults_json, layers, lanes, Host::default())
    }

    /// As [`Session::new`], for a host that has described its threads.
    pub fn with_host(config_json: &[u8], defaults_json: &[u8], layers: u32, lanes: u32, host: Host) -> Result<Self> {
        if !(1..=MOST_LAYERS).contains(&layers) {
            bail!(InvalidArgument, "layers is {layers}; 1 to {MOST_LAYERS} expected");
        }
        let (most_lanes, lanes) = (lanes, Lanes::new(lanes)?);
        let (mut config, mut warnings) = Config::parse(config_json, defaults_json, layers)?;
        if !host.attends {
            let memory = config.memory.take().is_some();
            let quant = config.quant.take().is_some();
            for (key, _) in [("kv_quant", quant), ("kv_memory_mb", memory)].into_iter().filter(|(_, given)| *given) {
                let why = "the host does not attend (mnnkv_session_options::attends)";
                memory::push(&mut warnings, memory::format(format_args!("{key} has no effect: {why}"))?)?;
            }
        }
        let store = match &mut config.lossless {
            Some(rules) => {
                rules.workers = Some(host::workers(rules.workers, most_lanes));
                Store::new(lossless::settings(rules))?
            }
            None => Store::new(Settings::default())?,
        };
        let outlook = config.outlook(layers)?;
        let layers = memory::collect((0..layers).map(|number| Layer::new(number, &config)))?;
        let attending = memory::collect(layers.iter().map(|layer| Slot::new(layer.number)))?;
        let budget = config.memory.take().map(Budget::new).transpose()?;
        Ok(Session {
            outlook,
            warnings,
            attending,
            parts: Mutex::new(Vec::new()),
            state: Mutex::new(State { warnings: 0, layers, store, encoding: Encoding::default(), budget }),
            lanes,
            interrupted: AtomicBool::new(false),
        })
    }

    /// Adds block sums of an open layer to a lane. Non-blocking. One thread at a time may use a lane, and none while a
    /// call opens, closes or resets a layer. Which lane has which head changes no result.
    pub fn block_sums(&self, layer: u32, lane: u32, sums: &BlockSums<'_>) -> Result<()> {
        self.lanes.block_sums(layer, lane, sums)
    }

    /// One line: what the config does to the model; from the first begin on with the tokens that a budget holds.
    pub fn outlook(&self) -> Result<String> {
        let state = self.state()?;
        self.outlook_of(&state)
    }

    /// As [`Session::outlook`], of a state that is locked.
    fn outlook_of(&self, state: &State) -> Result<String> {
        match &state.budget {
            Some(budget) => budget.outlook(),
            None => memory::text(&self.outlook),
        }
    }

    /// Opens a step of a layer whose cache has `kv_len` tokens: compressed tokens are back, and the plan is applied. An empty
    /// layer may have no cache. On an error the layer is closed; compressed tokens may be back.
    pub fn begin(&self, layer: u32, mut cache: Option<Cache<'_>>, kv_len: u32) -> Result<Begun> {
        let mut state = self.state()?;
        let mut lanes = self.lanes.all()?;
        let working = self.fit_working(&mut state);
        let State { layers, store, encoding, budget, .. } = &mut *state;
        let found = find(layers, layer)?;
        found.check_closed(kv_len)?;
        found.check_cache(cache.as_ref(), kv_len)?;
        lanes.reserve()?;
        let share = share(budget, layers, layer, cache.as_ref().map(|cache| cache.layout), working?)?;
        let layer = find(layers, layer)?;

        self.interrupted.store(false, Ordering::Relaxed);
        let mut spares = Spares::default();
        if let Some(cache) = &mut cache {
            layer.unpark(store, cache)?;
            if let Some(lossless) = &mut layer.lossless {
                spares = lossless.restore(store, cache, kv_len)?;
            }
            layer.lengths = layer.eviction.begin(cache, store, layer.lengths)?;
            if let Some(quant) = &mut layer.quant {
                let (lengths, eviction) = (layer.lengths, &mut layer.eviction);
                layer.lengths = quant.begin(RawTokens { cache, lengths, eviction, store }, encoding, share.as_ref());
            }
        }
        if let Some(lossless) = &mut layer.lossless {
            lossless.begin(store, cache.as_ref(), layer.lengths.physical);
            lossless.prefetch_next(store, spares);
        }
        let wanted = layer.open(cache.as_ref());
        lanes.open(layer.number, wanted);
        let raw = layer.lengths.physical;
        layer.fit_step(Found::default(), share.as_ref(), raw, budget::offload(budget));
        if let Some(quant) = layer.quant.as_ref().filter(|_| layer.attends()) {
            let offload = budget.as_ref().and_then(|budget| budget.offload.as_ref());
            let step = quant.open(layer.eviction.positions(), layer.lengths, layer.rows, offload);
            self.attending[layer.number as usize].open(step);
        }
        let (kv_len, attends) = (raw, layer.attends());
        if layer.number == 0 {
            state.warnings |= state.warning_kinds();
        }
        Ok(Begun { kv_len, attends, warnings: state.warnings, wanted })
    }

    /// Closes a step: `heads` query heads have scored `queries` rows, or none has; the cache has `kv_len` tokens now. On an
    /// error the layer is still open, and nothing has changed.
    pub fn end(&self, layer: u32, heads: u32, queries: u32, mut cache: Cache<'_>, kv_len: u32) -> Result<()> {
        let mut state = self.state()?;
        let mut lanes = self.lanes.all()?;
        let working = self.fit_working(&mut state)?;
        let State { layers, store, budget, .. } = &mut *state;
        let at = layer as usize;
        let layer = find(layers, layer)?;
        let wanted = layer.check_open("end")?.wanted;
        layer.check_cache(Some(&cache), kv_len)?;
        let added = layer.check_growth(kv_len)?;
        // The cache may be the first that the layer is given.
        if layer.attends() && quant::is_float(&cache.layout.rows()) {
            self.attending[at].check(queries, kv_len)?;
        }

        let keeps_first = cache.layout.rows().key == Kind::Int8;
        let step = ClosingStep { heads, queries, added, wanted, keeps_first };
        layer.lengths = layer.eviction.end(&lanes, &step, layer.lengths, &layer.pins)?;
        // Nothing below fails.
        layer.see_step(added);
        lanes.close(layer.number);
        let found = self.attending[at].close();
        layer.close(Some(&cache));
        let share = budget.as_ref().map(|budget| budget.share(layers, &cache.layout.into(), added, working));
        let layer = &mut layers[at];
        // The tokens of a prompt's chunk leave in the next begin.
        let raw = kv_len - budget::chunk(added);
        layer.fit_step(found, share.as_ref(), raw, budget::offload(budget));
        layer.see_share(share.as_ref(), raw);
        if layer.eviction.has_released() {
            tail::release_again(&mut cache, kv_len - added, kv_len);
        }
        let raw_bytes = layers.iter().map(Layer::raw_bytes).sum();
        let layer = &mut layers[at];
        let (len, token_bytes) = (layer.lengths.physical, cache.layout.rows().token_bytes());
        if let Some(lossless) = &mut layer.lossless {
            lossless.end(store, cache, len, token_bytes, raw_bytes);
        }
        Ok(())
    }

    /// Closes a step that failed: the cache has the `kv_len` tokens that begin left. The step is not counted.
    pub fn abort(&self, layer: u32, mut cache: Option<Cache<'_>>, kv_len: u32) -> Result<()> {
        let mut state = self.state()?;
        let mut lanes = self.lanes.all()?;
        let State { layers, store, .. } = &mut *state;
        let layer = find(layers, layer)?;
        layer.check_open("abort")?;
        layer.check_length(kv_len)?;
        layer.check_cache(cache.as_ref(), kv_len)?;

        if let Some(cache) = &mut cache {
            tail::discard(cache, kv_len)?;
        }
        lanes.close(layer.number);
        self.attending[layer.number as usize].close();
        layer.close(cache.as_ref());
        if let Some((cache, lossless)) = cache.zip(layer.lossless.as_mut()) {
            lossless.abort(store, cache);
        }
        Ok(())
    }

    /// Edits a layer's history: only these logical ranges stay. Returns the physical length afterwards. On an error nothing
    /// has changed.
    pub fn keep<'a>(
        &self,
        layer: u32,
        logical: &[Pair],
        cache: impl Into<Option<Cache<'a>>>,
        kv_len: u32,
    ) -> Result<u32> {
        let mut cache = cache.into();
        let mut state = self.state()?;
        let State { layers, store, budget, .. } = &mut *state;
        let layer = find(layers, layer)?;
        layer.check_closed(kv_len)?;
        layer.check_cache(cache.as_ref(), kv_len)?;

        if layout::check_pairs(logical, layer.lengths.logical)? < layer.lengths.logical {
            let pins = layer.pins.kept(logical)?;
            let cut = layer.quant.as_mut().map(|quant| quant.cut(logical, &layer.eviction)).transpose()?;
            layer.lengths = layer.eviction.keep(logical, cache.as_mut(), store, layer.lengths, &pins)?;
            layer.pins = pins;
            if layer.lengths.physical == 0 {
                layer.value_scales = Vec::new();
            }
            if let Some((quant, cut)) = layer.quant.as_mut().zip(cut) {
                let before = quant.blocks().other_bytes();
                quant.apply(cut, budget::offload(budget));
                let freed = before - quant.blocks().other_bytes().min(before);
                budget.iter_mut().for_each(|budget| budget.see_freed(freed));
            }
        }
        if let Some(cache) = &cache {
            layer.see(cache);
        }
        Ok(layer.lengths.physical)
    }

    /// Clears one layer, or all: the host has cleared its cache.
    pub fn reset(&self, layer: Option<u32>) -> Result<()> {
        let mut state = self.state()?;
        let mut lanes = self.lanes.all()?;
        let State { layers, store, budget, .. } = &mut *state;
        let which = match layer {
            Some(layer) => std::slice::from_mut(find(layers, layer)?),
            None => &mut layers[..],
        };
        for layer in which {
            lanes.close(layer.number);
            self.attending[layer.number as usize].close();
            let freed = layer.quant.as_ref().map_or(0, |quant| quant.blocks().other_bytes());
            layer.reset(store, budget::offload(budget));
            budget.iter_mut().for_each(|budget| budget.see_freed(freed));
        }
        Ok(())
    }

    /// Pins the tokens at these logical positions of all layers, or unpins them. Pinned tokens are never evicted.
    /// On an error nothing has changed. INVALID_ARGUMENT: if the range ends above 2^31 - 1.
    pub fn pin(&self, first: u32, count: u32, on: bool) -> Result<()> {
        let end = first.checked_add(count).filter(|end| *end <= i32::MAX as u32);
        let Some(end) = end else {
            bail!(InvalidArgument, "first is {first} and count {count}; an end of {} or less expected", i32::MAX);
        };
        let layers = &mut self.state()?.layers;
        let mut changed = Vec::new();
        memory::reserve(&mut changed, layers.len())?;
        layers.iter().try_for_each(|layer| memory::push(&mut changed, layer.pins.with(first..end, on)?))?;
        layers.iter_mut().zip(changed).for_each(|(layer, pins)| layer.set_pins(pins));
        Ok(())
    }

    /// Reports that the host has written these tokens of a layer's cache in place. OUT_OF_MEMORY: nothing has changed.
    pub fn rewritten(&self, layer: u32, begin: u32, count: u32) -> Result<()> {
        let mut state = self.state()?;
        let State { layers, store, .. } = &mut *state;
        let layer = find(layers, layer)?;
        let (number, len) = (layer.number, layer.lengths.physical);
        if begin.checked_add(count).is_none_or(|end| end > len) {
            bail!(InvalidArgument, "begin is {begin} and count {count}; layer {number} has {len} tokens in its cache");
        }
        if count == 0 {
            return Ok(());
        }
        if layer.quant.as_ref().is_some_and(|quant| !quant.blocks().list().is_empty()) {
            bail!(
                InvalidArgument,
                "layer {number} has quantised tokens, which cannot be written: keys keep their rotation (attend.h)"
            );
        }
        store.rewritten(number, begin..begin + count)
    }

    /// The logical and the physical length of a layer; while it is open, as begin left them.
    pub fn lengths(&self, layer: u32) -> Result<CacheLengths> {
        Ok(find(&mut self.state()?.layers, layer)?.lengths)
    }

    /// The logical positions of a layer's cache in physical order: runs of (offset, length), ascending and
    /// never touching.
    pub fn positions(&self, layer: u32) -> Result<Vec<Pair>> {
        memory::copied(find(&mut self.state()?.layers, layer)?.eviction.positions())
    }

    /// Bytes of working memory, which no layer has.
    fn working_bytes(&self, state: &State) -> Result<usize> {
        let Some(budget) = &state.budget else { return Ok(0) };
        let parts = self.parts.lock().map_err(|_| Error::out_of_service("the session"))?;
        let parts: usize = parts.iter().map(Work::bytes).sum();
        Ok(parts + state.encoding.bytes() + budget.offload.as_ref().map_or(0, Offload::working_bytes))
    }

    /// INTERNAL: if a call has panicked.
    fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock().map_err(|_| Error::out_of_service("the session"))
    }

    /// Panics inside a call, for tests of the C ABI.
    #[cfg(test)]
    pub(crate) fn panic_inside(&self) -> Result<()> {
        let _state = self.state()?;
        panic!("a bug");
    }
}

/// The share that a layer with such a cache has of the budget.
/// INVALID_ARGUMENT: if the budget is too small for the model.
fn share(
    budget: &mut Option<Budget>,
    layers: &[Layer],
    layer: u32,
    layout: Option<&Layout>,
    working: usize,
) -> Result<Option<Share>> {
    let Some((budget, layout)) = budget.as_mut().zip(layout) else { return Ok(None) };
    let (layer, sizes) = (&layers[layer as usize], Sizes::from(layout));
    // A chat that runs goes on, also in buffers whose padding takes more.
    if let Some(quant) = layer.quant.as_ref().filter(|_| !budget.is_checked() || layer.rows.is_none()) {
        let of = |other: &Layer| if other.number == layer.number { Some(sizes) } else { other.sizes() };
        budget.check(layers.iter().map(of), &sizes, quant.least_raw(), working)?;
    }
    Ok(Some(budget.share(layers, &sizes, layer.last_step, working)))
}

fn find(layers: &mut [Layer], layer: u32) -> Result<&mut Layer> {
    let count = layers.len();
    match layers.get_mut(layer as usize) {
        Some(layer) => Ok(layer),
        None => bail!(InvalidArgument, "layer is {layer}; the session has {count} layers"),
    }
}

#[cfg(test)]
mod tests;
