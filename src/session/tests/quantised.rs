//! Sessions over MNN's quantised caches: after every call the bytes that MNN reads are those of a cache to which only the
//! kept tokens were ever appended, value sums included.

mod host;

use super::Coverage;
use super::attention::Attention;
use super::examples::six_of_ten;
use super::saved::ChatPath;
use super::shared::Session;
use crate::common::Random;
use crate::host::expand;
use crate::layout::Pair;
use crate::status::Status;
#[cfg(target_os = "linux")]
use crate::sys::pages;
use host::{Host, any_shape, shape};
use serde_json::{Value, json};

const MOST_TOKENS: u32 = 420;

/// A session of one layer, and its host.
struct Chat {
    session: Session,
    host: Host,
    logical: u32,
    stores: bool,
    config: String,
    path: ChatPath,
    random: Random,
    coverage: Coverage,
}

impl Chat {
    fn new(config: &Value, host: Host, seed: u64) -> Self {
        let (stores, config) = (config["kv_lossless_enable"] == true, config.to_string());
        let session = Session::new(config.as_bytes(), 1, 1).unwrap();
        let (path, random, coverage) = (ChatPath::new(), Random::new(seed), Coverage::default());
        Chat { session, host, logical: 0, stores, config, path, random, coverage }
    }

    fn begin(&mut self) {
        let before = self.host.len();
        let left = self.host.call(|cache, len| self.session.begin(0, cache, len)).unwrap();
        let kept: Vec<u32> = expand(&self.session.positions(0, None).unwrap()).collect();
        self.host.removed(|at| kept.binary_search(&at).is_ok());
        self.coverage.count("evictions", u64::from(left < before));
        assert_eq!(left, self.host.len());
        self.host.check();
    }

    /// Appends, attends and closes an open step.
    fn compute(&mut self, rows: usize, scored: bool) {
        self.host.append(rows);
        self.host.check();
        self.host.logical.extend(self.logical..self.logical + rows as u32);
        self.logical += rows as u32;
        if scored {
            let worth: Vec<f64> = self.host.logical.iter().map(|l| f64::from(l * 7 % 13)).collect();
            let scored = self.session.scored_rows(0, rows as u32).unwrap();
            if scored.rows > 0 {
                let attention = Attention::new(&worth, 1, rows, scored.rows as usize, &mut self.random);
                let parts = attention.block_sums(0, scored.block_tokens, &mut self.random);
                parts.iter().for_each(|part| self.session.block_sums(0, 0, part).unwrap());
            }
        }
        self.host.call(|cache, len| self.session.end(0, u32::from(scored), rows as u32, cache, len)).unwrap();
        self.check(false);
    }

    fn step(&mut self, rows: usize) {
        self.begin();
        self.compute(rows, true);
    }

    /// A step that fails after MNN has appended.
    fn fail(&mut self, rows: usize) {
        self.begin();
        self.host.append_in_vain(rows);
        self.host.call(|cache, len| self.session.abort(0, Some(cache), len)).unwrap();
        self.check(false);
        self.coverage.count("aborted steps", 1);
    }

    /// Edits the history; false if no token would be left of a chat that goes on.
    fn keep(&mut self, pairs: &[Pair]) -> bool {
        let stay: Vec<u32> = expand(pairs).collect();
        let result = self.host.call(|cache, len| self.session.keep(0, pairs, cache, len));
        let none = !self.host.logical.iter().any(|l| stay.contains(l)) && !stay.is_empty();
        if let Err(error) = result {
            assert!(none && self.host.real.shape.key == crate::quantised::Kind::Int8, "{error}");
            self.check(false);
            return false;
        }
        self.host.removed(|at| stay.binary_search(&at).is_ok());
        for at in &mut self.host.logical {
            *at = stay.binary_search(at).unwrap() as u32;
        }
        self.logical = stay.len() as u32;
        assert_eq!(result.unwrap(), self.host.len());
        self.check(true);
        true
    }

    /// The host gives some tokens the contents of others.
    fn rewrite(&mut self) {
        let len = self.host.len() as usize;
        let (begin, from) = (self.random.below(len), self.random.below(len));
        let count = self.random.from(1, 80).min(len - begin.max(from));
        self.host.rewrite(from, begin, count);
        self.session.rewritten(0, begin as u32, count as u32).unwrap();
        self.check(true);
    }

    fn check(&mut self, moved: bool) {
        if !self.stores {
            return self.host.check();
        }
        let stored = self.host.check_stored(moved) as u64;
        self.coverage.count(if moved { "stored tokens, edited" } else { "stored tokens" }, stored);
    }

    fn save(&mut self) {
        self.host.call(|cache, len| self.session.save(Some(self.path.text()), &mut [(Some(cache), len)])).unwrap();
        self.check(true);
    }

