use super::*;
use crate::common::Random;
use std::collections::BTreeMap;

pub(crate) mod disk;
use disk::{Disk, Event};

const FINGERPRINT: &[u8] = b"a model, its rope and its types";

/// What a file has: the bytes of tables and sections by name, and of things that tables lead to.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    layers: BTreeMap<u32, Vec<u8>>,
    sections: BTreeMap<String, Vec<u8>>,
    things: Vec<(Extent, Vec<u8>)>,
}

impl State {
    /// Changes some of it; writes new things to the file.
    fn change(&mut self, file: &mut ChatFile, random: &mut Random) -> Result<()> {
        while !self.things.is_empty() && random.once_in(3) {
            self.things.swap_remove(random.below(self.things.len()));
        }
        for _ in 0..random.from(1, 5) {
            let bytes: Vec<u8> = (0..random.from(1, 900)).map(|_| random.next() as u8).collect();
            self.things.push((file.write(&bytes)?, bytes));
        }
        let bytes = |random: &mut Random| (0..random.from(0, 300)).map(|_| random.next() as u8).collect::<Vec<u8>>();
        (0..random.from(1, 3)).for_each(|_| drop(self.layers.insert(random.below(9) as u32, bytes(random))));
        self.sections.insert(format!("section {}", random.below(4)), bytes(random));
        Ok(())
    }

    fn new_state(&self) -> NewState {
        NewState {
            layers: self.layers.clone().into_iter().collect(),
            sections: self.sections.clone().into_iter().collect(),
            keeps_sections: true,
            working: 0,
            places: self.things.iter().map(|(at, _)| at.range()).collect(),
        }
    }

    /// Whether all of it is in a file.
    fn is_in(&self, file: &ChatFile) -> bool {
        let layers = file.index.layers.iter().map(|(layer, at)| (*layer, file.read(at, "a table").unwrap())).collect();
        let sections = file.names().map(|name| (name.into(), file.section(name).unwrap())).collect();
        self.layers == layers
            && self.sections == sections
            && self.things.iter().all(|(at, bytes)| file.read(at, "a thing").unwrap() == *bytes)
    }
}

fn open(image: &[u8]) -> Result<ChatFile> {
    ChatFile::open(Disk::of(image).storage(), Some(FINGERPRINT), Access::Read)
}

/// A file on a disk after some commits, and its states.
fn saved(random: &mut Random, commits: usize) -> (Disk, ChatFile, Vec<State>) {
    let disk = Disk::default();
    let mut file = ChatFile::create(disk.storage(), FINGERPRINT).unwrap();
    let mut states = Vec::<State>::new();
    while states.len() < commits {
        save_next(&mut file, &mut states, random);
    }
    (disk, file, states)
}

/// Saves what comes after the last of some states.
fn save_next(file: &mut ChatFile, states: &mut Vec<State>, random: &mut Random) {
    let mut state = states.last().cloned().unwrap_or_default();
    state.change(file, random).unwrap();
    file.commit(state.new_state()).unwrap();
    states.push(state);
}

/// The state that a file has, of those that it may have.
fn state_of(image: &[u8], states: &[State]) -> usize {
    let file = open(image).unwrap_or_else(|e| panic!("{e}"));
    let version = file.version().unwrap() as usize;
    assert!(states[version].is_in(&file), "{version}");
    version
}

#[test]
fn a_reopened_file_has_what_was_committed_and_uses_its_space_again() {
    for seed in 0..30 {
        let random = &mut Random::new(seed);
        let (disk, mut file, mut states) = saved(random, 1);
        let (mut most, mut written) = (0, 0);
        for _ in 0..40 {
            let mut state = states.last().unwrap().clone();
            state.change(&mut file, random).unwrap();
            if random.once_in(3) {
                drop(file);
                file = ChatFile::open(disk.storage(), Some(FINGERPRINT), Access::Commit).unwrap();
                let claimed = file.claimed(states.last().unwrap().new_state().places).unwrap();
                file.take_space(claimed);
                assert!(file.len() <= disk.bytes().len() as u64);
            } else {
                file.commit(state.new_state()).unwrap();
                let before = disk.bytes();
                file.commit(state.new_state()).unwrap();
                assert!(disk.bytes() == before, "nothing is new");
                states.push(state);
            }
            assert_eq!(state_of(&disk.bytes(), &states), states.len() - 1);
            written += states.last().unwrap().things.iter().map(|(at, _)| at.len).sum::<u64>();
            most = most.max(disk.bytes().len() as u64);
        }
        assert!(most < written / 4, "{most} bytes of {written}");
    }
}

#[test]
fn a_file_that_is_closed_without_a_commit_goes_and_another_is_cut_back() {
    let random = &mut Random::new(2);
    let disk = Disk::default();
    let mut file = ChatFile::create(disk.storage(), FINGERPRINT).unwrap();
    file.write(b"a block").unwrap();
    assert!(ChatFile::is_left(&disk.storage()).unwrap());
    assert!(open(&disk.bytes()).unwrap_err().message().contains("no chat was saved in it yet"));
    drop(file);
    assert_eq!(disk.bytes(), b"", "the host's bytes of a file that goes");
    let (disk, mut file, states) = saved(random, 3);
    let before = disk.bytes();
    file.write(&[7; 5000]).unwrap();
    assert!(disk.bytes().len() > before.len());
    drop(file);
    assert!(disk.bytes().len() <= before.len());
    assert_eq!(state_of(&disk.bytes(), &states), 2);
}

