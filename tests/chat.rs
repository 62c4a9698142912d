//! A chat file of an earlier version of the library: every later one must read it, with the packing of every CPU, and so must
//! `page`, which was written without its code.

mod common;
#[path = "chat/page.rs"]
mod page;
#[path = "common/v1_reader.rs"]
#[allow(dead_code)]
mod v1_reader;

use common::{read, testdata};
use mnnkv::dtype::Dtype;
use mnnkv::file::Storage;
use mnnkv::layout::{Cache, CacheRef, Int8Unit, Layout, Pair, Spec, gather, scatter};
use mnnkv::session::{Host, LayerCache, Session};
use mnnkv::status::Status;
use page::Page;
use std::path::PathBuf;

/// Layer 0 is raw; of layer 1 one block is in 8 and 4 bits.
const CONFIG: &[u8] = br#"{"kv_quant": "k8v4", "kv_quant_layer_start": 1}"#;
const HEADS: usize = 2;
const DIMS: usize = 8;
/// Of 130 tokens those that an edit has left.
const KEPT: [Pair; 2] = [[0, 100], [103, 27]];

fn session() -> Session {
    Session::for_model(CONFIG, b"", 2, 1, Host { attends: true }, b"golden").unwrap()
}

/// Buffers of one layer, packed as MNN does with these numbers.
struct Buffers(Layout, Vec<u8>, Vec<u8>);

impl Buffers {
    fn new([l_pack, h_pack, flash_block]: [u32; 3]) -> Self {
        let layout = Layout::new(&Spec {
            key: Dtype::F16.into(),
            value: Dtype::F16.into(),
            kv_heads: HEADS as u32,
            head_dim: DIMS as u32,
            l_pack,
            h_pack,
            int8: Int8Unit::default(),
            flash_block,
            max_tokens: 140,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        });
        let layout = layout.unwrap();
        let (key, value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
        Buffers(layout, key, value)
    }

    fn cache(&mut self) -> Cache<'_> {
        Cache::new(&self.0, &mut self.1, &mut self.2).unwrap()
    }
}

/// The first channels of a token of the bundled sample, of each head.
fn sample(kind: &str, layer: usize, token: usize) -> Vec<u8> {
    let all = read(&format!("kv/l{layer}_{kind}_h2_t1088_d64.f16"));
    (0..HEADS).flat_map(|head| all[(head * 1088 + token) * 128..][..DIMS * 2].to_vec()).collect()
}

/// As a cache has them, `[head][token][dim]`.
fn rows(kind: &str, layer: usize, tokens: &[usize]) -> Vec<u8> {
    let each: Vec<Vec<u8>> = tokens.iter().map(|token| sample(kind, layer, *token)).collect();
    (0..HEADS).flat_map(|head| each.iter().flat_map(move |row| row[head * DIMS * 2..][..DIMS * 2].to_vec())).collect()
}

/// 130 tokens in steps of 100 and 30, a save after each, an edit, and a third save.
fn write(path: &str) {
    let session = session();
    let (mut layers, mut lens) = ([(); 2].map(|()| Buffers::new([1, 8, 64])), [0; 2]);
    for tokens in [0..100, 100..130, 130..130] {
        for (number, buffers) in layers.iter_mut().enumerate() {
            let (layer, len, count) = (number as u32, lens[number], tokens.len() as u32);
            if count == 0 {
                lens[number] = session.keep(layer, &KEPT, buffers.cache(), len).unwrap();
                continue;
            }
            let len = session.begin(layer, Some(buffers.cache()), len).unwrap().kv_len;
            let (range, of) = (buffers.0.range(len, count).unwrap(), tokens.clone().collect::<Vec<_>>());
            scatter(&mut buffers.cache(), range, &rows("k", number, &of), &rows("v", number, &of)).unwrap();
            lens[number] = len + count;
            session.end(layer, 0, 0, buffers.cache(), len + count).unwrap();
            // Blocks are made by the next begin.
            lens[number] = session.begin(layer, Some(buffers.cache()), len + count).unwrap().kv_len;
            session.abort(layer, Some(buffers.cache()), lens[number]).unwrap();
        }
        session.put("tokens", format!("{} tokens", tokens.end).as_bytes()).unwrap();
        let mut caches: Vec<LayerCache<'_>> =
            layers.iter_mut().zip(lens).map(|(buffers, len)| (Some(buffers.cache()), len)).collect();
        session.save(Some(path), &mut caches).unwrap();
    }
}

