//! Sketches of blocks: each key as 4-bit codes of its parts along the main directions of its head. They tell how much
//! attention a block would get while its codes are in a file.
//!
//! Sketches are in the file, too, those of blocks that were written one after the other side by side, so that a step reads
//! many at once. 16 directions of heads of 64 dims, which are enough at 2,600 tokens, miss what queries ask for at 7,600: half of
//! the blocks by them cost SmolLM2 1.14 to 1.51 times the perplexity on tasks that need old tokens, by 32 directions 1.00. Gemma 3
//! with 256 dims has 1.81, 1.03 and 0.97 with 16, 32 and 64. Bounds and means of sets of keys were far worse than 16.
//!
//! A key element that is NaN counts as 0, and one beyond ±65,504 as that bound.

use super::basis::{Basis, short, widen};
use crate::arch::attend::BLOCK;
use crate::arch::estimates::{LANES, MOST_DIRECTIONS, PANEL, ROWS_ABREAST, STRIPE, SketchRow, SketchTiles};
use crate::arch::kernels;
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Blocks whose sketches lie together in a file, at most.
pub const GROUP: usize = 16;
/// The largest magnitude of a key element.
const LARGEST: f32 = 65_504.0;
/// Bytes of the checksum of a sketch.
const SUM: usize = size_of::<u64>();

/// Directions of the sketches of heads of so many dims.
pub(super) const fn directions(dims: usize) -> usize {
    if dims <= 128 { STRIPE } else { MOST_DIRECTIONS }
}

/// Where a file has the sketches of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sketches {
    /// The offset of that of the first head.
    pub first: u64,
    /// Bytes from that of a head to the next one.
    pub stride: u32,
}

/// Room in a file for sketches of blocks to come, `[head][block]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    next: Sketches,
    /// Blocks that there is room for.
    left: usize,
}

impl Sketches {
    /// Bytes of a sketch in a file, its checksum included.
    pub const fn bytes(dims: usize) -> usize {
        BLOCK / LANES * SketchTiles::rows(directions(dims)) * LANES + SUM
    }

    /// The offset of that of a head.
    pub(super) fn of(&self, head: usize) -> u64 {
        self.first + head as u64 * u64::from(self.stride)
    }

    /// The places of all.
    pub fn places(self, heads: usize, dims: usize) -> impl Iterator<Item = Range<u64>> {
        let place = move |head| self.of(head)..self.of(head) + Sketches::bytes(dims) as u64;
        (0..heads).map(place)
    }
}

impl Group {
    /// Without room.
    pub const NONE: Group = Group { next: Sketches { first: 0, stride: 0 }, left: 0 };

    /// Bytes of a group of so many blocks.
    pub(super) const fn bytes(blocks: usize, heads: usize, dims: usize) -> u64 {
        (blocks * heads * Sketches::bytes(dims)) as u64
    }

    /// One of so many blocks at an offset.
    pub(super) fn new(first: u64, blocks: usize, dims: usize) -> Self {
        Group { next: Sketches { first, stride: (blocks * Sketches::bytes(dims)) as u32 }, left: blocks }
    }

    /// Where the sketches of the next block go. Without room a new group of so many blocks, of some heads and dims, is at the offset
    /// that `place` finds for its bytes.
    pub fn next(
        &mut self,
        blocks: usize,
        (heads, dims): (usize, usize),
        place: impl FnOnce(u64) -> Result<u64>,
    ) -> Result<Sketches> {
        if self.left == 0 {
            *self = Group::new(place(Group::bytes(blocks, heads, dims))?, blocks, dims);
        }
        Ok(self.next)
    }

    /// The next block has taken its place.
    pub fn advance(&mut self, dims: usize) {
        self.next.first += Sketches::bytes(dims) as u64;
        self.left -= 1;
    }

    /// The places that no block has taken.
    pub fn rest(self, (heads, dims): (usize, usize)) -> impl Iterator<Item = Range<u64>> {
        let len = (self.left * Sketches::bytes(dims)) as u64;
        let place = move |head| self.next.of(head)..self.next.of(head) + len;
        (0..heads).map(place)
    }
}

/// An element of a key as it is sketched.
pub(super) fn tame(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-LARGEST, LARGEST) }
}

