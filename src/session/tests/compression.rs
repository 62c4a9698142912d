//! Worked examples of compressed tokens.

use super::chat::Chat;
use crate::host::packing::flash;
use crate::layout::Spec;
use crate::status::Status;
use crate::sys::memory::shortage;
use serde_json::{Value, json};
use std::time::Instant;

/// One layer. All tokens but the first and the last 16 are cold.
fn config(mode: &str, workers: u32) -> Value {
    json!({
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": mode,
        "kv_lossless_front_n": 1, "kv_lossless_hot_sink_tokens": 16, "kv_lossless_hot_recent_tokens": 16,
        "kv_lossless_block_tokens": 256, "kv_lossless_store_grouped_step_tokens": 4096,
        "kv_lossless_store_bootstrap_tokens": 0, "kv_lossless_async_threads": workers,
    })
}

/// Blocks of two pages.
fn chat(config: Value) -> Chat {
    Chat::new(config, 2, flash(1, 64, 16, 2048))
}

#[test]
fn measuring_changes_no_byte_and_releases_no_memory() {
    for (mode, workers) in [("probe", 0), ("full", 0), ("probe", 1), ("full", 1)] {
        let mut chat = chat(config(mode, workers));
        chat.step(0, 1500);
        for _ in 0..50 {
            chat.hosts[0].check_tokens(false);
            chat.step(0, 1);
            std::thread::yield_now();
        }
        while chat.total().h2o_lossless_raw_bytes.max(0.0) < 5.0 * 256.0 * 256.0 {
            std::thread::yield_now();
        }
        let metrics = chat.total();
        assert_eq!((metrics.h2o_released_bytes, metrics.h2o_lossless_fallback_count), (0.0, 0.0));
        assert_eq!(metrics.h2o_resident_saved_bytes, 0.0);
        assert!(metrics.h2o_lossless_ratio > 1.5 && metrics.h2o_lossless_restored_blocks.is_nan());
        let decoded = metrics.h2o_lossless_decompressed_bytes;
        assert!(if mode == "full" { decoded == metrics.h2o_lossless_raw_bytes } else { decoded.is_nan() });
    }
}

#[test]
fn stored_tokens_leave_memory_and_leave_it_again_without_encoding() {
    let mut chat = chat(config("store", 0));
    chat.step(0, 1500);
    let first = chat.total();
    let raw = 5.0 * 256.0 * 256.0;
    assert_eq!(first.h2o_lossless_raw_bytes, raw);
    assert!(first.h2o_resident_saved_bytes > raw * 0.4, "{first:?}");
    assert!(cfg!(not(target_os = "linux")) || first.h2o_released_bytes > raw * 0.9, "{first:?}");
    for round in 1..=3 {
        chat.begin_whole(0);
        assert_eq!(chat.total().h2o_lossless_restored_blocks, 5.0 * f64::from(round));
        chat.end(0, 1);
        chat.hosts[0].check_tokens(true);
        let metrics = chat.total();
        assert_eq!(metrics.h2o_lossless_raw_bytes, raw, "nothing was encoded again");
        assert_eq!(metrics.h2o_lossless_restored_bytes, raw * f64::from(round));
        let codec_us = metrics.h2o_lossless_compress_us + metrics.h2o_lossless_decompress_us;
        assert!((metrics.h2o_codec_us - codec_us).abs() < 1.0 && metrics.h2o_lossless_decompress_us > 0.0);
        assert!(metrics.h2o_lossless_async_wait_us >= metrics.h2o_host_wait_us_max);
        assert!(metrics.h2o_lossless_queue_depth_peak.is_nan(), "no worker, no queue");
        assert_eq!(metrics.h2o_resident_saved_bytes, first.h2o_resident_saved_bytes);
        assert!(metrics.h2o_released_bytes >= f64::from(round + 1) * first.h2o_released_bytes * 0.9);
    }
    chat.begin_whole(0);
}

#[test]
fn tokens_whose_pages_cannot_leave_memory_stay_raw() {
    // V is [dim][token]: 2048 tokens share a page.
    let spec = Spec { flash_block: 8192, ..flash(1, 64, 1, 8192) };
    let mut chat = Chat::new(config("store", 0), 1, spec);
    for (tokens, stored) in [(2000, 0.0), (2111, 0.0), (1, 2048.0)] {
        chat.step(0, tokens);
        let metrics = chat.total();
        assert_eq!(metrics.h2o_lossless_raw_bytes.max(0.0), stored * 256.0);
        assert!(metrics.h2o_resident_saved_bytes >= stored * 64.0, "{metrics:?}");
    }
    chat.begin_whole(0);
    assert_eq!(
        chat.session.warnings().unwrap(),
        "layer 0 (1 in all) has V of 2048 tokens in each page (flash_block, h_pack): tokens are compressed once all of \
         their page are cold, others stay raw"
    );
}

