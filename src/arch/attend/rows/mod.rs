//! Attention over rows of a host's own cache, in the block formats of ggml: logits of K, and weighted sums of V.
//!
//! Each kernel is written once, over 16 lanes. A level implements [`Lanes`] for its vectors; arrays define every
//! operation. Products are fused with their sums, in the same order at every level, and lanes mix in
//! [`Sixteen::sum`] alone. So results are the same to the bit at every level.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;

use super::super::estimates::{LANES, Sixteen};
use super::super::prefetch::prefetch_far;
use super::super::product::fused;
use super::{BLOCK, QUERIES};
use half::f16;

/// Elements of a unit: a block of q8_0 and q4_0. Rows are whole units.
pub const UNIT: usize = 32;
/// Vectors of a unit.
const VECTORS: usize = UNIT / LANES;

/// The format of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowType {
    /// IEEE 754 binary16.
    F16,
    /// A scale in f16, then 32 signed bytes.
    Q8_0,
    /// A scale in f16, then 16 bytes: codes 0 to 15 less 8, of the first 16 elements in lower halves.
    Q4_0,
}

impl RowType {
    /// Bytes of so many elements, whole units.
    pub const fn bytes(self, elements: usize) -> usize {
        let unit = match self {
            RowType::F16 => F16::BYTES,
            RowType::Q8_0 => Q8_0::BYTES,
            RowType::Q4_0 => Q4_0::BYTES,
        };
        elements / UNIT * unit
    }
}

/// Rows of a head, one for each of at most [`BLOCK`] tokens.
#[derive(Clone, Copy)]
pub struct RowTile<'a> {
    /// From the first row on.
    pub bytes: &'a [u8],
    /// From one row to the next.
    pub stride: usize,
    /// How many.
    pub tokens: usize,
    /// Elements of a row, whole units.
    pub dims: usize,
}

impl RowTile<'_> {
    /// Checks that the rows are there.
    #[inline(always)]
    fn check<T: Format>(&self) {
        assert!((1..=BLOCK).contains(&self.tokens) && self.dims.is_multiple_of(UNIT), "a tile of whole units");
        let last = (self.tokens - 1).checked_mul(self.stride).expect("a stride within the slice");
        assert!(last <= self.bytes.len() && self.bytes.len() - last >= self.dims / UNIT * T::BYTES, "rows, all there");
    }
}

/// See [`RowKernels::logits`].
type RowLogits = fn(tile: &RowTile, queries: &[&[f32]], scale: f32, logits: &mut [[f32; BLOCK]]);
/// See [`RowKernels::values`].
type RowValues = fn(tile: &RowTile, weights: &[[f32; BLOCK]], sums: &mut [f32], len: usize);

/// The kernels, for each [`RowType`]. Query vectors of a call are [`QUERIES`] at most.
#[derive(Clone, Copy)]
pub struct RowKernels {
    /// Writes `scale` times the product of each query vector with each row; -inf behind the last row.
    pub logits: [RowLogits; 3],
    /// Adds the rows times the weights of each query vector to its sums, which are `len` floats apart.
    pub values: [RowValues; 3],
}

/// 16 floats, and the elements of rows.
///
/// # Safety
/// Every function needs the CPU features of its implementation, and as many bytes behind its pointer as it reads; no
/// alignment.
pub(in crate::arch) trait Lanes: Sixteen {
    /// `self + a * b`, rounded once.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    /// An f16, little endian, everywhere.
    unsafe fn half(from: *const u8) -> Self;
    /// 16 f16, little endian.
    unsafe fn halves(from: *const u8) -> Self;
    /// 16 signed bytes times a scale.
    unsafe fn signed(from: *const u8, scale: Self) -> Self;
    /// The lower and the upper halves of 16 bytes, less 8 and times a scale.
    unsafe fn nibbles(from: *const u8, scale: Self) -> [Self; 2];
    /// [`Sixteen::sum`] of each.
    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        // SAFETY: the caller's.
        unsafe { [four[0].sum(), four[1].sum(), four[2].sum(), four[3].sum()] }
    }
}

