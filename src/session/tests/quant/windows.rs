//! Layers whose rows attend to the newest tokens alone.

use super::examples::causal;
use super::*;

/// A host of one layer.
struct Side {
    session: Session,
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    kv_len: u32,
    path: ChatPath,
}

impl Side {
    fn new(config: &str, layout: Layout) -> Self {
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        Side { session: session(config), layout, key, value, kv_len: 0, path: ChatPath::new() }
    }

    fn begin(&mut self) -> bool {
        let Side { session, layout, key, value, kv_len, .. } = self;
        let begun = session.begin(0, Some(Cache::new(layout, key, value).unwrap()), *kv_len).unwrap();
        *kv_len = begun.kv_len;
        begun.attends
    }

    fn append(&mut self, dtype: Dtype, rows: &[Token]) {
        let (key, value) = dense(dtype, rows);
        let range = self.layout.range(self.kv_len, rows.len() as u32).unwrap();
        let mut cache = Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap();
        scatter(&mut cache, range, &key, &value).unwrap();
        self.kv_len += rows.len() as u32;
    }

    /// Attends with rows of queries, `[row][head][dim]`. Returns the output.
    fn attend(&self, queries: &[f32], window: Option<u32>, parts: u32) -> Vec<f32> {
        let bytes: Vec<u8> = queries.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let step = causal(Dtype::F32, queries.len() / (HEADS * DIMS), &bytes);
        let step = Step { queries: Queries { scale: 0.3, ..step.queries }, window, ..step };
        let (mut output, cache) =
            (vec![f32::NAN; queries.len()], CacheRef::new(&self.layout, &self.key, &self.value).unwrap());
        for part in 0..parts {
            let mut write = |row: usize, head: usize, x: &[f32]| {
                output[(row * HEADS + head) * DIMS..][..DIMS].copy_from_slice(x);
            };
            self.session.attend(0, (&cache, self.kv_len), &step, (part, parts), &mut write).unwrap();
        }
        output
    }

