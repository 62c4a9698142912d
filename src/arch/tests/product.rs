//! Products of matrices, by their definition.

use super::*;
use crate::arch::product::{fused, rounded_once};

/// Numbers of all sizes and both signs, whose products and sums round.
fn reals(len: usize, seed: u32) -> Vec<f32> {
    (0..len as u32)
        .map(|i| {
            let n = (i + seed).wrapping_mul(2_654_435_761).rotate_left(11) ^ seed;
            ((n >> 8) as f32 / 8_388_608.0 - 1.0) * f32::from_bits(((n & 15) + 120) << 23)
        })
        .collect()
}

#[test]
fn every_level_multiplies_matrices_by_the_definition_and_to_the_same_bits() {
    for (rows, depth, panels) in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 24, 31]
        .into_iter()
        .flat_map(|rows| [1, 2, 3, 17, 64].map(|depth| (rows, depth)))
        .flat_map(|(rows, depth)| [1, 2, 3, 4, 5].map(|panels| (rows, depth, panels)))
    {
        let (stride, columns) = (depth + rows % 3, panels * PANEL);
        // Not a number more than needed; what lies between rows must not be read.
        let mut a = reals(if rows == 0 { 0 } else { (rows - 1) * stride + depth }, 1);
        for row in a.chunks_mut(stride) {
            row.iter_mut().skip(depth).for_each(|gap| *gap = f32::NAN);
        }
        let (b, bias) = (reals(depth * columns, 2), reals(columns, 3));
        let product =
            Product { a: &a, stride, depth, panels: b.as_chunks::<PANEL>().0, bias: bias.as_chunks::<PANEL>().0 };
        let at = |k: usize, j: usize| b[(j / PANEL * depth + k) * PANEL + j % PANEL];
        let element =
            |i: usize, j: usize| (0..depth).fold(0.0f32, |sum, k| fused(a[i * stride + k], at(k, j), sum)) + bias[j];
        let expected: Vec<u32> =
            (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))).map(|(i, j)| element(i, j).to_bits()).collect();
        for k in available() {
            let mut result = vec![[f32::NAN; PANEL]; rows * panels + 2];
            (k.product)(&product, &mut result[1..=rows * panels]);
            let (bits, fences) = (&result[1..=rows * panels], [&result[0], &result[rows * panels + 1]]);
            let bits: Vec<u32> = bits.iter().flatten().map(|x| x.to_bits()).collect();
            assert!(bits == expected, "{:?} {rows} x {depth} x {columns}", k.level);
            assert!(fences.iter().all(|f| f.iter().all(|x| x.is_nan())), "{:?} wrote outside", k.level);
        }
    }
}

#[test]
fn matrices_that_do_not_fit_are_refused() {
    let (a, b) = ([1.0; 32], [[1.0; PANEL]; 8]);
    for (stride, depth, bias, len) in
        [(4, 0, 1, 1), (3, 4, 1, 1), (4, 4, 0, 1), (4, 4, 1, 1), (4, 4, 2, 3), (8, 4, 2, 10)]
    {
        let product = Product { a: &a, stride, depth, panels: &b, bias: &b[..bias] };
        for k in available() {
            let refused = std::panic::catch_unwind(|| (k.product)(&product, &mut vec![[0.0; PANEL]; len])).is_err();
            assert!(refused, "{:?} {stride} {depth} {bias} {len}", k.level);
        }
    }
}

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
    let mut random = crate::common::Random::new(1);
    let mut random = || random.next() as u32;
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
