//! Worked examples of eviction, edits, and the clock of a layer.

use super::attention::OwnedSums;
use super::chat::Chat;
use crate::host::packing::flash;
use crate::session::ScoredRows;
use serde_json::{Value, json};

/// Small layers.
fn small(config: Value, layers: u32, max_tokens: u32) -> Chat {
    Chat::new(config, layers, flash(1, 1, 4, max_tokens))
}

/// Blocks of 2, of which the first, the last and the best of the others stay: 6 tokens of 10.
pub(super) fn six_of_ten() -> Value {
    json!({
        "kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 2,
        "kv_h2o_sink_tokens": 2, "kv_h2o_recent_tokens": 2, "kv_h2o_trigger_min_tokens": 4,
        "kv_h2o_target_mode": "static", "kv_h2o_target_keep_ratio": 0.6, "kv_h2o_prefill_queries": -1,
    })
}

#[test]
fn keep_renumbers_the_tokens_that_stay() {
    let mut chat = small(six_of_ten(), 1, 32);
    chat.look(0, 10, |_, at| if at == 4 { 9.0 } else { 1.0 });
    assert_eq!((chat.lengths(0), chat.positions(0)), ((10, 10), vec![[0, 10]]), "a plan waits for the next step");
    chat.begin(0);
    assert_eq!((chat.lengths(0), chat.positions(0)), ((10, 6), vec![[0, 2], [4, 2], [8, 2]]));
    chat.close(0, 0, 0).unwrap();
    // Tokens 1 to 4 and 8 become 0 to 4. Tokens 2 and 3 were evicted before.
    chat.keep(0, &[[1, 4], [8, 1]]);
    assert_eq!((chat.lengths(0), chat.positions(0)), ((5, 3), vec![[0, 1], [3, 2]]));
    chat.look(0, 2, |_, _| 1.0);
    assert_eq!((chat.lengths(0), chat.positions(0)), ((7, 5), vec![[0, 1], [3, 4]]));
}

#[test]
fn shares_of_a_plan_are_of_the_whole_chat() {
    // 6 of 10 tokens are left, and 2 are new. 8 of the chat's 12 must stay.
    {
        let (shares, stays) = ([8.0, 4.0, 8.0].map(|n| n / 12.0), 8);
        let mut config = six_of_ten();
        config["kv_h2o_update_interval"] = json!(1);
        let mut chat = small(config, 1, 32);
        chat.look(0, 10, |_, at| if at == 4 { 9.0 } else { 1.0 });
        chat.look(0, 2, |_, _| 1.0);
        let metrics = chat.metrics(0);
        assert_eq!((metrics.h2o_keep_ratio, metrics.h2o_lossy_ratio), (8.0 / 12.0, 12.0 / 8.0));
        let [target, floor, quantized] = shares;
        assert!((metrics.h2o_target_keep_effective - target).abs() < 1e-6, "{metrics:?}");
        assert!((metrics.h2o_floor_keep_by_recent_sink - floor).abs() < 1e-6, "{metrics:?}");
        assert!((metrics.h2o_block_quantized_keep - quantized).abs() < 1e-6, "{metrics:?}");
        chat.begin(0);
        assert_eq!(chat.lengths(0), (12, stays));
    }
}

#[test]
fn a_chat_that_is_too_long_to_count_is_refused() {
    let mut chat = small(json!({}), 1, 32);
    let most = i32::MAX as u32;
    // The cache is empty.
    chat.session.state().unwrap().layers[0].step_mut().unwrap().tokens.lengths.logical = most - 3;
    chat.begin(0);
    chat.hosts[0].append(4);
    let error = chat.close(0, 0, 4).unwrap_err();
    assert!(error.to_string().contains("2147483647 logical tokens"), "{error}");
    assert_eq!(chat.lengths(0), (most - 3, 0));
    chat.hosts[0].tokens.truncate(3);
    chat.close(0, 0, 3).unwrap();
    assert_eq!((chat.lengths(0), chat.positions(0)), ((most, 3), vec![[most as i32 - 3, 3]]));
}

#[test]
fn a_plan_that_a_rollback_made_stale_is_replaced() {
    let mut chat = small(six_of_ten(), 1, 32);
    chat.look(0, 10, |_, at| if at == 4 { 9.0 } else { 1.0 });
    assert_eq!(chat.plans(0), 1.0);
    chat.keep(0, &[[0, 9]]);
    let metrics = chat.metrics(0);
    assert_eq!((metrics.h2o_plan_count, metrics.h2o_stale_plan_count), (2.0, 1.0));
    chat.begin(0);
    // 6 of 9 tokens must stay: the first block, the last two blocks (token 7 is recent), and one more.
    assert_eq!(chat.positions(0), [[0, 2], [4, 5]]);
}

