//! The store: cold tokens of a cache kept compressed, their raw memory given back.
//!
//! A block is a range of tokens of one layer, copied out by `submit` and encoded by a worker, or inside the call when
//! there are none. It is *resident* while the cache holds its raw bytes too, and *released* once `commit` gave them back;
//! `restore` makes it resident again and keeps the blob, so that releasing it once more costs no encoding. Tokens that
//! move or vanish are reported by `compacted` and `truncated`; a released block then keeps exactly the tokens that are
//! still in the cache, wherever they went.
//!
//! [`Store`] owns all of it and is not shared: whoever has it (the C handle, the session) holds one lock around it.
//! Workers never see a cache or a block: they get copies and blobs through the [`queue`], whose lock is taken last and
//! held for moments. Memory beside the blobs: copies that wait to be encoded (bounded by [`Config::max_queue`] and
//! [`Config::pending_bytes`]), rows decoded ahead of one layer or room for them, the decode cache, and a few blocks'
//! worth per thread.

mod block;
mod codec;
mod crew;
mod decoded;
mod kv;
pub mod pages;
mod queue;
mod restore;
mod stats;
mod sync;

pub use codec::Encoding;
pub use crew::Purpose;
pub use stats::Statistics;

use crate::layout::{self, Layout, Pair, TokenRange};
use crate::status::{Result, Status, bail};
use crate::sys::memory;
use block::{Block, Segment, State};
use codec::{Codec, Shape};
use crew::{Crew, Encoded, Job, Outcome};
use decoded::Decoded;
use kv::Kv;
use queue::Urgency;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a store works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How blocks are encoded.
    pub encoding: Encoding,
    /// Threads that encode and decode; 0 = inside the calls.
    pub workers: u32,
    /// Blocks that may wait to be encoded.
    pub max_queue: usize,
    /// Bytes of copies and of blobs that have not replaced raw bytes yet; one block is always let in. 0 = no bound.
    pub pending_bytes: usize,
    /// Bytes of decoded rows that may stay beside the caches, all layers together.
    pub decode_cache_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { encoding: Encoding::default(), workers: 0, max_queue: 256, pending_bytes: 0, decode_cache_bytes: 0 }
    }
}

/// A layer's packed buffers and how to read them.
pub struct Cache<'a> {
    /// The checked layout.
    pub layout: &'a Layout,
    /// K of all heads.
    pub key: &'a mut [u8],
    /// V of all heads.
    pub value: &'a mut [u8],
}

/// What a host may have done to tokens since they were last known to equal their blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Anything: every block is compared before it is released.
    Possible,
    /// Nothing, by contract: only blocks that were never released are compared.
    None,
}

#[derive(Default)]
struct Layer {
    /// By ticket, ascending.
    blocks: Vec<Block>,
    stats: Statistics,
    /// Where released pages were, as (address, length): to take memory for them before they are restored.
    vacated: Vec<(usize, usize)>,
    /// A worker has been asked to take memory for them.
    populating: bool,
}

/// Refusals in a row, without a blob that replaced raw bytes, after which blobs that nobody claims make way: so many, and
/// two for each layer. For a layer claims its blobs in its next step, and until then each other layer may be refused once.
const MOST_REFUSALS: u32 = 64;

/// Runs below this are not worth a call to have memory ready for them.
const LEAST_RUN: usize = 16 << 10;

/// Compressed blocks of every layer of one model.
pub struct Store {
    config: Config,
    layers: BTreeMap<u32, Layer>,
    decoded: Decoded,
    next_ticket: u64,
    /// The host's own codec, and rows on their way through it.
    codec: Codec,
    rows: Kv,
    part: (Vec<u8>, Vec<u8>),
    /// Memory of rows that were decoded ahead, for those of the next layer.
    spares: Vec<Kv>,
    /// Blocks and raw bytes that are with the crew to be encoded.
    encoding: usize,
    staged_bytes: usize,
    /// See [`MOST_REFUSALS`].
    refusals: u32,
    crew: Option<Crew>,
}

impl Store {
    /// An empty store; its workers start now and sleep.
    pub fn new(config: Config) -> Result<Self> {
        let mut decoded = Decoded::default();
        decoded.set_budget(config.decode_cache_bytes);
        Ok(Store {
            config,
            layers: BTreeMap::new(),
            decoded,
            next_ticket: 0,
            codec: Codec::default(),
            rows: Kv::new(0, 0)?,
            part: Default::default(),
            spares: Vec::new(),
            encoding: 0,
            staged_bytes: 0,
            refusals: 0,
            crew: if config.workers > 0 { Some(Crew::new(config.workers, config.encoding)?) } else { None },
        })
    }

