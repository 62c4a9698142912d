//! Chats that are saved and opened: what they attend to, what a turn costs, and files that are damaged meanwhile.

use super::budget::grow;
#[cfg(unix)]
use super::budget::{fill_file, heads};
use super::*;
use crate::file::ChatFile;
use crate::file::tests::disk::Disk;
use crate::session::tier::Tier;
use crate::session::{Holds, LayerCache};
use serde_json::{Value, json};

const QUANT: &str = r#""kv_quant_sink_tokens": 5, "kv_quant": "k8v4""#;
const BUDGET: &str = r#""kv_quant_sink_tokens": 5, "kv_memory_bytes": 250000, "kv_memory_wait_us": 10000000"#;

impl Chat {
    /// The process ends, and another one goes on with the chat that was saved last, in buffers without contents.
    fn reopen(&mut self, keys: &str) {
        self.configure(keys);
        self.session.open(Some(self.path.text())).unwrap();
        self.kv_len = self.session.lengths(0).unwrap().physical;
        [&mut self.key, &mut self.value].into_iter().for_each(|bytes| bytes.fill(0));
    }

    /// Another session with a copy of the file that was saved last, in buffers without contents.
    fn opened(&self, keys: &str) -> Self {
        let path = ChatPath::new();
        std::fs::copy(self.path.text(), path.text()).unwrap();
        let (layout, tokens, random) = (self.layout.clone(), self.tokens.clone(), self.random.clone());
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let session = session("{}");
        let mut other = Chat { session, layout, key, value, tokens, random, path, ..*self };
        other.reopen(keys);
        other
    }

    /// Of each head of each block whether it is in memory and whether the file alone has it, and its score.
    fn residency(&self) -> Vec<(bool, bool, u32)> {
        let state = self.session.state().unwrap();
        let blocks = &state.layers[0].tokens().blocks;
        let all = (0..blocks.list().len() as u32).flat_map(|block| (0..blocks.heads()).map(move |head| (block, head)));
        all.map(|(block, head)| (blocks.cell(block, head), blocks.score(block, head).to_bits()))
            .map(|(cell, score)| (cell.is_here(), cell.is_away(), score))
            .collect()
    }
}

// Windows lets nobody else open the file.
#[cfg(unix)]
#[test]
fn a_chat_that_is_opened_attends_to_the_bit_as_the_one_that_was_saved() {
    for (mode, keys) in [(Mode::Always, QUANT), (Mode::Offloads, BUDGET)] {
        let mut chat = Chat::with(mode, 33, keys);
        (0..25).for_each(|_| chat.write(64));
        for turn in 0..12 {
            chat.step(150);
            chat.save().unwrap();
            let mut other = chat.opened(keys);
            assert!(chat.view() == other.view());
            for rows in [1, 1, 20, 1] {
                assert!(chat.residency() == other.residency(), "{mode:?}, turn {turn}, before {rows} rows");
                let [own, others] = [&mut chat, &mut other].map(|chat| chat.step(rows));
                let is_same = own.iter().zip(&others).all(|(own, other)| own.to_bits() == other.to_bits());
                assert!(is_same, "{mode:?}, turn {turn}, {rows} rows");
            }
        }
        assert_eq!(mode == Mode::Offloads, chat.session.memory_stats().unwrap().file_tokens > 200);
    }
}

#[test]
fn blocks_of_a_saved_chat_go_to_its_file_where_the_config_names_none() {
    let mut chat = Chat::with(Mode::Drops, 36, BUDGET);
    (0..8).for_each(|_| chat.write(64));
    chat.save().unwrap();
    for _ in 0..60 {
        chat.write(64);
        let stats = chat.session.memory_stats().unwrap();
        assert_eq!((stats.over_steps, stats.dropped_tokens, stats.late_writes), (0, 0, 0), "{stats:?}");
    }
    assert!(chat.session.memory_stats().unwrap().file_tokens > 0);
}

