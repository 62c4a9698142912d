//! Exact attention mass per block of tokens, gathered from the tiles of a flash attention.
//!
//! A flash attention sees a head's tokens tile by tile. The values of a tile are right only up to a factor per query
//! row that is not known before the last tile: each later tile may scale down everything before it, and the sum to
//! divide by comes last. Going over all earlier values once per tile would cost as much as the attention saves. So
//! what is kept of a head is the sum of each row over each *piece* (a tile's share of one block) and the scales of
//! each tile; with the last tile one walk backwards turns them into masses. Memory is `rows * (pieces + tiles)` f32
//! and at most twice that while it grows, never `rows * tokens`; blocks of normally 16 to 128 tokens make that little.

#[cfg(test)]
mod owned;
#[cfg(test)]
mod tests;
mod tile;

#[cfg(test)]
pub(crate) use owned::OwnedTile;
pub use tile::Tile;

use crate::arch::{PackedRows, Sum, kernels};
use crate::dtype::Dtype;
use crate::status::{Error, Result, Status, bail};
use crate::sys::memory;

/// Fraction bits of a mass.
const FRACTION_BITS: i32 = 80;
/// What a head can give to one block, with plenty to spare (one per query row is right): leaves room for the sum of
/// 65,536 such heads.
const HEAD_LIMIT: f64 = (1u64 << 32) as f64;

/// No tile reaches further, so that tokens and blocks fit a `u32`, and marks below are never NaN.
const MOST_TOKENS: usize = 1 << 29;

/// Words of plain tiles that wait side by side for the log.
const MOST_WAITING: usize = 224;
/// Blocks and rows that a plain tile may touch.
const MOST_PLAIN_PIECES: usize = 4;
const MOST_PLAIN_ROWS: usize = 16;

/// What a plain tile needs: little, and all of it together. An attention reads so much between two calls that every line
/// and every page of memory has to come back from far each time.
#[derive(Clone)]
#[repr(C)]
struct Near {
    /// Sums the values of a row, where the next tile may be a plain one.
    sum: Option<Sum>,
    dtype: Dtype,
    rows: u32,
    /// The token after the last tile, and how many tokens its block has from there on.
    next: u32,
    left: u32,
    block_tokens: u32,
    max_tokens: u32,
    /// The run under way.
    first_block: u32,
    pieces: u32,
    scaled: bool,
    /// How many words wait: the end of the log, with no less than the last piece.
    waiting: u8,
    words: [f32; MOST_WAITING],
}

impl Near {
    fn mark(&self) -> Mark {
        Mark { first_block: self.first_block as usize, pieces: self.pieces as usize, scaled: self.scaled }
    }

    /// Ends the run and begins one with these scales, where the last tile ended.
    fn begin_run(&mut self, scales: &[f32]) {
        let [a, b] = self.mark().words();
        self.push(a);
        self.push(b);
        scales.iter().for_each(|scale| self.push(*scale));
        (self.first_block, self.pieces, self.scaled) = (self.next / self.block_tokens, 0, true);
    }

    fn push(&mut self, word: f32) {
        self.words[self.waiting as usize] = word;
        self.waiting += 1;
    }

    /// Moves the words that wait to the log, where there is room for them.
    fn flush(&mut self, log: &mut Vec<f32>) {
        log.extend_from_slice(&self.words[..std::mem::take(&mut self.waiting) as usize]);
    }
}

impl Default for Near {
    fn default() -> Self {
        Near {
            sum: None,
            dtype: Dtype::F32,
            rows: 0,
            next: 0,
            left: 1,
            block_tokens: 1,
            max_tokens: 0,
            first_block: 0,
            pieces: 0,
            scaled: false,
            waiting: 0,
            words: [0.0; MOST_WAITING],
        }
    }
}

/// The head under way.
#[derive(Default)]
struct Head {
    open: bool,
    queries: usize,
    /// The highest token so far, plus 1.
    end: usize,
    /// For each run of tiles the scales of its first tile, `[row]`, if it has any, then the sums of their values,
    /// `[piece][row]`, then its mark. The run under way has no mark yet.
    log: Vec<f32>,
}