    /// Changes the bounds in bytes, for callers that know how large the caches are.
    pub fn set_bounds(&mut self, pending_bytes: usize, decode_cache_bytes: usize) {
        (self.config.pending_bytes, self.config.decode_cache_bytes) = (pending_bytes, decode_cache_bytes);
        self.decoded.set_budget(decode_cache_bytes);
    }

    /// Copies a range of tokens out of the cache, to be encoded; returns the block's ticket. The cache is only read.
    ///
    /// A block that would not shrink is not kept (the tokens stay raw) and counted as `no_gain_blocks`. Tokens that
    /// are released must be restored first. Another block that overlaps the range is replaced, since the cache may have
    /// been rewritten; if range and content are the same it is kept as it is, and its ticket is returned. Fails with
    /// [`Status::Busy`] instead of waiting when the queue is full.
    pub fn submit(
        &mut self,
        layer: u32,
        layout: &Layout,
        key: &[u8],
        value: &[u8],
        range: TokenRange,
        purpose: Purpose,
    ) -> Result<u64> {
        if range.is_empty() {
            bail!(InvalidArgument, "count is 0; at least one token expected");
        }
        self.collect();
        let blocks = &self.layers.entry(layer).or_default().blocks;
        if let Some(block) = blocks.iter().find(|b| b.is_released() && b.overlaps(range)) {
            bail!(
                InvalidArgument,
                "tokens {} to {} of layer {layer} overlap block {}, which is released; restore the layer first",
                range.begin(),
                range.end() - 1,
                block.ticket()
            );
        }
        let rows = layout.rows();
        let (key_len, value_len) = (rows.key_bytes(range.count()), rows.value_bytes(range.count()));
        if blocks.iter().any(|b| b.is_whole_at(range)) {
            gather(&mut self.rows, layout, key, value, range)?;
            let digest = self.rows.digest();
            let same = |b: &&Block| b.shape.rows == rows && b.shape.digest == digest && b.is_whole_at(range);
            if let Some(block) = blocks.iter().find(same) {
                return Ok(block.ticket());
            }
        }
        self.check_room(layer, key_len + value_len)?;
        let mut raw = Kv::new(key_len, value_len)?;
        gather(&mut raw, layout, key, value, range)?;
        let shape = Shape { ticket: self.next_ticket, rows, tokens: range.count(), digest: raw.digest() };
        memory::reserve_amortized(&mut self.layers.entry(layer).or_default().blocks, 1)?;

        self.next_ticket += 1;
        self.retain(layer, |b| !b.overlaps(range));
        let entry = self.layers.entry(layer).or_default();
        entry.blocks.push(Block::new(shape, range));
        self.encoding += 1;
        self.staged_bytes += raw.len();
        entry.stats.queue_peak = entry.stats.queue_peak.max(self.encoding as u64);
        let job = Job::Encode { layer, shape, raw, purpose };
        match &self.crew {
            Some(crew) => {
                let soon = purpose == Purpose::KeepSoon;
                crew.queue().push(job, if soon { Urgency::Soon } else { Urgency::Later });
            }
            None => {
                let outcome = job.run(&mut self.codec, &self.config.encoding);
                self.apply(outcome)?;
            }
        }
        Ok(shape.ticket)
    }

    /// Fails when a block of `bytes` would be one too many on its way.
    fn check_room(&mut self, layer: u32, bytes: usize) -> Result<()> {
        if self.crew.is_none() {
            return Ok(());
        }
        let bound = self.config.pending_bytes;
        let pending = self.staged_bytes + if bound > 0 { self.unclaimed_bytes() } else { 0 };
        let full = bound > 0 && pending > 0 && pending + bytes > bound;
        if self.encoding < self.config.max_queue && !full {
            return Ok(());
        }
        self.refusals += 1;
        if self.refusals > self.most_refusals() && self.encoding == 0 {
            // They are of layers that are not called any more; their raw bytes are in the caches.
            let numbers: Vec<u32> = self.layers.keys().copied().collect();
            numbers.into_iter().for_each(|l| self.retain(l, |b| b.state != State::Resident || b.claimed));
            self.refusals = 0;
            return Ok(());
        }
        self.layers.entry(layer).or_default().stats.busy_blocks += 1;
        bail!(
            Busy,
            "{} blocks wait to be encoded ({} allowed); {bytes} bytes more than the {pending} on their way ({bound} allowed)",
            self.encoding,
            self.config.max_queue
        )
    }

    fn most_refusals(&self) -> u32 {
        MOST_REFUSALS + 2 * self.layers.len() as u32
    }

    /// Bytes of blobs that have not replaced raw bytes yet.
    fn unclaimed_bytes(&self) -> usize {
        self.layers.values().flat_map(|l| &l.blocks).filter(|b| !b.claimed).map(Block::blob_bytes).sum()
    }

