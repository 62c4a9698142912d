//! Files of chats.

mod mend;

use super::counting_allocator::peak;
use super::disk::Disk;
use super::given::Given;
use super::packing::{Dense, Packing, flash};
use super::random::Random;
use mnnkv::attend::{Queries, Step};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Effort, Encoder, Format, Options};
use mnnkv::layout::{Cache, CacheRef, Layout, Spec};
use mnnkv::session::{Begun, Host, Session};
use mnnkv::snapshot::{Access, Geometry, Run, Snapshot};
use mnnkv::store::Packing as HowEncoded;
use xxhash_rust::xxh3::xxh3_64;

fn fastest() -> HowEncoded {
    HowEncoded { effort: Effort::new(1, "effort").unwrap(), threads: 1 }
}

/// Configs of sessions that load: without, with and with another eviction, with stored tokens, with fewer bits, and with a
/// budget.
const CONFIGS: [&str; 6] = [
    "{}",
    r#"{"kv_h2o_enable":true,"kv_h2o_layer_start":0,"kv_h2o_block_tokens":4,"kv_h2o_sink_tokens":4,
        "kv_h2o_recent_tokens":8,"kv_h2o_trigger_min_tokens":8}"#,
    r#"{"kv_h2o_enable":true,"kv_h2o_policy":"mass","kv_h2o_layer_start":0,
        "kv_h2o_block_tokens":2,
        "kv_h2o_sink_tokens":1,"kv_h2o_recent_tokens":2,"kv_h2o_trigger_min_tokens":1,"kv_h2o_update_interval":1}"#,
    r#"{"kv_lossless_enable":true,"kv_lossless_runtime_enable":true,"kv_lossless_runtime_mode":"store",
        "kv_lossless_async_threads":0,"kv_lossless_hot_sink_tokens":0,"kv_lossless_hot_recent_tokens":1,
        "kv_lossless_block_tokens":4,"kv_lossless_store_bootstrap_tokens":0}"#,
    r#"{"kv_quant":"k8v4","kv_quant_sink_tokens":3}"#,
    r#"{"kv_memory_bytes":700000}"#,
];
const LAYERS: u32 = 4;
/// The most bytes of a cache that is made.
const MOST_BYTES: usize = 1 << 18;

/// Any bytes as a file: refused, or read as far as it is whole, and saved again. Unless the last byte is 0, its checksums
/// are made right first. Memory is proportional to the file.
pub fn snapshot(data: &[u8]) {
    let mut image = data.to_vec();
    if !data.ends_with(&[0]) {
        mend::mend(&mut image);
    }
    for access in [Access::ReadOnly, Access::Append] {
        let disk = Disk::of(&image);
        let mut opened = None;
        let held = peak(|| opened = Snapshot::open(disk.storage(), None, access).ok());
        assert!(held <= (1 << 20) + 64 * image.len(), "{held} bytes for {}", image.len());
        let Some(file) = opened else { continue };
        let held = peak(|| read(&file));
        // A layer may have as many tokens as it likes; buffers have a bound of their own.
        assert!(held <= (16 << 20) + 256 * image.len(), "{held} bytes for {}", image.len());
        if access == Access::Append {
            save(file, &disk);
        }
    }
}

/// Reads all that a tool reads, and loads it into sessions.
fn read(file: &Snapshot) {
    let mut found = 0;
    file.verify(|_| {
        found += 1;
        Ok(())
    })
    .unwrap();
    file.usage().unwrap();
    for (layer, entry) in file.layers() {
        let (tokens, state) = (entry.tokens(), file.layer_state(layer));
        assert!(state.is_err() || state.is_ok_and(|state| state.len() as u64 == entry.state_len()));
        assert_eq!(tokens, entry.runs.iter().map(|run| run.count).sum::<u32>());
    }
    let names: Vec<String> = file.names().map(str::to_owned).collect();
    for name in &names {
        if let Ok(bytes) = file.section(name) {
            assert_eq!(Some(bytes.len() as u64), file.section_len(name));
        }
    }
    for piece in file.pieces() {
        if let Ok(bytes) = file.piece(piece) {
            (0..bytes.ends.len()).for_each(|part| assert!(bytes.part(part).len() <= bytes.bytes.len()));
        }
    }
    for config in &CONFIGS {
        let session = session(config, LAYERS);
        for layer in 0..LAYERS {
            if session.load(Some(layer), file).is_ok() {
                go_on(&session, layer, file.layer(layer).expect("it was loaded").geometry, None);
            }
        }
    }
}

