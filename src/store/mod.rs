//! The store: cold tokens of a cache kept compressed, their raw memory given back.
//!
//! A block is a range of tokens of one layer, encoded by `submit`. It is *resident* while the cache holds its raw
//! bytes too, and *released* once `commit` gave them back; `restore` makes it resident again and keeps the blob, so
//! that releasing it once more costs no encoding. Tokens that move or vanish are reported by `compacted` and
//! `truncated`; a released block then keeps exactly the tokens that are still in the cache, wherever they went.
//!
//! [`Store`] owns all of it and is not shared: whoever has it (the C handle, later the session) holds one lock around
//! it, and the store takes none. In this version encoding and decoding happen inside the calls, without threads.

mod block;
mod heap;
pub mod pages;
mod stats;

pub use stats::Statistics;

use crate::gear::{Decoder, Effort, Encoder, Format, Options, Predictors};
use crate::layout::{self, Layout, Pair, Rows, TokenRange};
use crate::status::{self, Result, bail};
use block::{Block, Residence, Segment};
use heap::{Blob, Heap};
use std::collections::BTreeMap;
use std::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// How a store encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Predictors tried on K.
    pub key_predictors: Predictors,
    /// Predictors tried on V.
    pub value_predictors: Predictors,
    /// How hard to try.
    pub effort: Effort,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            key_predictors: Predictors::all(Format::V1),
            value_predictors: Predictors::all(Format::V1),
            effort: Effort::DEFAULT,
        }
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

/// Compressed blocks of every layer of one model.
#[derive(Default)]
pub struct Store {
    config: Config,
    layers: BTreeMap<u32, Vec<Block>>,
    heap: Heap,
    codec: Codec,
    next_ticket: u64,
    stats: Statistics,
}

impl Store {
    /// An empty store.
    pub fn new(config: Config) -> Self {
        Store { config, ..Store::default() }
    }

    /// Copies a range of tokens out of the cache and encodes it; returns the block's ticket. The cache is only read.
    ///
    /// A block that would not shrink is not kept (the tokens stay raw) and counted as `no_gain_blocks`. Tokens that
    /// are released must be restored first. A resident block that overlaps the range is replaced, since the cache
    /// may have been rewritten; if range and content are the same it is kept as it is, and its ticket is returned.
    pub fn submit(&mut self, layer: u32, layout: &Layout, key: &[u8], value: &[u8], range: TokenRange) -> Result<u64> {
        if range.is_empty() {
            bail!(InvalidArgument, "count is 0; at least one token expected");
        }
        let blocks = self.layers.entry(layer).or_default();
        if let Some(block) = blocks.iter().find(|b| b.is_released() && b.overlaps(range)) {
            bail!(
                InvalidArgument,
                "tokens {} to {} of layer {layer} overlap block {}, which is released; restore the layer first",
                range.begin(),
                range.end() - 1,
                block.ticket
            );
        }
        let rows = layout.rows();
        self.codec.gather(layout, key, value, range)?;
        let digest = self.codec.digest();
        let same = |b: &&Block| b.rows == rows && b.digest == digest && b.is_whole_at(range);
        if let Some(block) = blocks.iter().find(same) {
            return Ok(block.ticket);
        }

        let start = Instant::now();
        status::reserve(blocks, 1)?;
        let blobs = self.codec.encode(&rows, &self.config, &mut self.heap)?;
        self.stats.encode_ns += start.elapsed().as_nanos() as u64;
        self.stats.encoded_bytes += self.codec.raw_bytes() as u64;
        self.stats.submitted_blocks += 1;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        match blobs {
            Some((key, value)) => {
                retain(blocks, &mut self.heap, |b| !b.overlaps(range));
                blocks.push(Block::new(ticket, rows, range, key, value, digest));
            }
            None => self.stats.no_gain_blocks += 1,
        }
        Ok(ticket)
    }

