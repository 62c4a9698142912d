//! Worked examples: compressed tokens, as a host sees them.

use super::host::Host;
use super::random::Random;
use crate::layout::Spec;
use crate::session::metrics::Metrics;
use crate::session::tests::shared::Session;
use crate::status::{Status, shortage};
use serde_json::{Value, json};
use std::time::Instant;

/// One layer whose tokens are all compressed but for the first and the last 16.
fn config(mode: &str, workers: u32) -> Value {
    json!({
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": mode,
        "kv_lossless_front_n": 1, "kv_lossless_hot_sink_tokens": 16, "kv_lossless_hot_recent_tokens": 16,
        "kv_lossless_block_tokens": 256, "kv_lossless_store_grouped_step_tokens": 4096,
        "kv_lossless_store_bootstrap_tokens": 0, "kv_lossless_async_threads": workers,
    })
}

struct Chat {
    session: Session,
    host: Host,
    random: Random,
}

impl Chat {
    /// A host with blocks of two pages.
    fn new(config: Value) -> Self {
        let spec = Spec::f16_flash(1, 64, 16, 2048);
        let session = Session::new(config.to_string().as_bytes(), 2, 1).unwrap();
        Chat { session, host: Host::exactly(spec), random: Random::new(5) }
    }

    fn begin(&mut self) {
        let len = self.host.len();
        assert_eq!(self.session.begin(0, self.host.cache(), len).unwrap(), len);
        self.check(false);
    }

    fn end(&mut self, rows: usize) {
        self.host.append(rows, &mut self.random);
        let len = self.host.len();
        self.session.end(0, 0, rows as u32, self.host.cache(), len).unwrap();
    }

    fn step(&mut self, rows: usize) {
        self.begin();
        self.end(rows);
    }

    /// Every token reads as it was written, or, where it may be, as zeros.
    fn check(&self, may_be_gone: bool) {
        let now = self.host.dense();
        self.host.check(&now, self.host.tokens.len(), |_| may_be_gone);
    }

    fn metrics(&self) -> Metrics {
        self.session.metrics(None).unwrap()
    }
}

#[test]
fn measuring_changes_no_byte_and_gives_no_memory_back() {
    for (mode, workers) in [("probe", 0), ("full", 0), ("probe", 1), ("full", 1)] {
        let mut chat = Chat::new(config(mode, workers));
        chat.step(1500);
        for _ in 0..50 {
            chat.check(false);
            chat.step(1);
            std::thread::yield_now();
        }
        while chat.metrics().h2o_lossless_raw_bytes.max(0.0) < 5.0 * 256.0 * 256.0 {
            std::thread::yield_now();
        }
        let metrics = chat.metrics();
        assert_eq!((metrics.h2o_released_bytes, metrics.h2o_lossless_fallback_count), (0.0, 0.0));
        assert_eq!(metrics.h2o_resident_saved_bytes, 0.0);
        assert!(metrics.h2o_lossless_ratio > 1.5 && metrics.h2o_lossless_restored_blocks.is_nan());
        let decoded = metrics.h2o_lossless_decompressed_bytes;
        assert!(if mode == "full" { decoded == metrics.h2o_lossless_raw_bytes } else { decoded.is_nan() });
    }
}

#[test]
fn stored_tokens_leave_memory_and_leave_it_again_without_encoding() {
    let mut chat = Chat::new(config("store", 0));
    chat.step(1500);
    let first = chat.metrics();
    let raw = 5.0 * 256.0 * 256.0;
    assert_eq!(first.h2o_lossless_raw_bytes, raw);
    assert!(first.h2o_resident_saved_bytes > raw * 0.4, "{first:?}");
    assert!(cfg!(not(target_os = "linux")) || first.h2o_released_bytes > raw * 0.9, "{first:?}");
    for round in 1..=3 {
        chat.begin();
        assert_eq!(chat.metrics().h2o_lossless_restored_blocks, 5.0 * f64::from(round));
        chat.end(1);
        chat.check(true);
        let metrics = chat.metrics();
        assert_eq!(metrics.h2o_lossless_raw_bytes, raw, "nothing was encoded again");
        assert_eq!(metrics.h2o_resident_saved_bytes, first.h2o_resident_saved_bytes);
        assert!(metrics.h2o_released_bytes >= f64::from(round + 1) * first.h2o_released_bytes * 0.9);
    }
    chat.begin();
}

