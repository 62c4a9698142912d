//! Snapshot files: what was committed is what is read, whatever happens to the file.

#[path = "snapshot/chat.rs"]
mod chat;
mod common;
#[path = "snapshot/disk.rs"]
#[allow(dead_code)]
mod disk;
#[path = "snapshot/golden.rs"]
mod golden;
#[path = "snapshot/page.rs"]
mod page;

use chat::{Chat, Things, read, read_all};
use common::Random;
use disk::{Disk, Event};
use mnnkv::snapshot::{Access, Geometry, PieceBytes, Run, Snapshot, Storage};
use mnnkv::status::{Error, Status};
use page::Page;

const FINGERPRINT: &[u8] = b"a model, its rope and its types";

fn open(image: &[u8], access: Access) -> Result<Snapshot, Error> {
    Snapshot::open(Disk::of(image).storage(), Some(FINGERPRINT), access)
}

/// A file on a disk after some saves, and its chat.
fn saved(random: &mut Random, saves: usize) -> (Disk, Snapshot, Vec<Chat>) {
    let disk = Disk::default();
    let mut file = Snapshot::create(disk.storage(), FINGERPRINT).unwrap();
    let mut states = vec![Chat::default()];
    while states.len() <= saves {
        let mut chat = states.last().unwrap().clone();
        chat.change(&mut file, random).unwrap();
        file.commit().unwrap();
        // Nothing may have changed.
        states.truncate(file.version() as usize);
        states.push(chat);
    }
    (disk, file, states)
}

/// The states by version that a file may have.
fn is_state(image: &[u8], states: &[Chat], allowed: std::ops::RangeInclusive<usize>) -> Snapshot {
    let file = open(image, Access::Append).unwrap_or_else(|e| panic!("{allowed:?}: {e}"));
    let version = file.version() as usize;
    assert!(allowed.contains(&version), "{version} of {allowed:?}");
    assert!(read_all(&file) == states[version].things, "{version}");
    file
}

#[test]
fn a_reopened_file_has_every_committed_change_and_no_other() {
    for seed in 0..30 {
        let random = &mut Random::new(seed);
        let (disk, mut file, mut states) = saved(random, 1);
        for _ in 0..30 {
            let mut chat = states.last().unwrap().clone();
            chat.change(&mut file, random).unwrap();
            assert_eq!(file.version() as usize, states.len() - 1);
            match random.below(4) {
                0 => file.discard().unwrap(),
                1 if file.is_changed() => {
                    drop(file);
                    file = open(&disk.bytes(), Access::ReadOnly).unwrap();
                    assert!(read_all(&file) == states.last().unwrap().things);
                    file = Snapshot::open(disk.storage(), None, Access::Append).unwrap();
                }
                _ if file.is_changed() => {
                    file.commit().unwrap();
                    assert!(read_all(&file) == chat.things);
                    states.push(chat);
                }
                _ => {}
            }
            let reopened = open(&disk.bytes(), Access::ReadOnly).unwrap();
            assert_eq!(reopened.version() as usize, states.len() - 1);
            assert!(read_all(&reopened) == states.last().unwrap().things);
            assert_eq!(reopened.usage().unwrap(), file.usage().unwrap());
            let page = Page::read(&disk.bytes());
            assert!(things_of(&page) == states.last().unwrap().things);
            check_usage(&reopened, &page);
        }
    }
}

/// Compares counts of bytes with the page's reading of the file.
fn check_usage(file: &Snapshot, page: &Page) {
    let (usage, verified) = (file.usage().unwrap(), file.verify(|damage| panic!("{damage}")).unwrap());
    let len = |parts: &Vec<Vec<u8>>| parts.iter().map(Vec::len).sum::<usize>() as u64;
    let states: u64 = page.layers.values().map(|(.., state)| len(state)).sum();
    assert_eq!(usage.values, states + page.sections.values().map(len).sum::<u64>());
    assert_eq!(usage.file, 5 * 512 + FINGERPRINT.len() as u64 + usage.pieces + usage.values + usage.dead);
    // Before the parts of a piece are their number and their lengths.
    let in_use = |piece: usize| {
        page.layers.values().any(|(_, tokens, _)| tokens.iter().any(|(other, _)| *other == piece as u64))
    };
    let (mut least, mut most) = (0, 0);
    for (_, (.., parts)) in page.pieces.iter().enumerate().filter(|(i, _)| in_use(*i)) {
        least += len(parts) + 1 + parts.len() as u64;
        most += len(parts) + 5 + 5 * parts.len() as u64;
    }
    assert!((least..=most).contains(&usage.pieces), "{usage:?}, {least} to {most}");
    assert!(verified >= usage.pieces + usage.values, "{verified} of {usage:?}");
    for (name, parts) in &page.sections {
        assert_eq!(file.section_len(name), Some(len(parts)));
    }
    assert_eq!(file.section_len("of no file"), None);
}

