//! Parked layers and chat files: bytes and times beside memcpy, a raw file and ZSTD level 3, per core.
//!
//! `MNNKV_KV_DUMPS=FOLDER cargo bench --bench chat` takes every dump below a folder; default: `testdata/kv`. The second
//! table repeats the layers of a dump until the caches have `MNNKV_CHAT_MB` (default 256) megabytes.

mod common;
#[path = "peers/dump.rs"]
#[allow(dead_code)]
mod dump;

use common::{Table, speed};
use dump::Dump;
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Effort, Frequencies, Pairing};
use mnnkv::layout::{self, Cache, Layout, Spec};
use mnnkv::session::Session;
use mnnkv::snapshot::{Access, Snapshot, Storage};
use mnnkv::store::{KeyRotation, Packing};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

/// A layer of a host, packed as MNN packs f16 with AVX-512.
#[derive(Clone)]
struct Layer {
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
    tokens: u32,
    rotary: bool,
}

impl Layer {
    fn new(key: &Dump, value: &Dump) -> Self {
        let heads = key.words.len() / key.tokens / key.row_bytes();
        let spec = Spec {
            key: key.dtype.into(),
            value: value.dtype.into(),
            kv_heads: heads as u32,
            head_dim: key.dim as u32,
            l_pack: 1,
            h_pack: 8,
            int8: Default::default(),
            flash_block: 64,
            max_tokens: key.tokens as u32,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        };
        let layout = Layout::new(&spec).unwrap();
        let (mut k, mut v) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        let mut cache = Cache::new(&layout, &mut k, &mut v).unwrap();
        let all = layout.range(0, key.tokens as u32).unwrap();
        layout::scatter(&mut cache, all, &key.words, &value.words).unwrap();
        Layer { layout, key: k, value: v, tokens: key.tokens as u32, rotary: key.rotary }
    }

    fn cache(&mut self) -> Cache<'_> {
        Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap()
    }

    fn bytes(&self) -> usize {
        let rows = self.layout.rows();
        rows.key_bytes(self.tokens as usize) + rows.value_bytes(self.tokens as usize)
    }
}

/// A session that has these layers.
fn session_of(layers: &mut [Layer]) -> Session {
    let session = Session::new(b"{}", b"", layers.len() as u32, 1).unwrap();
    for (number, layer) in layers.iter_mut().enumerate() {
        session.begin(number as u32, None, 0).unwrap();
        let tokens = layer.tokens;
        session.end(number as u32, 0, 0, layer.cache(), tokens).unwrap();
    }
    session
}

/// Runs `body` on every layer and returns the seconds.
fn each(layers: &mut [Layer], mut body: impl FnMut(u32, &mut Layer)) -> f64 {
    let start = Instant::now();
    layers.iter_mut().enumerate().for_each(|(number, layer)| body(number as u32, layer));
    start.elapsed().as_secs_f64()
}

fn packing(effort: i32, rotated: bool) -> Packing<'static> {
    let rotation =
        rotated.then_some(KeyRotation { pairing: Pairing::Half, dims: 0, frequencies: Frequencies::Theta(10_000.0) });
    Packing { effort: Effort::new(effort, "effort").unwrap(), rotation, threads: 1 }
}

/// Bytes over raw bytes of the first two layers and of all, and megabytes per second.
fn park(table: &mut Table, run: &str, layers: &[Layer]) {
    for (effort, hint) in [(1, false), (5, false), (7, false), (5, true)] {
        if hint && !layers[0].rotary {
            continue;
        }
        let mut layers = layers.to_vec();
        let before = layers.clone();
        let session = session_of(&mut layers);
        let (mut raw, mut parked, mut first) = (0, 0, (0, 0));
        let packing = packing(effort, hint);
        let down = each(&mut layers, |number, layer| {
            let tokens = layer.tokens;
            let bytes = session.park(number, Some(layer.cache()), tokens, &packing).unwrap();
            (raw, parked) = (raw + bytes.raw_bytes, parked + bytes.bytes);
            if number < 2 {
                first = (first.0 + bytes.raw_bytes, first.1 + bytes.bytes);
            }
        });
        let up = each(&mut layers, |number, layer| {
            let tokens = layer.tokens;
            session.begin(number, Some(layer.cache()), tokens).unwrap();
        });
        assert!(layers.iter().zip(&before).all(|(a, b)| a.key == b.key && a.value == b.value));
        let hint = if hint { ", hint" } else { "" };
        table.row([
            format!("{run}, effort {effort}{hint}"),
            format!("{:.3}", first.1 as f64 / first.0 as f64),
            format!("{:.3}", parked as f64 / raw as f64),
            speed(raw as f64, down),
            speed(raw as f64, up),
        ]);
    }
}