impl Lanes for [f32; LANES] {
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|i| fused(a[i], b[i], self[i]))
    }
    #[inline(always)]
    unsafe fn half(from: *const u8) -> Self {
        // SAFETY: the caller's.
        [f16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read() }).to_f32(); LANES]
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> Self {
        // SAFETY: the caller's.
        unsafe { from.cast::<[[u8; 2]; LANES]>().read() }.map(|bytes| f16::from_le_bytes(bytes).to_f32())
    }
    #[inline(always)]
    unsafe fn signed(from: *const u8, scale: Self) -> Self {
        // SAFETY: the caller's.
        let codes = unsafe { from.cast::<[i8; LANES]>().read() };
        std::array::from_fn(|i| f32::from(codes[i]) * scale[i])
    }
    #[inline(always)]
    unsafe fn nibbles(from: *const u8, scale: Self) -> [Self; 2] {
        // SAFETY: the caller's.
        let pairs = unsafe { from.cast::<[u8; LANES]>().read() };
        let number = |code: u8, i: usize| (f32::from(code) - 8.0) * scale[i];
        [std::array::from_fn(|i| number(pairs[i] & 15, i)), std::array::from_fn(|i| number(pairs[i] >> 4, i))]
    }
}

/// The units of a [`RowType`].
///
/// # Safety
/// `load` needs what [`Lanes`] needs.
pub(in crate::arch) trait Format {
    /// Of a unit.
    const BYTES: usize;
    /// The numbers of a unit.
    unsafe fn load<V: Lanes>(unit: *const u8) -> [V; VECTORS];
}

pub(in crate::arch) struct F16;
#[allow(non_camel_case_types, reason = "the name of the format")]
pub(in crate::arch) struct Q8_0;
#[allow(non_camel_case_types, reason = "the name of the format")]
pub(in crate::arch) struct Q4_0;

/// Bytes of a scale.
const SCALE: usize = 2;

impl Format for F16 {
    const BYTES: usize = 2 * UNIT;
    #[inline(always)]
    unsafe fn load<V: Lanes>(unit: *const u8) -> [V; VECTORS] {
        // SAFETY: the caller's.
        unsafe { [V::halves(unit), V::halves(unit.add(2 * LANES))] }
    }
}

impl Format for Q8_0 {
    const BYTES: usize = SCALE + UNIT;
    #[inline(always)]
    unsafe fn load<V: Lanes>(unit: *const u8) -> [V; VECTORS] {
        // SAFETY: the caller's.
        unsafe {
            let scale = V::half(unit);
            [V::signed(unit.add(SCALE), scale), V::signed(unit.add(SCALE + LANES), scale)]
        }
    }
}

impl Format for Q4_0 {
    const BYTES: usize = SCALE + UNIT / 2;
    #[inline(always)]
    unsafe fn load<V: Lanes>(unit: *const u8) -> [V; VECTORS] {
        // SAFETY: the caller's.
        unsafe { V::nibbles(unit.add(SCALE), V::half(unit)) }
    }
}

/// The kernels of every CPU.
pub(in crate::arch) static PORTABLE: RowKernels = {
    macro_rules! safe {
        ($format:ty) => {{
            fn logits_(tile: &RowTile, queries: &[&[f32]], scale: f32, to: &mut [[f32; BLOCK]]) {
                // SAFETY: arrays need no CPU features.
                unsafe { logits::<[f32; LANES], $format, 1, 1>(tile, queries, scale, to) }
            }
            fn values_(tile: &RowTile, weights: &[[f32; BLOCK]], sums: &mut [f32], len: usize) {
                // SAFETY: arrays need no CPU features.
                unsafe { values::<[f32; LANES], $format, 1, 1>(tile, weights, sums, len) }
            }
            (logits_, values_)
        }};
    }
    let (f16, q8_0, q4_0): ((RowLogits, RowValues), (RowLogits, RowValues), (RowLogits, RowValues)) =
        (safe!(F16), safe!(Q8_0), safe!(Q4_0));
    RowKernels { logits: [f16.0, q8_0.0, q4_0.0], values: [f16.1, q8_0.1, q4_0.1] }
};

