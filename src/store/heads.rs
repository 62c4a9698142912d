//! Restoring head by head, on the threads that read the heads.
//!
//! [`Store::stored`] lists the released blocks of a layer while a step is open. Threads share the list, and each has a
//! [`HeadReader`]: no lock, and no state that two of them write but a mark per head.

use super::blob::Blob;
use super::block::{Block, LiveSegment};
use super::codec::{BlockShape, Codec};
use super::kv::KvBytes;
use super::marks::Marks;
use super::{Parts, Store};
use crate::layout::{self, Cache, Head, HeadMut, Layout, Order, Places, TokenRange};
use crate::status::{Result, bail};
use crate::sys::pages::{self, Region};
use crate::sys::{Shared, memory};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes behind a window that kernels may read with whole vectors, and the alignment of its V.
const SLACK: usize = 64;

/// The least bytes of a run whose pages are taken ahead.
const LEAST_RUN: usize = 16 << 10;

/// The released tokens of a layer in one step.
pub struct StoredLayer {
    number: u32,
    /// Unlike that of any other list.
    version: u64,
    blocks: Vec<StoredBlock>,
    /// Where the released tokens are, ascending.
    runs: Vec<TokenRange>,
    /// The state of each head in the cache.
    marks: Marks,
    work: Work,
}

struct StoredBlock {
    shape: BlockShape,
    blob: Shared<Blob>,
    segments: Vec<LiveSegment>,
}

/// Work done by all readers of a list.
#[derive(Default)]
struct Work {
    /// Blocks of a head decoded.
    blocks: AtomicU64,
    /// Raw bytes decoded.
    bytes: AtomicU64,
    /// Nanoseconds that took, with all copies.
    ns: AtomicU64,
}

/// A thread's codec and working memory, and its window: memory of one head that stays mapped from one head to the next.
#[derive(Default)]
pub struct HeadReader {
    codec: Codec,
    rows: Option<KvBytes>,
    parts: Parts,
    window: Option<Window>,
}

/// One head of a cache, with the places of its bytes unchanged.
struct Window {
    memory: Region,
    /// The places of tokens, and the bytes of K and of V, of the layout that the window has.
    shape: (Places, (usize, usize)),
    /// The list, the head and the length whose tokens it has.
    holds: Option<(u64, u32, u32)>,
}

impl Store {
    /// The released blocks of a layer; `None` where there are none, or where its heads cannot be read apart.
    /// STALE: if a block does not fit the layout.
    pub(crate) fn stored(&mut self, layer: u32, layout: &Layout) -> Result<Option<Shared<StoredLayer>>> {
        let version = self.next_version;
        let Some(entry) = self.layer(layer).filter(|_| layout.has_heads_apart()) else { return Ok(None) };
        let released = || entry.blocks().iter().filter(|block| block.is_released());
        if released().next().is_none() {
            return Ok(None);
        }
        let mut blocks = Vec::new();
        memory::reserve(&mut blocks, released().count())?;
        for block in released() {
            block.check_fits(layer, layout)?;
            let blob = block.blob.clone().expect("a released block has a blob");
            let segments = memory::copied(block.segments())?;
            memory::push(&mut blocks, StoredBlock { shape: block.shape, blob, segments })?;
        }
        let runs = entry.runs(layout, Block::is_released)?;
        let marks = Marks::new(layout.rows().heads)?;
        self.next_version += 1;
        Shared::new(StoredLayer { number: layer, version, blocks, runs, marks, work: Work::default() }).map(Some)
    }

    /// Whether an edit has cut a released block of the layer. Its tokens cannot be stored in blocks of their own before a
    /// [`Store::restore`].
    pub fn has_cut(&self, layer: u32) -> bool {
        let is_cut = |block: &Block| block.is_released() && !block.is_whole();
        self.layer(layer).is_some_and(|entry| entry.blocks().iter().any(is_cut))
    }

    /// Releases the memory of a layer's released tokens again, after a host has copied or restored them.
    pub fn release_again(&mut self, layer: u32, cache: &mut Cache<'_>) {
        for run in self.released_runs(layer, cache.layout) {
            layout::release(cache, run, &mut pages::give_back);
        }
    }