/// What the walk backwards must know of a run, as it is kept behind the run's numbers.
struct Mark {
    first_block: usize,
    pieces: usize,
    /// Whether it has scales.
    scaled: bool,
}

impl Mark {
    const WORDS: usize = 2;

    fn words(&self) -> [f32; Mark::WORDS] {
        [self.first_block as u32, (self.pieces as u32) << 1 | u32::from(self.scaled)].map(f32::from_bits)
    }

    fn from_words(words: &[f32; Mark::WORDS]) -> Self {
        let [first_block, pieces] = words.map(f32::to_bits);
        Mark { first_block: first_block as usize, pieces: pieces as usize >> 1, scaled: pieces & 1 == 1 }
    }
}

/// What one lane (thread) gathers during one step of one layer.
///
/// Masses are integers, so the sum over lanes is the same to the bit whichever lane got which head.
#[derive(Default)]
#[repr(C)]
pub struct Accumulator {
    near: Near,
    head: Head,

    last_rows: usize,
    heads: u64,
    rows: u64,
    token_end: usize,
    masses: Vec<u128>,

    // Working memory of the walk backwards.
    /// `[row]`: what the sums of the tile at hand are to be multiplied with.
    factors: Vec<f64>,
    /// `[block]`: the masses of one head.
    blocks: Vec<f64>,
}

impl Accumulator {
    /// Forgets everything and keeps its memory.
    ///
    /// `block_tokens` are the tokens of a block (0 counts as 1), `max_tokens` the tokens a tile may reach to (at most
    /// 2^29). Only the last `last_rows` query rows of each tile count: `usize::MAX` for all, 0 for none, when tiles are
    /// only checked and heads counted.
    pub fn start(&mut self, block_tokens: usize, max_tokens: usize, last_rows: usize) {
        self.near.block_tokens = block_tokens.clamp(1, MOST_TOKENS) as u32;
        self.near.max_tokens = max_tokens.min(MOST_TOKENS) as u32;
        self.near.sum = None;
        self.head.open = false;
        self.last_rows = last_rows;
        self.heads = 0;
        self.rows = 0;
        self.token_end = 0;
        self.masses.clear();
    }

    /// As [`Accumulator::add`], of a plain tile: neither the first nor the last of its head, beginning where the tile before
    /// it ended, of few rows that each lie side by side. Most tiles of a decode step are. Of any other the answer is
    /// `false`; nothing has changed then, and [`Accumulator::add`] takes it or says what is wrong with it.
    #[inline(always)]
    pub fn add_plain(&mut self, tile: &Tile<'_>) -> bool {
        let near = &mut self.near;
        let (Some(sum), Some(scales)) = (near.sum, tile.update_scale) else { return false };
        let (dtype, rows, block_tokens) = (near.dtype, near.rows as usize, near.block_tokens as usize);
        let row_len = if tile.pack == 0 { tile.tokens } else { tile.pack };
        let is_plain = !(tile.first | tile.last)
            && tile.row_sum.is_none()
            && tile.dtype == dtype
            && tile.queries == rows
            && tile.token_begin == near.next as usize
            && (1..=(near.max_tokens - near.next) as usize).contains(&tile.tokens)
            && tile.tokens <= near.left as usize + (MOST_PLAIN_PIECES - 1) * block_tokens
            && near.waiting as usize <= MOST_WAITING - Mark::WORDS - (1 + MOST_PLAIN_PIECES) * rows
            && (rows == 1 || row_len >= tile.tokens)
            && Tile::data_bytes(dtype, tile.pack, rows, tile.tokens) == Some(tile.data.len())
            && scales.len() == rows
            && scales.iter().all(|scale| tile::is_scale(*scale));
        if !is_plain {
            return false;
        }
        // By their bits: a float of 1 lies in memory, and far away.
        let is_scaled = scales.iter().any(|scale| scale.to_bits() != const { 1f32.to_bits() });
        if is_scaled {
            near.begin_run(scales);
        }
        let mut begin = 0;
        while begin < tile.tokens {
            let end = tile.tokens.min(begin + near.left as usize);
            let is_new = near.left == near.block_tokens || (is_scaled && begin == 0);
            let at = near.waiting as usize - if is_new { 0 } else { rows };
            for (row, total) in near.words[at..at + rows].iter_mut().enumerate() {
                let values = &tile.data[(row * row_len + begin) * dtype.bytes()..(row * row_len + end) * dtype.bytes()];
                *total = if is_new { sum(values) } else { *total + sum(values) };
            }
            near.pieces += u32::from(is_new);
            near.waiting = (at + rows) as u8;
            near.left -= (end - begin) as u32;
            if near.left == 0 {
                near.left = near.block_tokens;
            }
            begin = end;
        }
        near.next += tile.tokens as u32;
        true
    }