#[test]
fn a_geometry_that_no_cache_has_is_refused() {
    let mut file = Snapshot::create(Disk::default().storage(), FINGERPRINT).unwrap();
    let good = Geometry { heads: 1, head_dim: 8, key: 1, value: 6 };
    file.set_layer(0, good, &[], b"").unwrap();
    for bad in [
        Geometry { heads: 0, ..good },
        Geometry { head_dim: 0, ..good },
        Geometry { key: 0, ..good },
        Geometry { key: 7, ..good },
        Geometry { value: 0, ..good },
        Geometry { value: 7, ..good },
    ] {
        assert_eq!(file.set_layer(1, bad, &[], b"").unwrap_err().status(), Status::InvalidArgument, "{bad:?}");
    }
    file.commit().unwrap();
    assert!(file.layer(0).is_some() && file.layer(1).is_none());
}

/// The page's reading of a file, as the model of the chat has it.
fn things_of(page: &Page) -> Things {
    let mut things = Things::new();
    for (layer, (geometry, tokens, state)) in &page.layers {
        let [heads, head_dim, key, value] = geometry.map(|n| n as u32);
        let geometry = Geometry { heads, head_dim, key: key as u8, value: value as u8 };
        let tokens = tokens.iter().map(|(piece, token)| (*piece as u32, *token as u32));
        things.insert(format!("layer {layer}"), chat::layer_bytes(&geometry, tokens));
        things.insert(format!("state of layer {layer}"), state.concat());
    }
    for (i, (_, _, raw, parts)) in page.pieces.iter().enumerate() {
        things.insert(format!("piece {i}"), chat::piece_bytes(parts.iter().map(Vec::as_slice), *raw));
    }
    things.extend(page.sections.iter().map(|(name, parts)| (format!("section {name}"), parts.concat())));
    things
}

#[test]
fn a_save_killed_at_any_byte_leaves_the_last_state_or_the_new_one() {
    for seed in 0..4 {
        let random = &mut Random::new(seed);
        let (disk, mut file, mut states) = saved(random, random.clone().from(1, 4));
        let mut image = disk.bytes();
        disk.take_log();
        let old = states.len() - 1;
        let mut chat = states[old].clone();
        chat.change(&mut file, random).unwrap();
        file.put("always", b"changed").unwrap();
        chat.things.insert("section always".into(), b"changed".to_vec());
        file.commit().unwrap();
        states.push(chat);
        for event in disk.take_log() {
            let Event::Write(offset, bytes) = event else { continue };
            for cut in 0..=bytes.len() {
                let mut killed = image.clone();
                disk::write(&mut killed, offset, &bytes[..cut]);
                let mut file = is_state(&killed, &states, old..=old + 1);
                if random.once_in(50) {
                    file.put("later", b"1").unwrap();
                    file.commit().unwrap();
                    assert_eq!(file.section("later").unwrap(), b"1");
                }
            }
            disk::write(&mut image, offset, &bytes);
        }
        is_state(&image, &states, old + 1..=old + 1);
    }
}

