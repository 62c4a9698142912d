//! A session: everything that a host's attention needs of this library, run as its config says.
//!
//! Per layer and step a host calls [`Session::begin`], appends, scores tiles from its threads with [`Lane::scores`], and
//! calls [`Session::end`]. A plan made at the end of a step is applied at the beginning of the layer's next, and
//! nothing else moves tokens but [`Session::keep`]. [`Session::abort`] closes a step that failed. Cold tokens are handed to the store when a step begins (without
//! workers: when it ends), leave the cache when it ends, and are back after the beginning of the next.
//!
//! [`State`] owns everything but what attention threads gather, which is in their lanes. Lock order: the state, then the
//! store's queue. Attention threads take no lock.

pub mod config;
mod eviction;
mod lanes;
mod layer;
pub mod metrics;
mod positions;
mod report;
mod zones;

pub use lanes::Lane;
pub use layer::Lengths;

use crate::h2o::ScoredStep;
use crate::layout::{self, Pair};
use crate::status::{Error, Result, Status, bail};
use crate::store::{self, Cache, Store, Writes};
use crate::sys::{memory, pages};
use config::{Config, Lossless, Mode};
use lanes::Wanted;
use layer::{Layer, Step};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// More than any model or machine has; a wild number must not become a large allocation.
const MOST_LAYERS: u32 = 4096;
const MOST_LANES: u32 = 1024;

/// The compression of one model's caches.
pub struct Session {
    warnings: Vec<String>,
    state: Mutex<State>,
}

struct State {
    config: Config,
    layers: Vec<Layer>,
    /// Where tokens are compressed.
    store: Option<Store>,
}

impl Session {
    /// A session for `layers` layers, as the JSON config says; see [`config`].
    pub fn new(json: &[u8], layers: u32) -> Result<Self> {
        if !(1..=MOST_LAYERS).contains(&layers) {
            bail!(InvalidArgument, "layers is {layers}; 1 to {MOST_LAYERS} expected");
        }
        let (config, warnings) = Config::parse(json, layers)?;
        let store = match &config.lossless {
            Some(lossless) => Some(Store::new(store_config(lossless))?),
            None => None,
        };
        let layers = memory::collect((0..layers).map(|number| Layer::new(number, config.h2o.as_ref())))?;
        Ok(Session { warnings, state: Mutex::new(State { config, layers, store }) })
    }

    /// Lanes for so many attention threads. Every call of a session that takes lanes takes all of these, and those of no
    /// other session.
    pub fn lanes(count: u32) -> Result<Vec<Lane>> {
        if !(1..=MOST_LANES).contains(&count) {
            bail!(InvalidArgument, "lanes is {count}; 1 to {MOST_LANES} expected");
        }
        memory::collect((0..count).map(|_| Lane::default()))
    }

    /// What was odd about the config, and what has been since, one sentence per line.
    pub fn warnings(&self) -> Result<String> {
        let state = self.state()?;
        let mut text = String::new();
        for warning in &self.warnings {
            let end = if text.is_empty() { "" } else { "\n" };
            memory::append(&mut text, format_args!("{end}{warning}"))?;
        }
        let unscored = || state.layers.iter().filter(|layer| layer.counts.unscored_plans > 0);
        if let Some(first) = unscored().next() {
            let (end, number, count) = (if text.is_empty() { "" } else { "\n" }, first.number, unscored().count());
            memory::append(
                &mut text,
                format_args!(
                    "{end}layer {number} ({count} in all) kept tokens that were due for eviction, since no scored row has seen \
                     them: mnnkv_session_scores must get the layer's tiles (in prompts: kv_h2o_prefill_queries), or \
                     kv_h2o_evict_unscored must be true"
                ),
            )?;
        }
        Ok(text)
    }

    /// Whether tiles of a step of `queries` rows per head are used, of an open layer's step or of its next.
    pub fn wants_scores(&self, layer: u32, queries: u32) -> Result<bool> {
        let mut state = self.state()?;
        let State { config, layers, .. } = &mut *state;
        let wanted = find(layers, layer)?.wanted(config.h2o.as_ref());
        Ok(wanted.is_some_and(|wanted| wanted.rows(queries as usize) > 0))
    }

    fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock().map_err(|_| Error::out_of_service("the session"))
    }

    /// A bug, as the tests of the C ABI want it.
    #[cfg(test)]
    pub(crate) fn panic_inside(&self) -> Result<()> {
        let _state = self.state()?;
        panic!("a bug");
    }

    /// The cache of one layer, or of all, was cleared.
    pub fn reset(&self, lanes: &mut [&mut Lane], layer: Option<u32>) -> Result<()> {
        let mut state = self.state()?;
        let State { layers, store, .. } = &mut *state;
        let which = match layer {
            Some(layer) => std::slice::from_mut(find(layers, layer)?),
            None => &mut layers[..],
        };
        for layer in which {
            lanes::close(lanes, layer.number);
            layer.reset();
            if let Some(store) = store {
                store.truncated(layer.number, 0);
            }
        }
        Ok(())
    }

    /// Opens a step of a layer whose cache has `kv_len` tokens, and answers how many it has now: compressed tokens are
    /// back, and the plan that waited is applied. An empty cache need not be there yet.
    pub fn begin(&self, lanes: &mut [&mut Lane], layer: u32, mut cache: Option<Cache<'_>>, kv_len: u32) -> Result<u32> {
        let mut state = self.state()?;
        let State { config, layers, store } = &mut *state;
        let mine = find(layers, layer)?;
        mine.check_closed(kv_len)?;
        match &cache {
            Some(cache) => mine.check(cache.layout, kv_len)?,
            None if kv_len > 0 => bail!(InvalidArgument, "layer {layer} has {kv_len} tokens and no cache is given"),
            None => {}
        }
        let edit = mine.plan().map(|pairs| mine.after_eviction(pairs)).transpose()?;
        lanes::reserve(lanes)?;
        if let (Some(store), Some(cache)) = (&mut *store, &mut cache) {
            restore(mine, store, cache)?;
        }
        let wanted = mine.wanted(config.h2o.as_ref());
        if let (Some(cache), Some(edit), Some(pairs)) = (&mut cache, edit, mine.plan()) {
            let start = Instant::now();
            mine.counts.released_bytes += move_together(mine, store.as_mut(), cache, pairs)?;
            mine.apply_plan(edit);
            mine.counts.evict_ns += start.elapsed().as_nanos() as u64;
        }
        if let (Some(lossless), Some(store)) = (&config.lossless, store) {
            if let Some(cache) = cache.as_ref().filter(|_| zones::at_begin(lossless)) {
                submit(config, lossless, mine, store, cache);
            }
            match zones::next(config, layer) {
                Some(next) => store.prefetch(next),
                // Between steps nothing lies beside the caches.
                None => store.drop_spares(),
            }
        }
        match &cache {
            Some(cache) => mine.see(cache),
            None => mine.buffer_tokens = 0,
        }
        mine.step = Some(Step { wanted });
        lanes::open(lanes, layer, wanted);
        Ok(mine.lengths.physical)
    }

    /// Closes a step: `heads` query heads have scored `queries` rows, or none has; the cache has `kv_len` tokens now.
    pub fn end(
        &self,
        lanes: &mut [&mut Lane],
        layer: u32,
        heads: u32,
        queries: u32,
        cache: Cache<'_>,
        kv_len: u32,
    ) -> Result<()> {
        let mut state = self.state()?;
        let State { config, layers, store } = &mut *state;
        let mine = find(layers, layer)?;
        let Some(step) = mine.step else {
            bail!(InvalidArgument, "layer {layer} is not open; begin comes before end");
        };
        mine.check(cache.layout, kv_len)?;
        let Some(added) = kv_len.checked_sub(mine.lengths.physical) else {
            let before = mine.lengths.physical;
            bail!(InvalidArgument, "kv_len of layer {layer} is {kv_len}; {before} or more expected, as begin left it");
        };
        if added > i32::MAX as u32 - mine.lengths.logical {
            bail!(InvalidArgument, "layer {layer} would have more than {} logical tokens", i32::MAX);
        }
        let start = Instant::now();
        let scored = match step.wanted {
            Some(wanted) if queries > 0 => scored(lanes, layer, &wanted, heads, queries, kv_len)?,
            _ => None,
        };
        mine.append(added)?;
        // From here on nothing fails.
        lanes::close(lanes, layer);
        mine.see(&cache);
        mine.step = None;
        mine.steps += 1;
        if let (Some(h2o), Some(wanted)) = (&config.h2o, step.wanted) {
            if let Some((masses, rows)) = &scored {
                mine.fold(&ScoredStep { masses, heads, rows: *rows }, added);
            }
            mine.counts.score_ns += start.elapsed().as_nanos() as u64;
            // Without memory for a plan there will be one in a later step.
            let prompt = wanted.is_prompt(queries as usize);
            if mine.tick(h2o, queries == 0, prompt, scored.is_some()).is_err() {
                mine.counts.fallbacks += 1;
            }
        }
        if let (Some(lossless), Some(store)) = (&config.lossless, store) {
            let raw: usize = layers.iter().map(Layer::raw_bytes).sum();
            zones::set_bounds(lossless, store, raw, layers[layer as usize].token_bytes());
            let mine = &mut layers[layer as usize];
            if !zones::at_begin(lossless) {
                submit(config, lossless, mine, store, &cache);
            }
            commit(config, lossless, mine, store, cache);
        }
        Ok(())
    }

    /// Closes a step that failed: the cache has the `kv_len` tokens that begin left, and nothing is counted.
    pub fn abort(&self, lanes: &mut [&mut Lane], layer: u32, cache: Option<Cache<'_>>, kv_len: u32) -> Result<()> {
        let mut state = self.state()?;
        let State { config, layers, store } = &mut *state;
        let mine = find(layers, layer)?;
        if mine.step.is_none() {
            bail!(InvalidArgument, "layer {layer} is not open; begin comes before abort");
        }
        mine.check_length(kv_len)?;
        match &cache {
            Some(cache) => mine.check(cache.layout, kv_len)?,
            None if kv_len > 0 => bail!(InvalidArgument, "layer {layer} has {kv_len} tokens and no cache is given"),
            None => {}
        }
        lanes::close(lanes, layer);
        mine.step = None;
        if let Some(cache) = cache {
            mine.see(&cache);
            if let (Some(lossless), Some(store)) = (&config.lossless, store) {
                commit(config, lossless, mine, store, cache);
            }
        }
        Ok(())
    }

    /// The host has written other contents to these tokens of a layer's cache.
    pub fn rewritten(&self, layer: u32, begin: u32, count: u32) -> Result<()> {
        let mut state = self.state()?;
        let State { layers, store, .. } = &mut *state;
        let len = find(layers, layer)?.lengths.physical;
        if begin.checked_add(count).is_none_or(|end| end > len) {
            bail!(InvalidArgument, "begin is {begin} and count {count}; layer {layer} has {len} tokens in its cache");
        }
        match store {
            Some(store) if count > 0 => store.rewritten(layer, begin..begin + count),
            _ => Ok(()),
        }
    }

    /// Edits a layer's history: only these logical ranges stay. Answers the new physical length.
    pub fn keep(&self, layer: u32, logical: &[Pair], mut cache: Cache<'_>, kv_len: u32) -> Result<u32> {
        let mut state = self.state()?;
        let State { config, layers, store } = &mut *state;
        let mine = find(layers, layer)?;
        mine.check_closed(kv_len)?;
        mine.check(cache.layout, kv_len)?;
        if layout::check_pairs(logical, mine.lengths.logical)? == mine.lengths.logical {
            mine.see(&cache);
            return Ok(kv_len);
        }
        let physical = mine.positions.find(logical)?;
        let edit = mine.after_keep(logical, &physical)?;
        mine.counts.released_bytes += move_together(mine, store.as_mut(), &mut cache, &physical)?;
        mine.apply(edit);
        mine.see(&cache);
        if config.h2o.as_ref().is_some_and(|h2o| mine.replan(h2o).is_err()) {
            mine.counts.fallbacks += 1;
        }
        Ok(mine.lengths.physical)
    }

    /// How many tokens a layer has had, and how many its cache holds.
    pub fn lengths(&self, layer: u32) -> Result<Lengths> {
        Ok(find(&mut self.state()?.layers, layer)?.lengths)
    }

    /// Which logical positions a layer's cache holds, in physical order: runs of (offset, length), never touching.
    pub fn positions(&self, layer: u32) -> Result<Vec<Pair>> {
        memory::copied(find(&mut self.state()?.layers, layer)?.positions.runs())
    }
}

