//! Worked examples of pins and policies.

use super::chat::Chat;
use super::examples::six_of_ten;
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
