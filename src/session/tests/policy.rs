//! Worked examples of pins and policies.

use super::chat::Chat;
use super::examples::six_of_ten;
use super::file::{Disk, FASTEST};
use super::shared::Session;
use crate::common::{self, Random};
use crate::gear::{Frequencies, Pairing};
use crate::h2o::{PlanConfig, Target, plan};
use crate::host::expand;
use crate::host::packing::flash;
use crate::status::Status;
use crate::store::KeyRotation;
use half::f16;
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

const HEADS: usize = 2;
const DIMS: usize = 64;
/// Tokens of the bundled sample, `[head][token][dim]`.
const TOKENS: usize = 1088;

/// A layer of the bundled sample, and the formulas of keydiff in f64.
struct Sample {
    words: [Vec<u8>; 2],
    turned: bool,
    anchors: Vec<Vec<f64>>,
    /// Logical positions of the cache, with the two numbers of each head.
    tokens: Vec<(u32, Vec<[f64; 2]>)>,
}

impl Sample {
    fn new(turned: bool) -> Self {
        let read = |name| common::read(&format!("kv/l2_{name}_h2_t1088_d64.f16"));
        let anchors = vec![vec![0.0; DIMS]; HEADS];
        Sample { words: [read("k"), read("v")], turned, anchors, tokens: Vec::new() }
    }

    fn bytes(&self, which: usize, head: usize, token: u32) -> &[u8] {
        &self.words[which][(head * TOKENS + token as usize) * DIMS * 2..][..DIMS * 2]
    }

    /// A token's rows `[head][dim]`.
    fn rows(&self, token: u32) -> (Vec<u8>, Vec<u8>) {
        let rows = |which| (0..HEADS).flat_map(|head| self.bytes(which, head, token)).copied().collect();
        (rows(0), rows(1))
    }

    fn row(&self, which: usize, head: usize, token: u32) -> Vec<f64> {
        let words = self.bytes(which, head, token).as_chunks::<2>().0;
        let mut row: Vec<f64> = words.iter().map(|word| f16::from_ne_bytes(*word).to_f64()).collect();
        for pair in 0..if self.turned && which == 0 { DIMS / 2 } else { 0 } {
            let angle = f64::from(token) * 10_000f64.powf(-2.0 * pair as f64 / DIMS as f64);
            let (x, y) = (row[pair], row[pair + DIMS / 2]);
            (row[pair], row[pair + DIMS / 2]) = (x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin());
        }
        row
    }

    /// A step ends that has appended these tokens.
    fn append(&mut self, tokens: std::ops::Range<u32>) {
        let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
        let tokens: Vec<u32> = tokens.collect();
        for group in tokens.chunks(64) {
            for (head, token) in (0..HEADS).flat_map(|head| group.iter().map(move |token| (head, *token))) {
                let key = self.row(0, head, token);
                self.anchors[head].iter_mut().zip(&key).for_each(|(sum, x)| *sum += x / norm(&key));
            }
            for token in group {
                let numbers = (0..HEADS).map(|head| {
                    let (key, anchor) = (self.row(0, head, *token), &self.anchors[head]);
                    let product: f64 = key.iter().zip(anchor).map(|(x, y)| x * y).sum();
                    [-product / (norm(&key) * norm(anchor)), norm(&self.row(1, head, *token))]
                });
                let numbers = numbers.collect();
                self.tokens.push((*token, numbers));
            }
        }
    }

    /// The logical positions that a plan of blocks of 8 leaves, with 16 sink and 32 recent tokens.
    fn planned(&self, logical: u32) -> Vec<u32> {
        let score = |token: &Vec<[f64; 2]>| {
            let all = (0..HEADS).flat_map(|head| [(head, 0), (head, 1)]);
            let below = |(head, at): (usize, usize)| {
                self.tokens.iter().filter(|(_, other)| other[head][at] < token[head][at]).count() as f64
            };
            all.map(below).sum::<f64>()
        };
        let scores: Vec<f64> = self.tokens.iter().map(|(_, numbers)| score(numbers)).collect();
        let blocks: Vec<f32> =
            scores.chunks(8).map(|block| (block.iter().sum::<f64>() / block.len() as f64) as f32).collect();
        let target = Target::Tokens((f64::from(logical) / 3.5).ceil() as u32);
        let config = PlanConfig { block_tokens: 8, sink_tokens: 16, recent_tokens: 32, target };
        let plan = plan(&blocks, self.tokens.len() as u32, &config).unwrap();
        expand(&plan.pairs).map(|at| self.tokens[at as usize].0).collect()
    }
}