fn find(layers: &mut [Layer], layer: u32) -> Result<&mut Layer> {
    let count = layers.len();
    match layers.get_mut(layer as usize) {
        Some(layer) => Ok(layer),
        None => bail!(InvalidArgument, "layer is {layer}; the session has {count} layers"),
    }
}

/// What all lanes gathered of a layer: mass per block and rows that count, or nothing when nothing came.
fn scored(
    lanes: &[&mut Lane],
    layer: u32,
    wanted: &Wanted,
    heads: u32,
    queries: u32,
    kv_len: u32,
) -> Result<Option<(Vec<f64>, u32)>> {
    let prompt = wanted.is_prompt(queries as usize);
    let gathered = lanes::gather(lanes, layer, prompt)?;
    let rows = wanted.rows(queries as usize) as u32;
    if gathered.heads == 0 {
        return Ok(None);
    }
    let expected = u64::from(heads) * u64::from(rows);
    // Heads of a group may have come as rows of one tile that does not say so, but not where some rows do not count.
    let is_grouped = gathered.may_be_more && gathered.heads < u64::from(heads) && rows == queries;
    if !(gathered.heads == u64::from(heads) || is_grouped) || gathered.rows != expected {
        let hint = if prompt { "; in a prompt tile->heads says how many heads a tile's rows are" } else { "" };
        bail!(
            InvalidArgument,
            "{} heads and {} rows of layer {layer} came with tiles; {heads} heads of {rows} rows expected{hint}",
            gathered.heads,
            gathered.rows
        );
    }
    if gathered.token_end > kv_len as usize {
        bail!(InvalidArgument, "a tile of layer {layer} reached token {}; kv_len is {kv_len}", gathered.token_end - 1);
    }
    Ok((rows > 0).then_some((gathered.masses, rows)))
}