    /// Gives back the raw bytes of every resident block of the layer; returns the bytes that went back to the system.
    ///
    /// Each block is first compared with the cache. One that no longer matches (the host wrote to its tokens without
    /// saying so, or the cache shrank) is dropped and counted as `stale_blocks`; its tokens stay raw.
    pub fn commit(&mut self, layer: u32, cache: Cache<'_>) -> Result<u64> {
        let Some(blocks) = self.layers.get_mut(&layer) else { return Ok(0) };
        let mut fresh = Vec::new();
        status::reserve(&mut fresh, blocks.len())?;
        let mut at = 0;
        while let Some(block) = blocks.get_mut(at) {
            if block.is_released() {
                at += 1;
            } else if let Some(range) = self.codec.matching_range(block, &cache)? {
                fresh.push(range);
                at += 1;
            } else {
                blocks.remove(at).discard(&mut self.heap);
                self.stats.stale_blocks += 1;
            }
        }
        // Nothing can fail from here on: blocks are released together or not at all.
        blocks.iter_mut().for_each(|b| b.residence = Residence::Released);
        let mut released = 0;
        for range in released_runs(blocks, cache.layout) {
            if fresh.iter().any(|f| range.begin() <= f.begin() && f.end() <= range.end()) {
                released += layout::release(cache.layout, cache.key, cache.value, range, &mut pages::give_back)?;
            }
        }
        self.stats.released_bytes += released;
        Ok(released)
    }

    /// Writes every released token of the layer back, bit for bit; returns the bytes written. On an error the block
    /// that caused it is still released and its blob is kept; blocks restored before it are resident.
    pub fn restore(&mut self, layer: u32, cache: Cache<'_>) -> Result<u64> {
        let Some(blocks) = self.layers.get_mut(&layer) else { return Ok(0) };
        let mut restored = 0;
        let mut at = 0;
        while let Some(block) = blocks.get_mut(at) {
            if !block.is_released() {
                at += 1;
                continue;
            }
            block.check_fits(layer, cache.layout)?;
            let start = Instant::now();
            self.codec.decode(block, &self.heap)?;
            self.stats.decode_ns += start.elapsed().as_nanos() as u64;
            self.stats.decoded_bytes += self.codec.raw_bytes() as u64;
            let bytes = self.codec.scatter(block, cache.layout, cache.key, cache.value)?;
            restored += bytes;
            self.stats.restored_bytes += bytes;
            self.stats.restored_blocks += 1;
            if block.is_whole() {
                block.residence = Residence::Resident;
                at += 1;
            } else {
                // Some of its tokens are gone: the blob stands for no range of the cache any more.
                blocks.remove(at).discard(&mut self.heap);
            }
        }
        Ok(restored)
    }

    /// Tokens were renumbered: only those in `pairs` (absolute offsets and lengths) are left, moved together.
    pub fn compacted(&mut self, layer: u32, pairs: &[Pair]) -> Result<()> {
        layout::check_pairs(pairs, u32::MAX)?;
        if let Some(blocks) = self.layers.get_mut(&layer) {
            retain(blocks, &mut self.heap, |b| b.keep(pairs.iter().map(|p| (p[0] as u32, p[1] as u32))));
        }
        Ok(())
    }

    /// Tokens from `kv_len` on are gone.
    pub fn truncated(&mut self, layer: u32, kv_len: u32) {
        if let Some(blocks) = self.layers.get_mut(&layer) {
            retain(blocks, &mut self.heap, |b| b.keep(std::iter::once((0, kv_len))));
        }
    }

    /// Counts since the store was made, and what it holds now.
    pub fn statistics(&self) -> Statistics {
        let mut stats = self.stats;
        for block in self.layers.values().flatten() {
            stats.add_block(block);
        }
        stats
    }
}

/// Drops the blocks that `keep` refuses, blobs and all.
fn retain(blocks: &mut Vec<Block>, heap: &mut Heap, mut keep: impl FnMut(&mut Block) -> bool) {
    for block in blocks.extract_if(.., |block| !keep(block)) {
        block.discard(heap);
    }
}

