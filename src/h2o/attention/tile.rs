//! What a host hands over of its softmax, and what is checked of it.

use crate::dtype::Dtype;
use crate::status::{Result, bail};
use std::ops::Range;

/// One softmax tile of one query head.
///
/// A row's attention to a token is its value, times the row's `update_scale` of every later tile of the head, divided
/// by the row's `row_sum`. Values that are normalised already have neither.
///
/// Tiles of a head come one after another, each beginning where the one before ends, and of any size; they need not begin
/// or end where blocks or packs do.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// Type of the values: F16, BF16 or F32.
    pub dtype: Dtype,
    /// Tokens that lie side by side: values are `[tokens / pack, rounded up][queries][pack]`, counted from the tile's
    /// own first token. 0 for plain rows, `[queries][tokens]`. Padding may hold anything.
    pub pack: usize,
    /// Query rows, at least 1 and the same in all tiles of a head.
    pub queries: usize,
    /// Heads that the rows belong to, `[heads][queries / heads]`; 0 = not said. Only that of a first tile is read.
    pub heads: usize,
    /// Tokens, at least 1.
    pub tokens: usize,
    /// Where the first of them is in the cache (in tokens).
    pub token_begin: usize,
    /// The first tile of a head.
    pub first: bool,
    /// The last tile of a head.
    pub last: bool,
    /// The values in the byte order of the machine, exactly [`Tile::data_bytes`], at any alignment.
    pub data: &'a [u8],
    /// `[queries]`: multiplies what the head gathered before this tile. That of a first tile may hold anything.
    pub update_scale: Option<&'a [f32]>,
    /// `[queries]`: divides the attention of the whole head. With the last tile only.
    pub row_sum: Option<&'a [f32]>,
}

/// The rows of a head that count: the last few, or the last few of each of several heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// Rows of its tiles.
    pub(super) queries: usize,
    per_head: usize,
    last: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Rows::all(0)
    }
}

impl Rows {
    pub(super) fn all(queries: usize) -> Self {
        Rows { queries, per_head: queries.max(1), last: queries }
    }

    /// The last of each of `heads` heads, which is at least 1.
    pub(super) fn last(queries: usize, heads: usize, last: usize) -> Self {
        let per_head = (queries / heads).max(1);
        if last >= per_head { Rows::all(queries) } else { Rows { queries, per_head, last } }
    }

    pub(super) fn counted(&self) -> usize {
        self.queries / self.per_head * self.last
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Rows { queries, per_head, last } = *self;
        (1..=queries / per_head).map(move |head| head * per_head - last..head * per_head)
    }
}

impl Tile<'_> {
    /// Bytes of a tile's values; `None` where the number does not fit.
    #[inline]
    pub fn data_bytes(dtype: Dtype, pack: usize, queries: usize, tokens: usize) -> Option<usize> {
        let columns = match pack {
            0 => tokens,
            // All that hosts have; a division would be a good part of what a short tile costs.
            _ if pack.is_power_of_two() => tokens.checked_add(pack - 1)? & !(pack - 1),
            _ => tokens.checked_next_multiple_of(pack)?,
        };
        columns.checked_mul(queries)?.checked_mul(dtype.bytes())
    }

    /// Whether [`Tile::check`] finds nothing: the same questions, asked quickly.
    #[inline]
    pub(super) fn is_sound(&self, max_tokens: usize, rows: &Rows) -> bool {
        let all = |values: &[f32], good: fn(f32) -> bool| rows.ranges().all(|range| all(&values[range], good));
        self.dtype != Dtype::Int8
            && self.queries > 0
            && self.tokens > 0
            && (self.heads <= 1 || self.queries.is_multiple_of(self.heads))
            && self.token_begin.checked_add(self.tokens).is_some_and(|end| end <= max_tokens)
            && Tile::data_bytes(self.dtype, self.pack, self.queries, self.tokens) == Some(self.data.len())
            && self.update_scale.is_none_or(|scale| scale.len() == self.queries && (self.first || all(scale, is_scale)))
            && self.row_sum.is_none_or(|sums| self.last && sums.len() == self.queries && all(sums, is_sum))
    }

    /// Checks what can be said of a tile by itself. Rows that do not count may hold anything.
    #[cold]
    pub(super) fn check(&self, max_tokens: usize, rows: &Rows) -> Result<()> {
        let Tile { dtype, pack, queries, heads, tokens, token_begin, .. } = *self;
        if dtype == Dtype::Int8 {
            bail!(Unsupported, "tile->dtype is {}; F16, BF16 or F32 expected", dtype.name());
        }
        if queries == 0 {
            bail!(InvalidArgument, "tile->queries is 0; at least 1 expected");
        }
        if tokens == 0 {
            bail!(InvalidArgument, "tile->tokens is 0; at least 1 expected");
        }
        if token_begin.checked_add(tokens).is_none_or(|end| end > max_tokens) {
            bail!(
                InvalidArgument,
                "tile->token_begin is {token_begin} and tile->tokens {tokens}; an end of {max_tokens} or less expected"
            );
        }
        if heads > 1 && !queries.is_multiple_of(heads) {
            bail!(InvalidArgument, "tile->queries is {queries}; a multiple of tile->heads, {heads}, expected");
        }
        let (name, given) = (dtype.name(), self.data.len());
        match Tile::data_bytes(dtype, pack, queries, tokens) {
            None => {
                bail!(InvalidArgument, "tile->data cannot hold {queries} rows of {tokens} tokens, {name}, pack {pack}")
            }
            Some(bytes) if bytes != given => bail!(
                InvalidArgument,
                "tile->data holds {given} bytes; {bytes} expected ({queries} rows of {tokens} tokens, {name}, pack {pack})"
            ),
            _ => {}
        }
        for (name, given) in [("update_scale", self.update_scale), ("row_sum", self.row_sum)] {
            if let Some(given) = given.filter(|given| given.len() != queries) {
                bail!(
                    InvalidArgument,
                    "tile->{name} holds {} values; {queries} expected, one per query row",
                    given.len()
                );
            }
        }
        if self.row_sum.is_some() && !self.last {
            bail!(
                InvalidArgument,
                "tile->row_sum is given and tile->flags has no LAST (2); only a head's last tile may have it"
            );
        }
        let first_bad = |values: Option<&[f32]>, good: fn(f32) -> bool| {
            let values = values?;
            rows.ranges().flatten().map(|row| (row, values[row])).find(|(_, value)| !good(*value))
        };
        if let Some((row, sum)) = first_bad(self.row_sum, is_sum) {
            bail!(InvalidArgument, "tile->row_sum[{row}] is {sum}; a finite number above 0 expected");
        }
        let scale = if self.first { None } else { self.update_scale };
        if let Some((row, scale)) = first_bad(scale, is_scale) {
            bail!(InvalidArgument, "tile->update_scale[{row}] is {scale}; a finite number of 0 or more expected");
        }
        Ok(())
    }
}

#[inline]
pub(super) fn is_scale(scale: f32) -> bool {
    (0.0..f32::INFINITY).contains(&scale)
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

/// Looks at every value, so that it can look at several at once.
#[inline(never)]
fn all_of_many(values: &[f32], good: impl Fn(f32) -> bool) -> bool {
    values.iter().fold(true, |all, value| all & good(*value))
}
