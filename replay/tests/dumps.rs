//! Dumps of every format, whole and damaged.

#[path = "dumps/common.rs"]
mod common;
#[path = "dumps/damage.rs"]
mod damage;

use common::{Folder, file_names, layers, testdata};
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{self, Endian};
use mnnkv_replay::dumps::writer::{self, Format, Options, Split};
use mnnkv_replay::dumps::{Dump, Layer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const WHOLE: Options = Options { format: Format::Folder, split: Split::Known, overwrite: false };

fn load(path: &Path) -> (Dump, Vec<Layer>) {
    let dump = Dump::open(path).unwrap_or_else(|e| panic!("{e}"));
    let layers = (0..dump.layers.len()).map(|i| dump.load(i).unwrap_or_else(|e| panic!("{e}"))).collect();
    (dump, layers)
}

fn reasons(dump: &Dump) -> Vec<&str> {
    dump.findings.iter().map(|finding| finding.reason.as_str()).collect()
}

fn folder_of(layers: &[Layer], split: Split) -> Folder {
    let folder = Folder::new();
    let options = Options { split, ..WHOLE };
    for layer in layers {
        writer::write_folder(layer, folder.path(), &options, &mut Default::default()).unwrap();
    }
    folder
}

/// Changes a meta file.
fn edit(folder: &Folder, file: &str, change: impl Fn(&mut Value)) {
    let path = folder.path().join(file);
    let mut meta: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut meta);
    fs::write(path, meta.to_string()).unwrap();
}

#[test]
fn entries_must_agree_on_the_factor_of_q_times_k() {
    let layer = common::layer_with_scores();
    let folder = folder_of(std::slice::from_ref(&layer), Split::Prompt(2));
    let (dump, read) = load(folder.path());
    assert_eq!((read[0].info.attention_scale, reasons(&dump)), (layer.info.attention_scale, vec![]));
    edit(&folder, "chat/layer_0/meta_t2_3.json", |meta| meta["attention_scale"] = 0.5.into());
    let (dump, read) = load(folder.path());
    assert_eq!((read[0].info.attention_scale, reasons(&dump)), (None, vec!["query"]));
}

#[test]
fn attention_of_another_number_of_tokens_is_left_out_with_field_and_expectation() {
    let folder = folder_of(&[common::layer_with_scores()], Split::Prompt(2));
    edit(&folder, "chat/layer_0/meta_t0_2.json", |meta| {
        meta["attention_tokens"] = 4.into();
        meta["attention_rows"] = 1.into();
    });
    let (dump, read) = load(folder.path());
    let [finding] = &dump.findings[..] else { panic!("{:?}", dump.findings) };
    assert!(finding.place.ends_with("chat/layer_0/meta_t0_2.json: attention_tokens"), "{finding:?}");
    assert!(finding.text.starts_with("is 4; 2 expected, ") && finding.text.contains("1 entries"), "{finding:?}");
    assert_eq!(read[0].attention.as_ref().unwrap().first, 2);
}

#[test]
fn flat_files_are_layers_and_their_attention_rows_belong_to_the_last_tokens() {
    let (dump, layers) = load(&testdata("../../testdata/kv"));
    assert_eq!(dump.findings, []);
    let shapes: Vec<_> = dump.layers.iter().map(|l| (l.run.as_str(), l.layer, l.query_heads)).collect();
    assert_eq!(shapes, [("kv", 0, 0), ("kv", 1, 0), ("kv", 2, 4), ("kv", 3, 4)]);
    assert_eq!(layers[1].value, fs::read(testdata("../../testdata/kv/l1_v_h2_t1088_d64.f16")).unwrap());
    let rows = layers[3].attention.as_ref().unwrap();
    assert_eq!((rows.first, rows.rows, dump.score_rows(3)), (1024, 64, (0, 64)));
    for (i, row) in rows.values.chunks_exact(1088).enumerate() {
        let own = rows.first + i % rows.rows;
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 0.01, "row {i}");
        assert!(row[own + 1..].iter().all(|mass| *mass == 0.0), "row {i}");
    }
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
    let query = layers[2].query.as_ref().unwrap();
    assert_eq!((query.first, query.rows), (1, 2));
    assert_eq!(query.values, (0..32).map(|i| i as f32).collect::<Vec<_>>());
    for (file, field, word) in
        [("layer_3_key.npy", "fortran_order", "ascontiguousarray"), ("layer_3_value.npy", "descr", "<u2")]
    {
        let finding = dump.findings.iter().find(|f| f.place.contains(file)).unwrap();
        assert!(finding.place.ends_with(field) && finding.text.contains(word), "{finding:?}");
    }
}

