//! Exact attention mass per block of tokens, from the tiles of a flash attention.
//!
//! The values of a tile are right up to a factor per query row: each later tile may scale down all before it, and the
//! divisor comes with the last. To scale the earlier values with each tile would cost as much as the attention saves.
//! So the log of a head keeps the sum of each row over each *piece* (a tile's share of one block) and the scales of
//! each tile. With the last tile one walk backwards turns them into masses. Memory is `rows * (pieces + tiles)` f32,
//! at most twice that while it grows, and never `rows * tokens`.
//!
//! | file | job |
//! |---|---|
//! | `tile` | [`CheckedTile`]: the checks of a tile by itself |
//! | `mod` | [`Accumulator`]: the checks of a tile within its head |
//! | `fast` | the path of plain decode tiles |
//! | `rows` | rows that count, and their sums per piece |
//! | `log` | what is kept of a head |
//! | `block_sums` | [`BlockSums`]: what a host has summed itself |
//! | `exact` | the walk backwards, and masses in fixed point |

mod block_sums;
mod exact;
mod fast;
mod log;
#[cfg(test)]
mod owned;
mod rows;
#[cfg(test)]
mod tests;
mod tile;

use crate::status::{Error, Result, bail, error};
pub use block_sums::{BlockSums, SumFields};
use exact::Finished;
pub use exact::{Missing, Sums, mass_to_f64};
use fast::{Near, is_scale};
use log::{Log, Run};
#[cfg(test)]
pub(crate) use owned::OwnedTile;
use rows::Rows;
pub use tile::{CheckedTile, MAX_TOKENS, Tile, TileFields, TileSource, data_bytes};

/// The head under way.
#[derive(Default)]
struct Head {
    open: bool,
    /// As of its first tile.
    rows: Rows,
    /// As its first tile says; 0 = not said.
    heads: usize,
    /// Whether its rows are a prompt's or several heads' depends on the step's rows, which its end says.
    ambiguous: bool,
    log: Log,
}

/// The sums of one lane over the tiles of one step of one layer.
///
/// Masses are integers, so the sum over lanes is the same to the bit whichever lane had which head.
#[derive(Default)]
#[repr(C)]
pub struct Accumulator {
    near: Near,
    head: Head,
    last_rows: usize,
    most_decode_rows: usize,
    finished: Finished,
}

/// The places where a tile does not fit its head.
#[derive(Clone, Copy)]
enum Misfit {
    NoFirst,
    First,
    Queries,
    Begin,
    RowSum,
    UpdateScale,
}

impl Accumulator {
    /// Drops all sums and any open head. Retains the memory.
    ///
    /// `block_tokens`: tokens of a block; 0 counts as 1. Only the last `last_rows` query rows of each head count:
    /// `usize::MAX` for all, 0 for none, when tiles are only checked and heads counted. All rows of a step of up to
    /// `most_decode_rows` rows per head count. Tiles of more rows without a number of heads are summed both ways
    /// ([`Accumulator::ambiguous`]), since a step's rows are known at its end.
    pub fn start(&mut self, block_tokens: usize, last_rows: usize, most_decode_rows: usize) {
        self.near.start(block_tokens);
        self.head.open = false;
        (self.last_rows, self.most_decode_rows) = (last_rows, most_decode_rows);
        self.finished.clear();
    }

    /// Adds the next tile of a head; with the last one the masses of the head.
    ///
    /// A tile that is refused changes nothing, with one exception: a head whose masses turn out to be NaN, infinite or
    /// negative with its last tile is dropped.
    #[inline(always)]
    pub fn add(&mut self, tile: &CheckedTile<'_>) -> Result<()> {
        if self.add_plain(tile) {
            return Ok(());
        }
        // A copy, so that the tile itself can stay in registers.
        let tile = *tile;
        self.add_any(&tile)
    }

