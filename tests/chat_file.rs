//! The chat file of a session, through every packing and every damaged bit.

mod common;
#[path = "snapshot/disk.rs"]
#[allow(dead_code)]
mod disk;

use common::{Random, read, testdata};
use disk::Disk;
use mnnkv::dtype::Dtype;
use mnnkv::gear::Effort;
use mnnkv::layout::{Cache, CacheRef, Layout, Pair, Spec, gather, scatter};
use mnnkv::session::Session;
use mnnkv::snapshot::{Access, Snapshot, Storage};
use mnnkv::status::{Error, Status};
use mnnkv::store::Packing;
use std::io::{Seek, SeekFrom, Write};

const CONFIG: &[u8] = br#"{"kv_h2o_enable": true, "kv_h2o_policy": "mass", "kv_h2o_layer_start": 0,
"kv_h2o_block_tokens": 4,     "kv_h2o_sink_tokens": 4, "kv_h2o_recent_tokens": 8, "kv_h2o_trigger_min_tokens": 8}"#;
const LAYERS: usize = 2;
const HEADS: usize = 2;
const DIM: usize = 64;
/// Tokens of the golden file: of 60, those that an edit left.
const KEPT: [Pair; 2] = [[0, 20], [31, 29]];

/// Rows of K and of V.
type Both = (Vec<u8>, Vec<u8>);

/// The packing of MNN with these numbers, for `max_tokens`.
fn spec(l_pack: u32, h_pack: u32, flash_block: u32, max_tokens: u32) -> Spec {
    Spec {
        key: Dtype::F16.into(),
        value: Dtype::F16.into(),
        kv_heads: HEADS as u32,
        head_dim: DIM as u32,
        l_pack,
        h_pack,
        int8: Default::default(),
        flash_block,
        max_tokens,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
    }
}

/// Buffers of one layer.
struct Buffers {
    layout: Layout,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Buffers {
    fn new(spec: &Spec) -> Self {
        let layout = Layout::new(spec).unwrap();
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        Buffers { layout, key, value }
    }

    fn cache(&mut self) -> Cache<'_> {
        Cache::new(&self.layout, &mut self.key, &mut self.value).unwrap()
    }

    fn rows(&self, len: u32) -> Both {
        let rows = self.layout.rows();
        let (mut key, mut value) = (vec![0; rows.key_bytes(len as usize)], vec![0; rows.value_bytes(len as usize)]);
        let cache = CacheRef::new(&self.layout, &self.key, &self.value).unwrap();
        gather(&cache, self.layout.range(0, len).unwrap(), &mut key, &mut value).unwrap();
        (key, value)
    }
}

/// The rows of tokens of the bundled sample, `[head][token][dim]`.
fn sample(kind: &str, layer: usize, tokens: impl Iterator<Item = usize> + Clone) -> Vec<u8> {
    let all = read(&format!("kv/l{layer}_{kind}_h2_t1088_d64.f16"));
    let row = DIM * 2;
    (0..HEADS)
        .flat_map(|head| tokens.clone().map(move |t| (head * 1088 + t) * row))
        .flat_map(|at| all[at..at + row].to_vec())
        .collect()
}

fn packing() -> Packing {
    Packing { effort: Effort::DEFAULT, threads: 2 }
}

/// 60 tokens of the sample in steps of 50 and 10 with a save after each, an edit, and a third save.
fn write(storage: Storage) -> Snapshot {
    let session = Session::new(CONFIG, b"", LAYERS as u32, 1).unwrap();
    let mut file = Snapshot::create(storage, b"sample").unwrap();
    let mut layers: Vec<Buffers> = (0..LAYERS).map(|_| Buffers::new(&spec(1, 8, 64, 60))).collect();
    for (begin, end) in [(0, 50), (50, 60), (60, 60)] {
        for (number, buffers) in layers.iter_mut().enumerate() {
            let number = number as u32;
            if begin == end {
                let len = session.keep(number, &KEPT, buffers.cache(), begin).unwrap();
                session.save(number, Some(buffers.cache()), len, &packing(), &mut file).unwrap();
                continue;
            }
            session.begin(number, Some(buffers.cache()), begin).unwrap();
            let tokens = begin as usize..end as usize;
            let (key, value) = (sample("k", number as usize, tokens.clone()), sample("v", number as usize, tokens));
            let range = buffers.layout.range(begin, end - begin).unwrap();
            scatter(&mut buffers.cache(), range, &key, &value).unwrap();
            session.end(number, 0, end - begin, buffers.cache(), end).unwrap();
            session.save(number, Some(buffers.cache()), end, &packing(), &mut file).unwrap();
        }
        file.put("tokens", format!("{end} tokens").as_bytes()).unwrap();
        file.commit().unwrap();
    }
    file
}

fn expand(pairs: &[Pair]) -> Vec<usize> {
    pairs.iter().flat_map(|p| p[0] as usize..(p[0] + p[1]) as usize).collect()
}

/// Loads all layers into caches of this packing. A chat that was loaded can be read: it has replaced another one.
fn load(file: &Snapshot, spec: &Spec) -> Result<Vec<Both>, Error> {
    let session = Session::new(CONFIG, b"", LAYERS as u32, 1).unwrap();
    session.load(None, file)?;
    let layer = |number| {
        let mut buffers = Buffers::new(spec);
        let len = session.lengths(number).unwrap().physical;
        session.begin(number, Some(buffers.cache()), len).expect("a chat that was loaded can be read");
        buffers.rows(len)
    };
    Ok((0..LAYERS as u32).map(layer).collect())
}