    /// The chat is saved, and goes on with new buffers, where the process ends in another one.
    fn restart(&mut self, ends: bool) {
        self.save();
        if ends {
            // Its file is closed first.
            self.session = Session::new(b"{}", 1, 1).unwrap();
            self.session = Session::new(self.config.as_bytes(), 1, 1).unwrap();
        }
        self.session.open(Some(self.path.text())).unwrap();
        self.host.renew();
        self.coverage.count(if ends { "restarts" } else { "chats opened again" }, 1);
    }

    fn reset(&mut self) {
        self.session.reset(None).unwrap();
        let shape = self.host.real.shape;
        self.host = Host::new(shape, self.random.next());
        self.logical = 0;
    }

    /// Ranges of the chat, mostly large.
    fn some_ranges(&mut self) -> Vec<Pair> {
        let (mut at, mut pairs) = (0, Vec::new());
        while at < self.logical as usize {
            let begin = (at + self.random.pick(&[0, 1, 5, 70])).min(self.logical as usize);
            let count = self.random.from(1, 130).min(self.logical as usize - begin);
            pairs.push([begin as i32, count as i32]);
            at = begin + count;
        }
        pairs
    }

    fn something(&mut self) {
        let rows = self.random.pick(&[1, 1, 1, 2, 7, 63, 64, 65, 100]);
        match self.random.below(20) {
            0 | 1 if self.logical > 1 => {
                let pairs = self.some_ranges();
                self.keep(&pairs);
            }
            2 if self.logical > 1 => {
                let drafts = self.random.below(8).min(self.logical as usize - 1) as u32;
                self.keep(&[[0, (self.logical - drafts) as i32]]);
            }
            3 => self.fail(rows),
            4 if self.host.len() > 0 && self.random.once_in(2) => self.rewrite(),
            4 if self.random.once_in(8) => self.reset(),
            // An edit may follow before the next begin.
            5 if self.logical > 1 && self.random.once_in(2) => {
                let ends = self.random.once_in(2);
                self.restart(ends);
                let pairs = if self.random.once_in(4) { Vec::new() } else { self.some_ranges() };
                let stay: Vec<u32> = expand(&pairs).collect();
                let stays = self.host.logical.iter().any(|l| stay.contains(l));
                if self.random.once_in(2) && (stays || stay.is_empty()) {
                    self.host.call(|cache, len| self.session.keep(0, &pairs, cache, len)).unwrap();
                    self.host.removed(|at| stay.binary_search(&at).is_ok());
                    self.host.logical.iter_mut().for_each(|at| *at = stay.binary_search(at).unwrap() as u32);
                    self.logical = stay.len() as u32;
                    if stay.is_empty() {
                        // Begin writes nothing: the host clears its buffers.
                        self.host.real.value.fill(0);
                    }
                }
                let rows = rows + 2;
                self.begin();
                self.compute(rows, false);
            }
            // MNN's first scales are of more than one token.
            _ if self.host.len() == 0 => {
                let more = self.random.from(2, 150);
                self.step(more);
            }
            _ if self.logical + rows as u32 <= MOST_TOKENS => {
                self.begin();
                let scored = !self.random.once_in(6);
                self.compute(rows, scored);
            }
            _ => self.step(1),
        }
    }
}

/// A config of small numbers.
fn config(random: &mut Random, workers: usize) -> Value {
    json!({
        "kv_h2o_enable": !random.once_in(6), "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0,
        "kv_h2o_block_tokens": random.pick(&[1, 3, 16, 64]),
        "kv_h2o_sink_tokens": random.pick(&[0, 1, 70]), "kv_h2o_recent_tokens": random.pick(&[0, 5, 64]),
        "kv_h2o_trigger_min_tokens": random.pick(&[1, 40, 130]), "kv_h2o_update_interval": random.pick(&[1, 4]),
        "kv_h2o_target_mode": "static", "kv_h2o_target_keep_ratio": random.pick(&[0.0, 0.25, 0.5, 0.9]),
        "kv_h2o_prefill_queries": -1,
        "kv_h2o_evict_unscored": random.once_in(3),
        "kv_lossless_enable": !random.once_in(3), "kv_lossless_runtime_enable": true, "kv_lossless_front_n": 1,
        "kv_lossless_runtime_mode": "store", "kv_lossless_hot_sink_tokens": random.pick(&[0, 3, 64]),
        "kv_lossless_hot_recent_tokens": random.pick(&[0, 1, 20]),
        "kv_lossless_block_tokens": random.pick(&[5, 16, 64, 90]), "kv_lossless_store_bootstrap_tokens": 0,
        "kv_lossless_async_threads": workers, "kv_lossless_strict_roundtrip_check": random.once_in(3),
    })
}