    /// Adds the next tile of a head; with the last one the head's masses are added to [`Accumulator::masses`].
    ///
    /// A tile that is refused changes nothing, with one exception: a head whose attention turns out to be no number
    /// of 0 or more (or for which there is no memory) with its last tile is dropped.
    #[inline]
    pub fn add(&mut self, tile: &Tile<'_>) -> Result<()> {
        if self.add_plain(tile) { Ok(()) } else { self.add_any(tile) }
    }

    #[inline(never)]
    fn add_any(&mut self, tile: &Tile<'_>) -> Result<()> {
        let first_row = tile.queries.saturating_sub(self.last_rows);
        let in_order = if self.head.open { !tile.first && tile.queries == self.head.queries } else { tile.first };
        if !(in_order && tile.is_sound(self.near.max_tokens as usize, first_row)) {
            return Err(self.refusal(tile, first_row));
        }
        if first_row < tile.queries {
            self.gather(tile, first_row)?;
        }
        let (end, block_tokens) = ((tile.token_begin + tile.tokens) as u32, self.near.block_tokens);
        let Head { open, queries, end: head_end, .. } = &mut self.head;
        if tile.first {
            (*open, *queries, *head_end) = (true, tile.queries, 0);
        } else {
            // Plain tiles before this one have got as far.
            *head_end = (*head_end).max(self.near.next as usize);
        }
        *head_end = (*head_end).max(end as usize);
        (self.near.next, self.near.left) = (end, block_tokens - end % block_tokens);
        if tile.last {
            *open = false;
            self.near.sum = None;
            return self.finish(tile.row_sum, first_row);
        }
        self.near.sum = None;
        if first_row == 0 && tile.queries <= MOST_PLAIN_ROWS {
            let (near, log) = (&mut self.near, &mut self.head.log);
            (near.sum, near.dtype, near.rows) = (Some(sum_of(tile.dtype)), tile.dtype, tile.queries as u32);
            // A plain tile may go on with the last piece.
            let last_piece = log.len() - tile.queries;
            near.words[..tile.queries].copy_from_slice(&log[last_piece..]);
            near.waiting = tile.queries as u8;
            log.truncate(last_piece);
        }
        Ok(())
    }

    /// Heads finished since the start.
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// Query rows that were counted, over all finished heads.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// A head has begun and not ended.
    pub fn in_head(&self) -> bool {
        self.head.open
    }

    /// Attention that the counted rows of all finished heads gave to each block: `[block]`, as long as the highest
    /// block seen, numbers of 80 fraction bits ([`mass_to_f64`]). Summed over blocks it is [`Accumulator::rows`],
    /// where rows sum to 1.
    pub fn masses(&self) -> &[u128] {
        &self.masses
    }

    /// The highest token of all finished heads, plus 1.
    pub fn token_end(&self) -> usize {
        self.token_end
    }

