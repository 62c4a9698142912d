//! The store and the session, through the C ABI.

use crate::chat::{Calls, Shortage, blocks, chat};
use crate::failing_allocator::Refused;
use std::ffi::CString;

/// Runs `scenario` for each allocation of each of its calls: once with that one refused, and once with all from that one
/// on. Returns the number of allocations.
pub fn each_call(what: &str, scenario: impl Fn(Shortage) -> Calls) -> u64 {
    let nowhere = scenario(Shortage { call: usize::MAX, refused: Refused::None });
    let (mut allocations, mut failures) = (0, 0);
    for call in 0..nowhere.made {
        for kind in [Refused::Nth, Refused::From] {
            for n in 0.. {
                let calls = scenario(Shortage { call, refused: kind(n) });
                failures += calls.failures;
                if calls.refusals == 0 {
                    allocations += if kind(0) == Refused::Nth(0) { n } else { 0 };
                    break;
                }
            }
        }
    }
    println!("{what}: {} calls, {allocations} allocations, {failures} calls failed", nowhere.made);
    assert!(failures > 0);
    allocations
}

#[test]
fn sessions_that_evict_lose_no_other_token() {
    for (name, config) in [
        (
            "evict and store",
            cr#"{"kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 8,
                "kv_h2o_sink_tokens": 4, "kv_h2o_recent_tokens": 8, "kv_h2o_trigger_min_tokens": 32, "kv_h2o_update_interval": 2,
                "kv_h2o_target_lossy_ratio": 1.5, "kv_lossless_enable": true, "kv_lossless_runtime_enable": true,
                "kv_lossless_runtime_mode": "store", "kv_lossless_scope": "front_n_and_h2o_kept",
                "kv_lossless_block_tokens": 16, "kv_lossless_hot_recent_tokens": 8, "kv_lossless_hot_sink_tokens": 0,
                "kv_lossless_store_bootstrap_tokens": 0, "kv_lossless_decode_cache_blocks": 4,
                "kv_lossless_async_threads": 1}"#,
        ),
        (
            "evict by keys and store",
            cr#"{"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_policy": "mass", "kv_h2o_evict_unscored": true, "kv_h2o_sink_tokens": 4,
                "kv_h2o_recent_tokens": 8, "kv_h2o_trigger_min_tokens": 32, "kv_h2o_update_interval": 2,
                "kv_h2o_target_lossy_ratio": 1.5, "kv_lossless_enable": true, "kv_lossless_runtime_enable": true,
                "kv_lossless_runtime_mode": "store", "kv_lossless_scope": "h2o_kept", "kv_lossless_block_tokens": 16,
                "kv_lossless_hot_recent_tokens": 8, "kv_lossless_async_threads": 0}"#,
        ),
    ] {
        assert!(each_call(name, |shortage| chat(config, false, shortage)) > 50);
    }
}

#[test]
fn sessions_that_keep_all_lose_no_token() {
    let path = std::env::temp_dir().join(format!("mnnkv-out-of-memory-{}.kv", std::process::id()));
    let budget = r#"{"kv_memory_bytes": 1000000, "kv_quant": "k8v4", "kv_quant_sink_tokens": 8"#;
    // Elsewhere paths are opened by the standard library, which aborts when memory runs out.
    let file = if cfg!(unix) { format!(r#", "kv_memory_file": "{}""#, path.display()) } else { String::new() };
    for (name, config, attends) in [
        (
            "full",
            cr#"{"kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "full",
                "kv_lossless_block_tokens": 16, "kv_lossless_hot_recent_tokens": 8, "kv_lossless_codec_runtime": "gear_delta",
                "kv_a key of no meaning": 1, "kv_h2o_\u00e9": "x"}"#,
            false,
        ),
        ("a budget", &CString::new(format!("{budget}{file}}}")).unwrap(), true),
    ] {
        assert!(each_call(name, |shortage| chat(config, attends, shortage)) > 50);
    }
}

#[test]
fn stores_lose_no_token() {
    assert!(each_call("store", blocks) > 50);
}