#[test]
fn a_keep_of_everything_leaves_the_plan_as_it_was() {
    let mut chat = small(six_of_ten(), 1, 32);
    chat.look(0, 10, |_, at| if at == 4 { 9.0 } else { 1.0 });
    chat.keep(0, &[[0, 4], [4, 6]]);
    assert_eq!(chat.plans(0), 1.0);
    chat.begin(0);
    assert_eq!(chat.positions(0), [[0, 2], [4, 2], [8, 2]]);
}

#[test]
fn every_layer_has_its_own_clock() {
    let mut config = six_of_ten();
    config["kv_h2o_update_interval"] = json!(4);
    config["kv_h2o_prefill_queries"] = json!(0);
    let mut chat = small(config, 3, 64);
    for layer in 0..3 {
        chat.look(layer, 10, |_, _| 1.0);
        assert_eq!(chat.plans(layer), 0.0, "the rows of a prompt do not count");
    }
    for step in 1..=16 {
        chat.look(0, 1, |_, _| 1.0);
        if step % 2 == 0 {
            chat.look(1, 1, |_, _| 1.0);
        }
        assert_eq!((chat.plans(0), chat.plans(1)), (f64::from(step / 4), f64::from(step / 8)));
    }
    assert_eq!(chat.plans(2), 0.0);
}

#[test]
fn only_the_last_rows_of_a_prompt_are_scored() {
    // The last two rows look at token 4, those before them at token 6.
    let look = |row, at| if at == if row < 2 { 4 } else { 6 } { 9.0 } else { 0.1 };
    for (rows, kept) in [(-1, Some(6)), (2, Some(4)), (1, Some(4)), (0, None)] {
        let mut config = six_of_ten();
        config["kv_h2o_prefill_queries"] = json!(rows);
        let mut chat = small(config, 1, 32);
        chat.look(0, 10, look);
        chat.begin(0);
        let expected = kept
            .map_or(vec![[0, 10]], |kept| if kept == 4 { vec![[0, 2], [4, 2], [8, 2]] } else { vec![[0, 2], [6, 4]] });
        assert_eq!(chat.positions(0), expected, "{rows} rows");
    }
}

#[test]
fn a_step_of_many_rows_is_a_prompt_and_a_draft_is_not() {
    let mut config = six_of_ten();
    config["kv_h2o_prefill_queries"] = json!(0);
    config["kv_h2o_update_interval"] = json!(1);
    let mut chat = small(config, 1, 256);
    chat.look(0, 10, |_, _| 1.0);
    chat.look(0, 65, |_, _| 1.0);
    assert_eq!(chat.plans(0), 0.0);
    chat.look(0, 64, |_, _| 1.0);
    assert_eq!(chat.plans(0), 1.0);
}

#[test]
fn a_cache_stays_below_its_cap_over_a_long_chat() {
    for (ratio, trigger, cap, interval) in
        [(3.5, 512, 48, 4), (1.0, 0, 48, 4), (3.5, 1 << 20, 60, 16), (1000.0, 16, 48, 4)]
    {
        let mut chat = small(
            json!({
                "kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 8,
                "kv_h2o_sink_tokens": 4,
                "kv_h2o_recent_tokens": 16, "kv_h2o_max_tokens": cap, "kv_h2o_target_lossy_ratio": ratio,
                "kv_h2o_trigger_min_tokens": trigger, "kv_h2o_update_interval": interval,
            }),
            1,
            128,
        );
        let worth = |at: u32| (at.wrapping_mul(2_654_435_761) >> 20) as f32;
        let mut least = cap;
        for step in 0..3000 {
            chat.look(0, 1, |_, at| worth(at));
            let (logical, physical) = chat.lengths(0);
            assert_eq!(logical, step + 1);
            assert!(physical <= cap, "{physical} of {logical} tokens, {cap} allowed, ratio {ratio}");
            least = if step > 200 { least.min(physical) } else { cap };
        }
        assert!(least > cap / 3, "it is not emptied either: {least}");
    }
}

#[test]
fn drafts_that_are_rolled_back_stay_below_the_cap() {
    let mut chat = small(
        json!({
            "kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 8,
            "kv_h2o_sink_tokens": 4,
            "kv_h2o_recent_tokens": 16, "kv_h2o_max_tokens": 48, "kv_h2o_update_interval": 4,
        }),
        1,
        128,
    );
    chat.look(0, 5, |_, _| 1.0);
    for step in 0..1000 {
        chat.look(0, 4, |_, at| (at % 7) as f32 + 1.0);
        let (logical, physical) = chat.lengths(0);
        assert!(physical <= 48, "{physical} of {logical} tokens");
        chat.keep(0, &[[0, (logical - step * 5 % 4) as i32]]);
    }
}

