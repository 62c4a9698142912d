//! Restoring: released tokens are decoded, by workers ahead of need or by the host's thread, and written back.

use super::block::{Block, BlockState};
use super::codec::BlockShape;
use super::decoded::Hit;
use super::kv::KvBytes;
use super::layer::LayerBlocks;
use super::queue::Urgency;
use super::runner::{Job, Work};
use super::{Parts, Store};
use crate::layout::{self, Cache};
use crate::status::Result;
use crate::sys::{memory, pages};
use std::time::Instant;

/// The least bytes of a run whose pages are taken ahead; for shorter runs that costs more than the page faults.
const LEAST_RUN: usize = 16 << 10;

/// The result of [`Store::restore`].
#[derive(Debug, Default)]
pub struct Restored {
    /// Blocks written back.
    pub blocks: u64,
    /// Raw bytes written.
    pub bytes: u64,
    /// Memory for the next prefetch.
    pub spares: Spares,
}

/// Memory of rows that were decoded ahead. A [`Store::prefetch`] that takes it saves page faults.
#[derive(Debug, Default)]
pub struct Spares(Vec<KvBytes>);

impl Spares {
    /// Takes the memory of rows; drops it where memory for the list is refused.
    fn keep(&mut self, rows: Option<KvBytes>) {
        if let Some(rows) = rows {
            let _ = memory::push(&mut self.0, rows);
        }
    }
}

impl Store {
    /// Queues the layer's released blocks for decoding, ahead of [`Store::restore`]. Never blocks. Does nothing without
    /// workers, and stops where memory is refused.
    pub fn prefetch(&mut self, layer: u32, mut spares: Spares) {
        self.collect();
        let (Some(runner), Some(entry)) = (&self.runner, self.layers.get_mut(&layer)) else { return };
        for block in &mut entry.blocks {
            let is_wanted = block.is_released() && !block.decoding;
            let Some(blob) = block.blob.as_ref().filter(|_| is_wanted && !self.decoded.contains(block.ticket())) else {
                continue;
            };
            let work = Work::Decode { blob: blob.clone(), into: spares.0.pop() };
            if runner.queue.push(Job { layer, shape: block.shape, work }, Urgency::Soon).is_err() {
                return;
            }
            block.decoding = true;
        }
    }

    /// Writes every released token of the layer back, bit for bit. Prefetched blocks are copied, the others decoded here,
    /// beside the workers; blocks only for a block that a worker is decoding. On an error the block that caused it stays
    /// released and keeps its blob; blocks restored before it are resident.
    /// STALE: if a block does not fit the layout. CORRUPT: if a blob does not decode to the submitted bytes.
    pub fn restore(&mut self, layer: u32, mut cache: Cache<'_>) -> Result<Restored> {
        self.collect();
        let released = self.layers.get(&layer).filter(|entry| entry.blocks.iter().any(Block::is_released));
        let Some(entry) = released else { return Ok(Restored::default()) };
        entry.take_memory(layer, &mut cache)?;
        self.decoded.next_pass();
        let restored = self.restore_blocks(layer, &mut cache);
        // A block of which an edit has left a part is no range of the cache any more.
        self.retain(layer, |block| block.state != BlockState::Resident || block.is_whole());
        restored
    }

    /// Restores blocks that are decoded, then blocks that no worker has; by then more are decoded.
    fn restore_blocks(&mut self, layer: u32, cache: &mut Cache<'_>) -> Result<Restored> {
        let mut restored = Restored::default();
        // Blocks before it are resident or with a worker.
        let mut from = 0;
        while let Some(at) = self.next_released(layer, &mut from, &mut restored.spares) {
            restored.bytes += self.restore_block(layer, at, cache, &mut restored.spares)?;
            restored.blocks += 1;
            self.collect();
        }
        Ok(restored)
    }

    /// The index of the released block that is quickest to restore now. Blocks only when workers have all that are left.
    fn next_released(&mut self, layer: u32, from: &mut usize, spares: &mut Spares) -> Option<usize> {
        loop {
            let entry = self.layers.get_mut(&layer)?;
            if let Some(at) = self.decoded.first_ahead(layer).and_then(|ticket| entry.find(ticket)) {
                return Some(at);
            }
            let blocks = &entry.blocks;
            let is_free = |b: &Block| b.is_released() && !b.decoding;
            let next = blocks.iter().skip(*from).position(is_free);
            *from = next.map_or(blocks.len(), |ahead| *from + ahead);
            if next.is_some() {
                return Some(*from);
            }
            let queue = &self.runner.as_ref()?.queue;
            if let Some(Job { shape, work: Work::Decode { into, .. }, .. }) =
                queue.take_back(|job| job.is_decode_in(layer))
            {
                spares.keep(into);
                if let Some(at) = entry.find(shape.ticket) {
                    entry.blocks[at].decoding = false;
                    return Some(at);
                }
                continue;
            }
            blocks.iter().find(|b| b.is_released())?;
            queue.wait();
            self.collect();
            // A block that a worker failed to decode is free again.
            *from = 0;
        }
    }

