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
fn rounded_once(a: f32, b: f32, c: f32) -> f32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the compiler's own function is exact.
    #[cfg(not(all(windows, target_env = "gnu")))]
    #[test]
    fn a_fused_sum_is_that_of_the_standard_library() {
        let same = |a: f32, b: f32, c: f32| {
            let (found, expected) = (rounded_once(a, b, c), a.mul_add(b, c));
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{a:e} {b:e} {c:e}");
        };
        let ends = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN];
        for (a, b) in ends.into_iter().flat_map(|a| ends.map(|b| (a, b))) {
            ends.into_iter().for_each(|c| same(a, b, c));
        }
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        for _ in 0..1_000_000 {
            let [a, b, c] = [random(), random(), random()].map(f32::from_bits);
            same(a, b, c);
            // An addend near the product, of either sign, and one that breaks a tie of the product.
            let near = f32::from_bits((a * b).to_bits() ^ random() & 0x8000_00FF);
            same(a, b, near);
            same(a, b, near * f32::EPSILON);
            let [short, other] = [a, b].map(|x| f32::from_bits(x.to_bits() & 0xFFFF_F000));
            same(short, other, f32::from_bits((short * other).to_bits() & 0xFF80_0000) * f32::EPSILON);
            same(short, other, c);
        }
    }

    #[test]
    fn what_f64_cannot_hold_breaks_a_tie() {
        // Its square is 1 + 2^-11 + 2^-24, halfway between two neighbours.
        let a = 1.0 + 2f32.powi(-12);
        let (below, above) = (1.0 + 2f32.powi(-11), 1.0 + 2f32.powi(-11) + f32::EPSILON);
        for (c, expected) in [(1e-30, above), (-1e-30, below), (0.0, below)] {
            assert_eq!((fused(a, a, c), fused(-a, a, -c)), (expected, -expected), "{c:e}");
            assert_eq!((rounded_once(a, a, c), rounded_once(-a, a, -c)), (expected, -expected), "{c:e}");
        }
    }
}