    /// Why a tile that is not sound, or does not belong here, is not added.
    #[cold]
    fn refusal(&self, tile: &Tile<'_>, first_row: usize) -> Error {
        let Head { open, queries, .. } = self.head;
        let text = if let Err(error) = tile.check(self.near.max_tokens as usize, first_row) {
            return error;
        } else if !open {
            "tile->first is false, but no head has begun".into()
        } else if tile.first {
            "tile->first is true, but the last tile of a head is yet to come".into()
        } else {
            format!("tile->queries is {}; {queries} expected, as in the head's first tile", tile.queries)
        };
        Error::new(Status::InvalidArgument, text)
    }

    /// Begins a run with a tile: keeps the sums of the rows from `first_row` on, and their scales.
    fn gather(&mut self, tile: &Tile<'_>, first_row: usize) -> Result<()> {
        let rows = tile.queries - first_row;
        let block_tokens = self.near.block_tokens as usize;
        let offset = tile.token_begin % block_tokens;
        let pieces = (offset + tile.tokens).div_ceil(block_tokens);
        let (near, log) = (&mut self.near, &mut self.head.log);
        if tile.first {
            log.clear();
            near.waiting = 0;
        }
        // For the end of the run before, this tile, and the end of its own run.
        let more = near.waiting as usize + Mark::WORDS + rows + Mark::WORDS;
        memory::reserve_amortized(log, pieces.saturating_mul(rows).saturating_add(more))?;
        if !tile.first {
            near.flush(log);
            log.extend_from_slice(&near.mark().words());
        }
        // What the first tile scales does not exist.
        let scales = tile.update_scale.filter(|_| !tile.first).map_or(&[][..], |scales| &scales[first_row..]);
        log.extend_from_slice(scales);
        (near.first_block, near.pieces) = ((tile.token_begin / block_tokens) as u32, pieces as u32);
        near.scaled = !scales.is_empty();
        let begin = log.len();
        log.resize(begin + pieces * rows, 0.0);
        sum_pieces(tile, first_row, block_tokens, offset, &mut log[begin..]);
        Ok(())
    }

    /// Walks over the head's tiles, last one first, and adds its masses to those of all heads.
    #[inline(never)]
    fn finish(&mut self, row_sum: Option<&[f32]>, first_row: usize) -> Result<()> {
        let rows = self.head.queries - first_row;
        if rows > 0 {
            // There is room for it since the last tile came.
            self.head.log.extend_from_slice(&self.near.mark().words());
        }
        let token_end = self.token_end.max(self.head.end);
        let blocks = token_end.div_ceil(self.near.block_tokens as usize);
        self.blocks.clear();
        memory::resize(&mut self.blocks, blocks)?;
        self.factors.clear();
        memory::reserve(&mut self.factors, rows)?;
        match row_sum {
            Some(sums) => self.factors.extend(sums[first_row..].iter().map(|sum| 1.0 / f64::from(*sum))),
            None => self.factors.resize(rows, 1.0),
        }
        if rows > 0 {
            walk_back(&self.head.log, &mut self.factors, &mut self.blocks);
        }
        if let Some(block) = self.blocks.iter().position(|mass| !(0.0..HEAD_LIMIT).contains(mass)) {
            bail!(
                InvalidArgument,
                "attention to block {block} is {}; a number of 0 or more expected, about 1 per query row at most",
                self.blocks[block]
            );
        }
        memory::resize(&mut self.masses, blocks)?;
        for (mass, head) in self.masses.iter_mut().zip(&self.blocks) {
            // A sum that stays at the end of the range is still the same in any order.
            *mass = mass.saturating_add(fixed(*head));
        }
        self.heads += 1;
        self.rows += rows as u64;
        self.token_end = token_end;
        Ok(())
    }
}

/// Sums values side by side.
fn sum_of(dtype: Dtype) -> Sum {
    let kernels = kernels();
    match dtype {
        Dtype::F32 => kernels.sum_f32,
        Dtype::F16 => kernels.sum_f16,
        Dtype::Bf16 => kernels.sum_bf16,
        Dtype::Int8 => unreachable!("refused by Tile::check"),
    }
}

