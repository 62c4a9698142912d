//! The store: cold tokens of caches as compressed blocks.
//!
//! A block is a range of tokens of one layer. [`Store::submit`] copies it; a worker encodes the copy, or the call itself
//! without workers. A block is *resident* while the cache holds its raw bytes, too, and *released* once
//! [`Store::commit`] has returned them to the system. [`Store::restore`] makes it resident again and keeps the blob, so
//! that the next release costs no encoding. [`Store::compacted`], [`Store::truncated`] and [`Store::rewritten`] report
//! edits of the cache; a released block keeps exactly the tokens that the cache still has, wherever they are.
//!
//! [`Store`] is not shared: its owner (the C handle, the session) locks it. Workers never touch a cache or a block: they
//! get copies and blobs through the [`queue`], whose lock is taken last and held for a few moves of pointers. Memory
//! beside the blobs: copies that wait to be encoded (bounded by [`Settings::max_queue`] and
//! [`Settings::pending_bytes`]), rows decoded ahead, decoded rows that are kept, and a few
//! blocks per thread.

mod blob;
mod block;
mod booking;
mod codec;
mod commit;
mod decoded;
mod kv;
mod layer;
mod queue;
mod restore;
mod runner;
mod stats;
mod submit;

pub use codec::Encoding;
pub use commit::{Committed, Writes};
pub use restore::{Restored, Spares};
pub use runner::Purpose;
pub use stats::{Encodings, Statistics};
pub use submit::Submitted;

use crate::layout::{self, CacheRef, Layout, Pair, TokenRange};
use crate::run::Run;
use crate::status::Result;
use crate::sys::memory;
use block::{Block, BlockState};
use codec::Codec;
use decoded::Decoded;
use kv::KvBytes;
use layer::{LayerBlocks, LayerEdit};
use runner::{Job, Runner};
use std::collections::HashMap;
use std::ops::Range;

/// Most workers of a store.
pub const MOST_WORKERS: u32 = 64;
/// The default of [`Settings::max_queue`].
pub const DEFAULT_QUEUE: u32 = 256;

/// How a store works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How blocks are encoded.
    pub encoding: Encoding,
    /// Most workers that encode and decode at once, at most [`MOST_WORKERS`]; 0 = encode and decode inside the calls.
    pub workers: u32,
    /// Most blocks that may wait to be encoded.
    pub max_queue: usize,
    /// Most bytes of waiting copies and of blobs that have not replaced raw bytes yet; where there are none, one block is
    /// taken of any size. 0 = no bound.
    pub pending_bytes: usize,
    /// Most bytes of decoded rows beside the caches, all layers together.
    pub decode_cache_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            encoding: Encoding::default(),
            workers: 0,
            max_queue: DEFAULT_QUEUE as usize,
            pending_bytes: 0,
            decode_cache_bytes: 0,
        }
    }
}

/// Rows of a segment of K and of V.
type Parts = (Vec<u8>, Vec<u8>);

/// Compressed blocks of all layers of one model.
pub struct Store {
    settings: Settings,
    /// By number.
    layers: HashMap<u32, LayerBlocks>,
    decoded: Decoded,
    next_ticket: u64,
    /// The codec of the host's thread, and rows on their way through it.
    codec: Codec,
    rows: KvBytes,
    part: Parts,
    /// Blocks, and their raw bytes, that wait for an encoding worker or are with one.
    encoding: usize,
    staged_bytes: usize,
    /// Bytes of blobs that have not replaced raw bytes yet.
    unclaimed_bytes: usize,
    /// Refusals in a row; see [`submit`].
    refusals: u32,
    runner: Option<Runner>,
}

impl Store {
    /// An empty store. Its workers, which it shares with the other stores of the process, sleep until there are jobs.
    pub fn new(settings: Settings) -> Result<Self> {
        let Settings { encoding, workers, decode_cache_bytes, .. } = settings;
        let mut decoded = Decoded::default();
        decoded.set_budget(decode_cache_bytes);
        Ok(Store {
            settings,
            layers: HashMap::new(),
            decoded,
            next_ticket: 0,
            codec: Codec::default(),
            rows: KvBytes::new(0, 0)?,
            part: Parts::default(),
            encoding: 0,
            staged_bytes: 0,
            unclaimed_bytes: 0,
            refusals: 0,
            runner: if workers > 0 { Some(Runner::new(workers, encoding)?) } else { None },
        })
    }

    /// Changes the bounds in bytes.
    pub fn set_bounds(&mut self, pending_bytes: usize, decode_cache_bytes: usize) {
        (self.settings.pending_bytes, self.settings.decode_cache_bytes) = (pending_bytes, decode_cache_bytes);
        self.decoded.set_budget(decode_cache_bytes);
    }

    /// The layer, made where there is none.
    #[expect(clippy::disallowed_methods, reason = "room is reserved first")]
    fn layer_or_new(&mut self, number: u32) -> Result<&mut LayerBlocks> {
        memory::reserve_map(&mut self.layers, 1)?;
        Ok(self.layers.entry(number).or_default())
    }