/// Evicts by keydiff, and stores cold tokens.
fn keydiff() -> Value {
    json!({
        "kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_policy": "keydiff", "kv_h2o_sink_tokens": 16,
        "kv_h2o_recent_tokens": 32, "kv_h2o_trigger_min_tokens": 128, "kv_h2o_target_lossy_ratio": 3.5,
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
        "kv_lossless_scope": "h2o_kept", "kv_lossless_hot_recent_tokens": 32, "kv_lossless_block_tokens": 32,
        "kv_lossless_async_threads": 0,
    })
}

const ROTATION: KeyRotation<'_> =
    KeyRotation { pairing: Pairing::Half, dims: DIMS, frequencies: Frequencies::Theta(10_000.0) };

#[test]
fn keydiff_keeps_the_tokens_of_its_formulas_in_a_real_chat_whatever_is_stored() {
    for (turned, by_head) in [(true, false), (true, true), (false, false)] {
        let mut chat = Chat::new(keydiff(), 1, flash(HEADS as u32, DIMS as u32, 8, TOKENS as u32));
        let session = Session::new(keydiff().to_string().as_bytes(), 1, 1).unwrap();
        chat.session = session.restoring_heads(by_head);
        chat.session.rotation(None, turned.then_some(&ROTATION)).unwrap();
        let mut sample = Sample::new(turned);
        for rows in [200, 200, 200, 200, 4].into_iter().chain([1; 40]).chain([200]) {
            let expected = sample.planned(chat.lengths(0).0);
            let had = chat.lengths(0).1;
            chat.begin(0);
            let (logical, physical) = chat.lengths(0);
            if physical < had {
                assert!(expand(&chat.positions(0)).eq(expected.iter().copied()), "at {logical} tokens");
                sample.tokens.retain(|(token, _)| expected.binary_search(token).is_ok());
            }
            assert_eq!(chat.session.scored_rows(0, rows).unwrap().rows, 0);
            let new = logical..logical + rows;
            new.clone().for_each(|token| chat.hosts[0].push(sample.rows(token)));
            chat.close(0, 4, rows as usize).unwrap();
            sample.append(new);
        }
        let metrics = chat.metrics(0);
        assert!(metrics.h2o_plan_count >= 7.0 && metrics.h2o_total_evict_tokens > 500.0, "{metrics:?}");
        assert!(metrics.h2o_lossless_restored_blocks > 10.0 || by_head, "{metrics:?}");
        assert_eq!(metrics.h2o_unscored_plan_count, 0.0);
    }
}

#[test]
fn keydiff_reads_the_tokens_of_a_loaded_chat_again() {
    let mut chat = Chat::new(keydiff(), 1, flash(HEADS as u32, DIMS as u32, 8, TOKENS as u32));
    let sample = Sample::new(false);
    let disk = Disk::default();
    let mut file = disk.create();
    let push = |chat: &mut Chat, count: u32| {
        chat.begin(0);
        let logical = chat.lengths(0).0;
        (logical..logical + count).for_each(|token| chat.hosts[0].push(sample.rows(token)));
        chat.close(0, 4, count as usize).unwrap();
    };
    push(&mut chat, 400);
    let len = chat.hosts[0].len();
    chat.session.save(0, Some(chat.hosts[0].cache()), len, &FASTEST, &mut file).unwrap();
    file.commit().unwrap();
    chat.session = Session::new(keydiff().to_string().as_bytes(), 1, 1).unwrap();
    chat.session.load(None, &file).unwrap();
    // The plan is made anew when the cache is there: before, no token has a score.
    chat.keep(0, &[[0, 390]]);
    chat.begin(0);
    assert!(chat.lengths(0).1 <= 390 / 3 + 16, "{:?}", chat.lengths(0));
    assert_eq!(chat.metrics(0).h2o_unscored_plan_count, 0.0);
    chat.close(0, 0, 0).unwrap();
    push(&mut chat, 100);
    chat.begin(0);
    assert_eq!(chat.lengths(0).0, 490);
    assert!(chat.lengths(0).1 <= 490 / 3 + 16, "{:?}", chat.lengths(0));
}

#[test]
fn no_random_chat_that_is_ranked_by_keys_loses_a_token_that_is_pinned_or_protected() {
    let mut evicted = 0.0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let (sink, recent) = (random.below(5), random.below(9));
        let mut config = keydiff();
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
        let mut chat = Chat::new(config.clone(), 1, spec);
        let by_head = random.once_in(2);
        chat.session = Session::new(config.to_string().as_bytes(), 1, 1).unwrap().restoring_heads(by_head);
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
                2 => {
                    let host = &mut chat.hosts[0];
                    let len = host.len();
                    chat.session.park(0, Some(host.cache()), len, &FASTEST).unwrap();
                }
                _ if chat.hosts[0].room() < 12 => {}
                _ => {
                    let before: Vec<u32> = expand(&chat.positions(0)).collect();
                    chat.begin(0);
                    chat.hosts[0].check_tokens(by_head);
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
