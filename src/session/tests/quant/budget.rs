//! What a budget holds, beside chats that grow until it holds no more.

use super::*;
use crate::attend::{Cell, Placed};
use crate::layout::Rows;
use crate::session::budget::{Model, room};

const STEP: usize = 16;

/// Of one layer.
pub(super) fn model(rows: &Rows) -> Model {
    Model { layers: 1, sizes: rows.into(), k8v4_layers: 0, least_raw: 16 + 95, working: 0, windows: Vec::new() }
}

/// Grows a chat until tokens are dropped. Nobody attends, so that all blocks are worth the same. Returns the lengths from
/// which on tokens are in fewer bits, in the file or gone, and gone, each with the working memory before.
pub(super) fn grow(chat: &mut Chat) -> [(u64, usize); 3] {
    let (mut limits, mut working) = ([None; 3], 0);
    while limits[2].is_none() {
        if chat.layout.max_tokens() < chat.kv_len as usize + STEP {
            chat.move_cache(256);
        }
        let Chat { session, layout, key, value, kv_len, .. } = &mut *chat;
        *kv_len = session.begin(0, Some(Cache::new(layout, key, value).unwrap()), *kv_len).unwrap().kv_len;
        let (stats, length) = (session.memory_stats().unwrap(), session.lengths(0).unwrap().logical);
        chat.append(STEP);
        chat.end(0);
        let state = chat.session.state().unwrap();
        let blocks = &state.layers[0].tokens().blocks;
        let is_left = |block, head| blocks.lines(block, head).is_some() || blocks.in_file(block, head).is_some();
        let has_heads = |block| (0..blocks.heads()).any(|head| is_left(block, head));
        assert!((0..blocks.list().len() as u32).all(has_heads), "a block without a head is gone");
        drop(state);
        let rungs = [Rung::K8V4, Rung::File, Rung::Dropping];
        let reached = limits.iter_mut().zip(rungs).filter(|(limit, rung)| limit.is_none() && stats.rung >= *rung);
        reached.for_each(|(limit, _)| *limit = Some((u64::from(length), working)));
        working = stats.working_bytes as usize;
    }
    // This reads the whole file.
    let blocks = chat.session.blocks_for_tests(0);
    assert!(blocks.iter().all(|(.., heads)| heads.iter().any(Option::is_some)), "a block is gone");
    limits.map(Option::unwrap)
}