#[test]
fn a_save_after_one_more_turn_writes_about_the_bytes_of_that_turn() {
    for (mode, keys) in [(Mode::Always, QUANT), (Mode::Offloads, BUDGET)] {
        let mut chat = Chat::with(mode, 32, keys);
        (0..40).for_each(|_| chat.write(64));
        let written = |chat: &mut Chat| chat.save().unwrap() + chat.session.memory_stats().unwrap().written_bytes;
        let whole = written(&mut chat);
        for _ in 0..3 {
            let before = chat.session.memory_stats().unwrap().written_bytes;
            chat.write(64);
            let turn = written(&mut chat) - before;
            // A block, the raw tokens, and lists of blocks.
            assert!(turn < whole / 10, "{mode:?}: {turn} of {whole} bytes");
        }
    }
}

/// Blocks in memory that the file has, too.
#[cfg(unix)]
fn in_both(chat: &Chat) -> usize {
    let state = chat.session.state().unwrap();
    let blocks = &state.layers[0].tokens().blocks;
    let cells = (0..blocks.list().len() as u32).flat_map(|block| blocks.cells_of(block));
    cells.filter(|cell| cell.is_here() && cell.offloaded.is_some()).count()
}

// Windows lets nobody else open the file.
#[cfg(unix)]
#[test]
fn what_was_in_memory_is_in_the_next_save_of_a_file_that_was_harmed_and_the_rest_is_named() {
    type Harm = fn(&ChatPath);
    let harms: [(&str, Harm); 4] = [
        ("removed", |path| std::fs::remove_file(path.text()).unwrap()),
        ("cut", |path| {
            let file = std::fs::OpenOptions::new().write(true).open(path.text()).unwrap();
            file.set_len(path.len() / 8).unwrap();
        }),
        ("emptied", |path| std::fs::write(path.text(), "").unwrap()),
        ("overwritten", |path| std::fs::write(path.text(), vec![0xA5; path.len() as usize]).unwrap()),
    ];
    for ((name, harm), is_saved) in harms.into_iter().flat_map(|harm| [(harm, false), (harm, true)]) {
        let mut chat = Chat::with(Mode::Offloads, 33, BUDGET);
        fill_file(&mut chat);
        if is_saved {
            chat.save().unwrap();
        }
        // Steps of one row read blocks, which stay in memory.
        (0..60).for_each(|_| drop(chat.step(1)));
        assert!(in_both(&chat) > 0);
        let before = chat.session.memory_stats().unwrap();
        harm(&chat.path);
        let left = heads(&chat.session);
        let mut saved = chat.save();
        if let Err(error) = &saved {
            assert!(error.status() == Status::Corrupt && error.message().contains(chat.path.text()), "{name}: {error}");
            saved = chat.save();
        }
        saved.unwrap_or_else(|error| panic!("{name}, saved: {is_saved}: {error}"));
        let after = chat.session.memory_stats().unwrap();
        assert_eq!(after.lost > 0, name != "removed", "{name}: {after:?}");
        let warnings = chat.session.warnings().unwrap();
        assert_eq!(warnings.contains("heads of blocks are lost"), after.lost > 0, "{name}: {warnings}");
        chat.reopen(BUDGET);
        assert!(heads(&chat.session) == left, "{name}, saved: {is_saved}");
        assert_eq!(chat.session.memory_stats().unwrap().dropped_tokens - before.dropped_tokens > 0, after.lost > 0);
        chat.check_rows();
    }
}