#[test]
fn a_section_without_bytes_is_read_whatever_is_cut_off() {
    let disk = Disk::default();
    let mut file = ChatFile::create(disk.storage(), FINGERPRINT).unwrap();
    let mut commit = |sections: &[(&str, &[u8])]| {
        let sections = sections.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect();
        file.commit(NewState { sections, keeps_sections: true, ..NewState::default() }).unwrap();
    };
    commit(&[("long", &[7; 9000])]);
    commit(&[("empty", &[])]);
    commit(&[("long", &[7])]);
    commit(&[("long", &[8])]);
    assert!(disk.bytes().len() < 9000);
    assert_eq!(open(&disk.bytes()).unwrap().section("empty").unwrap(), b"");
}

#[test]
fn a_save_killed_at_any_byte_leaves_the_last_state_or_the_new_one() {
    for seed in 0..6 {
        let random = &mut Random::new(seed);
        let (disk, mut file, mut states) = saved(random, 1 + seed as usize / 2);
        let mut image = disk.bytes();
        disk.take_log();
        let old = states.len() - 1;
        save_next(&mut file, &mut states, random);
        for event in disk.take_log() {
            let Event::Write(offset, bytes) = event else { continue };
            for cut in 0..=bytes.len() {
                let mut killed = image.clone();
                disk::write(&mut killed, offset, &bytes[..cut]);
                assert!(state_of(&killed, &states) >= old);
                if random.once_in(50) {
                    let disk = Disk::of(&killed);
                    let mut file = ChatFile::open(disk.storage(), None, Access::Commit).unwrap();
                    let mut next = states[file.version().unwrap() as usize].clone();
                    let claimed = file.claimed(next.new_state().places).unwrap();
                    file.take_space(claimed);
                    next.change(&mut file, random).unwrap();
                    file.commit(next.new_state()).unwrap();
                    assert!(next.is_in(&open(&disk.bytes()).unwrap()));
                }
            }
            disk::write(&mut image, offset, &bytes);
        }
        assert_eq!(state_of(&image, &states), old + 1);
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
        save_next(&mut file, &mut states, random);
        for epoch in disk.take_log().split(|event| matches!(event, Event::Sync)) {
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
                assert!(state_of(&torn, &states) >= old);
            }
            for event in epoch {
                let Event::Write(offset, bytes) = event else { unreachable!() };
                disk::write(&mut synced, *offset, bytes);
            }
        }
    }
}

#[test]
fn a_full_disk_keeps_the_last_state_and_a_later_commit_has_the_next() {
    for failures in [1, 2, 3, usize::MAX] {
        let random = &mut Random::new(failures as u64);
        let mut failed = 0;
        for calls in (0..25).flat_map(|calls| [calls; 4]) {
            let (disk, mut file, mut states) = saved(random, 2);
            disk.fail_after(calls, failures);
            let mut state = states[1].clone();
            let changed = state.change(&mut file, random);
            let committed = changed.and_then(|()| file.commit(state.new_state()));
            if let Err(error) = committed {
                assert_eq!(error.status(), Status::Io);
                failed += 1;
                let found = open(&disk.durable()).unwrap().version();
                assert!(found == Some(1) || failures > 1 && found == Some(2), "{found:?} after {failures} failures");
                disk.repair();
                // What a sync has lost is not trusted.
                if !file.is_lost() {
                    state.change(&mut file, random).unwrap();
                    file.commit(state.new_state()).unwrap();
                    states.push(state);
                    drop(file);
                    assert_eq!(state_of(&disk.durable(), &states), 2);
                }
            }
        }
        assert!(failed > 10, "{failed}");
    }
}

#[test]
fn every_damaged_byte_and_every_length_is_refused_or_is_no_part_of_the_state() {
    let random = &mut Random::new(7);
    let (disk, file, states) = saved(random, 6);
    drop(file);
    let image = disk.bytes();
    let state = &states[5];
    let covered =
        |at: usize| at < 5 * 512 || state.things.iter().all(|(place, _)| !place.range().contains(&(at as u64)));
    let mut refused = 0;
    for at in 0..image.len() {
        let mut damaged = image.clone();
        damaged[at] ^= 1 << random.below(8);
        let found = open(&damaged).map(|file| {
            assert_eq!(file.version(), Some(5));
            let things = state.things.iter().filter(|(place, _)| file.read(place, "a thing").is_err()).count();
            let layers = file.index.layers.iter().filter(|(_, at)| file.read(at, "a table").is_err()).count();
            let sections = file.names().filter(|name| file.section(name).is_err()).count();
            things + layers + sections
        });
        match found {
            Ok(lost) => assert!(lost <= 1 && (lost == 1 || covered(at)), "{at}"),
            Err(error) => {
                assert_eq!(error.status(), Status::Corrupt, "{error}");
                assert!(
                    error.message().contains(" of chat.kv: ") || error.message().contains("chat.kv has"),
                    "{error}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 500, "{refused}");
    for len in 0..image.len() {
        let error = open(&image[..len]).map(drop).unwrap_err();
        assert_eq!(error.status(), Status::Corrupt, "{len}: {error}");
    }
}

#[test]
fn places_behind_4_gib_are_read() {
    let path = std::env::temp_dir().join(format!("mnnkv-file-large-{}", std::process::id()));
    let mut file = ChatFile::create(Storage::create(&path).unwrap(), FINGERPRINT).unwrap();
    file.place(5 << 30, None).unwrap();
    let at = file.write(b"far away").unwrap();
    assert!(at.offset > 5 << 30);
    let table = (3, b"a table".to_vec());
    file.commit(NewState { layers: vec![table], places: vec![at.range()], ..NewState::default() }).unwrap();
    drop(file);
    let file = ChatFile::open(Storage::open(&path).unwrap(), Some(FINGERPRINT), Access::Read).unwrap();
    assert_eq!(file.read(&at, "a thing").unwrap(), b"far away");
    assert_eq!(file.layers().collect::<Vec<_>>(), [3]);
    drop(file);
    std::fs::remove_file(&path).unwrap();
}
