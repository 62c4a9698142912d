//! A chat whose evicted tokens are parked in its file and come back, which is parked, saved, loaded and saved anew.

use crate::chat::{Calls, Shortage};
use crate::host::packing::{Dense, flash};
use crate::host::{Host, expand};
use crate::runtime::each_call;
use crate::snapshot::status;
use mnnkv::dtype::Dtype;
use mnnkv::gear::Effort;
use mnnkv::layout::{Cache, Spec};
use mnnkv::session::{Queries, Session, compact_file};
use mnnkv::snapshot::{Access, SharedSnapshot, Snapshot, Storage};
use mnnkv::store::Packing;
use std::path::{Path, PathBuf};

const CONFIG: &[u8] = br#"{"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_target_lossy_ratio": 3,
    "kv_h2o_trigger_min_tokens": 1, "kv_recall_enable": true, "kv_recall_tier": "file", "kv_recall_block_tokens": 4,
    "kv_recall_sink_tokens": 4, "kv_recall_recent_tokens": 4, "kv_recall_hysteresis": 0}"#;
const KV_HEADS: usize = 2;
const DIMS: usize = 8;

struct Chat {
    calls: Calls,
    session: Session,
    host: Host,
    /// Every token of the chat.
    tokens: Vec<Dense>,
}

impl Chat {
    fn positions(&self) -> Vec<u32> {
        expand(&self.session.positions(0).unwrap()).collect()
    }

    fn step(&mut self, count: usize, seed: usize) {
        let Chat { calls, session, host, .. } = self;
        let (mut done, len) = (None, host.len());
        host.cache();
        calls.run("begin", || status(session.begin_step(0, Some(here(host)), len, count as u32), &mut done));
        let tokens = self.positions().into_iter().map(|at| self.tokens[at as usize].clone()).collect();
        let Chat { calls, session, host, .. } = self;
        host.arrange(tokens);
        assert_eq!(Some(host.len()), done);
        host.check_tokens(false);
        let len = host.tokens.len();
        host.append(count);
        self.tokens.extend((len..len + count).map(|at| host.dense(at..at + 1)));
        let rows: Vec<u8> = (0..2 * KV_HEADS * DIMS).flat_map(|i| (((i + seed) % 7) as f32).to_ne_bytes()).collect();
        let row = 4 * DIMS;
        let queries = Queries {
            dtype: Dtype::F32,
            heads: 2 * KV_HEADS,
            rows: 1,
            dims: DIMS,
            head_stride: row,
            row_stride: 2 * KV_HEADS * row,
            scale: 0.0,
            data: &rows,
        };
        let mut done = None;
        calls.run("queries", || status(session.queries(0, &queries), &mut done));
        let len = host.len();
        calls.run("end", || status(session.end(0, 0, count as u32, here(host), len), &mut done));
    }
}

/// The cache where it lies: a host that moves it takes memory.
fn here(host: &mut Host) -> Cache<'_> {
    Cache::new(&host.layout, &mut host.key, &mut host.value).unwrap()
}

fn session(calls: &mut Calls) -> Session {
    let mut session = None;
    calls.run("create", || status(Session::new(CONFIG, b"", 1, 1), &mut session));
    session.unwrap()
}

fn snapshot(calls: &mut Calls, path: &Path) -> SharedSnapshot {
    let mut file = None;
    let make = || SharedSnapshot::new(|| Snapshot::create(Storage::create(path)?, b"model"));
    calls.run("create a file", || status(make(), &mut file));
    file.unwrap()
}

/// Two turns of a chat, in another session each, and the file compacted between them.
fn chat(paths: &[PathBuf; 2], shortage: Shortage) -> Calls {
    let mut calls = Calls { shortage, made: 0, refusals: 0, failures: 0 };
    let packing = Packing { effort: Effort::new(1, "effort").unwrap(), rotation: None, threads: 1 };
    let spec = Spec { flash_block: 16, ..flash(KV_HEADS as u32, DIMS as u32, 8, 96) };
    let session = session(&mut calls);
    let file = snapshot(&mut calls, &paths[0]);
    let mut chat = Chat { calls, session, host: Host::new(spec, 1), tokens: Vec::new() };
    let mut done = None;
    chat.calls.run("park in a file", || status(chat.session.park_to(Some(file.clone())), &mut done));
    for step in 0..5 {
        chat.step(if step == 0 { 30 } else { 1 + step % 2 }, step);
    }
    chat.calls.run("pin", || status(chat.session.pin(8, 4, true), &mut done));
    chat.step(1, 7);
    let Chat { calls, session, host, .. } = &mut chat;
    let len = host.len();
    let mut parked = None;
    calls.run("park", || status(session.park(0, Some(here(host)), len, &packing), &mut parked));
    let mut saved = None;
    calls.run("save", || status(file.with(|file| session.save(0, Some(here(host)), len, &packing, file)), &mut saved));
    calls.run("commit", || status(file.with(Snapshot::commit), &mut done));
    let small = snapshot(calls, &paths[1]);
    let compacted = || file.with(|file| small.with(|small| compact_file(file, &packing, small)));
    calls.run("compact", || status(compacted(), &mut done));
    calls.run("commit", || status(small.with(Snapshot::commit), &mut done));
    drop(small);
    chat.session = self::session(&mut chat.calls);
    let mut opened = None;
    let open = || SharedSnapshot::new(|| Snapshot::open(Storage::edit(&paths[1])?, None, Access::Append));
    chat.calls.run("open", || status(open(), &mut opened));
    let file = opened.unwrap();
    let positions = chat.positions();
    assert!(positions.is_empty());
    chat.calls.run("load", || status(file.with(|file| chat.session.load(None, file)), &mut done));
    chat.calls.run("park in a file", || status(chat.session.park_to(Some(file.clone())), &mut done));
    // The tokens are in the file, in the order that the next begin tells.
    chat.step(1, 3);
    let all = chat.tokens.len() as u32;
    chat.calls.run("pin", || status(chat.session.pin(0, all, true), &mut done));
    chat.step(1, 4);
    let mut stats = None;
    chat.calls.run("recall_stats", || status(chat.session.recall_stats(None), &mut stats));
    assert_eq!(chat.session.lengths(0).unwrap().logical as usize, chat.tokens.len());
    let Chat { calls, .. } = chat;
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    calls
}

#[test]
fn chats_with_recall_lose_no_token_in_steps_parks_saves_and_loads() {
    // Commits wait for a disk, but not for one in memory.
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let paths = ["a", "b"].map(|name| folder.join(format!("mnnkv-out-of-memory-{}-{name}.kv", std::process::id())));
    assert!(each_call("recall", |shortage| chat(&paths, shortage)) > 50);
}