#[test]
fn no_schedule_of_a_quantised_cache_changes_what_mnn_reads_of_a_kept_token() {
    let schedules = super::number("MNNKV_SCHEDULES").unwrap_or(10_000) / 100;
    let mut coverage = Coverage::default();
    for seed in 0..schedules {
        super::reported(seed, || {
            let mut random = Random::new(seed);
            let config = config(&mut random, seed as usize % 2);
            let mut host = Host::new(any_shape(&mut random), seed);
            host.plain = !random.once_in(6);
            let mut chat = Chat::new(&config, host, seed);
            (0..random.from(10, 40)).for_each(|_| chat.something());
            chat.begin();
            coverage.count("growths", chat.host.growths);
            chat.coverage.0.into_iter().for_each(|(what, times)| coverage.count(what, times));
        });
    }
    println!("{coverage:#?}");
    for (what, least) in [
        ("evictions", 1),
        ("aborted steps", 1),
        ("growths", 1),
        ("stored tokens", 100),
        ("stored tokens, edited", 10),
        ("chats opened again", 0),
        ("restarts", 0),
    ] {
        assert!(schedules < 50 || coverage.of(what) > least * schedules, "{what}: {}", coverage.of(what));
    }
}

#[test]
fn an_int8_layer_never_loses_its_last_token_while_its_chat_goes_on() {
    for mode in 9..15 {
        let mut chat = Chat::new(&six_of_ten(), Host::new(shape(mode, 32, 64), 1), 1);
        chat.step(10);
        chat.begin();
        chat.compute(1, false);
        let evicted = (0..10).find(|l| !chat.host.logical.contains(l)).unwrap();
        let before = (chat.session.lengths(0).unwrap(), chat.session.positions(0, None).unwrap());
        let none = [[evicted as i32, 1]];
        let result = chat.host.call(|cache, len| chat.session.keep(0, &none, cache, len));
        if mode > 10 {
            assert_eq!(result, Ok(0), "records are of one token");
            continue;
        }
        let error = result.unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        assert_eq!(
            error.message(),
            "layer 0 would have 1 tokens in its chat and none in its cache, whose K is INT8: MNN's quantiser must begin \
             with more than one token; clear the cache and reset the layer (mnnkv_session_reset)"
        );
        assert_eq!((chat.session.lengths(0).unwrap(), chat.session.positions(0, None).unwrap()), before);
        chat.step(1);
        assert!(chat.keep(&[]), "an empty chat begins with a prompt again");
        chat.step(2);
    }
}

#[test]
fn scales_of_a_loaded_layer_that_was_emptied_never_come_back() {
    for mode in 9..15 {
        let mut chat = Chat::new(&json!({}), Host::new(shape(mode, 32, 64), 1), 1);
        chat.step(10);
        chat.restart(true);
        assert!(chat.keep(&[]));
        chat.host.plain = false;
        chat.step(10);
        chat.restart(false);
        chat.step(1);
    }
}

#[test]
fn the_first_token_of_int8_k_stays_without_sink_tokens() {
    for mode in [9, 10, 14] {
        let mut config = six_of_ten();
        config["kv_h2o_sink_tokens"] = json!(0);
        // The last row alone: first rows see little but the first token.
        config["kv_h2o_prefill_queries"] = json!(1);
        let mut chat = Chat::new(&config, Host::new(shape(mode, 32, 64), 1), 1);
        (0..3).for_each(|_| chat.step(10));
        assert!(chat.host.len() < 30);
        assert_eq!(chat.host.logical.contains(&0), mode != 14, "{mode}: it has got the least attention");
    }
}

/// Compression of all but the last 8 tokens, in blocks of 16.
fn compressed(workers: usize) -> Value {
    json!({
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
        "kv_lossless_front_n": 1, "kv_lossless_hot_sink_tokens": 0, "kv_lossless_hot_recent_tokens": 8,
        "kv_lossless_block_tokens": 16, "kv_lossless_store_bootstrap_tokens": 0, "kv_lossless_async_threads": workers,
    })
}