#[test]
fn a_long_chat_keeps_the_share_of_its_ratio() {
    const BLOCK: u32 = 32;
    const INTERVAL: u32 = 16;
    let mut chat = small(
        json!({
            "kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": BLOCK,
            "kv_h2o_sink_tokens": 16,
            "kv_h2o_recent_tokens": 96, "kv_h2o_target_lossy_ratio": 3.5, "kv_h2o_update_interval": INTERVAL,
        }),
        1,
        8192,
    );
    let worth: Vec<f32> = (0..16_384u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 16) as f32).collect();
    chat.look(0, 64, |_, at| worth[at as usize]);
    for logical in 65..=16_384 {
        chat.look(0, 1, |_, at| worth[at as usize]);
        let physical = chat.lengths(0).1;
        assert_eq!(chat.lengths(0).0, logical);
        if logical < 512 {
            assert_eq!(physical, logical, "below the trigger nothing goes");
        } else if logical > 512 + INTERVAL {
            let wanted = (logical as f32 / 3.5).ceil() as u32;
            assert!((wanted..=wanted + BLOCK + INTERVAL + 1).contains(&physical), "{physical} of {logical}");
        }
    }
}

#[test]
fn a_reset_layer_is_new_and_its_metrics_stay() {
    let mut chat = small(six_of_ten(), 2, 32);
    chat.look(1, 10, |_, at| if at == 4 { 9.0 } else { 1.0 });
    chat.begin(1);
    chat.session.reset(None).unwrap();
    assert_eq!((chat.lengths(1), chat.positions(1)), ((0, 0), vec![]));
    let metrics = chat.session.metrics(None).unwrap();
    assert_eq!((metrics.h2o_total_evict_tokens, metrics.h2o_plan_count), (4.0, 1.0));
    assert!(chat.session.report().unwrap().contains("\"layer\":1"));
    // The reset closed the open step.
    chat.hosts[1].tokens.clear();
    chat.look(1, 3, |_, _| 1.0);
    assert_eq!((chat.lengths(1), chat.positions(1)), ((3, 3), vec![[0, 3]]));
}

#[test]
fn metrics_that_were_not_measured_are_absent() {
    let mut chat = small(json!({}), 3, 32);
    assert!(chat.session.metrics(None).unwrap().fields().all(|(_, value)| value.is_nan()));
    let does = "\"does\":\"all layers keep all tokens\"";
    assert_eq!(chat.session.report().unwrap(), format!("{{{does},\"warnings\":[],\"layers\":[]}}"));
    chat.look(1, 3, |_, _| 1.0);
    let metrics = chat.metrics(1);
    // A token has one dim, and V of it takes 4.
    assert_eq!((metrics.h2o_logical_tokens, metrics.h2o_reclaimable_bytes), (3.0, 29.0 * 10.0));
    assert!(metrics.h2o_keep_ratio.is_nan() && metrics.h2o_lossless_ratio.is_nan());
    assert!(chat.metrics(0).h2o_logical_tokens.is_nan());
    let json: Value = serde_json::from_str(&chat.session.report().unwrap()).unwrap();
    assert_eq!((&json["h2o_logical_tokens"], &json["layers"][0]["layer"]), (&json!(3), &json!(1)));
    assert!(json.get("h2o_lossless_ratio").is_none() && json["layers"].as_array().unwrap().len() == 1);
}

/// Decode steps after a prompt. `scored` selects the scored ones.
fn decode(chat: &mut Chat, steps: usize, scored: impl Fn(usize) -> bool) {
    for step in 0..steps {
        if scored(step) {
            chat.look(0, 1, |_, at| if at < 6 { 9.0 } else { 1.0 });
        } else {
            unscored(chat, 1);
        }
    }
}

fn unscored(chat: &mut Chat, rows: usize) {
    chat.begin(0);
    chat.hosts[0].append(rows);
    chat.close(0, 1, rows).unwrap();
}

#[test]
fn without_scores_nothing_is_evicted_unless_the_config_says_so() {
    for (evict, cap) in [(false, 0), (true, 0), (false, 40), (true, 40)] {
        let mut config = six_of_ten();
        config["kv_h2o_update_interval"] = json!(4);
        config["kv_h2o_max_tokens"] = json!(cap);
        config["kv_h2o_evict_unscored"] = json!(evict);
        let mut chat = small(config, 1, 128);
        let before = chat.session.warnings().unwrap();
        unscored(&mut chat, 20);
        decode(&mut chat, 40, |_| false);
        let metrics = chat.session.metrics(None).unwrap();
        assert_eq!(chat.lengths(0).1 < 60, evict, "{cap}");
        assert_eq!(metrics.h2o_unscored_plan_count > 0.0, !evict);
        assert_eq!((metrics.h2o_plan_count > 0.0, metrics.h2o_over_limit_count > 0.0), (evict, !evict && cap > 0));
        let warnings = chat.session.warnings().unwrap();
        let warned =
            warnings.strip_prefix(&before).unwrap().lines().filter(|l| l.contains("kv_h2o_evict_unscored")).count();
        assert_eq!(warned, usize::from(!evict), "{warnings}");
        assert!(before.is_empty() || warnings[before.len()..].starts_with('\n') || evict, "{warnings}");
    }
}

