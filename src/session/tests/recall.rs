//! Recall against a host that keeps every token of its chat, and a model of its rules in f64.

mod chat;
mod disk;
mod model;

use super::{alone, number};
use crate::common::Random;
use crate::snapshot::{SharedSnapshot, Snapshot};
use chat::Chat;
use disk::Disk;
use serde_json::json;

/// The high half of a schedule's number; see [`super::KINDS`].
const PART: u64 = 9;

/// A chat of random steps and edits. After each call the cache has the tokens that its positions say, with all their bits;
/// the tokens that are in it are those of the model.
///
/// `is_short`: allocations of a session fail at random. Then the model has no part, and calls are repeated.
fn schedule(seed: u64, is_short: bool) {
    let mut random = Random::new(seed);
    let tier = random.pick(&["ram", "file"]);
    let block = random.from(4, 9);
    let is_stored = random.once_in(4);
    let config = json!({
        "kv_lossless_enable": is_stored, "kv_lossless_runtime_enable": is_stored, "kv_lossless_front_n": 1,
        "kv_lossless_runtime_mode": "store", "kv_lossless_block_tokens": 8, "kv_lossless_hot_recent_tokens": 4,
        "kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": random.from(2, 6),
        "kv_h2o_trigger_min_tokens": random.from(1, 40), "kv_h2o_max_tokens": random.pick(&[0, 0, 60]),
        "kv_recall_enable": true, "kv_recall_block_tokens": block,
        "kv_recall_sink_tokens": random.below(9), "kv_recall_recent_tokens": random.from(1, 9),
        "kv_recall_query_window": random.from(1, 6), "kv_recall_hysteresis": random.pick(&[0.0, 0.5, 1.0]),
        "kv_recall_exchanges": random.pick(&[0, 1, 1, 3]), "kv_recall_tier": tier,
        "kv_recall_interval": random.from(1, 4),
    });
    let chat = Chat::new(config, is_short, &mut random);
    let mut chat = if is_short { chat } else { chat.by_the_rules() };
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
            10 if random.once_in(2) => chat.file.with(|file| file.commit()).unwrap(),
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

#[test]
fn a_chat_that_lost_tokens_goes_on_with_recall() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut config = json!({
            "kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": 2,
            "kv_h2o_block_tokens": 3, "kv_h2o_trigger_min_tokens": 1, "kv_h2o_sink_tokens": 1, "kv_h2o_recent_tokens": 5,
            "kv_h2o_evict_unscored": true, "kv_h2o_update_interval": 1, "kv_recall_block_tokens": random.from(4, 8), "kv_recall_sink_tokens": 0,
            "kv_recall_recent_tokens": 3,
        });
        let mut chat = Chat::new(config.clone(), false, &mut random);
        chat.step(random.from(20, 40), false);
        (0..2).for_each(|_| chat.step(1, false));
        if seed % 4 == 0 {
            chat.keep_what_is_lost();
        }
        config["kv_recall_enable"] = json!(true);
        config["kv_h2o_target_lossy_ratio"] = json!(3);
        chat.config = config;
        chat.restart();
        (0..30).for_each(|_| chat.step(1, true));
        let stats = chat.session.recall_stats(None).unwrap();
        assert!(stats.counts.failed == 0 && stats.counts.left > 0, "{stats:?} {:?}", chat.session.warnings());
        chat.restart();
        chat.step(3, true);
    }
}

/// A chat with a file, whose blocks of 4 tokens leave and come back often.
fn filed(keys: serde_json::Value, random: &mut Random) -> (Chat, Disk, SharedSnapshot) {
    let mut config = json!({
        "kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": 4, "kv_h2o_trigger_min_tokens": 1,
        "kv_h2o_max_tokens": 0, "kv_recall_enable": true, "kv_recall_block_tokens": 4,
        "kv_recall_sink_tokens": 4, "kv_recall_recent_tokens": 4, "kv_recall_query_window": 2,
        "kv_recall_hysteresis": 0.0, "kv_recall_exchanges": 3, "kv_recall_tier": "file", "kv_recall_interval": 1,
    });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let (chat, disk) = (Chat::new(config, false, random), Disk::default());
    let file = disk.create();
    chat.session.park_to(Some(file.clone())).unwrap();
    (chat, disk, file)
}

/// A chat whose file fails now and then, fills up, is held by a call, is damaged, or ends early.
fn faulty(seed: u64) {
    let mut random = Random::new(seed);
    let (mut chat, disk, mut file) = filed(json!({}), &mut random);
    chat.step(60, true);
    let mut is_damaged = false;
    for _ in 0..random.from(20, 60) {
        match random.below(24) {
            0 => disk.fail(|disk| disk.writes_fail = true),
            1 => disk.fail(|disk| disk.reads_fail = true),
            2 => disk.fail(|disk| disk.room = disk.bytes.len() + 500),
            3..6 => disk.repair(),
            6 if random.once_in(3) => {
                let at = random.next() as usize;
                disk.fail(|disk| {
                    let len = disk.bytes.len();
                    if at.is_multiple_of(2) {
                        disk.bytes.truncate(len / 2)
                    } else {
                        disk.bytes[len / 2..].fill(at as u8)
                    }
                });
                is_damaged = true;
            }
            7 => {
                let steps = |_: &mut Snapshot| {
                    (0..4).for_each(|_| chat.step(1, true));
                    Ok(())
                };
                file.with(steps).unwrap();
            }
            8 => {
                let discard = |file: &mut Snapshot| {
                    file.discard();
                    Ok(())
                };
                file.with(discard).unwrap();
            }
            9 => drop(file.with(|file| file.put("text", b"said").and_then(|()| file.commit()))),
            10 => chat.roll_back(random.below(9) as u32),
            11 => chat.edit(),
            12 => chat.rewrite(),
            13 => chat.session.park_to(random.once_in(2).then(|| file.clone())).unwrap(),
            14 if random.once_in(3) => {
                file = Disk::default().create();
                chat.session.park_to(Some(file.clone())).unwrap();
            }
            15 => chat.step(random.from(2, 40), true),
            _ => chat.step(1, true),
        }
    }
    disk.repair();
    let missing = chat.bring_all();
    assert!(is_damaged || missing == 0, "{missing} tokens are missing");
}

