//! Getting released tokens back: ahead of need by the workers, and in time by the host.

use super::block::{self, Block, State};
use super::codec::Shape;
use super::crew::Job;
use super::decoded::Hit;
use super::kv::Kv;
use super::queue::Urgency;
use super::{Cache, Layer, Store, pages};
use crate::layout;
use crate::status::Result;
use std::time::Instant;

impl Store {
    /// Asks the workers to decode the layer's released blocks before [`Store::restore`] needs them. Does nothing without
    /// workers.
    pub fn prefetch(&mut self, layer: u32) {
        self.collect();
        let (Some(crew), Some(entry)) = (&self.crew, self.layers.get_mut(&layer)) else { return };
        for block in &mut entry.blocks {
            let Some(blob) = block.blob.as_ref().filter(|_| block.state == State::Released && !block.decoding) else {
                continue;
            };
            if !self.decoded.contains(block.shape.ticket) {
                block.decoding = true;
                let job = Job::Decode { layer, shape: block.shape, blob: blob.clone(), into: self.spares.pop() };
                crew.queue().push(job, Urgency::Soon);
            }
        }
    }

    /// Asks the workers to take the memory that [`Store::restore`] will write the layer's tokens to, so that it need not
    /// fault in page after page. It is taken from now on.
    pub fn make_ready(&mut self, layer: u32) {
        let (Some(crew), Some(entry)) = (&self.crew, self.layers.get_mut(&layer)) else { return };
        let runs = std::mem::take(&mut entry.vacated);
        if !runs.is_empty() && entry.blocks.iter().any(Block::is_released) {
            entry.populating = true;
            crew.queue().push(Job::Populate { layer, runs }, Urgency::Soon);
        }
    }

    /// Takes a wish for memory back that no worker is at yet, and answers what was wished for.
    fn cancel_populating(&mut self, layer: u32) -> Vec<(usize, usize)> {
        let (Some(crew), Some(entry)) = (&self.crew, self.layers.get_mut(&layer)) else { return Vec::new() };
        if !entry.populating {
            return Vec::new();
        }
        let Some(Job::Populate { runs, .. }) = crew.queue().take_back(|job| job.is_populate_of(layer)) else {
            return Vec::new();
        };
        entry.populating = false;
        runs
    }

    /// Sees to it that no worker takes memory for the layer from now on. Waits for one that is at it: what it took after
    /// a release would stay taken.
    pub(super) fn finish_populating(&mut self, layer: u32) {
        self.cancel_populating(layer);
        while self.layers.get(&layer).is_some_and(|e| e.populating) {
            self.crew.as_ref().expect("only workers populate").queue().wait();
            self.collect();
        }
    }

    /// The layer's tokens are other ones now: from now on no memory is taken for where they were.
    pub(super) fn forget_vacated(&mut self, layer: u32) {
        self.finish_populating(layer);
        if let Some(entry) = self.layers.get_mut(&layer) {
            entry.vacated.clear();
        }
    }

    /// Takes the memory here that no worker has taken or is taking: one call for a run costs less than a fault for each
    /// of its pages.
    fn take_memory(&mut self, layer: u32) {
        let mut runs = self.cancel_populating(layer);
        if let Some(entry) = self.layers.get_mut(&layer) {
            runs.append(&mut entry.vacated);
        }
        runs.into_iter().for_each(|(start, len)| pages::populate(start, len));
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
        let Some(entry) = self.layers.get(&layer) else { return Ok(0) };
        let mut released = entry.blocks.iter().filter(|b| b.is_released()).peekable();
        if released.peek().is_none() {
            return Ok(0);
        }
        for block in released {
            block.check_fits(layer, cache.layout)?;
        }
        self.take_memory(layer);
        self.decoded.next_pass();
        let mut restored = 0;
        // Blocks before it are back or with a worker.
        let mut from = 0;
        // Blocks that are decoded, then those that nobody is at; by then more are decoded.
        while let Some(at) = self.next_released(layer, &mut from) {
            let (bytes, gone) = self.restore_block(layer, at, &mut cache)?;
            restored += bytes;
            // The blocks behind it have moved up.
            from -= usize::from(gone && at < from);
            self.collect();
        }
        Ok(restored)
    }

