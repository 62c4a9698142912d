//! Parking: all tokens of a layer as pieces, while nobody needs them in the cache.
//!
//! A parked layer has only parked blocks, which are released and hold all of its tokens. Edits cut them as they cut any
//! released block. [`Store::unpark`] writes them back and drops them: their format is small, not fast.

use super::block::Block;
use super::codec::BlockShape;
use super::kv::KvBytes;
use super::piece::{Packer, Packing};
use super::{Store, codec, restore, saved};
use crate::layout::{self, Cache};
use crate::status::Result;
use crate::sys::{Shared, memory, pages};
use std::sync::atomic::AtomicBool;

/// Bytes that one thread decodes as soon as another one has started.
const LEAST_SHARED: usize = 256 << 10;

/// The result of [`Store::park`]. Counters of the store have no part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parked {
    /// Raw bytes of the tokens.
    pub raw_bytes: u64,
    /// Bytes of the blobs.
    pub bytes: u64,
    /// Bytes of the buffers that returned to the system.
    pub released_bytes: u64,
}

impl Store {
    /// Whether the layer's tokens are parked.
    pub fn is_parked(&self, layer: u32) -> bool {
        self.layers.get(&layer).and_then(|entry| entry.blocks.first()).is_some_and(|block| block.is_parked)
    }

    /// Encodes all `len` tokens of a layer, and releases the memory of its buffers.
    /// The layer must not be parked, and all of its tokens must be in the cache. On an error nothing has changed.
    /// BUSY: if `stop` was set meanwhile.
    pub fn park(
        &mut self,
        layer: u32,
        mut cache: Cache<'_>,
        len: u32,
        packing: &Packing,
        stop: &AtomicBool,
    ) -> Result<Parked> {
        let all = cache.layout.range(0, len)?;
        let rows = cache.layout.rows();
        let mut blocks = Vec::new();
        let mut parked = Parked::default();
        let mut raw = KvBytes::new(0, 0)?;
        let packer = Packer { cache: cache.as_ref(), packing, stop };
        for range in saved::regions(self.saved(layer), len)? {
            let (begin, tokens) = (range.start, range.len());
            let (blob, sum) = packer.encode(range, &mut raw)?;
            parked.raw_bytes += raw.len() as u64;
            parked.bytes += blob.len() as u64;
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let shape = BlockShape { ticket, rows, tokens, digest: sum.into() };
            memory::push(&mut blocks, Block::parked(shape, shape.all_from(begin)?, Shared::new(blob)?))?;
        }
        self.layer_or_new(layer)?.reserve(blocks.len())?;

        // Nothing below fails.
        self.retain(layer, |_| false);
        parked.released_bytes = layout::release(&mut cache, all, &mut pages::give_back);
        if let Some(entry) = self.layers.get_mut(&layer) {
            blocks.into_iter().for_each(|block| entry.push(block));
            entry.stats.released_bytes += parked.released_bytes;
        }
        Ok(parked)
    }

    /// Writes the tokens of a parked layer back, bit for bit, on up to `threads` threads; of any other layer does nothing.
    /// On an error the layer is still parked.
    /// STALE: if a block does not fit the layout. CORRUPT: if a blob does not decode to the parked tokens.
    pub fn unpark(&mut self, layer: u32, mut cache: Cache<'_>, threads: usize) -> Result<()> {
        let Some(entry) = self.layers.get(&layer).filter(|_| self.is_parked(layer)) else { return Ok(()) };
        entry.take_memory(layer, &mut cache)?;
        for block in &entry.blocks {
            let blob = block.blob.as_ref().expect("a parked block has a blob");
            let threads = if block.live_bytes() < LEAST_SHARED { 1 } else { threads };
            codec::decode_on(threads, &block.shape, blob, &mut self.rows)?;
            restore::scatter(block, &self.rows, &mut self.part, &mut cache)?;
        }
        self.retain(layer, |block| {
            if let Some(blob) = block.blob.as_ref().filter(|_| block.is_parked) {
                blob.drop_pages();
            }
            !block.is_parked
        });
        Ok(())
    }
}