#[test]
fn a_full_queue_is_counted_and_what_was_skipped_comes_later() {
    let mut config = config("store", 1);
    config["kv_lossless_max_queue"] = json!(1);
    // The worker must not be done with the first block before the second is handed in.
    config["kv_lossless_effort"] = json!(9);
    let mut chat = Chat::new(config);
    chat.step(1500);
    chat.begin();
    chat.end(0);
    let skipped = chat.metrics().h2o_lossless_backpressure_skip_count;
    assert_eq!(skipped, 1.0, "the first block is with the worker, the second finds no room");
    assert_eq!(chat.metrics().h2o_lossless_fallback_count, 0.0);
    while chat.metrics().h2o_lossless_raw_bytes.max(0.0) < 5.0 * 256.0 * 256.0 {
        chat.step(0);
    }
    chat.begin();
}

#[test]
fn what_a_worker_encodes_while_a_layer_computes_is_released_when_its_step_ends() {
    let mut config = config("store", 1);
    // One block at a time may be on its way.
    config["kv_lossless_pending_bytes"] = json!(1);
    let mut chat = Chat::new(config);
    chat.step(1500);
    let start = Instant::now();
    for blocks in 1..=5 {
        chat.begin();
        let saved = chat.metrics().h2o_resident_saved_bytes;
        while chat.metrics().h2o_lossless_raw_bytes.max(0.0) < f64::from(blocks) * 256.0 * 256.0 {
            assert!(start.elapsed().as_secs() < 60, "block {blocks} was not handed in");
            std::thread::yield_now();
        }
        chat.end(1);
        assert!(chat.metrics().h2o_resident_saved_bytes > saved, "block {blocks}");
    }
    chat.begin();
}

#[test]
fn a_damaged_blob_fails_begin_and_the_layer_works_once_it_is_repaired() {
    let mut chat = Chat::new(config("store", 0));
    chat.step(1500);
    let flip = |chat: &Chat| chat.session.state().unwrap().store.as_mut().unwrap().flip_blobs(1000);
    flip(&chat);
    let before = chat.host.dense();
    let len = chat.host.len();
    let error = chat.session.begin(0, chat.host.cache(), len).unwrap_err();
    assert_eq!(error.status(), Status::Corrupt, "{error}");
    assert!(chat.host.dense() == before, "zeros are no tokens, and no token was written");
    let end = chat.session.end(0, 0, 1, chat.host.cache(), len).unwrap_err();
    assert_eq!(end.status(), Status::InvalidArgument, "{end}: the layer is not open");
    assert_eq!(chat.session.begin(0, chat.host.cache(), len).unwrap_err().status(), Status::Corrupt);
    flip(&chat);
    chat.step(10);
    chat.begin();
}

#[test]
fn a_block_that_fails_is_counted_once() {
    let mut failed = 0;
    for seed in 0..200 {
        let mut chat = Chat::new(config("probe", 0));
        chat.step(20);
        chat.begin();
        shortage::set(3, seed);
        chat.end(340);
        shortage::set(0, 0);
        let count = chat.metrics().h2o_lossless_fallback_count;
        assert!(count <= 1.0, "one block, {count} failures");
        failed += count as u32;
        let mut state = chat.session.state().unwrap();
        assert_eq!(state.store.as_mut().unwrap().statistics(None).submitted_blocks, u64::from(count == 0.0));
    }
    assert!((10..190).contains(&failed), "{failed}");
}
