//! A file of an earlier version of the library: every later one must read it, and so must `page`, which was written from
//! `docs/format.md`.

use crate::chat::{Things, read_all};
use crate::page::Page;
use crate::{GEOMETRY, run, things_of};
use mnnkv::snapshot::{Access, Geometry, Snapshot, Storage};
use std::path::PathBuf;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/snapshot/chat.kv")
}

fn part(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_mul(31).wrapping_add((i * i) as u8)).collect()
}

/// Three saves: appended, evicted, moved, begun anew; values of all forms.
fn save(file: &mut Snapshot) {
    file.add_piece(0, 64, &[&part(1, 300), &part(2, 0), &part(3, 20), &part(4, 1)], 0x1111).unwrap();
    file.add_piece(5, 10, &[&part(5, 40), &part(6, 40)], 0x2222).unwrap();
    file.set_layer(0, GEOMETRY, &[run(0, 0, 64)], &part(7, 20)).unwrap();
    file.set_layer(5, Geometry { heads: 1, head_dim: 32, key: 4, value: 5 }, &[run(1, 2, 8)], &part(8, 200)).unwrap();
    file.put("tokens", &part(9, 100)).unwrap();
    file.put("gone", b"x").unwrap();
    file.commit().unwrap();
    file.add_piece(0, 7, &[&part(10, 50)], 0x3333).unwrap();
    file.set_layer(0, GEOMETRY, &[run(0, 0, 4), run(0, 20, 30), run(2, 0, 7), run(0, 10, 2)], &part(7, 64)).unwrap();
    file.put("tokens", &part(9, 170)).unwrap();
    file.put("empty", b"").unwrap();
    file.remove("gone").unwrap();
    file.commit().unwrap();
    file.add_piece(5, 1, &[&part(11, 9)], u64::MAX).unwrap();
    file.set_layer(5, GEOMETRY, &[run(3, 0, 1)], &part(8, 201)).unwrap();
    file.put("tokens", &part(9, 180)).unwrap();
    file.commit().unwrap();
}

fn check(things: &Things) {
    let names: Vec<&str> = things.keys().map(String::as_str).collect();
    let sections = ["section empty", "section tokens", "state of layer 0", "state of layer 5"];
    assert_eq!(names[..6], ["layer 0", "layer 5", "piece 0", "piece 1", "piece 2", "piece 3"]);
    assert_eq!(names[6..], sections);
    assert!(things["section empty"].is_empty() && things["section tokens"] == part(9, 180));
    assert!(things["state of layer 0"] == part(7, 64) && things["state of layer 5"] == part(8, 201));
    let tokens = (0..4).chain(20..50).map(|token| (0, token)).chain((0..7).map(|token| (2, token)));
    let tokens = tokens.chain([(0, 10), (0, 11)]);
    assert_eq!(things["layer 0"], crate::chat::layer_bytes(&GEOMETRY, tokens));
    assert_eq!(things["layer 5"], crate::chat::layer_bytes(&GEOMETRY, [(3, 0)].into_iter()));
    let parts: [&[&[u8]]; 4] = [
        &[&part(1, 300), &part(2, 0), &part(3, 20), &part(4, 1)],
        &[&part(5, 40), &part(6, 40)],
        &[&part(10, 50)],
        &[&part(11, 9)],
    ];
    for (i, raw) in [0x1111, 0x2222, 0x3333, u64::MAX].into_iter().enumerate() {
        assert_eq!(things[&format!("piece {i}")], crate::chat::piece_bytes(parts[i].iter().copied(), raw));
    }
}

#[test]
fn a_file_of_version_1_is_read_by_the_library_and_by_the_page() {
    let file = Snapshot::open(Storage::open(&path()).unwrap(), Some(b"golden"), Access::ReadOnly).unwrap();
    assert_eq!(file.version(), 3);
    check(&read_all(&file));
    let page = Page::read(&std::fs::read(path()).unwrap());
    assert_eq!((page.sequence, &page.fingerprint[..]), (3, &b"golden"[..]));
    check(&things_of(&page));
}

#[test]
#[ignore = "writes testdata/snapshot/chat.kv, which must not exist"]
fn write_the_missing_golden() {
    save(&mut Snapshot::create(Storage::create(&path()).unwrap(), b"golden").unwrap());
}