/// Brings a layer's compressed tokens back.
fn restore(layer: &mut Layer, store: &mut Store, cache: &mut Cache<'_>) -> Result<()> {
    let start = Instant::now();
    // The workers help with what nobody has asked them for yet.
    store.prefetch(layer.number);
    let restored = store.restore(layer.number, Cache { layout: cache.layout, key: cache.key, value: cache.value })?;
    if restored > 0 {
        let ns = start.elapsed().as_nanos() as u64;
        layer.counts.waits.record(ns);
        layer.counts.wait_ns += ns;
    }
    Ok(())
}

/// Leaves only the tokens at these physical ranges, side by side, and gives the pages behind them back; answers how many
/// bytes these were. On an error nothing has changed.
fn move_together(layer: &Layer, store: Option<&mut Store>, cache: &mut Cache<'_>, pairs: &[Pair]) -> Result<u64> {
    let (layout, before) = (cache.layout, layer.lengths.physical);
    // Whatever can fail comes before the first byte moves: to move none checks the buffers.
    let after = layout::check_pairs(pairs, before)?;
    layout::compact(layout, cache.key, cache.value, before, &[], before)?;
    let behind = layout.range(after, before - after)?;
    if let Some(store) = store {
        store.compacted(layer.number, pairs)?;
    }
    layout::compact(layout, cache.key, cache.value, 0, pairs, before)?;
    layout::release(layout, cache.key, cache.value, behind, &mut pages::give_back)
}

fn store_config(lossless: &Lossless) -> store::Config {
    store::Config {
        encoding: store::Encoding {
            format: lossless.format,
            key_predictors: lossless.key_predictors,
            value_predictors: lossless.value_predictors,
            effort: lossless.effort,
            strict_roundtrip: lossless.strict_roundtrip,
        },
        workers: lossless.workers,
        max_queue: lossless.max_queue as usize,
        // Set as the caches grow.
        pending_bytes: 0,
        decode_cache_bytes: 0,
    }
}

/// Hands a layer's cold tokens in. Trouble leaves tokens raw and is counted.
fn submit(config: &Config, lossless: &Lossless, layer: &mut Layer, store: &mut Store, cache: &Cache<'_>) {
    let due = |zone: zones::Zone| layer.steps.is_multiple_of(u64::from(zone.interval(lossless)));
    if !zones::zone(config, layer.number).is_some_and(due) {
        return;
    }
    let layout = cache.layout;
    let unit = layout.tokens_sharing(pages::page_size()) as u32;
    let Ok(ranges) = zones::cold_blocks(lossless, layer, store, unit) else {
        layer.counts.fallbacks += 1;
        return;
    };
    for range in ranges {
        let Ok(range) = layout.range(range.0, range.1) else { break };
        let failed = store.failed_blocks(layer.number);
        match store.submit(layer.number, layout, cache.key, cache.value, range, zones::purpose(lossless.mode)) {
            Ok(_) => layer.submitted = true,
            // Counted by the store; there may be room in the next step.
            Err(error) if error.status() == Status::Busy => break,
            Err(_) => {
                // Without workers the block may have got as far as the encoder; then the store has counted it.
                layer.counts.fallbacks += u64::from(store.failed_blocks(layer.number) == failed);
                break;
            }
        }
    }
}

/// Releases what is compressed by now of a layer's tokens.
fn commit(config: &Config, lossless: &Lossless, layer: &mut Layer, store: &mut Store, cache: Cache<'_>) {
    if lossless.mode == Mode::Store && zones::zone(config, layer.number).is_some() {
        let writes = if lossless.strict_roundtrip { Writes::Possible } else { Writes::None };
        if store.commit(layer.number, cache, writes).is_err() {
            layer.counts.fallbacks += 1;
        }
    }
}

#[cfg(test)]
mod tests;
