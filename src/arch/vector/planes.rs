//! Rows of words to planes and back: a transpose of bytes whose target rows are dealt out to the planes.

use super::{Vector, merge2, merge4, split2, split4};
use crate::arch::portable::{self, row_count};
use std::mem::MaybeUninit;

/// Columns of a block, in bytes: what a part of a vector holds.
const COLUMNS: usize = 16;

/// The highest band: rows that are finished before the next ones. It stays for a while in each of the pages of a block's
/// planes.
const BAND: usize = 256;

/// Bytes of a band, about. A quarter of its cache lines are still in the cache for the next block of columns.
const BAND_BYTES: usize = 32 << 10;

/// The part of each plane in a block of columns, for one band.
#[repr(align(64))]
struct Tile {
    _planes: [[u8; BAND]; COLUMNS],
}

impl Tile {
    const OFFSETS: &Offsets = &{
        let mut offsets = [0; COLUMNS];
        let mut i = 0;
        while i < COLUMNS {
            offsets[i] = i * BAND;
            i += 1;
        }
        offsets
    };
}

/// The starts of the planes of a block's columns, from that of its first column.
type Offsets = [usize; COLUMNS];

fn offsets<const N: usize>(n: usize, row_len: usize) -> Offsets {
    std::array::from_fn(|k| (k % N * row_len + k / N) * n)
}

/// First rows and heights of bands that cover `n` rows of `row` bytes. None is lower than a vector, so the last may
/// overlap.
fn bands<V: Vector>(n: usize, row: usize) -> impl Iterator<Item = (usize, usize)> {
    let height = (BAND_BYTES / row / 64 * 64).clamp(64, BAND);
    let first = move |r: usize| r.min(n - V::LEN);
    (0..n).step_by(height).map(move |r| (first(r), height.min(n - first(r))))
}

/// First columns of blocks that cover a row; the last may overlap.
fn columns(row: usize) -> impl Iterator<Item = usize> {
    (0..row).step_by(COLUMNS).map(move |c| c.min(row - COLUMNS))
}

