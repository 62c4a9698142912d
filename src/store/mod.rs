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
mod layer;
mod queue;
mod restore;
mod stats;
mod sync;

pub use codec::Encoding;
pub use crew::Purpose;
pub use stats::Statistics;

use crate::layout::{self, Layout, Pair, TokenRange};
use crate::status::{Result, Status, bail};
use crate::sys::{memory, pages};
use block::{Block, Kept, State};
use codec::{Codec, Shape};
use crew::{Crew, Encoded, Job, Outcome};
use decoded::Decoded;
use kv::Kv;
use layer::{Edit, Layer};
use queue::Urgency;
use std::ops::Range;

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

/// Refusals in a row, without a blob that replaced raw bytes, after which blobs that nobody claims make way: so many, and
/// two for each layer. For a layer claims its blobs in its next step, and until then each other layer may be refused once.
const MOST_REFUSALS: u32 = 64;

/// Compressed blocks of every layer of one model.
pub struct Store {
    config: Config,
    /// By number, ascending.
    layers: Vec<Layer>,
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
    /// Bytes of blobs that have not replaced raw bytes yet.
    unclaimed_bytes: usize,
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
            layers: Vec::new(),
            decoded,
            next_ticket: 0,
            codec: Codec::default(),
            rows: Kv::new(0, 0)?,
            part: Default::default(),
            spares: Vec::new(),
            encoding: 0,
            staged_bytes: 0,
            unclaimed_bytes: 0,
            refusals: 0,
            crew: if config.workers > 0 { Some(Crew::new(config.workers, config.encoding)?) } else { None },
        })
    }

    /// Changes the bounds in bytes, for callers that know how large the caches are.
    pub fn set_bounds(&mut self, pending_bytes: usize, decode_cache_bytes: usize) {
        (self.config.pending_bytes, self.config.decode_cache_bytes) = (pending_bytes, decode_cache_bytes);
        self.decoded.set_budget(decode_cache_bytes);
    }

    fn layer_at(&self, number: u32) -> std::result::Result<usize, usize> {
        self.layers.binary_search_by_key(&number, |layer| layer.number)
    }

    fn layer(&self, number: u32) -> Option<&Layer> {
        self.layer_at(number).ok().map(|at| &self.layers[at])
    }

    fn layer_mut(&mut self, number: u32) -> Option<&mut Layer> {
        self.layer_at(number).ok().map(|at| &mut self.layers[at])
    }

    /// The layer, made when there was none.
    #[expect(clippy::disallowed_methods, reason = "room is reserved first")]
    fn layer_or_new(&mut self, number: u32) -> Result<&mut Layer> {
        let at = match self.layer_at(number) {
            Ok(at) => at,
            Err(at) => {
                memory::reserve_amortized(&mut self.layers, 1)?;
                self.layers.insert(at, Layer::new(number));
                at
            }
        };
        Ok(&mut self.layers[at])
    }

    /// Copies a range of tokens out of the cache, to be encoded; returns the block's ticket. The cache is only read.
    ///
    /// A block that would not shrink is not kept (the tokens stay raw) and counted as `no_gain_blocks`. Tokens that
    /// are released must be restored first. The same range with the same content keeps its block, whose ticket is
    /// returned. Another block that overlaps the range is refused while it still equals the cache; one whose tokens were
    /// rewritten makes way and counts as stale. Fails with [`Status::Busy`] instead of waiting when the queue is full.
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
        self.layer_or_new(layer)?.reserve()?;
        if let Some(ticket) = self.same_block(layer, layout, key, value, range)? {
            return Ok(ticket);
        }
        let rows = layout.rows();
        let (key_len, value_len) = (rows.key_bytes(range.count()), rows.value_bytes(range.count()));
        self.check_room(layer, key_len + value_len)?;
        let mut raw = Kv::new(key_len, value_len)?;
        gather(&mut raw, layout, key, value, range)?;
        let shape = Shape { ticket: self.next_ticket, rows, tokens: range.count(), digest: raw.digest() };
        let block = Block::new(shape, range)?;
        let bytes = raw.len();
        let job = Job::Encode { layer, shape, raw, purpose };
        let outcome = match &self.crew {
            Some(crew) => {
                let soon = purpose == Purpose::KeepSoon;
                crew.queue().push(job, if soon { Urgency::Soon } else { Urgency::Later })?;
                None
            }
            None => Some(job.run(&mut self.codec, &self.config.encoding)),
        };

        // From here on nothing fails but the encoder.
        self.drop_overlapping(layer, &tokens(range));
        self.next_ticket += 1;
        self.encoding += 1;
        self.staged_bytes += bytes;
        let queued = self.encoding as u64;
        if let Some(entry) = self.layer_mut(layer) {
            entry.push(block);
            entry.stats.queue_peak = entry.stats.queue_peak.max(queued);
        }
        outcome.map_or(Ok(()), |outcome| self.apply(outcome))?;
        Ok(shape.ticket)
    }

    /// The ticket of the block that stands for exactly this range with this content. Fails where the range overlaps
    /// tokens that are only in the store, or a block of other tokens that still equals the cache.
    fn same_block(
        &mut self,
        layer: u32,
        layout: &Layout,
        key: &[u8],
        value: &[u8],
        range: TokenRange,
    ) -> Result<Option<u64>> {
        let Ok(at) = self.layer_at(layer) else { return Ok(None) };
        let entry = &self.layers[at];
        let (first, last) = (range.begin(), range.end() - 1);
        let overlapping = || entry.tickets_in(tokens(range)).filter_map(|ticket| entry.find(ticket));
        for block in overlapping().map(|at| &entry.blocks()[at]) {
            let ticket = block.ticket();
            if block.is_released() {
                bail!(
                    InvalidArgument,
                    "tokens {first} to {last} of layer {layer} overlap block {ticket}, which is released; restore the \
                     layer first"
                );
            }
            let same_range = block.is_whole_at(range);
            let Some(its_range) = block.range_in(layout).filter(|_| same_range || block.has_content()) else {
                continue;
            };
            if block.shape.rows != layout.rows() {
                continue;
            }
            gather(&mut self.rows, layout, key, value, its_range)?;
            if self.rows.digest() != block.shape.digest {
                continue;
            }
            if same_range {
                return Ok(Some(ticket));
            }
            bail!(
                InvalidArgument,
                "tokens {first} to {last} of layer {layer} overlap block {ticket} (tokens {} to {}), which still \
                 equals the cache; submit its range or tokens outside it",
                its_range.begin(),
                its_range.end() - 1
            );
        }
        Ok(None)
    }

    /// Drops the blocks that have tokens of a range, which were rewritten.
    fn drop_overlapping(&mut self, layer: u32, range: &Range<u32>) {
        if self.count_stale(layer, range) {
            self.retain(layer, |block| !block.overlaps(range));
        }
    }

    /// Counts the blocks that have tokens of a range as stale; false where there are none at all.
    fn count_stale(&mut self, layer: u32, range: &Range<u32>) -> bool {
        let Some(entry) = self.layer_mut(layer) else { return false };
        if entry.tickets_in(range.clone()).next().is_none() {
            return false;
        }
        let stale = entry.blocks().iter().filter(|block| block.overlaps(range) && block.has_content()).count();
        entry.stats.stale_blocks += stale as u64;
        true
    }

    /// Fails when a block of `bytes` would be one too many on its way.
    fn check_room(&mut self, layer: u32, bytes: usize) -> Result<()> {
        if self.crew.is_none() {
            return Ok(());
        }
        let bound = self.config.pending_bytes;
        let pending = self.staged_bytes + if bound > 0 { self.unclaimed_bytes } else { 0 };
        let full = bound > 0 && pending > 0 && pending + bytes > bound;
        if self.encoding < self.config.max_queue && !full {
            return Ok(());
        }
        self.refusals += 1;
        if self.refusals > self.most_refusals() && self.encoding == 0 {
            // They are of layers that are not called any more; their raw bytes are in the caches.
            for at in 0..self.layers.len() {
                self.retain(self.layers[at].number, |b| b.state != State::Resident || b.claimed);
            }
            self.refusals = 0;
            return Ok(());
        }
        if let Some(entry) = self.layer_mut(layer) {
            entry.stats.busy_blocks += 1;
        }
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

    /// Drops the blocks of a layer that `keep` refuses, with all that is kept or under way for them.
    fn retain(&mut self, layer: u32, mut keep: impl FnMut(&Block) -> bool) {
        let Ok(at) = self.layer_at(layer) else { return };
        let (entry, decoded, unclaimed) = (&mut self.layers[at], &mut self.decoded, &mut self.unclaimed_bytes);
        let mut encoding = false;
        entry.retain(|block| {
            let kept = keep(block);
            if !kept {
                decoded.remove(block.ticket());
                *unclaimed -= if block.claimed { 0 } else { block.blob_bytes() };
                encoding |= block.state == State::Encoding;
            }
            kept
        });
        let Some(crew) = self.crew.as_ref().filter(|_| encoding) else { return };
        // The job of a submit under way has no block yet, and a ticket that is not given out yet.
        let next = self.next_ticket;
        let is_orphan =
            |job: &Job| job.encodes(layer).is_some_and(|(ticket, _)| ticket < next && entry.find(ticket).is_none());
        while let Some((_, bytes)) = crew.queue().take_back(is_orphan).and_then(|job| job.encodes(layer)) {
            self.encoding -= 1;
            self.staged_bytes -= bytes;
        }
    }

    /// Ranges of `range` that no block covers, each as (begin, count).
    pub fn uncovered(&self, layer: u32, range: Range<u32>) -> Result<Vec<(u32, u32)>> {
        match self.layer(layer) {
            Some(entry) => entry.uncovered(range),
            None if range.is_empty() => Ok(Vec::new()),
            None => memory::copied(&[(range.start, range.end - range.start)]),
        }
    }

    /// Books what workers have handed in.
    fn collect(&mut self) {
        while let Some(outcome) = self.crew.as_ref().and_then(|crew| crew.queue().outcome()) {
            // A failure is counted where it is booked.
            let _ = self.apply(outcome);
        }
    }

    /// Books one outcome. Blocks that are gone by now have none.
    fn apply(&mut self, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Encoded { layer, ticket, raw_bytes, result, encode_ns, decode_ns } => {
                self.encoding -= 1;
                self.staged_bytes -= raw_bytes;
                let Ok(at) = self.layer_at(layer) else { return Ok(()) };
                let entry = &mut self.layers[at];
                let stats = &mut entry.stats;
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
                        (State::Resident, Some(blob))
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
                            entry.retain(|block| block.ticket() != ticket);
                        } else if let Some(block) = entry.block_mut(ticket) {
                            block.state = State::Raw;
                        }
                        return Err(error);
                    }
                };
                if let Some(block) = entry.block_mut(ticket) {
                    (block.state, block.blob) = (state, blob);
                    self.unclaimed_bytes += block.blob_bytes();
                }
            }
            Outcome::Decoded { layer, ticket, result, decode_ns } => {
                let Ok(at) = self.layer_at(layer) else { return Ok(()) };
                let entry = &mut self.layers[at];
                entry.stats.decode_ns += decode_ns;
                let Some(at) = entry.find(ticket) else { return Ok(()) };
                entry.blocks_mut()[at].decoding = false;
                if let Ok(rows) = result {
                    entry.stats.decoded_bytes += rows.len() as u64;
                    self.decoded.insert_ahead(layer, ticket, rows)?;
                }
                // A failure: restore will try itself, and the host sees its error.
            }
        }
        Ok(())
    }

    /// Gives the raw bytes of every block of the layer that still matches the cache back to the system; returns how many
    /// bytes went back.
    ///
    /// Blocks are first compared with the cache, as `writes` asks for. One that no longer matches (the host wrote to its
    /// tokens without saying so, or the cache shrank) is dropped and counted as `stale_blocks`; its tokens stay raw.
    pub fn commit(&mut self, layer: u32, cache: Cache<'_>, writes: Writes) -> Result<u64> {
        self.collect();
        let Ok(at) = self.layer_at(layer) else { return Ok(0) };
        let entry = &mut self.layers[at];
        let mut fresh = Vec::new();
        memory::reserve(&mut fresh, entry.blocks().len())?;
        for block in entry.blocks_mut().iter_mut().filter(|block| block.state == State::Resident) {
            let range = block.range_in(cache.layout).filter(|_| block.shape.rows == cache.layout.rows());
            block.verified = match range {
                Some(_) if block.verified && writes == Writes::None => true,
                Some(range) => {
                    gather(&mut self.rows, cache.layout, cache.key, cache.value, range)?;
                    self.rows.digest() == block.shape.digest
                }
                None => false,
            };
            if let (Some(range), true) = (range, block.verified) {
                memory::push(&mut fresh, range)?;
            }
        }
        let is_stale = |block: &Block| block.state == State::Resident && !block.verified;
        let stale = entry.blocks().iter().filter(|block| is_stale(block)).count();
        entry.stats.stale_blocks += stale as u64;
        if stale > 0 {
            self.retain(layer, |block| !is_stale(block));
        }
        if fresh.is_empty() {
            return Ok(0);
        }
        fresh.sort_unstable_by_key(|range| range.begin());
        self.release(at, cache, &fresh)
    }

    /// Releases every resident block of a layer, and gives back the memory of the ranges that have become larger by
    /// `fresh` (ascending).
    fn release(&mut self, at: usize, cache: Cache<'_>, fresh: &[TokenRange]) -> Result<u64> {
        let entry = &mut self.layers[at];
        let is_fresh = |block: &Block| block.state == State::Resident;
        let runs = entry.runs(cache.layout, |block| block.is_released() || is_fresh(block))?;
        // Nothing can fail from here on: blocks are released together or not at all.
        self.refusals = 0;
        for block in entry.blocks_mut().iter_mut().filter(|block| is_fresh(block)) {
            self.unclaimed_bytes -= if block.claimed { 0 } else { block.blob_bytes() };
            (block.state, block.claimed) = (State::Released, true);
        }
        let mut released = 0;
        for run in runs {
            let next = fresh.partition_point(|f| f.begin() < run.begin());
            if fresh.get(next).is_some_and(|f| f.end() <= run.end()) {
                released += layout::release(cache.layout, cache.key, cache.value, run, &mut pages::give_back)?;
            }
        }
        entry.stats.released_bytes += released;
        Ok(released)
    }

    /// Tokens were renumbered: only those in `pairs` (absolute offsets and lengths) are left, moved together.
    /// OUT_OF_MEMORY: nothing has changed.
    pub fn compacted(&mut self, layer: u32, pairs: &[Pair]) -> Result<()> {
        layout::check_pairs(pairs, u32::MAX)?;
        let mut now = 0;
        let kept = memory::collect(pairs.iter().filter(|pair| pair[1] > 0).map(|pair| {
            let (begin, len) = (pair[0] as u32, pair[1] as u32);
            let range = Kept { begin, end: begin + len, now };
            now += len;
            range
        }))?;
        let edit = self.plan(layer, &kept)?;
        self.edit(layer, edit);
        Ok(())
    }

    /// Tokens `range` were rewritten in place: what is kept of them is void, and their raw bytes count. Released blocks
    /// keep their other tokens. OUT_OF_MEMORY: nothing has changed.
    pub fn rewritten(&mut self, layer: u32, range: Range<u32>) -> Result<()> {
        let Some(entry) = self.layer(layer) else { return Ok(()) };
        if range.is_empty() || entry.tickets_in(range.clone()).next().is_none() {
            return Ok(());
        }
        let before = Kept { begin: 0, end: range.start, now: 0 };
        let behind = Kept { begin: range.end, end: u32::MAX, now: range.end };
        let edit = self.plan(layer, &[before, behind])?;
        self.count_stale(layer, &range);
        self.edit(layer, edit);
        Ok(())
    }

    fn plan(&mut self, layer: u32, kept: &[Kept]) -> Result<Option<Edit>> {
        self.layer_mut(layer).map(|entry| entry.plan(kept)).transpose()
    }

    /// Follows an edit of the cache.
    fn edit(&mut self, layer: u32, edit: Option<Edit>) {
        if let (Some(entry), Some(edit)) = (self.layer_mut(layer), edit) {
            entry.apply(edit);
            self.retain(layer, |block| !block.is_gone());
        }
    }

    /// Tokens from `kv_len` on are gone.
    pub fn truncated(&mut self, layer: u32, kv_len: u32) {
        if let Some(entry) = self.layer_mut(layer) {
            entry.truncate(kv_len);
            self.retain(layer, |block| !block.is_gone());
        }
    }

    /// Runs of tokens of a layer that are only in the store, as far as there is memory for the list.
    pub fn released_runs(&self, layer: u32, layout: &Layout) -> Vec<TokenRange> {
        let runs = self.layer(layer).and_then(|entry| entry.runs(layout, Block::is_released).ok());
        runs.unwrap_or_default()
    }

    /// Blocks of a layer that could not be encoded, as far as is known now.
    pub fn failed_blocks(&self, layer: u32) -> u64 {
        self.layer(layer).map_or(0, |entry| entry.stats.failed_blocks)
    }

    /// Counts since the store was made, and what it holds now: of all layers, or of one.
    pub fn statistics(&mut self, layer: Option<u32>) -> Statistics {
        self.collect();
        let mut sum = Statistics::default();
        for entry in self.layers.iter().filter(|entry| layer.is_none_or(|number| number == entry.number)) {
            let mut stats = entry.stats;
            entry.blocks().iter().for_each(|b| stats.add_block(b));
            sum.add(&stats);
        }
        sum.decoded_cache_bytes = self.decoded.bytes(layer) as u64;
        sum
    }
}

/// A range as the index of a layer has it.
fn tokens(range: TokenRange) -> Range<u32> {
    range.begin() as u32..range.end() as u32
}

/// Copies a range of the cache into `rows`.
fn gather(rows: &mut Kv, layout: &Layout, key: &[u8], value: &[u8], range: TokenRange) -> Result<()> {
    rows.fit(layout.dense_key_bytes(range.count()), layout.dense_value_bytes(range.count()))?;
    let (keys, values) = rows.parts_mut();
    layout::gather(layout, key, value, range, keys, values)
}

#[cfg(test)]
mod tests;
