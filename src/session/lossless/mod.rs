//! Lossless compression of one layer: which of its tokens are cold, and their way into the store and back.
//!
//! [`Lossless::restore`] brings compressed tokens back when a step begins. Cold tokens are submitted by
//! [`Lossless::begin`] where workers encode them, otherwise by [`Lossless::end`], which also releases the tokens that are
//! encoded by then. Errors of submitting and committing never reach the host: the tokens stay raw, and the store's
//! `failed_blocks` and `busy_blocks` or [`LosslessCounts::failed_calls`] count them, each error once.
//!
//! Blobs of quantised tokens may be hardly smaller than the tokens. Such a layer is left raw until its next reset.

mod bounds;
mod zones;

use super::config::{Config, LosslessRules, RuntimeMode};
use super::metrics::WaitTimes;
use crate::layout::{self, Cache};
use crate::status::Result;
use crate::store::{Encoding, Encodings, Purpose, Settings, Spares, Store, Submitted, Writes};
use crate::sys::pages;
use std::time::Instant;

/// The least ratio of raw to encoded bytes that is worth a restore in every step.
pub(super) const LEAST_RATIO: f64 = 1.05;
/// The encoded blocks of a chat that the ratio is judged by.
const JUDGED_BLOCKS: u64 = 4;

/// Counters of one layer since the session was made, besides those of the store.
#[derive(Clone, Debug, Default)]
pub(super) struct LosslessCounts {
    /// Durations of restoring, one for each begin that restored a block.
    pub(super) waits: WaitTimes,
    /// Their sum.
    pub(super) wait_ns: u64,
    /// Calls of the store that failed before a block was encoded or released.
    pub(super) failed_calls: u64,
    /// The ratio for which the layer was last left raw.
    pub(super) poor_ratio: Option<f64>,
    /// Tokens that share their pages, where [`zones::leaves_parts_raw`].
    pub(super) page_tokens: Option<u32>,
}

/// The compression of one layer.
pub(super) struct Lossless {
    number: u32,
    rules: LosslessRules,
    /// Whether the layer is compressed.
    takes_part: bool,
    /// The next layer that is stored.
    next: Option<u32>,
    /// Tokens were submitted since the reset.
    submitted: bool,
    /// Blobs are hardly smaller than the tokens: nothing is submitted until the reset.
    is_left_raw: bool,
    /// The encoded blocks at the reset.
    before: Encodings,
    counts: LosslessCounts,
}

/// The settings of the store of a session. The bounds in bytes follow the size of the caches.
pub(super) fn settings(rules: &LosslessRules) -> Settings {
    Settings {
        encoding: Encoding { strict_roundtrip: rules.strict_roundtrip, ..Encoding::default() },
        workers: rules.workers.unwrap_or(0),
        max_queue: rules.max_queue as usize,
        pending_bytes: 0,
        decode_cache_bytes: 0,
    }
}

impl Lossless {
    /// `None` where the config compresses nothing.
    pub(super) fn new(number: u32, config: &Config) -> Option<Self> {
        let rules = config.lossless?;
        Some(Lossless {
            number,
            rules,
            takes_part: zones::takes_part(config, number),
            next: zones::next(config, number),
            submitted: false,
            is_left_raw: false,
            before: Encodings::default(),
            counts: LosslessCounts::default(),
        })
    }

    /// Whether tokens of the layer are compressed.
    pub(super) fn takes_part(&self) -> bool {
        self.takes_part
    }

    pub(super) fn has_workers(&self) -> bool {
        self.rules.workers != Some(0)
    }

    pub(super) fn counts(&self) -> &LosslessCounts {
        &self.counts
    }

    #[cfg(test)]
    pub(super) fn record_wait(&mut self, ns: u64) {
        self.counts.waits.record(ns);
    }

    /// Writes compressed tokens back to a cache of `len` tokens; blocks only for a block that a worker is decoding. On an
    /// error blocks may have been restored, and the others are still in the store. Returns memory for
    /// [`Lossless::prefetch_next`].
    pub(super) fn restore(&mut self, store: &mut Store, cache: &mut Cache<'_>, len: u32) -> Result<Spares> {
        let start = Instant::now();
        // Workers decode what they have not decoded ahead, beside this thread.
        store.prefetch(self.number, Spares::default());
        let restored = store.restore(self.number, cache.reborrow())?;
        if restored.blocks > 0 {
            let ns = start.elapsed().as_nanos() as u64;
            self.counts.waits.record(ns);
            self.counts.wait_ns += ns;
        }
        if let Some(edited) = store.take_edited(self.number) {
            let (begin, end) = (edited.start.min(len), edited.end.min(len));
            layout::mended(cache, cache.layout.range(begin, end - begin)?, len)?;
        }
        if self.rules.mode == RuntimeMode::Store && cache.layout.rows().is_quantised() {
            self.judge(store);
        }
        Ok(restored.spares)
    }