/// A path at which nothing is.
fn path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("mnnkv-chat-{name}-{}.kv", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// Positions of the raw tokens of a layer.
fn raw(layer: usize) -> Vec<usize> {
    let all: Vec<usize> = KEPT.iter().flat_map(|pair| pair[0] as usize..(pair[0] + pair[1]) as usize).collect();
    if layer == 0 { all } else { [&all[..16], &all[80..]].concat() }
}

fn check_page(image: &[u8]) {
    let page = Page::read(image);
    assert_eq!((page.sequence, &page.fingerprint[..]), (2, &b"golden"[..]));
    assert_eq!(page.sections.iter().collect::<Vec<_>>(), [(&"tokens".to_owned(), &b"130 tokens".to_vec())]);
    for (number, layer) in &page.layers {
        assert_eq!(layer.shape, [HEADS as u64, DIMS as u64, 127, 1, 1]);
        let number = *number as usize;
        let tokens = raw(number).into_iter().map(|at| [sample("k", number, at), sample("v", number, at)].concat());
        assert!(layer.raw == tokens.collect::<Vec<_>>() && !layer.state.is_empty());
        let blocks: Vec<_> = layer.blocks.iter().map(|(first, live, heads)| (*first, *live, heads.len())).collect();
        assert_eq!(blocks, if number == 0 { vec![] } else { vec![(16, u64::MAX, HEADS)] });
    }
    assert_eq!(page.layers.len(), 2);
}

fn check_opened(image: &[u8], name: &str) {
    let copy = path(name);
    for packs in [[1, 8, 64], [1, 16, 64], [2, 64, 64], [4, 8, 64], [1, 4, 96], [1, 1, 1], [1, 1, 96]] {
        std::fs::write(&copy, image).unwrap();
        let session = session();
        session.open(copy.to_str()).unwrap();
        assert_eq!(session.section("tokens").unwrap(), b"130 tokens");
        for layer in 0..2 {
            let (mut buffers, number) = (Buffers::new(packs), layer as u32);
            let len = session.lengths(number).unwrap().physical;
            session.begin(number, Some(buffers.cache()), len).unwrap();
            let (mut key, mut value) = (rows("k", layer, &raw(layer)), rows("v", layer, &raw(layer)));
            let expected = (key.clone(), value.clone());
            let cache = CacheRef::new(&buffers.0, &buffers.1, &buffers.2).unwrap();
            gather(&cache, buffers.0.range(0, len).unwrap(), &mut key, &mut value).unwrap();
            assert!((key, value) == expected, "layer {layer}, {packs:?}");
        }
        assert_eq!(session.positions(1, Some(0)).unwrap(), [[0, 127]]);
    }
    std::fs::remove_file(copy).unwrap();
}

#[test]
fn the_golden_file_is_read_by_the_library_in_every_packing_and_by_the_page() {
    let image = read("chat/golden.kv");
    check_page(&image);
    check_opened(&image, "golden");
}

#[test]
fn a_file_written_today_is_read_like_the_golden_one() {
    let path = path("today");
    write(path.to_str().unwrap());
    let image = std::fs::read(&path).unwrap();
    check_page(&image);
    check_opened(&image, "copy");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_is_locked_while_a_session_has_it() {
    let path = path("locked");
    let session = session();
    session.save(path.to_str(), &mut [(None, 0), (None, 0)]).unwrap();
    assert_eq!(Storage::create(&path).unwrap_err().status(), Status::Io, "it exists");
    for opened in [Storage::open(&path), Storage::edit(&path)] {
        assert_eq!(opened.unwrap_err().status(), Status::Busy);
    }
    drop(session);
    let reader = Storage::open(&path).unwrap();
    drop(Storage::open(&path).unwrap());
    assert_eq!(Storage::edit(&path).unwrap_err().status(), Status::Busy);
    drop(reader);
    std::fs::remove_file(path).unwrap();
}

#[test]
#[ignore = "writes testdata/chat/golden.kv, which must not exist"]
fn write_the_missing_golden() {
    write(testdata("chat/golden.kv").to_str().unwrap());
}
