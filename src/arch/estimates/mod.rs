//! Estimates of attention from sketches of keys: dot products with 4-bit codes, and sums of exponentials.
//!
//! Each kernel is written once, over 16 lanes. A level implements [`Sixteen`] for its vectors; arrays of 16 floats
//! define every operation. Lanes never mix except in [`Sixteen::sum`], whose order is fixed, and sums of codes are of integers.
//! So results are the same to the bit at every level.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(super) mod neon;

/// Lanes of a vector, and codes or tokens side by side.
pub const LANES: usize = 16;
/// Query rows that a kernel takes at once.
pub const ROWS_ABREAST: usize = 4;
/// Directions whose codes lie together.
pub const PANEL: usize = LANES;
/// Directions whose products are summed at once: two panels.
pub const STRIPE: usize = 2 * PANEL;
/// Most directions of a sketch; it has whole stripes.
pub const MOST_DIRECTIONS: usize = 64;

/// 4-bit codes of 16 columns for two rows: the first in the lower half of each byte, in two's complement.
pub type CodePair = [u8; LANES];

/// Upper 16 bits of floats, in the byte order of the machine.
pub type Shorts = [[u8; 2]; LANES];

/// Sketches of keys.
#[derive(Clone, Copy, Debug)]
pub struct SketchTiles<'a> {
    /// Directions, in whole stripes.
    pub directions: usize,
    /// Of each 16 tokens [`SketchTiles::rows`]: codes of the directions `d` of a panel, and of `d + 8` in the upper halves in two's
    /// complement, then the next panel's; then in two of them the units of each token's codes, as [`Shorts`] are.
    pub rows: &'a [CodePair],
}

impl SketchTiles<'_> {
    /// Rows of 16 tokens.
    pub const fn rows(directions: usize) -> usize {
        directions / 2 + size_of::<Shorts>() / LANES
    }

    /// Times 16 tokens.
    pub fn tiles(&self) -> usize {
        self.rows.len() / SketchTiles::rows(self.directions)
    }
}

/// The factors of a row for the codes of a stripe.
#[derive(Clone, Copy)]
pub struct Weights {
    /// Of the directions whose codes are in the lower halves of two rows of [`CodePair`] each, and of those in the upper ones.
    pub(super) low: [[i8; 2]; STRIPE / 4],
    pub(super) high: [[i8; 2]; STRIPE / 4],
    /// -8 times their sum, without its carry: what is missing to a sum of codes that are greater by 8.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) offset: i16,
}

/// A query row against sketches.
#[derive(Clone, Copy)]
pub struct SketchRow {
    weights: [Weights; MOST_DIRECTIONS / STRIPE],
    /// What a weight of 1 is.
    unit: f32,
    /// The logit of the mean key.
    base: f32,
}

impl SketchRow {
    /// Of a row's parts along the directions, each rounded to 1 / 127 of the largest.
    pub fn new(parts: &[f32; MOST_DIRECTIONS], base: f32) -> Self {
        let largest = parts.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let (inverse, unit) = if largest > LEAST_PART { (127.0 / largest, largest / 127.0) } else { (0.0, 0.0) };
        let weights = std::array::from_fn(|stripe| {
            let of = |d: usize| (parts[stripe * STRIPE + d] * inverse).round_ties_even() as i8;
            let pair = |at: usize| at / 4 * PANEL + at % 4 * 2;
            let low = std::array::from_fn(|at| [of(pair(at)), of(pair(at) + 1)]);
            let high = std::array::from_fn(|at| [of(pair(at) + PANEL / 2), of(pair(at) + PANEL / 2 + 1)]);
            let sum: i32 = (0..STRIPE).map(|d| i32::from(of(d))).sum();
            Weights { low, high, offset: (-8 * sum) as i16 }
        });
        SketchRow { weights, unit, base }
    }
}

/// Rows whose parts are no larger have no weights.
const LEAST_PART: f32 = 1e-18;