    fn end(&mut self, rows: usize) {
        let Side { session, layout, key, value, kv_len, .. } = self;
        session.end(0, HEADS as u32, rows as u32, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
    }

    fn keep(&mut self, pairs: &[Pair]) -> Result<()> {
        let Side { session, layout, key, value, kv_len, .. } = self;
        *kv_len = session.keep(0, pairs, Cache::new(layout, key, value).unwrap(), *kv_len)?;
        Ok(())
    }

    /// The chat goes on in another session, by its file.
    fn reopen(&mut self, config: &str) {
        let Side { session: before, layout, key, value, kv_len, path } = self;
        let path_text = path.text().to_owned();
        let mut caches = [(Some(Cache::new(layout, key, value).unwrap()), *kv_len)];
        before.save(Some(&path_text), &mut caches).unwrap();
        *before = session(config);
        before.open(Some(&path_text)).unwrap();
        key.fill(0xFF);
        value.fill(0xFF);
    }
}

fn tokens(random: &mut Random, count: usize) -> Vec<Token> {
    let mut number = || (0..4).map(|_| random.below(2001) as f32 - 1000.0).sum::<f32>() / 1000.0;
    let mut row = || (0..KV_HEADS * DIMS).map(|_| number()).collect::<Vec<f32>>();
    (0..count).map(|_| Token(row(), row())).collect()
}

/// Attention of a row in f64.
fn exact(all: &[Token], query: &[f32], kv: usize) -> Vec<f64> {
    let dot = |key: &[f32]| key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>() * 0.3;
    let weights: Vec<f64> = all.iter().map(|token| dot(&token.0[kv..][..DIMS]).exp()).collect();
    let sum: f64 = weights.iter().sum();
    (0..DIMS).map(|dim| weights.iter().zip(all).map(|(w, t)| w * f64::from(t.1[kv + dim])).sum::<f64>() / sum).collect()
}

#[test]
fn a_window_changes_no_bit_of_attention_and_keeps_no_more_than_rows_attend_to() {
    for seed in 0..60u64 {
        reported(seed, || {
            let mut random = Random::new(seed);
            let (window, rollback) = (1 + random.below(400) as u32, random.below(3) as u32 * 20);
            let (dtype, sinks) = ([Dtype::F32, Dtype::F16][random.below(2)], [0, 5, 16, 64, 100][random.below(5)]);
            let config = &format!(r#"{{"kv_quant": "k8v4", "kv_quant_sink_tokens": {sinks}}}"#);
            let layout = layout(dtype, PACKS[random.below(3)], 3000);
            let mut sides = [(); 2].map(|()| Side::new(config, layout.clone()));
            sides[0].session.set_window(None, window, rollback).unwrap();
            let (mut length, mut longest) = (0, 0);
            for _ in 0..40 {
                let rows = [1, 1, 2, 5, 16, 17, 60, 150][random.below(8)];
                let numbers = tokens(&mut random, rows);
                let queries: Vec<f32> = tokens(&mut random, 2 * rows).into_iter().flat_map(|token| token.0).collect();
                let parts = 1 + random.below(3) as u32;
                let outputs = [0, 1].map(|at| {
                    let side = &mut sides[at];
                    assert!(side.begin());
                    side.append(dtype, &numbers);
                    side.attend(&queries, (at == 1).then_some(window), parts + at as u32)
                });
                assert!(outputs[0] == outputs[1] && outputs[0].iter().all(|x| x.is_finite()), "window {window}");
                sides.iter_mut().for_each(|side| side.end(rows));
                length += rows as u32;
                let most = (window + rollback + 64).max(sinks).min(sinks + 95) + rows as u32;
                assert!(sides[0].kv_len <= most, "{} raw tokens of a window of {window}", sides[0].kv_len);
                let blocks = sides[0].session.blocks_for_tests(0).len() as u32;
                assert!(blocks <= (window + rollback + rows as u32) / 64 + 2, "{blocks} blocks");
                let seen: Vec<u32> = expand(&sides[0].session.positions(0, Some(1)).unwrap()).collect();
                assert!(seen.into_iter().eq(length.saturating_sub(window - 1)..length), "window {window} of {length}");
                longest = longest.max(length - rows as u32);
                if length > rollback && random.below(4) == 0 {
                    length -= random.below((length + rollback - longest).min(rollback + 1) as usize) as u32;
                    sides.iter_mut().for_each(|side| side.keep(&[[0, length as i32]]).unwrap());
                }
                if random.below(12) == 0 {
                    sides.iter_mut().for_each(|side| side.reopen(config));
                }
            }
        });
    }
}

#[test]
fn raw_windows_of_a_budget_attend_as_ever_to_the_tokens_that_are_left() {
    let mut random = Random::new(3);
    let mut side = Side::new(r#"{"kv_memory_mb": 10}"#, layout(Dtype::F32, PACKS[0], 1000));
    side.session.set_window(Some(0), 100, 0).unwrap();
    let (mut all, mut attended) = (Vec::<Token>::new(), 0);
    for step in 0..500 {
        let rows = if step % 50 == 49 { 30 } else { 1 };
        let attends = side.begin();
        assert!(side.kv_len < 100 + 64 && side.session.memory_stats().unwrap().rung == Rung::Raw);
        assert_eq!(attends, all.len() >= 16 + 99, "the first tile has 16 tokens, as those that are never quantised");
        let new = tokens(&mut random, rows);
        side.append(Dtype::F32, &new);
        all.extend(new);
        if attends {
            let queries: Vec<f32> = tokens(&mut random, 2 * rows).into_iter().flat_map(|token| token.0).collect();
            let output = side.attend(&queries, None, 2);
            for (at, (query, got)) in queries.chunks(DIMS).zip(output.chunks(DIMS)).enumerate() {
                let (end, head) = (all.len() - rows + at / HEADS + 1, at % HEADS);
                let expected = exact(&all[end.saturating_sub(100)..end], query, head / (HEADS / KV_HEADS) * DIMS);
                let worst = got.iter().zip(expected).map(|(x, y)| (f64::from(*x) - y).abs()).fold(0.0, f64::max);
                assert!(worst < 1e-5, "row {at} of step {step}: {worst}");
            }
            attended += 1;
        }
        side.end(if attends { rows } else { 0 });
    }
    assert!(attended > 300);
}

#[test]
fn a_rollback_behind_what_a_window_has_left_is_refused_before_any_layer_changes() {
    let config = r#"{"kv_quant": "k8v4"}"#;
    let session = Session::with_host(config.as_bytes(), b"", 2, 1, Host { attends: true }).unwrap();
    session.set_window(Some(1), 100, 10).unwrap();
    let layout = layout(Dtype::F32, PACKS[0], 1000);
    let mut caches = [(); 2].map(|()| (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()], 0));
    for _ in 0..10 {
        for (layer, (key, value, kv_len)) in (0..).zip(&mut caches) {
            *kv_len =
                session.begin(layer, Some(Cache::new(&layout, key, value).unwrap()), *kv_len).unwrap().kv_len + 50;
            session.end(layer, 0, 0, Cache::new(&layout, key, value).unwrap(), *kv_len).unwrap();
        }
    }
    let keep = |caches: &mut [(Vec<u8>, Vec<u8>, u32); 2], layer: usize, pairs: &[Pair]| {
        let (key, value, kv_len) = &mut caches[layer];
        *kv_len = session.keep(layer as u32, pairs, Cache::new(&layout, key, value).unwrap(), *kv_len)?;
        Ok::<(), Error>(())
    };
    // The last begin had 450 tokens: those before 450 - 10 - 99 have gone.
    for pairs in [&[[0, 439]][..], &[[0, 341], [342, 98]]] {
        let refused = keep(&mut caches, 0, pairs).unwrap_err();
        assert_eq!(refused.status(), Status::InvalidArgument);
        let expected = "layer 1 has a window of 100 tokens, which has left those before position 341 behind";
        assert!(refused.message().contains(expected), "{refused}");
        assert!(refused.message().contains("the newest 60 can be taken back, or all"), "{refused}");
        assert_eq!(session.lengths(0).unwrap().logical, 500);
    }
    let wider = session.set_window(Some(1), 161, 0).unwrap_err();
    assert!(wider.message().contains("layer 1 has no tokens before position 341"), "{wider}");
    session.set_window(Some(1), 160, 0).unwrap();
    session.set_window(Some(1), 100, 10).unwrap();
    (0..2).for_each(|layer| keep(&mut caches, layer, &[[0, 440]]).unwrap());
    // An erased middle leaves enough behind it, or nothing at all is left.
    (0..2).for_each(|layer| keep(&mut caches, layer, &[[0, 100], [341, 99]]).unwrap());
    (0..2).for_each(|layer| keep(&mut caches, layer, &[]).unwrap());
    assert_eq!(session.lengths(1).unwrap(), CacheLengths { logical: 0, physical: 0 });
    let error = session.set_window(None, u32::MAX, 1).unwrap_err();
    assert!(error.message().contains("2147483647 or less together expected"), "{error}");
}

#[test]
fn places_in_the_file_of_blocks_that_a_window_has_left_are_used_again() {
    let path = ChatPath::new();
    let config = format!(r#"{{"kv_memory_bytes": 100000, "kv_memory_file": "{}"}}"#, path.text());
    let mut side = Side::new(&config, layout(Dtype::F16, PACKS[0], 1000));
    // More than the budget holds.
    side.session.set_window(None, 1500, 0).unwrap();
    let mut random = Random::new(5);
    for _ in 0..400 {
        side.begin();
        side.append(Dtype::F16, &tokens(&mut random, 16));
        side.end(0);
    }
    let stats = side.session.memory_stats().unwrap();
    assert!(stats.file_tokens > 500 && stats.dropped_tokens == 0, "{stats:?}");
    assert!(stats.written_bytes > 3 * stats.file_bytes, "{stats:?}");
}

#[test]
fn rows_of_another_layer_attend_to_what_the_end_of_a_layer_has_left() {
    for (number, keys) in [r#""kv_quant": "k8v4""#, r#""kv_memory_bytes": 130000"#].into_iter().enumerate() {
        let mode = [Mode::Always, Mode::Offloads][number];
        let mut chat = Chat::with(mode, 12, &format!(r#"{keys}, "kv_quant_sink_tokens": {SINK}"#));
        let (mut reads, mut raw_steps) = (0, 0);
        for step in 0..200 {
            chat.step(if step % 8 == 0 { 70 } else { 1 });
            if chat.session.attends(0).unwrap() {
                // Of the newest tokens, as rows of a layer that shares them.
                chat.attend(1);
                chat.attend(if step % 8 == 0 { 3 } else { 1 });
                reads += 2;
            } else {
                let error = chat.session.attend(
                    0,
                    (&cache_ref(&chat), chat.kv_len),
                    &causal(Dtype::F32, 1, &[0; ROW]),
                    (0, 1),
                    &mut |_, _, _| {},
                );
                assert!(error.unwrap_err().message().contains("begin comes first"));
                raw_steps += 1;
            }
            if step % 30 == 29 {
                // A part alone leaves the round open; the next begin closes it.
                let kv_len = chat.kv_len;
                let part = |kv_len| {
                    chat.session.attend(
                        0,
                        (&cache_ref(&chat), kv_len),
                        &causal(Dtype::F32, 1, &[0; ROW]),
                        (0, 2),
                        &mut |_, _, _| {},
                    )
                };
                assert!(part(kv_len - 1).unwrap_err().message().contains("as the last call left it"));
                if chat.session.attends(0).unwrap() {
                    part(kv_len).unwrap();
                }
            }
            if step % 50 == 49 {
                // An edit renumbers the blocks that such rows have weighed.
                let (length, Chat { session, layout, key, value, kv_len, .. }) = (chat.tokens.len(), &mut chat);
                let pairs = [[0, 100], [200, length as i32 - 200]];
                *kv_len = session.keep(0, &pairs, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
                chat.tokens.drain(100..200);
            }
        }
        assert!(reads > 100 && (mode == Mode::Always) == (raw_steps == 0), "{reads} {raw_steps}");
        let stats = chat.session.memory_stats().unwrap();
        assert!(mode == Mode::Always || stats.reads > 50 && stats.dropped_tokens == 0, "{stats:?}");
    }
}

#[test]
fn a_trim_between_parts_of_rows_that_read_a_closed_layer_waits_for_them() {
    let keys = r#""kv_memory_bytes": 400000, "kv_quant_sink_tokens": 5, "kv_memory_wait_us": 10000000"#;
    let mut chat = Chat::with(Mode::Offloads, 3, keys);
    (0..60).for_each(|_| chat.write(50));
    let queries: Vec<u8> = (0..HEADS * DIMS).flat_map(|at| ((at as f32 * 0.7).sin() * 0.3).to_ne_bytes()).collect();
    let attend = |part: (u32, u32)| {
        let mut output = vec![f32::NAN; HEADS * DIMS];
        let mut write = |_: usize, head: usize, x: &[f32]| output[head * DIMS..][..DIMS].copy_from_slice(x);
        chat.session
            .attend(0, (&cache_ref(&chat), chat.kv_len), &causal(Dtype::F32, 1, &queries), part, &mut write)
            .unwrap();
        output
    };
    let before = attend((0, 1));
    attend((0, 3));
    chat.session.trim(200_000).unwrap();
    attend((1, 3));
    assert!(attend((2, 3)) == before, "all blocks are where they were");
    chat.session.trim(200_000).unwrap();
    assert!(chat.session.memory_stats().unwrap().file_tokens > 0);
    // An edit ends a round of which a part is missing.
    attend((0, 2));
    let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
    *kv_len = session.keep(0, &[[0, 500]], Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
    assert!(session.begin(0, Some(Cache::new(layout, key, value).unwrap()), *kv_len).is_ok());
}

#[test]
fn windows_of_a_file_are_those_of_its_chat_alone() {
    let config = r#"{"kv_quant": "k8v4"}"#;
    let mut paths = Vec::new();
    for window in [50, 0] {
        let mut side = Side::new(config, layout(Dtype::F32, PACKS[0], 1000));
        side.session.set_window(None, window, 0).unwrap();
        side.begin();
        side.append(Dtype::F32, &tokens(&mut Random::new(1), 300));
        side.end(0);
        side.begin();
        side.end(0);
        side.reopen(config);
        paths.push(side.path);
    }
    let mut side = Side::new(config, layout(Dtype::F32, PACKS[0], 1000));
    let positions = |side: &mut Side, path: &str| {
        side.session.open(Some(path)).unwrap();
        side.kv_len = side.session.lengths(0).unwrap().physical;
        side.begin();
        side.end(0);
        side.session.positions(0, Some(0)).unwrap()
    };
    assert_eq!(positions(&mut side, paths[0].text()), [[251, 49]]);
    assert_eq!(positions(&mut side, paths[1].text()), [[0, 300]]);
    side.session.set_window(None, 20, 0).unwrap();
    assert_eq!(positions(&mut side, paths[0].text()), [[281, 19]], "that of the host goes before that of the file");
    side.session.reset(None).unwrap();
    side.session.set_window(None, 100, 0).unwrap();
    for wider in [100, 0] {
        side.session.set_window(None, wider, 0).unwrap();
        let error = side.session.open(Some(paths[0].text())).unwrap_err();
        assert!(error.message().contains("which its window has left behind"), "{wider}: {error}");
    }
}

#[test]
fn a_layer_is_evicted_from_again_once_it_has_no_window() {
    let evicting = r#"{"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_sink_tokens": 8, "kv_h2o_recent_tokens": 24,
        "kv_h2o_trigger_min_tokens": 80, "kv_h2o_block_tokens": 8, "kv_h2o_evict_unscored": true, "kv_h2o_update_interval": 1}"#;
    let kept = |windows: &[u32]| {
        let mut side = Side::new(evicting, layout(Dtype::F32, PACKS[0], 1000));
        windows.iter().for_each(|window| side.session.set_window(None, *window, 0).unwrap());
        for _ in 0..5 {
            side.begin();
            side.append(Dtype::F32, &tokens(&mut Random::new(1), 60));
            side.end(60);
        }
        side.begin();
        side.kv_len
    };
    assert_eq!((kept(&[1000, 0]), kept(&[1000])), (kept(&[]), 300));
    assert!(kept(&[]) < 200);

    // Also one that has tokens, and one that is opened.
    let mut side = Side::new(evicting, layout(Dtype::F32, PACKS[0], 1000));
    side.session.set_window(None, 1000, 0).unwrap();
    for round in 0..3 {
        side.begin();
        side.append(Dtype::F32, &tokens(&mut Random::new(1), 60));
        side.end(60);
        match round {
            0 => side.session.set_window(None, 0, 0).unwrap(),
            1 => side.reopen(evicting),
            _ => {}
        }
    }
    side.begin();
    assert!(side.kv_len < 120, "{}", side.kv_len);
}

/// Bytes of a row of queries.
const ROW: usize = HEADS * DIMS * 4;

fn cache_ref(chat: &Chat) -> CacheRef<'_> {
    CacheRef::new(&chat.layout, &chat.key, &chat.value).unwrap()
}
