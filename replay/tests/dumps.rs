//! Dumps of every format, whole and damaged.

use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{self, Endian};
use mnnkv_replay::dumps::{Dump, Layer, LayerInfo};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// A folder of its own for a test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mnnkv-dumps-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// The layer as a folder of the reference system: an entry for the first tokens, and one for each later token.
    fn of(layer: &Layer, prompt: usize) -> Self {
        let folder = Folder::new();
        folder.add(layer, prompt);
        folder
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn add(&self, layer: &Layer, prompt: usize) {
        let info = &layer.info;
        let entries = std::iter::once(0..prompt).chain((prompt..info.tokens).map(|token| token..token + 1));
        for tokens in entries {
            let (first, end) = (info.begin + tokens.start, info.begin + tokens.end);
            let at = format!("{}/layer_{}", info.run, info.layer);
            let mut meta = json!({
                "layer_id": info.layer, "seq_start": first, "seq_len": tokens.len(), "kv_heads": info.kv_heads,
                "head_dim": info.head_dim, "bytes_per_elem": info.dtype.bytes(), "run_id": info.run,
                "stage": if tokens.start == 0 { "prefill" } else { "decode" },
            });
            if info.dtype == Dtype::Bf16 {
                meta["dtype"] = "bf16".into();
            }
            let mut put = |name: &str, words: Vec<u8>| {
                let file = format!("{name}_t{first}_{end}.bin");
                self.file(&format!("{at}/{file}"), words);
                meta[format!("{name}_file")] = file.into();
            };
            let row = info.head_dim * info.dtype.bytes();
            put("k", by_token(&layer.key, info.kv_heads, row, tokens.clone()));
            put("v", by_token(&layer.value, info.kv_heads, row, tokens.clone()));
            self.file(&format!("{at}/meta_t{first}_{end}.json"), meta.to_string());
        }
    }

    /// Changes a meta file.
    fn edit(&self, file: &str, change: impl Fn(&mut Value)) {
        let path = self.0.join(file);
        let mut meta: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut meta);
        fs::write(path, meta.to_string()).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Rows `[head][token]` of `row` bytes as `[token][head]`.
fn by_token(words: &[u8], heads: usize, row: usize, tokens: std::ops::Range<usize>) -> Vec<u8> {
    let heads: Vec<&[u8]> = words.chunks_exact(words.len() / heads).collect();
    tokens.flat_map(|token| heads.iter().flat_map(move |head| &head[token * row..][..row])).copied().collect()
}

/// A layer 0 of `[heads, tokens, dims]` with distinct words.
fn layer(dtype: Dtype, [kv_heads, tokens, head_dim]: [usize; 3]) -> Layer {
    let info = LayerInfo { run: "chat".into(), layer: 0, begin: 0, tokens, kv_heads, head_dim, dtype };
    let words: Vec<u8> = (0..info.key_bytes()).map(|i| (i * 7 + i / 251) as u8).collect();
    Layer { value: words.iter().map(|byte| byte ^ 0x55).collect(), key: words, info }
}

fn load(path: &Path) -> (Dump, Vec<Layer>) {
    let dump = Dump::open(path).unwrap_or_else(|e| panic!("{e}"));
    let layers = (0..dump.layers.len()).map(|i| dump.load(i).unwrap_or_else(|e| panic!("{e}"))).collect();
    (dump, layers)
}

fn reasons(dump: &Dump) -> Vec<&str> {
    dump.findings.iter().map(|finding| finding.reason.as_str()).collect()
}

#[test]
fn flat_files_are_layers_and_rows_of_attention_beside_them_are_passed_over() {
    let (dump, layers) = load(&testdata("../../testdata/kv"));
    assert_eq!(dump.findings, []);
    let shapes: Vec<_> = dump.layers.iter().map(|l| (l.run.as_str(), l.layer, l.tokens)).collect();
    assert_eq!(shapes, [("kv", 0, 1088), ("kv", 1, 1088), ("kv", 2, 1088), ("kv", 3, 1088)]);
    assert_eq!(layers[1].value, fs::read(testdata("../../testdata/kv/l1_v_h2_t1088_d64.f16")).unwrap());
}

#[test]
fn arrays_of_numpy_are_read_in_both_byte_orders_and_refused_by_field() {
    let (dump, layers) = load(&testdata("npy"));
    let types: Vec<_> = dump.layers.iter().map(|l| (l.run.as_str(), l.layer, l.dtype)).collect();
    assert_eq!(types, [("npy", 0, Dtype::F16), ("npy", 2, Dtype::F16), ("npy.f32", 1, Dtype::F32)]);
    let expected: Vec<f32> = (0..24).map(|i| i as f32 / 8.0 - 1.0).collect();
    let widened = |dtype, words: &[u8]| {
        let mut values = vec![0.0; 24];
        convert::widen(dtype, Endian::Little, words, &mut values);
        values
    };
    for layer in &layers {
        assert_eq!(widened(layer.info.dtype, &layer.key), expected);
    }
    let negative: Vec<f32> = expected.iter().map(|x| -x).collect();
    assert_eq!(widened(Dtype::F32, &layers[2].value), negative);
    for (file, field, word) in
        [("layer_3_key.npy", "fortran_order", "ascontiguousarray"), ("layer_3_value.npy", "descr", "<u2")]
    {
        let finding = dump.findings.iter().find(|f| f.place.contains(file)).unwrap();
        assert!(finding.place.ends_with(field) && finding.text.contains(word), "{finding:?}");
    }
}

/// A file of safetensors, written by another program.
fn safetensors_of(folder: &Folder) -> PathBuf {
    use safetensors::{Dtype as Type, tensor::TensorView};
    let words: Vec<u8> = (0..48).collect();
    let names = ["model.layers.7.self_attn.k", "model.layers.7.self_attn.v", "model.layers.7.self_attn.q"];
    let tensors = names.map(|name| (name, TensorView::new(Type::BF16, vec![1, 2, 3, 4], &words).unwrap()));
    folder.file("safetensors/chat-00001-of-00002.safetensors", safetensors::serialize(tensors, None).unwrap())
}

#[test]
fn safetensors_of_another_writer_are_read() {
    let folder = Folder::new();
    let (dump, layers) = load(&safetensors_of(&folder));
    let info = &dump.layers[0];
    assert_eq!((info.run.as_str(), info.layer, info.dtype), ("chat", 7, Dtype::Bf16));
    let words: Vec<u8> = (0..48).collect();
    assert_eq!((&layers[0].key, &layers[0].value), (&words, &words));
}

#[test]
fn entries_after_a_gap_and_repeated_ones_are_left_out_and_told() {
    let long = layer(Dtype::F16, [2, 10, 4]);
    let folder = Folder::of(&long, 6);
    let (dump, layers) = load(folder.path());
    assert_eq!((dump.findings.len(), dump.layers[0].tokens), (0, 10));
    assert_eq!(layers[0].key, long.key);

    fs::remove_file(folder.path().join("chat/layer_0/meta_t7_8.json")).unwrap();
    let (dump, layers) = load(folder.path());
    assert_eq!((dump.layers[0].tokens, reasons(&dump)), (7, vec!["gap", "left_out"]));
    assert!(dump.findings[1].place.contains("meta_t8_9.json"), "{:?}", dump.findings);
    assert_eq!(layers[0].key[..7 * 8], long.key[..7 * 8]);

    // A folder that was used again: the entries of another prompt stay.
    folder.add(&layer(Dtype::F16, [2, 3, 4]), 3);
    let (dump, _) = load(folder.path());
    assert_eq!(reasons(&dump), ["gap", "overlap", "left_out", "left_out"]);
    assert!(dump.findings[2].place.contains("meta_t0_3.json"), "{:?}", dump.findings);
    assert_eq!(dump.layers[0].tokens, 7);
}

#[test]
fn a_bad_entry_leaves_the_others_and_is_told_with_its_field() {
    for (field, value, place) in [
        ("kv_heads", json!(2), "t7_8.bin"),
        ("seq_len", json!("one"), "seq_len"),
        ("head_dim", json!(1u64 << 60), "t7_8.bin"),
        ("layer_id", json!(-3), "layer_id"),
        ("seq_start", json!(-3), "seq_start"),
        ("bytes_per_elem", json!(3), "bytes_per_elem"),
        ("dtype", json!("bf16"), "dtype"),
        ("k_file", json!("../../../etc/passwd"), "k_file"),
        ("v_file", json!(null), "v_file"),
    ] {
        let folder = Folder::of(&layer(Dtype::F32, [1, 8, 4]), 4);
        folder.edit("chat/layer_0/meta_t7_8.json", |meta| meta[field] = value.clone());
        let (dump, layers) = load(folder.path());
        assert_eq!((layers.len(), dump.layers[0].tokens), (1, 7), "{field} {value}");
        let told = dump.findings.iter().any(|f| f.place.contains("t7_8") && f.place.ends_with(place));
        assert!(told, "{field} {value}: {:?}", dump.findings);
    }
}

#[cfg(unix)]
#[test]
fn links_pipes_and_odd_names_neither_hang_nor_lead_outside() {
    use mnnkv_replay::dumps::folder::scan;
    use std::os::unix::{ffi::OsStrExt, fs::symlink};
    let folder = Folder::of(&layer(Dtype::F16, [1, 12, 4]), 2);
    let at = folder.path().join("chat/layer_0");
    let files = ["/etc/passwd", "../../../../../../../../etc/passwd", "link", "pipe", ".", "k_t0_2.bin/x"];
    for (first, name) in std::iter::once("t0_2".to_owned()).chain((2..).map(|n| format!("t{n}_{}", n + 1))).zip(files) {
        folder.edit(&format!("chat/layer_0/meta_{first}.json"), |meta| meta["k_file"] = name.into());
    }
    (7..12).for_each(|n| fs::remove_file(at.join(format!("meta_t{n}_{}.json", n + 1))).unwrap());
    symlink(folder.path(), at.join("loop")).unwrap();
    symlink(at.join("loop"), at.join("meta_loop.json")).unwrap();
    symlink("/nowhere", at.join("meta_dangling.json")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(at.join("meta_pipe.json")).arg(at.join("pipe")).status();
    assert!(pipe.unwrap().success());
    fs::write(at.join(std::ffi::OsStr::from_bytes(b"meta_\xff.json")), "{").unwrap();
    symlink("/etc/passwd", at.join("link")).unwrap();
    let scan = scan(folder.path()).unwrap();
    assert!(scan.entries.is_empty(), "{scan:?}");
    let skips: Vec<(&str, u64)> = scan.skips.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    let expected =
        [("binary_read_error", 2), ("k_or_v_outside_dump", 3), ("meta_parse_error", 3), ("missing_k_or_v_binary", 1)];
    assert_eq!(skips, expected, "{scan:?}");
}

#[test]
fn one_layer_in_two_formats_or_lengths_is_told() {
    let folder = Folder::of(&layer(Dtype::F16, [2, 6, 4]), 6);
    for tensor in ["k", "v"] {
        folder.file(&format!("chat/l0_{tensor}_h2_t6_d4.f16"), [0; 96]);
    }
    let (dump, _) = load(folder.path());
    assert_eq!((dump.layers.len(), reasons(&dump)), (1, vec!["duplicate"]));

    let folder = Folder::new();
    for (name, tokens) in [("k", 2), ("v", 2), ("k", 4), ("v", 4), ("k", 6), ("q", 5)] {
        folder.file(&format!("l0_{name}_h1_t{tokens}_d2.f16"), vec![tokens as u8; tokens * 4]);
    }
    let (dump, layers) = load(folder.path());
    assert_eq!((layers[0].info.tokens, &layers[0].key, &layers[0].value), (4, &vec![4; 16], &vec![4; 16]));
    assert_eq!(reasons(&dump), ["duplicate"; 3]);
}

#[test]
fn a_header_cannot_claim_more_than_the_file_has() {
    let folder = Folder::new();
    let claims: [(&str, Vec<u8>, &str); 6] = [
        ("l0_k_h999999_t999999_d999999.f16", vec![0; 8], "999999"),
        ("l0_k_h4294967296_t4294967296_d2.f32", vec![0; 8], "address space"),
        ("big.safetensors", u64::MAX.to_le_bytes().to_vec(), "header"),
        ("l1_k.npy", [b"\x93NUMPY\x02\0".as_slice(), &[255; 4]].concat(), "header"),
        ("l2_k.npy", [b"\x93NUMPY\x01\0\xff\xff".as_slice(), &[b'('; 100]].concat(), "65535"),
        ("notes.txt", vec![0; 8], "no KV dump"),
    ];
    for (name, bytes, word) in &claims {
        let error = Dump::open(&folder.file(name, bytes)).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(word), "{error}");
    }
    let error = Dump::open(&folder.path().join("absent")).unwrap_err().to_string();
    assert!(error.contains("absent: cannot read"), "{error}");
}

/// A small dump of every format, each in a folder of its own.
fn everything() -> Folder {
    let folder = Folder::new();
    let mut entries = layer(Dtype::F16, [2, 4, 2]);
    entries.info.run = "folder".into();
    folder.add(&entries, 2);
    for tensor in ["k", "v"] {
        folder.file(&format!("flat/l0_{tensor}_h2_t6_d4.f16"), [0; 96]);
        let name = format!("npy/l0_{tensor}.npy");
        folder.file(&name, fs::read(testdata(&name)).unwrap());
    }
    safetensors_of(&folder);
    folder
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_entry_of_a_folder_is_read_back(
        shape in [1usize..4, 1usize..8, 1usize..6],
        prompt in 1usize..8,
        begin in 0usize..40,
        dtype in prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32]),
    ) {
        let mut written = layer(dtype, shape);
        written.info.begin = begin;
        let prompt = prompt.min(written.info.tokens);
        let folder = Folder::of(&written, prompt);
        prop_assert_eq!(&load(folder.path()).1, &[written]);
    }

    #[test]
    fn damage_never_stops_the_layers_of_other_folders_and_never_panics(
        damages in prop::collection::vec((any::<[prop::sample::Index; 2]>(), 0..4, any::<[u8; 4]>()), 1..4),
    ) {
        let folder = everything();
        let mut damaged = Vec::new();
        for ([file, at], kind, bytes) in &damages {
            let files = files(folder.path());
            let path = &files[file.index(files.len())];
            damaged.push(path.strip_prefix(folder.path()).unwrap().iter().next().unwrap().to_owned());
            let mut words = fs::read(path).unwrap();
            let at = at.index(words.len().min(512) + 1);
            match kind {
                0 => words.truncate(at),
                1 => drop(words.splice(at..at, bytes.iter().copied())),
                2 => words.iter_mut().skip(at).zip(bytes).for_each(|(word, byte)| *word = *byte),
                // A number in a text grows.
                _ => drop(words.splice(at..at, *b"9999")),
            }
            fs::write(path, words).unwrap();
        }
        let dump = Dump::open(folder.path());
        if let Ok(dump) = &dump {
            for i in 0..dump.layers.len() {
                dump.load(i).map_err(|e| TestCaseError::fail(e.to_string()))?;
            }
        }
        for name in ["folder", "flat", "safetensors", "npy"] {
            let alone = Dump::open(&folder.path().join(name));
            if !damaged.iter().any(|damaged| damaged == name) {
                prop_assert_eq!(alone.unwrap().layers.len(), 1);
                prop_assert!(dump.is_ok());
            } else if let Err(e) = alone {
                prop_assert!(e.to_string().contains(name), "{}", e);
            }
        }
    }
}