#[test]
fn a_shape_of_numpy_that_is_no_lengths_is_refused_with_its_value() {
    let folder = Folder::new();
    for shape in ["(2, -8, 4)", "(2, 18446744073709551616, 4)", "(2, 8.0, 4)"] {
        let header = format!("{{'descr': '<f2', 'fortran_order': False, 'shape': {shape}, }}\n");
        let start = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes()].concat();
        fs::write(folder.path().join("l0_k.npy"), [&start, header.as_bytes()].concat()).unwrap();
        let error = Dump::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("l0_k.npy: shape: is {shape}; whole numbers from 0 to 184")), "{error}");
    }
}

#[test]
fn packed_dumps_of_mnn_unpack_to_the_rows_that_were_packed() {
    let folder = Folder::new();
    let at = folder.path().join("chat/layer_3");
    fs::create_dir_all(&at).unwrap();
    for tensor in ["key", "value"] {
        let words = fs::read(testdata(&format!("../../testdata/mnn_packed/{tensor}_packed.f32"))).unwrap();
        fs::write(at.join(format!("packed_{}_packed_t0_893.bin", &tensor[..1])), words).unwrap();
    }
    let meta = |tokens: u32, stage: &str, used: u32| {
        let meta = json!({
            "layout": "packed", "layer_id": 3, "used_seq_len": tokens, "max_seq_len": 957, "kv_heads": 2, "head_dim": 64,
            "bytes_per_elem": 4, "pack_h": 8, "pack_l": 1, "flash_upper_kv": 64, "key_stride_bytes": 245_760,
            "value_stride_bytes": 245_760, "key_used_bytes": used, "value_used_bytes": used, "stage": stage,
            "run_id": "chat", "k_file": "packed_k_packed_t0_893.bin", "v_file": "packed_v_packed_t0_893.bin",
        });
        fs::write(at.join(format!("packed_meta_packed_t0_{tokens}.json")), meta.to_string()).unwrap();
    };
    meta(893, "decode", 229_376);
    meta(800, "prefill", 229_376);
    let (dump, layers) = load(folder.path());
    assert_eq!(reasons(&dump), ["superseded"]);
    let info = &dump.layers[0];
    assert_eq!((info.run.as_str(), info.layer, info.tokens, info.prompt_tokens), ("chat", 3, 893, 800));
    for (tensor, words) in [("key", &layers[0].key), ("value", &layers[0].value)] {
        // `[token][head][dim]`, from token 7 on.
        let rows = fs::read(testdata(&format!("../../testdata/mnn_packed/{tensor}_rows.f32"))).unwrap();
        for (i, row) in rows.chunks_exact(256).enumerate() {
            let at = (i % 2 * 893 + 7 + i / 2) * 256;
            assert!(words[at..at + 256] == *row, "{tensor}: row {i}");
        }
    }
    meta(893, "decode", 1000);
    let finding = &Dump::open(folder.path()).unwrap().findings[0];
    assert!(finding.place.ends_with("t0_893.json: key_used_bytes") && finding.text.contains("1000"), "{finding:?}");
}