fn file(table: &mut Table, run: &str, layers: &[Layer], megabytes: usize) {
    let once: usize = layers.iter().map(Layer::bytes).sum();
    let copies = (megabytes << 20).div_ceil(once);
    let mut layers: Vec<Layer> = (0..copies).flat_map(|_| layers.to_vec()).collect();
    let raw: usize = layers.iter().map(Layer::bytes).sum();
    let path = std::env::temp_dir().join(format!("mnnkv-chat-{}.kv", std::process::id()));
    let mut line = |name: &str, bytes: u64, save: f64, load: f64| {
        let share = format!("{:.3}", bytes as f64 / raw as f64);
        table.row([format!("{run}, {name}"), share, speed(raw as f64, save), speed(raw as f64, load)]);
    };
    raw_file(&path, &layers, |save, load| line("raw write, sync, read", raw as u64, save, load));
    zstd_file(&path, &layers, |bytes, save, load| line("zstd-3, write, sync, read", bytes, save, load));
    for effort in [1, 5] {
        let session = session_of(&mut layers);
        let _ = std::fs::remove_file(&path);
        let start = Instant::now();
        let mut snapshot = Snapshot::create(Storage::create(&path).unwrap(), b"model").unwrap();
        each(&mut layers, |number, layer| {
            let tokens = layer.tokens;
            session.save(number, Some(layer.cache()), tokens, &packing(effort, false), &mut snapshot).unwrap();
        });
        snapshot.commit().unwrap();
        let save = start.elapsed().as_secs_f64();
        drop(snapshot);
        let before = layers.clone();
        layers.iter_mut().for_each(|layer| layer.key.fill(0));
        let start = Instant::now();
        let snapshot = Snapshot::open(Storage::open(&path).unwrap(), Some(b"model"), Access::ReadOnly).unwrap();
        let session = Session::new(b"{}", b"", layers.len() as u32, 1).unwrap();
        session.load(None, &snapshot).unwrap();
        each(&mut layers, |number, layer| {
            let tokens = layer.tokens;
            session.begin(number, Some(layer.cache()), tokens).unwrap();
        });
        let load = start.elapsed().as_secs_f64();
        assert!(layers.iter().zip(&before).all(|(a, b)| a.key == b.key && a.value == b.value));
        line(&format!("effort {effort}"), std::fs::metadata(&path).unwrap().len(), save, load);
    }
    let _ = std::fs::remove_file(&path);
}

fn raw_file(path: &Path, layers: &[Layer], report: impl FnOnce(f64, f64)) {
    let start = Instant::now();
    let mut file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
    for layer in layers {
        file.write_all(&layer.key).unwrap();
        file.write_all(&layer.value).unwrap();
    }
    file.sync_all().unwrap();
    let save = start.elapsed().as_secs_f64();
    let mut back = layers.to_vec();
    let start = Instant::now();
    file.seek(SeekFrom::Start(0)).unwrap();
    for layer in &mut back {
        file.read_exact(&mut layer.key).unwrap();
        file.read_exact(&mut layer.value).unwrap();
    }
    report(save, start.elapsed().as_secs_f64());
}

fn zstd_file(path: &Path, layers: &[Layer], report: impl FnOnce(u64, f64, f64)) {
    let start = Instant::now();
    let mut file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
    let mut lens = Vec::new();
    for words in layers.iter().flat_map(|layer| [&layer.key, &layer.value]) {
        let mut blob = vec![0; zstd_safe::compress_bound(words.len())];
        let len = zstd_safe::compress(&mut blob[..], words, 3).unwrap();
        blob.truncate(len);
        file.write_all(&blob).unwrap();
        lens.push(blob.len());
    }
    file.sync_all().unwrap();
    let save = start.elapsed().as_secs_f64();
    let mut back = layers.to_vec();
    let start = Instant::now();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut lens_left = lens.iter();
    for words in back.iter_mut().flat_map(|layer| [&mut layer.key, &mut layer.value]) {
        let mut blob = vec![0; *lens_left.next().unwrap()];
        file.read_exact(&mut blob).unwrap();
        zstd_safe::decompress(&mut words[..], &blob).unwrap();
    }
    report(lens.iter().sum::<usize>() as u64, save, start.elapsed().as_secs_f64());
}

fn main() {
    let given = std::env::var_os("MNNKV_KV_DUMPS");
    let root = given.clone().unwrap_or_else(|| "testdata/kv".into());
    let dumps = dump::find(Path::new(&root), given.is_none());
    let megabytes = std::env::var("MNNKV_CHAT_MB").ok().and_then(|mb| mb.parse().ok()).unwrap_or(256);
    let mut runs: Vec<(String, Vec<Layer>)> = Vec::new();
    for pair in dumps.chunks_exact(2).filter(|pair| pair[0].dtype == Dtype::F16) {
        let layer = Layer::new(&pair[0], &pair[1]);
        match runs.last_mut().filter(|(run, _)| *run == pair[0].folder) {
            Some((_, layers)) => layers.push(layer),
            None => runs.push((pair[0].folder.clone(), vec![layer])),
        }
    }
    let mut parked = Table::new("parked", "one thread", &["run", "first two layers", "all", "park MB/s", "begin MB/s"]);
    runs.iter().for_each(|(run, layers)| park(&mut parked, run, layers));
    parked.print();
    let conditions = format!("one thread, {megabytes} MB of caches");
    let mut files = Table::new("files", &conditions, &["run", "size", "save MB/s", "load MB/s"]);
    runs.iter().for_each(|(run, layers)| file(&mut files, run, layers, megabytes));
    files.print();
}
