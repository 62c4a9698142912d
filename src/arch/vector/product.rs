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

/// A product by blocks of at most `ROWS` rows and `WIDE` vectors; panels that are left over have `NARROW` vectors.
///
/// # Safety
/// See [`Floats`].
#[inline(always)]
pub(in crate::arch) unsafe fn product<V: Floats, const ROWS: usize, const WIDE: usize, const NARROW: usize>(
    product: &Product,
    result: &mut [[f32; PANEL]],
) {
    const { assert!(NARROW * V::LEN == PANEL && WIDE.is_multiple_of(NARROW) && ROWS > 4) };
    let rows = product.rows(result);
    if rows == 0 {
        return;
    }
    // Blocks of about the same size: a step of a few tokens reads B once or twice, not once for each row.
    let even = rows.div_ceil(rows.div_ceil(ROWS));
    // SAFETY: the caller's.
    unsafe {
        match even {
            1 => strips::<V, 1, WIDE, NARROW>(product, rows, result),
            2 => strips::<V, 2, WIDE, NARROW>(product, rows, result),
            3 => strips::<V, 3, WIDE, NARROW>(product, rows, result),
            _ if even == ROWS => strips::<V, ROWS, WIDE, NARROW>(product, rows, result),
            8.. if ROWS > 8 => strips::<V, 8, WIDE, NARROW>(product, rows, result),
            _ => strips::<V, 4, WIDE, NARROW>(product, rows, result),
        }
    }
}

/// All rows, `ROWS` at a time; there are as many at least.
///
/// # Safety
/// See [`Floats`].
#[inline(always)]
unsafe fn strips<V: Floats, const ROWS: usize, const WIDE: usize, const NARROW: usize>(
    product: &Product,
    rows: usize,
    result: &mut [[f32; PANEL]],
) {
    let wide = WIDE / NARROW;
    for first in (0..rows).step_by(ROWS) {
        // The last strip overlaps the one before, which costs less than a tail and writes the same again.
        let row = first.min(rows - ROWS);
        let mut panel = 0;
        while panel < product.bias.len() {
            let whole = product.bias.len() - panel >= wide;
            // SAFETY: `ROWS` rows from `row` on are there, and the panels that a block takes.
            unsafe {
                if whole {
                    block::<V, ROWS, WIDE>(product, row, panel, result);
                } else {
                    block::<V, ROWS, NARROW>(product, row, panel, result);
                }
            }
            panel += if whole { wide } else { 1 };
        }
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
