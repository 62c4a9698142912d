//! The oracle itself: a worked example, the goldens, and what stale codes and sums do to each reader.

use crate::common::Random;
use crate::quantised::{
    Kind, MnnCache, Query, READERS, Shape, Unit, attend, exact, f32_at, goldens, kinds, live_bytes_equal,
};

/// A cache of one head.
pub fn shape(mode: usize, dims: usize, unit: Unit) -> Shape {
    let (key, value) = kinds(mode);
    Shape { key, value, unit, heads: 1, dims, pack: (1, 4), elem: 4, block: 64, max: 128, gaps: (0, 0) }
}

/// Numbers of a bell curve around `mean`.
pub fn bell(random: &mut Random, count: usize, mean: f64, deviation: f64) -> Vec<f32> {
    let mut unit = || (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
    (0..count).map(|_| (mean + deviation * unit()) as f32).collect()
}

#[test]
fn the_worked_example_has_the_bytes_of_its_table() {
    let small = Shape { block: 4, max: 4, ..shape(10, 3, Unit { l: 2, h: 2 }) };
    let mut cache = MnnCache::new(small);
    cache.append(&[1., 2., 3., 3., 2., 1., 0., 2., 3.], &[0., 10., 1., 255., 20., 1., 51., 61., 1.]);
    let codes = |bytes: &[u8]| bytes.iter().map(|code| *code as i8).collect::<Vec<_>>();
    let near = |bytes: &[u8], at: usize, expected: &[f32]| {
        for (i, expected) in expected.iter().enumerate() {
            let x = f32_at(bytes, at + 4 * i);
            assert!((x - expected).abs() <= 1e-6 * expected.abs(), "{at}, {i}: {x} for {expected}");
        }
    };
    assert_eq!(cache.key_max, [3., 2., 3.]);
    assert_eq!(codes(&cache.key[..8]), [-128, 127, 127, 127, 127, 0, -128, 0]);
    near(&cache.key, 8, &[2. / 255., 2. / 255., -0.9960784, -0.9960784]);
    assert_eq!(codes(&cache.key[24..32]), [-128, 127, 0, 0, 127, 0, 0, 0]);
    near(&cache.key, 32, &[3. / 255., 0., -1.494118, 0.]);
    near(&cache.key_sum, 0, &[-2., -2., -3.]);
    assert_eq!(codes(&cache.value[..8]), [-128, 127, -128, -78, -77, 0, 127, 0]);
    near(&cache.value, 8, &[1., 0.2, 128., 35.6]);
    assert_eq!(codes(&cache.value[24..32]), [0; 8]);
    near(&cache.value, 32, &[0., 0., 1., 0.]);
    near(&cache.value_sum, 0, &[306., 91., 3., 0.]);

    let kept = cache.kept(&[(0, 1), (2, 1)]);
    assert_eq!(codes(&kept.key[..8]), [-128, 127, -128, 127, 127, 0, 127, 0]);
    near(&kept.key, 8, &[2. / 255., 3. / 255., -0.9960784, -1.494118]);
    assert_eq!(kept.key[24..], cache.key[24..]);
    near(&kept.key_sum, 0, &[-2., -3., -3.]);
    assert_eq!(codes(&kept.value[..8]), [-128, -77, -128, 127, 0, 0, 0, 0]);
    assert_eq!(kept.value[8..], cache.value[8..]);
    near(&kept.value_sum, 0, &[51., 71., 2., 0.]);
}

#[test]
fn an_eviction_of_the_oracle_leaves_the_live_bytes_of_the_golden() {
    for golden in goldens() {
        let kept = golden.before.kept(&golden.pairs);
        live_bytes_equal(&kept, &golden.after, golden.tolerance()).unwrap_or_else(|e| panic!("{}: {e}", golden.name));
        let same = golden.before.kept(&[(0, golden.before.n)]);
        live_bytes_equal(&same, &golden.before, golden.tolerance()).unwrap_or_else(|e| panic!("{}: {e}", golden.name));
    }
}

#[test]
fn key_sums_of_a_golden_are_those_of_its_codes() {
    for golden in goldens().iter().filter(|golden| golden.generic && golden.before.shape.key == Kind::Int8) {
        for cache in [&golden.before, &golden.after] {
            for (head, t) in (0..cache.shape.heads).flat_map(|head| (0..cache.n).map(move |t| (head, t))) {
                let sum = cache.key(head, t).iter().fold(0.0, |sum, x| sum + x);
                assert_eq!(sum, f32_at(&cache.key_sum, cache.shape.key_sum(head, t)), "{} {head} {t}", golden.name);
            }
        }
    }
}

/// The largest difference of two outputs.
pub fn error(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |max, error| if error > max { error } else { max })
}

