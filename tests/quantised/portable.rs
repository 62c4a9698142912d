//! Portable tokens: what a gather returns, another cache that takes them, and their values.

use crate::common::Random;
use crate::model::bell;
use crate::quantised::{Kind, MnnCache, Shape, Unit, get, live_bytes_equal};
use crate::{edit, layout, range, shapes, view};
use mnnkv::layout as library;
use proptest::prelude::*;

/// A cache of some tokens that was never edited.
fn filled(shape: Shape, seed: u64) -> MnnCache {
    let mut random = Random::new(seed);
    let shape = Shape { max: shape.max.max(2), ..shape };
    let mut cache = MnnCache::new(shape);
    cache.fill_free_bytes(&mut random);
    for m in [shape.max.div_ceil(2), shape.max / 3] {
        let mut tokens = || bell(&mut random, shape.heads * m * shape.dims, 0.5, 2.0);
        cache.append(&tokens(), &tokens());
    }
    cache
}

/// Portable tokens by the facts: codes, scale, bias and key sum of K, and V without scales.
fn portable(cache: &MnnCache, begin: usize, count: usize) -> (Vec<u8>, Vec<u8>) {
    let s = cache.shape;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (head, t) in (0..s.heads).flat_map(|head| (begin..begin + count).map(move |t| (head, t))) {
        keys.extend(get(&cache.key, &s.key_places(head, t)));
        if s.key == Kind::Int8 {
            keys.extend(&cache.key_sum[s.key_sum(head, t)..][..4]);
        }
        values.extend(get(&cache.value, &s.value_places(head, t)));
    }
    (keys, values)
}

fn scales(cache: &MnnCache) -> Vec<u8> {
    let s = cache.shape;
    let heads = if s.value == Kind::Int8 { s.heads } else { 0 };
    let head = |head| (0..2 * s.dims).map(move |i| (head, i / s.dims, i % s.dims));
    let pairs = (0..heads).flat_map(head).map(|(head, bias, d)| match (cache.value_scale(head, 0, d), bias) {
        ((scale, _), 0) => scale,
        ((_, bias), _) => bias,
    });
    pairs.flat_map(f32::to_le_bytes).collect()
}

/// All tokens of a cache in one of another unit and packing, larger by `more` tokens.
fn repacked(from: &MnnCache, unit: Unit, pack: (usize, usize), more: usize) -> MnnCache {
    let mut to = MnnCache::new(Shape { unit, pack, max: from.n + more, gaps: (8, 0), ..from.shape });
    let (source, target) = (layout(from), layout(&to));
    let mut rows = (vec![0; source.dense_key_bytes(from.n)], vec![0; source.dense_value_bytes(from.n)]);
    let mut scales = vec![0; source.scale_bytes()];
    library::gather(&view(&source, from), range(&source, 0, from.n), &mut rows.0, &mut rows.1).unwrap();
    library::gather_scales(&view(&source, from), &mut scales).unwrap();
    let (mut cache, all) = (edit(&target, &mut to), range(&target, 0, from.n));
    library::scatter_scales(&mut cache, all, &scales).unwrap();
    library::scatter(&mut cache, all, &rows.0, &rows.1).unwrap();
    library::changed(&mut cache, all, from.n as u32).unwrap();
    to.n = from.n;
    to
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn gather_returns_portable_tokens(shape in shapes(), seed: u64, ends: (prop::sample::Index, prop::sample::Index)) {
        let cache = filled(shape, seed);
        let (a, b) = (ends.0.index(cache.n + 1), ends.1.index(cache.n + 1));
        let (begin, count) = (a.min(b), a.abs_diff(b));
        let expected = portable(&cache, begin, count);
        let layout = layout(&cache);
        prop_assert_eq!(layout.dense_key_bytes(count), expected.0.len());
        prop_assert_eq!(layout.dense_value_bytes(count), expected.1.len());
        let mut rows = (vec![0; expected.0.len()], vec![0; expected.1.len()]);
        library::gather(&view(&layout, &cache), range(&layout, begin, count), &mut rows.0, &mut rows.1).unwrap();
        prop_assert!(rows == expected);
        let mut found = vec![0; layout.scale_bytes()];
        library::gather_scales(&view(&layout, &cache), &mut found).unwrap();
        prop_assert!(found == scales(&cache));
    }

    #[test]
    fn tokens_and_sums_are_the_same_in_another_packing_and_back(
        shape in shapes(), other in shapes(), more in 0usize..100, seed: u64,
    ) {
        let cache = filled(shape, seed);
        let there = repacked(&cache, other.unit, other.pack, more);
        prop_assert!(portable(&there, 0, cache.n) == portable(&cache, 0, cache.n));
        prop_assert!(scales(&there) == scales(&cache));
        let back = repacked(&there, shape.unit, shape.pack, more);
        let mut model = MnnCache::new(back.shape);
        model.take(&cache);
        prop_assert_eq!(live_bytes_equal(&back, &model, 0.0), Ok(()));
    }

}

#[test]
fn scales_of_other_tokens_are_refused_behind_token_0() {
    let shape = Shape { heads: 2, ..crate::model::shape(10, 64, Unit { l: 4, h: 8 }) };
    let (mut cache, other) = (filled(shape, 1), filled(shape, 2));
    let (layout, before) = (layout(&cache), cache.clone());
    let mut edited = edit(&layout, &mut cache);
    library::scatter_scales(&mut edited, range(&layout, 3, 4), &scales(&before)).unwrap();
    let refused = library::scatter_scales(&mut edited, range(&layout, 3, 4), &scales(&other)).unwrap_err();
    assert!(refused.message().contains("value_in") && refused.message().contains("3 on"), "{refused}");
    assert!(cache.value == before.value);
}