    /// Drops the blocks of a layer for which `keep` is false, with their decoded rows and waiting jobs.
    fn retain(&mut self, layer: u32, mut keep: impl FnMut(&Block) -> bool) {
        let Some(entry) = self.layers.get_mut(&layer) else { return };
        let (decoded, unclaimed) = (&mut self.decoded, &mut self.unclaimed_bytes);
        let mut encoding = false;
        entry.retain(|block| {
            let kept = keep(block);
            if !kept {
                decoded.remove(block.ticket());
                *unclaimed -= if block.claimed { 0 } else { block.blob_bytes() };
                encoding |= block.state == BlockState::Encoding;
            }
            kept
        });
        let Some(runner) = self.runner.as_ref().filter(|_| encoding) else { return };
        // The job of the current submit has no block yet; its ticket is `next`.
        let next = self.next_ticket;
        let is_orphan =
            |job: &Job| job.is_encode_in(layer) && job.shape.ticket < next && entry.find(job.shape.ticket).is_none();
        while let Some(job) = runner.queue.take_back(is_orphan) {
            self.encoding -= 1;
            self.staged_bytes -= job.shape.raw_len();
        }
    }

    /// The parts of `range` that no block covers.
    pub fn uncovered(&self, layer: u32, range: Range<u32>) -> Result<Vec<Range<u32>>> {
        memory::collect(Run::gaps(self.layers.get(&layer).map_or(&[], |entry| &entry.index), range))
    }

    /// Reports that only the tokens in `pairs` (offset, length) are left, moved together. On an error nothing has changed.
    /// INVALID_ARGUMENT: if pairs overlap or descend.
    pub fn compacted(&mut self, layer: u32, pairs: &[Pair]) -> Result<()> {
        layout::check_pairs(pairs, u32::MAX)?;
        let mut now = 0;
        let kept = memory::collect(pairs.iter().filter(|pair| pair[1] > 0).map(|pair| {
            let stay = Run { of: (), offset: pair[0] as u32, begin: now, count: pair[1] as u32 };
            now = stay.end();
            stay
        }))?;
        if now == 0 {
            self.truncated(layer, 0);
            return Ok(());
        }
        let edit = self.layers.get(&layer).map(|entry| entry.plan(&kept)).transpose()?;
        let moved = kept.iter().find(|stay| stay.begin < stay.offset).map_or(now, |stay| stay.begin);
        self.edit(layer, edit, moved..u32::MAX);
        Ok(())
    }

    /// Reports that the tokens `range` were written in place: the store drops them, and the cache has them. Released blocks
    /// keep their other tokens. OUT_OF_MEMORY: nothing has changed.
    pub fn rewritten(&mut self, layer: u32, range: Range<u32>) -> Result<()> {
        let Some(entry) = self.layers.get_mut(&layer).filter(|_| !range.is_empty()) else { return Ok(()) };
        let before = Run { of: (), offset: 0, begin: 0, count: range.start };
        let behind = Run { of: (), offset: range.end, begin: range.end, count: u32::MAX - range.end };
        let is_known = entry.blocks_in(range.clone()).next().is_some();
        let edit = is_known.then(|| entry.plan(&[before, behind])).transpose()?;
        entry.count_stale(&range);
        self.edit(layer, edit, range);
        Ok(())
    }

    /// Applies an edit of the cache, of the tokens `edited`.
    fn edit(&mut self, layer: u32, edit: Option<LayerEdit>, edited: Range<u32>) {
        let Some(entry) = self.layers.get_mut(&layer) else { return };
        entry.edited(edited);
        if let Some(edit) = edit {
            entry.apply(edit);
            self.retain(layer, |block| !block.is_gone());
        }
    }

    /// Reports that the tokens from `kv_len` on are gone.
    pub fn truncated(&mut self, layer: u32, kv_len: u32) {
        if let Some(entry) = self.layers.get_mut(&layer) {
            entry.truncate(kv_len);
            self.retain(layer, |block| !block.is_gone());
        }
    }

    /// The tokens of a layer that were edited since the last call while others were only in the store. After a restore
    /// value sums must be made anew of them.
    pub fn take_edited(&mut self, layer: u32) -> Option<Range<u32>> {
        self.layers.get_mut(&layer).and_then(|entry| entry.edited.take())
    }

    /// Runs of tokens of a layer that are only in the store; none when memory for the list is refused.
    pub fn released_runs(&self, layer: u32, layout: &Layout) -> Vec<TokenRange> {
        let runs = self.layers.get(&layer).and_then(|entry| entry.runs(layout, Block::is_released).ok());
        runs.unwrap_or_default()
    }

    /// The encoded blocks of a layer since the store was made, those included that are gone.
    pub fn encodings(&self, layer: u32) -> Encodings {
        let stats = self.layers.get(&layer).map(|entry| entry.stats).unwrap_or_default();
        Encodings { blocks: stats.submitted_blocks, bytes: stats.encoded_bytes, to_bytes: stats.encoded_to_bytes }
    }

    /// Counters of one layer, or of all.
    pub fn statistics(&mut self, layer: Option<u32>) -> Statistics {
        self.collect();
        let mut sum = Statistics::default();
        for (_, entry) in self.layers.iter().filter(|(number, _)| layer.is_none_or(|layer| layer == **number)) {
            let mut stats = entry.stats;
            entry.blocks.iter().for_each(|block| stats.add_block(block));
            sum.add(&stats);
        }
        sum.decoded_cache_bytes = self.decoded.bytes(layer) as u64;
        sum
    }
}

/// The tokens of a range.
fn tokens(range: TokenRange) -> Range<u32> {
    range.begin() as u32..range.end() as u32
}

/// Copies a range of the cache into `rows`.
fn gather(rows: &mut KvBytes, cache: &CacheRef<'_>, range: TokenRange) -> Result<()> {
    rows.fit(cache.layout.dense_key_bytes(range.count()), cache.layout.dense_value_bytes(range.count()))?;
    let (keys, values) = rows.parts_mut();
    layout::gather(cache, range, keys, values)
}

#[cfg(test)]
mod tests;