#[test]
fn a_file_that_fails_is_full_is_in_use_or_is_damaged_never_changes_a_token() {
    for seed in 0..number("MNNKV_SCHEDULES").unwrap_or(200) {
        super::reported(seed, || faulty(seed));
    }
}

#[test]
fn a_token_is_written_once_however_often_it_leaves() {
    let (mut chat, _, file) = filed(json!({}), &mut Random::new(1));
    chat.step(80, true);
    (0..150).for_each(|_| chat.step(1, true));
    let stats = chat.session.recall_stats(None).unwrap();
    file.with(|file| file.commit()).unwrap();
    let (pieces, written) = file.with(|file| Ok((file.pieces(), file.usage()?.dead))).unwrap();
    let tokens = pieces.map(|piece| file.with(|file| Ok(file.piece_tokens(piece).unwrap())).unwrap());
    assert!(stats.counts.left > 2 * stats.counts.parked && stats.counts.file.read_bytes > 0, "{stats:?}");
    assert_eq!(tokens.map(u64::from).sum::<u64>(), stats.file_tokens);
    assert!(stats.away_tokens <= stats.file_tokens && stats.file_tokens < 230);
    let record = written - stats.counts.file.written_bytes;
    assert!((1..30 * stats.counts.parked).contains(&record), "{record} bytes of the record, {stats:?}");
}

#[test]
fn a_full_disk_keeps_blocks_in_memory_and_then_in_the_cache_until_there_is_room() {
    let (mut chat, disk, _file) = filed(json!({}), &mut Random::new(2));
    disk.fail(|disk| disk.writes_fail = true);
    chat.step(80, true);
    (0..150).for_each(|_| chat.step(1, true));
    let full = chat.session.recall_stats(None).unwrap();
    assert!(full.counts.file.failed_writes > 0 && full.counts.file.written_bytes == 0 && full.file_tokens == 0);
    assert!((1..60).contains(&full.away_tokens), "{full:?}");
    assert!(chat.session.warnings().unwrap().contains("a disk of tests"));
    disk.repair();
    (0..30).for_each(|_| chat.step(1, true));
    let then = chat.session.recall_stats(None).unwrap();
    assert!(then.away_tokens > 150 && then.file_tokens >= then.away_tokens, "{then:?}");
    assert_eq!(chat.bring_all(), 0);
}

#[test]
fn no_more_bytes_are_written_than_the_config_allows() {
    for prompt in [80, 200] {
        let (mut chat, _, _file) = filed(json!({ "kv_recall_max_write_bytes": 9000 }), &mut Random::new(3));
        chat.step(prompt, true);
        (prompt..230).for_each(|_| chat.step(1, true));
        let stats = chat.session.recall_stats(None).unwrap();
        assert!((7000..=9000).contains(&stats.counts.file.written_bytes) && stats.counts.failed > 0, "{stats:?}");
        assert!(chat.session.warnings().unwrap().contains("kv_recall_max_write_bytes is 9000"));
    }
}

#[test]
fn a_damaged_piece_is_an_error_with_its_place_and_its_tokens_stay_away() {
    let (mut chat, disk, _file) = filed(json!({}), &mut Random::new(4));
    chat.step(100, true);
    (0..9).for_each(|_| chat.step(1, true));
    disk.fail(|disk| disk.bytes[3000..].fill(7));
    let missing = chat.bring_all();
    let stats = chat.session.recall_stats(None).unwrap();
    assert!(missing > 40 && missing == stats.lost_tokens && missing == 4 * stats.counts.file.failed_reads, "{stats:?}");
    (0..9).for_each(|_| chat.step(1, true));
    assert_eq!(chat.session.recall_stats(None).unwrap().counts.file.failed_reads, stats.counts.file.failed_reads);
    let warnings = chat.session.warnings().unwrap();
    let place = "layer 0, recall: CORRUPT: layer 0, piece ";
    assert!(warnings.contains(place) && warnings.contains(" of chat.kv: the checksum"), "{warnings}");
}

#[test]
fn a_session_says_that_no_file_was_given_and_a_reset_gives_it_up() {
    let (mut chat, _, file) = filed(json!({}), &mut Random::new(5));
    let lacks = |chat: &Chat| chat.session.warnings().unwrap().contains("the host has given none");
    chat.step(90, true);
    assert!(!lacks(&chat));
    chat.reset();
    chat.step(90, true);
    assert!(lacks(&chat) && chat.session.recall_stats(None).unwrap().file_tokens == 0);
    chat.session.park_to(Some(file)).unwrap();
    (0..9).for_each(|_| chat.step(1, true));
    let stats = chat.session.recall_stats(None).unwrap();
    assert!(!lacks(&chat) && stats.file_tokens >= stats.away_tokens);
}
