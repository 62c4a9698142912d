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
use tile::Rows;
pub use tile::Tile;

use crate::arch::{PackedRows, Sum, kernels};
use crate::dtype::Dtype;
use crate::status::{Error, Result, bail, error};
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
        self.note(a);
        self.note(b);
        scales.iter().for_each(|scale| self.note(*scale));
        (self.first_block, self.pieces, self.scaled) = (self.next / self.block_tokens, 0, true);
    }

    fn note(&mut self, word: f32) {
        self.words[self.waiting as usize] = word;
        self.waiting += 1;
    }

    /// Moves the words that wait to the log, where there is room for them.
    fn flush(&mut self, log: &mut Vec<f32>) {
        put(log, &self.words[..std::mem::take(&mut self.waiting) as usize]);
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
    /// As its first tile has it.
    rows: Rows,
    /// What its tiles said of heads; 0 = nothing.
    heads: usize,
    /// Whether its rows are those of a prompt or of several heads is not known before the step ends.
    unsure: bool,
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

/// What finished heads add up to.
#[derive(Debug, Default)]
pub struct Sums {
    /// Heads finished since the start.
    pub heads: u64,
    /// Those of them that came in tiles which did not say how many heads they have: each may be several.
    pub unsaid: u64,
    /// Query rows that were counted.
    pub rows: u64,
    /// `[block]`: attention that the counted rows gave, as long as the highest block seen; numbers of 80 fraction bits
    /// ([`mass_to_f64`]).
    pub masses: Vec<u128>,
}

impl Sums {
    fn clear(&mut self) {
        (self.heads, self.unsaid, self.rows) = (0, 0, 0);
        self.masses.clear();
    }

    /// Makes room for `blocks` blocks, so that [`Sums::fit`] cannot fail.
    fn reserve(&mut self, blocks: usize) -> Result<()> {
        let more = blocks.saturating_sub(self.masses.len());
        memory::reserve(&mut self.masses, more)
    }

    /// Has `blocks` blocks.
    fn fit(&mut self, blocks: usize) -> Result<()> {
        if self.masses.len() < blocks { memory::resize(&mut self.masses, blocks) } else { Ok(()) }
    }

    /// Adds what came as one head. There is room for its blocks. A sum that stays at the end of the range is still the
    /// same in any order.
    fn add(&mut self, heads: usize, rows: usize, masses: &[f64]) {
        self.heads += heads.max(1) as u64;
        self.unsaid += u64::from(heads == 0);
        self.rows += rows as u64;
        self.masses.iter_mut().zip(masses).for_each(|(sum, mass)| *sum = sum.saturating_add(fixed(*mass)));
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
    most_decode_rows: usize,
    token_end: usize,
    sure: Sums,
    /// Heads whose rows are a prompt's or several heads', read as the one and as the other.
    as_prompt: Sums,
    as_group: Sums,

    // Working memory of the walk backwards.
    /// `[row]`: what the sums of the tile at hand are to be multiplied with.
    factors: Vec<f64>,
    /// `[block]`: the masses of one head; then the same for all its rows, where only some count in a prompt.
    blocks: Vec<f64>,
}

impl Accumulator {
    /// Forgets everything and keeps its memory.
    ///
    /// `block_tokens` are the tokens of a block (0 counts as 1), `max_tokens` the tokens a tile may reach to (at most
    /// 2^29). Only the last `last_rows` query rows of each head count: `usize::MAX` for all, 0 for none, when tiles are
    /// only checked and heads counted.
    pub fn start(&mut self, block_tokens: usize, max_tokens: usize, last_rows: usize) {
        self.start_step(block_tokens, max_tokens, last_rows, 0);
    }

    /// As [`Accumulator::start`], where all rows of a step of up to `most_decode_rows` rows per head count. Tiles of more
    /// rows that do not say how many heads they have are added up in both ways, since a step's rows are known at its end.
    pub fn start_step(&mut self, block_tokens: usize, max_tokens: usize, last_rows: usize, most_decode_rows: usize) {
        self.near.block_tokens = block_tokens.clamp(1, MOST_TOKENS) as u32;
        self.near.max_tokens = max_tokens.min(MOST_TOKENS) as u32;
        self.near.sum = None;
        self.head.open = false;
        (self.last_rows, self.most_decode_rows) = (last_rows, most_decode_rows);
        self.token_end = 0;
        [&mut self.sure, &mut self.as_prompt, &mut self.as_group].into_iter().for_each(Sums::clear);
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
        let is_later = self.head.open && !tile.first && tile.queries == self.head.rows.queries;
        let (rows, unsure) = if is_later { (self.head.rows, self.head.unsure) } else { self.rows_of(tile) };
        let in_order =
            if is_later { tile.token_begin == self.near.next as usize } else { tile.first && !self.head.open };
        if !(in_order && tile.is_sound(self.near.max_tokens as usize, &rows)) {
            return Err(self.refusal(tile, &rows));
        }
        let kept = if unsure { Rows::all(tile.queries) } else { rows };
        if tile.last {
            self.reserve_finish(tile.token_begin + tile.tokens, kept.counted(), unsure)?;
        }
        if kept.counted() > 0 {
            self.gather(tile, &kept)?;
        }
        let (end, block_tokens) = ((tile.token_begin + tile.tokens) as u32, self.near.block_tokens);
        if tile.first {
            let Head { open, rows: head_rows, heads, unsure: head_unsure, .. } = &mut self.head;
            (*open, *head_rows, *heads, *head_unsure) = (true, rows, tile.heads, unsure);
        }
        (self.near.next, self.near.left) = (end, block_tokens - end % block_tokens);
        self.near.sum = None;
        if tile.last {
            self.head.open = false;
            return self.finish(tile.row_sum, &kept);
        }
        if kept.counted() == tile.queries && tile.queries <= MOST_PLAIN_ROWS {
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

    /// Which rows of a head count, by its first tile, and whether all of them may, should they be several heads'.
    fn rows_of(&self, tile: &Tile<'_>) -> (Rows, bool) {
        let rows = Rows::last(tile.queries, tile.heads.max(1), self.last_rows);
        if tile.queries / tile.heads.max(1) <= self.most_decode_rows {
            (Rows::all(tile.queries), false)
        } else {
            (rows, self.most_decode_rows > 0 && tile.heads == 0 && rows.counted() < tile.queries)
        }
    }

    /// Heads finished since the start, as far as [`Accumulator::unsure`] has none.
    pub fn heads(&self) -> u64 {
        self.sure.heads
    }

    /// Query rows that were counted, over those heads.
    pub fn rows(&self) -> u64 {
        self.sure.rows
    }

    /// A head has begun and not ended.
    pub fn in_head(&self) -> bool {
        self.head.open
    }

    /// Attention that the counted rows of those heads gave to each block: `[block]`, as long as the highest block seen,
    /// numbers of 80 fraction bits ([`mass_to_f64`]). Summed over blocks it is [`Accumulator::rows`], where rows sum to 1.
    pub fn masses(&self) -> &[u128] {
        &self.sure.masses
    }

    /// What heads add up to whose rows are clear.
    pub fn sure(&self) -> &Sums {
        &self.sure
    }

    /// What heads add up to whose rows a prompt would have but for the last few, and several heads all of.
    pub fn unsure(&self, prompt: bool) -> &Sums {
        if prompt { &self.as_prompt } else { &self.as_group }
    }

    /// The highest token of all finished heads, plus 1.
    pub fn token_end(&self) -> usize {
        self.token_end
    }

    /// Why a tile that is not sound, or does not belong here, is not added.
    #[cold]
    fn refusal(&self, tile: &Tile<'_>, rows: &Rows) -> Error {
        let Head { open, rows: Rows { queries, .. }, .. } = self.head;
        if let Err(error) = tile.check(self.near.max_tokens as usize, rows) {
            error
        } else if !open {
            error!(
                InvalidArgument,
                "tile->flags has no FIRST (1), and no head has begun; the first tile of one expected"
            )
        } else if tile.first {
            error!(
                InvalidArgument,
                "tile->flags has FIRST (1), and the head before has not ended; a later tile expected"
            )
        } else if tile.queries != queries {
            error!(
                InvalidArgument,
                "tile->queries is {}; {queries} expected, as in the head's first tile", tile.queries
            )
        } else {
            error!(
                InvalidArgument,
                "tile->token_begin is {}; {} expected, where the head's tile before ends",
                tile.token_begin,
                self.near.next
            )
        }
    }

    /// Begins a run with a tile: keeps the sums of these rows, and their scales.
    fn gather(&mut self, tile: &Tile<'_>, rows: &Rows) -> Result<()> {
        let counted = rows.counted();
        let block_tokens = self.near.block_tokens as usize;
        let offset = tile.token_begin % block_tokens;
        let pieces = (offset + tile.tokens).div_ceil(block_tokens);
        let (near, log) = (&mut self.near, &mut self.head.log);
        if tile.first {
            log.clear();
            near.waiting = 0;
        }
        // For the end of the run before, this tile, and the end of its own run.
        let more = near.waiting as usize + Mark::WORDS + counted + Mark::WORDS;
        memory::reserve_amortized(log, pieces.saturating_mul(counted).saturating_add(more))?;
        if !tile.first {
            near.flush(log);
            put(log, &near.mark().words());
        }
        // What the first tile scales does not exist.
        let scales = tile.update_scale.filter(|_| !tile.first);
        if let Some(scales) = scales {
            rows.ranges().for_each(|range| put(log, &scales[range]));
        }
        (near.first_block, near.pieces) = ((tile.token_begin / block_tokens) as u32, pieces as u32);
        near.scaled = scales.is_some();
        let begin = log.len();
        memory::resize(log, begin + pieces * counted)?;
        sum_pieces(tile, rows, block_tokens, offset, &mut log[begin..]);
        Ok(())
    }

    /// Makes room for what [`Accumulator::finish`] writes: a last tile that is refused for want of memory may come again.
    fn reserve_finish(&mut self, end: usize, rows: usize, unsure: bool) -> Result<()> {
        let blocks = self.token_end.max(end).div_ceil(self.near.block_tokens as usize);
        self.blocks.clear();
        memory::reserve(&mut self.blocks, if unsure { 2 * blocks } else { blocks })?;
        self.factors.clear();
        memory::reserve(&mut self.factors, rows)?;
        if unsure {
            self.as_prompt.reserve(blocks)?;
            return self.as_group.reserve(blocks);
        }
        self.sure.reserve(blocks)
    }

    /// Walks over the head's tiles, last one first, and adds its masses to those of all heads. `kept`: the rows whose
    /// sums the log has.
    #[inline(never)]
    fn finish(&mut self, row_sum: Option<&[f32]>, kept: &Rows) -> Result<()> {
        let (rows, counted) = (kept.counted(), self.head.rows.counted());
        if rows > 0 {
            // There is room for it since the last tile came.
            put(&mut self.head.log, &self.near.mark().words());
        }
        let token_end = self.token_end.max(self.near.next as usize);
        let blocks = token_end.div_ceil(self.near.block_tokens as usize);
        let unsure = self.head.unsure;
        self.blocks.clear();
        memory::resize(&mut self.blocks, if unsure { 2 * blocks } else { blocks })?;
        let (ours, group) = self.blocks.split_at_mut(blocks);
        self.factors.clear();
        memory::resize(&mut self.factors, rows)?;
        let factors = &mut self.factors[..];
        if counted > 0 {
            set_factors(factors, row_sum, kept);
            walk_back(&self.head.log, rows, &mut factors[rows - counted..], ours);
        }
        if let Some(block) = ours.iter().position(|mass| !(0.0..HEAD_LIMIT).contains(mass)) {
            bail!(
                InvalidArgument,
                "attention to block {block} is {}; a number of 0 or more expected, about 1 per query row at most",
                ours[block]
            );
        }
        if unsure {
            self.as_prompt.fit(blocks)?;
            self.as_group.fit(blocks)?;
            set_factors(factors, row_sum, kept);
            walk_back(&self.head.log, rows, factors, group);
            self.as_prompt.add(0, counted, ours);
            // Rows of a prompt that do not count may hold anything; then the head is no group.
            if group.iter().all(|mass| (0.0..HEAD_LIMIT).contains(mass)) {
                self.as_group.add(0, rows, group);
            }
        } else {
            self.sure.fit(blocks)?;
            self.sure.add(self.head.heads, counted, ours);
        }
        self.token_end = token_end;
        Ok(())
    }
}

/// Appends words that there is room for.
fn put(log: &mut Vec<f32>, words: &[f32]) {
    #[expect(clippy::disallowed_methods, reason = "room is reserved when the tile comes")]
    log.extend_from_slice(words);
}

/// Makes `factors` what a head's last tile is multiplied with, for each row that is kept.
fn set_factors(factors: &mut [f64], row_sum: Option<&[f32]>, kept: &Rows) {
    factors.fill(1.0);
    let Some(sums) = row_sum else { return };
    let sums = kept.ranges().flat_map(|range| &sums[range]);
    factors.iter_mut().zip(sums).for_each(|(factor, sum)| *factor = 1.0 / f64::from(*sum));
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

/// Writes to `sums` (`[piece][row]`) what those rows of the tile sum to in each piece. The tile begins `offset` tokens
/// into a block.
fn sum_pieces(tile: &Tile<'_>, rows: &Rows, block_tokens: usize, offset: usize, mut sums: &mut [f32]) {
    let Tile { dtype, pack, queries, tokens: columns, data, .. } = *tile;
    let first_piece = 0..columns.min(block_tokens - offset);
    let mut shape = PackedRows { pack, rows: queries, columns, first_row: 0, range: first_piece };
    let kernels = kernels();
    let row_sums = match dtype {
        Dtype::F32 => kernels.row_sums_f32,
        Dtype::F16 => kernels.row_sums_f16,
        Dtype::Bf16 => kernels.row_sums_bf16,
        Dtype::Int8 => unreachable!("refused by Tile::check"),
    };
    while !shape.range.is_empty() {
        for rows in rows.ranges() {
            let piece;
            (piece, sums) = sums.split_at_mut(rows.len());
            shape.first_row = rows.start;
            // As many rows as there are sums for.
            row_sums(&shape, data, piece);
        }
        shape.range = shape.range.end..columns.min(shape.range.end.saturating_add(block_tokens));
    }
}

/// Adds to `head` (`[block]`) the masses of a head's tiles, by the last of its `rows` rows: as many as there are
/// `factors` (`[row]`), which are those of the last tile and become those of the first.
fn walk_back(mut log: &[f32], rows: usize, factors: &mut [f64], head: &mut [f64]) {
    let first = rows - factors.len();
    while let Some((rest, words)) = log.split_last_chunk() {
        let Mark { first_block, pieces, scaled } = Mark::from_words(words);
        let (mut sums, scales);
        (log, sums) = rest.split_at(rest.len() - pieces * rows);
        (log, scales) = log.split_at(log.len() - if scaled { rows } else { 0 });
        for mass in &mut head[first_block..][..pieces] {
            let piece;
            (piece, sums) = sums.split_at(rows);
            *mass += weighted(&piece[first..], factors);
        }
        for (factor, scale) in factors.iter_mut().zip(scales.iter().skip(first)) {
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
