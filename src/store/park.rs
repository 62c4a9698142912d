//! Parking: all tokens of a layer as pieces, while nobody needs them in the cache.
//!
//! A parked layer has only parked blocks, which are released and hold all of its tokens. Edits cut them as they cut any
//! released block. [`Store::unpark`] writes them back and drops them: their format is small, not fast.

use super::block::Block;
use super::codec::BlockShape;
use super::heads::HeadReader;
use super::kv::KvBytes;
use super::piece::{self, Packing};
use super::{Store, saved};
use crate::layout::{self, Cache, HeadMut, Order, Pair};
use crate::status::Result;
use crate::sys::{Mutex, Shared, memory, pages, parallel};
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
        self.layer(layer).and_then(|entry| entry.blocks().first()).is_some_and(|block| block.is_parked)
    }

    /// Encodes all `len` tokens of a layer, whose logical positions are `positions`, and releases the memory of its buffers.
    /// The layer must not be parked, and all of its tokens must be in the cache. On an error nothing has changed.
    /// BUSY: if `stop` was set meanwhile.
    pub fn park(
        &mut self,
        layer: u32,
        mut cache: Cache<'_>,
        len: u32,
        positions: &[Pair],
        packing: &Packing<'_>,
        stop: &AtomicBool,
    ) -> Result<Parked> {
        let all = cache.layout.range(0, len)?;
        let rows = cache.layout.rows();
        let mut blocks = Vec::new();
        let mut parked = Parked::default();
        let mut raw = KvBytes::new(0, 0)?;
        for (begin, count) in saved::regions(self.saved(layer), len)? {
            let range = cache.layout.range(begin, count)?;
            let (blob, sum) = piece::encode_range(&cache.as_ref(), range, positions, &mut raw, packing, stop)?;
            parked.raw_bytes += raw.len() as u64;
            parked.bytes += blob.len() as u64;
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let shape = BlockShape { ticket, rows, tokens: range.count(), order: Order::DENSE, digest: sum.into() };
            memory::push(&mut blocks, Block::parked(shape, range, Shared::new(blob)?)?)?;
        }
        self.layer_or_new(layer)?.reserve(blocks.len())?;

        // Nothing below fails.
        self.retain(layer, |_| false);
        if let Some(entry) = self.layer_mut(layer) {
            blocks.into_iter().for_each(|block| entry.push(block));
        }
        parked.released_bytes = layout::release(&mut cache, all, &mut pages::give_back);
        if let Some(entry) = self.layer_mut(layer) {
            entry.stats.released_bytes += parked.released_bytes;
        }
        Ok(parked)
    }

    /// Writes the tokens of a parked layer back, bit for bit, on up to `threads` threads; of any other layer does nothing.
    /// On an error the layer is still parked.
    /// STALE: if a block does not fit the layout. CORRUPT: if a blob does not decode to the parked tokens.
    pub fn unpark(&mut self, layer: u32, mut cache: Cache<'_>, threads: usize) -> Result<()> {
        if !self.is_parked(layer) {
            return Ok(());
        }
        let bytes: usize = self.layer(layer).map_or(0, |entry| entry.blocks().iter().map(Block::live_bytes).sum());
        let threads = if bytes < LEAST_SHARED { 1 } else { threads };
        match self.stored(layer, cache.layout)? {
            Some(stored) => {
                let heads = memory::collect(split(&mut cache).map(|head| Mutex::new(Some(head))))?;
                parallel::for_each(heads.len(), threads, |reader: &mut HeadReader, at| {
                    let head = heads[at].lock().ok().and_then(|mut head| head.take());
                    head.map_or(Ok(()), |head| reader.restore(&stored, at as u32, head))
                })?;
            }
            None => drop(self.restore(layer, cache.reborrow())?),
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

/// The heads of a cache whose heads are apart.
fn split<'a>(cache: &'a mut Cache<'_>) -> impl Iterator<Item = HeadMut<'a>> {
    let layout = cache.layout;
    let (mut key, mut value, mut at) = (&mut *cache.key, &mut *cache.value, (0, 0));
    (0..layout.rows().heads as u32).map_while(move |head| {
        let (keys, values) = layout.head(head)?;
        let (own_key, key_rest) = std::mem::take(&mut key).split_at_mut(keys.end - at.0);
        let (own_value, value_rest) = std::mem::take(&mut value).split_at_mut(values.end - at.1);
        let before = std::mem::replace(&mut at, (keys.end, values.end));
        (key, value) = (key_rest, value_rest);
        let (key, value) = (&mut own_key[keys.start - before.0..], &mut own_value[values.start - before.1..]);
        Some(HeadMut { layout, key, value })
    })
}
