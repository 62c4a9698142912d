//! A session over a real model's cache and attention, the bundled sample.

use super::attention::OwnedSums;
use super::chat::Chat;
use crate::common;
use crate::host::expand;
use crate::host::packing::flash;
use half::f16;
use serde_json::json;

const TOKENS: usize = 1088;
/// Attention was recorded from here on.
const PROMPT: usize = 1024;
const HEADS: usize = 2;
const DIMS: usize = 64;
const QUERY_HEADS: usize = 4;

/// One recorded layer: K and V as `[head][token][dim]`, attention as `[query head][query][token]`.
struct Recorded {
    key: Vec<u8>,
    value: Vec<u8>,
    attention: Vec<u8>,
}

impl Recorded {
    fn new(layer: usize) -> Self {
        Recorded {
            key: common::read(&format!("kv/l{layer}_k_h2_t1088_d64.f16")),
            value: common::read(&format!("kv/l{layer}_v_h2_t1088_d64.f16")),
            attention: common::read(&format!("kv/attention_l{layer}_h4_q64_t1088.f16")),
        }
    }

    /// The softmax values of a query for some tokens.
    fn row(&self, head: usize, query: usize, tokens: &[u32]) -> Vec<f64> {
        let row = &self.attention[(head * (TOKENS - PROMPT) + query) * TOKENS * 2..][..TOKENS * 2];
        tokens.iter().map(|t| f16::from_ne_bytes(row.as_chunks().0[*t as usize]).to_f64()).collect()
    }
}

/// A token's rows `[head][dim]`.
fn cut(rows: &[u8], token: u32) -> Vec<u8> {
    let len = DIMS * 2;
    (0..HEADS).flat_map(|head| &rows[(head * TOKENS + token as usize) * len..][..len]).copied().collect()
}

#[test]
fn a_real_chat_shrinks_by_its_ratio_and_keeps_recorded_tokens() {
    let config = json!({
        "kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 2, "kv_h2o_block_tokens": 32,
        "kv_h2o_sink_tokens": 16,
        "kv_h2o_recent_tokens": 96, "kv_h2o_target_lossy_ratio": 3.5,
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
        "kv_lossless_scope": "h2o_kept", "kv_lossless_hot_recent_tokens": 64,
    });
    let mut chat = Chat::new(config, 4, flash(HEADS as u32, DIMS as u32, 8, 1152));
    for layer in 2..4 {
        let recorded = Recorded::new(layer);
        for step in 0..=TOKENS - PROMPT + 1 {
            chat.begin_whole(layer);
            let logical = chat.lengths(layer).0;
            if logical as usize == TOKENS {
                break;
            }
            let new: Vec<u32> = if step == 0 { (0..PROMPT as u32).collect() } else { vec![logical] };
            for token in &new {
                chat.hosts[layer].push((cut(&recorded.key, *token), cut(&recorded.value, *token)));
            }
            let held: Vec<u32> = expand(&chat.positions(layer)).chain(new.iter().copied()).collect();
            let heads = if step > 0 { QUERY_HEADS } else { 0 };
            for head in 0..heads {
                let sums = OwnedSums::of_heads(1, 32, &[recorded.row(head, step - 1, &held)]);
                chat.session.block_sums(layer as u32, 0, &sums).unwrap();
            }
            chat.close(layer, heads, new.len()).unwrap();
        }
        let metrics = chat.metrics(layer);
        assert_eq!(metrics.h2o_logical_tokens, TOKENS as f64);
        assert!((3.1..=3.5).contains(&metrics.h2o_lossy_ratio), "{}", metrics.h2o_lossy_ratio);
        assert_eq!((metrics.h2o_plan_count, metrics.h2o_stale_plan_count), (4.0, 0.0));
    }
}

/// The reference's promise for the first layers, by its own defaults.
#[test]
fn the_first_two_layers_of_a_real_chat_are_stored_in_less_than_ten_thirteenths() {
    let config = json!({
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
        "kv_lossless_async_threads": 0,
    });
    let mut chat = Chat::new(config, 4, flash(HEADS as u32, DIMS as u32, 8, 1152));
    for layer in 0..4 {
        let read = |tensor| common::read(&format!("kv/l{layer}_{tensor}_h2_t1088_d64.f16"));
        let recorded = Recorded { key: read("k"), value: read("v"), attention: Vec::new() };
        for tokens in [0..PROMPT as u32, PROMPT as u32..PROMPT as u32 + 1, PROMPT as u32 + 1..PROMPT as u32 + 2] {
            chat.begin_whole(layer);
            for token in tokens.clone() {
                chat.hosts[layer].push((cut(&recorded.key, token), cut(&recorded.value, token)));
            }
            chat.close(layer, 0, tokens.len()).unwrap();
        }
        chat.begin_whole(layer);
        assert_eq!(chat.metrics(layer).h2o_lossless_ratio.is_nan(), layer > 1, "the first two, and no others");
    }
    let ratio = chat.total().h2o_lossless_ratio;
    assert!(ratio >= 1.3, "{ratio}");
}