    /// Restores one released block; returns its bytes.
    fn restore_block(&mut self, layer: u32, at: usize, cache: &mut Cache<'_>, spares: &mut Spares) -> Result<u64> {
        let layers = self.layers.len();
        let Some(entry) = self.layers.get_mut(&layer) else { return Ok(0) };
        let block = &mut entry.blocks[at];
        let (ticket, mut decode_ns) = (block.ticket(), 0);
        let found = self.decoded.get(ticket);
        let hit = found.as_ref().map(|(_, hit)| *hit);
        let rows = match found {
            Some((rows, _)) => rows,
            None => {
                let blob = block.blob.as_ref().expect("a released block has a blob");
                let start = Instant::now();
                self.codec.decode(&block.shape, blob, &mut self.rows)?;
                decode_ns = start.elapsed().as_nanos() as u64;
                &self.rows
            }
        };
        let raw = rows.len();
        let bytes = scatter(block, rows, &mut self.part, cache)?;

        (block.state, block.verified) = (BlockState::Resident, true);
        let is_whole = block.is_whole();
        let stats = &mut entry.stats;
        match hit {
            Some(Hit::Prefetched) => stats.prefetch_hits += 1,
            Some(Hit::Kept) => stats.cache_hits += 1,
            None => {
                stats.cache_misses += 1;
                stats.decode_ns += decode_ns;
                stats.decoded_bytes += raw as u64;
            }
        }
        stats.restored_bytes += bytes;
        stats.restored_blocks += 1;
        if is_whole && hit == Some(Hit::Kept) {
            return Ok(bytes);
        }
        // OUT_OF_MEMORY: the rows are decoded again next time.
        let ahead = self.decoded.remove(ticket);
        if is_whole && self.decoded.has_room(layer, raw, layers) {
            let rows = match ahead {
                Some(rows) => Ok(rows),
                None => KvBytes::new(0, 0).map(|empty| std::mem::replace(&mut self.rows, empty)),
            };
            let _ = rows.and_then(|rows| self.decoded.keep(layer, ticket, rows));
        } else {
            spares.keep(ahead);
        }
        Ok(bytes)
    }
}

impl LayerBlocks {
    /// Takes the pages of the released tokens: one call for a run costs less than a fault for each page.
    /// STALE: if a block that is to be written does not fit the layout.
    pub(super) fn take_memory(&self, layer: u32, cache: &mut Cache<'_>) -> Result<()> {
        let mut given = self.blocks.iter().filter(|block| block.is_released());
        given.try_for_each(|block| block.check_fits(layer, cache.layout))?;
        for range in self.runs(cache.layout, Block::is_released)? {
            layout::for_each_run(cache, range, layout::Padding::Kept, &mut |run| {
                if run.len() >= LEAST_RUN {
                    pages::populate(run);
                }
            });
        }
        Ok(())
    }
}

/// Writes the rows of a block's tokens to their present places; returns the bytes.
pub(super) fn scatter(block: &Block, rows: &KvBytes, parts: &mut Parts, cache: &mut Cache<'_>) -> Result<u64> {
    let BlockShape { rows: shape, tokens, .. } = block.shape;
    if let ([segment], true) = (&block.segments[..], block.is_whole()) {
        let range = cache.layout.range(segment.begin, segment.count)?;
        layout::scatter(cache, range, rows.key(), rows.value())?;
        return Ok(rows.len() as u64);
    }
    let mut bytes = 0;
    for segment in &block.segments {
        let range = cache.layout.range(segment.begin, segment.count)?;
        for (rows, part) in [(rows.key(), &mut parts.0), (rows.value(), &mut parts.1)] {
            memory::resize(part, rows.len() / tokens * range.count())?;
            let (from, to) = ((rows, (segment.offset as usize, tokens)), (&mut part[..], (0, range.count())));
            layout::copy_dense(shape.heads, range.count(), from, to);
        }
        layout::scatter(cache, range, &parts.0, &parts.1)?;
        bytes += (parts.0.len() + parts.1.len()) as u64;
    }
    Ok(bytes)
}
