//! Pins.

use super::chat::Chat;
use super::examples::six_of_ten;
use super::saved::{ChatPath, save};
use crate::common::Random;
use crate::host::expand;
use crate::host::packing::flash;
use crate::status::Status;
use serde_json::{Value, json};

/// Blocks of 2, of which the first, the last and the best two of the others stay: 8 tokens of 10.
fn eight_of_ten() -> Value {
    let mut config = six_of_ten();
    config["kv_h2o_target_keep_ratio"] = json!(0.7);
    config["kv_h2o_update_interval"] = json!(1);
    config
}

/// Attention to token 4 above all.
fn at_four(_: usize, at: u32) -> f32 {
    if at == 4 { 9.0 } else { 1.0 }
}

#[test]
fn a_prompt_that_is_pinned_before_it_comes_stays_until_it_is_unpinned() {
    let mut chat = Chat::new(eight_of_ten(), 2, flash(1, 1, 4, 32));
    chat.session.pin(6, 1, true).unwrap();
    chat.look(0, 10, at_four);
    chat.begin(0);
    assert_eq!(chat.positions(0), [[0, 2], [4, 6]], "the pinned block takes the place of the second best");
    chat.look(1, 10, at_four);
    chat.session.pin(0, 10, false).unwrap();
    chat.begin(1);
    assert_eq!(chat.positions(1), [[0, 6], [8, 2]], "the waiting plan is made anew");
}

#[test]
fn pins_follow_their_tokens_through_an_edit_and_end_with_a_reset() {
    let mut chat = Chat::new(eight_of_ten(), 1, flash(1, 1, 4, 32));
    chat.session.pin(7, 1, true).unwrap();
    chat.step(0, 9);
    chat.keep(0, &[[1, 8]]);
    chat.look(0, 2, at_four);
    chat.begin(0);
    assert_eq!(chat.positions(0), [[0, 2], [4, 6]], "token 7 became 6");
    chat.session.reset(None).unwrap();
    chat.hosts[0].tokens.clear();
    chat.look(0, 10, at_four);
    chat.begin(0);
    assert_eq!(chat.positions(0), [[0, 6], [8, 2]]);
}

#[test]
fn pins_of_tokens_to_come_are_those_of_all_layers_when_one_undoes_a_step() {
    let mut config = six_of_ten();
    config["kv_h2o_evict_unscored"] = json!(true);
    let mut chat = Chat::new(config, 2, flash(1, 1, 4, 64));
    chat.session.pin(12, 4, true).unwrap();
    (0..2).for_each(|layer| chat.step(layer, 10));
    chat.step(0, 5);
    chat.keep(0, &[[0, 10], [10, 0]]);
    for layer in 0..2 {
        (0..30).for_each(|_| chat.step(layer, 1));
        let positions: Vec<u32> = expand(&chat.positions(layer)).collect();
        assert!(positions.len() < 40 && (12..16).all(|at| positions.contains(&at)), "layer {layer}: {positions:?}");
    }
}

#[test]
fn pins_beyond_the_limit_leave_all_other_tokens_to_go_and_are_counted() {
    let mut config = six_of_ten();
    config["kv_h2o_max_tokens"] = json!(16);
    config["kv_h2o_update_interval"] = json!(1);
    config["kv_h2o_prefill_queries"] = json!(0);
    let mut chat = Chat::new(config, 1, flash(1, 1, 4, 64));
    chat.session.pin(0, 20, true).unwrap();
    chat.step(0, 20);
    for _ in 0..20 {
        chat.look(0, 1, |_, _| 1.0);
    }
    chat.begin(0);
    let (logical, physical) = chat.lengths(0);
    assert_eq!((logical, chat.positions(0)[0]), (40, [0, 22]), "a block beside the pinned tokens, and the last");
    assert!(physical <= 20 + 2 + 3, "{physical} tokens");
    assert_eq!(chat.metrics(0).h2o_over_limit_count, 21.0);
}

#[test]
fn a_range_of_pins_that_ends_beyond_all_positions_is_refused() {
    let chat = Chat::new(six_of_ten(), 1, flash(1, 1, 4, 32));
    chat.session.pin(i32::MAX as u32 - 1, 1, true).unwrap();
    for (first, count) in [(i32::MAX as u32, 1), (u32::MAX, u32::MAX), (1 << 30, 1 << 30)] {
        let error = chat.session.pin(first, count, true).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        assert!(error.to_string().contains(&format!("first is {first} and count {count}")), "{error}");
    }
}

#[test]
fn no_random_chat_loses_a_token_that_is_pinned_or_protected() {
    let mut evicted = 0.0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let (sink, recent) = (random.below(5), random.below(9));
        let mut config = json!({
            "kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": 3.5,
            "kv_h2o_evict_unscored": true,
            "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
            "kv_lossless_scope": "h2o_kept", "kv_lossless_async_threads": 0,
        });
        for (key, number) in [
            ("kv_h2o_sink_tokens", sink),
            ("kv_h2o_recent_tokens", recent),
            ("kv_h2o_block_tokens", random.from(1, 6)),
            ("kv_h2o_trigger_min_tokens", 8),
            ("kv_h2o_update_interval", random.from(1, 3)),
            ("kv_lossless_hot_recent_tokens", 4),
            ("kv_lossless_block_tokens", random.from(1, 9)),
        ] {
            config[key] = json!(number);
        }
        let spec = flash(random.from(1, 3) as u32, random.from(1, 9) as u32, 4, 160);
        let (mut chat, path) = (Chat::new(config.clone(), 1, spec), ChatPath::new());
        // Words of any bits, NaN and infinity among them.
        chat.hosts[0].plain = random.once_in(2);
        let mut pinned = vec![false; 400];
        for _ in 0..40 {
            let logical = chat.lengths(0).0 as usize;
            match random.below(8) {
                0 => {
                    let (first, count, on) = (random.below(logical + 9), random.below(5), !random.once_in(3));
                    chat.session.pin(first as u32, count as u32, on).unwrap();
                    pinned[first..first + count].fill(on);
                }
                1 if logical > 6 => {
                    let cut = random.below(logical - 4);
                    chat.keep(0, &[[0, cut as i32], [cut as i32 + 3, (logical - cut) as i32 - 3]]);
                    pinned.drain(cut..cut + 3);
                    pinned.extend([false; 3]);
                }
                // Pins of a layer that never had tokens are in no file.
                2 if logical > 0 => {
                    save(&mut chat, &path).unwrap();
                    chat.session.open(None).unwrap();
                }
                _ if chat.hosts[0].room() < 12 => {}
                _ => {
                    let before: Vec<u32> = expand(&chat.positions(0)).collect();
                    chat.begin(0);
                    chat.hosts[0].check_tokens(false);
                    let after: Vec<u32> = expand(&chat.positions(0)).collect();
                    for (at, position) in before.iter().enumerate() {
                        let stays = pinned[*position as usize] || at < sink || at + recent >= before.len();
                        assert!(!stays || after.contains(position), "seed {seed}: {position} of {before:?}");
                    }
                    chat.end(0, random.from(1, 12));
                }
            }
        }
        evicted += chat.metrics(0).h2o_total_evict_tokens;
    }
    assert!(evicted > 2000.0, "{evicted}");
}
