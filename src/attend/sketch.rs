//! Sketches of blocks: each key as 4-bit codes of its parts along the main directions of its head. They tell how much
//! attention a block would get while its codes are in a file.
//!
//! A key element that is NaN counts as 0, and one beyond ±65,504 as that bound.

use super::basis::Basis;
use crate::arch::attend::BLOCK;
use crate::arch::estimates::{DIRECTIONS, LANES, ROWS_ABREAST, SketchRow, SketchTile, high_weight, low_weight};
use crate::arch::kernels;

/// The sketch of a head of a block: 10 bytes a token.
pub type Sketch = [SketchTile; BLOCK / LANES];

/// The largest magnitude of a key element.
const LARGEST: f32 = 65_504.0;
/// A sketch before it is filled.
pub const NO_SKETCH: Sketch = [EMPTY; BLOCK / LANES];
const EMPTY: SketchTile = SketchTile { codes: [[0; LANES]; DIRECTIONS / 2], scales: [[0; 2]; LANES] };

/// An element of a key as it is sketched.
pub(super) fn tame(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-LARGEST, LARGEST) }
}

/// The sketch of keys `[token][dim]` of a head. `centred` is room for a key.
///
/// With `z` the parts of `key - mean` along the directions, in f32, the scale of a token is `bf16(max |z| / 7)`, and its
/// codes are `z / scale` to the nearest integer, ties to even, within ±7.
pub(super) fn sketch(keys: &[f32], basis: &Basis, head: usize, centred: &mut [f32]) -> Sketch {
    let (mean, directions) = (basis.mean(head), basis.directions(head));
    let mut tiles = NO_SKETCH;
    for (token, key) in keys.chunks_exact(mean.len()).enumerate() {
        centred.iter_mut().zip(key.iter().zip(mean)).for_each(|(x, (key, mean))| *x = tame(*key) - mean);
        let parts = (kernels().estimates.project)(centred, directions);
        let (tile, lane) = (&mut tiles[token / LANES], token % LANES);
        let (codes, scale) = codes(&parts);
        tile.codes.iter_mut().zip(codes).for_each(|(pair, code)| pair[lane] = code);
        tile.scales[lane] = scale;
    }
    tiles
}

/// The codes of a key's parts along the directions, and their scale.
pub(super) fn codes(parts: &[f32; DIRECTIONS]) -> ([u8; DIRECTIONS / 2], [u8; 2]) {
    let scale = scale_of(parts.iter().fold(0.0, |most, z| most.max(z.abs())), 7.0);
    let code = |d: usize| code_of(parts[d], scale, -7.0, 7.0) as u8;
    let codes = std::array::from_fn(|d| code(d) & 15 | code(d + DIRECTIONS / 2) << 4);
    (codes, ((scale.to_bits() >> 16) as u16).to_ne_bytes())
}

/// The parts of a key, as its codes have them.
pub(super) fn key(sketch: &Sketch, token: usize) -> [f32; DIRECTIONS] {
    let (tile, lane) = (&sketch[token / LANES], token % LANES);
    let scale = f32::from_bits(u32::from(u16::from_ne_bytes(tile.scales[lane])) << 16);
    std::array::from_fn(|d| {
        let pair = tile.codes[d % (DIRECTIONS / 2)][lane];
        let code = if d < DIRECTIONS / 2 { (pair << 4) as i8 >> 4 } else { pair as i8 >> 4 };
        scale * f32::from(code)
    })
}

/// A query vector, already times the factor of logits, as the kernel takes it.
pub(super) fn row(query: &[f32], basis: &Basis, head: usize) -> SketchRow {
    let kernels = &kernels().estimates;
    let parts = (kernels.project)(query, basis.directions(head));
    let mut base = [0.0];
    (kernels.dots)(query, basis.mean(head), query.len(), &mut base);
    let weight = |d| if d < DIRECTIONS / 2 { low_weight(parts[d]) } else { high_weight(parts[d]) };
    SketchRow { weights: std::array::from_fn(weight), base: base[0] }
}

/// The parts of a query vector along the directions.
pub(super) fn parts(row: &SketchRow) -> [f32; DIRECTIONS] {
    let factors = [1.0 / low_weight(1.0), 1.0 / high_weight(1.0)];
    std::array::from_fn(|d| row.weights[d] * factors[d / (DIRECTIONS / 2)])
}

/// The log of the sum of `exp(logit)` over a block, for each row; `rows` are [`ROWS_ABREAST`] at most.
pub(super) fn log_masses(sketch: &Sketch, rows: &[SketchRow]) -> [f32; ROWS_ABREAST] {
    const TILES: usize = BLOCK / LANES;
    let kernels = &kernels().estimates;
    let (mut logits, mut peaks) = ([[0.0; LANES]; ROWS_ABREAST * TILES], [f32::MIN; ROWS_ABREAST]);
    (kernels.sketch)(sketch, rows, &mut logits[..rows.len() * TILES], &mut peaks[..rows.len()]);
    let mut logs = [f32::NEG_INFINITY; ROWS_ABREAST];
    for (row, log) in logs[..rows.len()].iter_mut().enumerate() {
        let mut mass = [0.0];
        (kernels.masses)(&logits[row * TILES..][..TILES], peaks[row], BLOCK, &mut mass);
        *log = peaks[row] + mass[0].ln();
    }
    logs
}

/// The scale of codes up to `codes` for magnitudes up to `largest`: their ratio in bf16, to nearest, ties to even.
fn scale_of(largest: f32, codes: f32) -> f32 {
    let bits = (largest / codes).to_bits();
    f32::from_bits((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF_0000)
}

/// The code of a number: `x / scale` to the nearest integer, ties to even, within `low..=high`; 0 if the scale is 0.
fn code_of(x: f32, scale: f32, low: f32, high: f32) -> i8 {
    if scale == 0.0 { 0 } else { nearest((x / scale).clamp(low, high)) }
}

/// The nearest integer to a number within ±127, ties to even.
fn nearest(x: f32) -> i8 {
    // The sum rounds to an integer, which its lower bits then hold: a vector operation, unlike `round_ties_even` on old CPUs.
    (x + 12_582_912.0).to_bits() as i8
}