/// Appends the sketch of the keys `[token][dim]` of a head of a block to the bytes of a file. `centred` is room for a key, and `sum`
/// the checksum of its codes, which seeds that of the sketch.
///
/// With `z` the parts of `key - mean` along the directions, in f32, the scale of a token is `bf16(max |z| / 7)`, and its
/// codes are `z / scale` to the nearest integer, ties to even, within ±7.
pub(super) fn put(
    keys: &[f32],
    (basis, head): (&Basis, usize),
    sum: u64,
    centred: &mut [f32],
    to: &mut Vec<u8>,
) -> Result<()> {
    let (mean, dims, begin) = (basis.mean(head), centred.len(), to.len());
    memory::resize(to, begin + Sketches::bytes(dims))?;
    let (rows, end) = to[begin..].split_at_mut(Sketches::bytes(dims) - SUM);
    let tiles = rows.as_chunks_mut::<LANES>().0.chunks_exact_mut(SketchTiles::rows(directions(dims)));
    for (keys, tile) in keys.chunks_exact(LANES * dims).zip(tiles) {
        let (codes, scales) = tile.split_at_mut(directions(dims) / 2);
        for (lane, key) in keys.chunks_exact(dims).enumerate() {
            centred.iter_mut().zip(key.iter().zip(mean)).for_each(|(x, (key, mean))| *x = tame(*key) - mean);
            let mut parts = [[0.0; PANEL]; MOST_DIRECTIONS / PANEL];
            for (parts, panel) in parts.iter_mut().zip(basis.panels(head)) {
                *parts = (kernels().estimates.project)(centred, panel);
            }
            let largest = parts.as_flattened().iter().fold(0.0f32, |most, z| most.max(z.abs()));
            let scale = widen(short(largest / 7.0));
            for (pairs, parts) in codes.as_chunks_mut::<{ PANEL / 2 }>().0.iter_mut().zip(&parts) {
                let (low, high) = parts.split_at(PANEL / 2);
                for (pair, (low, high)) in pairs.iter_mut().zip(low.iter().zip(high)) {
                    pair[lane] = code_of(*low, scale) as u8 & 15 | (code_of(*high, scale) as u8) << 4;
                }
            }
            scales.as_flattened_mut()[2 * lane..][..2].copy_from_slice(&((scale.to_bits() >> 16) as u16).to_le_bytes());
        }
    }
    end.copy_from_slice(&xxh3_64_with_seed(rows, sum).to_le_bytes());
    Ok(())
}

/// The sketch of a head of a block whose codes have the checksum `sum`, from the bytes of a file. `None`: it has others.
pub fn read(bytes: &mut [u8], sum: u64, dims: usize) -> Option<SketchTiles<'_>> {
    let (rows, end) = bytes.split_at_mut_checked(bytes.len().checked_sub(SUM)?)?;
    if end != xxh3_64_with_seed(rows, sum).to_le_bytes() {
        return None;
    }
    let (rows, directions) = (rows.as_chunks_mut::<LANES>().0, directions(dims));
    if cfg!(target_endian = "big") {
        for tile in rows.chunks_exact_mut(SketchTiles::rows(directions)) {
            tile[directions / 2..].as_flattened_mut().chunks_exact_mut(2).for_each(<[u8]>::reverse);
        }
    }
    Some(SketchTiles { directions, rows })
}

/// A query vector, already times the factor of logits, as the kernel takes it.
pub(super) fn row(query: &[f32], basis: &Basis, head: usize) -> SketchRow {
    let mut parts = [0.0; MOST_DIRECTIONS];
    for (parts, panel) in parts.as_chunks_mut::<PANEL>().0.iter_mut().zip(basis.panels(head)) {
        *parts = (kernels().estimates.project)(query, panel);
    }
    SketchRow::new(&parts, query.iter().zip(basis.mean(head)).map(|(x, mean)| x * mean).sum())
}

/// The log of the sum of `exp(logit)` over a block, for each row; `rows` are [`ROWS_ABREAST`] at most. Of one that is not above
/// `least` the greatest that it may be.
pub(super) fn log_masses(
    sketch: &SketchTiles<'_>,
    rows: &[SketchRow],
    least: impl Fn(usize) -> f32,
) -> [f32; ROWS_ABREAST] {
    const TILES: usize = BLOCK / LANES;
    let kernels = &kernels().estimates;
    let (mut logits, mut peaks) = ([[0.0; LANES]; ROWS_ABREAST * TILES], [f32::MIN; ROWS_ABREAST]);
    (kernels.sketch)(sketch, rows, &mut logits[..rows.len() * TILES], &mut peaks[..rows.len()]);
    let mut logs = [f32::NEG_INFINITY; ROWS_ABREAST];
    let most = (BLOCK as f32).ln();
    for (row, log) in logs[..rows.len()].iter_mut().enumerate() {
        *log = peaks[row] + most;
        if *log > least(row) {
            *log = peaks[row] + (kernels.mass)(&logits[row * TILES..][..TILES], peaks[row]).ln();
        }
    }
    logs
}

/// The code of a number: `x / scale` to the nearest integer, ties to even, within ±7; 0 if the scale is 0.
fn code_of(x: f32, scale: f32) -> i8 {
    // The sum rounds to an integer, which its lower bits then hold: a vector operation, unlike `round_ties_even` on old CPUs.
    if scale == 0.0 { 0 } else { ((x / scale).clamp(-7.0, 7.0) + 12_582_912.0).to_bits() as i8 }
}