/// A session of a host that attends where a config asks for it.
fn session(config: &str, layers: u32) -> Session {
    Session::with_host(config.as_bytes(), b"", layers, 1, Host { attends: true }).unwrap()
}

/// A cache of a geometry with room for `tokens`, if it is small.
fn cache(geometry: Geometry, tokens: u32) -> Option<(Packing, Layout)> {
    let kind =
        |code: u8| Dtype::ALL.into_iter().find(|dtype| *dtype as u32 == u32::from(code) && *dtype != Dtype::Int8);
    let flash = flash(geometry.heads, geometry.head_dim, 4, tokens.checked_add(4)?);
    let spec = Spec { key: kind(geometry.key)?.into(), value: kind(geometry.value)?.into(), ..flash };
    let layout = Layout::new(&spec).ok()?;
    (layout.key_bytes().max(layout.value_bytes()) <= MOST_BYTES).then_some((Packing { spec }, layout))
}

/// A row attends to all tokens of a layer, those of blocks from the file among them.
fn attend(session: &Session, layer: u32, cache: (&CacheRef<'_>, u32), geometry: Geometry) {
    let (heads, dims) = (geometry.heads as usize, geometry.head_dim as usize);
    let data: Vec<u8> = (0..heads * dims).flat_map(|at| (0.1 * at as f32 - 0.5).to_le_bytes()).collect();
    let (head_stride, row_stride) = (4 * dims, 4 * heads * dims);
    let queries = Queries { dtype: Dtype::F32, heads, rows: 1, dims, head_stride, row_stride, scale: 0.3, data: &data };
    let step = Step { queries, is_causal: true, window: None, soft_cap: None, sinks: None, mask: None };
    let mut written = 0;
    let mut write = |row: usize, head: usize, numbers: &[f32]| {
        assert!((row, numbers.len()) == (0, dims) && head < heads);
        written += 1;
    };
    (0..2).for_each(|part| session.attend(layer, cache, &step, (part, 2), &mut write).unwrap());
    assert_eq!(written, heads);
}

/// Some steps of a layer that was loaded. `whole`: all tokens of the file, where its pieces are whole.
fn go_on(session: &Session, layer: u32, geometry: Geometry, whole: Option<&[Dense]>) {
    let lengths = session.lengths(layer).unwrap();
    assert!(lengths.physical <= lengths.logical);
    let Some((packing, layout)) = cache(geometry, lengths.logical) else { return };
    let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
    let begun = session.begin(layer, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), lengths.physical);
    let Ok(Begun { kv_len: len, attends, .. }) = begun else {
        return assert!(whole.is_none(), "{:?}", begun);
    };
    if let Some(whole) = whole {
        let is_known = |at: u32| whole.contains(&packing.rows(&key, &value, &[at as usize]));
        assert!((0..len).all(is_known), "the cache has a token that the file has not");
    }
    if attends {
        attend(session, layer, (&CacheRef::new(&layout, &key, &value).unwrap(), len + 1), geometry);
    }
    session.end(layer, 0, 0, Cache::new(&layout, &mut key, &mut value).unwrap(), len + 1).unwrap();
    let half = [[0, lengths.logical as i32 / 2]];
    let len = session.keep(layer, &half, Cache::new(&layout, &mut key, &mut value).unwrap(), len + 1).unwrap();
    let disk = Disk::default();
    let mut file = Snapshot::create(disk.storage(), b"").unwrap();
    let saved =
        session.save(layer, Some(Cache::new(&layout, &mut key, &mut value).unwrap()), len, &fastest(), &mut file);
    if saved.is_ok() {
        file.commit().unwrap();
        session.load(Some(layer), &file).unwrap();
        assert_eq!(session.lengths(layer).unwrap().logical, lengths.logical / 2);
    } else {
        assert!(whole.is_none(), "{:?}", saved.map(|_| ()));
    }
}