    /// Adds the work of readers to the counters of their layer, when they are done with a list.
    pub fn book(&mut self, stored: &StoredLayer) {
        let Some(entry) = self.layer_mut(stored.number) else { return };
        let Work { blocks, bytes, ns } = &stored.work;
        let [blocks, bytes, ns] = [blocks, bytes, ns].map(|sum| sum.load(Ordering::Relaxed));
        let stats = &mut entry.stats;
        stats.decode_ns += ns;
        stats.decoded_bytes += bytes;
        stats.restored_bytes += bytes;
        stats.restored_blocks += blocks;
        stats.cache_misses += blocks;
    }
}

impl StoredLayer {
    /// Claims a head for one thread; returns its number, and whether it is restored. INVALID_ARGUMENT: if another thread has
    /// it, or there is no such head.
    fn claim(&self, head: u32) -> Result<(usize, bool)> {
        let at = self.find(head)?;
        match self.marks.claim(at) {
            Some(restored) => Ok((at, restored)),
            None => bail!(InvalidArgument, "another thread restores or releases head {head} of layer {}", self.number),
        }
    }

    fn find(&self, head: u32) -> Result<usize> {
        if head as usize >= self.marks.heads() {
            bail!(InvalidArgument, "head is {head}; layer {} has {} KV heads", self.number, self.marks.heads());
        }
        Ok(head as usize)
    }

    /// Whether a head's tokens were restored in the cache and not released since. INVALID_ARGUMENT: if there is no such
    /// head.
    pub fn is_restored(&self, head: u32) -> Result<bool> {
        Ok(self.marks.is_restored(self.find(head)?))
    }

    /// Whether any head has its tokens in the cache, or some of them.
    pub fn any_restored(&self) -> bool {
        self.marks.any()
    }

    fn check(&self, layout: &Layout) -> Result<()> {
        let end = self.runs.last().map_or(0, |run| run.end());
        match self.blocks.first() {
            Some(block) if block.shape.rows != layout.rows() || end > layout.max_tokens() => {
                let (mine, given) = (block.shape.rows, layout.rows());
                bail!(
                    Stale,
                    "the stored tokens of layer {} have {mine} and end at token {end}; the layout has {given:#} and room for {}",
                    self.number,
                    layout.max_tokens()
                )
            }
            _ => Ok(()),
        }
    }
}

impl HeadReader {
    /// Writes a head's released tokens to its place in the cache, unless they are there.
    /// CORRUPT: if a blob does not decode to the submitted bytes; the head must be restored again before it is read.
    pub fn restore(&mut self, stored: &StoredLayer, head: u32, mut to: HeadMut<'_>) -> Result<()> {
        stored.check(to.layout)?;
        let (head, restored) = stored.claim(head)?;
        if restored {
            stored.marks.set(head, true);
            return Ok(());
        }
        for run in &stored.runs {
            layout::for_each_run_of_head(&mut to, *run, &mut |run| {
                if run.len() >= LEAST_RUN {
                    pages::populate(run);
                }
            });
        }
        let restored = self.decode(stored, head, &mut to);
        // Pages of tokens that failed go back at the end of the step.
        stored.marks.set(head, restored.is_ok());
        restored
    }

    /// Releases a head's restored tokens in the cache. Returns the bytes returned to the system.
    pub fn release(&mut self, stored: &StoredLayer, head: u32, mut from: HeadMut<'_>) -> Result<u64> {
        stored.check(from.layout)?;
        let mut bytes = 0;
        let (head, restored) = stored.claim(head)?;
        if restored {
            for run in &stored.runs {
                bytes += layout::release_head(&mut from, *run, &mut pages::give_back);
            }
        }
        stored.marks.set(head, false);
        Ok(bytes)
    }

