//! Worked examples: refusals, layers that stay raw, threads, files.

use super::*;
use crate::h2o::{BlockSums, SumFields};

/// A step of so many rows, `[row][head][dim]`.
pub(super) fn causal(dtype: Dtype, rows: usize, data: &[u8]) -> Step<'_> {
    let row = DIMS * dtype.bytes();
    let queries =
        Queries { dtype, heads: HEADS, rows, dims: DIMS, head_stride: row, row_stride: HEADS * row, scale: 0.0, data };
    Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None }
}

#[test]
fn steps_that_did_not_attend_are_refused_and_unharmed() {
    let mut chat = Chat::new(Dtype::F32, false, Mode::Always, Random::new(7));
    chat.step(300);
    chat.begin();
    let metrics = chat.session.metrics(Some(0)).unwrap();
    assert!(metrics.quant_tokens >= 128.0);
    assert_eq!(metrics.h2o_logical_tokens - metrics.h2o_physical_tokens, metrics.quant_tokens);
    // Tokens for which the buffers have no room, less their codes.
    let row = (2 * KV_HEADS * DIMS * 4) as f64;
    let gone = 300.0 - chat.layout.max_tokens() as f64;
    assert!(metrics.h2o_resident_saved_bytes >= gone * row - metrics.quant_bytes);
    assert!(metrics.h2o_resident_saved_bytes < metrics.quant_tokens * row);
    chat.append(1);
    let refused = |result: Result<()>, words: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{words}");
        assert!(error.message().contains(words), "{} lacks {words}", error.message());
    };
    let end = |chat: &mut Chat| {
        let kv_len = chat.kv_len;
        let Chat { session, layout, key, value, .. } = chat;
        session.end(0, HEADS as u32, 1, Cache::new(layout, key, value).unwrap(), kv_len)
    };
    refused(end(&mut chat), "0 of 1 rows of layer 0 have attended");
    refused(chat.session.rewritten(0, 0, 1), "keys keep their rotation");
    let nan: Vec<u8> = [f32::NAN; HEADS * DIMS].iter().flat_map(|x| x.to_ne_bytes()).collect();
    let good = vec![0u8; HEADS * DIMS * 4];
    let attend = |chat: &Chat, data: &[u8], part: (u32, u32), kv_len: u32, dims: usize| -> Result<()> {
        let queries = Queries {
            dtype: Dtype::F32,
            heads: data.len() / (DIMS * 4),
            rows: 1,
            dims,
            head_stride: DIMS * 4,
            row_stride: data.len(),
            scale: 0.0,
            data,
        };
        let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
        let cache = CacheRef::new(&chat.layout, &chat.key, &chat.value).unwrap();
        chat.session.attend(0, (&cache, kv_len), &step, part, &mut |_, _, _| {})
    };
    let len = chat.kv_len;
    refused(attend(&chat, &nan, (0, 2), len, DIMS), "element 0 of row 0 of query head 0 is NaN");
    refused(attend(&chat, &good, (2, 2), len, DIMS), "part is 2 of 2");
    refused(attend(&chat, &good, (0, 65), len, DIMS), "part is 0 of 65");
    refused(attend(&chat, &good, (0, 2), len - 2, DIMS), "or more expected, as begin left it");
    refused(attend(&chat, &good, (0, 2), len, DIMS - 8), "dims; the cache has");
    attend(&chat, &good, (0, 2), len, DIMS).unwrap();
    refused(attend(&chat, &good[..KV_HEADS * DIMS * 4], (1, 2), len, DIMS), "a part has");
    refused(attend(&chat, &good, (0, 2), len, DIMS), "part 0 of 2 is given twice");
    refused(attend(&chat, &good, (1, 3), len, DIMS), "the step has begun with 2 parts");
    refused(end(&mut chat), "part 1 of 2 has not attended");
    attend(&chat, &good, (1, 2), len, DIMS).unwrap();
    chat.kv_len += 1;
    refused(end(&mut chat), "its rows have attended to");
    chat.kv_len -= 1;
    end(&mut chat).unwrap();
    refused(attend(&chat, &good, (0, 1), len - 1, DIMS), "expected, as the last call left it");
    chat.step(3);
}

