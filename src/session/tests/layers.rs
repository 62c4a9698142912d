//! Worked examples: the layers that are compressed, the tokens of each step, and the blocks that workers decode ahead.

use super::chat::Chat;
use crate::host::Host;
use crate::host::packing::flash;
#[cfg(target_os = "linux")]
use crate::sys::pages;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// K and V of a token.
const TOKEN: f64 = 256.0;

/// `more`: keys besides those that switch compression on, for all but the first and the last 16 tokens.
fn chat(layers: u32, more: Value) -> Chat {
    let mut config = json!({
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
        "kv_lossless_hot_sink_tokens": 16, "kv_lossless_hot_recent_tokens": 16, "kv_lossless_block_tokens": 256,
        "kv_lossless_store_grouped_step_tokens": 4096, "kv_lossless_store_bootstrap_tokens": 0,
        "kv_lossless_async_threads": 0, "kv_h2o_layer_start": 0, "kv_h2o_trigger_min_tokens": 1 << 20,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Chat::new(config, layers, flash(1, 64, 16, 2048))
}

impl Chat {
    fn step_all(&mut self, rows: usize) {
        (0..self.hosts.len()).for_each(|layer| self.step(layer, rows));
    }

    /// Tokens of a layer that were encoded; 0 when nothing was measured.
    fn encoded(&self, layer: usize) -> f64 {
        self.metrics(layer).h2o_lossless_raw_bytes.max(0.0) / TOKEN
    }

    /// Steps until all five blocks of every layer are only compressed.
    fn step_until_released(&mut self) {
        self.step_all(1500);
        within_a_minute(|| {
            self.step_all(0);
            let mut state = self.session.state().unwrap();
            state.store.statistics(None).released_blocks == 5 * self.hosts.len() as u64
        });
    }
}

fn within_a_minute(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute");
        std::thread::yield_now();
    }
}

#[test]
fn scope_and_mode_select_the_layers() {
    let [front, kept, both] = ["front_n", "h2o_kept", "front_n_and_h2o_kept"];
    for (scope, mode, expected) in [
        (front, "probe", &[0][..]),
        (front, "full", &[0, 1]),
        (front, "store", &[0, 1]),
        (kept, "probe", &[1]),
        (kept, "full", &[1]),
        (kept, "store", &[1, 2, 3]),
        (both, "probe", &[0, 2]),
        (both, "full", &[0, 1, 2]),
        (both, "store", &[0, 1, 2, 3]),
    ] {
        let mut chat = chat(
            4,
            json!({
                "kv_h2o_enable": true, "kv_h2o_layer_start": 1, "kv_lossless_front_n": 2, "kv_lossless_scope": scope,
                "kv_lossless_runtime_mode": mode,
            }),
        );
        chat.step_all(400);
        let taken: Vec<usize> = (0..4).filter(|layer| chat.encoded(*layer) > 0.0).collect();
        assert_eq!(taken, expected, "{scope} {mode}");
        let measured = |layer: &usize| !chat.metrics(*layer).h2o_lossless_backpressure_skip_count.is_nan();
        assert!((0..4).filter(measured).eq(taken), "what was not measured is absent");
    }
}

#[test]
fn a_step_submits_a_bounded_number() {
    let mut chat = chat(
        1,
        json!({
            "kv_lossless_front_n": 1, "kv_lossless_runtime_mode": "full", "kv_lossless_block_tokens": 16,
            "kv_lossless_store_grouped_step_tokens": 40,
        }),
    );
    chat.step_all(600);
    for step in 2..7 {
        chat.step_all(1);
        // The third block begins within the 40 tokens.
        assert_eq!(chat.encoded(0), f64::from(step * 3 * 16), "step {step}");
    }
}

#[test]
fn the_first_sample_is_small_and_of_another_length_in_each_layer() {
    let mut chat = chat(
        3,
        json!({
            "kv_lossless_front_n": 3, "kv_lossless_runtime_mode": "full", "kv_lossless_block_tokens": 64,
            "kv_lossless_store_grouped_step_tokens": 64, "kv_lossless_store_bootstrap_tokens": 56,
        }),
    );
    // An eighth of a block more from layer to layer; after a whole block it starts over.
    let first = [56.0, 64.0, 8.0];
    chat.step_all(500);
    assert_eq!([0, 1, 2].map(|layer| chat.encoded(layer)), first);
    chat.step_all(1);
    assert_eq!([0, 1, 2].map(|layer| chat.encoded(layer)), first.map(|first| first + 64.0));
    chat.session.reset(Some(2)).unwrap();
    chat.hosts[2] = Host::new(chat.hosts[2].spec(), 2);
    chat.step_all(500);
    assert_eq!(chat.encoded(2), 8.0 + 64.0 + 8.0, "a chat that begins anew");
}

#[test]
fn a_gap_of_an_edit_is_submitted_if_it_is_large_enough() {
    let mut chat = chat(1, json!({}));
    chat.step_all(1500);
    assert_eq!(chat.encoded(0), 5.0 * 256.0);
    // The second block, tokens 320 to 575: 206 are left of it, then 20.
    for (kept, encoded) in [(vec![[0, 348], [398, 1102]], 206.0), (vec![[0, 330], [516, 934]], 0.0)] {
        let before = chat.encoded(0);
        chat.keep(0, &kept);
        chat.step_all(0);
        assert_eq!(chat.encoded(0) - before, encoded);
    }
    chat.begin_whole(0);
}

#[test]
fn the_next_layer_is_decoded_during_this_one_and_nothing_stays_between_steps() {
    for scope in ["front_n", "h2o_kept"] {
        let mut chat = chat(
            2,
            json!({ "kv_lossless_scope": scope, "kv_h2o_enable": scope == "h2o_kept", "kv_lossless_async_threads": 1 }),
        );
        chat.step_until_released();
        for _ in 0..3 {
            let decoded = |chat: &Chat| chat.metrics(1).h2o_lossless_decompressed_bytes.max(0.0);
            let (before, restored) = (decoded(&chat), chat.metrics(1));
            chat.begin_whole(0);
            within_a_minute(|| decoded(&chat) == before + 5.0 * 256.0 * TOKEN);
            chat.end(0, 0);
            chat.begin_whole(1);
            let now = chat.metrics(1);
            assert_eq!(now.h2o_lossless_prefetch_hit - restored.h2o_lossless_prefetch_hit.max(0.0), 5.0);
            assert_eq!(now.h2o_lossless_prefetch_miss, restored.h2o_lossless_prefetch_miss.max(0.0));
            chat.end(1, 0);
            let mut state = chat.session.state().unwrap();
            assert_eq!(state.store.statistics(None).decoded_cache_bytes, 0);
        }
    }
}

#[test]
fn a_worker_helps_with_blocks_that_were_not_prefetched() {
    let mut chat = chat(1, json!({ "kv_lossless_async_threads": 1 }));
    chat.step_until_released();
    within_a_minute(|| {
        chat.step_all(0);
        chat.metrics(0).h2o_lossless_prefetch_hit > 0.0
    });
    let metrics = chat.metrics(0);
    let found = metrics.h2o_lossless_decode_cache_hit + metrics.h2o_lossless_prefetch_miss;
    assert_eq!((metrics.h2o_lossless_restore_hit, found), (0.0, metrics.h2o_lossless_restored_blocks));
}

#[cfg(target_os = "linux")]
#[test]
fn memory_of_a_layer_is_taken_in_its_own_begin_and_by_no_other_call() {
    for workers in [0, 1] {
        let mut chat = chat(2, json!({ "kv_lossless_async_threads": workers }));
        chat.step_until_released();
        // Keys of 768 cold tokens, which are released: to release them again only counts the pages in memory.
        let in_memory = |chat: &mut Chat| pages::give_back(&mut chat.hosts[1].key[256 * 128..1024 * 128]);
        in_memory(&mut chat);
        chat.begin_whole(0);
        chat.end(0, 0);
        chat.session.state().unwrap().store.settle();
        assert_eq!(in_memory(&mut chat), 0);
        chat.begin_whole(1);
        assert!(in_memory(&mut chat) > 0);
    }
}
