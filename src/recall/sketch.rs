//! Sketches: each key as 4-bit codes of its parts along the main directions of its head.

use super::basis::Basis;
use super::{code_of, scale_of, set_short, tame};
use crate::arch::estimates::{DIRECTIONS, SketchRow, SketchTile, high_weight, low_weight};
use crate::arch::{estimates::LANES, kernels};

/// A tile without tokens.
pub const EMPTY: SketchTile =
    SketchTile { codes: [[0; LANES]; DIRECTIONS / 2], scales: [NO_TOKEN.to_ne_bytes(); LANES] };
/// Upper half of -1.0.
const NO_TOKEN: u16 = 0xBF80;

/// Writes the sketches of keys `[token][dim]` of a head, from lane `first` on. `centred` is room for a key.
///
/// With `z` the parts of `key - mean` along the directions, in f32, the scale of a token is `bf16(max |z| / 7)`, and its
/// codes are `z / scale` to the nearest integer, ties to even, within ±7.
///
/// # Panics
/// If the tiles have too few lanes.
pub fn write(keys: &[f32], basis: &Basis, head: usize, centred: &mut [f32], first: usize, tiles: &mut [SketchTile]) {
    let (mean, directions) = (basis.mean(head), basis.directions(head));
    for (token, key) in keys.chunks_exact(mean.len()).enumerate().map(|(token, key)| (first + token, key)) {
        centred.iter_mut().zip(key.iter().zip(mean)).for_each(|(x, (key, mean))| *x = tame(*key) - mean);
        let parts = (kernels().estimates.project)(centred, directions);
        let scale = scale_of(parts.iter().fold(0.0, |most, z| most.max(z.abs())), 7.0);
        let (tile, lane) = (&mut tiles[token / LANES], token % LANES);
        let code = |d: usize| code_of(parts[d], scale, -7.0, 7.0) as u8;
        for (d, pair) in tile.codes.iter_mut().enumerate() {
            pair[lane] = code(d) & 15 | code(d + DIRECTIONS / 2) << 4;
        }
        set_short(&mut tile.scales, lane, scale);
    }
}

/// Leaves no token in a lane.
pub fn erase(tile: &mut SketchTile, lane: usize) {
    tile.scales[lane] = NO_TOKEN.to_ne_bytes();
}

/// A query row, already times the factor of logits, as the kernel takes it.
pub fn row(query: &[f32], basis: &Basis, head: usize) -> SketchRow {
    let kernels = &kernels().estimates;
    let parts = (kernels.project)(query, basis.directions(head));
    let mut base = [0.0];
    (kernels.dots)(query, basis.mean(head), query.len(), &mut base);
    let weight = |d| if d < DIRECTIONS / 2 { low_weight(parts[d]) } else { high_weight(parts[d]) };
    SketchRow { weights: std::array::from_fn(weight), base: base[0] }
}
