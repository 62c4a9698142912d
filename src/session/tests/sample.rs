//! A real model's attention: what the session makes of the bundled sample.

use super::host::expand;
use crate::dtype::Dtype;
use crate::h2o::Tile;
use crate::layout::{self, Layout, Spec};
use crate::session::tests::shared::Session;
use crate::store::Cache;
use half::f16;
use serde_json::json;

const TOKENS: usize = 1088;
/// Attention was recorded from here on.
const PROMPT: usize = 1024;
const HEADS: usize = 2;
const DIMS: usize = 64;
const QUERY_HEADS: usize = 4;

fn read(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/kv").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One recorded layer: K and V as `[head][token][dim]`, attention as `[query head][query][token]`.
struct Recorded {
    key: Vec<u8>,
    value: Vec<u8>,
    attention: Vec<u8>,
}

impl Recorded {
    fn new(layer: u32) -> Self {
        Recorded {
            key: read(&format!("l{layer}_k_h2_t1088_d64.f16")),
            value: read(&format!("l{layer}_v_h2_t1088_d64.f16")),
            attention: read(&format!("attention_l{layer}_h4_q64_t1088.f16")),
        }
    }

    /// What a query gave to some tokens, and the sum of it.
    fn row(&self, head: usize, query: usize, tokens: &[u32]) -> (Vec<u8>, f32) {
        let row = &self.attention[(head * (TOKENS - PROMPT) + query) * TOKENS * 2..][..TOKENS * 2];
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| [row[*t as usize * 2], row[*t as usize * 2 + 1]]).collect();
        let values = bytes.as_chunks::<2>().0.iter().map(|b| f16::from_ne_bytes(*b).to_f32());
        let sum = values.sum();
        (bytes, sum)
    }
}

/// Rows `[head][token][dim]` of these tokens alone.
fn cut(rows: &[u8], tokens: &[u32]) -> Vec<u8> {
    let len = DIMS * 2;
    let head = |h: usize| tokens.iter().flat_map(move |t| &rows[(h * TOKENS + *t as usize) * len..][..len]);
    (0..HEADS).flat_map(head).copied().collect()
}

#[test]
fn a_real_chat_shrinks_as_the_ratio_says_and_every_token_that_stays_is_the_recorded_one() {
    let spec = Spec::f16_flash(HEADS as u32, DIMS as u32, 8, 1152);
    let layout = Layout::new(&spec).unwrap();
    let config = json!({
        "kv_h2o_enable": true, "kv_h2o_layer_start": 2, "kv_h2o_block_tokens": 32, "kv_h2o_sink_tokens": 16,
        "kv_h2o_recent_tokens": 96, "kv_h2o_target_lossy_ratio": 3.5,
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
        "kv_lossless_scope": "h2o_kept", "kv_lossless_hot_recent_tokens": 64,
    });
    let session = Session::new(config.to_string().as_bytes(), 4, 1).unwrap();
    for layer in 2..4 {
        let recorded = Recorded::new(layer);
        let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let mut len = 0;
        for step in 0..=TOKENS - PROMPT + 1 {
            let cache = Cache { layout: &layout, key: &mut key, value: &mut value };
            len = session.begin(layer, cache, len).unwrap();
            let mut held: Vec<u32> = expand(&session.positions(layer).unwrap()).collect();
            let logical = session.lengths(layer).unwrap().logical;
            let range = layout.range(0, len).unwrap();
            let mut rows =
                (vec![0; layout.dense_key_bytes(len as usize)], vec![0; layout.dense_value_bytes(len as usize)]);
            layout::gather(&layout, &key, &value, range, &mut rows.0, &mut rows.1).unwrap();
            assert!(rows.0 == cut(&recorded.key, &held) && rows.1 == cut(&recorded.value, &held), "step {step}");
            if logical as usize == TOKENS {
                break;
            }
            let new: Vec<u32> = if step == 0 { (0..PROMPT as u32).collect() } else { vec![logical] };
            let range = layout.range(len, new.len() as u32).unwrap();
            let (keys, values) = (cut(&recorded.key, &new), cut(&recorded.value, &new));
            layout::scatter(&layout, &keys, &values, range, &mut key, &mut value).unwrap();
            len += new.len() as u32;
            held.extend(&new);
            let mut heads = 0;
            if step > 0 {
                heads = QUERY_HEADS as u32;
                for head in 0..QUERY_HEADS {
                    let (data, sum) = recorded.row(head, step - 1, &held);
                    let tile = Tile {
                        dtype: Dtype::F16,
                        pack: 0,
                        queries: 1,
                        heads: 1,
                        tokens: held.len(),
                        token_begin: 0,
                        first: true,
                        last: true,
                        data: &data,
                        update_scale: None,
                        row_sum: Some(&[sum]),
                    };
                    session.scores(layer, 0, &tile).unwrap();
                }
            }
            let cache = Cache { layout: &layout, key: &mut key, value: &mut value };
            session.end(layer, heads, new.len() as u32, cache, len).unwrap();
        }
        let metrics = session.metrics(Some(layer)).unwrap();
        assert_eq!(metrics.h2o_logical_tokens, TOKENS as f64);
        assert!((3.1..=3.5).contains(&metrics.h2o_lossy_ratio), "{}", metrics.h2o_lossy_ratio);
        assert_eq!((metrics.h2o_plan_count, metrics.h2o_stale_plan_count), (4.0, 0.0));
    }
}