/// Saves a section to a file that opened, which then opens again with it.
fn save(mut file: Snapshot, disk: &Disk) {
    let version = file.version();
    // A name that the reader takes from the file may be any; this one is new or replaced.
    if file.put("fuzz", &[7; 100]).and_then(|()| file.commit()).is_ok() {
        assert_eq!(file.version(), version + 1);
        drop(file);
        let again = Snapshot::open(disk.storage(), None, Access::ReadOnly).unwrap();
        assert_eq!((again.version(), again.section("fuzz").unwrap()), (version + 1, vec![7; 100]));
    }
}

/// Any bytes as the state of a layer whose tokens are whole: refused, or a chat that has them and goes on.
pub fn layer_state(data: &[u8]) {
    let mut given = Given::new(data);
    let config = given.pick(&CONFIGS);
    let float = |given: &mut Given<'_>| given.from(1, 3) as u8;
    let (heads, head_dim) = (given.from(1, 2) as u32, given.from(1, 8) as u32);
    let geometry = Geometry { heads, head_dim, key: float(&mut given), value: float(&mut given) };
    let counts: Vec<u32> = (0..given.below(4)).map(|_| given.from(1, 30) as u32).collect();
    let disk = Disk::default();
    let mut file = Snapshot::create(disk.storage(), b"").unwrap();
    let (mut tokens, mut runs, mut random) = (Vec::new(), Vec::new(), Random::new(1));
    for count in counts {
        let rows = piece(&mut file, geometry, count, &mut random);
        let piece = file.pieces().len() as u32 + runs.len() as u32;
        tokens.extend(rows);
        runs.push(Run { of: piece, offset: 0, begin: 0, count });
    }
    file.set_layer(0, geometry, &runs, given.rest()).unwrap();
    file.commit().unwrap();
    let session = session(config, 1);
    let mut loaded = Ok(());
    let held = peak(|| loaded = session.load(None, &file));
    assert!(held <= (1 << 20) + 64 * data.len(), "{held} bytes for {}", data.len());
    if loaded.is_ok() {
        assert!(session.lengths(0).unwrap().physical as usize <= tokens.len());
        go_on(&session, 0, geometry, Some(&tokens));
    } else {
        assert_eq!(session.lengths(0).unwrap().logical, 0);
    }
}

/// Gives a file a piece of `count` tokens, and returns their rows.
fn piece(file: &mut Snapshot, geometry: Geometry, count: u32, random: &mut Random) -> Vec<Dense> {
    let (mut encoder, mut parts, mut sums) = (Encoder::new(), Vec::new(), Vec::new());
    let dtype = |code: u8| Dtype::ALL.into_iter().find(|dtype| *dtype as u32 == u32::from(code)).unwrap();
    let (key, value) = (dtype(geometry.key), dtype(geometry.value));
    let mut tokens = vec![Dense::default(); count as usize];
    for (dtype, is_key) in [(key, true), (value, false)] {
        for _ in 0..geometry.heads {
            let row = geometry.head_dim as usize * dtype.bytes();
            let bytes: Vec<u8> = (0..row * count as usize).map(|_| (random.next() >> 60) as u8).collect();
            for (token, row) in tokens.iter_mut().zip(bytes.chunks(row)) {
                let rows = if is_key { &mut token.0 } else { &mut token.1 };
                rows.extend_from_slice(row);
            }
            sums.push(xxh3_64(&bytes));
            parts.push(encoder.encode(&bytes, dtype, &Options::new(Format::Checked)).unwrap().to_vec());
        }
    }
    let sum = xxh3_64(&sums.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<_>>());
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    file.add_piece(0, count, &parts, sum).unwrap();
    tokens
}