/// Writes to `sums` (`[piece][row]`) what the tile's rows from `first_row` on sum to in each piece. The tile begins
/// `offset` tokens into a block.
fn sum_pieces(tile: &Tile<'_>, first_row: usize, block_tokens: usize, offset: usize, mut sums: &mut [f32]) {
    let Tile { dtype, pack, queries: rows, tokens: columns, data, .. } = *tile;
    let first_piece = 0..columns.min(block_tokens - offset);
    let mut shape = PackedRows { pack, rows, columns, first_row, range: first_piece };
    let kernels = kernels();
    let row_sums = match dtype {
        Dtype::F32 => kernels.row_sums_f32,
        Dtype::F16 => kernels.row_sums_f16,
        Dtype::Bf16 => kernels.row_sums_bf16,
        Dtype::Int8 => unreachable!("refused by Tile::check"),
    };
    while !shape.range.is_empty() {
        let piece;
        (piece, sums) = sums.split_at_mut(rows - first_row);
        row_sums(&shape, data, piece);
        shape.range = shape.range.end..columns.min(shape.range.end.saturating_add(block_tokens));
    }
}

/// Adds to `head` (`[block]`) the masses of a head's tiles. `factors` (`[row]`) are those of the last tile and become
/// those of the first.
fn walk_back(mut log: &[f32], factors: &mut [f64], head: &mut [f64]) {
    let rows = factors.len();
    while let Some((rest, words)) = log.split_last_chunk() {
        let Mark { first_block, pieces, scaled } = Mark::from_words(words);
        let (mut sums, scales);
        (log, sums) = rest.split_at(rest.len() - pieces * rows);
        (log, scales) = log.split_at(log.len() - if scaled { rows } else { 0 });
        for mass in &mut head[first_block..][..pieces] {
            let piece;
            (piece, sums) = sums.split_at(rows);
            *mass += weighted(piece, factors);
        }
        for (factor, scale) in factors.iter_mut().zip(scales) {
            *factor *= f64::from(*scale);
        }
    }
}

/// The sum of `sums` times `factors`, as many.
fn weighted(sums: &[f32], factors: &[f64]) -> f64 {
    const LANES: usize = 8;
    let (sums, last_sums) = sums.as_chunks::<LANES>();
    let (factors, last_factors) = factors.as_chunks::<LANES>();
    let mut total = 0.0;
    for (sum, factor) in last_sums.iter().zip(last_factors) {
        total += f64::from(*sum) * factor;
    }
    if !sums.is_empty() {
        let mut lanes = [0.0; LANES];
        for (sums, factors) in sums.iter().zip(factors) {
            for ((lane, sum), factor) in lanes.iter_mut().zip(sums).zip(factors) {
                *lane += f64::from(*sum) * factor;
            }
        }
        total += lanes.iter().sum::<f64>();
    }
    total
}

/// A number from 0 to below [`HEAD_LIMIT`] with [`FRACTION_BITS`], rounded down. By its bits: a conversion would be a
/// call.
fn fixed(mass: f64) -> u128 {
    const MANTISSA_BITS: i32 = 52;
    let bits = mass.to_bits();
    let exponent = (bits >> MANTISSA_BITS) as i32 & 0x7ff;
    // Denormals are far below the last fraction bit, so every number may have the hidden bit.
    let mantissa = bits & ((1 << MANTISSA_BITS) - 1) | 1 << MANTISSA_BITS;
    let shift = exponent - 1023 - MANTISSA_BITS + FRACTION_BITS;
    if shift >= 0 { u128::from(mantissa) << shift } else { u128::from(mantissa >> shift.unsigned_abs().min(63)) }
}

/// A mass as a number: attention summed over rows and heads.
pub fn mass_to_f64(mass: u128) -> f64 {
    mass as f64 / (1u128 << FRACTION_BITS) as f64
}