    /// Drops the blocks of a layer that `keep` refuses, with all that is kept or under way for them.
    fn retain(&mut self, layer: u32, mut keep: impl FnMut(&mut Block) -> bool) {
        let Some(entry) = self.layers.get_mut(&layer) else { return };
        for block in entry.blocks.extract_if(.., |block| !keep(block)) {
            let ticket = block.ticket();
            self.decoded.remove(ticket);
            let waiting = |crew: &Crew| crew.queue().take_back(|job| job.raw_bytes_of(ticket).is_some());
            let job = self.crew.as_ref().filter(|_| block.state == State::Encoding).and_then(waiting);
            if let Some(bytes) = job.and_then(|job| job.raw_bytes_of(ticket)) {
                self.encoding -= 1;
                self.staged_bytes -= bytes;
            }
        }
    }

    /// Ranges of `range` that no block covers, each as (begin, count).
    pub fn uncovered(&self, layer: u32, range: std::ops::Range<u32>) -> Vec<(u32, u32)> {
        let blocks = self.layers.get(&layer).map_or(&[][..], |l| &l.blocks);
        let mut covered: Vec<&Segment> = blocks.iter().flat_map(|b| &b.segments).collect();
        covered.sort_unstable_by_key(|s| s.begin);
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (begin, end) in covered.iter().map(|s| (s.begin, s.end())).chain([(range.end, range.end)]) {
            if at < begin.min(range.end) {
                gaps.push((at, begin.min(range.end) - at));
            }
            at = at.max(end);
        }
        gaps
    }

    /// Books what workers have handed in.
    fn collect(&mut self) {
        let Some(crew) = &self.crew else { return };
        for outcome in crew.queue().collect() {
            // A failure is counted where it is booked; nobody waits for it here.
            let _ = self.apply(outcome);
        }
    }

