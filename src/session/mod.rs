//! A session: eviction and compression of one model's caches, as a config says.
//!
//! Per layer and step a host calls [`Session::begin`], appends tokens, attends or hands sums to [`Session::block_sums`] from its
//! threads, and calls [`Session::end`], or [`Session::abort`] after a failure. Begin moves tokens between their places
//! ([`tokens`]) and opens one [`step`], which threads share; end closes it, and takes what it has learnt. Besides, only
//! [`Session::keep`] and [`Session::trim`] move tokens.
//!
//! [`State`] is behind one mutex; docs/architecture.md has the order of locks.

mod base;
mod budget;
pub mod config;
mod eviction;
mod host;
mod layer;
mod lossless;
pub mod metrics;
mod open;
mod quant;
mod report;
mod save;
mod step;
mod sums;
mod tail;
mod tier;
mod tokens;
mod warnings;
mod window;

pub use crate::attend::Queries;
pub use budget::{Holds, MemoryStats, Rung};
pub use host::Host;
pub use save::LayerCache;
pub use step::Begun;
pub use sums::ScoredRows;
pub use tokens::CacheLengths;

use crate::attend::WorkPool;
use crate::file::check_fingerprint;
use crate::layout::{self, Cache, Kind, Layout, Pair};
use crate::status::{Error, Result, bail};
use crate::store::{Settings, Spares, Store};
use crate::sys::{Mutex, MutexGuard, Shared, memory};
use base::BaseUse;
use budget::{Budget, Share, Sizes};
use config::Config;
use eviction::ClosingStep;
use layer::Layer;
use quant::Encoding;
use step::{Slot, Spare};
use sums::MOST_LANES;
use tier::Tier;

/// Beyond any model and any machine; a wrong number must not become a large allocation.
const MOST_LAYERS: u32 = 4096;

/// The eviction and compression of one model's caches.
pub struct Session {
    outlook: String,
    warnings: Vec<String>,
    /// What the chat files of the model have.
    fingerprint: Vec<u8>,
    state: Mutex<State>,
    /// The open steps, by layer.
    slots: Vec<Shared<Slot>>,
    /// Threads that may hand over sums at once.
    lanes: u32,
    /// Working memory of parts.
    parts: Mutex<WorkPool>,
}

