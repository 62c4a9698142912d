//! Between packed buffers and dense rows `[head][token][row]`.

use super::panels;
use super::plane::{Plane, Tile};
use super::tensor::{Part, Tensor};
use super::{Cache, CacheRef, TokenRange, int8};
use crate::arch::{self, Element, Transposition};
use crate::status::{Error, Result, bail};

/// Copies `tokens` tokens of every head between rows `[head][token][row]`, which may be of other tokens, too. A place is the
/// first token, and the tokens of the rows.
pub fn copy_dense<T: Copy>(
    heads: usize,
    tokens: usize,
    (from, from_place): (&[T], (usize, usize)),
    (to, to_place): (&mut [T], (usize, usize)),
) {
    if tokens == 0 {
        return;
    }
    let (row, (from_at, from_len), (to_at, to_len)) = (from.len() / heads / from_place.1, from_place, to_place);
    for (to, from) in to.chunks_exact_mut(to_len * row).zip(from.chunks_exact(from_len * row)) {
        to[to_at * row..][..tokens * row].copy_from_slice(&from[from_at * row..][..tokens * row]);
    }
}

/// Copies a range of tokens out of a packed cache.
///
/// `key_out` and `value_out` hold at least [`Rows::key_bytes`](super::Rows::key_bytes) and
/// [`Rows::value_bytes`](super::Rows::value_bytes) of the range; bytes after that are untouched. A row of INT8 K is its
/// codes, scale, bias and key sum.
pub fn gather(cache: &CacheRef<'_>, range: TokenRange, key_out: &mut [u8], value_out: &mut [u8]) -> Result<()> {
    let layout = cache.layout;
    let (key_len, value_len) = (layout.dense_key_bytes(range.count), layout.dense_value_bytes(range.count));
    for (given, needed) in [(key_out.len(), key_len), (value_out.len(), value_len)] {
        if given < needed {
            return Err(Error::too_small("cap_each (bytes)", given, needed));
        }
    }
    if range.is_empty() {
        return Ok(());
    }
    gather_keys(cache, range, &mut key_out[..key_len]);
    gather_tensor(&layout.value, cache.value, range, &mut value_out[..value_len]);
    Ok(())
}

/// [`gather`] of one head of floating-point elements: rows `[token][row]`, of exactly the bytes of the range. Returns false past
/// the last head.
pub fn gather_head(
    cache: &CacheRef<'_>,
    head: u32,
    range: TokenRange,
    key_out: &mut [u8],
    value_out: &mut [u8],
) -> bool {
    let Some((key, value)) = cache.layout.head(head) else { return false };
    gather_rows(&cache.layout.key, &cache.key[key], range, key_out);
    gather_rows(&cache.layout.value, &cache.value[value], range, value_out);
    true
}

/// Copies the keys of a range of tokens, which is not empty; `out` has exactly their bytes.
pub(super) fn gather_keys(cache: &CacheRef<'_>, range: TokenRange, out: &mut [u8]) {
    gather_tensor(&cache.layout.key, cache.key, range, out);
    if let Some(sums) = &cache.layout.key_sums {
        gather_tensor(sums, cache.key_sums, range, out);
    }
}

/// Copies dense rows into a range of tokens of a packed cache; the inverse of [`gather`]. The inputs have exactly
/// the sizes of the range. The value blocks of INT8 V get the scales of the first one; its value sums stay, see
/// [`changed`](super::changed).
pub fn scatter(cache: &mut Cache<'_>, range: TokenRange, key_in: &[u8], value_in: &[u8]) -> Result<()> {
    let layout = cache.layout;
    let (key_len, value_len) = (layout.dense_key_bytes(range.count), layout.dense_value_bytes(range.count));
    for (name, given, expected) in [("key_in", key_in.len(), key_len), ("value_in", value_in.len(), value_len)] {
        if given != expected {
            bail!(InvalidArgument, "{name} has {given} bytes; {expected} expected for {} tokens", range.count);
        }
    }
    if range.is_empty() {
        return Ok(());
    }
    scatter_tensor(&layout.key, key_in, range, cache.key);
    if let Some(sums) = &layout.key_sums {
        scatter_tensor(sums, key_in, range, cache.key_sums);
    }
    scatter_tensor(&layout.value, value_in, range, cache.value);
    int8::appended(cache, range);
    Ok(())
}

fn gather_tensor(tensor: &Tensor, packed: &[u8], range: TokenRange, dense: &mut [u8]) {
    let len = dense.len() / tensor.heads();
    for (head, rows) in tensor.head_ranges().zip(dense.chunks_exact_mut(len)) {
        gather_rows(tensor, &packed[head], range, rows);
    }
}