/// See [`EstimateKernels::sketch`].
type SketchLogits = fn(tiles: &SketchTiles<'_>, rows: &[SketchRow], logits: &mut [[f32; LANES]], peaks: &mut [f32]);
/// The kernels of estimates. Rows of a call are [`ROWS_ABREAST`] at most. Logits are `[row][tile]`.
#[derive(Clone, Copy)]
pub struct EstimateKernels {
    /// Returns `sum over d of row[d] * basis[d]`, in the order of `d`.
    pub project: fn(row: &[f32], basis: &[Shorts]) -> [f32; LANES],
    /// The logits of sketched tokens: `scale * (sum(weight * code) * unit) + base`. Raises the peak of each row to its largest
    /// logit.
    pub sketch: SketchLogits,
    /// The sum of `exp(logit - peak)`. `peak` is finite, and no logit is above it.
    pub mass: fn(logits: &[[f32; LANES]], peak: f32) -> f32,
}

/// 16 floats.
///
/// # Safety
/// Every function needs the CPU features of its implementation.
pub(super) trait Sixteen: Copy {
    /// Rows whose sums stay in registers, [`ROWS_ABREAST`] at most.
    const ROWS: usize;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: &[f32; LANES]) -> Self;
    unsafe fn store(self, to: &mut [f32; LANES]);
    /// Floats from their upper halves.
    unsafe fn widen(from: &Shorts) -> Self;
    /// The sums of codes times the weights of each row, over a stripe. They fit 16 bits.
    unsafe fn code_sums<const ROWS: usize>(pairs: &[CodePair; STRIPE / 2], weights: [&Weights; ROWS]) -> [Self; ROWS];
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self > other ? self : other`.
    unsafe fn max(self, other: Self) -> Self;
    /// `self < limit ? 0 : other`.
    unsafe fn unless_less(self, limit: Self, other: Self) -> Self;
    /// The bits plus those of `other` shifted up by 23, without carry out.
    unsafe fn add_exponent(self, other: Self) -> Self;
    /// The sum of lanes: of both halves, then of both halves of those sums, and so on.
    unsafe fn sum(self) -> f32;
}

impl Sixteen for [f32; LANES] {
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: &[f32; LANES]) -> Self {
        *from
    }
    #[inline(always)]
    unsafe fn store(self, to: &mut [f32; LANES]) {
        *to = self;
    }
    #[inline(always)]
    unsafe fn widen(from: &Shorts) -> Self {
        from.map(|half| f32::from_bits(u32::from(u16::from_ne_bytes(half)) << 16))
    }
    #[inline(always)]
    unsafe fn code_sums<const ROWS: usize>(pairs: &[CodePair; STRIPE / 2], weights: [&Weights; ROWS]) -> [Self; ROWS] {
        let mut sums = [[0i16; LANES]; ROWS];
        for (at, two) in pairs.as_chunks::<2>().0.iter().enumerate() {
            for (half, pair) in two.iter().enumerate() {
                let [low, high] = [pair.map(|pair| (pair << 4) as i8 >> 4), pair.map(|pair| pair as i8 >> 4)];
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    let [a, b] = [weights.low[at][half], weights.high[at][half]].map(i16::from);
                    for ((sum, low), high) in sums.iter_mut().zip(low).zip(high) {
                        *sum += a * i16::from(low) + b * i16::from(high);
                    }
                }
            }
        }
        sums.map(|sums| sums.map(f32::from))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] + other[i])
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] * other[i])
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        std::array::from_fn(|i| if self[i] > other[i] { self[i] } else { other[i] })
    }
    #[inline(always)]
    unsafe fn unless_less(self, limit: Self, other: Self) -> Self {
        std::array::from_fn(|i| if self[i] < limit[i] { 0.0 } else { other[i] })
    }
    #[inline(always)]
    unsafe fn add_exponent(self, other: Self) -> Self {
        std::array::from_fn(|i| f32::from_bits(self[i].to_bits().wrapping_add(other[i].to_bits() << 23)))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        super::across(self)
    }
}

/// The kernels of every CPU.
pub(super) const PORTABLE: EstimateKernels = {
    macro_rules! safe {
        ($kernel:ident($($arg:ident: $type:ty),*) -> $out:ty) => {{
            fn call($($arg: $type),*) -> $out {
                // SAFETY: arrays need no CPU features.
                unsafe { $kernel::<[f32; LANES]>($($arg),*) }
            }
            call
        }};
    }
    EstimateKernels {
        project: safe!(project(row: &[f32], basis: &[Shorts]) -> [f32; LANES]),
        sketch: safe!(sketch(tiles: &SketchTiles<'_>, rows: &[SketchRow], logits: &mut [[f32; LANES]], peaks: &mut [f32]) -> ()),
        mass: safe!(mass(logits: &[[f32; LANES]], peak: f32) -> f32),
    }
};

/// See [`EstimateKernels::project`].
///
/// # Safety
/// As [`Sixteen`], here and below.
#[inline(always)]
pub(super) unsafe fn project<V: Sixteen>(row: &[f32], basis: &[Shorts]) -> [f32; LANES] {
    // SAFETY: the caller's.
    unsafe {
        let (mut sum, mut sums) = (V::splat(0.0), [0.0; LANES]);
        for (x, directions) in row.iter().zip(basis) {
            sum = sum.add(V::splat(*x).mul(V::widen(directions)));
        }
        sum.store(&mut sums);
        sums
    }
}

/// See [`EstimateKernels::sketch`].
#[inline(always)]
pub(super) unsafe fn sketch<V: Sixteen>(
    tiles: &SketchTiles<'_>,
    rows: &[SketchRow],
    logits: &mut [[f32; LANES]],
    peaks: &mut [f32],
) {
    if tiles.rows.is_empty() {
        return;
    }
    let logits = logits.chunks_mut(V::ROWS * tiles.tiles());
    for ((rows, logits), peaks) in rows.chunks(V::ROWS).zip(logits).zip(peaks.chunks_mut(V::ROWS)) {
        // SAFETY: the caller's.
        unsafe {
            match rows.len() {
                1 => sketch_rows::<V, 1>(tiles, rows, logits, peaks),
                2 => sketch_rows::<V, 2>(tiles, rows, logits, peaks),
                3 => sketch_rows::<V, 3>(tiles, rows, logits, peaks),
                _ => sketch_rows::<V, 4>(tiles, rows, logits, peaks),
            }
        }
    }
}

#[inline(always)]
unsafe fn sketch_rows<V: Sixteen, const ROWS: usize>(
    tiles: &SketchTiles<'_>,
    rows: &[SketchRow],
    logits: &mut [[f32; LANES]],
    peaks: &mut [f32],
) {
    let rows: &[SketchRow; ROWS] = rows.first_chunk().expect("counted by the caller");
    let count = tiles.tiles();
    assert!(logits.len() == ROWS * count && tiles.directions <= MOST_DIRECTIONS);
    // SAFETY: the caller's.
    unsafe {
        let mut highest = [V::splat(f32::MIN); ROWS];
        for (at, tile) in tiles.rows.chunks_exact(SketchTiles::rows(tiles.directions)).enumerate() {
            let (codes, scales) = tile.split_at(tiles.directions / 2);
            let mut sums = [V::splat(0.0); ROWS];
            for (stripe, pairs) in codes.as_chunks::<{ STRIPE / 2 }>().0.iter().enumerate() {
                let more = V::code_sums(pairs, rows.each_ref().map(|row| &row.weights[stripe]));
                // Integers up to 2^17 have no rounding.
                sums = std::array::from_fn(|r| sums[r].add(more[r]));
            }
            let scales: &Shorts = scales.as_flattened().as_chunks::<2>().0.first_chunk().expect("a tile has scales");
            let scales = V::widen(scales);
            for r in 0..ROWS {
                let logit = scales.mul(sums[r].mul(V::splat(rows[r].unit))).add(V::splat(rows[r].base));
                highest[r] = logit.max(highest[r]);
                logit.store(&mut logits[r * count + at]);
            }
        }
        raise(highest, peaks);
    }
}

/// Raises each peak to the largest lane.
#[inline(always)]
unsafe fn raise<V: Sixteen, const ROWS: usize>(highest: [V; ROWS], peaks: &mut [f32]) {
    for (highest, peak) in highest.into_iter().zip(peaks) {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller's.
        unsafe { highest.store(&mut lanes) };
        *peak = lanes.into_iter().fold(*peak, f32::max);
    }
}

/// See [`EstimateKernels::mass`].
#[inline(always)]
pub(super) unsafe fn mass<V: Sixteen>(logits: &[[f32; LANES]], peak: f32) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let (below, mut sum) = (V::splat(-peak), V::splat(0.0));
        for tile in logits {
            sum = sum.add(exp(V::load(tile).add(below)));
        }
        sum.sum()
    }
}

/// Numbers below have the exponential 0, so that none is denormal.
pub(super) const LEAST_EXPONENT: f32 = -86.0;
/// Adding it rounds to an integer, which the lower bits then hold.
pub(super) const ROUNDING: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has few bits, so that its products with small integers are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// Coefficients of `(exp(r) - 1 - r) / r^2` for |r| up to ln 2 / 2, highest power first.
const EXP: [f32; 5] = [0.001_381_446_7, 0.008_368_781, 0.041_668_393, 0.166_665_2, 0.499_999_94];

/// `exp(x)` for x up to 0 with a relative error below 2e-7; 0 below [`LEAST_EXPONENT`].
#[inline(always)]
pub(super) unsafe fn exp<V: Sixteen>(x: V) -> V {
    // SAFETY: the caller's.
    unsafe {
        let least = V::splat(LEAST_EXPONENT);
        let bounded = x.max(least);
        let shifted = bounded.mul(V::splat(std::f32::consts::LOG2_E)).add(V::splat(ROUNDING));
        let twos = shifted.add(V::splat(-ROUNDING));
        let r = bounded.add(twos.mul(V::splat(-LN_2[0]))).add(twos.mul(V::splat(-LN_2[1])));
        let mut series = V::splat(EXP[0]);
        for c in &EXP[1..] {
            series = series.mul(r).add(V::splat(*c));
        }
        let value = series.mul(r.mul(r)).add(r).add(V::splat(1.0));
        x.unless_less(least, value.add_exponent(shifted))
    }
}
