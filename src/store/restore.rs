//! Getting released tokens back: ahead of need by the workers, and in time by the host.

use super::block::{Block, State};
use super::codec::Shape;
use super::crew::Job;
use super::decoded::Hit;
use super::kv::Kv;
use super::queue::Urgency;
use super::{Cache, Store};
use crate::layout;
use crate::status::Result;
use crate::sys::{memory, pages};
use std::time::Instant;

/// Taking memory for shorter runs ahead costs more than the faults that it saves.
const LEAST_RUN: usize = 16 << 10;

impl Store {
    /// Asks the workers to decode the layer's released blocks before [`Store::restore`] needs them. Does nothing without
    /// workers or without memory.
    pub fn prefetch(&mut self, layer: u32) {
        self.collect();
        let Ok(at) = self.layer_at(layer) else { return };
        let (Some(crew), entry) = (&self.crew, &mut self.layers[at]) else { return };
        for block in entry.blocks_mut() {
            let Some(blob) = block.blob.as_ref().filter(|_| block.state == State::Released && !block.decoding) else {
                continue;
            };
            if !self.decoded.contains(block.shape.ticket) {
                let job = Job::Decode { layer, shape: block.shape, blob: blob.clone(), into: self.spares.pop() };
                if crew.queue().push(job, Urgency::Soon).is_err() {
                    return;
                }
                block.decoding = true;
            }
        }
    }

    /// Gives back the memory that is kept for the next prefetch.
    pub fn drop_spares(&mut self) {
        self.spares.clear();
    }

    /// Writes every released token of the layer back, bit for bit; returns the bytes written. Blocks that were prefetched
    /// are only copied, the others decoded here, beside the workers. On an error the block that caused it is still
    /// released and its blob is kept; blocks restored before it are resident.
    pub fn restore(&mut self, layer: u32, mut cache: Cache<'_>) -> Result<u64> {
        self.collect();
        let Some(entry) = self.layer(layer) else { return Ok(0) };
        let mut released = entry.blocks().iter().filter(|b| b.is_released()).peekable();
        if released.peek().is_none() {
            return Ok(0);
        }
        for block in released {
            block.check_fits(layer, cache.layout)?;
        }
        self.take_memory(layer, &mut cache)?;
        self.decoded.next_pass();
        let mut restored = 0;
        let result = self.restore_blocks(layer, &mut cache, &mut restored);
        // Blocks of which an edit had left a part stand for no range of the cache any more.
        self.retain(layer, |block| block.state != State::Resident || block.is_whole());
        result.map(|()| restored)
    }

    /// Takes the memory of the layer's released tokens: one call for a run costs less than a fault for each of its pages.
    fn take_memory(&self, layer: u32, cache: &mut Cache<'_>) -> Result<()> {
        let Some(entry) = self.layer(layer) else { return Ok(()) };
        for range in entry.runs(cache.layout, Block::is_released)? {
            layout::for_each_run(cache.layout, cache.key, cache.value, range, layout::Padding::Kept, &mut |run| {
                if run.len() >= LEAST_RUN {
                    pages::populate(run);
                }
            })?;
        }
        Ok(())
    }

    fn restore_blocks(&mut self, layer: u32, cache: &mut Cache<'_>, restored: &mut u64) -> Result<()> {
        // Blocks before it are back or with a worker.
        let mut from = 0;
        // Blocks that are decoded, then those that no worker has; by then more are decoded.
        while let Some(at) = self.next_released(layer, &mut from) {
            *restored += self.restore_block(layer, at, cache)?;
            self.collect();
        }
        Ok(())
    }

    /// The released block that is quickest to restore now: index in the layer. Waits only where a worker is at the last.
    fn next_released(&mut self, layer: u32, from: &mut usize) -> Option<usize> {
        loop {
            let at = self.layer_at(layer).ok()?;
            let entry = &mut self.layers[at];
            if let Some(at) = self.decoded.first_ahead(layer).and_then(|ticket| entry.find(ticket)) {
                return Some(at);
            }
            let blocks = entry.blocks();
            let is_free = |b: &Block| b.is_released() && !b.decoding;
            let next = blocks.iter().skip(*from).position(is_free);
            *from = next.map_or(blocks.len(), |ahead| *from + ahead);
            if next.is_some() {
                return Some(*from);
            }
            let queue = self.crew.as_ref()?.queue();
            if let Some(Job::Decode { shape, into, .. }) = queue.take_back(|job| job.is_decode_in(layer)) {
                keep_spare(&mut self.spares, into);
                if let Some(at) = entry.find(shape.ticket) {
                    entry.blocks_mut()[at].decoding = false;
                    return Some(at);
                }
                continue;
            }
            blocks.iter().find(|b| b.is_released())?;
            queue.wait();
            self.collect();
            // Where a worker has failed the block is free again.
            *from = 0;
        }
    }

    /// Restores one released block; returns its bytes.
    fn restore_block(&mut self, layer: u32, at: usize, cache: &mut Cache<'_>) -> Result<u64> {
        let layers = self.layers.len();
        let Ok(of) = self.layer_at(layer) else { return Ok(0) };
        let entry = &mut self.layers[of];
        let block = &mut entry.blocks_mut()[at];
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

        (block.state, block.verified) = (State::Resident, true);
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
        // Without memory to keep the rows they are decoded again next time.
        let ahead = self.decoded.remove(ticket);
        if is_whole && self.decoded.has_room(layer, raw, layers) {
            let rows = match ahead {
                Some(rows) => Ok(rows),
                None => Kv::new(0, 0).map(|empty| std::mem::replace(&mut self.rows, empty)),
            };
            let _ = rows.and_then(|rows| self.decoded.keep(layer, ticket, rows));
        } else {
            keep_spare(&mut self.spares, ahead);
        }
        Ok(bytes)
    }
}

/// Keeps memory of decoded rows for the next layer, where there is room to note it.
fn keep_spare(spares: &mut Vec<Kv>, rows: Option<Kv>) {
    if let Some(rows) = rows {
        let _ = memory::push(spares, rows);
    }
}

/// Writes the rows of a block's tokens to where those are now; returns the bytes.
fn scatter(block: &Block, rows: &Kv, part: &mut (Vec<u8>, Vec<u8>), cache: &mut Cache<'_>) -> Result<u64> {
    let mut bytes = 0;
    for segment in block.segments() {
        let range = cache.layout.range(segment.begin, segment.count)?;
        let (keys, values) = if block.is_whole() {
            (rows.key(), rows.value())
        } else {
            let Shape { rows: shape, tokens, .. } = block.shape;
            segment.cut(rows.key(), shape.heads, tokens, &mut part.0)?;
            segment.cut(rows.value(), shape.heads, tokens, &mut part.1)?;
            (&part.0[..], &part.1[..])
        };
        layout::scatter(cache.layout, keys, values, range, cache.key, cache.value)?;
        bytes += (keys.len() + values.len()) as u64;
    }
    Ok(bytes)
}