#[test]
fn sectors_that_are_lost_between_syncs_leave_the_last_state_or_the_new_one() {
    let random = &mut Random::new(1);
    for _ in 0..100 {
        let (disk, mut file, mut states) = saved(random, random.clone().from(1, 4));
        let mut synced = disk.bytes();
        disk.take_log();
        let old = states.len() - 1;
        let mut chat = states[old].clone();
        chat.change(&mut file, random).unwrap();
        file.commit().unwrap();
        states.truncate(file.version() as usize);
        states.push(chat);
        let log = disk.take_log();
        for epoch in log.split(|event| matches!(event, Event::Sync)) {
            for _ in 0..10 {
                let mut torn = synced.clone();
                for event in &epoch[..random.below(epoch.len() + 1)] {
                    let Event::Write(offset, bytes) = event else { unreachable!() };
                    let mut at = 0;
                    while at < bytes.len() {
                        let end = bytes.len().min(at + 512 - (offset + at) % 512);
                        if !random.once_in(2) {
                            disk::write(&mut torn, offset + at, &bytes[at..end]);
                        }
                        at = end;
                    }
                }
                is_state(&torn, &states, old..=states.len() - 1);
            }
            for event in epoch {
                let Event::Write(offset, bytes) = event else { unreachable!() };
                disk::write(&mut synced, *offset, bytes);
            }
        }
    }
}

#[test]
fn a_full_disk_keeps_the_old_state_and_the_changes() {
    for failures in [1, 2, 3, usize::MAX] {
        let random = &mut Random::new(failures as u64);
        let (mut failed_commits, mut failed_discards) = (0, 0);
        for calls in (0..25).flat_map(|calls| [calls; 4]) {
            let (disk, mut file, mut states) = saved(random, 2);
            let old = states.len() - 1;
            disk.fail_after(calls, failures);
            let mut chat = states[old].clone();
            while chat.change(&mut file, random).and_then(|()| file.put("always", &[7; 100])).is_err() {
                file.discard().unwrap();
                disk.repair();
                chat = states[old].clone();
            }
            chat.things.insert("section always".into(), vec![7; 100]);
            if let Err(error) = file.commit() {
                assert_eq!(error.status(), Status::Io);
                assert_eq!(file.version() as usize, old);
                assert!(read_all(&file) == states[old].things);
                let version = open(&disk.durable(), Access::ReadOnly).unwrap().version() as usize;
                assert!(version == old || (failures > 1 && version == old + 1), "{version} after {failures} failures");
                let is_dropped = random.once_in(3);
                if is_dropped {
                    chat = states[old].clone();
                    match file.discard() {
                        Ok(()) => drop(is_state(&disk.durable(), &states, old..=old)),
                        Err(error) => {
                            assert_eq!(error.status(), Status::Io);
                            failed_discards += 1;
                        }
                    }
                }
                disk.repair();
                if is_dropped {
                    file.discard().unwrap();
                    is_state(&disk.durable(), &states, old..=old);
                }
                // More is written: what the failed save left may not lead there.
                chat.change(&mut file, random).unwrap();
                open(&disk.bytes(), Access::ReadOnly).unwrap();
                file.put("always", &[8; 100]).unwrap();
                chat.things.insert("section always".into(), vec![8; 100]);
                file.commit().unwrap();
                failed_commits += 1;
            }
            states.push(chat);
            drop(file);
            is_state(&disk.durable(), &states, old + 1..=old + 1);
        }
        assert!(failed_commits > 10, "{failed_commits}");
        assert_eq!(failed_discards > 0, failures > 2, "{failed_discards} after {failures} failures");
    }
}

/// Compares what a damaged file has with what was written; returns how many things are lost.
fn lost(file: &Snapshot, things: &Things) -> usize {
    let found = read(file);
    assert!(found.keys().all(|name| things.contains_key(name)));
    for (name, result) in &found {
        match result {
            Ok(bytes) => assert_eq!(bytes, &things[name], "{name}"),
            Err(error) => assert_names_a_place(error),
        }
    }
    things.len() - found.values().filter(|result| result.is_ok()).count()
}

fn assert_names_a_place(error: &Error) {
    let message = error.message();
    assert_eq!(error.status(), Status::Corrupt, "{message}");
    let places = ["header", "slot ", "fingerprint", "commit record of state ", "layer ", "state of layer ", "section "];
    let place = message.split(" at offset ").next().unwrap();
    assert!(message.contains(" of chat.kv: ") && places.iter().any(|p| place.starts_with(p)), "{message}");
}

