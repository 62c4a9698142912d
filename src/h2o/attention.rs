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

use crate::arch::{PackedRows, kernels};
use crate::dtype::Dtype;
use crate::status::{self, Error, Result, Status, bail};

/// Fraction bits of a mass.
const FRACTION_BITS: i32 = 80;
/// What a head can give to one block, with plenty to spare (one per query row is right): leaves room for the sum of
/// 65,536 such heads.
const HEAD_LIMIT: f64 = (1u64 << 32) as f64;

/// A tile of the open head, as the walk backwards needs it.
struct Seen {
    first_block: usize,
    pieces: usize,
    /// Whether it has scales.
    scaled: bool,
}

/// What one lane (thread) gathers during one step of one layer.
///
/// Masses are integers, so the sum over lanes is the same to the bit whichever lane got which head.
#[derive(Default)]
pub struct Accumulator {
    block_tokens: usize,
    max_tokens: usize,
    last_rows: usize,

    heads: u64,
    rows: u64,
    token_end: usize,
    masses: Vec<u128>,

    // The open head.
    open: bool,
    queries: usize,
    head_end: usize,
    seen: Vec<Seen>,
    /// For each tile the sums of its values, `[piece][row]`, then its scales, `[row]`, if it has any.
    kept: Vec<f32>,
    /// How much of it belongs to the open head.
    used: usize,

    // Working memory of the walk backwards.
    /// `[row]`: what the sums of the tile at hand are to be multiplied with.
    factors: Vec<f64>,
    /// `[block]`
    head: Vec<f64>,
}

impl Accumulator {
    /// Forgets everything and keeps its memory.
    ///
    /// `block_tokens` are the tokens of a block (0 counts as 1), `max_tokens` the tokens a tile may reach to. Only the
    /// last `last_rows` query rows of each tile count: `usize::MAX` for all, 0 for none, when tiles are only checked
    /// and heads counted.
    pub fn start(&mut self, block_tokens: usize, max_tokens: usize, last_rows: usize) {
        self.block_tokens = block_tokens.max(1);
        self.max_tokens = max_tokens;
        self.last_rows = last_rows;
        self.heads = 0;
        self.rows = 0;
        self.token_end = 0;
        self.masses.clear();
        self.open = false;
    }

