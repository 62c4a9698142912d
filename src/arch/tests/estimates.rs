//! Kernels of estimates: the same bits at every level, and exponentials by f64.

use super::*;
use crate::arch::estimates::{CodePair, LANES, MOST_DIRECTIONS, Shorts, SketchRow, SketchTiles};

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
    for ((rows, tiles), directions) in counts.flat_map(|count| [32, 64].map(|directions| (count, directions))) {
        let mut codes = pairs(tiles * directions / 2);
        // The least and the greatest codes.
        let extremes = codes.chunks_mut(directions / 2).zip([0x88, 0x77]);
        extremes.for_each(|(codes, extreme)| codes.as_flattened_mut().fill(extreme));
        let tile = |t: usize| {
            let scales = shorts(t as u64).as_flattened().to_vec();
            [codes[t * directions / 2..][..directions / 2].as_flattened(), &scales].concat()
        };
        let bytes: Vec<u8> = (0..tiles).flat_map(tile).collect();
        let sketches = SketchTiles { directions, rows: bytes.as_chunks::<LANES>().0 };
        let query = |r: usize| -> [f32; MOST_DIRECTIONS] {
            // The largest sums that there are, and parts without any.
            let same = [[1.0; MOST_DIRECTIONS], [-1.0; MOST_DIRECTIONS], [0.0; MOST_DIRECTIONS]];
            let x = reals(MOST_DIRECTIONS, r as u64, 10f32.powi(r as i32 * 3 - 6));
            same.get(r.wrapping_sub(1)).copied().unwrap_or_else(|| std::array::from_fn(|d| x[d]))
        };
        let queries: Vec<SketchRow> = (0..rows).map(|r| SketchRow::new(&query(r), 0.5)).collect();
        same_bits("sketch", |k| {
            let (mut logits, mut peaks) = (vec![[0.0; LANES]; rows * tiles], vec![f32::MIN; rows]);
            (k.estimates.sketch)(&sketches, &queries, &mut logits, &mut peaks);
            [logits.concat(), peaks].concat()
        });
    }
    for dims in [1, 15, 16, 17, 64, 100] {
        let (row, basis): (_, Vec<Shorts>) = (reals(dims, 1, 3.0), (0..dims as u64).map(shorts).collect());
        same_bits("project", |k| (k.estimates.project)(&row, &basis).to_vec());
    }
}

#[test]
fn masses_are_sums_of_exponentials_to_the_seventh_digit() {
    let mut logits = reals(LANES * 12, 5, 42.0);
    logits.iter_mut().for_each(|x| *x -= 42.0 - 1e4);
    logits[3] = f32::NEG_INFINITY;
    let peak = logits.iter().copied().fold(f32::MIN, f32::max);
    for tiles in [1, 4, 12] {
        let logits = &logits[..tiles * LANES];
        let mass = |k: &Kernels| (k.estimates.mass)(logits.as_chunks::<LANES>().0, peak);
        same_bits("mass", |k| vec![mass(k)]);
        // The subtraction rounds, so the exponential of what it leaves is expected.
        let (exact, mass): (f64, f32) = (logits.iter().map(|x| f64::from(x - peak).exp()).sum(), mass(kernels()));
        assert!((f64::from(mass) - exact).abs() <= exact * 3e-7, "{mass} {exact}");
    }
    assert_eq!((kernels().estimates.mass)(&[[f32::NEG_INFINITY; LANES]], f32::MIN), 0.0);
}

/// By docs/format.md: the direction `d` of a panel is in lower halves, and `d + 8` in upper ones.
#[test]
fn logits_of_a_sketch_are_those_of_its_codes_but_for_the_rounding_of_weights() {
    for directions in [32, MOST_DIRECTIONS] {
        let mut rows = pairs(directions / 2);
        rows.extend(shorts(3).as_flattened().as_chunks::<LANES>().0);
        let x = reals(MOST_DIRECTIONS, 7, 3.0);
        let row = SketchRow::new(x.first_chunk().unwrap(), 0.25);
        let (mut logits, mut peak) = ([[0.0; LANES]], [f32::MIN]);
        (kernels().estimates.sketch)(&SketchTiles { directions, rows: &rows }, &[row], &mut logits, &mut peak);
        for (lane, (logit, scale)) in logits[0].iter().zip(shorts(3)).enumerate() {
            let code = |d: usize| {
                let pair = rows[d / 16 * 8 + d % 8][lane] as i8;
                f64::from(if d % 16 < 8 { pair << 4 >> 4 } else { pair >> 4 })
            };
            let scale = f64::from(f32::from_bits(u32::from(u16::from_ne_bytes(scale)) << 16));
            let expected = 0.25 + scale * (0..directions).map(|d| f64::from(x[d]) * code(d)).sum::<f64>();
            let most = scale.abs() * (0..directions).map(|d| code(d).abs()).sum::<f64>() * 3.0 / 254.0;
            assert!((f64::from(*logit) - expected).abs() <= most + 1e-4, "{logit} for {expected}");
        }
    }
}