#[test]
fn a_disk_that_fails_in_a_save_leaves_the_last_one_and_a_later_save_has_all() {
    let mut failed = 0;
    for failures in [1, 2, usize::MAX] {
        for calls in 0..12 {
            let (mut chat, disk) = (Chat::with(Mode::Always, 34, QUANT), Disk::default());
            let file = ChatFile::create(disk.storage(), b"").unwrap();
            // A file that a sync has failed of is made anew at its path.
            let tier = Tier::of(file, chat.path.text().into(), b"", None).unwrap();
            chat.session.state().unwrap().tier = Some(tier);
            chat.step(300);
            chat.save().unwrap();
            let first = chat.view();
            chat.step(80);
            let second = chat.view();
            disk.fail_after(calls, failures);
            let saved = chat.save();
            assert!(chat.view() == second);
            if let Err(error) = saved {
                assert_eq!(error.status(), Status::Io, "{error}");
                failed += 1;
                std::fs::write(chat.path.text(), disk.durable()).unwrap();
                let other = session(r#"{"kv_quant": "k8v4"}"#);
                other.open(Some(chat.path.text())).unwrap();
                let found = other.blocks_for_tests(0);
                assert!(found == first.2 || failures > 1 && found == second.2);
                drop(other);
                std::fs::remove_file(chat.path.text()).unwrap();
                disk.repair();
                chat.save().unwrap();
            }
            if chat.path.len() == 0 {
                std::fs::write(chat.path.text(), disk.durable()).unwrap();
            }
            chat.reopen(QUANT);
            assert!(chat.view() == second);
            chat.check_rows();
        }
    }
    assert!(failed > 10, "{failed}");
}

/// What each session of a chat must have.
struct SmallChat {
    config: String,
    layout: Layout,
    blocks: Vec<BlockBytes>,
    /// Dense rows of the cache.
    rows: (Vec<u8>, Vec<u8>),
}

/// Saves a chat of a small layer, part of which its file alone has.
fn small_chat(path: &ChatPath) -> SmallChat {
    let layout = Layout::new(&Spec { kv_heads: 1, head_dim: 8, ..spec(Dtype::F16, PACKS[0], 400) }).unwrap();
    let least = Holds::of(0, 1, &layout.rows(), &[]).unwrap().unwrap().least_bytes;
    let config = format!(r#"{{"kv_memory_bytes": {}, "kv_memory_file": "{}"}}"#, least + 4000, path.text());
    let session = session(&config);
    let (mut key, mut value, mut len, mut random) =
        (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()], 0, Random::new(9));
    while session.memory_stats().unwrap().file_tokens < 192 {
        len = session.begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), len).unwrap().kv_len;
        let rows: Vec<f32> = (0..20 * 8).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect();
        let mut bytes = vec![0; rows.len() * 2];
        narrow(Dtype::F16, Endian::Native, &rows, &mut bytes);
        let mut cache = Cache::new(&layout, &mut key, &mut value).unwrap();
        scatter(&mut cache, layout.range(len, 20).unwrap(), &bytes, &bytes).unwrap();
        len += 20;
        session.end(0, 0, 0, cache, len).unwrap();
    }
    // The first begin of another session has nothing to quantise.
    len = session.begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), len).unwrap().kv_len;
    session.end(0, 0, 0, Cache::new(&layout, &mut key, &mut value).unwrap(), len).unwrap();
    session.put("tokens", b"of the chat").unwrap();
    let cache: LayerCache<'_> = (Some(Cache::new(&layout, &mut key, &mut value).unwrap()), len);
    session.save(None, &mut [cache]).unwrap();
    let rows = layout_rows(&layout, &key, &value, len);
    SmallChat { config, layout, blocks: session.blocks_for_tests(0), rows }
}

