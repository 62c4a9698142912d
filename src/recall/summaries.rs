//! The sketches of a layer's blocks, and estimates of all of them.

use super::basis::Basis;
use super::sketch;
use crate::arch::estimates::{LANES, ROWS_ABREAST, SketchRow, SketchTile};
use crate::arch::kernels;
use crate::status::{Result, bail};
use crate::sys::memory;

/// Blocks of a chunk, whose memory comes and goes together.
const CHUNK: usize = 64;
/// The largest magnitude of a query element times the factor of logits. No product with a summary overflows.
const LARGEST_QUERY: f32 = 1e9;

/// The sketches of the blocks of one layer, by slots that stay: each key by its parts along 16 directions, learned from keys.
/// 10 bytes per token and KV head.
#[derive(Debug)]
pub struct Summaries {
    kv_heads: usize,
    dims: usize,
    block_tokens: usize,
    basis: Option<Basis>,
    chunks: Vec<Chunk>,
    slots: usize,
    /// Working memory of [`Summaries::insert`].
    room: Vec<f32>,
}

/// 64 slots. Without blocks there is no memory.
#[derive(Debug, Default)]
struct Chunk {
    /// A bit for each slot.
    used: u64,
    /// `[KV head][tile]`: tokens of blocks in the order of slots.
    sketches: Vec<SketchTile>,
}

/// Working memory of estimates. It may serve any number of summaries in turn.
#[derive(Debug, Default)]
pub struct Scratch {
    query: Vec<f32>,
    /// The logits of one chunk, `[row][tile]`.
    logits: Vec<[f32; LANES]>,
    /// `[row][slot]`, relative to the peak of row and chunk.
    masses: Vec<f32>,
    /// `[chunk][row]`.
    peaks: Vec<[f32; ROWS_ABREAST]>,
}

impl Summaries {
    /// No summaries yet, of blocks of 1 to `block_tokens` tokens.
    ///
    /// # Panics
    /// If `kv_heads` or `dims` is 0, or `block_tokens` is outside 4 to 64.
    pub fn new(kv_heads: usize, dims: usize, block_tokens: usize) -> Self {
        assert!(kv_heads > 0 && dims > 0 && (4..=64).contains(&block_tokens), "a block has 4 to 64 tokens");
        let (basis, chunks, room) = (None, Vec::new(), Vec::new());
        Summaries { kv_heads, dims, block_tokens, basis, chunks, slots: 0, room }
    }

    /// Makes the directions from keys `[KV head][token][dim]`, of at most 512 tokens that are evenly apart.
    /// INVALID_ARGUMENT: if there are no tokens, or blocks already.
    pub fn learn(&mut self, keys: &[f32], tokens: usize) -> Result<()> {
        self.check_keys(keys, tokens, usize::MAX)?;
        self.check_empty()?;
        self.basis = Some(Basis::learn(keys, tokens, self.kv_heads, self.dims)?);
        Ok(())
    }

    /// Summarises a block of keys `[KV head][token][dim]`. Returns its slot, the lowest that is free. On an error nothing
    /// has changed.
    pub fn insert(&mut self, keys: &[f32], tokens: usize) -> Result<u32> {
        self.check_keys(keys, tokens, self.block_tokens)?;
        let Some(basis) = &self.basis else {
            bail!(InvalidArgument, "sketches have no directions; they must be learned before a block is inserted");
        };
        let number = self.chunks.iter().position(|chunk| chunk.used != u64::MAX).unwrap_or(self.chunks.len());
        if number == self.chunks.len() {
            memory::push(&mut self.chunks, Chunk::default())?;
        }
        let (heads, dims, tiles, width) = (self.kv_heads, self.dims, self.tiles(), self.width());
        let room = memory::at_least(&mut self.room, dims)?;
        let chunk = &mut self.chunks[number];
        if chunk.used == 0 {
            chunk.sketches = memory::filled(sketch::EMPTY, heads * tiles)?;
        }
        let place = chunk.used.trailing_ones() as usize;
        for (head, keys) in keys.chunks_exact(tokens * dims).enumerate() {
            let (first, lane) = (place * width / LANES, place * width % LANES);
            let tiles = &mut chunk.sketches[head * tiles + first..][..width.div_ceil(LANES)];
            sketch::write(keys, basis, head, room, lane, tiles);
        }
        chunk.used |= 1 << place;
        let slot = number * CHUNK + place;
        self.slots = self.slots.max(slot + 1);
        Ok(slot as u32)
    }