#[test]
fn a_quantised_layer_whose_tokens_hardly_shrink_is_left_raw_until_its_reset() {
    for (mode, plain) in [(10, true), (10, false), (9, true), (14, true), (14, false)] {
        let mut chat = Chat::new(&compressed(0), Host::new(shape(mode, 64, 400), 1), 1);
        for chats in 1..3 {
            chat.host.plain = plain;
            chat.step(150);
            let encoded = chat.session.metrics(None).unwrap().h2o_lossless_raw_bytes;
            assert!(encoded > 0.0 && chat.session.warnings().unwrap().is_empty() == (plain || chats == 1));
            (0..40).for_each(|_| chat.step(1));
            let more = chat.session.metrics(None).unwrap().h2o_lossless_raw_bytes;
            assert_eq!(more > encoded, plain, "{mode}: {encoded}, then {more}");
            assert_eq!(chat.host.check_stored(false) > 0, plain);
            chat.reset();
        }
        let warnings = chat.session.warnings().unwrap();
        let text =
            "layer 0 (1 in all) is not compressed until its reset: its quantised tokens became smaller by a ratio of";
        assert!(if plain { warnings.is_empty() } else { warnings.starts_with(text) && warnings.lines().count() == 1 });
    }
}

#[test]
fn value_sums_before_an_edit_of_stored_tokens_stay_as_mnn_made_them() {
    let mut chat = Chat::new(&compressed(0), Host::new(shape(10, 64, 400), 1), 1);
    chat.step(300);
    assert!(chat.host.check_stored(false) > 200);
    chat.keep(&[[0, 200], [210, 90]]);
    // MNN on Arm rounds otherwise. Block 2 is the last that no token has left.
    let last_bits: Vec<usize> = (0..3).map(|block| chat.host.real.shape.value_sum(0, block, 5)).collect();
    last_bits.iter().for_each(|at| chat.host.real.value_sum[*at] ^= 1);
    let rounded = chat.host.real.value_sum.clone();
    chat.host.call(|cache, len| chat.session.begin(0, cache, len)).unwrap();
    last_bits.iter().for_each(|at| assert_eq!(chat.host.real.value_sum[*at], rounded[*at]));
    last_bits.iter().for_each(|at| chat.host.real.value_sum[*at] ^= 1);
    chat.host.check();
}

#[test]
fn sums_are_of_all_tokens_after_a_rewrite_of_raw_tokens_beside_stored_ones() {
    let mut chat = Chat::new(&compressed(0), Host::new(shape(10, 64, 400), 1), 1);
    chat.step(300);
    assert!(chat.host.check_stored(false) > 200);
    chat.host.rewrite(3, 296, 4);
    chat.session.rewritten(0, 296, 4).unwrap();
    chat.begin();
}

/// Bytes in memory of the value blocks behind the tokens. They go back: afterwards there are none.
#[cfg(target_os = "linux")]
fn tail_in_memory(host: &mut Host) -> u64 {
    let block = host.real.shape.value_code(64, 0);
    pages::give_back(&mut host.real.value[host.real.n.div_ceil(64) * block..])
}

#[cfg(target_os = "linux")]
#[test]
fn the_tail_of_int8_v_goes_back_again_after_an_append_that_writes_to_it() {
    let mut chat = Chat::new(&json!({}), Host::new(shape(10, 128, 4096), 1), 1);
    chat.step(300);
    chat.keep(&[[0, 128]]);
    assert_eq!(tail_in_memory(&mut chat.host), 0);
    let released = chat.session.metrics(None).unwrap().h2o_released_bytes;
    assert!(released > 500_000.0, "{released}: the prompt has written the scales of every block");
    chat.begin();
    chat.compute(1, false);
    assert_eq!(tail_in_memory(&mut chat.host), 0);
    assert_eq!(chat.session.metrics(None).unwrap().h2o_released_bytes, released, "the tail counts once");
}

#[cfg(target_os = "linux")]
#[test]
fn an_aborted_step_leaves_no_trace_behind_the_tokens_and_takes_no_memory_there() {
    let mut chat = Chat::new(&json!({}), Host::new(shape(10, 128, 4096), 1), 1);
    chat.step(100);
    tail_in_memory(&mut chat.host);
    chat.fail(300);
    assert_eq!(tail_in_memory(&mut chat.host), 0);
    chat.step(1);
}

/// Also where the cache is made after the first begin.
#[test]
fn a_host_attends_itself_over_a_cache_that_it_quantises() {
    for (config, exists) in
        [(json!({"kv_quant": "k8v4"}), true), (json!({"kv_quant": "k8v4"}), false), (json!({"kv_memory_mb": 1}), true)]
    {
        let mut chat = Chat::new(&json!({}), Host::new(shape(10, 64, 4096), 1), 1);
        chat.session = Session::attending(config.to_string().as_bytes(), 1, 1).unwrap();
        if exists {
            chat.begin();
            assert!(!chat.session.attends(0).unwrap());
        } else {
            assert_eq!(chat.session.begin_without(0, 0).unwrap(), 0);
        }
        chat.compute(300, false);
        for _ in 0..3 {
            chat.begin();
            assert!(!chat.session.attends(0).unwrap());
            chat.compute(1, false);
        }
        assert_eq!(chat.host.len(), 303);
    }
}