#[test]
fn safetensors_of_another_writer_are_read_and_ours_by_another_reader() {
    use safetensors::{Dtype as Type, SafeTensors, tensor::TensorView};
    let folder = Folder::new();
    let words: Vec<u8> = (0..48).collect();
    let names = ["model.layers.7.self_attn.k", "model.layers.7.self_attn.v", "model.layers.7.self_attn.q"];
    let tensors = names.map(|name| (name, TensorView::new(Type::BF16, vec![1, 2, 3, 4], &words).unwrap()));
    let file = folder.path().join("chat-00001-of-00002.safetensors");
    safetensors::serialize_to_file(tensors, None, &file).unwrap();
    let (dump, layers) = load(&file);
    let info = &dump.layers[0];
    assert_eq!((info.run.as_str(), info.layer, info.dtype, info.query_heads), ("chat", 7, Dtype::Bf16, 2));
    assert_eq!((&layers[0].key, &layers[0].value), (&words, &words));

    let options = Options { format: Format::Safetensors, ..WHOLE };
    let out = folder.path().join("out");
    writer::write(&dump, &[0], &out, &options, &mut |_| {}).unwrap();
    let bytes = fs::read(out.join("chat.safetensors")).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let key = read.tensor("layers.7.key").unwrap();
    assert_eq!((key.dtype(), key.shape(), key.data()), (Type::BF16, &[2, 3, 4][..], &words[..]));
    assert_eq!(read.tensor("layers.7.query").unwrap().dtype(), Type::F32);
}

#[test]
fn entries_after_a_gap_and_repeated_ones_are_left_out_and_told() {
    let layer = common::layer(Dtype::F16, [2, 10, 4]);
    let folder = folder_of(std::slice::from_ref(&layer), Split::Prompt(6));
    let (dump, layers) = load(folder.path());
    assert_eq!((dump.findings.len(), dump.layers[0].tokens, dump.layers[0].prompt_tokens), (0, 10, 6));
    assert_eq!(layers[0].key, layer.key);

    let entries = folder.path().join("chat/layer_0");
    fs::remove_file(entries.join("meta_t7_8.json")).unwrap();
    let (dump, layers) = load(folder.path());
    assert_eq!((dump.layers[0].tokens, reasons(&dump)), (7, vec!["gap", "left_out"]));
    assert!(dump.findings[1].place.contains("meta_t8_9.json"), "{:?}", dump.findings);
    assert_eq!(layers[0].key[..7 * 8], layer.key[..7 * 8]);

    // A folder that was used again: the entries of another prompt stay.
    let stale = folder_of(&[common::layer(Dtype::F16, [2, 3, 4])], Split::One);
    for name in file_names(&stale.path().join("chat/layer_0")) {
        fs::copy(stale.path().join("chat/layer_0").join(&name), entries.join(&name)).unwrap();
    }
    let (dump, _) = load(folder.path());
    assert_eq!(reasons(&dump), ["gap", "overlap", "left_out", "left_out"]);
    assert!(dump.findings[2].place.contains("meta_t0_3.json"), "{:?}", dump.findings);
    assert_eq!(dump.layers[0].tokens, 7);
}

#[test]
fn a_bad_entry_leaves_the_others_and_is_told_with_its_field() {
    let layer = common::layer(Dtype::F32, [1, 8, 4]);
    for (field, value, place) in [
        ("kv_heads", json!(0), "kv_heads"),
        ("kv_heads", json!(2), "t7_8.bin"),
        ("seq_len", json!("one"), "seq_len"),
        ("head_dim", json!(1u64 << 60), "t7_8.bin"),
        ("layer_id", json!(-3), "layer_id"),
        ("seq_start", json!(-3), "seq_start"),
        ("bytes_per_elem", json!(3), "bytes_per_elem"),
        ("dtype", json!("bf16"), "dtype"),
        ("dtype", json!("fp64"), "dtype"),
        ("k_file", json!("../../../etc/passwd"), "k_file"),
        ("v_file", json!(null), "v_file"),
    ] {
        let folder = folder_of(std::slice::from_ref(&layer), Split::Prompt(4));
        edit(&folder, "chat/layer_0/meta_t7_8.json", |meta| meta[field] = value.clone());
        let (dump, layers) = load(folder.path());
        assert_eq!((layers.len(), dump.layers[0].tokens), (1, 7), "{field} {value}");
        let told = dump.findings.iter().any(|f| f.place.contains("t7_8") && f.place.ends_with(place));
        assert!(told, "{field} {value}: {:?}", dump.findings);
    }
}

