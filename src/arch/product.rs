//! The matrix product: its arguments, and its definition to the bit.

/// Columns of B that lie side by side.
pub const PANEL: usize = 16;

/// `A * B + bias` for matrices of f32.
///
/// An element of the result is `fma(a[k], b[k], sum)` for k from 0 on, with `sum` 0 at first, and then its bias is
/// added: one chain of fused multiplications and additions in this order, so every level rounds at the same
/// places. The columns of the result are as many as the panels have; if B has fewer, the rest of its last panel and of the
/// result is undefined.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The rows of A: `depth` elements each, `stride` apart; elements between them are not read.
    pub a: &'a [f32],
    /// From one row of A to the next, at least `depth`.
    pub stride: usize,
    /// Columns of A, which are the rows of B; at least 1.
    pub depth: usize,
    /// B as `[panel][depth][PANEL]`.
    pub panels: &'a [[f32; PANEL]],
    /// The addend of each column, `[panel][PANEL]`.
    pub bias: &'a [[f32; PANEL]],
}

impl Product<'_> {
    /// Checks the shapes. Returns the rows of A; the result is `[row][panel][PANEL]`.
    pub(super) fn rows(&self, result: &[[f32; PANEL]]) -> usize {
        let Product { a, stride, depth, panels, bias } = self;
        assert!(*depth > 0 && stride >= depth && !bias.is_empty(), "a shape with elements");
        assert!(bias.len().checked_mul(*depth) == Some(panels.len()), "a bias for every panel");
        let rows = result.len() / bias.len();
        let needed =
            if rows == 0 { Some(0) } else { (rows - 1).checked_mul(*stride).and_then(|n| n.checked_add(*depth)) };
        assert!(rows * bias.len() == result.len() && needed.is_some_and(|n| n <= a.len()), "whole rows, all there");
        rows
    }
}

/// Rearranges a weight `[rows][depth]` to `[panel][depth][PANEL]`, as B of a product. The padding of the last panel keeps
/// its contents.
#[inline(never)]
pub fn pack_panels(weight: &[f32], depth: usize, panels: &mut [[f32; PANEL]]) {
    for (panel, rows) in panels.chunks_exact_mut(depth).zip(weight.chunks(PANEL * depth)) {
        for (column, row) in rows.chunks_exact(depth).enumerate() {
            panel.iter_mut().zip(row).for_each(|(to, x)| to[column] = *x);
        }
    }
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub(super) fn fused(a: f32, b: f32, c: f32) -> f32 {
    // Without an instruction for it the compiler calls the C library's fmaf, and that of MinGW rounds twice.
    if cfg!(all(windows, target_env = "gnu")) { rounded_once(a, b, c) } else { a.mul_add(b, c) }
}

/// As [`fused`], by additions and multiplications alone.
pub(super) fn rounded_once(a: f32, b: f32, c: f32) -> f32 {
    // Exact, since each factor has 24 bits.
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    // What the sum lost, exactly.
    let of_c = sum - product;
    let lost = (product - (sum - of_c)) + (c - of_c);
    // Of the two neighbours of the exact sum the one whose last bit is 1. Its rounding to f32 is that of the exact sum,
    // since it is a tie only where the exact sum is one.
    let bits = sum.to_bits();
    let odd = match bits & 1 == 0 && sum.is_finite() && lost != 0.0 {
        false => bits,
        true if (lost > 0.0) == (sum > 0.0) => bits + 1,
        true => bits - 1,
    };
    f64::from_bits(odd) as f32
}

/// The definition, and the version of every CPU.
pub(super) fn portable(product: &Product, result: &mut [[f32; PANEL]]) {
    product.rows(result);
    let Product { a, stride, depth, panels, bias } = *product;
    for (row, sums) in a.chunks(stride).zip(result.chunks_exact_mut(bias.len())) {
        for ((panel, bias), out) in panels.chunks_exact(depth).zip(bias).zip(sums) {
            let mut sums = [0.0f32; PANEL];
            for (x, b) in row[..depth].iter().zip(panel) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = fused(*x, *b, *sum);
                }
            }
            *out = std::array::from_fn(|i| sums[i] + bias[i]);
        }
    }
}