/// Calls a kernel for as many query vectors as there are, which are `MOST` at most.
macro_rules! for_queries {
    ($most:ident, $count:expr, $kernel:ident::<$($parameter:ident),*>($($arg:expr),*)) => {
        match $count {
            0 => {}
            1 => $kernel::<$($parameter),*, 1>($($arg),*),
            2 => $kernel::<$($parameter),*, 2>($($arg),*),
            3 if $most > 2 => $kernel::<$($parameter),*, 3>($($arg),*),
            _ => $kernel::<$($parameter),*, QUERIES>($($arg),*),
        }
    };
}

/// See [`RowKernels::logits`]. The first query vectors of a call prefetch the rows of the next tile, `ahead` bytes further, which the
/// hardware does not where rows of a head lie apart. `TOKENS` (1 or 4) times `MOST` sums stay in registers.
///
/// # Safety
/// As [`Lanes`], here and below.
#[inline(always)]
pub(in crate::arch) unsafe fn logits<V: Lanes, T: Format, const TOKENS: usize, const MOST: usize>(
    tile: &RowTile,
    queries: &[&[f32]],
    scale: f32,
    logits: &mut [[f32; BLOCK]],
) {
    assert!(queries.len() == logits.len() && queries.iter().all(|query| query.len() >= tile.dims), "whole queries");
    tile.check::<T>();
    let mut ahead = BLOCK * tile.stride;
    for (queries, logits) in queries.chunks(MOST).zip(logits.chunks_mut(MOST)) {
        // SAFETY: the caller's.
        unsafe { for_queries!(MOST, queries.len(), logits_of::<V, T, TOKENS>(tile, queries, scale, logits, ahead)) }
        ahead = 0;
    }
}

#[inline(always)]
unsafe fn logits_of<V: Lanes, T: Format, const TOKENS: usize, const N: usize>(
    tile: &RowTile,
    queries: &[&[f32]],
    scale: f32,
    logits: &mut [[f32; BLOCK]],
    ahead: usize,
) {
    let RowTile { bytes, stride, tokens, dims } = *tile;
    let queries: &[&[f32]; N] = queries.first_chunk().expect("counted by the caller");
    let logits: &mut [[f32; BLOCK]; N] = logits.first_chunk_mut().expect("counted by the caller");
    for at in (0..tokens).step_by(TOKENS) {
        // SAFETY: features are the caller's; `check` says that `tokens` rows of `dims` are there.
        unsafe {
            let mut rows = [bytes.as_ptr(); TOKENS];
            for (i, row) in rows.iter_mut().enumerate() {
                // Behind the last row it is taken again.
                *row = row.add((at + i).min(tokens - 1) * stride);
            }
            let mut sums = [[V::splat(0.0); TOKENS]; N];
            for unit in 0..dims / UNIT {
                for t in 0..TOKENS {
                    let from = rows[t].add(unit * T::BYTES);
                    prefetch_far(from.wrapping_add(ahead));
                    let row = T::load::<V>(from);
                    for n in 0..N {
                        let query = queries[n].as_ptr().add(unit * UNIT).cast::<[f32; LANES]>();
                        for (i, x) in row.into_iter().enumerate() {
                            sums[n][t] = sums[n][t].add_product(x, V::load(&*query.add(i)));
                        }
                    }
                }
            }
            for n in 0..N {
                if TOKENS == 4 {
                    let four = V::sums(*sums[n].first_chunk().expect("four tokens"));
                    let to = logits[n].as_chunks_mut::<4>().0;
                    to[at / 4] = [four[0] * scale, four[1] * scale, four[2] * scale, four[3] * scale];
                } else {
                    for (t, sum) in sums[n].into_iter().enumerate().take(BLOCK - at) {
                        logits[n][at + t] = sum.sum() * scale;
                    }
                }
            }
        }
    }
    logits.iter_mut().for_each(|logits| logits[tokens..].fill(f32::NEG_INFINITY));
}