/// Whether the same places of neighbouring planes compete for the same few cache lines, which then leave the cache before
/// vectors shorter than a line have filled them. Then a tile is filled, and copied plane by plane.
fn compete<V: Vector>(n: usize) -> bool {
    V::LEN < 64 && (n + 32) % 2048 < 64
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn planes<V: Vector, const N: usize>(src: &[u8], row_len: usize, dst: &mut [u8]) {
    let (n, row) = (row_count::<N>(src, row_len, dst), row_len * N);
    match (row_len, N) {
        (1, 1) => return dst.copy_from_slice(src),
        // SAFETY: the caller's.
        (1, 2) => return unsafe { split2::<V>(src, dst) },
        // SAFETY: the caller's.
        (1, 4) => return unsafe { split4::<V>(src, dst) },
        _ if n < 16 || row < COLUMNS => return portable::planes::<N>(src, row_len, dst),
        _ if n < V::LEN => return V::below().planes::<N>()(src, row_len, dst),
        _ => {}
    }
    let (offsets, tiled) = (offsets::<N>(n, row_len), compete::<V>(n));
    let mut tile = MaybeUninit::<Tile>::uninit();
    let tile = tile.as_mut_ptr().cast::<u8>();
    for (r, height) in bands::<V>(n, row) {
        for c in columns(row) {
            // SAFETY: rows r .. r + height and columns c .. c + 16 are inside the matrix; c is a multiple of N, so
            // column c + k is plane k % N of word c / N + k / N, whose bytes r .. r + height are inside `dst`. A tile
            // has room for BAND bytes of 16 planes, and is filled before it is read.
            unsafe {
                let from = src.as_ptr().add(r * row + c);
                let to = dst.as_mut_ptr().add(c / N * n + r);
                let (target, target_offsets) = if tiled { (tile, Tile::OFFSETS) } else { (to, &offsets) };
                to_planes::<V>(from, row, height, target, target_offsets);
                if tiled {
                    copy::<V>(tile, Tile::OFFSETS, height, to, &offsets);
                }
            }
        }
    }
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn unplanes<V: Vector, const N: usize>(src: &[u8], row_len: usize, dst: &mut [u8]) {
    let (n, row) = (row_count::<N>(src, row_len, dst), row_len * N);
    match (row_len, N) {
        (1, 1) => return dst.copy_from_slice(src),
        // SAFETY: the caller's.
        (1, 2) => return unsafe { merge2::<V>(src, dst) },
        // SAFETY: the caller's.
        (1, 4) => return unsafe { merge4::<V>(src, dst) },
        _ if n < 16 || row < COLUMNS => return portable::unplanes::<N>(src, row_len, dst),
        _ if n < V::LEN => return V::below().unplanes::<N>()(src, row_len, dst),
        _ => {}
    }
    let (offsets, tiled) = (offsets::<N>(n, row_len), compete::<V>(n));
    let mut tile = MaybeUninit::<Tile>::uninit();
    let tile = tile.as_mut_ptr().cast::<u8>();
    for (r, height) in bands::<V>(n, row) {
        for c in columns(row) {
            // SAFETY: as in `planes`, the other way.
            unsafe {
                let from = src.as_ptr().add(c / N * n + r);
                let to = dst.as_mut_ptr().add(r * row + c);
                let (mut source, mut source_offsets) = (from, &offsets);
                if tiled {
                    copy::<V>(from, &offsets, height, tile, Tile::OFFSETS);
                    (source, source_offsets) = (tile.cast_const(), Tile::OFFSETS);
                }
                to_rows::<V>(source, source_offsets, height, to, row);
            }
        }
    }
}

/// 16 columns of a band.
///
/// # Safety
/// See [`Vector`]; there are `height` rows of 16 bytes, at least a vector of them, and as many bytes of 16 planes.
#[inline(always)]
unsafe fn to_planes<V: Vector>(from: *const u8, row: usize, height: usize, to: *mut u8, offsets: &Offsets) {
    let mut r = 0;
    while r < height {
        let first = r.min(height - V::LEN);
        // SAFETY: first + LEN <= height.
        unsafe {
            let mut v = [V::zero(); COLUMNS];
            for (i, v) in v.iter_mut().enumerate() {
                *v = V::load_parts(from.add((first + i) * row), COLUMNS * row);
            }
            for (v, offset) in turned(v).into_iter().zip(offsets) {
                v.store(to.add(offset + first));
            }
        }
        r += V::LEN;
    }
}

/// The inverse of [`to_planes`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn to_rows<V: Vector>(from: *const u8, offsets: &Offsets, height: usize, to: *mut u8, row: usize) {
    let mut r = 0;
    while r < height {
        let first = r.min(height - V::LEN);
        // SAFETY: first + LEN <= height.
        unsafe {
            let mut v = [V::zero(); COLUMNS];
            for (v, offset) in v.iter_mut().zip(offsets) {
                *v = V::load(from.add(offset + first));
            }
            for (i, v) in turned(v).into_iter().enumerate() {
                v.store_parts(to.add((first + i) * row), COLUMNS * row);
            }
        }
        r += V::LEN;
    }
}

/// `height` bytes of 16 planes.
///
/// # Safety
/// See [`Vector`]; there are that many bytes, at least a vector, from each of the offsets.
#[inline(always)]
unsafe fn copy<V: Vector>(from: *const u8, offsets: &Offsets, height: usize, to: *mut u8, to_offsets: &Offsets) {
    for (from_offset, to_offset) in offsets.iter().zip(to_offsets) {
        let mut r = 0;
        while r < height {
            let first = r.min(height - V::LEN);
            // SAFETY: first + LEN <= height.
            unsafe { V::load(from.add(from_offset + first)).store(to.add(to_offset + first)) };
            r += V::LEN;
        }
    }
}

/// Transposes 16 x 16 bytes in each part: interleaving each vector with the one eight places further, four times.
///
/// # Safety
/// See [`Vector`].
#[inline(always)]
unsafe fn turned<V: Vector>(mut v: [V; COLUMNS]) -> [V; COLUMNS] {
    for _ in 0..4 {
        let before = v;
        for i in 0..COLUMNS / 2 {
            // SAFETY: the caller's.
            unsafe {
                v[2 * i] = before[i].zip_lo::<1>(before[i + COLUMNS / 2]);
                v[2 * i + 1] = before[i].zip_hi::<1>(before[i + COLUMNS / 2]);
            }
        }
    }
    v
}