    /// Adds the next tile of a head; with the last one the head's masses are added to [`Accumulator::masses`].
    ///
    /// A tile that is refused changes nothing, with one exception: a head whose attention turns out to be no number
    /// of 0 or more (or for which there is no memory) with its last tile is dropped.
    pub fn add(&mut self, tile: &Tile<'_>) -> Result<()> {
        let first_row = tile.queries.saturating_sub(self.last_rows);
        let in_order = if self.open { !tile.first && tile.queries == self.queries } else { tile.first };
        if !(in_order && tile.is_sound(self.max_tokens, first_row)) {
            return Err(self.refusal(tile, first_row));
        }
        if first_row < tile.queries {
            self.gather(tile, first_row)?;
        }
        let tile_end = tile.token_begin + tile.tokens;
        if tile.first {
            self.open = true;
            self.queries = tile.queries;
            self.head_end = tile_end;
        } else {
            self.head_end = self.head_end.max(tile_end);
        }
        if tile.last {
            self.open = false;
            self.finish(tile.row_sum, first_row)?;
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
        self.open
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
        let text = if let Err(error) = tile.check(self.max_tokens, first_row) {
            return error;
        } else if !self.open {
            "tile->first is false, but no head has begun".into()
        } else if tile.first {
            "tile->first is true, but the last tile of a head is yet to come".into()
        } else {
            format!("tile->queries is {}; {} expected, as in the head's first tile", tile.queries, self.queries)
        };
        Error::new(Status::InvalidArgument, text)
    }

    /// Keeps what the walk backwards needs of a tile: sums of the rows from `first_row` on, and their scales.
    fn gather(&mut self, tile: &Tile<'_>, first_row: usize) -> Result<()> {
        let rows = tile.queries - first_row;
        let offset = tile.token_begin % self.block_tokens;
        // Most tiles lie in one block; a division is as dear as the sum of a short tile.
        let last_token = offset + (tile.tokens - 1);
        let pieces = if last_token < self.block_tokens { 1 } else { 1 + last_token / self.block_tokens };
        // What the first tile scales does not exist.
        let scale = tile.update_scale.filter(|_| !tile.first);
        if tile.first {
            self.seen.clear();
            self.used = 0;
        }
        let sums = pieces.saturating_mul(rows);
        let len = sums.saturating_add(scale.map_or(0, |_| rows));
        status::reserve_amortized(&mut self.seen, 1)?;

        let (sums, scales) = room(&mut self.kept, self.used, len)?.split_at_mut(sums);
        sum_pieces(tile, first_row, self.block_tokens, offset, sums);
        if let Some(scale) = scale {
            for (kept, scale) in scales.iter_mut().zip(&scale[first_row..]) {
                *kept = *scale;
            }
        }
        self.used += len;
        self.seen.push(Seen { first_block: tile.token_begin / self.block_tokens, pieces, scaled: scale.is_some() });
        Ok(())
    }

    /// Walks over the head's tiles, last one first, and adds its masses to those of all heads.
    #[inline(never)]
    fn finish(&mut self, row_sum: Option<&[f32]>, first_row: usize) -> Result<()> {
        let rows = self.queries - first_row;
        let token_end = self.token_end.max(self.head_end);
        let blocks = token_end.div_ceil(self.block_tokens);
        self.head.clear();
        status::resize(&mut self.head, blocks)?;
        self.factors.clear();
        status::reserve(&mut self.factors, rows)?;
        match row_sum {
            Some(sums) => self.factors.extend(sums[first_row..].iter().map(|sum| 1.0 / f64::from(*sum))),
            None => self.factors.resize(rows, 1.0),
        }
        if rows > 0 {
            walk_back(&self.seen, &self.kept[..self.used], &mut self.factors, &mut self.head);
        }
        if let Some(block) = self.head.iter().position(|mass| !(0.0..HEAD_LIMIT).contains(mass)) {
            bail!(
                InvalidArgument,
                "attention to block {block} is {}; a number of 0 or more expected, about 1 per query row at most",
                self.head[block]
            );
        }
        status::resize(&mut self.masses, blocks)?;
        for (mass, head) in self.masses.iter_mut().zip(&self.head) {
            // A sum that stays at the end of the range is still the same in any order.
            *mass = mass.saturating_add(fixed(*head));
        }
        self.heads += 1;
        self.rows += rows as u64;
        self.token_end = token_end;
        Ok(())
    }
}

/// The `len` elements of `buffer` from `begin` on. Old contents are anything.
fn room(buffer: &mut Vec<f32>, begin: usize, len: usize) -> Result<&mut [f32]> {
    let end = begin.saturating_add(len);
    if end > buffer.len() {
        status::reserve_amortized(buffer, end - buffer.len())?;
        buffer.resize(end, 0.0);
    }
    Ok(&mut buffer[begin..end])
}

/// Writes to `sums` (`[piece][row]`) what the tile's rows from `first_row` on sum to in each piece. The tile begins
/// `offset` tokens into a block.
#[inline]
fn sum_pieces(tile: &Tile<'_>, first_row: usize, block_tokens: usize, offset: usize, mut sums: &mut [f32]) {
    let kernels = kernels();
    let row_sums = match tile.dtype {
        Dtype::F32 => kernels.row_sums_f32,
        Dtype::F16 => kernels.row_sums_f16,
        Dtype::Bf16 => kernels.row_sums_bf16,
        Dtype::Int8 => unreachable!("refused by Tile::check"),
    };
    let Tile { pack, queries: rows, tokens: columns, .. } = *tile;
    let first_piece = 0..columns.min(block_tokens - offset);
    let mut shape = PackedRows { pack, rows, columns, first_row, range: first_piece };
    while !shape.range.is_empty() {
        let piece;
        (piece, sums) = sums.split_at_mut(rows - first_row);
        row_sums(&shape, tile.data, piece);
        shape.range = shape.range.end..columns.min(shape.range.end.saturating_add(block_tokens));
    }
}

/// Adds to `head` (`[block]`) the masses of a head's tiles. `factors` (`[row]`) are those of the last tile and become
/// those of the first.
fn walk_back(seen: &[Seen], mut kept: &[f32], factors: &mut [f64], head: &mut [f64]) {
    let rows = factors.len();
    if let [factor] = factors {
        // The short path of a decode step: the factor stays in a register.
        let mut newest_first = kept.iter().rev().map(|kept| f64::from(*kept));
        let mut factor = *factor;
        for tile in seen.iter().rev() {
            let scale = if tile.scaled { newest_first.next() } else { None };
            let blocks = head[tile.first_block..][..tile.pieces].iter_mut().rev();
            for (mass, sum) in blocks.zip(&mut newest_first) {
                *mass += sum * factor;
            }
            factor *= scale.unwrap_or(1.0);
        }
        return;
    }
    for tile in seen.iter().rev() {
        let (mut sums, scales);
        (kept, scales) = kept.split_at(kept.len() - if tile.scaled { rows } else { 0 });
        (kept, sums) = kept.split_at(kept.len() - tile.pieces * rows);
        for mass in &mut head[tile.first_block..][..tile.pieces] {
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
