//! Recall against a host that keeps every token of its chat, and a model of its rules in f64.

mod chat;
mod model;

use super::{alone, number};
use crate::common::Random;
use chat::Chat;
use serde_json::json;

/// The high half of a schedule's number; see [`super::KINDS`].
const PART: u64 = 9;

/// A chat of random steps and edits. After each call the cache has the tokens that its positions say, with all their bits;
/// the tokens that are in it are those of the model.
///
/// `is_short`: allocations of a session fail at random. Then the model has no part, and calls are repeated.
fn schedule(seed: u64, is_short: bool) {
    let mut random = Random::new(seed);
    let summary = random.pick(&["gauss", "gauss", "sketch"]);
    let block = random.from(4, 9);
    let config = json!({
        "kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": random.from(2, 6),
        "kv_h2o_trigger_min_tokens": random.from(1, 40), "kv_h2o_max_tokens": random.pick(&[0, 0, 60]),
        "kv_recall_enable": true, "kv_recall_summary": summary, "kv_recall_block_tokens": block,
        "kv_recall_sink_tokens": random.below(9), "kv_recall_recent_tokens": random.from(1, 9),
        "kv_recall_query_window": random.from(1, 6), "kv_recall_hysteresis": random.pick(&[0.0, 0.5, 1.0]),
        "kv_recall_exchanges": random.pick(&[0, 1, 1, 3]),
    });
    let mut chat = Chat::new(config, is_short, &mut random);
    let prompt = random.from(1, 90);
    chat.step(prompt, !random.once_in(8));
    for _ in 0..random.from(5, 60) {
        match random.below(20) {
            0 => {
                let chunk = random.from(60, 90);
                chat.step(chunk, true);
            }
            1 => chat.fail(random.below(5)),
            2 => chat.roll_back(random.below(30) as u32),
            3 => chat.edit(),
            4 if random.once_in(4) => chat.reset(),
            5 => chat.rewrite(),
            6 => chat.park(),
            7 => chat.step(1, false),
            9 => chat.pin(),
            10 => chat.restart(),
            8 => {
                let draft = random.from(2, 6);
                chat.step(draft, true);
            }
            _ => chat.step(1, true),
        }
    }
}

#[test]
fn no_schedule_of_recall_loses_a_token_or_chooses_other_blocks_than_the_rules() {
    let all = PART << 32..(PART << 32) + number("MNNKV_SCHEDULES").unwrap_or(200);
    for seed in all.filter(|seed| alone().is_none_or(|one| one == *seed)) {
        super::reported(seed, || schedule(seed, false));
    }
}

#[test]
fn no_schedule_of_recall_that_is_short_of_memory_loses_a_token() {
    let all = (PART + 1) << 32..((PART + 1) << 32) + number("MNNKV_SCHEDULES").unwrap_or(200);
    for seed in all.filter(|seed| alone().is_none_or(|one| one == *seed)) {
        super::reported(seed, || schedule(seed, true));
    }
}
