//! Sums of a tile's rows over its pieces: the one place where every value is touched.
//!
//! Values are widened to f32 and summed in several lanes that do not wait for one another, in loops that compilers
//! turn into vectors. The order of additions is fixed, so equal tiles have equal sums everywhere.

use super::Tile;
use super::value::{Bf16, F16, F32, Value};
use crate::dtype::Dtype;
use std::ops::Range;

/// Sums of contiguous values go to this many lanes.
const LANES: usize = 16;
/// Packs of tokens that are summed at once: few enough streams for any cache, enough that adding up the lanes of a
/// pack, once per row, is little.
const PACKS: usize = 4;

/// Adds to `sums` (`[piece][row]`) what the rows of `tile` from `first_row` on sum to in each piece. The first piece
/// has `first_piece` tokens, each further one `block_tokens` or what is left.
#[inline]
pub(super) fn add_pieces(
    tile: &Tile<'_>,
    first_row: usize,
    first_piece: usize,
    block_tokens: usize,
    mut sums: &mut [f32],
) {
    let mut tokens = 0..first_piece;
    while tokens.start < tile.tokens {
        let piece;
        (piece, sums) = sums.split_at_mut(tile.queries - first_row);
        match tile.dtype {
            Dtype::F32 => add_rows::<F32, 4>(tile, first_row, tokens.clone(), piece),
            Dtype::F16 => add_rows::<F16, 2>(tile, first_row, tokens.clone(), piece),
            Dtype::Bf16 => add_rows::<Bf16, 2>(tile, first_row, tokens.clone(), piece),
            Dtype::Int8 => unreachable!("refused by Tile::check"),
        }
        tokens = tokens.end..tile.tokens.min(tokens.end.saturating_add(block_tokens));
    }
}

/// Adds the values of `tokens` (counted in the tile) to the sums of their rows.
#[inline]
fn add_rows<V: Value<N>, const N: usize>(tile: &Tile<'_>, first_row: usize, tokens: Range<usize>, sums: &mut [f32]) {
    let values = tile.data.as_chunks::<N>().0;
    // One row has its tokens side by side, however they are packed.
    if tile.queries == 1 {
        sums[0] += sum::<V, N>(&values[tokens]);
        return;
    }
    match tile.pack {
        0 => {
            for (row, total) in values.chunks_exact(tile.tokens).skip(first_row).zip(sums) {
                *total += sum::<V, N>(&row[tokens.clone()]);
            }
        }
        4 => add_packs::<V, N, 4>(values, tile.queries, first_row, tokens, sums),
        8 => add_packs::<V, N, 8>(values, tile.queries, first_row, tokens, sums),
        16 => add_packs::<V, N, 16>(values, tile.queries, first_row, tokens, sums),
        pack => {
            for token in tokens {
                let column = &values[token / pack * tile.queries * pack + token % pack..];
                for (value, total) in column.iter().step_by(pack).skip(first_row).zip(&mut *sums) {
                    *total += V::widen(*value) * V::UNIT;
                }
            }
        }
    }
}

/// The sum of contiguous values.
#[inline]
fn sum<V: Value<N>, const N: usize>(values: &[[u8; N]]) -> f32 {
    let mut total = 0.0;
    for values in values.chunks(V::MAX_RUN) {
        let (parts, rest) = values.as_chunks::<LANES>();
        let mut lanes = [0.0; LANES];
        for part in parts {
            for (lane, value) in lanes.iter_mut().zip(part) {
                *lane += V::widen(*value);
            }
        }
        total += across(lanes) * V::UNIT;
        if !rest.is_empty() {
            total += short_sum::<V, N>(rest) * V::UNIT;
        }
    }
    total
}

/// The sum of less than [`LANES`] values, in the unit of widened ones.
fn short_sum<V: Value<N>, const N: usize>(values: &[[u8; N]]) -> f32 {
    let (parts, rest) = values.as_chunks::<4>();
    let mut lanes = [0.0; 4];
    for part in parts {
        for (lane, value) in lanes.iter_mut().zip(part) {
            *lane += V::widen(*value);
        }
    }
    rest.iter().fold(across(lanes), |sum, value| sum + V::widen(*value))
}

/// [`add_rows`] for values `[pack of P tokens][row][P]`.
fn add_packs<V: Value<N>, const N: usize, const P: usize>(
    values: &[[u8; N]],
    queries: usize,
    first_row: usize,
    tokens: Range<usize>,
    sums: &mut [f32],
) {
    let packs = values.as_chunks::<P>().0;
    let mut token = tokens.start;
    while token < tokens.end {
        let (index, lane) = (token / P, token % P);
        let whole = ((tokens.end - token) / P).min(PACKS);
        if lane == 0 && whole > 0 {
            add_whole::<V, N, P>(&packs[index * queries..(index + whole) * queries], queries, first_row, sums);
            token += whole * P;
        } else {
            let end = P.min(lane + (tokens.end - token));
            add_part::<V, N, P>(&packs[index * queries + first_row..(index + 1) * queries], lane..end, sums);
            token += end - lane;
        }
    }
}

/// Adds whole packs, `[pack][row]`, to the sums of their rows.
fn add_whole<V: Value<N>, const N: usize, const P: usize>(
    packs: &[[[u8; N]; P]],
    queries: usize,
    first_row: usize,
    sums: &mut [f32],
) {
    for (row, total) in (first_row..queries).zip(sums) {
        let mut lanes = [0.0; P];
        let mut at = row;
        while at < packs.len() {
            for (lane, value) in lanes.iter_mut().zip(&packs[at]) {
                *lane += V::widen(*value);
            }
            at += queries;
        }
        *total += across(lanes) * V::UNIT;
    }
}

/// Adds some `lanes` of a pack, `[row]`, to the sums of its rows.
fn add_part<V: Value<N>, const N: usize, const P: usize>(pack: &[[[u8; N]; P]], lanes: Range<usize>, sums: &mut [f32]) {
    // The others are taken out by their bits: they belong to another piece, or they are padding and may be NaN.
    let mask: [u32; P] = std::array::from_fn(|i| if lanes.contains(&i) { u32::MAX } else { 0 });
    for (values, total) in pack.iter().zip(sums) {
        let lanes = std::array::from_fn::<_, P, _>(|i| f32::from_bits(V::widen(values[i]).to_bits() & mask[i]));
        *total += across(lanes) * V::UNIT;
    }
}

/// The sum of all lanes, a power of two, by halves.
#[inline(always)]
fn across<const P: usize>(mut lanes: [f32; P]) -> f32 {
    let mut half = P / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}