#[test]
fn a_full_queue_is_counted_and_skipped_blocks_are_submitted_later() {
    let mut config = config("store", 1);
    config["kv_lossless_max_queue"] = json!(1);
    // The first block is with the worker, the second finds no room, unless the worker is done by then.
    let full = |config: &Value| {
        let mut chat = chat(config.clone());
        chat.step(0, 1500);
        chat.begin_whole(0);
        chat.end(0, 0);
        Some(chat).filter(|chat| chat.total().h2o_lossless_backpressure_skip_count == 1.0)
    };
    let mut chat = (0..50).find_map(|_| full(&config)).expect("a full queue in one of 50 chats");
    assert_eq!(chat.total().h2o_lossless_queue_depth_peak, 1.0);
    assert_eq!(chat.total().h2o_lossless_fallback_count, 0.0);
    while chat.total().h2o_lossless_raw_bytes.max(0.0) < 5.0 * 256.0 * 256.0 {
        chat.step(0, 0);
    }
    chat.begin_whole(0);
}

#[test]
fn blocks_encoded_during_a_step_are_released_at_its_end() {
    let config = config("store", 1);
    let mut chat = chat(config);
    chat.step(0, 1500);
    let start = Instant::now();
    for blocks in 1..=5 {
        chat.begin_whole(0);
        let saved = chat.total().h2o_resident_saved_bytes;
        while chat.total().h2o_lossless_raw_bytes.max(0.0) < f64::from(blocks) * 256.0 * 256.0 {
            assert!(start.elapsed().as_secs() < 60, "block {blocks} was not submitted");
            std::thread::yield_now();
        }
        chat.end(0, 1);
        assert!(chat.total().h2o_resident_saved_bytes > saved, "block {blocks}");
    }
    chat.begin_whole(0);
}

#[test]
fn a_damaged_blob_fails_begin_and_the_layer_works_once_it_is_repaired() {
    let mut chat = chat(config("store", 0));
    chat.step(0, 1500);
    let flip = |chat: &Chat| chat.session.state().unwrap().store.flip_blobs(1000);
    flip(&chat);
    let before = chat.hosts[0].all();
    let len = chat.hosts[0].len();
    let error = chat.session.begin(0, chat.hosts[0].cache(), len).unwrap_err();
    assert_eq!(error.status(), Status::Corrupt, "{error}");
    assert!(chat.hosts[0].all() == before, "zeros are no tokens, and no token was written");
    let end = chat.close(0, 0, 1).unwrap_err();
    assert_eq!(end.status(), Status::InvalidArgument, "{end}: the layer is not open");
    assert_eq!(chat.session.begin(0, chat.hosts[0].cache(), len).unwrap_err().status(), Status::Corrupt);
    flip(&chat);
    chat.step(0, 10);
    chat.begin_whole(0);
}

#[test]
fn a_failed_block_is_counted_once_and_stays_raw() {
    for mode in ["probe", "store"] {
        let mut failed = 0;
        for seed in 0..200 {
            let mut chat = Chat::new(config(mode, 0), 1, flash(1, 64, 16, 384));
            chat.step(0, 20);
            chat.begin_whole(0);
            shortage::set(8, seed);
            chat.end(0, 340);
            shortage::set(0, 0);
            let count = chat.total().h2o_lossless_fallback_count;
            failed += count as u32;
            let stats = chat.session.state().unwrap().store.statistics(None);
            let done = if mode == "probe" { stats.submitted_blocks } else { stats.released_blocks };
            assert_eq!(count + done as f64, 1.0, "one block, {count} failures");
            assert_eq!(stats.encoded_bytes, stats.submitted_blocks * 256 * 256);
            // The next step has memory.
            chat.step(0, 0);
            assert_eq!(chat.total().h2o_lossless_raw_bytes, 256.0 * 256.0);
        }
        assert!((10..190).contains(&failed), "{failed}");
    }
}

