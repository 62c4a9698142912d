//! Files that are damaged, of another host, or left by a save that was killed: what each way to open one does.

use crate::chat::read_all;
use crate::common::Random;
use crate::disk::Disk;
use crate::{FINGERPRINT, GEOMETRY, open, page, run, saved};
use mnnkv::snapshot::{Access, Snapshot};
use mnnkv::status::{Error, Status};
use std::ops::Range;

/// A file of four commits, each with a piece of 10 tokens in a layer of its own, and a section; with the place of each record.
fn four_commits() -> (Vec<u8>, Vec<Range<usize>>) {
    let disk = Disk::default();
    let mut file = Snapshot::create(disk.storage(), FINGERPRINT).unwrap();
    let records = (0..4).map(|n| {
        let piece = file.add_piece(n, 10, &[&[n as u8; 25][..]; 4], 0).unwrap();
        file.set_layer(n, GEOMETRY, &[run(piece, 0, 10)], &[n as u8; 50]).unwrap();
        file.put(&format!("section {n}"), &[n as u8; 70]).unwrap();
        file.commit().unwrap();
        page::record(&disk.bytes())
    });
    let records = records.collect();
    (disk.bytes(), records)
}

fn damaged(image: &[u8], at: &[usize]) -> Vec<u8> {
    let mut damaged = image.to_vec();
    at.iter().for_each(|at| damaged[*at] ^= 1);
    damaged
}

/// How many of the damages have this place.
fn named(damage: &[Error], place: &str) -> usize {
    damage.iter().filter(|error| error.message().starts_with(place)).count()
}

#[test]
fn a_writer_cuts_off_what_a_killed_save_left_and_a_reader_changes_nothing() {
    let (disk, file, states) = saved(&mut Random::new(31), 4);
    drop(file);
    let image = disk.bytes();
    let left = [&image[..], &[7; 999]].concat();
    for (access, after) in [(Access::ReadOnly, &left), (Access::Salvage, &left), (Access::Append, &image)] {
        let disk = Disk::of(&left);
        let file = Snapshot::open(disk.storage(), Some(FINGERPRINT), access).unwrap();
        assert!(read_all(&file) == states[4].things);
        assert!(disk.bytes() == *after, "{access:?}");
    }
}

#[test]
fn the_first_byte_of_a_fingerprint_that_differs_is_named() {
    let (image, _) = four_commits();
    let mut other = FINGERPRINT.to_vec();
    other[7] ^= 1;
    let longer = [FINGERPRINT, b"."].concat();
    for (given, byte) in [(&other[..], 7), (&longer, FINGERPRINT.len()), (&FINGERPRINT[..9], 9), (b"", 0)] {
        let error = Snapshot::open(Disk::of(&image).storage(), Some(given), Access::ReadOnly).unwrap_err();
        assert_eq!(error.status(), Status::Stale);
        assert!(error.message().contains(&format!(" byte {byte} differs first")), "{error}");
    }
}

#[test]
fn salvage_takes_the_fingerprint_that_a_damaged_one_was_and_no_other() {
    let (image, _) = four_commits();
    let image = damaged(&image, &[2560 + 3]);
    let salvaged = |given| Snapshot::open(Disk::of(&image).storage(), given, Access::Salvage);
    assert_eq!(open(&image, Access::ReadOnly).unwrap_err().status(), Status::Corrupt);
    for (given, found) in [(Some(FINGERPRINT), FINGERPRINT), (None, b"")] {
        let file = salvaged(given).unwrap();
        assert_eq!((file.fingerprint(), file.version()), (found, 4));
        assert_eq!((file.damage().len(), named(file.damage(), "fingerprint at offset 2560 ")), (1, 1));
    }
    assert_eq!(salvaged(Some(b"another")).unwrap_err().status(), Status::Stale);
}

#[test]
fn salvage_prefers_a_whole_state_then_one_without_what_is_lost() {
    let (image, records) = four_commits();
    let inside = |n: usize| records[n - 1].start + 20;
    let record = |n: usize| format!("commit record of state {n} at offset {} of chat.kv: ", records[n - 1].start);
    let names = |file: &Snapshot| file.names().map(str::to_owned).collect::<Vec<_>>();

    let image4 = damaged(&image, &[inside(4)]);
    assert!(open(&image4, Access::ReadOnly).unwrap_err().message().starts_with(&record(4)));
    let file = open(&image4, Access::Salvage).unwrap();
    assert_eq!((file.version(), names(&file).len()), (3, 3));
    assert_eq!((file.damage().len(), named(file.damage(), &record(4))), (1, 1));

    let image2 = damaged(&image, &[inside(2)]);
    assert!(open(&image2, Access::ReadOnly).unwrap_err().message().starts_with(&record(2)));
    let file = open(&image2, Access::Salvage).unwrap();
    assert_eq!((file.version(), names(&file)), (4, vec!["section 2".into(), "section 3".into()]));
    assert_eq!((file.damage().len(), named(file.damage(), &record(2))), (1, 1));
    assert_eq!(file.layers().map(|(layer, _)| layer).collect::<Vec<_>>(), [2, 3]);
    let usage = file.usage().unwrap();
    assert_eq!((usage.pieces, usage.values), (2 * (1 + 4 * (1 + 25)), 2 * (50 + 70)));

    let none = open(&damaged(&image, &[inside(3), inside(4)]), Access::Salvage).unwrap_err();
    assert!(none.message().starts_with(&record(4)), "{none}");
}