#[test]
fn words_are_of_the_type_that_an_entry_names_or_are_refused() {
    let folder = folder_of(&[common::layer(Dtype::F16, [1, 4, 4])], Split::One);
    let set = |dtype: Value| edit(&folder, "chat/layer_0/meta_t0_4.json", |meta| meta["dtype"] = dtype.clone());
    for (name, dtype) in
        [("fp16", Dtype::F16), ("F16", Dtype::F16), ("bf16", Dtype::Bf16), ("torch.bfloat16", Dtype::Bf16)]
    {
        set(name.into());
        assert_eq!((load(folder.path()).0.layers[0].dtype, name), (dtype, name));
    }
    for (value, text) in [
        (json!("rubbish"), "is \"rubbish\" with 2 bytes per element; fp16 or bf16 expected"),
        (json!("fp32"), "is \"fp32\" with 2 bytes per element; fp16 or bf16 expected"),
        (Value::Null, "is null; a string expected"),
    ] {
        set(value);
        let error = Dump::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("meta_t0_4.json: dtype") && error.contains(text), "{error}");
    }
}

#[test]
fn wrong_rows_of_q_are_left_out_and_the_layer_stays() {
    let folder = folder_of(&[common::layer_with_scores()], Split::One);
    let meta = "chat/layer_0/meta_t0_4.json";
    assert_eq!(load(folder.path()).0.score_rows(0), (4, 4));
    for (field, value) in
        [("q_heads", json!(3)), ("q_rows", json!(5)), ("q_file", json!("../q")), ("q_dtype", json!("i8"))]
    {
        let before = fs::read(folder.path().join(meta)).unwrap();
        edit(&folder, meta, |meta| meta[field] = value.clone());
        let (dump, layers) = load(folder.path());
        assert_eq!(layers[0].query, None, "{field}");
        assert!(dump.findings.iter().any(|f| f.reason == "query" && f.place.ends_with(field)), "{:?}", dump.findings);
        fs::write(folder.path().join(meta), before).unwrap();
    }
}

#[test]
fn rows_of_q_before_an_entry_without_them_are_left_out() {
    let layer = common::layer_with_scores();
    let folder = folder_of(std::slice::from_ref(&layer), Split::Prompt(1));
    edit(&folder, "chat/layer_0/meta_t1_2.json", |meta| {
        meta.as_object_mut().unwrap().remove("q_file");
    });
    let (dump, layers) = load(folder.path());
    let query = layers[0].query.as_ref().unwrap();
    assert_eq!((query.first, query.rows, &layers[0].attention), (2, 2, &layer.attention));
    assert_eq!((reasons(&dump), &dump.findings[0].text[..20]), (vec!["query"], "rows of 3 entries; t"));
}

#[test]
fn metas_without_a_name_of_a_run_belong_to_the_run_of_their_folder() {
    let mut layers = Vec::new();
    for run in ["a", "b"] {
        let mut layer = common::layer(Dtype::F16, [1, 4, 4]);
        layer.info.run = run.into();
        layers.push(layer);
    }
    let folder = folder_of(&layers, Split::One);
    edit(&folder, "a/layer_0/meta_t0_4.json", |meta| meta["run_id"] = json!(1));
    edit(&folder, "b/layer_0/meta_t0_4.json", |meta| meta["run_id"] = Value::Null);
    let (dump, _) = load(folder.path());
    let runs: Vec<&str> = dump.layers.iter().map(|layer| layer.run.as_str()).collect();
    assert_eq!((runs, dump.findings.len()), (vec!["a", "b"], 0));
}

