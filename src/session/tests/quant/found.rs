//! What a layer does with what a step has found: scores, blocks that were read, and reads that failed.

use super::budget::head_tokens;
use super::*;
use crate::attend::{Arrived, Codes, Found, Mass, Reads, Shape};
use crate::session::State;
use crate::session::layer::Layer;

/// A step of a layer has found these.
fn fit(layer: &mut Layer, found: Found) {
    *layer.step_mut().unwrap().round.all_found() = found;
    layer.fit(None, 0, None);
}

#[test]
fn each_step_that_attends_fades_scores_and_raises_those_it_has_found() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Always, Random::new(26));
    [300, 1].into_iter().for_each(|rows| drop(chat.step(rows)));
    let mut state = chat.session.state().unwrap();
    let layer = &mut state.layers[0];
    let mut see = |shares: &[f32]| {
        let masses = shares.iter().map(|share| Mass { block: 1, head: 0, share: *share }).collect();
        fit(layer, Found { masses, ..Found::default() });
        [(1, 0), (1, 1), (2, 0)].map(|(block, head)| layer.tokens().blocks.score(block, head))
    };
    let [found, other, next] = see(&[2.0, 8.0, 4.0]);
    assert_eq!(found, 8.0);
    for step in 1..10 {
        let faded = 0.95f32.powi(step);
        let near =
            |score: f32, expected: f32| assert!((score - expected).abs() <= expected * 1e-5, "{score} {expected}");
        let scores = see(&[0.0]);
        scores.into_iter().zip([8.0, other, next]).for_each(|(score, first)| near(score, first * faded));
        assert_eq!(see(&[]), scores, "a step without attention");
    }
}

#[test]
fn a_read_that_fails_is_counted_and_the_first_reason_is_named() {
    let keys = r#""kv_quant_sink_tokens": 5, "kv_memory_bytes": 200000, "kv_quant": "k8v4""#;
    let mut chat = Chat::with(Mode::Drops, 27, keys);
    [300, 1].into_iter().for_each(|rows| drop(chat.step(rows)));
    for (times, why) in ["first", "second"].into_iter().enumerate() {
        let mut state = chat.session.state().unwrap();
        let failure = Some(Error::new(Status::Io, why));
        let found = Found { failure, reads: Reads { failed: 1, ..Reads::default() }, ..Found::default() };
        fit(&mut state.layers[0], found);
        drop(state);
        assert_eq!(chat.session.memory_stats().unwrap().failed_reads, times as u64 + 1);
        assert_eq!(chat.session.warnings().unwrap(), "kv_memory_file: IO: first");
    }
}

#[test]
fn a_block_that_one_round_of_a_step_has_read_is_not_lost_to_another() {
    let mut chat = Chat::with(Mode::Offloads, 22, r#""kv_quant_sink_tokens": 5, "kv_memory_bytes": 250000"#);
    while chat.session.memory_stats().unwrap().file_tokens < 500 {
        chat.write(50);
    }
    let bytes = chat.session.blocks_for_tests(0);
    let mut state = chat.session.state().unwrap();
    let layer = &mut state.layers[0];
    let block = layer.tokens().blocks.away(0)[0];
    let mut codes = Codes::default();
    codes.read(Shape::new(DIMS).unwrap(), bytes[block as usize].2[0].as_ref().unwrap()).unwrap();
    let found = Found { lost: vec![(block, 0)], arrived: vec![Arrived { block, head: 0, codes }], ..Found::default() };
    fit(layer, found);
    let ladder = &layer.quant.as_ref().unwrap().ladder;
    assert!(!ladder.has_dropped() && ladder.loses() == 0);
}

#[test]
fn what_is_dropped_is_counted_while_heads_come_back_and_lists_have_no_room() {
    let mut chat = Chat::with(Mode::Offloads, 24, r#""kv_quant_sink_tokens": 5, "kv_memory_bytes": 100000"#);
    let mut returned = 0;
    for _ in 0..400 {
        chat.write(64);
        let bytes = chat.session.blocks_for_tests(0);
        let mut state = chat.session.state().unwrap();
        let State { layers, budget: Some(budget), tier, .. } = &mut *state else { panic!("a budget is set") };
        let blocks = &layers[0].tokens().blocks;
        let mut found = Found::default();
        for head in 0..KV_HEADS {
            for _ in 0..bytes.len().min(8) {
                let (block, share) = (chat.random.below(bytes.len()) as u32, chat.random.below(100) as f32 / 100.0);
                found.masses.push(Mass { block, head: head as u32, share });
            }
            let away = blocks.away(head);
            // Two rounds may have read the same.
            for block in (0..away.len().min(3)).map(|_| away[chat.random.below(away.len())]) {
                let mut codes = Codes::default();
                codes.read(Shape::new(DIMS).unwrap(), bytes[block as usize].2[head].as_ref().unwrap()).unwrap();
                found.masses.push(Mass { block, head: head as u32, share: 1.0 });
                found.arrived.push(Arrived { block, head, codes });
            }
        }
        let first = |arrived: &Arrived| (blocks.list()[arrived.block as usize].first, arrived.head);
        let mut read: Vec<_> = found.arrived.iter().map(first).collect();
        read.sort_unstable();
        read.dedup();
        let share = budget.share(layers, (0, &layers[0].sizes().unwrap()), 1, 0);
        let raw = layers[0].lengths().physical - 64;
        *layers[0].step_mut().unwrap().round.all_found() = found;
        layers[0].fit(Some(&share), raw, tier.as_mut());
        assert!(layers[0].tokens().blocks.bytes() <= share.for_blocks(raw));
        drop(state);
        let stats = chat.session.memory_stats().unwrap();
        let gone = ((chat.tokens.len() - chat.kv_len as usize) * KV_HEADS) as u64 - head_tokens(&chat);
        assert_eq!(stats.dropped_tokens, gone / KV_HEADS as u64, "{stats:?}");
        let state = chat.session.state().unwrap();
        let blocks = &state.layers[0].tokens().blocks;
        let is_here = |(first, head): &(u32, usize)| {
            blocks.here(*head).iter().any(|block| blocks.list()[*block as usize].first == *first)
        };
        assert_eq!(stats.returned - returned, read.iter().filter(|read| is_here(read)).count() as u64, "{stats:?}");
        returned = stats.returned;
    }
    let stats = chat.session.memory_stats().unwrap();
    assert!(returned > 100 && stats.dropped_tokens > 1000);
    assert!(stats.file_bytes < stats.written_bytes, "places of blocks that are gone are used again: {stats:?}");
}