    /// As [`Accumulator::add`], for a plain tile (see `fast`). Returns `false` for any other, without a change.
    #[inline(always)]
    pub fn add_plain(&mut self, tile: &CheckedTile<'_>) -> bool {
        self.near.add(tile)
    }

    /// As [`Accumulator::add`], of any tile.
    #[inline(never)]
    pub fn add_any(&mut self, tile: &CheckedTile<'_>) -> Result<()> {
        let is_later = self.head.open && !tile.first;
        let (rows, ambiguous) = if is_later { (self.head.rows, self.head.ambiguous) } else { self.rows_of(tile) };
        if let Some(misfit) = self.misfit(tile, &rows) {
            return Err(self.refusal(tile, &rows, misfit));
        }
        let kept = if ambiguous { Rows::all(tile.queries) } else { rows };
        let (end, block_tokens) = (tile.end(), self.near.block_tokens());
        if tile.last {
            self.finished.reserve(end, block_tokens, kept.counted(), ambiguous)?;
        }
        if kept.counted() > 0 {
            self.gather(tile, &kept)?;
        }
        if tile.first {
            let Head { open, rows: head_rows, heads, ambiguous: head_ambiguous, .. } = &mut self.head;
            (*open, *head_rows, *heads, *head_ambiguous) = (true, rows, tile.heads, ambiguous);
        }
        self.near.follow(end);
        if tile.last {
            self.head.open = false;
            return self.finished.add(&self.head, end, block_tokens, tile.row_sum, &kept);
        }
        if kept.counted() == tile.queries {
            self.near.expect_plain(tile.dtype, tile.queries, &mut self.head.log);
        }
        Ok(())
    }

    /// Adds block sums of a host. A head whose tiles are under way is not concerned.
    /// INVALID_ARGUMENT: if `blocks` has another size or an attention is NaN or negative. The masses are unchanged then.
    pub fn add_sums(&mut self, sums: &BlockSums<'_>) -> Result<()> {
        let (given, expected) = (sums.block_tokens, self.near.block_tokens());
        if given != expected {
            bail!(InvalidArgument, "sums->block_tokens is {given}; {expected} expected, that of scored_rows");
        }
        self.finished.add_sums(sums)
    }

    /// The rows of a head that count, by its first tile, and whether that is ambiguous.
    fn rows_of(&self, tile: &CheckedTile<'_>) -> (Rows, bool) {
        let rows = Rows::last(tile.queries, tile.heads.max(1), self.last_rows);
        if tile.queries / tile.heads.max(1) <= self.most_decode_rows {
            (Rows::all(tile.queries), false)
        } else {
            (rows, self.most_decode_rows > 0 && tile.heads == 0 && rows.counted() < tile.queries)
        }
    }

    /// The checks of a tile within its head, whose rows count as `rows` says. Scales and sums of other rows may be
    /// anything, and so may the scales of a first tile.
    #[inline]
    fn misfit(&self, tile: &CheckedTile<'_>, rows: &Rows) -> Option<Misfit> {
        let all = |values: &[f32], good: fn(f32) -> bool| rows.ranges().all(|range| all(&values[range], good));
        if self.head.open == tile.first {
            Some(if tile.first { Misfit::First } else { Misfit::NoFirst })
        } else if tile.queries != rows.queries {
            Some(Misfit::Queries)
        } else if !tile.first && tile.token_begin != self.near.next() {
            Some(Misfit::Begin)
        } else if tile.row_sum.is_some_and(|sums| !all(sums, is_sum)) {
            Some(Misfit::RowSum)
        } else if !tile.first && tile.update_scale.is_some_and(|scales| !all(scales, is_scale)) {
            Some(Misfit::UpdateScale)
        } else {
            None
        }
    }