/// Copies packed bytes of one head to dense rows.
fn gather_rows(tensor: &Tensor, packed: &[u8], range: TokenRange, rows: &mut [u8]) {
    let stride = rows.len() / range.count;
    for Part { plane, column } in tensor.parts() {
        let rows = &mut rows[*column..];
        match plane.element_bytes {
            1 if panels::are_in(plane) => panels::gather(plane, packed, rows, stride, range),
            1 => gather_elements(plane, packed.as_chunks::<1>().0, rows.as_chunks_mut::<1>().0, stride, range),
            2 => gather_elements(plane, packed.as_chunks::<2>().0, rows.as_chunks_mut::<2>().0, stride / 2, range),
            _ => gather_elements(plane, packed.as_chunks::<4>().0, rows.as_chunks_mut::<4>().0, stride / 4, range),
        }
    }
}

fn scatter_tensor(tensor: &Tensor, dense: &[u8], range: TokenRange, packed: &mut [u8]) {
    let len = dense.len() / tensor.heads();
    for (head, rows) in tensor.head_ranges().zip(dense.chunks_exact(len)) {
        scatter_rows(tensor, rows, range, &mut packed[head]);
    }
}

/// Copies dense rows of one head into its packed bytes.
pub(super) fn scatter_rows(tensor: &Tensor, rows: &[u8], range: TokenRange, packed: &mut [u8]) {
    let stride = rows.len() / range.count;
    for Part { plane, column } in tensor.parts() {
        let rows = &rows[*column..];
        match plane.element_bytes {
            1 if panels::are_in(plane) => panels::scatter(plane, packed, rows, stride, range),
            1 => scatter_elements(plane, packed.as_chunks_mut::<1>().0, rows.as_chunks::<1>().0, stride, range),
            2 => scatter_elements(plane, packed.as_chunks_mut::<2>().0, rows.as_chunks::<2>().0, stride / 2, range),
            _ => scatter_elements(plane, packed.as_chunks_mut::<4>().0, rows.as_chunks::<4>().0, stride / 4, range),
        }
    }
}

/// `stride`: elements from one row to the next. The first row begins at the part's column.
fn gather_elements<T: Element>(plane: &Plane, packed: &[T], rows: &mut [T], stride: usize, range: TokenRange) {
    let transpose = T::transpose(arch::kernels());
    for span in plane.spans(range) {
        plane.tiles(span, |tile| {
            let rows = &mut rows[tile.at * stride + tile.dim..];
            if tile.dim_stride == 1 {
                copy_rows(&packed[tile.start..], tile.token_stride, rows, stride, &tile);
            } else {
                transpose(&dims_to_rows(&tile, stride), &packed[tile.start..], rows);
            }
        });
    }
}

/// The inverse of [`gather_elements`].
fn scatter_elements<T: Element>(plane: &Plane, packed: &mut [T], rows: &[T], stride: usize, range: TokenRange) {
    let transpose = T::transpose(arch::kernels());
    for span in plane.spans(range) {
        plane.tiles(span, |tile| {
            let rows = &rows[tile.at * stride + tile.dim..];
            if tile.dim_stride == 1 {
                copy_rows(rows, stride, &mut packed[tile.start..], tile.token_stride, &tile);
            } else {
                transpose(&rows_to_dims(&tile, stride), rows, &mut packed[tile.start..]);
            }
        });
    }
}

/// One piece of `tile.dims` elements per token, at the given strides. The usual sizes are constants.
#[inline]
fn copy_rows<T: Copy>(src: &[T], src_stride: usize, dst: &mut [T], dst_stride: usize, tile: &Tile) {
    match tile.dims {
        2 => copy_fixed::<T, 2>(src, src_stride, dst, dst_stride, tile.tokens),
        4 => copy_fixed::<T, 4>(src, src_stride, dst, dst_stride, tile.tokens),
        8 => copy_fixed::<T, 8>(src, src_stride, dst, dst_stride, tile.tokens),
        16 => copy_fixed::<T, 16>(src, src_stride, dst, dst_stride, tile.tokens),
        n => {
            for (d, s) in dst.chunks_mut(dst_stride).zip(src.chunks(src_stride)).take(tile.tokens) {
                d[..n].copy_from_slice(&s[..n]);
            }
        }
    }
}

#[inline]
fn copy_fixed<T: Copy, const N: usize>(src: &[T], src_stride: usize, dst: &mut [T], dst_stride: usize, rows: usize) {
    let (mut d, mut s) = (0, 0);
    for _ in 0..rows {
        dst[d..d + N].copy_from_slice(&src[s..s + N]);
        (d, s) = (d + dst_stride, s + src_stride);
    }
}

/// A tile whose neighbours are tokens, to rows of dims `row_stride` apart.
fn dims_to_rows(tile: &Tile, row_stride: usize) -> Transposition {
    Transposition { rows: tile.dims, columns: tile.tokens, src_stride: tile.dim_stride, dst_stride: row_stride }
}

/// The inverse of [`dims_to_rows`].
fn rows_to_dims(tile: &Tile, row_stride: usize) -> Transposition {
    Transposition { rows: tile.tokens, columns: tile.dims, src_stride: row_stride, dst_stride: tile.dim_stride }
}
