//! Matrix products, in blocks that stay in registers.

use crate::arch::product::{PANEL, Product};

/// A vector of floats, with fused multiplication and addition.
///
/// # Safety
/// Every function needs the CPU features of its implementation, and those with a pointer [`Floats::LEN`] floats there,
/// or one for `repeat`; no alignment.
pub(in crate::arch) trait Floats: Copy {
    /// Floats in a vector: [`PANEL`], or a part of it.
    const LEN: usize;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// One float everywhere.
    unsafe fn repeat(from: *const f32) -> Self;
    /// `self + a * b`, rounded once.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
}

/// A product by blocks of `ROWS` rows and `WIDE` vectors; panels that are left over have `NARROW` vectors.
///
/// # Safety
/// See [`Floats`].
#[inline(always)]
pub(in crate::arch) unsafe fn product<V: Floats, const ROWS: usize, const WIDE: usize, const NARROW: usize>(
    product: &Product,
    result: &mut [[f32; PANEL]],
) {
    const { assert!(NARROW * V::LEN == PANEL && WIDE.is_multiple_of(NARROW)) };
    let rows = product.rows(result);
    let wide = WIDE / NARROW;
    let few = rows < ROWS;
    let block_rows = if few { 1 } else { ROWS };
    // The last block overlaps the one before, which costs less than a tail and writes the same again.
    let mut first = 0;
    while first < rows {
        let row = first.min(rows - block_rows);
        let mut panel = 0;
        while panel < product.bias.len() {
            let whole = product.bias.len() - panel >= wide;
            // SAFETY: `block_rows` rows from `row` on are there, and the panels that a block takes.
            unsafe {
                match (whole, few) {
                    (true, false) => block::<V, ROWS, WIDE>(product, row, panel, result),
                    (true, true) => block::<V, 1, WIDE>(product, row, panel, result),
                    (false, false) => block::<V, ROWS, NARROW>(product, row, panel, result),
                    (false, true) => block::<V, 1, NARROW>(product, row, panel, result),
                }
            }
            panel += if whole { wide } else { 1 };
        }
        first += block_rows;
    }
}

/// `ROWS` rows from `row` on and `VECTORS` vectors of columns from `panel` on.
///
/// # Safety
/// See [`Floats`]; those rows and panels are in the product, which [`Product::rows`] has checked against `result`.
#[inline(always)]
unsafe fn block<V: Floats, const ROWS: usize, const VECTORS: usize>(
    product: &Product,
    row: usize,
    panel: usize,
    result: &mut [[f32; PANEL]],
) {
    let Product { stride, depth, .. } = *product;
    let per_panel = PANEL / V::LEN;
    // SAFETY: rows are `stride` apart and have `depth` elements, panels are `depth` and results a row of panels apart;
    // the caller says that they are there.
    unsafe {
        let a = product.a.as_ptr().add(row * stride);
        let b = product.panels.as_ptr().add(panel * depth).cast::<f32>();
        let mut sums = [[V::zero(); VECTORS]; ROWS];
        for k in 0..depth {
            let b = b.add(k * PANEL);
            let columns: [V; VECTORS] =
                std::array::from_fn(|v| V::load(b.add(v / per_panel * depth * PANEL + v % per_panel * V::LEN)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = V::repeat(a.add(r * stride + k));
                for (sum, column) in sums.iter_mut().zip(&columns) {
                    *sum = sum.add_product(x, *column);
                }
            }
        }
        let panels = product.bias.len();
        let bias = product.bias.as_ptr().add(panel).cast::<f32>();
        for (r, sums) in sums.iter().enumerate() {
            let to = result.as_mut_ptr().add((row + r) * panels + panel).cast::<f32>();
            for (v, sum) in sums.iter().enumerate() {
                sum.add(V::load(bias.add(v * V::LEN))).store(to.add(v * V::LEN));
            }
        }
    }
}