#[test]
fn one_layer_in_two_formats_or_lengths_is_told_and_written_twice_only_on_request() {
    let layer = common::layer(Dtype::F16, [2, 6, 4]);
    let mut other = common::layer(Dtype::F16, [2, 5, 4]);
    other.info.layer = 1;
    let folder = folder_of(&[layer, other], Split::One);
    let (dump, _) = load(folder.path());
    assert_eq!((dump.layers.len(), reasons(&dump)), (2, vec!["tokens"]));
    assert!(dump.findings[0].text.ends_with("tokens 0 to 4 in layers 1; tokens 0 to 5 in layers 0"), "{dump:?}");
    let options = Options { format: Format::Flat, ..WHOLE };
    let flat = Folder::new();
    writer::write(&dump, &[0], flat.path(), &options, &mut |_| {}).unwrap();
    for name in file_names(&flat.path().join("chat")) {
        fs::copy(flat.path().join("chat").join(&name), folder.path().join("chat").join(&name)).unwrap();
    }
    let (dump, layers) = load(folder.path());
    assert_eq!((dump.layers.len(), reasons(&dump)), (2, vec!["duplicate", "tokens"]));

    let options = Options { split: Split::Prompt(3), ..WHOLE };
    let write = |options| writer::write_folder(&layers[0], folder.path(), &options, &mut Default::default());
    let error = write(options).unwrap_err().to_string();
    assert!(error.contains("chat/layer_0") && error.contains("exists"), "{error}");
    write(Options { overwrite: true, ..options }).unwrap();
    assert_eq!(file_names(&folder.path().join("chat/layer_0")).len(), 12);
}

#[test]
fn of_a_layer_that_is_there_twice_the_longest_pair_of_k_and_v_counts() {
    let folder = Folder::new();
    for (name, tokens) in [("k", 2), ("v", 2), ("k", 4), ("v", 4), ("k", 6), ("q", 5), ("q", 3)] {
        fs::write(folder.path().join(format!("l0_{name}_h1_t{tokens}_d2.f16")), vec![tokens as u8; tokens * 4])
            .unwrap();
    }
    let (dump, layers) = load(folder.path());
    assert_eq!((layers[0].info.tokens, &layers[0].key, &layers[0].value), (4, &vec![4; 16], &vec![4; 16]));
    assert_eq!((layers[0].query.as_ref().unwrap().rows, reasons(&dump)), (3, vec!["duplicate"; 3]));
}

#[test]
fn a_dump_replaces_an_older_one_of_its_name_as_a_whole_and_no_other_file() {
    let mut last = common::layer(Dtype::F16, [1, 2, 2]);
    last.info.layer = 1;
    let long = folder_of(&[common::layer_with_scores(), last], Split::One);
    let short = folder_of(&[common::layer(Dtype::F16, [1, 2, 2])], Split::One);
    let [(long_dump, _), (short_dump, expected)] = [load(long.path()), load(short.path())];
    for format in [Format::Folder, Format::Flat, Format::Safetensors] {
        let out = Folder::new();
        let put = |dump: &Dump, indices: &[usize], format, overwrite| {
            writer::write(dump, indices, out.path(), &Options { format, overwrite, ..WHOLE }, &mut |_| {})
        };
        put(&long_dump, &[0, 1], format, false).unwrap();
        if format == Format::Flat {
            put(&long_dump, &[0, 1], Format::Folder, true).unwrap();
        }
        let error = put(&short_dump, &[0], format, false).unwrap_err().to_string();
        assert!(error.contains("chat") && error.contains("exists"), "{error}");
        for other in [false, true] {
            let notes = out.path().join("chat/layer_1/notes.txt");
            if other {
                fs::create_dir_all(notes.parent().unwrap()).unwrap();
                fs::write(&notes, "mine").unwrap();
            }
            put(&short_dump, &[0], format, true).unwrap();
            let (dump, layers) = load(out.path());
            assert_eq!((layers[0].key.clone(), layers.len()), (expected[0].key.clone(), 1), "{format:?}");
            assert_eq!((reasons(&dump), notes.exists()), (vec![], other), "{format:?}");
        }
        // The dump that is read is not replaced.
        let (own, _) = load(out.path());
        let error = put(&own, &[0], format, true).unwrap_err().to_string();
        assert!(error.contains("is an input"), "{error}");
    }
}