    #[cold]
    #[inline(never)]
    fn refusal(&self, tile: &CheckedTile<'_>, rows: &Rows, misfit: Misfit) -> Error {
        let first_bad = |values: Option<&[f32]>, good: fn(f32) -> bool| {
            let mut values = rows.ranges().flatten().filter_map(|row| Some((row, *values?.get(row)?)));
            values.find(|(_, value)| !good(*value)).unwrap_or_default()
        };
        match misfit {
            Misfit::NoFirst => error!(
                InvalidArgument,
                "tile->flags has no FIRST (1), and no head has begun; the first tile of one expected"
            ),
            Misfit::First => error!(
                InvalidArgument,
                "tile->flags has FIRST (1), and the head before has not ended; a later tile expected"
            ),
            Misfit::Queries => error!(
                InvalidArgument,
                "tile->queries is {}; {} expected, as in the head's first tile", tile.queries, rows.queries
            ),
            Misfit::Begin => error!(
                InvalidArgument,
                "tile->token_begin is {}; {} expected, where the head's tile before ends",
                tile.token_begin,
                self.near.next()
            ),
            Misfit::RowSum => {
                let (row, sum) = first_bad(tile.row_sum, is_sum);
                error!(InvalidArgument, "tile->row_sum[{row}] is {sum}; a finite number above 0 expected")
            }
            Misfit::UpdateScale => {
                let (row, scale) = first_bad(tile.update_scale, is_scale);
                error!(InvalidArgument, "tile->update_scale[{row}] is {scale}; a finite number of 0 or more expected")
            }
        }
    }

    /// Begins a run with a tile: the log keeps the sums of these rows, and their scales.
    fn gather(&mut self, tile: &CheckedTile<'_>, rows: &Rows) -> Result<()> {
        let counted = rows.counted();
        let block_tokens = self.near.block_tokens();
        let offset = tile.token_begin as usize % block_tokens;
        let pieces = (offset + tile.tokens).div_ceil(block_tokens);
        let (near, log) = (&mut self.near, &mut self.head.log);
        if tile.first {
            log.clear();
            near.clear();
        }
        let (words, runs) = near.waiting();
        // The run under way ends now, and that of this tile later.
        log.reserve(pieces.saturating_add(1).saturating_mul(counted).saturating_add(words), runs + 2)?;
        if !tile.first {
            near.flush(log);
        }
        // A first tile has nothing to scale.
        let scales = tile.update_scale.filter(|_| !tile.first);
        if let Some(scales) = scales {
            rows.ranges().for_each(|range| log.put(&scales[range]));
        }
        let first_block = tile.token_begin / block_tokens as u32;
        near.set_run(Run { first_block, pieces: pieces as u32, scaled: scales.is_some() });
        rows.sum_pieces(tile, block_tokens, offset, log.grow(pieces * counted));
        if tile.last {
            near.flush(log);
        }
        Ok(())
    }

    /// A head has begun and not ended.
    pub fn in_head(&self) -> bool {
        self.head.open
    }

    /// Sums over the finished heads whose rows are certain.
    pub fn sums(&self) -> &Sums {
        &self.finished.sums
    }

    /// Sums over the others: as heads of a prompt, of which the last rows count, or as groups of heads, of which all
    /// rows count.
    pub fn ambiguous(&self, prompt: bool) -> &Sums {
        if prompt { &self.finished.as_prompt } else { &self.finished.as_group }
    }

    /// The tokens and last parts that split rows lack.
    pub fn missing(&self) -> Missing {
        self.finished.missing
    }

    /// The token after the last of all finished heads.
    pub fn token_end(&self) -> usize {
        self.finished.token_end as usize
    }
}

#[inline]
fn is_sum(sum: f32) -> bool {
    (f32::from_bits(1)..f32::INFINITY).contains(&sum)
}

/// Whether all values are good.
#[inline]
fn all(values: &[f32], good: impl Fn(f32) -> bool) -> bool {
    match values {
        [value] => good(*value),
        _ => all_of_many(values, good),
    }
}

/// Does not stop at the first bad one, so that it compiles to SIMD.
#[inline(never)]
fn all_of_many(values: &[f32], good: impl Fn(f32) -> bool) -> bool {
    values.iter().fold(true, |all, value| all & good(*value))
}
