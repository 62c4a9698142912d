//! Pieces that sessions park in a snapshot: they outlive a discard, a failed commit, and the handle of the snapshot.

use crate::FINGERPRINT;
use crate::common::Random;
use crate::disk::Disk;
use mnnkv::snapshot::{Access, ParkedPiece, SharedSnapshot, Snapshot};
use mnnkv::status::{Result, Status};

fn open(disk: &Disk) -> SharedSnapshot {
    SharedSnapshot::new(|| Snapshot::open(disk.storage(), Some(FINGERPRINT), Access::Append)).unwrap()
}

fn created(disk: &Disk) -> SharedSnapshot {
    SharedSnapshot::new(|| Snapshot::create(disk.storage(), FINGERPRINT)).unwrap()
}

/// The parts of a piece.
fn read(piece: &ParkedPiece) -> Result<Vec<Vec<u8>>> {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    let begin = piece.read(&mut bytes, &mut ends)?;
    let starts = std::iter::once(0).chain(ends.iter().copied());
    Ok(starts.zip(&ends).map(|(start, end)| bytes[begin + start..begin + end].to_vec()).collect())
}

fn park(file: &SharedSnapshot, parts: &[Vec<u8>]) -> Result<ParkedPiece> {
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(file.park(3, 16, &parts, 7)?.expect("no other call runs"))
}

/// Parks, sections, discards and commits, some of which fail and some of which lose what was written.
#[test]
fn parked_pieces_are_read_as_written_or_refused_and_never_hinder_a_commit() {
    let (mut refused, mut kept) = (0, 0);
    for seed in 0..300 {
        let random = &mut Random::new(seed);
        let disk = Disk::default();
        let file = created(&disk);
        let mut parked = Vec::new();
        let (mut staged, mut committed, mut is_lost) = (None, None, false);
        for _ in 0..random.from(5, 40) {
            match random.below(7) {
                0 => {
                    staged = Some(vec![random.next() as u8; random.from(1, 200)]);
                    file.with(|file| file.put("text", staged.as_ref().unwrap())).unwrap();
                }
                1 => {
                    file.with(|file| {
                        file.discard();
                        Ok(())
                    })
                    .unwrap();
                    staged = None;
                }
                2 => {
                    file.with(Snapshot::commit).unwrap();
                    committed = staged.take().or(committed);
                }
                3 => {
                    disk.fail_after(random.below(3), 1);
                    let is_committed = file.with(Snapshot::commit).is_ok();
                    disk.repair();
                    if !is_committed && random.once_in(2) {
                        disk.lose();
                        is_lost = true;
                        file.with(|file| {
                            file.discard();
                            Ok(())
                        })
                        .unwrap();
                        staged = None;
                    } else if is_committed {
                        committed = staged.take().or(committed);
                    }
                }
                _ => {
                    let part = |random: &mut Random| vec![random.next() as u8; random.below(300)];
                    let parts: Vec<Vec<u8>> = (0..random.from(1, 5)).map(|_| part(random)).collect();
                    if random.once_in(6) {
                        disk.fail_after(0, 1);
                        park(&file, &parts).unwrap_err();
                        disk.repair();
                    } else {
                        parked.push((park(&file, &parts).unwrap(), parts));
                    }
                }
            }
        }
        file.with(Snapshot::commit).unwrap();
        committed = staged.or(committed);
        drop(file);
        for (piece, parts) in &parked {
            match read(piece) {
                Ok(found) => assert!(found == *parts),
                Err(error) => {
                    assert!(is_lost && [Status::Corrupt, Status::Io].contains(&error.status()), "{error}");
                    assert!(error.message().contains(&format!("layer 3, piece {} (16 tokens)", piece.piece())));
                    refused += 1;
                }
            }
        }
        let file = open(&Disk::of(&disk.durable()));
        file.with(|file| {
            assert_eq!(file.section("text").ok(), committed);
            assert_eq!(file.pieces().len(), parked.len());
            for (piece, parts) in parked.iter().filter(|(piece, _)| file.piece_sum(piece.piece()) == Some(piece.sum()))
            {
                assert!(read(&file.parked_piece(piece.piece())?)? == *parts);
                kept += 1;
            }
            file.verify(|damage| panic!("{damage}"))
        })
        .unwrap();
    }
    assert!(refused > 10 && kept > 1000, "{refused} refused, {kept} kept");
}

#[test]
fn a_park_never_blocks_on_a_call_that_has_the_snapshot() {
    let file = created(&Disk::default());
    let parked = file.with(|_| file.park(0, 1, &[b"one"], 0)).unwrap();
    assert!(parked.is_none());
    assert!(file.park(0, 1, &[b"one"], 0).unwrap().is_some());
}

#[test]
fn a_truncated_or_changed_file_is_an_error_that_names_the_piece() {
    let disk = Disk::default();
    let file = created(&disk);
    let piece = park(&file, &[vec![1; 100], vec![2; 50]]).unwrap();
    let end = disk.bytes().len() as u64;
    let at = format!("layer 3, piece 0 (16 tokens) at offset {} of chat.kv", end - piece.stored_len());
    disk.change(end as usize - 1);
    let error = read(&piece).unwrap_err();
    assert!(error.status() == Status::Corrupt && error.message().starts_with(&at), "{error}");
    disk.storage().truncate(end - 1).unwrap();
    let error = read(&piece).unwrap_err();
    assert!(error.status() == Status::Io && error.message().starts_with(&at), "{error}");
}

#[test]
#[cfg(unix)]
fn a_file_stays_open_and_locked_while_a_piece_of_it_is_parked() {
    let path = std::env::temp_dir().join(format!("mnnkv-parked-{}", std::process::id()));
    let file = SharedSnapshot::new(|| Snapshot::create(mnnkv::snapshot::Storage::create(&path)?, &[])).unwrap();
    file.prepare_parks().unwrap();
    let parts = vec![vec![5; 10_000], vec![6; 300_000]];
    let piece = park(&file, &parts).unwrap();
    file.with(Snapshot::commit).unwrap();
    drop(file);
    let edit = || mnnkv::snapshot::Storage::edit(&path);
    assert_eq!(edit().unwrap_err().status(), Status::Busy);
    std::fs::remove_file(&path).unwrap();
    assert!(read(&piece).unwrap() == parts);
    drop(piece);
    assert_eq!(edit().unwrap_err().status(), Status::NotFound);
}