    /// Books one outcome. Blocks that are gone by now have none.
    fn apply(&mut self, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Encoded { layer, ticket, raw_bytes, result, encode_ns, decode_ns } => {
                self.encoding -= 1;
                self.staged_bytes -= raw_bytes;
                let Layer { blocks, stats, .. } = self.layers.entry(layer).or_default();
                stats.encode_ns += encode_ns;
                if decode_ns > 0 {
                    stats.decode_ns += decode_ns;
                    stats.decoded_bytes += raw_bytes as u64;
                }
                stats.submitted_blocks += 1;
                stats.encoded_bytes += raw_bytes as u64;
                let (state, blob) = match result {
                    Ok(Encoded::Smaller(blob)) => {
                        stats.encoded_to_bytes += blob.len() as u64;
                        (State::Resident, Some(Arc::new(blob)))
                    }
                    Ok(Encoded::Sampled { bytes }) => {
                        stats.encoded_to_bytes += bytes as u64;
                        (State::Raw, None)
                    }
                    Ok(Encoded::NoGain) => {
                        stats.encoded_to_bytes += raw_bytes as u64;
                        stats.no_gain_blocks += 1;
                        (State::Raw, None)
                    }
                    Err(error) => {
                        // No figure comes from a block that was not encoded.
                        stats.submitted_blocks -= 1;
                        stats.encoded_bytes -= raw_bytes as u64;
                        stats.failed_blocks += 1;
                        if error.status() == Status::OutOfMemory {
                            // There may be memory another time.
                            blocks.retain(|b| b.ticket() != ticket);
                        } else if let Some(block) = block::find(blocks, ticket).map(|at| &mut blocks[at]) {
                            block.state = State::Raw;
                        }
                        return Err(error);
                    }
                };
                if let Some(block) = block::find(blocks, ticket).map(|at| &mut blocks[at]) {
                    (block.state, block.blob) = (state, blob);
                }
            }
            Outcome::Populated { layer } => self.layers.entry(layer).or_default().populating = false,
            Outcome::Decoded { layer, ticket, result, decode_ns } => {
                let Layer { blocks, stats, .. } = self.layers.entry(layer).or_default();
                stats.decode_ns += decode_ns;
                let block = block::find(blocks, ticket).map(|at| &mut blocks[at]);
                if let Some(block) = block {
                    block.decoding = false;
                    if let Ok(rows) = result {
                        stats.decoded_bytes += rows.len() as u64;
                        self.decoded.insert_ahead(layer, ticket, rows);
                    }
                    // A failure: restore will try itself, and the host sees its error.
                }
            }
        }
        Ok(())
    }

    /// Gives back the raw bytes of every resident block of the layer; returns the bytes that went back to the system.
    ///
    /// Blocks are first compared with the cache, as `writes` asks for. One that no longer matches (the host wrote to its
    /// tokens without saying so, or the cache shrank) is dropped and counted as `stale_blocks`; its tokens stay raw.
    pub fn commit(&mut self, layer: u32, cache: Cache<'_>, writes: Writes) -> Result<u64> {
        self.collect();
        self.finish_populating(layer);
        let Some(Layer { blocks, stats, vacated, .. }) = self.layers.get_mut(&layer) else { return Ok(0) };
        let mut fresh = Vec::new();
        memory::reserve(&mut fresh, blocks.len())?;
        let mut at = 0;
        while let Some(block) = blocks.get_mut(at) {
            if block.state != State::Resident {
                at += 1;
                continue;
            }
            let range = block.range_in(cache.layout).filter(|_| block.shape.rows == cache.layout.rows());
            let matches = match range {
                Some(_) if block.verified && writes == Writes::None => true,
                Some(range) => {
                    gather(&mut self.rows, cache.layout, cache.key, cache.value, range)?;
                    self.rows.digest() == block.shape.digest
                }
                None => false,
            };
            if let (Some(range), true) = (range, matches) {
                block.verified = true;
                fresh.push(range);
                at += 1;
            } else {
                self.decoded.remove(block.ticket());
                blocks.remove(at);
                stats.stale_blocks += 1;
            }
        }
        if fresh.is_empty() {
            return Ok(0);
        }
        // Nothing can fail from here on: blocks are released together or not at all.
        self.refusals = 0;
        for block in blocks.iter_mut().filter(|b| b.state == State::Resident) {
            (block.state, block.claimed) = (State::Released, true);
        }
        let mut released = 0;
        vacated.clear();
        let mut give_back = |run: &mut [u8]| {
            // Without memory for the note the pages are taken one by one later.
            if run.len() >= LEAST_RUN && memory::reserve_amortized(vacated, 1).is_ok() {
                vacated.push((run.as_ptr().addr(), run.len()));
            }
            pages::give_back(run)
        };
        for range in released_runs(blocks, cache.layout) {
            if fresh.iter().any(|f| range.begin() <= f.begin() && f.end() <= range.end()) {
                released += layout::release(cache.layout, cache.key, cache.value, range, &mut give_back)?;
            }
        }
        stats.released_bytes += released;
        Ok(released)
    }

    /// Tokens were renumbered: only those in `pairs` (absolute offsets and lengths) are left, moved together.
    pub fn compacted(&mut self, layer: u32, pairs: &[Pair]) -> Result<()> {
        layout::check_pairs(pairs, u32::MAX)?;
        self.forget_vacated(layer);
        self.retain(layer, |b| b.keep(pairs.iter().map(|p| (p[0] as u32, p[1] as u32))));
        Ok(())
    }

    /// Tokens from `kv_len` on are gone.
    pub fn truncated(&mut self, layer: u32, kv_len: u32) {
        self.forget_vacated(layer);
        self.retain(layer, |b| b.keep(std::iter::once((0, kv_len))));
    }

    /// Blocks of a layer that could not be encoded, as far as is known now.
    pub fn failed_blocks(&self, layer: u32) -> u64 {
        self.layers.get(&layer).map_or(0, |l| l.stats.failed_blocks)
    }

    /// Counts since the store was made, and what it holds now: of all layers, or of one.
    pub fn statistics(&mut self, layer: Option<u32>) -> Statistics {
        self.collect();
        let mut sum = Statistics::default();
        for (_, entry) in self.layers.iter().filter(|(number, _)| layer.is_none_or(|l| l == **number)) {
            let mut stats = entry.stats;
            entry.blocks.iter().for_each(|b| stats.add_block(b));
            sum.add(&stats);
        }
        sum.decoded_cache_bytes = self.decoded.bytes(layer) as u64;
        sum
    }
}

/// The longest ranges of tokens that are released: neighbouring blocks are given back as one, since a page or a flash
/// block may lie across their border. Tokens that the layout has no room for are left out.
fn released_runs(blocks: &[Block], layout: &Layout) -> Vec<TokenRange> {
    let fits = |s: &&Segment| s.end() as usize <= layout.max_tokens();
    let segments = blocks.iter().filter(|b| b.is_released()).flat_map(|b| &b.segments).filter(fits);
    let mut tokens: Vec<(u32, u32)> = segments.map(|s| (s.begin, s.end())).collect();
    tokens.sort_unstable();
    tokens.dedup_by(|next, run| {
        let touches = run.1 == next.0;
        if touches {
            run.1 = next.1;
        }
        touches
    });
    tokens.into_iter().filter_map(|(begin, end)| layout.range(begin, end - begin).ok()).collect()
}

/// Copies a range of the cache into `rows`.
fn gather(rows: &mut Kv, layout: &Layout, key: &[u8], value: &[u8], range: TokenRange) -> Result<()> {
    rows.fit(layout.dense_key_bytes(range.count()), layout.dense_value_bytes(range.count()))?;
    let (keys, values) = rows.parts_mut();
    layout::gather(layout, key, value, range, keys, values)
}

#[cfg(test)]
mod tests;