    /// Leaves the layer raw if its blobs are hardly smaller than its tokens, all of which must be restored.
    fn judge(&mut self, store: &mut Store) {
        let Encodings { blocks, bytes, to_bytes } = store.encodings(self.number);
        let (bytes, to_bytes) = (bytes - self.before.bytes, to_bytes - self.before.to_bytes);
        if self.is_left_raw || blocks - self.before.blocks < JUDGED_BLOCKS || to_bytes == 0 {
            return;
        }
        let ratio = bytes as f64 / to_bytes as f64;
        if ratio < LEAST_RATIO {
            store.truncated(self.number, 0);
            self.is_left_raw = true;
            self.counts.poor_ratio = Some(ratio);
        }
    }

    /// Queues cold tokens for the workers. A layer without tokens may have no cache.
    pub(super) fn begin(&mut self, store: &mut Store, cache: Option<&Cache<'_>>, len: u32) {
        if let Some(cache) = cache.filter(|_| self.submits_at_begin()) {
            self.submit(store, cache, len);
        }
    }

    /// Queues the blocks of the next layer, to be decoded ahead.
    pub(super) fn prefetch_next(&self, store: &mut Store, spares: Spares) {
        if let Some(next) = self.next {
            store.prefetch(next, spares);
        }
    }

    /// Encodes cold tokens where there are no workers, and releases those that are encoded. `len` and `token_bytes` are
    /// the layer's, `raw_bytes` those of all caches.
    pub(super) fn end(&mut self, store: &mut Store, cache: Cache<'_>, len: u32, token_bytes: usize, raw_bytes: usize) {
        let (pending, decoded) = bounds::bounds(&self.rules, raw_bytes, token_bytes);
        store.set_bounds(pending, decoded);
        if !self.submits_at_begin() {
            self.submit(store, &cache, len);
        }
        self.commit(store, cache);
    }

    /// The cache was cleared, and the store dropped its blocks.
    pub(super) fn reset(&mut self, store: &mut Store) {
        (self.submitted, self.is_left_raw) = (false, false);
        self.before = store.encodings(self.number);
    }

    /// Whether cold tokens are submitted when a step begins. Then the workers encode them while the host computes the
    /// layer, and the end of the same step releases them. Submitted at the end, blobs would lie beside their raw tokens
    /// until the end of the next step, and with a bound on these bytes a prompt would take more steps to compress. Without
    /// workers, and for samples, the end is as good.
    fn submits_at_begin(&self) -> bool {
        self.rules.mode == RuntimeMode::Store && self.has_workers()
    }

    fn purpose(&self) -> Purpose {
        match self.rules.mode {
            RuntimeMode::Probe => Purpose::Sample { compare: false },
            RuntimeMode::Full => Purpose::Sample { compare: true },
            RuntimeMode::Store => Purpose::KeepSoon,
        }
    }

    /// Submits the cold tokens of a cache of `len` tokens, where the layer takes part.
    fn submit(&mut self, store: &mut Store, cache: &Cache<'_>, len: u32) {
        if !self.is_left_raw && self.takes_part && self.submit_cold(store, cache, len).is_err() {
            self.counts.failed_calls += 1;
        }
    }

    fn submit_cold(&mut self, store: &mut Store, cache: &Cache<'_>, len: u32) -> Result<()> {
        let layout = cache.layout;
        let unit = layout.tokens_sharing(pages::page_size()) as u32;
        let first = !self.submitted;
        self.counts.page_tokens = Some(unit).filter(|unit| zones::leaves_parts_raw(&self.rules, *unit));
        for (begin, count) in zones::cold_blocks(&self.rules, self.number, len, first, store, unit)? {
            let Ok(range) = layout.range(begin, count) else { break };
            match store.submit(self.number, &cache.as_ref(), range, self.purpose())? {
                // Counted by the store; the next step submits the tokens again.
                Submitted::Full(_) | Submitted::Failed(_) => break,
                _ => self.submitted = true,
            }
        }
        Ok(())
    }

    /// Releases the tokens that are encoded.
    pub(super) fn commit(&mut self, store: &mut Store, cache: Cache<'_>) {
        if self.rules.mode == RuntimeMode::Store && self.takes_part() {
            let writes = if self.rules.strict_roundtrip { Writes::Possible } else { Writes::None };
            if store.commit(self.number, cache, writes).is_err() {
                self.counts.failed_calls += 1;
            }
        }
    }
}
