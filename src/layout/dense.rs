//! Between packed buffers and dense rows `[head][token][dim]`.

use super::plane::{Plane, Tile};
use super::{Layout, TokenRange, by_element};
use crate::arch::{self, Element, Transposition};
use crate::status::{Error, Result, bail};

/// Copies a range of tokens out of a packed cache.
///
/// `key_out` and `value_out` hold at least [`Layout::dense_key_bytes`] and [`Layout::dense_value_bytes`] of the
/// range; bytes after that are untouched.
pub fn gather(
    layout: &Layout,
    key: &[u8],
    value: &[u8],
    range: TokenRange,
    key_out: &mut [u8],
    value_out: &mut [u8],
) -> Result<()> {
    layout.check_buffers(key, value)?;
    let (key_len, value_len) = (layout.dense_key_bytes(range.count), layout.dense_value_bytes(range.count));
    for (given, needed) in [(key_out.len(), key_len), (value_out.len(), value_len)] {
        if given < needed {
            return Err(Error::too_small("cap_each (bytes)", given, needed));
        }
    }
    gather_plane(&layout.key, key, range, &mut key_out[..key_len]);
    gather_plane(&layout.value, value, range, &mut value_out[..value_len]);
    Ok(())
}

/// Copies dense rows into a range of tokens of a packed cache; the inverse of [`gather`]. The inputs have exactly
/// the sizes of the range.
pub fn scatter(
    layout: &Layout,
    key_in: &[u8],
    value_in: &[u8],
    range: TokenRange,
    key: &mut [u8],
    value: &mut [u8],
) -> Result<()> {
    layout.check_buffers(key, value)?;
    let (key_len, value_len) = (layout.dense_key_bytes(range.count), layout.dense_value_bytes(range.count));
    for (name, given, expected) in [("key_in", key_in.len(), key_len), ("value_in", value_in.len(), value_len)] {
        if given != expected {
            bail!(InvalidArgument, "{name} has {given} bytes; {expected} expected for {} tokens", range.count);
        }
    }
    scatter_plane(&layout.key, key_in, range, key);
    scatter_plane(&layout.value, value_in, range, value);
    Ok(())
}

fn gather_plane(plane: &Plane, packed: &[u8], range: TokenRange, dense: &mut [u8]) {
    by_element!(plane, gather_elements(range), packed, dense)
}

fn scatter_plane(plane: &Plane, dense: &[u8], range: TokenRange, packed: &mut [u8]) {
    by_element!(plane, scatter_elements(range), dense, packed)
}

fn gather_elements<T: Element>(plane: &Plane, packed: &[T], dense: &mut [T], range: TokenRange) {
    if range.count == 0 {
        return;
    }
    let dims = plane.dims();
    let transpose = T::transpose(arch::kernels());
    for (head, rows) in plane.head_ranges().zip(dense.chunks_exact_mut(range.count * dims)) {
        let packed = &packed[head];
        for span in plane.spans(range) {
            plane.tiles(span, |tile| {
                let rows = &mut rows[tile.at * dims + tile.dim..];
                if tile.dim_stride == 1 {
                    copy_rows(&packed[tile.start..], tile.token_stride, rows, dims, &tile);
                } else {
                    transpose(&dims_to_rows(&tile, dims), &packed[tile.start..], rows);
                }
            });
        }
    }
}

fn scatter_elements<T: Element>(plane: &Plane, dense: &[T], packed: &mut [T], range: TokenRange) {
    if range.count == 0 {
        return;
    }
    let dims = plane.dims();
    let transpose = T::transpose(arch::kernels());
    for (head, rows) in plane.head_ranges().zip(dense.chunks_exact(range.count * dims)) {
        let packed = &mut packed[head];
        for span in plane.spans(range) {
            plane.tiles(span, |tile| {
                let rows = &rows[tile.at * dims + tile.dim..];
                if tile.dim_stride == 1 {
                    copy_rows(rows, dims, &mut packed[tile.start..], tile.token_stride, &tile);
                } else {
                    transpose(&rows_to_dims(&tile, dims), rows, &mut packed[tile.start..]);
                }
            });
        }
    }
}

/// One piece of `tile.dims` elements per token, at the given strides. The usual sizes are constants.
#[inline]
fn copy_rows<T: Copy>(src: &[T], src_stride: usize, dst: &mut [T], dst_stride: usize, tile: &Tile) {
    match tile.dims {
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