#[test]
fn a_chat_whose_tokens_are_all_quantised_is_edited_without_buffers() {
    let mut chat = Chat::new(Dtype::F32, false, Mode::Always, Random::new(8));
    chat.step(300);
    chat.begin();
    chat.append(1);
    chat.end(0);
    // The first tokens go, then the newest: those between are quantised.
    let mut keep = |pairs: &[Pair]| {
        let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
        *kv_len = session.keep(0, pairs, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
    };
    keep(&[[SINK as i32, 301 - SINK as i32]]);
    keep(&[[0, 100]]);
    assert_eq!((chat.kv_len, chat.session.lengths(0).unwrap().logical), (0, 100));
    assert_eq!(chat.session.keep(0, &[[0, 70]], None, 0).unwrap(), 0);
    assert!(chat.session.positions(0, None).unwrap().is_empty());
    assert_eq!(
        (chat.session.metrics(None).unwrap().quant_tokens, chat.session.lengths(0).unwrap().logical),
        (70.0, 70)
    );
    let error = chat.session.keep(0, &[[0, 71]], None, 0).unwrap_err();
    assert!(error.message().contains("70"), "{}", error.message());
}

#[test]
fn layers_whose_numbers_codes_cannot_hold_stay_raw() {
    let mut chat = Chat::new(Dtype::F32, false, Mode::Always, Random::new(9));
    chat.begin();
    chat.move_cache(400);
    chat.append(300);
    // One number that is not finite, in the first block behind the sink tokens: that block alone stays raw.
    let mut nan = layout_rows(&chat.layout, &chat.key, &chat.value, 300);
    nan.0[(SINK + 3) * DIMS * 4..][..4].copy_from_slice(&f32::NAN.to_ne_bytes());
    let range = chat.layout.range(0, 300).unwrap();
    scatter(&mut chat.cache(), range, &nan.0, &nan.1).unwrap();
    chat.end(0);
    chat.begin();
    let metrics = chat.session.metrics(None).unwrap();
    assert_eq!((metrics.quant_block_count, metrics.quant_unfit_block_count, chat.kv_len), (3.0, 1.0, 300 - 3 * 64));
    assert!(!chat.session.warnings().unwrap().contains("stays raw"));

    let mut chat = Chat::new(Dtype::F32, false, Mode::Always, Random::new(9));
    chat.begin();
    chat.move_cache(400);
    chat.append(300);
    // One channel of V hides the others.
    let mut wild = layout_rows(&chat.layout, &chat.key, &chat.value, 300);
    wild.1.chunks_exact_mut(4).skip(7).step_by(DIMS).for_each(|x| x.copy_from_slice(&500f32.to_ne_bytes()));
    scatter(&mut chat.cache(), range, &wild.0, &wild.1).unwrap();
    chat.end(0);
    chat.begin();
    let metrics = chat.session.metrics(None).unwrap();
    assert_eq!((metrics.quant_tokens, metrics.quant_unfit_block_count, chat.kv_len), (0.0, 2.0, 300));
    assert!(chat.session.warnings().unwrap().contains("layer 0 (1 in all) stays raw until its reset"));

    // One token of each block is far from the others in all channels of K, which have 16 bits then: half of f32, and more
    // than f16.
    for (dtype, tokens) in [(Dtype::F32, 4.0 * 64.0), (Dtype::F16, 0.0)] {
        let mut chat = Chat::new(dtype, false, Mode::Always, Random::new(9));
        chat.begin();
        chat.move_cache(400);
        chat.append(300);
        let mut large = layout_rows(&chat.layout, &chat.key, &chat.value, 300);
        let mut row = vec![0; DIMS * dtype.bytes()];
        narrow(dtype, Endian::Native, &[300.0; DIMS], &mut row);
        large.0.chunks_exact_mut(row.len()).step_by(50).for_each(|token| token.copy_from_slice(&row));
        let range = chat.layout.range(0, 300).unwrap();
        scatter(&mut chat.cache(), range, &large.0, &large.1).unwrap();
        chat.end(0);
        chat.begin();
        assert_eq!(chat.session.metrics(None).unwrap().quant_tokens, tokens, "{dtype:?}");
    }
}

#[test]
fn a_host_that_does_not_attend_keeps_its_tokens_raw() {
    let session = Session::new(br#"{"kv_quant": "k8v4"}"#, b"", 1, 1).unwrap();
    assert!(session.warnings().unwrap().contains("kv_quant has no effect"));
    assert!(!session.attends(0).unwrap());
    let mut chat = Chat::new(Dtype::F32, false, Mode::Always, Random::new(8));
    chat.begin();
    chat.append(2);
    let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
    let forgotten = session.end(0, HEADS as u32, 2, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap_err();
    assert!(forgotten.message().contains("0 of 2 rows"), "{}", forgotten.message());
    for other in [r#""kv_h2o_enable": true"#, r#""kv_lossless_enable": true, "kv_lossless_runtime_enable": true"#] {
        let config = format!(r#"{{"kv_quant": "k8v4", {other}}}"#);
        let refused: Error = Session::new(config.as_bytes(), b"", 1, 1).err().unwrap();
        assert!(refused.message().contains("one of them expected"), "{}", refused.message());
    }
    let outlook = self::session(r#"{"kv_quant": "k8v4", "kv_quant_layer_start": 0}"#);
    assert_eq!(
        outlook.outlook().unwrap(),
        "all layers: K in 8 bits and V in 4, but for the first 16 tokens and the newest 25 to 95"
    );
    let outlook = self::session(r#"{"kv_quant": "k8v4", "kv_memory_mb": 2}"#);
    let bounded = "at most 2 MB: K has 8 bits and V 4, then both have 4, then the least attended ones are dropped";
    assert_eq!(outlook.outlook().unwrap(), bounded);
}

#[test]
fn threads_attend_at_once() {
    let mut chat = Chat::new(Dtype::F32, false, Mode::Always, Random::new(11));
    chat.step(400);
    for rows in [1usize, 3, 40] {
        chat.begin();
        if chat.layout.max_tokens() < chat.kv_len as usize + rows {
            chat.move_cache(rows as u32);
        }
        chat.append(rows);
        let queries: Vec<u8> = (0..rows * HEADS * DIMS).flat_map(|_| chat.number().to_ne_bytes()).collect();
        let run = |parts: u32| {
            let output = crate::sys::Mutex::new(vec![0.0f32; rows * HEADS * DIMS]);
            let cache = CacheRef::new(&chat.layout, &chat.key, &chat.value).unwrap();
            let step = causal(Dtype::F32, rows, &queries);
            std::thread::scope(|scope| {
                let spawn = |part| {
                    let (chat, cache, step, output) = (&chat, &cache, &step, &output);
                    scope.spawn(move || {
                        let mut write = |row: usize, head: usize, x: &[f32]| {
                            output.lock().unwrap()[(row * HEADS + head) * DIMS..][..DIMS].copy_from_slice(x);
                        };
                        chat.session.attend(0, (cache, chat.kv_len), step, (part, parts), &mut write).unwrap();
                    })
                };
                // ThreadSanitizer sees the end of a thread that is joined, not that of a scope.
                let threads: Vec<_> = (0..parts).map(spawn).collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
            output.into_inner().unwrap()
        };
        let alone = run(1);
        for parts in [2, 3, 8, 64] {
            let many = run(parts);
            let differ = alone.iter().zip(&many).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(differ < 1e-4, "{rows} rows in {parts} parts: {differ}");
        }
        chat.end(5 * rows);
    }
}

#[test]
fn a_save_of_quantised_tokens_writes_new_ones_alone_and_needs_a_session_that_attends() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Always, Random::new(3));
    chat.step(1300);
    chat.step(1);
    let whole = chat.save().unwrap();
    assert_eq!(chat.save().unwrap(), 0);
    chat.step(64);
    let turn = chat.save().unwrap();
    assert!(turn < whole / 8, "{turn} of {whole} bytes");
    chat.session = session("{}");
    for config in ["{}", r#"{"kv_quant": "k8v4"}"#] {
        let other = Session::new(config.as_bytes(), b"", 1, 1).unwrap();
        let error = other.open(Some(chat.path.text())).unwrap_err();
        assert!(error.status() == Status::Unsupported && error.message().contains("kv_quant"), "{error}");
    }
    let later = session(r#"{"kv_quant": "k8v4", "kv_quant_layer_start": 1}"#);
    let error = later.open(Some(chat.path.text())).unwrap_err();
    assert!(error.status() == Status::Unsupported && error.message().contains("a kv_quant_layer_start of 0 at most"));
}

#[test]
fn each_file_that_a_chat_is_saved_to_has_all_of_it() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Always, Random::new(4));
    [300, 1].into_iter().for_each(|rows| drop(chat.step(rows)));
    let mut paths = Vec::new();
    for rows in [1, 100, 1] {
        chat.step(rows);
        chat.save().unwrap();
        paths.push((std::mem::replace(&mut chat.path, ChatPath::new()), chat.view()));
    }
    chat.session = session(r#"{"kv_quant": "k8v4"}"#);
    for (path, saved) in &paths {
        chat.session.open(Some(path.text())).unwrap();
        assert!(chat.view() == *saved);
    }
}

/// A host that decodes token by token must not wait for all layers in one step, neither when the budget fills nor later.
#[test]
fn layers_take_turns_to_quantise() {
    const LAYERS: usize = 24;
    let config = r#"{"kv_memory_bytes": 1500000}"#;
    let session = Session::with_host(config.as_bytes(), b"", LAYERS as u32, 1, Host { attends: true }).unwrap();
    let layout = layout(Dtype::F16, PACKS[0], 400);
    let mut caches = vec![(vec![0; layout.key_bytes()], vec![0; layout.value_bytes()], 0); LAYERS];
    let (mut most, mut steps) = (0, 0);
    for _ in 0..350 {
        let mut quantised = 0;
        for (number, (key, value, kv_len)) in (0..).zip(&mut caches) {
            let len = session.begin(number, Some(Cache::new(&layout, key, value).unwrap()), *kv_len).unwrap().kv_len;
            quantised += usize::from(len < *kv_len);
            *kv_len = len + 1;
            session.end(number, 0, 0, Cache::new(&layout, key, value).unwrap(), *kv_len).unwrap();
        }
        most = most.max(quantised);
        steps += usize::from(quantised > 0);
    }
    assert!(most == LAYERS / 8 && steps >= 16, "{most} layers in one of {steps} steps");
}

/// Codes move into the places of those that go, blocks to lower numbers.
#[test]
fn an_edit_takes_blocks_from_the_middle_and_the_end_at_once() {
    for pairs in [vec![[0, 200], [400, 200]], vec![[80, 64]], vec![[0, 30], [150, 70], [300, 1], [420, 130], [600, 10]]]
    {
        let mut chat = Chat::new(Dtype::F32, false, Mode::Always, Random::new(30));
        (0..5).for_each(|_| drop(chat.step(200)));
        let Chat { session, layout, key, value, kv_len, tokens, .. } = &mut chat;
        *kv_len = session.keep(0, &pairs, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
        *tokens = expand(&pairs).map(|at| tokens[at as usize].clone()).collect();
        chat.step(3);
        chat.step(100);
    }
}

/// Calls of a host that does not wait for its threads.
#[test]
fn while_a_thread_attends_calls_of_its_layer_are_busy_and_change_nothing() {
    let mut chat = Chat::new(Dtype::F32, false, Mode::Always, Random::new(28));
    chat.step(300);
    chat.begin();
    chat.move_cache(20);
    chat.append(20);
    let data = vec![0u8; 20 * HEADS * DIMS * 4];
    let step = causal(Dtype::F32, 20, &data);
    let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
    let begun = session.lengths(0).unwrap().physical;
    let cache = CacheRef::new(layout, key, value).unwrap();
    let (mut key, mut value) = (key.clone(), value.clone());
    let mut statuses = Vec::new();
    let mut write = |row: usize, head: usize, _: &[f32]| {
        if (row, head) == (0, 0) {
            let abort = session.abort(0, Some(Cache::new(layout, &mut key, &mut value).unwrap()), begun);
            let save = session.save(Some("chat.kv"), &mut [(None, begun)]);
            let open = session.open(Some("chat.kv"));
            let calls = [session.reset(Some(0)), session.reset(None), abort, save.map(drop), open];
            statuses.extend(calls.map(|result| result.unwrap_err().status()));
        }
    };
    session.attend(0, (&cache, *kv_len), &step, (0, 1), &mut write).unwrap();
    let [busy, invalid] = [Status::Busy, Status::InvalidArgument];
    assert_eq!(statuses, [busy, busy, busy, invalid, invalid]);
    chat.end(20);
    chat.step(3);
    chat.session.reset(None).unwrap();
    assert_eq!(chat.session.lengths(0).unwrap().logical, 0);
}

#[test]
fn a_chat_that_was_evicted_before_it_was_saved_is_quantised_all_the_same() {
    const ROWS: u32 = 700;
    let layout = layout(Dtype::F16, PACKS[0], ROWS);
    let (mut key, mut value) = (vec![0x11; layout.key_bytes()], vec![0x11; layout.value_bytes()]);
    macro_rules! cache {
        () => {
            Cache::new(&layout, &mut key, &mut value).unwrap()
        };
    }
    let evicting = session(
        r#"{"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_block_tokens": 8, "kv_h2o_sink_tokens": 8,
            "kv_h2o_recent_tokens": 64, "kv_h2o_trigger_min_tokens": 1, "kv_h2o_update_interval": 1}"#,
    );
    assert_eq!(evicting.begin(0, Some(cache!()), 0).unwrap().kv_len, 0);
    // Every other block draws attention.
    let sums: Vec<f64> = (0..ROWS / 8).map(|block| f64::from(block % 2)).collect();
    let fields =
        SumFields { flags: 3, heads: 1, rows: 1, block_tokens: 8, blocks: ROWS / 8, token_begin: 0, token_end: ROWS };
    evicting.end(0, 0, 0, cache!(), ROWS - 1).unwrap();
    evicting.begin(0, Some(cache!()), ROWS - 1).unwrap();
    evicting.block_sums(0, 0, &BlockSums::new(fields, &sums, None)).unwrap();
    evicting.end(0, 1, 1, cache!(), ROWS).unwrap();
    let left = evicting.begin(0, Some(cache!()), ROWS).unwrap().kv_len;
    evicting.end(0, 0, 0, cache!(), left).unwrap();
    let runs = evicting.positions(0, None).unwrap().len();
    assert!(left < ROWS / 2 && runs > 10, "{left} tokens in {runs} runs");

    let path = ChatPath::new();
    evicting.save(Some(path.text()), &mut [(Some(cache!()), left)]).unwrap();
    drop(evicting);
    let quantising = session(r#"{"kv_quant": "k8v4"}"#);
    quantising.open(Some(path.text())).unwrap();
    let mut len = left;
    for _ in 0..5 {
        len = quantising.begin(0, Some(cache!()), len).unwrap().kv_len + 50;
        quantising.end(0, 0, 0, cache!(), len).unwrap();
    }
    assert!(quantising.metrics(None).unwrap().quant_tokens >= 128.0);
    let all: i32 = quantising.positions(0, Some(1)).unwrap().iter().map(|run| run[1]).sum();
    assert_eq!(all as u32, left + 250, "each token is attended to");
}

#[test]
fn threads_attend_while_others_trim_and_ask_between_saves() {
    let path = ChatPath::new();
    let session = Session::with_host(
        format!(r#"{{"kv_memory_bytes": 260000, "kv_memory_file": "{}", "kv_quant": "k8v4"}}"#, path.text()).as_bytes(),
        b"",
        2,
        1,
        Host { attends: true },
    )
    .unwrap();
    let layout = layout(Dtype::F16, PACKS[0], 400);
    let mut caches = [(); 2].map(|()| (vec![0x11; layout.key_bytes()], vec![0x11; layout.value_bytes()], 0));
    let data = vec![0x11u8; 2 * HEADS * DIMS * 2];
    let step = causal(Dtype::F16, 2, &data);
    let mut trims = Random::new(29);
    let step_of = |layer: u32, (key, value, len): &mut (Vec<u8>, Vec<u8>, u32), others: &mut dyn FnMut()| {
        *len = session.begin(layer, Some(Cache::new(&layout, key, value).unwrap()), *len).unwrap().kv_len + 2;
        let (cache, len) = (CacheRef::new(&layout, key, value).unwrap(), *len);
        let attend =
            |part| session.attend(layer, (&cache, len), &step, (part, 2), &mut |_, _, x| assert!(x[0].is_finite()));
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|part| scope.spawn(move || attend(part).unwrap()));
            others();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        session.end(layer, 0, 2, Cache::new(&layout, key, value).unwrap(), len).unwrap();
    };
    let [first, second] = &mut caches;
    for round in 0..if cfg!(tsan) { 150 } else { 600 } {
        step_of(0, first, &mut || {
            session.trim(trims.below(260_000) as u64).unwrap();
            session.report().unwrap();
            session.positions(0, Some(1)).unwrap();
        });
        step_of(1, second, &mut || drop(session.trim(260_000)));
        if round % 20 == 0 {
            let caches = [&mut *first, second];
            let mut caches = caches.map(|(key, value, len)| (Some(Cache::new(&layout, key, value).unwrap()), *len));
            session.save(None, &mut caches).unwrap();
        }
    }
    assert!(session.memory_stats().unwrap().reads > 0 || cfg!(tsan), "blocks of the file were read");
}
