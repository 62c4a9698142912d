//! Snapshot files: what was committed is what is read, whatever happens to the file.

#[path = "snapshot/disk.rs"]
mod disk;

use disk::Disk;
use mnnkv::snapshot::{Access, Geometry, Run, Snapshot, Storage};

const GEOMETRY: Geometry = Geometry { heads: 2, head_dim: 64, key: 1, value: 1 };

fn run(piece: u32, offset: u32, count: u32) -> Run {
    Run { piece, offset, count }
}

#[test]
fn what_is_committed_is_read_again_from_a_path() {
    let path = std::env::temp_dir().join(format!("mnnkv-snapshot-{}", std::process::id()));
    let mut file = Snapshot::create(Storage::create(&path).unwrap(), b"model").unwrap();
    let parts: [&[u8]; 4] = [&[1; 100], &[2; 300_000], &[], &[3; 7]];
    let piece = file.add_piece(3, 64, &parts, 77).unwrap();
    file.set_layer(3, GEOMETRY, &[run(piece, 0, 10), run(piece, 10, 20), run(piece, 40, 24)], &[9; 500]).unwrap();
    file.put("tokens", &[5; 1000]).unwrap();
    file.commit().unwrap();
    let kept = file.piece(piece).unwrap();
    drop(file);
    let file = Snapshot::open(Storage::open(&path).unwrap(), Some(b"model"), Access::ReadOnly).unwrap();
    assert_eq!(file.version(), 1);
    assert_eq!(file.layer(3).unwrap().runs, [run(piece, 0, 30), run(piece, 40, 24)]);
    assert_eq!(file.layer_state(3).unwrap(), [9; 500]);
    assert_eq!(file.section("tokens").unwrap(), [5; 1000]);
    for bytes in [&kept, &file.piece(piece).unwrap()] {
        assert!((0..4).all(|part| bytes.part(part) == parts[part]));
        assert_eq!(bytes.raw_checksum, 77);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_disk_holds_what_was_committed() {
    let disk = Disk::of(Vec::new());
    disk.fail_after(None);
    assert!(disk.take_log().is_empty() && disk.bytes().is_empty());
    let mut file = Snapshot::create(disk.storage(), b"").unwrap();
    file.put("a", b"1").unwrap();
    file.commit().unwrap();
    drop(file);
    let file = Snapshot::open(disk.storage(), None, Access::ReadOnly).unwrap();
    assert_eq!(file.section("a").unwrap(), b"1");
}