struct State {
    /// See [`Begun::warnings`]: the kinds of warnings at begins of the first layer so far.
    warnings: u32,
    layers: Vec<Layer>,
    store: Store,
    /// Working memory of quantisation.
    encoding: Encoding,
    /// Memory of steps that have ended.
    spare: Spare,
    /// `None` where the config sets none.
    budget: Option<Budget>,
    /// The chat file; `None` where the config names none and no call has.
    tier: Option<Tier>,
    /// Sections that the next save writes.
    sections: Vec<(String, Vec<u8>)>,
    /// The chat of the file is that of the session: it was opened or saved.
    has_chat: bool,
    /// The prefix that it began with.
    base: Option<BaseUse>,
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
        Session::for_model(config_json, defaults_json, layers, lanes, host, b"")
    }

    /// As [`Session::with_host`], of a model whose chat files have a fingerprint.
    pub fn for_model(
        config_json: &[u8],
        defaults_json: &[u8],
        layers: u32,
        lanes: u32,
        host: Host,
        fingerprint: &[u8],
    ) -> Result<Self> {
        if !(1..=MOST_LAYERS).contains(&layers) {
            bail!(InvalidArgument, "layers is {layers}; 1 to {MOST_LAYERS} expected");
        }
        if !(1..=MOST_LANES).contains(&lanes) {
            bail!(InvalidArgument, "lanes is {lanes}; 1 to {MOST_LANES} expected");
        }
        check_fingerprint(fingerprint)?;
        let (mut config, mut warnings) = Config::parse(config_json, defaults_json, layers)?;
        if !host.attends {
            let memory = config.memory.take().is_some();
            let quant = config.quant.take().is_some();
            for (key, _) in [("kv_quant", quant), ("the budget", memory)].into_iter().filter(|(_, given)| *given) {
                let why = "the host does not attend (mnnkv_session_options::attends)";
                memory::push(&mut warnings, memory::format(format_args!("{key} has no effect: {why}"))?)?;
            }
        }
        let store = match &mut config.lossless {
            Some(rules) => {
                rules.workers = Some(host::workers(rules.workers, lanes));
                Store::new(lossless::settings(rules))?
            }
            None => Store::new(Settings::default())?,
        };
        let outlook = config.outlook(layers)?;
        let layers = memory::try_collect((0..layers).map(|number| Layer::new(number, &config)))?;
        let slots = memory::collect(layers.iter().map(|layer| layer.slot.clone()))?;
        let (rules, base) = (config.memory.take(), config.base.take());
        let tier = config.file.as_ref().map(|file| Tier::new(&file.path, fingerprint, file.most)).transpose()?;
        let budget = rules.map(Budget::new);
        let (encoding, spare) = (Encoding::default(), Spare::default());
        let session = Session {
            outlook,
            warnings,
            fingerprint: memory::copied(fingerprint)?,
            state: Mutex::new(State {
                warnings: 0,
                layers,
                store,
                encoding,
                spare,
                budget,
                tier,
                sections: Vec::new(),
                has_chat: false,
                base: None,
            }),
            slots,
            lanes,
            parts: Mutex::default(),
        };
        base.map_or(Ok(()), |path| session.begin_with(&path))?;
        Ok(session)
    }

    /// One line: what the config does to the model; from the first begin on with the tokens that a budget holds.
    pub fn outlook(&self) -> Result<String> {
        let state = self.state()?;
        self.outlook_of(&state)
    }

    /// As [`Session::outlook`], of a state that is locked.
    fn outlook_of(&self, state: &State) -> Result<String> {
        let mut text = match &state.budget {
            Some(budget) => budget.outlook(state.tier.as_ref())?,
            None => memory::text(&self.outlook)?,
        };
        quant::describe(&state.layers, &mut text)?;
        window::describe(&state.layers, &mut text)?;
        Ok(text)
    }

    /// Opens a step of a layer whose cache has `kv_len` tokens: compressed tokens are back, and the plan is applied. An empty
    /// layer may have no cache. On an error the layer is closed; compressed tokens may be back.
    pub fn begin(&self, layer: u32, mut cache: Option<Cache<'_>>, kv_len: u32) -> Result<Begun> {
        let mut state = self.state()?;
        let working = self.fit_working(&mut state)?;
        let State { layers, store, encoding, spare, budget, tier, base, .. } = &mut *state;
        let found = find(layers, layer)?;
        found.check_closed(kv_len)?;
        found.check_cache(cache.as_ref(), kv_len)?;
        let share = share(budget, layers, layer, cache.as_ref().map(|cache| cache.layout), working)?;
        let share = share.as_ref();
        let layer = find(layers, layer)?;
        layer.prepare(spare, self.lanes)?;
        layer.collect(tier.as_mut())?;

        let mut spares = Spares::default();
        if let Some(cache) = &mut cache {
            let of_base = layer.tokens().in_file.of_base;
            let of_base = base.as_ref().filter(|_| of_base).map(BaseUse::file);
            layer.restore_raw(of_base.or_else(|| tier.as_ref()?.file.as_ref()), cache)?;
            if let Some(lossless) = &mut layer.lossless {
                spares = lossless.restore(store, cache, kv_len)?;
            }
            layer.pass(cache, store, tier.as_mut())?;
            layer.evict(cache, store)?;
            layer.quantise(cache, store, encoding, share);
        } else {
            // Those of the file are all gone.
            layer.step_mut()?.tokens.in_file.is_away = false;
        }
        let kv_len = layer.lengths().physical;
        if let Some(lossless) = &mut layer.lossless {
            lossless.begin(store, cache.as_ref(), kv_len);
            lossless.prefetch_next(store, spares);
        }
        layer.fit(share, kv_len, tier.as_mut());
        layer.open(cache.as_ref(), tier.as_ref())?;
        let (attends, wanted, is_first) = (layer.step.attends, layer.step.wanted, layer.number == 0);
        if is_first {
            state.warnings |= state.warning_kinds();
        }
        Ok(Begun { kv_len, attends, warnings: state.warnings, wanted })
    }

    /// Closes a step: `heads` query heads have scored `queries` rows, or none has; the cache has `kv_len` tokens now. On an
    /// error the layer is still open, and nothing has changed.
    pub fn end(&self, layer: u32, heads: u32, queries: u32, mut cache: Cache<'_>, kv_len: u32) -> Result<()> {
        let mut state = self.state()?;
        let working = self.fit_working(&mut state)?;
        let State { layers, store, spare, budget, tier, .. } = &mut *state;
        let (number, at) = (layer, layer as usize);
        let layer = find(layers, layer)?;
        let slot = layer.slot.clone();
        let mut open = slot.lock()?;
        if open.is_none() {
            return Err(layer.is_not_open("end"));
        }
        layer.check_cache(Some(&cache), kv_len)?;
        let added = layer.check_growth(kv_len)?;
        layer.shut(&mut open)?;
        // The cache may be the first that the layer is given.
        let has_attended = match layer.step.attends && !cache.layout.rows().is_quantised() {
            true => layer.step.check(layer.number, queries, kv_len),
            false => Ok(()),
        };
        let step = ClosingStep { heads, queries, added, attention: None };
        if let Err(error) = has_attended.and_then(|()| layer.end(step)) {
            *open = Some(layer.step.clone());
            return Err(error);
        }
        drop(open);
        layer.see(&cache);
        layer.see_step(added);
        let share = budget.as_ref().map(|budget| budget.share(layers, (number, &cache.layout.into()), added, working));
        let layer = &mut layers[at];
        // The tokens of a prompt's chunk leave in the next begin.
        let raw = kv_len - budget::chunk(added);
        layer.fit(share.as_ref(), raw, tier.as_mut());
        layer.write_ahead(share.as_ref(), raw, tier.as_mut());
        layer.see_share(share.as_ref(), raw);
        layer.close(spare);
        if layer.released_bytes > 0 {
            tail::release_again(&mut cache, kv_len - added, kv_len);
        }
        if layer.lossless.is_some() {
            let raw_bytes = layers.iter().map(Layer::raw_bytes).sum();
            let token_bytes = cache.layout.rows().token_bytes();
            if let Some(lossless) = &mut layers[at].lossless {
                lossless.end(store, cache, kv_len, token_bytes, raw_bytes);
            }
        }
        Ok(())
    }

    /// Closes a step that failed: the cache has the `kv_len` tokens that begin left. The step is not counted.
    pub fn abort(&self, layer: u32, mut cache: Option<Cache<'_>>, kv_len: u32) -> Result<()> {
        let mut state = self.state()?;
        let State { layers, store, spare, .. } = &mut *state;
        let layer = find(layers, layer)?;
        let slot = layer.slot.clone();
        let mut open = slot.lock()?;
        if open.is_none() {
            return Err(layer.is_not_open("abort"));
        }
        layer.check_length(kv_len)?;
        layer.check_cache(cache.as_ref(), kv_len)?;

        layer.shut(&mut open)?;
        drop(open);
        if let Some(cache) = &mut cache {
            tail::discard(cache, kv_len)?;
        }
        layer.close(spare);
        if let Some(cache) = &cache {
            layer.see(cache);
        }
        if let Some((cache, lossless)) = cache.zip(layer.lossless.as_mut()) {
            lossless.commit(store, cache);
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
        let State { layers, store, budget, tier, .. } = &mut *state;
        let layer = find(layers, layer)?;
        layer.check_closed(kv_len)?;
        layer.check_cache(cache.as_ref(), kv_len)?;

        let before = layer.lengths().logical;
        let stays = layout::check_pairs(logical, before)?;
        let number = layer.number;
        if stays < before {
            // The edit is that of all layers as long.
            let mut alike = layers.iter().filter(|other| other.number == number || other.lengths().logical == before);
            alike.try_for_each(|other| other.check_rollback(logical))?;
        }
        let layer = find(layers, number)?;
        if stays < before {
            let edit = layer.tokens().kept(logical)?;
            let is_int8 = cache.as_ref().is_some_and(|cache| cache.layout.rows().key == Kind::Int8);
            if is_int8 && edit.lengths().physical == 0 && stays > 0 {
                bail!(
                    InvalidArgument,
                    "layer {} would have {stays} tokens in its chat and none in its cache, whose K is INT8: MNN's quantiser must \
                     begin with more than one token; clear the cache and reset the layer (mnnkv_session_reset)",
                    layer.number
                );
            }
            let pins = tokens::pins_of(&layer.pins, logical)?;
            let bytes = layer.tokens().blocks.other_bytes();
            layer.apply(edit, cache.as_mut(), store, tier.as_mut())?;
            layer.pins = pins;
            layer.plan_anew();
            if layer.lengths().physical == 0 {
                layer.value_scales = Vec::new();
            }
            let freed = bytes.saturating_sub(layer.tokens().blocks.other_bytes());
            budget.iter_mut().for_each(|budget| budget.see_freed(freed));
        }
        if let Some(cache) = &cache {
            layer.see(cache);
        }
        Ok(layer.lengths().physical)
    }

    /// Clears one layer, or all: the host has cleared its cache.
    /// BUSY: if a thread attends, or adds sums.
    pub fn reset(&self, layer: Option<u32>) -> Result<()> {
        let mut state = self.state()?;
        let State { layers, store, budget, tier, .. } = &mut *state;
        let which = match layer {
            Some(layer) => std::slice::from_mut(find(layers, layer)?),
            None => &mut layers[..],
        };
        for layer in &*which {
            if layer.is_shared(layer.slot.lock()?.as_ref()) {
                return Err(layer::busy(layer.number));
            }
        }
        for layer in which {
            layer.shut(&mut *layer.slot.lock()?)?;
            let freed = layer.tokens().blocks.other_bytes();
            layer.reset(store, tier.as_mut())?;
            budget.iter_mut().for_each(|budget| budget.see_freed(freed));
        }
        Ok(())
    }

    /// Pins the tokens at these logical positions of all layers, or unpins them. Pinned tokens are never evicted.
    /// On an error nothing has changed. INVALID_ARGUMENT: if the range ends above 2^31 - 1.
    pub fn pin(&self, first: u32, count: u32, on: bool) -> Result<()> {
        let end = first.checked_add(count).filter(|end| *end <= i32::MAX as u32);
        if count == 0 && end.is_some() {
            return Ok(());
        }
        let Some(end) = end else {
            bail!(InvalidArgument, "first is {first} and count {count}; an end of {} or less expected", i32::MAX);
        };
        let layers = &mut self.state()?.layers;
        let mut changed = Vec::new();
        memory::reserve(&mut changed, layers.len())?;
        layers.iter().try_for_each(|layer| memory::push(&mut changed, layer.pins.with(first..end, on)?))?;
        for (layer, pins) in layers.iter_mut().zip(changed) {
            layer.pins = pins;
            layer.plan_anew();
        }
        Ok(())
    }

    /// Reports that the host has written these tokens of a layer's cache in place. OUT_OF_MEMORY: nothing has changed.
    pub fn rewritten(&self, layer: u32, begin: u32, count: u32) -> Result<()> {
        let mut state = self.state()?;
        let State { layers, store, .. } = &mut *state;
        let layer = find(layers, layer)?;
        let (number, len) = (layer.number, layer.lengths().physical);
        if begin.checked_add(count).is_none_or(|end| end > len) {
            bail!(InvalidArgument, "begin is {begin} and count {count}; layer {number} has {len} tokens in its cache");
        }
        if count == 0 {
            return Ok(());
        }
        if !layer.tokens().blocks.list().is_empty() {
            bail!(
                InvalidArgument,
                "layer {number} has quantised tokens, which cannot be written: keys keep their rotation (session.h)"
            );
        }
        if layer.tokens().in_file.is_away {
            bail!(
                InvalidArgument,
                "layer {number} has not begun since its chat was opened: its tokens are not in the cache"
            );
        }
        layer.rewritten(begin..begin + count)?;
        store.rewritten(number, begin..begin + count)
    }

    /// The logical and the physical length of a layer; while it is open, as begin left them.
    pub fn lengths(&self, layer: u32) -> Result<CacheLengths> {
        Ok(find(&mut self.state()?.layers, layer)?.lengths())
    }

    /// The positions of the tokens that a KV head can attend to, wherever they are; or without a head of those in a layer's cache,
    /// in the order of their slots. Runs of (first, count), ascending and never touching; while the layer is open, as begin
    /// left them.
    /// INVALID_ARGUMENT: if the layer is known not to have the head.
    pub fn positions(&self, layer: u32, head: Option<u32>) -> Result<Vec<Pair>> {
        let mut state = self.state()?;
        let layer = find(&mut state.layers, layer)?;
        let Some(head) = head else { return memory::copied(layer.tokens().raw.pairs()) };
        if let Some(rows) = layer.rows.filter(|rows| head as usize >= rows.heads) {
            bail!(InvalidArgument, "kv_head is {head}; layer {} has {} KV heads", layer.number, rows.heads);
        }
        let first = layer.window.map_or(0, |window| window.seen_from(layer.lengths().logical));
        Ok(layer.tokens().attended(head as usize)?.with(0..first, false)?.into_pairs())
    }

    /// Bytes of working memory, which no layer has.
    fn working_bytes(&self, state: &State) -> Result<usize> {
        if state.budget.is_none() {
            return Ok(0);
        }
        let tier = state.tier.as_ref().map_or(0, Tier::bytes);
        Ok(self.parts()?.bytes() + state.spare.bytes() + state.encoding.bytes() + tier)
    }

    fn parts(&self) -> Result<MutexGuard<'_, WorkPool>> {
        self.parts.lock().map_err(|_| Error::out_of_service("the session"))
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
        budget.check(layers, of, &sizes, quant.least_raw(), working)?;
    }
    budget.see_windows(layers)?;
    Ok(Some(budget.share(layers, (layer.number, &sizes), layer.last_step, working)))
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