#[test]
fn the_decode_cache_is_bounded_by_blocks_and_bytes() {
    let block = 256.0 * 256.0;
    for (blocks, bytes, kept) in [(64, 0, 0), (64, 1 << 20, 5), (2, 1 << 20, 2), (64, 3 << 16, 3), (0, 1 << 20, 0)] {
        let mut config = config("store", 0);
        config["kv_lossless_decode_cache_blocks"] = json!(blocks);
        config["kv_lossless_decode_cache_bytes"] = json!(bytes);
        let mut chat = chat(config);
        chat.step(0, 1500);
        let saved = chat.total().h2o_resident_saved_bytes;
        for round in 1..4 {
            chat.step(0, 0);
            let metrics = chat.total();
            assert_eq!(metrics.h2o_resident_saved_bytes, saved - f64::from(kept) * block);
            assert_eq!(
                metrics.h2o_lossless_restore_hit,
                f64::from((round - 1) * kept),
                "{blocks} blocks, {bytes} bytes"
            );
        }
    }
}

#[test]
fn the_strict_check_keeps_tokens_that_a_host_rewrites() {
    let mut config = config("store", 0);
    config["kv_lossless_strict_roundtrip_check"] = json!(true);
    let mut chat = chat(config);
    chat.step(0, 1500);
    let metrics = chat.total();
    assert_eq!(metrics.h2o_lossless_decompressed_bytes, metrics.h2o_lossless_raw_bytes, "each block was decoded once");
    chat.begin_whole(0);
    chat.hosts[0].write(100);
    chat.end(0, 1);
    assert_eq!(chat.total().h2o_lossless_stale_count, 1.0);
    chat.step(0, 1);
    chat.begin_whole(0);
}

#[cfg(target_os = "linux")]
#[test]
fn pages_behind_evicted_tokens_go_back() {
    let mut chat = chat(json!({
        "kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0, "kv_h2o_max_tokens": 600,
        "kv_h2o_recent_tokens": 64,
        "kv_h2o_evict_unscored": true,
    }));
    chat.step(0, 1500);
    let len = chat.hosts[0].len();
    chat.begin_whole(0);
    let left = chat.hosts[0].len();
    let gone = f64::from(len - left) * 256.0;
    let metrics = chat.total();
    assert!(left < 600 && metrics.h2o_released_bytes > 0.9 * gone, "{} of {gone} bytes", metrics.h2o_released_bytes);
    assert_eq!(
        (metrics.h2o_resident_saved_bytes, metrics.h2o_last_evict_tokens * 256.0),
        (metrics.h2o_released_bytes, gone)
    );
}

#[test]
fn waits_have_percentiles_and_a_maximum() {
    let mut chat = chat(config("store", 0));
    chat.step(0, 1500);
    for us in 1..=100 {
        chat.session.state().unwrap().layers[0].lossless.as_mut().unwrap().record_wait(us * 1000);
    }
    let metrics = chat.total();
    let (p50, p95, p99) = (metrics.h2o_host_wait_us_p50, metrics.h2o_host_wait_us_p95, metrics.h2o_host_wait_us_p99);
    assert!((47.0..53.0).contains(&p50) && (90.0..100.0).contains(&p95), "{p50} {p95}");
    assert!((94.0..=100.0).contains(&p99) && p95 <= p99, "{p95} {p99}");
    assert_eq!(metrics.h2o_host_wait_us_max, 100.0);
}

#[test]
fn tokens_that_were_rewritten_are_not_restored_from_their_blobs() {
    for workers in [0, 1] {
        for open in [false, true] {
            let mut chat = chat(config("store", workers));
            chat.step(0, 1500);
            for _ in 0..20 {
                chat.step(0, 1);
            }
            if open {
                chat.begin(0);
            }
            // A part of a block, and more than one whole block.
            for (begin, count) in [(300, 7), (500, 600)] {
                (begin..begin + count).for_each(|at| chat.hosts[0].write(at));
                chat.session.rewritten(0, begin as u32, count as u32).unwrap();
            }
            if !open {
                chat.begin(0);
            }
            chat.hosts[0].check_tokens(false);
            chat.close(0, 0, 1).unwrap();
            for _ in 0..20 {
                chat.step(0, 1);
            }
            chat.begin_whole(0);
            // Only the blocks of rewritten tokens.
            assert!((1.0..20.0).contains(&chat.total().h2o_lossless_stale_count));
        }
    }
}
