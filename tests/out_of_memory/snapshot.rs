//! A snapshot file.

use crate::chat::{Calls, Shortage};
use mnnkv::ffi::status::MNNKV_OK;
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::snapshot::{Access, Geometry, Run, Snapshot, Storage};
use mnnkv::status::Result;
use std::path::PathBuf;

/// The status of a Rust call, and its value.
pub fn status<T>(result: Result<T>, value: &mut Option<T>) -> mnnkv_status {
    match result {
        Ok(made) => {
            *value = Some(made);
            MNNKV_OK
        }
        Err(error) => error.status().code(),
    }
}

fn saves(path: &PathBuf, shortage: Shortage) -> Calls {
    let mut calls = Calls { shortage, made: 0, refusals: 0, failures: 0 };
    let geometry = Geometry { heads: 1, head_dim: 8, key: 1, value: 1 };
    let (mut file, mut piece, mut done) = (None, None, None);
    calls.run("create", || {
        status(Storage::create(path).and_then(|storage| Snapshot::create(storage, b"model")), &mut file)
    });
    let mut file = file.unwrap();
    let mut runs = Vec::new();
    for save in 0..2u8 {
        calls.run("add_piece", || status(file.add_piece(0, 4, &[&[save; 100], &[1; 9]], 5), &mut piece));
        runs.push(Run { of: piece.unwrap(), offset: save.into(), begin: 0, count: 1 });
        calls.run("set_layer", || status(file.set_layer(0, geometry, &runs, &[save; 200]), &mut done));
        let tokens = &[save; 102][..100 + usize::from(save)];
        calls.run("put", || status(file.put("tokens", tokens), &mut done));
        calls.run("remove", || status(file.remove("gone"), &mut done));
        calls.run("put", || status(file.put("gone", b"x"), &mut done));
        calls.run("commit", || status(file.commit(), &mut done));
        assert_eq!(file.version(), u64::from(save) + 1);
    }
    drop(file);
    for access in [Access::Append, Access::ReadOnly] {
        let mut file = None;
        let storage = || if access == Access::Append { Storage::edit(path) } else { Storage::open(path) };
        calls.run("open", || status(storage().and_then(|s| Snapshot::open(s, Some(b"model"), access)), &mut file));
        let file = file.unwrap();
        assert_eq!(file.layer(0).unwrap().runs.len(), 2);
        let (mut read, mut bytes, mut count, mut usage) = (None, None, None, None);
        calls.run("piece", || status(file.piece(1), &mut read));
        assert_eq!(read.unwrap().part(0), [1; 100]);
        calls.run("section", || status(file.section("tokens"), &mut bytes));
        assert_eq!(bytes.as_deref(), Some(&[1; 101][..]));
        calls.run("layer_state", || status(file.layer_state(0), &mut bytes));
        calls.run("usage", || status(file.usage(), &mut usage));
        calls.run("verify", || status(file.verify(|damage| panic!("{damage}")), &mut count));
    }
    std::fs::remove_file(path).unwrap();
    calls
}

#[test]
#[cfg_attr(not(unix), ignore = "paths are opened by the standard library, which aborts when memory runs out")]
fn snapshots_lose_nothing_and_leave_no_half_of_a_file() {
    let path = std::env::temp_dir().join(format!("mnnkv-out-of-memory-{}", std::process::id()));
    assert!(crate::runtime::each_call("snapshot", |shortage| saves(&path, shortage)) > 50);
}
