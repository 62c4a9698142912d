//! Rows of K and V as the quantised caches of llama.cpp keep them, for comparison: `--cache-type-k` and `-v` of q8_0 or q4_0.
//!
//! Each 32 numbers have an f16 scale (ggml's `block_q8_0` and `block_q4_0`). Since its pull request 21038 llama.cpp rotates rows
//! before, by Hadamard matrices as large as a head's dims have powers of 2 for K, and of 64 for V.

use half::f16;

/// Numbers that share a scale.
const GROUP: usize = 32;
/// The least dims that a rotation has, and those for V.
const ROTATED: usize = 64;

/// A type of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Q8_0,
    Q4_0,
}

/// How rows are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    pub(super) kind: Type,
    pub(super) is_rotated: bool,
}

impl Rounding {
    /// The multiple that dims must be of.
    pub(super) fn unit(&self) -> usize {
        if self.is_rotated { ROTATED } else { GROUP }
    }

    /// Rounds rows of K.
    pub(super) fn keys(&self, rows: &mut [f32], dims: usize) {
        self.rows(rows, 1 << dims.trailing_zeros());
    }

    /// Rounds rows of V.
    pub(super) fn values(&self, rows: &mut [f32]) {
        self.rows(rows, ROTATED);
    }

    fn rows(&self, rows: &mut [f32], size: usize) {
        if self.is_rotated {
            rows.chunks_exact_mut(size).for_each(rotate);
        }
        rows.chunks_exact_mut(GROUP).for_each(|group| round(self.kind, group));
        if self.is_rotated {
            rows.chunks_exact_mut(size).for_each(rotate);
        }
    }
}

/// Rounds numbers that share a scale.
fn round(kind: Type, group: &mut [f32]) {
    let greatest = group.iter().fold(0.0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
    let scale = match kind {
        Type::Q8_0 => greatest.abs() / 127.0,
        // The greatest has the code that only one sign has.
        Type::Q4_0 => greatest / -8.0,
    };
    let (inverse, scale) = (if scale == 0.0 { 0.0 } else { 1.0 / scale }, f16::from_f32(scale).to_f32());
    for x in group {
        let code = match kind {
            Type::Q8_0 => (*x * inverse).round(),
            Type::Q4_0 => (*x * inverse + 8.5).floor().min(15.0) - 8.0,
        };
        *x = code * scale;
    }
}

/// Multiplies by the Hadamard matrix of this size, over the root of the size: twice is nothing.
fn rotate(row: &mut [f32]) {
    let mut half = 1;
    while half < row.len() {
        for pair in row.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            low.iter_mut().zip(high).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
        }
        half *= 2;
    }
    let factor = 1.0 / (row.len() as f32).sqrt();
    row.iter_mut().for_each(|x| *x *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_codes_of_ggml() {
        // Scales of 0.5: the greatest of q8_0 is 127 of them, and of q4_0 -8 of them.
        let with = |greatest: f32, others: &[f32]| {
            let mut group = [0.0; GROUP];
            group[0] = greatest;
            group[1..=others.len()].copy_from_slice(others);
            group
        };
        let mut group = with(-63.5, &[0.3, 0.2, -0.25, 63.4]);
        round(Type::Q8_0, &mut group);
        assert_eq!(group, with(-63.5, &[0.5, 0.0, -0.5, 63.5]), "halves go away from 0");
        let mut group = with(-4.0, &[3.9, 0.3, 0.2, -0.25]);
        round(Type::Q4_0, &mut group);
        assert_eq!(group, with(-4.0, &[3.5, 0.5, 0.0, 0.0]), "7 is the most of the other sign, halves go up");
        let mut group = with(4.0, &[-3.9, -0.3, 0.25]);
        round(Type::Q4_0, &mut group);
        assert_eq!(group, with(4.0, &[-3.5, -0.5, 0.0]), "scales have a sign");
    }

    #[test]
    fn a_rotated_spike_is_rounded_no_worse_than_its_parts() {
        // Its rotation has 64 numbers of one size, which need no rounding but that of the scale.
        for kind in [Type::Q8_0, Type::Q4_0] {
            let mut rows = [0.0; 256];
            rows[130] = 3.0;
            Rounding { kind, is_rotated: true }.values(&mut rows);
            assert!((rows[130] - 3.0).abs() < 0.01 * 3.0 + if kind == Type::Q4_0 { 0.2 } else { 0.0 }, "{}", rows[130]);
            let mut twice: Vec<f32> = (0..256).map(|x| (x * x % 97) as f32).collect();
            let expected = twice.clone();
            (0..2).for_each(|_| rotate(&mut twice));
            assert!(twice.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-3));
        }
    }
}