#[test]
fn a_chat_reaches_each_limit_where_the_budget_says() {
    for (seed, mode, bytes) in [
        (1, Mode::Drops, 150_000),
        (2, Mode::Drops, 600_000),
        (3, Mode::Offloads, 200_000),
        (4, Mode::Offloads, 400_000),
    ] {
        let mut chat = Chat::with(mode, seed, &format!(r#""kv_memory_bytes": {bytes}"#));
        let rows = chat.layout.rows();
        let holds = |working| Holds::new(bytes, &Model { working, ..model(&rows) });
        assert_eq!(Holds::of(bytes, 1, &rows, &[]).unwrap(), Some(holds(0)));
        let [raw, quantised, away] = grow(&mut chat);
        let stats = chat.session.memory_stats().unwrap();
        assert_eq!((stats.raw_tokens, stats.quantised_tokens), (holds(0).raw_tokens, holds(0).quantised_tokens));
        let lengths = format!(
            " raw up to {}, then K has 8 bits and V 4, then both have 4, up to {} tokens",
            stats.raw_tokens, stats.quantised_tokens
        );
        assert!(chat.session.outlook().unwrap().replace(',', "").contains(&lengths.replace(',', "")));
        let near = |(found, working): (u64, usize), of: fn(Holds) -> u64| {
            let expected = of(holds(room(bytes, working)));
            // With a file directions and blocks on their way take a part.
            let slack = expected / if mode == Mode::Drops { 25 } else { 12 };
            assert!(found.abs_diff(expected) <= 96 + slack, "{mode:?} of {bytes}: {found} for {expected}");
        };
        near(raw, |holds| holds.raw_tokens);
        near(quantised, |holds| holds.quantised_tokens);
        near(away, if mode == Mode::Drops { |holds| holds.quantised_tokens } else { |holds| holds.file_tokens });
    }
}

#[test]
fn layers_have_shares_by_the_sizes_of_their_tokens() {
    let budget = 200_000;
    let config = format!(r#"{{"kv_memory_bytes": {budget}}}"#);
    let session = Session::with_host(config.as_bytes(), b"", 2, 2, Host { attends: true }).unwrap();
    // The second layer has tokens of three times the size, and comes last.
    let mut layers = [1, 3].map(|kv_heads| {
        let layout = Layout::new(&Spec { kv_heads, ..spec(Dtype::F16, PACKS[0], 2000) }).unwrap();
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        (layout, key, value, 0)
    });
    for _ in 0..40 {
        for (number, (layout, key, value, kv_len)) in (0..).zip(&mut layers) {
            let len = session.begin(number, Some(Cache::new(layout, key, value).unwrap()), *kv_len).unwrap().kv_len;
            *kv_len = len + 50;
            session.end(number, 0, 0, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
        }
        let stats = session.memory_stats().unwrap();
        assert!(stats.bytes <= budget, "{stats:?}");
    }
    let stats = session.memory_stats().unwrap();
    assert!(stats.rung == Rung::Dropping && stats.bytes > budget / 2, "{stats:?}");
    let [small, large] = [0, 1].map(|layer| session.metrics(Some(layer)).unwrap().quant_bytes as f64);
    assert!((2.5..3.5).contains(&(large / small)), "{small} and {large} bytes");
}

#[test]
fn steps_of_a_layer_that_cannot_be_quantised_count_once_they_exceed_its_share() {
    let budget = 300_000;
    let session = session(&format!(r#"{{"kv_memory_bytes": {budget}}}"#));
    let layout = layout(Dtype::F16, PACKS[0], 3200);
    let token = layout.dense_key_bytes(1) + layout.dense_value_bytes(1);
    // No number is finite.
    let (mut key, mut value) = (vec![0xFF; layout.key_bytes()], vec![0xFF; layout.value_bytes()]);
    let (mut kv_len, mut over, mut working) = (0, 0, 0);
    for _ in 0..300 {
        let len = session.begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), kv_len).unwrap().kv_len;
        assert_eq!(len, kv_len, "all stay raw");
        kv_len += 10;
        session.end(0, 0, 0, Cache::new(&layout, &mut key, &mut value).unwrap(), kv_len).unwrap();
        let stats = session.memory_stats().unwrap();
        let raw = kv_len as usize * token;
        // A page of each head of K and of V may be of tokens in part.
        let pages = 2 * KV_HEADS * crate::sys::pages::page_size();
        over += u64::from(raw + pages + stats.block_bytes as usize > budget - working);
        // Twice what it takes is the greatest part.
        working = if stats.working_bytes as usize > budget / 16 { budget / 8 } else { working };
        assert_eq!((stats.raw_bytes, stats.over_steps), (raw as u64, over));
    }
    assert!((1..300).contains(&over));
    session.reset(None).unwrap();
    assert_eq!(session.memory_stats().unwrap().over_steps, over, "since create");
}

/// Whatever the numbers are, and in steps of any size.
#[test]
fn a_chat_that_takes_more_than_its_budget_is_counted_and_warned_of() {
    type Change = fn(usize, usize, f32) -> f32;
    // Of the token and the channel: of K, of V.
    let same: Change = |_, _, x| x;
    let cases: [(&str, Dtype, Change, Change); 6] = [
        ("gauss", Dtype::F32, same, same),
        ("V beyond f16", Dtype::F32, same, |_, _, x| x * 1e6),
        ("a channel of V beyond f16", Dtype::Bf16, same, |_, channel, x| if channel == 5 { 1e5 } else { x }),
        ("a channel of K beyond f16", Dtype::Bf16, |_, channel, x| if channel == 5 { x + 1e5 } else { x }, same),
        (
            "a NaN in each step",
            Dtype::F16,
            same,
            |token, channel, x| if (token % 8, channel) == (0, 7) { f32::NAN } else { x },
        ),
        ("V below f16", Dtype::F32, same, |_, _, x| x * 1e-30),
    ];
    for (name, dtype, of_key, of_value) in cases {
        for step in [1, 8, 60] {
            let budget = 150_000;
            let chat_session = session(&format!(r#"{{"kv_memory_bytes": {budget}}}"#));
            let layout = layout(dtype, PACKS[2], 1300);
            let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
            let (mut random, mut kv_len, mut total, mut is_over) = (Random::new(step as u64), 0, 0, false);
            while total < 1200 {
                kv_len = chat_session
                    .begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), kv_len)
                    .unwrap()
                    .kv_len;
                let mut rows = |change: Change| {
                    let all = (0..KV_HEADS * step * DIMS).map(|at| {
                        let x = (0..4).map(|_| random.below(2001) as f32 - 1000.0).sum::<f32>() / 1000.0;
                        change(total + at / DIMS % step, at % DIMS, x)
                    });
                    let mut bytes = vec![0; KV_HEADS * step * DIMS * dtype.bytes()];
                    narrow(dtype, Endian::Native, &all.collect::<Vec<_>>(), &mut bytes);
                    bytes
                };
                let (keys, values) = (rows(of_key), rows(of_value));
                let mut cache = Cache::new(&layout, &mut key, &mut value).unwrap();
                scatter(&mut cache, layout.range(kv_len, step as u32).unwrap(), &keys, &values).unwrap();
                (kv_len, total) = (kv_len + step as u32, total + step);
                chat_session.end(0, 0, 0, cache, kv_len).unwrap();
                let (stats, warnings) = (chat_session.memory_stats().unwrap(), chat_session.warnings().unwrap());
                let chunk = if step > 16 { step * layout.token_bytes() } else { 0 };
                if stats.bytes > (budget + chunk) as u64 {
                    is_over = true;
                    let is_said = warnings.contains("takes more than its share") || warnings.contains("stays raw");
                    assert!(stats.over_steps > 0 && is_said, "{name}, steps of {step}: {stats:?}, {warnings:?}");
                }
            }
            assert_eq!(is_over, name != "gauss", "{name}, steps of {step}");
        }
    }
}

#[test]
fn raw_tokens_of_a_budget_take_the_bytes_that_they_have_in_the_hosts_buffers() {
    // V has 64 dims for 24, so that a token of 2 heads takes 2 * (24 + 64) * 2 bytes.
    let (layout, token, budget) = (layout(Dtype::F16, [2, 64, 64], 4096), 352, 400_000);
    {
        let session = session(&format!(r#"{{"kv_memory_bytes": {budget}}}"#));
        let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let mut kv_len = 0;
        for _ in 0..60 {
            let len =
                session.begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), kv_len).unwrap().kv_len;
            kv_len = len + 50;
            session.end(0, 0, 0, Cache::new(&layout, &mut key, &mut value).unwrap(), kv_len).unwrap();
            let stats = session.memory_stats().unwrap();
            assert_eq!(stats.raw_bytes, u64::from(kv_len) * token, "{stats:?}");
            assert!(stats.raw_tokens * token <= budget && stats.bytes <= budget, "{stats:?}");
        }
    }
    // A chat that runs is not refused for the padding of other buffers, which take more.
    let dense = self::layout(Dtype::F16, [2, 24, 8], 400);
    let least = Holds::of(0, 1, &dense.rows(), &[]).unwrap().unwrap().least_bytes;
    for (budget, is_reset) in [(least, false), (budget, true)] {
        let session = session(&format!(r#"{{"kv_memory_bytes": {budget}}}"#));
        for layout in [&dense, &layout] {
            let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
            let len = session.begin(0, Some(Cache::new(layout, &mut key, &mut value).unwrap()), 0).unwrap().kv_len;
            session.end(0, 0, 0, Cache::new(layout, &mut key, &mut value).unwrap(), len).unwrap();
            if is_reset {
                session.reset(None).unwrap();
            }
        }
        // The next chat has as many as fit into its own buffers.
        assert!(!is_reset || session.memory_stats().unwrap().raw_tokens * token <= budget);
    }
}

#[test]
fn a_budget_below_the_least_is_refused() {
    let layout = layout(Dtype::F32, PACKS[0], 64);
    let begin = |bytes: u64| {
        let session = session(&format!(r#"{{"kv_memory_bytes": {bytes}}}"#));
        let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        session.begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), 0).map(|_| ())
    };
    let least = Holds::of(0, 1, &layout.rows(), &[]).unwrap().unwrap().least_bytes;
    begin(least).unwrap();
    assert_eq!(begin(least - 1).unwrap_err().status(), Status::InvalidArgument);
    // Two blocks beside the tokens that stay raw.
    assert_eq!(Holds::of(least, 1, &layout.rows(), &[]).unwrap().unwrap().quantised_tokens, 16 + 95 + 2 * 64);
    // A cache that an edit has shown is checked all the same.
    let session = session(&format!(r#"{{"kv_memory_bytes": {}}}"#, least - 1));
    let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
    session.keep(0, &[], Cache::new(&layout, &mut key, &mut value).unwrap(), 0).unwrap();
    let refused = session.begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), 0).unwrap_err();
    assert_eq!(refused.status(), Status::InvalidArgument);
    // Rows that stay raw.
    assert_eq!(Holds::of(least, 1, &crate::layout::Rows { dims: 20, ..layout.rows() }, &[]).unwrap(), None);
}

#[test]
fn a_budget_that_is_too_small_for_a_later_layer_is_refused() {
    let rows = |kv_heads| Layout::new(&Spec { kv_heads, ..spec(Dtype::F16, PACKS[0], 200) }).unwrap();
    let layouts = [1, 1, 6].map(rows);
    // A share of the last is what it needs, and those of the others are by their tokens.
    let [small, large] = [1, 2].map(|at| Holds::of(0, 1, &layouts[at].rows(), &[]).unwrap().unwrap().least_bytes);
    let session = |bytes: u64| {
        let config = format!(r#"{{"kv_memory_bytes": {bytes}}}"#);
        Session::with_host(config.as_bytes(), b"", 3, 2, Host { attends: true }).unwrap()
    };
    let begin = |session: &Session, layer: u32| {
        let layout = &layouts[layer as usize];
        let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let result = session.begin(layer, Some(Cache::new(layout, &mut key, &mut value).unwrap()), 0);
        result.map(|begun| {
            session.end(layer, 0, 0, Cache::new(layout, &mut key, &mut value).unwrap(), begun.kv_len).unwrap();
        })
    };
    let least = small.max(large / 6) * 8 + 1000;
    let roomy = session(least);
    (0..3).for_each(|layer| begin(&roomy, layer).unwrap());
    let tight = session(3 * small + 1000);
    (0..2).for_each(|layer| begin(&tight, layer).unwrap());
    let refused = begin(&tight, 2).unwrap_err();
    assert_eq!(refused.status(), Status::InvalidArgument);
    assert!(refused.to_string().contains("of 576 bytes in this one"), "{refused}");
    // More is a matter of a call.
    tight.trim(least).unwrap();
    begin(&tight, 2).unwrap();
}

#[test]
fn a_trim_before_the_first_step_leaves_the_least() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Drops, Random::new(9));
    let least = Holds::of(0, 1, &chat.layout.rows(), &[]).unwrap().unwrap().least_bytes;
    chat.session = session(&format!(r#"{{"kv_memory_bytes": {}}}"#, 4 * least));
    chat.session.trim(0).unwrap();
    assert_ne!(chat.session.memory_stats().unwrap().budget_bytes, 0, "which would be none");
    chat.step(40);
    let stats = chat.session.memory_stats().unwrap();
    let holds = Holds::of(least, 1, &chat.layout.rows(), &[]).unwrap().unwrap();
    assert_eq!((stats.budget_bytes, stats.raw_tokens), (least, holds.raw_tokens));
    assert_eq!(chat.session.warnings().unwrap(), "", "nothing is lost yet");
    let outlook = chat.session.outlook().unwrap();
    assert!(outlook.starts_with(&format!("at most {} MB", least as f64 / 1e6)), "{outlook}");
}

#[test]
fn a_trim_waits_until_blocks_are_in_the_file() {
    let mut chat = Chat::with(Mode::Offloads, 11, r#""kv_memory_bytes": 250000"#);
    // Nobody attends, so that working memory is that of blocks alone.
    (0..20).for_each(|_| chat.write(64));
    chat.begin();
    let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
    session.abort(0, Some(Cache::new(layout, key, value).unwrap()), *kv_len).unwrap();
    let before = session.memory_stats().unwrap();
    let bytes = session.trim(before.bytes - before.block_bytes / 2).unwrap();
    let after = session.memory_stats().unwrap();
    assert!(before.written_bytes == 0 && after.written_bytes > 0 && after.file_tokens > 0, "{before:?} {after:?}");
    assert!(bytes <= after.budget_bytes, "{before:?} {after:?}");
}

#[test]
fn a_chat_that_has_dropped_tokens_attends_until_its_reset() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Drops, Random::new(10));
    chat.session = session(r#"{"kv_memory_bytes": 150000}"#);
    grow(&mut chat);
    // An edit takes every block that is left. The cache then has gaps that no host knows of.
    let blocks = chat.session.blocks_for_tests(0);
    let ends = blocks.iter().map(|(first, live, _)| (*first + live.count_ones()) as i32);
    let begins = blocks.iter().map(|(first, ..)| *first as i32).chain([chat.tokens.len() as i32]);
    let pairs: Vec<Pair> = [0].into_iter().chain(ends).zip(begins).map(|(end, begin)| [end, begin - end]).collect();
    let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
    *kv_len = session.keep(0, &pairs, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
    let lengths = session.lengths(0).unwrap();
    assert!(session.blocks_for_tests(0).is_empty() && lengths.physical < lengths.logical);
    assert!(session.attends(0).unwrap());
    session.reset(None).unwrap();
    assert!(!session.attends(0).unwrap());
}

/// Grows a chat until the file has 1,000 tokens. Nobody attends.
pub(super) fn fill_file(chat: &mut Chat) {
    while chat.session.memory_stats().unwrap().file_tokens < 1000 {
        chat.write(50);
    }
}

/// The bytes of all heads of blocks that are in memory or in the file.
#[cfg(unix)]
pub(super) fn heads(session: &Session) -> Vec<Vec<u8>> {
    session.blocks_for_tests(0).into_iter().flat_map(|(.., heads)| heads).flatten().collect()
}

// Windows lets nobody else open the file.
#[cfg(unix)]
#[test]
fn a_block_that_many_rows_miss_in_a_file_is_lost_once() {
    let mut chat = Chat::with(Mode::Offloads, 16, r#""kv_quant_sink_tokens": 5, "kv_memory_bytes": 250000"#);
    fill_file(&mut chat);
    let before = heads(&chat.session).len();
    let file = std::fs::OpenOptions::new().write(true).open(chat.path.text()).unwrap();
    file.set_len(chat.path.len() / 2).unwrap();
    let lost = (before - heads(&chat.session).len()) as u64;
    chat.mode = Mode::Drops;
    chat.move_cache(60);
    chat.begin();
    chat.append(60);
    chat.attend(60);
    chat.end(60);
    let stats = chat.session.memory_stats().unwrap();
    // Four more were on their way out of memory, and had copies there.
    assert!(stats.lost > 0 && stats.lost <= lost + 4, "{stats:?}, {lost} heads were cut away");
    // Counts are since create, warnings of this chat.
    let is_warned = |chat: &Chat| chat.session.warnings().unwrap().contains("heads of blocks are lost");
    assert!(is_warned(&chat) && stats.reads > 0, "{stats:?}");
    chat.session.reset(None).unwrap();
    let after = chat.session.memory_stats().unwrap();
    assert_eq!((after.lost, after.reads, after.dropped_tokens), (stats.lost, stats.reads, 0));
    assert!(!is_warned(&chat));
}

// Windows lets nobody else open the file.
#[cfg(unix)]
#[test]
fn blocks_in_memory_are_written_anew_once_the_file_is_found_damaged() {
    let mut chat = Chat::with(Mode::Offloads, 29, r#""kv_quant_sink_tokens": 5, "kv_memory_bytes": 250000"#);
    fill_file(&mut chat);
    // Steps of one row read blocks that stay in memory.
    chat.mode = Mode::Drops;
    (0..60).for_each(|_| drop(chat.step(1)));
    let with_copies = |chat: &Chat| {
        let state = chat.session.state().unwrap();
        let blocks = &state.layers[0].tokens().blocks;
        let cells = (0..blocks.list().len() as u32).flat_map(|block| blocks.cells_of(block));
        cells.filter(|cell| cell.is_here() && cell.offloaded.is_some()).count()
    };
    assert!(with_copies(&chat) > 0);
    std::fs::write(chat.path.text(), vec![0xA5; chat.path.len() as usize]).unwrap();
    // A step of many rows reads all blocks that are in the file alone, and finds the damage.
    let read_all = |chat: &mut Chat| {
        chat.move_cache(20);
        chat.begin();
        chat.append(20);
        chat.attend(20);
        chat.end(20);
        chat.session.memory_stats().unwrap()
    };
    // One in four has a window, behind which it reads none.
    for _ in 0..7 {
        read_all(&mut chat);
    }
    let found = read_all(&mut chat);
    assert!(found.lost > 0, "{found:?}");
    let blocks = heads(&chat.session);
    (0..20).for_each(|_| chat.write(50));
    let after = read_all(&mut chat);
    assert_eq!(after.lost, found.lost, "{after:?}");
    // In the damaged places, too.
    let now = heads(&chat.session);
    assert!(after.written_bytes > found.written_bytes && blocks.iter().all(|head| now.contains(head)));
}

#[test]
fn a_file_that_cannot_be_made_is_named_before_the_first_step_and_where_tokens_are_dropped() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Drops, Random::new(23));
    let folder = ChatPath::new();
    let path = format!("{}/blocks", folder.text());
    let sink = format!(r#""kv_quant_sink_tokens": {SINK}"#);
    chat.session = session(&format!(r#"{{{sink}, "kv_memory_bytes": 150000, "kv_memory_file": "{path}"}}"#));
    // Windows has another separator than JSON's texts.
    let shown = |path: &str| std::path::absolute(path).unwrap().display().to_string();
    let named = |session: &Session, path: &str| {
        let warnings = session.warnings().unwrap();
        assert!(
            warnings.starts_with("kv_memory_file: ") && warnings.contains(&shown(path)) && !warnings.contains('\n'),
            "{warnings}"
        );
    };
    named(&chat.session, &path);
    std::fs::create_dir(folder.text()).unwrap();
    named(&session(&format!(r#"{{"kv_memory_mb": 1, "kv_memory_file": "{}"}}"#, folder.text())), folder.text());
    std::fs::remove_dir(folder.text()).unwrap();
    grow(&mut chat);
    let (outlook, warnings) = (chat.session.outlook().unwrap(), chat.session.warnings().unwrap());
    assert!(outlook.ends_with(&format!("are dropped, since {} could not be made", shown(&path))), "{outlook}");
    let [drops, file] = warnings.lines().collect::<Vec<_>>()[..] else { panic!("{warnings}") };
    assert!(drops.ends_with("to hold the budget: kv_memory_file did not take all blocks (see its line)"), "{drops}");
    assert!(file.starts_with("kv_memory_file: ") && file.contains(&shown(&path)), "{file}");
    // It is tried again from time to time.
    let failed = chat.session.memory_stats().unwrap().failed_writes;
    std::fs::create_dir(folder.text()).unwrap();
    while chat.session.memory_stats().unwrap().file_tokens == 0 {
        assert!(chat.tokens.len() < 40_000, "no block goes to the file");
        chat.write(250);
    }
    assert_eq!(chat.session.memory_stats().unwrap().failed_writes, failed);
    drop(chat);
    std::fs::remove_dir(folder.text()).unwrap();
}

#[test]
fn a_full_file_loses_no_token_while_memory_has_room() {
    let with = |keys: &str| Chat::with(Mode::Offloads, 18, &format!(r#""kv_quant_sink_tokens": 5, {keys}"#));
    let run = |chat: &mut Chat| {
        for rows in [40; 70].into_iter().chain([1; 40]) {
            chat.begin();
            chat.move_cache(rows);
            chat.append(rows as usize);
            if chat.session.attends(0).unwrap() {
                chat.attend(rows as usize);
            }
            chat.end(rows as usize);
        }
        let stats = chat.session.memory_stats().unwrap();
        let gone = ((chat.tokens.len() - chat.kv_len as usize) * KV_HEADS) as u64 - head_tokens(chat);
        assert_eq!(stats.dropped_tokens, gone / KV_HEADS as u64, "{stats:?}");
        assert!(stats.file_tokens < chat.tokens.len() as u64 && stats.over_steps == 0, "{stats:?}");
        stats
    };
    let mut chat = with(r#""kv_memory_bytes": 210000"#);
    let whole = run(&mut chat);
    assert!(whole.returned > 10 && whole.dropped_tokens == 0, "{whole:?}");
    chat.session.reset(None).unwrap();
    assert_eq!(chat.session.memory_stats().unwrap().returned, whole.returned, "since create");
    // Of what is in the file blocks that came back are in memory, too.
    let room = whole.file_bytes as f64 * 0.9 / 1e6;
    let bounded = run(&mut with(&format!(r#""kv_memory_bytes": 210000, "kv_memory_file_mb": {room}"#)));
    assert!(bounded.failed_writes > 0 && bounded.dropped_tokens == 0, "{bounded:?} {whole:?}");
}

/// Tokens of blocks that are somewhere, a token of each head as one.
pub(super) fn head_tokens(chat: &Chat) -> u64 {
    let of = |head| expand(&chat.session.positions(0, head).unwrap()).count() as u64;
    (0..KV_HEADS as u32).map(|head| of(Some(head)) - of(None)).sum()
}

#[test]
fn tokens_that_an_edit_has_removed_are_not_dropped() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Drops, Random::new(20));
    let sink = format!(r#""kv_quant_sink_tokens": {SINK}"#);
    chat.session = session(&format!(r#"{{{sink}, "kv_memory_bytes": 200000, "kv_quant": "k8v4"}}"#));
    for _ in 0..10 {
        chat.write(100);
    }
    let pairs: Vec<Pair> = (0..15).map(|at| [at * 64, 16]).chain([[960, 40]]).collect();
    let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
    *kv_len = session.keep(0, &pairs, Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
    let before = head_tokens(&chat);
    chat.session.trim(0).unwrap();
    let (after, stats) = (head_tokens(&chat), chat.session.memory_stats().unwrap());
    assert!(after < before && stats.dropped_tokens == (before - after) / KV_HEADS as u64, "{before} {after} {stats:?}");
}

#[test]
fn blocks_with_pinned_tokens_stay_in_memory() {
    for mode in [Mode::Drops, Mode::Offloads] {
        let mut chat = Chat::with(mode, 28, r#""kv_quant_sink_tokens": 5, "kv_memory_bytes": 150000"#);
        // The last token of one block, and the first of another.
        let pinned = [SINK as u32 + 127, SINK as u32 + 192];
        let pin = |chat: &Chat, on| pinned.iter().for_each(|at| chat.session.pin(*at, 1, on).unwrap());
        // Whether the block of each pinned token is in memory, and how many of the first ten blocks are.
        let grow = |chat: &mut Chat, tokens: u64| {
            let gone = |chat: &Chat| {
                let stats = chat.session.memory_stats().unwrap();
                stats.dropped_tokens + stats.file_tokens
            };
            while gone(chat) < tokens {
                chat.write(64);
            }
            let state = chat.session.state().unwrap();
            let blocks = &state.layers[0].tokens().blocks;
            let is_here = |at: u32| {
                let of = |placed: &Placed| (placed.first..placed.first + placed.tokens()).contains(&at);
                let block = blocks.list().iter().position(of);
                block.is_some_and(|block| blocks.cells_of(block as u32).iter().all(Cell::is_here))
            };
            (pinned.map(is_here), (0..10).filter(|at| is_here(SINK as u32 + at * 64)).count())
        };
        pin(&chat, true);
        assert_eq!(grow(&mut chat, 1500), ([true; 2], 2), "{mode:?}");
        pin(&chat, false);
        assert_eq!(grow(&mut chat, 2000), ([false; 2], 0), "{mode:?}");
    }
}

#[test]
fn places_of_tokens_that_are_gone_are_used_again() {
    let mut chat = Chat::with(Mode::Offloads, 29, r#""kv_quant_sink_tokens": 5, "kv_memory_bytes": 250000"#);
    fill_file(&mut chat);
    let before = chat.session.memory_stats().unwrap();
    let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
    *kv_len = session.keep(0, &[[0, SINK as i32]], Cache::new(layout, key, value).unwrap(), *kv_len).unwrap();
    fill_file(&mut chat);
    let after = chat.session.memory_stats().unwrap();
    assert!(after.written_bytes > before.written_bytes * 3 / 2, "{before:?} {after:?}");
    assert!(after.file_bytes < before.file_bytes * 5 / 4, "{before:?} {after:?}");
}

#[test]
fn a_chunk_at_the_least_budget_drops_nothing_that_the_file_has() {
    let mut chat = Chat::new(Dtype::F32, false, Mode::Offloads, Random::new(21));
    chat.configure(r#""kv_memory_bytes": 300000"#);
    for (at, rows) in [64; 26].into_iter().enumerate() {
        if at == 16 {
            // Working memory is not part of the least in tests.
            let working = chat.session.memory_stats().unwrap().working_bytes;
            chat.session.trim(working + 125_000).unwrap();
        }
        let Chat { session, layout, key, value, kv_len, .. } = &mut chat;
        *kv_len = session.begin(0, Some(Cache::new(layout, key, value).unwrap()), *kv_len).unwrap().kv_len;
        chat.move_cache(rows);
        chat.append(rows as usize);
        chat.end(0);
    }
    let stats = chat.session.memory_stats().unwrap();
    assert!(stats.file_tokens > 400 && stats.dropped_tokens == 0, "{stats:?}");
}

#[test]
fn a_shortage_of_memory_that_passes_drops_nothing_that_the_file_has() {
    let mut chat = Chat::with(Mode::Offloads, 15, r#""kv_memory_bytes": 150000"#);
    let step = |chat: &mut Chat, odds| {
        let Chat { session, layout, key, value, kv_len, .. } = &mut *chat;
        shortage::set(odds, 1);
        let result = session.begin(0, Some(Cache::new(layout, key, value).unwrap()), *kv_len);
        shortage::set(0, 0);
        *kv_len = result.unwrap().kv_len;
        chat.move_cache(64);
        chat.append(64);
        chat.end(0);
        chat.session.memory_stats().unwrap()
    };
    while step(&mut chat, 0).file_tokens < 500 {}
    let short: Vec<_> = (0..8).map(|_| step(&mut chat, 1)).collect();
    assert!(short.iter().all(|stats| stats.dropped_tokens == 0) && short[7].over_steps > 0, "{short:?}");
    assert!(chat.session.metrics(None).unwrap().quant_failure_count > 0.0);
    let after = step(&mut chat, 0);
    assert!(after.dropped_tokens == 0 && after.bytes <= after.budget_bytes, "{after:?}");
}

#[test]
fn what_a_step_of_many_rows_needs_takes_no_room_from_blocks() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Drops, Random::new(16));
    let budget = 200_000;
    let sink = format!(r#""kv_quant_sink_tokens": {SINK}"#);
    chat.session = session(&format!(r#"{{{sink}, "kv_memory_bytes": {budget}}}"#));
    (0..5).for_each(|_| drop(chat.step(250)));
    for rows in [1, 16, 16, 1] {
        chat.step(rows);
        let stats = chat.session.memory_stats().unwrap();
        let encoding = 30_000;
        assert!(stats.working_bytes <= budget / 8 + encoding && stats.bytes <= budget, "{rows} rows: {stats:?}");
        assert_eq!(stats.dropped_tokens, 0);
    }
}