#[test]
fn stale_codes_and_stale_sums_are_errors_of_signed_readers_alone() {
    let mut random = Random::new(1);
    let mut cache = MnnCache::new(shape(10, 64, Unit { l: 4, h: 8 }));
    let (keys, values) = (bell(&mut random, 64 * 64, 0.0, 1.0), bell(&mut random, 64 * 64, 1.5, 2.0));
    cache.append(&keys, &values);
    let query = Query::new(&bell(&mut random, 64, 0.0, 4.0));
    let cut = cache.kept(&[(0, 50)]);
    let stale = MnnCache { n: 50, ..cache.clone() };
    let stale_codes = MnnCache { value_sum: cut.value_sum.clone(), ..stale.clone() };
    for reader in READERS {
        let [all, codes, none] =
            [&stale, &stale_codes, &cut].map(|cache| error(&attend(cache, 0, &query, reader), &exact(&cut, 0, &query)));
        println!("{}: {all} {codes} {none}", reader.name);
        assert!(none < 0.05, "{}: {none}", reader.name);
        if reader.signed {
            assert!(all > 5.0 && (0.3..5.0).contains(&codes), "{}: {all} {codes}", reader.name);
        } else {
            assert_eq!((all, codes), (none, none));
        }
    }
}

#[test]
fn a_wrong_key_sum_is_an_error_of_every_reader() {
    let mut random = Random::new(2);
    let mut cache = MnnCache::new(shape(9, 64, Unit { l: 16, h: 4 }));
    cache.append(&bell(&mut random, 9 * 64, 0.0, 1.0), &bell(&mut random, 9 * 64, 0.0, 1.0));
    let query = Query::new(&bell(&mut random, 64, 4.0, 1.0));
    let mut wrong = cache.clone();
    wrong.key_sum[4 * 3..4 * 4].fill(0);
    for reader in READERS {
        assert!(error(&attend(&cache, 0, &query, reader), &exact(&cache, 0, &query)) < 0.01);
        assert!(error(&attend(&wrong, 0, &query, reader), &exact(&cache, 0, &query)) > 0.1);
    }
}

/// The error of an index is at most half the widest step of the codebook, the outermost left aside.
#[test]
fn tokens_of_tq_are_read_back_near_what_was_appended() {
    let mut random = Random::new(3);
    for (mode, largest) in [(12, 0.25), (14, 0.13)] {
        let mut cache = MnnCache::new(shape(mode, 64, Unit { l: 4, h: 8 }));
        let (keys, values) = (bell(&mut random, 64 * 64, 0.0, 1.0), bell(&mut random, 64 * 64, 0.5, 2.0));
        cache.append(&keys, &values);
        for (given, read) in [(&keys, MnnCache::key as fn(&_, _, _) -> _), (&values, MnnCache::value)] {
            let back: Vec<f32> = (0..64).flat_map(|t| read(&cache, 0, t)).collect();
            let square = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x * x)).sum::<f64>();
            let error = square(&mut given.iter().zip(&back).map(|(a, b)| a - b)) / square(&mut given.iter().copied());
            assert!(error.sqrt() < largest, "{mode}: {}", error.sqrt());
        }
    }
}