/// The longest ranges of tokens that are released: neighbouring blocks are given back as one, since a page or a flash
/// block may lie across their border. Tokens that the layout has no room for are left out.
fn released_runs(blocks: &[Block], layout: &Layout) -> Vec<TokenRange> {
    let fits = |s: &&Segment| s.end() as usize <= layout.max_tokens();
    let segments = blocks.iter().flat_map(|b| &b.segments).filter(fits);
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

/// The rows of one block, and what turns them into blobs and back. Working memory is kept from call to call.
#[derive(Default)]
struct Codec {
    encoder: Encoder,
    decoder: Decoder,
    keys: Vec<u8>,
    values: Vec<u8>,
    part: (Vec<u8>, Vec<u8>),
}

impl Codec {
    fn raw_bytes(&self) -> usize {
        self.keys.len() + self.values.len()
    }

    fn gather(&mut self, layout: &Layout, key: &[u8], value: &[u8], range: TokenRange) -> Result<()> {
        status::resize(&mut self.keys, layout.dense_key_bytes(range.count()))?;
        status::resize(&mut self.values, layout.dense_value_bytes(range.count()))?;
        layout::gather(layout, key, value, range, &mut self.keys, &mut self.values)
    }

    /// The tokens of a resident block, when the cache still holds what was submitted.
    fn matching_range(&mut self, block: &Block, cache: &Cache<'_>) -> Result<Option<TokenRange>> {
        let Some(range) = block.range_in(cache.layout) else { return Ok(None) };
        if block.rows != cache.layout.rows() {
            return Ok(None);
        }
        self.gather(cache.layout, cache.key, cache.value, range)?;
        Ok((self.digest() == block.digest).then_some(range))
    }

    /// 128 bits over K, then V. Guards against a cache that changed and a blob that was damaged; a block's identity is
    /// its place in the store, never its digest.
    fn digest(&self) -> u128 {
        let mut hasher = Xxh3::new();
        hasher.update(&self.keys);
        hasher.update(&self.values);
        hasher.digest128()
    }

    /// Encodes the rows into two blobs, or none when they would not shrink.
    fn encode(&mut self, rows: &Rows, config: &Config, heap: &mut Heap) -> Result<Option<(Blob, Blob)>> {
        let raw_bytes = self.raw_bytes();
        let mut encode = |rows: &[u8], dtype, predictors| {
            let options = Options { predictors, effort: config.effort, ..Options::new(Format::V1) };
            heap.insert(self.encoder.encode(rows, dtype, &options)?)
        };
        let key = encode(&self.keys, rows.key_dtype, config.key_predictors)?;
        let value = match encode(&self.values, rows.value_dtype, config.value_predictors) {
            Ok(value) => value,
            Err(error) => {
                heap.free(key);
                return Err(error);
            }
        };
        if key.len() + value.len() >= raw_bytes {
            heap.free(key);
            heap.free(value);
            return Ok(None);
        }
        Ok(Some((key, value)))
    }

    fn decode(&mut self, block: &Block, heap: &Heap) -> Result<()> {
        let damaged = |what: &str, error: status::Error| match error.status() {
            status::Status::OutOfMemory => error,
            _ => status::Error::new(
                status::Status::Corrupt,
                format!("the {what} blob of block {} is damaged: {error}; it is kept", block.ticket),
            ),
        };
        status::resize(&mut self.keys, block.rows.key_bytes(block.tokens))?;
        status::resize(&mut self.values, block.rows.value_bytes(block.tokens))?;
        let mut decode = |what, blob: &[u8], dtype, rows: &mut [u8]| match self.decoder.decode(blob, dtype, rows) {
            Ok(len) if len == rows.len() => Ok(()),
            Ok(len) => bail!(Corrupt, "the {what} blob of block {} has {len} bytes, not {}", block.ticket, rows.len()),
            Err(error) => Err(damaged(what, error)),
        };
        decode("key", heap.bytes(&block.key), block.rows.key_dtype, &mut self.keys)?;
        decode("value", heap.bytes(&block.value), block.rows.value_dtype, &mut self.values)?;
        if self.digest() != block.digest {
            bail!(Corrupt, "block {} decodes to other bytes than were submitted; its blobs are kept", block.ticket);
        }
        Ok(())
    }

    /// Writes the decoded rows of the block's tokens to where those are now.
    fn scatter(&mut self, block: &Block, layout: &Layout, key: &mut [u8], value: &mut [u8]) -> Result<u64> {
        let mut bytes = 0;
        for segment in &block.segments {
            let range = layout.range(segment.begin, segment.count)?;
            let (keys, values) = if block.is_whole() {
                (&self.keys, &self.values)
            } else {
                let cut = |rows: &[u8], part: &mut Vec<u8>| segment.cut(rows, block.rows.heads, block.tokens, part);
                cut(&self.keys, &mut self.part.0)?;
                cut(&self.values, &mut self.part.1)?;
                (&self.part.0, &self.part.1)
            };
            layout::scatter(layout, keys, values, range, key, value)?;
            bytes += (keys.len() + values.len()) as u64;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