    /// The bytes of a head, K and V, with all of its `len` tokens: those of the store decoded into this reader's window,
    /// the others copied from the cache. Valid until the next call.
    pub fn window(&mut self, stored: &StoredLayer, head: u32, from: &Head<'_>, len: u32) -> Result<(&[u8], &[u8])> {
        stored.check(from.layout)?;
        let at = stored.find(head)?;
        let end = stored.runs.last().map_or(0, |run| run.end());
        if end > len as usize {
            bail!(
                InvalidArgument,
                "cache->kv_len is {len}; layer {} has stored tokens up to {end}: begin returned a larger length",
                stored.number
            );
        }
        let (key_bytes, value_bytes) = from.layout.head_bytes();
        let value_at = key_bytes.next_multiple_of(SLACK);
        let len_bytes = value_at + value_bytes + SLACK;
        let shape = (from.layout.places(), (key_bytes, value_bytes));
        let mut window = match self.window.take() {
            Some(window) if window.memory.len() >= len_bytes => window,
            _ => Window { memory: Region::new(len_bytes)?, shape, holds: None },
        };
        if window.shape != shape {
            // Kernels may multiply padding by zero, so it must not be tokens of another layout.
            window.memory.fill(0);
            (window.shape, window.holds) = (shape, None);
        }
        let holds = (stored.version, head, len);
        let filled = if window.holds == Some(holds) {
            Ok(())
        } else {
            window.holds = None;
            let (key, value) = window.memory.split_at_mut(value_at);
            let (key, value) = (&mut key[..key_bytes], &mut value[..value_bytes]);
            self.fill(stored, at, from, HeadMut { layout: from.layout, key, value }, len)
        };
        let window = self.window.insert(window);
        filled?;
        window.holds = Some(holds);
        Ok((&window.memory[..key_bytes], &window.memory[value_at..value_at + value_bytes]))
    }

    fn fill(
        &mut self,
        stored: &StoredLayer,
        head: usize,
        from: &Head<'_>,
        mut to: HeadMut<'_>,
        len: u32,
    ) -> Result<()> {
        let mut at = 0;
        for run in &stored.runs {
            copy(from, &mut to, at, run.begin() as u32)?;
            at = run.end() as u32;
        }
        copy(from, &mut to, at, len)?;
        // Last, since a copy ends at the end of a block.
        self.decode(stored, head, &mut to)
    }

    /// Decodes the part of every block that has the head, to the places of its tokens.
    fn decode(&mut self, stored: &StoredLayer, head: usize, to: &mut HeadMut<'_>) -> Result<()> {
        let start = Instant::now();
        let mut bytes = 0;
        for block in &stored.blocks {
            bytes += self.decode_block(block, head, to)?;
        }
        let Work { blocks, bytes: sum, ns } = &stored.work;
        blocks.fetch_add(stored.blocks.len() as u64, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
        ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn decode_block(&mut self, block: &StoredBlock, head: usize, to: &mut HeadMut<'_>) -> Result<u64> {
        let StoredBlock { shape, blob, segments } = block;
        let (key_bytes, value_bytes) = (shape.raw_bytes().0 / shape.parts(), shape.raw_bytes().1 / shape.parts());
        let bytes = (key_bytes + value_bytes) as u64;
        if let [segment] = segments[..]
            && segment.count as usize == shape.tokens
            && let Some((key, value)) = to.run(to.layout.range(segment.begin, segment.count)?, shape.order)
        {
            self.codec.decode_part(shape, blob, head, key, value)?;
            return Ok(bytes);
        }
        let mut rows = match self.rows.take() {
            Some(rows) => rows,
            None => KvBytes::new(0, 0)?,
        };
        rows.fit(key_bytes, value_bytes)?;
        let (key, value) = rows.parts_mut();
        let decoded = self.codec.decode_part(shape, blob, head, key, value);
        let rows = self.rows.insert(rows);
        decoded?;
        let (key, value) = if shape.order == Order::DENSE {
            (rows.key(), rows.value())
        } else {
            let dense = &mut self.parts.dense;
            layout::dense(&shape.rows, 1, shape.tokens, shape.order, (rows.key(), rows.value()), dense)?;
            (&dense.0[..], &dense.1[..])
        };
        for segment in segments {
            let range = to.layout.range(segment.begin, segment.count)?;
            to.scatter(range, segment.of_head(key, shape.tokens), segment.of_head(value, shape.tokens));
        }
        Ok(bytes)
    }

    /// Bytes of the window.
    pub fn window_bytes(&self) -> usize {
        self.window.as_ref().map_or(0, |window| window.memory.len())
    }
}

/// Copies the tokens `begin .. end` of a head.
fn copy(from: &Head<'_>, to: &mut HeadMut<'_>, begin: u32, end: u32) -> Result<()> {
    if begin < end {
        layout::copy_tokens(from, to, from.layout.range(begin, end - begin)?);
    }
    Ok(())
}