// Windows lets nobody else open the file.
#[cfg(unix)]
#[test]
fn no_damaged_byte_and_no_length_of_a_chat_file_changes_a_token() {
    let (path, copy) = (ChatPath::new(), ChatPath::new());
    let SmallChat { config, layout, blocks, rows } = small_chat(&path);
    let image = std::fs::read(path.text()).unwrap();
    // It may be opened where it is damaged, but for nothing that is written.
    let open = |image: &[u8]| {
        std::fs::write(path.text(), image).unwrap();
        let other = session(&config);
        other.open(None).map(|()| other)
    };
    let (mut refused, mut lost) = (0, 0);
    for at in 0..image.len() {
        let mut damaged = image.clone();
        damaged[at] ^= 1 << (at % 8);
        let other = match open(&damaged) {
            Ok(other) => other,
            Err(error) => {
                let (is_damage, message) = (matches!(error.status(), Status::Corrupt | Status::Stale), error.message());
                assert!(is_damage && message.contains(path.text()), "{at}: {error}");
                refused += 1;
                continue;
            }
        };
        let found = other.blocks_for_tests(0);
        let len = other.lengths(0).unwrap().physical;
        if found != blocks {
            // A block that the file alone has.
            let pairs = found.iter().zip(&blocks).flat_map(|(found, whole)| found.2.iter().zip(&whole.2));
            assert!(pairs.filter(|(found, whole)| found != whole).all(|(found, _)| found.is_none()), "{at}");
            lost += 1;
            if lost % 100 == 0 {
                let save = || other.save(Some(copy.text()), &mut [(None, len)]);
                let error = save().unwrap_err();
                assert!(error.status() == Status::Corrupt && error.message().contains(path.text()), "{at}: {error}");
                assert_eq!(other.memory_stats().unwrap().lost, 1);
                save().unwrap();
                std::fs::remove_file(copy.text()).unwrap();
            }
        }
        let section = other.section("tokens");
        assert!(
            section.as_ref().map_or_else(|e| e.status() == Status::Corrupt, |s| s == b"of the chat"),
            "{section:?}"
        );
        let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let begun = other.begin(0, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), len).unwrap();
        assert_eq!(begun.kv_len, len);
        assert!(layout_rows(&layout, &key, &value, len) == rows, "{at}");
    }
    assert!(refused > image.len() / 4 && lost > image.len() / 8, "{refused} and {lost} of {}", image.len());
    for len in 0..image.len() {
        let error = open(&image[..len]).map(drop).unwrap_err();
        assert!(matches!(error.status(), Status::Corrupt | Status::NotFound), "{len}: {error}");
    }
}

#[test]
fn a_chat_that_is_opened_is_within_the_budget() {
    let mut chat = Chat::new(Dtype::F16, false, Mode::Always, Random::new(12));
    (0..12).for_each(|_| drop(chat.step(100)));
    // The tokens of a prompt's chunk may exceed it.
    drop(chat.step(1));
    chat.save().unwrap();
    let budget = 2 * Holds::of(0, 1, &chat.layout.rows(), &[]).unwrap().unwrap().least_bytes;
    // Its file is closed first.
    chat.session = session("{}");
    let small = session(&format!(r#"{{"kv_memory_bytes": {}}}"#, budget / 2 - 1));
    assert_eq!(small.open(Some(chat.path.text())).unwrap_err().status(), Status::InvalidArgument, "as the next begin");
    assert_eq!(small.lengths(0).unwrap().logical, 0);
    chat.session = session(&format!(r#"{{"kv_memory_bytes": {budget}}}"#));
    chat.session.open(Some(chat.path.text())).unwrap();
    let stats = chat.session.memory_stats().unwrap();
    assert!(stats.bytes <= budget && stats.file_tokens > 0 && stats.dropped_tokens == 0, "{stats:?}");
    assert!(!session("{}").report().unwrap().contains("\"memory\""), "no budget");
}

#[test]
fn a_chat_that_has_dropped_tokens_says_so_after_a_save_too() {
    let keys = r#""kv_memory_bytes": 150000"#;
    let mut chat = Chat::with(Mode::Drops, 12, keys);
    grow(&mut chat);
    let before = chat.session.memory_stats().unwrap();
    assert!(before.rung == Rung::Dropping && before.dropped_tokens > 0, "{before:?}");
    chat.save().unwrap();
    for keys in [keys, r#""kv_quant": "k8v4""#] {
        chat.configure(keys);
        chat.session.open(Some(chat.path.text())).unwrap();
        let after = chat.session.memory_stats().unwrap();
        assert_eq!(after.dropped_tokens, before.dropped_tokens);
        let warnings = chat.session.warnings().unwrap();
        let said = if after.budget_bytes > 0 { "to hold the budget" } else { "before the chat was saved" };
        assert!(warnings.contains(&format!("has dropped tokens {said}")), "{warnings}");
        let json: Value = serde_json::from_str(&chat.session.report().unwrap()).unwrap();
        assert_eq!(json["does"], json!(chat.session.outlook().unwrap()));
        assert!(json["warnings"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).eq(warnings.lines()));
        if after.budget_bytes > 0 {
            let memory = &json["memory"];
            assert_eq!((&memory["state"], &memory["bytes"]), (&json!("dropping"), &json!(after.bytes)));
            assert_eq!(memory["dropped_tokens"], json!(after.dropped_tokens));
        }
    }
}