#[test]
fn damage_is_named_and_never_read_as_something_else() {
    let random = &mut Random::new(7);
    let (disk, file, states) = saved(random, 12);
    let image = disk.bytes();
    let things = &states[12].things;
    drop(file);
    let everywhere = (0..image.len()).map(|at| (at, 1));
    let by_chance: Vec<_> = (0..10_000).map(|_| (random.below(image.len()), random.from(1, 3))).collect();
    let mut refused = 0;
    for (at, flips) in everywhere.chain(by_chance) {
        let mut damaged = image.clone();
        for flip in 0..flips {
            damaged[(at + flip * random.below(40)).min(image.len() - 1)] ^= 1 << random.below(8);
        }
        let mut is_refused = false;
        match open(&damaged, Access::ReadOnly) {
            Ok(file) => {
                assert_eq!(file.version(), 12);
                assert!(lost(&file, things) <= flips);
            }
            Err(error) => {
                assert_names_a_place(&error);
                refused += 1;
                is_refused = true;
            }
        }
        // A killed save leaves copy 1 of slot 1 or copy 2 of slot 0 so, where state 12 is.
        let sector = at / 512;
        assert!(is_refused || flips > 1 || ![0, 1, 4].contains(&sector), "{at}");
    }
    assert!(refused > 2000, "{refused}");
}

