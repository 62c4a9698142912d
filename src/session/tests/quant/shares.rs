//! The parts of a budget that layers get.

use super::budget::model;
use super::*;
use crate::attend::BLOCK;
use crate::session::LayerCache;
use crate::session::budget::{Model, room};
use crate::session::window::Window;

#[test]
fn layers_of_a_list_keep_k8v4_and_get_the_bytes_for_it() {
    let layout = layout(Dtype::F16, PACKS[0], 5000);
    let mut random = Random::new(9);
    let mut random_bytes = |len: usize| {
        let numbers: Vec<f32> = (0..len / 2).map(|_| random.unit() as f32).collect();
        let mut bytes = vec![0; len];
        narrow(Dtype::F16, Endian::Native, &numbers, &mut bytes);
        bytes
    };
    let [key, value] = [layout.key_bytes(), layout.value_bytes()].map(&mut random_bytes);
    for config in [r#""kv_quant": "k4v4""#, r#""kv_memory_bytes": 600000"#] {
        let config = format!(r#"{{{config}, "kv_quant_k8v4_layers": [1]}}"#);
        let session = Session::with_host(config.as_bytes(), b"", 2, 2, Host { attends: true }).unwrap();
        let mut caches = [(); 2].map(|()| (key.clone(), value.clone(), 0));
        for _ in 0..250 {
            for (layer, (key, value, kv_len)) in (0..).zip(&mut caches) {
                let begun = session.begin(layer, Some(Cache::new(&layout, key, value).unwrap()), *kv_len).unwrap();
                *kv_len = begun.kv_len + 16;
                session.end(layer, 0, 0, Cache::new(&layout, key, value).unwrap(), *kv_len).unwrap();
            }
        }
        let outlook = session.outlook().unwrap();
        assert!(outlook.ends_with("; 1 of 2 layers keep K in 8 bits"), "{outlook}");
        let heads = [0, 1].map(|layer| {
            let blocks = session.blocks_for_tests(layer);
            let heads = blocks.iter().flat_map(|(.., heads)| heads).flatten();
            let few = heads.clone().filter(|bytes| bits::by_format(DIMS, bytes).is_some()).count();
            (heads.count(), few)
        });
        let [(all, few), (listed, listed_few)] = heads;
        assert!(few > all / 2 && listed_few == 0, "{heads:?} of {config}");
        assert!(all.abs_diff(listed) <= all / 20 && all > 60, "as many tokens: {heads:?} of {config}");
        let stats = session.memory_stats().unwrap();
        assert!(stats.budget_bytes == 0 || stats.rung == Rung::Dropping && stats.bytes <= stats.budget_bytes);
        if stats.budget_bytes > 0 {
            let working = room(stats.budget_bytes, stats.working_bytes as usize);
            let model = Model { layers: 2, k8v4_layers: 1, working, ..model(&layout.rows()) };
            let (holds, found) = (Holds::new(stats.budget_bytes, &model), (all * BLOCK / KV_HEADS) as u64 + 16 + 95);
            assert!(holds.quantised_tokens.abs_diff(found) <= found / 20, "{found} for {holds:?}");
            // As the first begin has said, which knows no working memory.
            assert!(stats.quantised_tokens.abs_diff(found) <= found / 5, "{found} for {stats:?}");
        }
    }
}

#[test]
fn an_opened_chat_of_unequal_layers_has_as_many_tokens_in_memory_as_the_saved_one() {
    let path = ChatPath::new();
    let config =
        format!(r#"{{"kv_memory_bytes": 500000, "kv_memory_wait_us": 10000000, "kv_memory_file": "{}"}}"#, path.text());
    let session = || Session::with_host(config.as_bytes(), b"", 3, 1, Host { attends: true }).unwrap();
    let (narrow, wide) = (layout(Dtype::F16, PACKS[0], 5000), layout(Dtype::F32, PACKS[0], 5000));
    let layouts = [&narrow, &narrow, &wide];
    let mut caches = layouts.map(|layout| (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()], 0));
    let saved = session();
    for _ in 0..150 {
        for (layer, (layout, (key, value, kv_len))) in (0..).zip(layouts.iter().zip(&mut caches)) {
            let begun = saved.begin(layer, Some(Cache::new(layout, key, value).unwrap()), *kv_len).unwrap();
            *kv_len = begun.kv_len + 16;
            saved.end(layer, 0, 0, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
        }
    }
    let mut given: Vec<LayerCache<'_>> = layouts
        .iter()
        .zip(&mut caches)
        .map(|(layout, (key, value, kv_len))| (Some(Cache::new(layout, key, value).unwrap()), *kv_len))
        .collect();
    saved.save(None, &mut given).unwrap();
    let before = saved.memory_stats().unwrap();
    drop(saved);
    let opened = session();
    opened.open(None).unwrap();
    let after = opened.memory_stats().unwrap();
    assert!(before.file_tokens > 0, "{before:?}");
    assert_eq!((after.file_tokens, after.block_bytes), (before.file_tokens, before.block_bytes));
}

#[test]
fn a_budget_gives_windows_what_they_need_and_the_rest_to_the_others() {
    for (bytes, file) in [(400_000, false), (700_000, true), (1_600_000, false)] {
        let path = ChatPath::new();
        let file = if file { format!(r#", "kv_memory_file": "{}""#, path.text()) } else { String::new() };
        let config = format!(r#"{{"kv_memory_bytes": {bytes}{file}}}"#);
        let session = Session::with_host(config.as_bytes(), b"", 4, 2, Host { attends: true }).unwrap();
        (0..3).for_each(|layer| session.set_window(Some(layer), 128, 0).unwrap());
        let layout = layout(Dtype::F16, PACKS[0], 5000);
        let mut caches = [(); 4].map(|()| (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()], 0));
        let mut limits = [None; 2];
        while limits[1].is_none() {
            for (layer, (key, value, kv_len)) in (0..).zip(&mut caches) {
                *kv_len =
                    session.begin(layer, Some(Cache::new(&layout, key, value).unwrap()), *kv_len).unwrap().kv_len + 16;
                session.end(layer, 0, 0, Cache::new(&layout, key, value).unwrap(), *kv_len).unwrap();
            }
            let (stats, lengths) = (session.memory_stats().unwrap(), session.lengths(3).unwrap());
            assert!(stats.bytes <= stats.budget_bytes, "{stats:?}");
            let rungs = [Rung::K8V4, if file.is_empty() { Rung::Dropping } else { Rung::File }];
            let reached = limits.iter_mut().zip(rungs).filter(|(limit, rung)| limit.is_none() && stats.rung >= *rung);
            reached.for_each(|(limit, _)| *limit = Some(u64::from(lengths.logical)));
        }
        let model = Model {
            layers: 4,
            working: session.memory_stats().unwrap().working_bytes as usize,
            windows: vec![Window { tokens: 128, rollback: 0 }; 3],
            ..model(&layout.rows())
        };
        let holds = Holds::new(bytes, &model);
        let [raw, quantised] = limits.map(Option::unwrap);
        assert!(raw.abs_diff(holds.raw_tokens) <= 96 + raw / 25, "{raw} for {holds:?}");
        let slack = holds.quantised_tokens / if file.is_empty() { 20 } else { 6 };
        assert!(quantised.abs_diff(holds.quantised_tokens) <= 128 + slack, "{quantised} for {holds:?}");
        let whole = Holds::new(bytes, &Model { windows: Vec::new(), ..model });
        for tokens in [holds.quantised_tokens, session.memory_stats().unwrap().quantised_tokens] {
            assert!(tokens > 2 * whole.quantised_tokens, "{tokens}: {holds:?} {whole:?}");
        }
        for layer in 0..3 {
            let blocks = session.blocks_for_tests(layer);
            assert!(blocks.iter().all(|(.., heads)| heads.iter().all(Option::is_some)), "no window loses a block");
            let seen: Vec<u32> = expand(&session.positions(layer as u32, Some(0)).unwrap()).collect();
            let length = session.lengths(layer as u32).unwrap().logical;
            assert!(seen.into_iter().eq(length - 127..length));
        }
        let outlook = session.outlook().unwrap();
        assert!(outlook.ends_with("; 3 of 4 layers attend to the newest 128 tokens, and keep no others"), "{outlook}");
        assert!(session.report().unwrap().contains(r#"{"layer":1,"window":128,"#));
    }
}