    /// Frees a slot. A slot that is free stays so.
    pub fn remove(&mut self, slot: u32) {
        let (width, tiles) = (self.width(), self.tiles());
        let (number, place) = (slot as usize / CHUNK, slot as usize % CHUNK);
        let Some(chunk) = self.chunks.get_mut(number).filter(|chunk| chunk.used >> place & 1 == 1) else { return };
        chunk.used &= !(1 << place);
        if chunk.used == 0 {
            *chunk = Chunk::default();
            return;
        }
        for of_head in chunk.sketches.chunks_exact_mut(tiles) {
            (place * width..(place + 1) * width)
                .for_each(|token| sketch::erase(&mut of_head[token / LANES], token % LANES));
        }
    }

    /// One more than the highest slot that was ever in use.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>()
            + self.chunks.iter().map(|chunk| size_of_val(&*chunk.sketches)).sum::<usize>()
            + self.basis.as_ref().map_or(0, Basis::bytes)
    }

    /// Writes the estimated share of each block in the attention of a query row, summed over query heads: the block's mass
    /// by that of all blocks and of `exp(protected)`. Free slots have share 0.
    ///
    /// `row` is `[query head][dim]`; consecutive heads share a KV head. `scale` is the factor of logits. `protected` is, for
    /// each query head, the log of the mass of all other tokens: -inf or NaN if there is none. An element of `row`
    /// times `scale` counts as 0 if it is NaN, and as ±1e9 if it is beyond. `shares` has one element for each slot at
    /// least. On an error nothing has changed.
    pub fn estimate(
        &self,
        row: &[f32],
        scale: f32,
        protected: &[f32],
        scratch: &mut Scratch,
        shares: &mut [f32],
    ) -> Result<()> {
        let heads = protected.len();
        if heads == 0 || !heads.is_multiple_of(self.kv_heads) {
            bail!(InvalidArgument, "there are {heads} query heads; a multiple of {} expected", self.kv_heads);
        }
        if row.len() != heads * self.dims {
            bail!(InvalidArgument, "a row has {} elements; {} expected", row.len(), heads * self.dims);
        }
        if shares.len() < self.slots {
            bail!(InvalidArgument, "there is room for {} shares; {} slots expected", shares.len(), self.slots);
        }
        scratch.reserve(self)?;
        shares.fill(0.0);
        let group = heads / self.kv_heads;
        let of_group = row.chunks_exact(group * self.dims).zip(protected.chunks_exact(group));
        for (head, (rows, protected)) in of_group.enumerate() {
            let abreast = rows.chunks(ROWS_ABREAST * self.dims).zip(protected.chunks(ROWS_ABREAST));
            abreast.for_each(|(rows, protected)| self.add_shares(head, rows, scale, protected, scratch, shares));
        }
        Ok(())
    }

    /// Adds the shares of up to [`ROWS_ABREAST`] query rows of a KV head.
    fn add_shares(
        &self,
        head: usize,
        rows: &[f32],
        scale: f32,
        protected: &[f32],
        scratch: &mut Scratch,
        shares: &mut [f32],
    ) {
        let (dims, count, slots) = (self.dims, protected.len(), self.chunks.len() * CHUNK);
        let Scratch { query, logits, masses, peaks } = scratch;
        let Some(basis) = &self.basis else { return };
        let mut sketched = [SketchRow::default(); ROWS_ABREAST];
        for (r, row) in rows.chunks_exact(dims).enumerate() {
            let tame = |q: f32| if q.is_nan() { 0.0 } else { q.clamp(-LARGEST_QUERY, LARGEST_QUERY) };
            query.iter_mut().zip(row).for_each(|(to, q)| *to = tame(q * scale));
            sketched[r] = sketch::row(&query[..dims], basis, head);
        }
        for (number, (chunk, peaks)) in self.chunks.iter().zip(&mut *peaks).enumerate() {
            *peaks = [f32::MIN; ROWS_ABREAST];
            let tiles = if chunk.used == 0 { 0 } else { self.tiles() };
            let logits = &mut logits[..count * tiles];
            let of_head = &chunk.sketches[head * tiles..][..tiles];
            (kernels().estimates.sketch)(of_head, &sketched[..count], logits, &mut peaks[..count]);
            for r in 0..count {
                let masses = &mut masses[r * slots + number * CHUNK..][..CHUNK];
                masses.fill(0.0);
                (kernels().estimates.masses)(&logits[r * tiles..][..tiles], peaks[r], self.width(), masses);
            }
        }
        for (r, protected) in protected.iter().enumerate() {
            let by_chunk = || peaks.iter().zip(masses[r * slots..].chunks(CHUNK)).take(self.chunks.len());
            let protected = f64::from(if protected.is_nan() { f32::NEG_INFINITY } else { *protected });
            let peak = by_chunk().fold(protected, |peak, (peaks, _)| peak.max(f64::from(peaks[r])));
            let relative = |peaks: &[f32; ROWS_ABREAST]| (f64::from(peaks[r]) - peak).exp();
            let of_chunk = |(peaks, masses): (_, &[f32])| relative(peaks) * f64::from(sum(masses));
            let others = if peak == protected { 1.0 } else { (protected - peak).exp() };
            let total = by_chunk().map(of_chunk).sum::<f64>() + others;
            for ((peaks, masses), shares) in by_chunk().zip(shares.chunks_mut(CHUNK)) {
                let factor = if total > 0.0 { (relative(peaks) / total) as f32 } else { 0.0 };
                shares.iter_mut().zip(masses).for_each(|(share, mass)| *share += mass * factor);
            }
        }
    }

    /// Lanes of a block's sketch: a part of a tile or whole ones.
    fn width(&self) -> usize {
        if self.block_tokens < LANES {
            self.block_tokens.next_power_of_two()
        } else {
            self.block_tokens.next_multiple_of(LANES)
        }
    }

    /// Tiles of a chunk in each KV head.
    fn tiles(&self) -> usize {
        CHUNK * self.width() / LANES
    }

    fn check_keys(&self, keys: &[f32], tokens: usize, most: usize) -> Result<()> {
        if tokens == 0 || tokens > most {
            bail!(InvalidArgument, "there are {tokens} tokens; 1 to {most} expected");
        }
        let expected = tokens.saturating_mul(self.kv_heads * self.dims);
        if keys.len() != expected {
            bail!(InvalidArgument, "keys have {} elements; {expected} expected", keys.len());
        }
        Ok(())
    }

    fn check_empty(&self) -> Result<()> {
        if self.chunks.iter().any(|chunk| chunk.used != 0) {
            bail!(InvalidArgument, "there are blocks; the directions of sketches must be there before");
        }
        Ok(())
    }
}

/// The sum of a chunk's masses, in parts that a compiler keeps in vectors.
fn sum(masses: &[f32]) -> f32 {
    let mut parts = [0.0; LANES];
    for masses in masses.as_chunks::<LANES>().0 {
        parts.iter_mut().zip(masses).for_each(|(part, mass)| *part += mass);
    }
    parts.iter().sum()
}

#[cfg(test)]
impl Summaries {
    /// Mean and directions of a head.
    pub fn basis_for_tests(&self, head: usize) -> Option<(&[f32], &[[f32; LANES]])> {
        self.basis.as_ref().map(|basis| (basis.mean(head), basis.directions(head)))
    }
}

impl Scratch {
    fn reserve(&mut self, summaries: &Summaries) -> Result<()> {
        let chunks = summaries.chunks.len();
        memory::at_least(&mut self.query, summaries.dims)?;
        memory::at_least(&mut self.logits, ROWS_ABREAST * summaries.tiles())?;
        memory::at_least(&mut self.masses, ROWS_ABREAST * chunks * CHUNK)?;
        memory::at_least(&mut self.peaks, chunks)?;
        Ok(())
    }
}