fn expected() -> Vec<Both> {
    let tokens = expand(&KEPT);
    (0..LAYERS)
        .map(|layer| (sample("k", layer, tokens.iter().copied()), sample("v", layer, tokens.iter().copied())))
        .collect()
}

#[test]
fn the_golden_file_opens_with_the_packing_of_every_cpu_and_has_equal_rows() {
    let image = read("snapshot/session.kv");
    for (l_pack, h_pack, flash_block) in
        [(1, 8, 64), (1, 16, 64), (2, 64, 64), (4, 8, 64), (1, 4, 96), (1, 1, 1), (1, 1, 96)]
    {
        let file = Snapshot::open(Disk::of(&image).storage(), Some(b"sample"), Access::ReadOnly).unwrap();
        assert_eq!(file.section("tokens").unwrap(), b"60 tokens");
        let rows = load(&file, &spec(l_pack, h_pack, flash_block, 96)).unwrap();
        assert!(rows == expected(), "lP {l_pack}, hP {h_pack}, flash block {flash_block}");
    }
}

#[test]
fn a_file_written_today_is_read_like_the_golden_one() {
    let file = write(Disk::default().storage());
    assert!(load(&file, &spec(1, 16, 64, 60)).unwrap() == expected());
}

#[test]
#[ignore = "writes the golden file if there is none"]
fn write_the_missing_golden() {
    let path = testdata("snapshot/session.kv");
    if !path.exists() {
        write(Storage::create(&path).unwrap());
    }
}

/// Not the state of an older save, either: the edit is the last one.
#[test]
fn no_damaged_bit_and_no_truncation_of_a_session_file_changes_a_token_or_its_position() {
    let image = read("snapshot/session.kv");
    let (want, mut random, mut refused) = (expected(), Random::new(7), 0);
    for round in 0..20_000 {
        let mut damaged = image.clone();
        if round % 2 == 0 {
            damaged.truncate(random.below(image.len()));
        } else {
            let at = random.below(image.len());
            damaged[at] ^= 1 << random.below(8);
        }
        let opened = Snapshot::open(Disk::of(&damaged).storage(), Some(b"sample"), Access::ReadOnly);
        match opened.and_then(|file| load(&file, &spec(1, 8, 64, 60))) {
            Ok(rows) => assert!(rows == want, "round {round}"),
            Err(error) => {
                refused += 1;
                assert!(matches!(error.status(), Status::Corrupt | Status::Unsupported | Status::Stale), "{error}");
                assert!(error.to_string().contains("offset"), "{error}");
            }
        }
    }
    assert!(refused > 15_000, "{refused}");
}

#[test]
fn a_chat_whose_file_was_damaged_after_it_was_loaded_is_not_saved() {
    let path = std::env::temp_dir().join(format!("mnnkv-chat-file-{}.kv", std::process::id()));
    let _ = std::fs::remove_file(&path);
    drop(write(Storage::create(&path).unwrap()));
    let session = Session::new(CONFIG, b"", LAYERS as u32, 1).unwrap();
    session.load(None, &Snapshot::open(Storage::open(&path).unwrap(), None, Access::ReadOnly).unwrap()).unwrap();
    let len = session.lengths(0).unwrap().physical;
    let saved_to = |file: &mut Snapshot| session.save(0, None, len, &packing(), file).map(|saved| saved.tokens);
    let other = || Snapshot::create(Disk::default().storage(), b"sample").unwrap();
    assert_eq!(saved_to(&mut other()), Ok(60), "the pieces, with tokens that an edit removed");

    let image = std::fs::read(&path).unwrap();
    let damaged_by = |at: usize| {
        let disk = Disk::of(&image);
        disk.change(at);
        let (file, mut found) = (Snapshot::open(disk.storage(), None, Access::ReadOnly).ok()?, None);
        let note = |error: Error| {
            found = Some(error.to_string());
            Ok(())
        };
        file.verify(note).unwrap();
        found
    };
    let is_token = |at: &usize| damaged_by(*at).is_some_and(|error| error.contains("layer 0, piece 0"));
    let at = (0..image.len()).step_by(64).find(is_token).unwrap();
    let mut edited = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    edited.seek(SeekFrom::Start(at as u64)).unwrap();
    edited.write_all(&[image[at] ^ 1]).unwrap();
    drop(edited);
    if !cfg!(unix) {
        // There the file is not mapped, and the session has the tokens in memory as they were.
        assert_eq!(saved_to(&mut other()), Ok(60));
        return std::fs::remove_file(&path).unwrap();
    }
    let mut same = Snapshot::open(Storage::edit(&path).unwrap(), None, Access::Append).unwrap();
    for refused in [saved_to(&mut other()), saved_to(&mut same)] {
        let error = refused.unwrap_err();
        assert_eq!(error.status(), Status::Corrupt, "{error}");
        assert!(error.to_string().contains("layer 0") && error.to_string().contains("offset"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_save_that_fails_leaves_no_byte_in_its_file() {
    let disk = Disk::default();
    drop(write(disk.storage()));
    let before = disk.bytes();
    for calls in 0..4 {
        let mut file = Snapshot::open(disk.storage(), None, Access::Append).unwrap();
        disk.fail_after(calls, 1);
        let saved =
            (0..3).try_for_each(|at| file.put(&format!("section {at}"), &[at; 5000])).and_then(|()| file.commit());
        saved.unwrap_err();
        drop(file);
        assert!(disk.repair() && disk.bytes() == before, "{calls}");
    }
}
