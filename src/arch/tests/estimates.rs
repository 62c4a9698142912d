//! Kernels of estimates: the same bits at every level, and exponentials by f64.

use super::*;
use crate::arch::estimates::{CodePair, LANES, Shorts, SketchRow, SketchTiles, high_weight, low_weight};

fn reals(len: usize, seed: u64, size: f32) -> Vec<f32> {
    let noise = noise(4 * (len + seed as usize));
    let words = noise.as_chunks::<4>().0[seed as usize..].iter();
    words.map(|b| (u32::from_le_bytes(*b) as i32 as f32) * (size / i32::MAX as f32)).collect()
}

/// Some of them below 0, which says that there is no token.
fn shorts(seed: u64) -> Shorts {
    let scales = reals(LANES, seed, 2.0);
    std::array::from_fn(|i| ((scales[i].to_bits() >> 16) as u16).to_ne_bytes())
}

fn pairs(count: usize) -> Vec<CodePair> {
    noise(count * LANES).as_chunks::<LANES>().0.to_vec()
}

/// Runs a kernel at every level; all must write the same bits.
fn same_bits(what: &str, kernel: impl Fn(&'static Kernels) -> Vec<f32>) {
    let bits = |k| kernel(k).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let expected = bits(available().next().unwrap());
    available().for_each(|k| assert!(bits(k) == expected, "{what} at {:?}", k.level));
}

#[test]
fn every_level_estimates_the_same_bits() {
    let counts = (1..=4).flat_map(|rows| [0, 1, 3, 4, 64].map(|tiles| (rows, tiles)));
    for ((rows, tiles), directions) in counts.flat_map(|count| [16, 32, 64].map(|directions| (count, directions))) {
        let codes = pairs(tiles * directions / 2);
        let tile = |t: usize| {
            let scales = shorts(t as u64).as_flattened().to_vec();
            [codes[t * directions / 2..][..directions / 2].as_flattened(), &scales].concat()
        };
        let bytes: Vec<u8> = (0..tiles).flat_map(tile).collect();
        let sketches = SketchTiles { directions, rows: bytes.as_chunks::<LANES>().0 };
        let weight = |d: usize, x: f32| if d % 16 < 8 { low_weight(x) } else { high_weight(x) };
        let query = |r: usize| {
            let x = reals(64, r as u64, 10f32.powi(r as i32 * 3 - 6));
            SketchRow { weights: std::array::from_fn(|d| weight(d, x[d])), base: x[0] }
        };
        let queries: Vec<SketchRow> = (0..rows).map(query).collect();
        same_bits("sketch", |k| {
            let (mut logits, mut peaks) = (vec![[0.0; LANES]; rows * tiles], vec![f32::MIN; rows]);
            (k.estimates.sketch)(&sketches, &queries, &mut logits, &mut peaks);
            [logits.concat(), peaks].concat()
        });
    }
    for dims in [1, 15, 16, 17, 64, 100] {
        let (rows, keys) = (reals(3 * dims, 1, 3.0), reals(7 * dims, 2, 3.0));
        same_bits("dots", |k| {
            let mut products = vec![0.0; 21];
            (k.estimates.dots)(&rows, &keys, dims, &mut products);
            products
        });
        let basis: Vec<Shorts> = (0..dims as u64).map(shorts).collect();
        same_bits("project", |k| (k.estimates.project)(&rows[..dims], &basis).to_vec());
    }
}

#[test]
fn masses_are_sums_of_exponentials_to_the_seventh_digit() {
    let mut logits = reals(LANES * 12, 5, 42.0);
    logits.iter_mut().for_each(|x| *x -= 42.0 - 1e4);
    logits[3] = f32::NEG_INFINITY;
    let peak = logits.iter().copied().fold(f32::MIN, f32::max);
    for width in [1, 2, 4, 8, 16, 32, 48, 64] {
        let masses = |k: &Kernels| {
            let mut masses = vec![f32::NAN; logits.len() / width];
            (k.estimates.masses)(logits.as_chunks::<LANES>().0, peak, width, &mut masses);
            masses
        };
        same_bits("masses", masses);
        for (part, mass) in logits.chunks_exact(width).zip(masses(kernels())) {
            // The subtraction rounds, so the exponential of what it leaves is expected.
            let exact: f64 = part.iter().map(|x| f64::from(x - peak).exp()).sum();
            assert!((f64::from(mass) - exact).abs() <= exact * 3e-7, "{mass} {exact}");
        }
    }
    let mut nothing = [f32::NAN];
    (kernels().estimates.masses)(&[[f32::NEG_INFINITY; LANES]], f32::MIN, LANES, &mut nothing);
    assert_eq!(nothing, [0.0]);
}