#[test]
fn a_record_that_means_nothing_is_refused_even_with_its_checksum() {
    let random = &mut Random::new(9);
    let (disk, file, _) = saved(random, 5);
    drop(file);
    let image = disk.bytes();
    let record = image[page::record(&image)].to_vec();
    let mut refused = 0;
    for round in 0..20_000 {
        let mut forged = image.clone();
        let mut bytes = record.clone();
        for _ in 0..random.from(1, 3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.pick(&[0, 1, 2, 0x7f, 0x80, 0xff]),
                2 => drop(bytes.remove(at)),
                _ => drop(bytes.splice(at..at, page::number(random.next() >> random.below(64)))),
            }
        }
        page::replace_record(&mut forged, &bytes);
        match open(&forged, Access::ReadOnly) {
            Ok(file) => {
                read(&file);
                file.verify(|_| Ok(())).unwrap();
            }
            Err(error) => {
                let status = [Status::Corrupt, Status::Unsupported];
                assert!(status.contains(&error.status()), "{round}: {error}");
                assert!(error.message().starts_with("commit record of state "), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10_000, "{refused}");
}

#[test]
fn items_of_later_versions_are_skipped_or_refused_by_their_kind() {
    let random = &mut Random::new(10);
    let (disk, mut file, states) = saved(random, 3);
    // A record without items, as far as the version is the same.
    file.put("last", &[1; 100]).unwrap();
    file.commit().unwrap();
    drop(file);
    let image = disk.bytes();
    let record = image[page::record(&image)].to_vec();
    let item_bytes = 1 + 1 + 1 + 4 + 1 + 1 + 1 + 8;
    let (head, last) = record.split_at(record.len() - item_bytes);
    let with = |item: &[u8]| {
        let mut forged = image.clone();
        page::replace_record(&mut forged, &[head, item, last].concat());
        open(&forged, Access::ReadOnly)
    };
    let mut things = states[states.len() - 1].things.clone();
    things.insert("section last".into(), vec![1; 100]);
    assert!(read_all(&with(&[]).unwrap()) == things);
    assert!(read_all(&with(&[0x80, 3, 1, 2, 3]).unwrap()) == things);
    assert!(read_all(&with(&[0xff, 2, 0, 0]).unwrap()) == things);
    assert_eq!(with(&[0x05, 0]).unwrap_err().status(), Status::Unsupported);
    assert_eq!(with(&[0x42, 0]).unwrap_err().status(), Status::Unsupported);
    // The place of an item that is skipped moves those behind it, here past the record.
    assert_eq!(with(&[0xc0, 2, 0, 1]).unwrap_err().status(), Status::Corrupt);
    for (offset, status) in [(8, None), (10, Some(Status::Unsupported)), (12, None)] {
        let mut later = image.clone();
        later[offset] = 2;
        let sum = xxhash_rust::xxh3::xxh3_64(&later[..504]);
        later[504..512].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(open(&later, Access::ReadOnly).err().map(|e| e.status()), status);
        let writer = if offset == 12 { Some(Status::Unsupported) } else { status };
        assert_eq!(open(&later, Access::Append).err().map(|e| e.status()), writer);
    }
}

#[test]
fn a_save_of_what_is_there_writes_nothing() {
    let random = &mut Random::new(11);
    let (disk, mut file, _) = saved(random, 5);
    let before = disk.bytes();
    let layers: Vec<_> = file.layers().map(|(n, entry)| (n, entry.geometry, entry.runs.clone())).collect();
    for (layer, geometry, runs) in layers {
        let state = file.layer_state(layer).unwrap();
        // Something else before is taken back.
        file.set_layer(layer, geometry, &[], &state).unwrap();
        file.set_layer(layer, geometry, &runs, &state).unwrap();
    }
    for name in file.names().map(String::from).collect::<Vec<_>>() {
        file.remove(&name).unwrap();
        file.put(&name, &file.section(&name).unwrap()).unwrap();
    }
    assert!(!file.is_changed());
    file.commit().unwrap();
    assert!(file.version() == 5 && disk.bytes() == before);
}

#[test]
fn a_section_that_grew_is_compared_without_a_read_until_damage_is_found() {
    let disk = Disk::default();
    let mut file = Snapshot::create(disk.storage(), FINGERPRINT).unwrap();
    let mut text = Vec::new();
    let mut save = |file: &mut Snapshot, more: &[u8]| {
        text.extend(more);
        let before = disk.reads();
        file.put("text", &text).unwrap();
        file.commit().unwrap();
        (disk.reads() - before, text.clone())
    };
    for word in 0..50 {
        assert_eq!(save(&mut file, &[word; 70]).0, 0);
    }
    drop(file);
    let mut file = Snapshot::open(disk.storage(), None, Access::Append).unwrap();
    assert_eq!(save(&mut file, b"abcd").0, 50, "each part once");
    assert_eq!(save(&mut file, b"efgh").0, 0);
    let other = [&[9; 70][..], &[1; 140]].concat();
    file.put("text", &other).unwrap();
    file.commit().unwrap();
    assert_eq!(file.section("text").unwrap(), other, "not what begins with the committed bytes");
    assert!(save(&mut file, b"ijkl").0 == 0);
    let at = disk.bytes().windows(70).rposition(|bytes| bytes == [40; 70]).unwrap();
    disk.change(at);
    file.section("text").unwrap_err();
    let text = save(&mut file, b"mnop").1;
    assert_eq!(file.section("text").unwrap(), text);
}

#[test]
fn a_save_costs_less_than_a_hundred_bytes_and_thirty_five_for_each_layer() {
    let disk = Disk::default();
    let mut file = Snapshot::create(disk.storage(), FINGERPRINT).unwrap();
    let mut runs = vec![Vec::new(); 28];
    for save in 0..50 {
        let before = disk.bytes().len();
        for (layer, runs) in (0..).zip(&mut runs) {
            let piece = file.add_piece(layer, 100, &[&[save; 1000], &[save; 1000]], u64::MAX).unwrap();
            runs.push(run(piece, 0, 100));
            file.set_layer(layer, GEOMETRY, runs, &[save; 8]).unwrap();
        }
        file.commit().unwrap();
        let more = disk.bytes().len() - before - 28 * 2000;
        assert!(save == 0 || more < 100 + 28 * (35 + 5 + 8), "{more}");
    }
}

#[test]
fn a_truncated_file_is_refused_and_one_with_more_behind_its_end_is_not() {
    let random = &mut Random::new(8);
    let (disk, file, states) = saved(random, 6);
    drop(file);
    let mut image = disk.bytes();
    for len in 0..image.len() {
        assert_names_a_place(&open(&image[..len], Access::ReadOnly).unwrap_err());
    }
    image.extend(random.bytes(1000));
    is_state(&image, &states, 6..=6);
}

const GEOMETRY: Geometry = Geometry { heads: 2, head_dim: 64, key: 1, value: 1 };

fn run(piece: u32, offset: u32, count: u32) -> Run {
    Run { of: piece, offset, begin: 0, count }
}

#[test]
fn threads_share_a_file_and_its_bytes() {
    fn shared<T: Send + Sync>() {}
    shared::<(Snapshot, PieceBytes)>();
}

#[test]
fn a_path_is_mapped_and_locked_and_views_outlive_the_file() {
    let path = std::env::temp_dir().join(format!("mnnkv-snapshot-{}", std::process::id()));
    let mut file = Snapshot::create(Storage::create(&path).unwrap(), b"model").unwrap();
    assert_eq!(Storage::create(&path).unwrap_err().status(), Status::Io, "it exists");
    assert_eq!(Storage::open(&path).unwrap_err().status(), Status::Busy);
    let parts: [&[u8]; 4] = [&[1; 100], &[2; 300_000], &[], &[3; 7]];
    let piece = file.add_piece(3, 64, &parts, 77).unwrap();
    file.set_layer(3, GEOMETRY, &[run(piece, 0, 10), run(piece, 10, 20), run(piece, 40, 24)], &[9; 500]).unwrap();
    file.commit().unwrap();
    let kept = file.piece(piece).unwrap();
    file.add_piece(3, 1, &[b"more"], 0).unwrap();
    file.commit().unwrap();
    drop(file);
    let storage = Storage::open(&path).unwrap();
    assert_eq!(Storage::edit(&path).unwrap_err().status(), Status::Busy);
    let beside = Storage::open(&path).unwrap();
    drop(Snapshot::open(beside, None, Access::ReadOnly).unwrap());
    let file = Snapshot::open(storage, Some(b"model"), Access::ReadOnly).unwrap();
    assert_eq!(file.layer(3).unwrap().runs, [run(piece, 0, 30), Run { begin: 30, ..run(piece, 40, 24) }]);
    for bytes in [&kept, &file.piece(piece).unwrap()] {
        assert!((0..4).all(|part| bytes.part(part) == parts[part]) && bytes.raw_checksum == 77);
        bytes.bytes.drop_pages();
        assert!((0..4).all(|part| bytes.part(part) == parts[part]));
    }
    drop(file);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(kept.part(3), [3; 7]);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let disk = Disk::default();
    let mut file = Snapshot::create(disk.storage(), FINGERPRINT).unwrap();
    let piece = file.add_piece(0, 8, &[b"a"], 0).unwrap();
    file.set_layer(0, GEOMETRY, &[run(piece, 0, 8)], &[]).unwrap();
    file.commit().unwrap();
    let before = read_all(&file);
    let invalid = |result: Result<(), Error>, text: &str| {
        let error = result.unwrap_err();
        assert_eq!((error.status(), error.message()), (Status::InvalidArgument, text));
    };
    let other = Geometry { head_dim: 128, ..GEOMETRY };
    let text = "layer 0: piece 0 has 8 tokens; 2 from 7 on are taken";
    invalid(file.set_layer(0, GEOMETRY, &[run(0, 7, 2)], &[]), text);
    invalid(file.set_layer(0, GEOMETRY, &[run(0, 7, 0)], &[]), "layer 0: piece 0 has 8 tokens; 0 from 7 on are taken");
    invalid(file.set_layer(1, GEOMETRY, &[run(0, 0, 8)], &[]), "layer 1: piece 0 is not of this layer and geometry");
    invalid(file.set_layer(0, other, &[run(0, 0, 8)], &[]), "layer 0: piece 0 is not of this layer and geometry");
    invalid(file.set_layer(0, Geometry { heads: 0, ..GEOMETRY }, &[], &[]), "layer 0: heads is 0");
    invalid(file.put("", b""), "the name of a section has 0 bytes; 1 to 255 allowed");
    invalid(file.add_piece(0, 0, &[b"a"], 0).map(drop), "a piece of 0 tokens in 1 parts; at least 1 of each expected");
    assert!(!file.is_changed());
    assert_eq!(read_all(&file), before);
    let error = Snapshot::open(disk.storage(), Some(b"a model, its rope and its typos"), Access::ReadOnly).unwrap_err();
    assert_eq!(error.status(), Status::Stale, "{error}");
    let mut file = Snapshot::open(disk.storage(), None, Access::ReadOnly).unwrap();
    invalid(file.put("a", b""), "chat.kv is open read-only");
}