#[test]
fn a_failure_leaves_no_part_of_a_dump_and_runs_never_share_a_name() {
    let mut last = common::layer(Dtype::F16, [1, 2, 2]);
    last.info.layer = 1;
    for format in [Format::Folder, Format::Flat, Format::Safetensors] {
        let source = folder_of(&[common::layer(Dtype::F16, [1, 2, 2]), last.clone()], Split::One);
        let (dump, _) = load(source.path());
        let out = Folder::new();
        let options = Options { format, ..WHOLE };
        fs::remove_file(source.path().join("chat/layer_1/v_t0_2.bin")).unwrap();
        writer::write(&dump, &[0, 1], out.path(), &options, &mut |_| {}).unwrap_err();
        assert_eq!(file_names(out.path()), Vec::<String>::new(), "{format:?}");
        // An unfinished dump of a killed process is no dump.
        fs::create_dir(out.path().join(".chat.part")).unwrap();
        fs::rename(source.path().join("chat"), out.path().join(".chat.part/chat")).unwrap();
        assert!(Dump::open(out.path()).is_err());

        let runs = ["a/b", "a_b"].map(|run| {
            let mut layer = last.clone();
            layer.info.run = run.into();
            layer
        });
        let (first, second) = (folder_of(&runs[..1], Split::One), folder_of(&runs[1..], Split::One));
        fs::rename(second.path().join("a_b"), first.path().join("other")).unwrap();
        let error = writer::write(&load(first.path()).0, &[0, 1], out.path(), &options, &mut |_| {}).unwrap_err();
        assert!(error.to_string().starts_with("run \"a_b\": would be written to \"a_b"), "{error}");
    }
}

#[test]
fn a_copy_in_another_format_names_the_positions_that_it_loses() {
    for (begin, text) in [
        (0, "the format does not keep the length of the prompt, 2 tokens"),
        (7, "the format does not keep the first position 7 or the length of the prompt, 2 tokens"),
    ] {
        let mut layer = common::layer(Dtype::F16, [1, 4, 2]);
        layer.info.begin = begin;
        let folder = folder_of(&[layer], Split::Prompt(2));
        let options = Options { format: Format::Safetensors, ..WHOLE };
        let written = writer::write(&load(folder.path()).0, &[0], folder.path(), &options, &mut |_| {}).unwrap();
        let findings: Vec<_> = written.findings.iter().map(|f| (f.reason.as_str(), f.text.as_str())).collect();
        assert_eq!(findings, [("position", text)]);
    }
}

#[test]
fn runs_are_written_below_the_folder_whatever_their_names() {
    for run in ["../../up", "a/b", ".hidden", "", "C:\\x"] {
        let mut layer = common::layer(Dtype::F16, [1, 2, 2]);
        layer.info.run = run.into();
        let folder = Folder::new();
        let root = folder.path().join("in");
        writer::write_folder(&layer, &root, &WHOLE, &mut Default::default()).unwrap();
        assert_eq!((file_names(folder.path()), file_names(&root).len()), (vec!["in".into()], 1), "{run:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_was_written_is_read_back(
        layers in layers(),
        prompt in 0usize..9,
        format in prop::sample::select(vec![Format::Folder, Format::Safetensors, Format::Flat]),
    ) {
        let split = match prompt {
            0 => Split::One,
            _ if layers.iter().all(|layer| layer.info.tokens >= prompt) => Split::Prompt(prompt),
            _ => Split::Known,
        };
        let folder = folder_of(&layers, split);
        let (dump, read) = load(folder.path());
        prop_assert_eq!(read.len(), layers.len());
        for (read, written) in read.iter().zip(&layers) {
            let mut written = written.clone();
            written.info.prompt_tokens = match split {
                Split::Prompt(prompt) => prompt,
                Split::Known if written.info.prompt_tokens > 0 => written.info.prompt_tokens,
                _ => written.info.tokens,
            };
            prop_assert_eq!(read, &written);
        }
        let all: Vec<usize> = (0..layers.len()).collect();
        let again = Folder::new();
        let mut bytes = 0;
        let options = Options { format, ..WHOLE };
        writer::write(&dump, &all, again.path(), &options, &mut |layer| bytes += layer).unwrap();
        prop_assert_eq!(bytes as usize, layers.iter().map(|layer| 2 * layer.key.len()).sum::<usize>());
        let (_, copies) = load(again.path());
        prop_assert_eq!(copies.len(), layers.len());
        for (copy, mut read) in copies.into_iter().zip(read) {
            if format != Format::Folder {
                (read.info.begin, read.info.prompt_tokens) = (0, 0);
            }
            prop_assert_eq!(copy, read);
        }
    }
}