    /// The released block that is quickest to restore now: index in the layer. Waits only where a worker is at the last.
    fn next_released(&mut self, layer: u32, from: &mut usize) -> Option<usize> {
        loop {
            let blocks = &mut self.layers.get_mut(&layer)?.blocks;
            if let Some(at) = self.decoded.first_ahead(layer).and_then(|ticket| block::find(blocks, ticket)) {
                return Some(at);
            }
            let nobody_is_at = |b: &Block| b.is_released() && !b.decoding;
            let next = blocks.iter().skip(*from).position(nobody_is_at);
            *from = next.map_or(blocks.len(), |ahead| *from + ahead);
            if next.is_some() {
                return Some(*from);
            }
            let queue = self.crew.as_ref()?.queue();
            if let Some(Job::Decode { shape, into, .. }) = queue.take_back(|job| job.is_decode_in(layer)) {
                self.spares.extend(into);
                if let Some(at) = block::find(blocks, shape.ticket) {
                    blocks[at].decoding = false;
                    return Some(at);
                }
                continue;
            }
            blocks.iter().find(|b| b.is_released())?;
            queue.wait();
            self.collect();
            // Where a worker has failed nobody is at the block any more.
            *from = 0;
        }
    }

    /// Restores one released block; answers its bytes, and whether the block is gone.
    fn restore_block(&mut self, layer: u32, at: usize, cache: &mut Cache<'_>) -> Result<(u64, bool)> {
        let layers = self.layers.len();
        let Some(Layer { blocks, stats, .. }) = self.layers.get_mut(&layer) else { return Ok((0, false)) };
        let block = &mut blocks[at];
        let ticket = block.ticket();
        let found = self.decoded.get(ticket);
        let hit = found.as_ref().map(|(_, hit)| *hit);
        let rows = match found {
            Some((rows, _)) => rows,
            None => {
                let blob = block.blob.as_ref().expect("a released block has a blob");
                let start = Instant::now();
                self.codec.decode(&block.shape, blob, &mut self.rows)?;
                stats.decode_ns += start.elapsed().as_nanos() as u64;
                stats.decoded_bytes += self.rows.len() as u64;
                &self.rows
            }
        };
        let bytes = scatter(block, rows, &mut self.part, cache)?;

        *match hit {
            Some(Hit::Prefetched) => &mut stats.prefetch_hits,
            Some(Hit::Kept) => &mut stats.cache_hits,
            None => &mut stats.cache_misses,
        } += 1;
        stats.restored_bytes += bytes;
        stats.restored_blocks += 1;
        if !block.is_whole() {
            // Some of its tokens are gone: the blob stands for no range of the cache any more.
            self.decoded.remove(ticket);
            blocks.remove(at);
            return Ok((bytes, true));
        }
        (block.state, block.verified) = (State::Resident, true);
        if hit != Some(Hit::Kept) {
            let ahead = self.decoded.remove(ticket);
            let room = self.decoded.has_room(layer, ahead.as_ref().unwrap_or(&self.rows).len(), layers);
            match (ahead, room) {
                (Some(rows), true) => self.decoded.keep(layer, ticket, rows),
                (Some(rows), false) => self.spares.push(rows),
                (None, true) => {
                    let rows = std::mem::replace(&mut self.rows, Kv::new(0, 0)?);
                    self.decoded.keep(layer, ticket, rows);
                }
                (None, false) => {}
            }
        }
        Ok((bytes, false))
    }
}

/// Writes the rows of a block's tokens to where those are now; answers the bytes.
fn scatter(block: &Block, rows: &Kv, part: &mut (Vec<u8>, Vec<u8>), cache: &mut Cache<'_>) -> Result<u64> {
    let mut bytes = 0;
    for segment in &block.segments {
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