#[test]
fn tokens_stay_until_a_scored_row_has_seen_them() {
    let mut config = six_of_ten();
    config["kv_h2o_update_interval"] = json!(1);
    let mut chat = small(config, 1, 128);
    decode(&mut chat, 1, |_| true);
    // 20 more tokens come without scores: a plan can only choose the first, which is a sink.
    unscored(&mut chat, 20);
    decode(&mut chat, 3, |_| false);
    chat.begin(0);
    assert_eq!(chat.lengths(0), (24, 24));
    chat.close(0, 0, 0).unwrap();
    decode(&mut chat, 1, |_| true);
    chat.begin(0);
    assert_eq!(chat.lengths(0).0, 25);
    assert!(chat.lengths(0).1 < 20, "{:?}", chat.positions(0));
}

#[test]
fn scored_rows_names_the_layers_and_steps_that_are_scored() {
    let mut config = six_of_ten();
    config["kv_h2o_layer_start"] = json!(1);
    for (rows, prompts) in [(0, false), (3, true), (-1, true)] {
        config["kv_h2o_prefill_queries"] = json!(rows);
        let mut chat = small(config.clone(), 2, 256);
        let wants = |chat: &Chat, layer, queries| chat.session.scored_rows(layer, queries).unwrap().rows > 0;
        for queries in [0, 1, 64, 65, 4000] {
            assert!(!wants(&chat, 0, queries), "no token of layer 0 goes");
            assert_eq!(wants(&chat, 1, queries), prompts && queries > 0, "an empty layer's step is a prompt");
        }
        chat.begin(1);
        assert_eq!(wants(&chat, 1, 1), prompts);
        chat.end(1, 8);
        for open in [false, true] {
            if open {
                chat.begin(1);
            }
            assert_eq!([0, 1, 64, 65, 4000].map(|n| wants(&chat, 1, n)), [false, true, true, prompts, prompts]);
        }
        assert!(chat.session.scored_rows(2, 1).is_err());
    }
    assert_eq!(small(json!({}), 1, 32).session.scored_rows(0, 1).unwrap(), ScoredRows::default());
}

#[test]
fn an_aborted_step_keeps_the_eviction_of_its_begin_and_moves_no_clock() {
    let mut config = six_of_ten();
    config["kv_h2o_update_interval"] = json!(3);
    let mut chat = small(config, 1, 64);
    chat.look(0, 10, |_, at| if at == 4 { 9.0 } else { 1.0 });
    for _ in 0..20 {
        chat.begin(0);
        assert_eq!(
            (chat.lengths(0), chat.positions(0)),
            ((10, 6), vec![[0, 2], [4, 2], [8, 2]]),
            "evicted by the first"
        );
        chat.session.abort(0, Some(chat.hosts[0].cache()), 6).unwrap();
    }
    assert_eq!(chat.plans(0), 1.0, "no clock has moved");
    for plans in [1.0, 1.0, 2.0] {
        chat.look(0, 1, |_, _| 1.0);
        assert_eq!(chat.plans(0), plans);
    }
}

#[test]
fn scores_of_an_aborted_step_are_forgotten() {
    let mut chat = small(six_of_ten(), 1, 64);
    chat.begin(0);
    let block_tokens = chat.session.scored_rows(0, 1).unwrap().block_tokens;
    chat.session.block_sums(0, 0, &OwnedSums::of_heads(1, block_tokens, &[vec![1.0]])).unwrap();
    chat.session.abort(0, None, 0).unwrap();
    chat.look(0, 3, |_, _| 1.0);
    assert_eq!(chat.lengths(0), (3, 3));
}

#[test]
fn an_empty_layer_may_begin_without_a_cache() {
    let mut chat = small(
        json!({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true,
        "kv_lossless_runtime_mode": "store"}),
        1,
        64,
    );
    assert_eq!(chat.session.begin_without(0, 0).unwrap(), 0);
    chat.end(0, 3);
    let error = chat.session.begin_without(0, 0).unwrap_err();
    assert!(error.message().contains("kv_len of layer 0 is 0; 3 expected"), "{error}");
    assert!(chat.session.begin_without(0, 3).is_err(), "there are tokens now");
}