/// See [`RowKernels::values`]; the sums of `MOST` query vectors stay in registers, for a unit those of `WHOLE`, for half a unit
/// those of more.
#[inline(always)]
pub(in crate::arch) unsafe fn values<V: Lanes, T: Format, const MOST: usize, const WHOLE: usize>(
    tile: &RowTile,
    weights: &[[f32; BLOCK]],
    sums: &mut [f32],
    len: usize,
) {
    assert!(len >= tile.dims && sums.len() >= weights.len() * len, "sums of every query");
    tile.check::<T>();
    let mut ahead = BLOCK * tile.stride;
    for (weights, sums) in weights.chunks(MOST).zip(sums.chunks_mut(MOST * len)) {
        // SAFETY: the caller's.
        unsafe { for_queries!(MOST, weights.len(), values_of::<V, T, WHOLE>(tile, weights, sums, len, ahead)) }
        ahead = 0;
    }
}

#[inline(always)]
unsafe fn values_of<V: Lanes, T: Format, const WHOLE: usize, const N: usize>(
    tile: &RowTile,
    weights: &[[f32; BLOCK]],
    sums: &mut [f32],
    len: usize,
    ahead: usize,
) {
    let weights: &[[f32; BLOCK]; N] = weights.first_chunk().expect("counted by the caller");
    for unit in 0..tile.dims / UNIT {
        // SAFETY: the caller's.
        unsafe {
            if N <= WHOLE {
                columns_of::<V, T, N, 0, VECTORS>(tile, weights, sums, len, unit, ahead);
            } else {
                columns_of::<V, T, N, 0, 1>(tile, weights, sums, len, unit, ahead);
                columns_of::<V, T, N, 1, 1>(tile, weights, sums, len, unit, 0);
            }
        }
    }
}

/// `COUNT` vectors of a unit, from the vector `FIRST` on.
#[inline(always)]
unsafe fn columns_of<V: Lanes, T: Format, const N: usize, const FIRST: usize, const COUNT: usize>(
    tile: &RowTile,
    weights: &[[f32; BLOCK]; N],
    sums: &mut [f32],
    len: usize,
    unit: usize,
    ahead: usize,
) {
    // SAFETY: features are the caller's; `check` says that `tokens` rows of `dims` are there, and `values` that there are
    // `dims` sums for each query vector.
    unsafe {
        let to = sums.as_mut_ptr().add(unit * UNIT + FIRST * LANES);
        let mut totals = [[V::splat(0.0); COUNT]; N];
        for (n, totals) in totals.iter_mut().enumerate() {
            for (i, total) in totals.iter_mut().enumerate() {
                *total = V::load(&*to.add(n * len + i * LANES).cast());
            }
        }
        let mut from = tile.bytes.as_ptr().add(unit * T::BYTES);
        for token in 0..tile.tokens {
            if FIRST == 0 {
                prefetch_far(from.wrapping_add(ahead));
            }
            let row = T::load::<V>(from);
            for (totals, weights) in totals.iter_mut().zip(weights) {
                let weight = V::splat(weights[token]);
                for (total, x) in totals.iter_mut().zip(row.into_iter().skip(FIRST)) {
                    *total = total.add_product(weight, x);
                }
            }
            from = from.wrapping_add(tile.stride);
        }
        for (n, totals) in totals.into_iter().enumerate() {
            for (i, total) in totals.into_iter().enumerate() {
                total.store(&mut *to.add(n * len + i * LANES).cast());
            }
        }
    }
}
