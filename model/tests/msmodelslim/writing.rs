//! Directories that the library writes, read by another reader of safetensors.

use crate::directory::f32s;
use crate::numbers;
use mnnkv::status::Status;
use mnnkv_model::msmodelslim::{Granularity, Model, Tag, WriteOptions, Writer, check_path};
use mnnkv_model::safetensors::FileDtype;
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A path where nothing is, and where nothing stays.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("mnnkv-msmodelslim-write-{name}-{}", std::process::id())))
    }

    fn names(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.0) else { return Vec::new() };
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn weights(n: usize, k: usize) -> Vec<f32> {
    (0..n * k).map(|i| ((i * 37 % 101) as f32 - 40.0) / (3.0 + (i / k) as f32)).collect()
}

/// An embedding, two linears and a layer's KV scales.
fn write(path: &Path, options: WriteOptions) -> mnnkv::status::Result<()> {
    let mut writer = Writer::new(path, options)?;
    writer.tensor("m.embed.weight", Tag::Float, FileDtype::F16, &[2, 3])?;
    writer.linear("m.0.up", 5, 8)?;
    writer.tensor("m.0.empty", Tag::Float, FileDtype::F32, &[0])?;
    writer.kv("m.0.attn", 4)?;
    writer.linear("m.0.down", 4, 16)?;
    writer.append("m.embed.weight", &[1, 2, 3, 4, 5])?;
    writer.append("m.embed.weight", &[6, 7, 8, 9, 10, 11, 12])?;
    let up = weights(5, 8);
    writer.append_rows("m.0.up", &up[..16])?;
    writer.append_rows("m.0.up", &up[16..])?;
    let scales = [0.5, 0.25, 1.0, 2.0];
    writer.append_kv("m.0.attn", (&scales, None), (&scales, Some(&[0.0, -1.0, 2.0, 127.0])))?;
    for row in weights(4, 16).chunks(16) {
        writer.append_rows("m.0.down", row)?;
    }
    writer.finish()
}

/// Type, shape and bytes of every tensor of the files, by the format's own reader.
fn tensors(scratch: &Scratch) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for name in scratch.names().iter().filter(|name| name.ends_with(".safetensors")) {
        let bytes = std::fs::read(scratch.0.join(name)).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let tensor = (view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec());
            assert!(all.insert(name, tensor).is_none());
        }
    }
    all
}

fn json(scratch: &Scratch, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(scratch.0.join(name)).unwrap()).unwrap()
}

#[test]
fn a_directory_is_complete_and_without_findings() {
    let scratch = Scratch::new("whole");
    write(&scratch.0, WriteOptions::default()).unwrap();
    assert_eq!(scratch.names(), ["quant_model_description.json", "quant_model_weights.safetensors"]);
    let report = check_path(&scratch.0).unwrap();
    // One set of KV offsets is not zero, on purpose.
    assert_eq!(report.findings.iter().map(|f| f.kind.word()).collect::<Vec<_>>(), ["kv_offset_nonzero"]);
    let tensors = tensors(&scratch);
    let kv = |side: &str, part: &str| format!("m.0.attn.{side}_proj.kv_cache_{part}");
    let expected = |dtype: &str, shape: &[usize], bytes: &[u8]| (dtype.to_owned(), shape.to_vec(), bytes.to_vec());
    assert_eq!(tensors["m.embed.weight"], expected("F16", &[2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]));
    assert_eq!(tensors[&kv("k", "scale")], expected("F32", &[4], &f32s(&[0.5, 0.25, 1.0, 2.0])));
    assert_eq!(tensors[&kv("k", "offset")], expected("F32", &[4], &f32s(&[0.0; 4])));
    assert_eq!(tensors[&kv("v", "offset")], expected("F32", &[4], &f32s(&[0.0, -1.0, 2.0, 127.0])));
    assert_eq!(tensors["m.0.up.weight"].1, [5, 8]);
    assert_eq!(tensors["m.0.up.weight_scale"].1, [5, 1]);
    assert_eq!(tensors["m.0.up.weight_offset"], expected("F32", &[5, 1], &f32s(&[0.0; 5])));
    assert_eq!(tensors["m.0.empty"], expected("F32", &[0], &[]));
    let description = json(&scratch, "quant_model_description.json");
    for (key, value) in [
        ("version", "1.0.0"),
        ("model_quant_type", "W8A16"),
        ("kv_cache_type", "C8"),
        ("kv_quant_type", "C8"),
        ("m.embed.weight", "FLOAT"),
        ("m.0.up.weight_scale", "W8A16"),
        ("m.0.attn.k_proj.kv_cache_scale", "C8"),
    ] {
        assert_eq!(description[key], value);
    }
    assert_eq!(description["group_size"], 0);
    assert_eq!((&description["metadata"], &description["optional"]), (&serde_json::json!({}), &serde_json::json!({})));
    let dotted: BTreeSet<_> = description.as_object().unwrap().keys().filter(|key| key.contains('.')).collect();
    assert!(dotted.into_iter().eq(tensors.keys()));
}

#[test]
fn what_was_written_reads_back_within_half_a_step() {
    for (name, group_size, symmetric, steps) in
        [("rows", 0, true, 0.5001), ("groups", 4, true, 0.5001), ("offsets", 4, false, 1.0001)]
    {
        let scratch = Scratch::new(name);
        write(&scratch.0, WriteOptions { group_size, symmetric, part_bytes: 0 }).unwrap();
        let model = Model::open(&scratch.0).unwrap();
        let scales = &tensors(&scratch)["m.0.down.weight_scale"];
        let groups = scales.1[1];
        let expected = if group_size == 0 { Granularity::Channel } else { Granularity::Group(4) };
        assert_eq!(model.linear(model.find_linear("m.0.down").unwrap()).unwrap().granularity, expected);
        assert_eq!(model.description().group_size, Some(group_size as u64));
        let scales: Vec<f32> = scales.2.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        for (i, (found, given)) in numbers(&model, "m.0.down").iter().zip(weights(4, 16)).enumerate() {
            let scale = scales[i / (16 / groups)];
            assert!((found - given).abs() <= steps * scale, "{i}: {found} {given} {scale}");
        }
        assert_eq!(
            check_path(&scratch.0).unwrap().findings.len(),
            1,
            "{}",
            check_path(&scratch.0).unwrap().json().unwrap()
        );
    }
}

#[test]
fn parts_end_before_they_reach_their_size_and_the_index_has_every_tensor() {
    let whole = Scratch::new("one");
    write(&whole.0, WriteOptions::default()).unwrap();
    for part_bytes in [1, 40, 64, 100, 1 << 30] {
        let scratch = Scratch::new("parts");
        write(&scratch.0, WriteOptions { part_bytes, ..WriteOptions::default() }).unwrap();
        assert_eq!(tensors(&scratch), tensors(&whole), "parts of {part_bytes}");
        let index = json(&scratch, "quant_model_weights.safetensors.index.json");
        let map = index["weight_map"].as_object().unwrap();
        let total: usize = tensors(&whole).values().map(|tensor| tensor.2.len()).sum();
        assert_eq!(index["metadata"]["total_size"], total);
        assert!(map.keys().collect::<BTreeSet<_>>().into_iter().eq(tensors(&whole).keys()));
        let parts: Vec<String> = scratch.names().into_iter().filter(|name| name.ends_with(".safetensors")).collect();
        for (i, part) in parts.iter().enumerate() {
            assert_eq!(*part, format!("quant_model_weights-{:05}-of-{:05}.safetensors", i + 1, parts.len()));
            let bytes = std::fs::read(scratch.0.join(part)).unwrap();
            let part_tensors = SafeTensors::deserialize(&bytes).unwrap();
            assert!(part_tensors.names().iter().all(|name| map[*name] == part.as_str()));
            let bytes: usize = part_tensors.tensors().iter().map(|(_, view)| view.data().len()).sum();
            let filled = part_tensors.tensors().iter().filter(|(_, view)| !view.data().is_empty()).count();
            assert!(filled == 1 || (bytes as u64) < part_bytes, "{part}: {bytes}");
        }
        assert_eq!(parts.len() == 1, part_bytes == 1 << 30);
        assert_eq!(check_path(&scratch.0).unwrap().findings.len(), 1);
    }
}

#[test]
fn a_writer_that_does_not_finish_leaves_nothing() {
    let scratch = Scratch::new("half");
    let begin = |scratch: &Scratch| {
        let mut writer = Writer::new(&scratch.0, WriteOptions { part_bytes: 8, ..WriteOptions::default() }).unwrap();
        writer.tensor("m.a", Tag::Float, FileDtype::F32, &[4]).unwrap();
        writer.tensor("m.b", Tag::Float, FileDtype::F32, &[4]).unwrap();
        writer.append("m.a", &[0; 16]).unwrap();
        writer.append("m.b", &[0; 15]).unwrap();
        writer
    };
    let writer = begin(&scratch);
    assert!(scratch.names().contains(&"quant_model_weights-00001-of-00002.safetensors".to_owned()));
    assert!(!scratch.names().contains(&"quant_model_description.json".to_owned()));
    drop(writer);
    assert!(!scratch.0.exists());
    let error = begin(&scratch).finish().unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.message().contains('b') && error.message().contains("15"), "{error}");
    assert!(!scratch.0.exists());
    // A directory that was there stays, with what is the host's.
    std::fs::create_dir(&scratch.0).unwrap();
    std::fs::write(scratch.0.join("config.json"), "{}").unwrap();
    drop(begin(&scratch));
    assert_eq!(scratch.names(), ["config.json"]);
    let mut writer = begin(&scratch);
    writer.append("m.b", &[0; 1]).unwrap();
    writer.finish().unwrap();
    assert_eq!(scratch.names().len(), 5);
    let error = Writer::new(&scratch.0, WriteOptions::default()).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
}

#[test]
fn files_of_another_program_stay() {
    let scratch = Scratch::new("others");
    let begin = || {
        let mut writer = Writer::new(&scratch.0, WriteOptions::default()).unwrap();
        writer.tensor("m.a", Tag::Float, FileDtype::F32, &[1]).unwrap();
        writer
    };
    let description = scratch.0.join("quant_model_description.json");
    // Before the first contents: the call may be repeated.
    let mut writer = begin();
    std::fs::create_dir(&scratch.0).unwrap();
    std::fs::write(&description, "{}").unwrap();
    assert_eq!(writer.append("m.a", &[0; 4]).unwrap_err().status(), Status::InvalidArgument);
    std::fs::remove_file(&description).unwrap();
    writer.append("m.a", &[0; 4]).unwrap();
    drop(writer);
    // After them.
    let mut writer = begin();
    writer.append("m.a", &[0; 4]).unwrap();
    std::fs::write(&description, "{}").unwrap();
    let error = writer.finish().unwrap_err();
    assert_eq!(error.status(), Status::Io);
    assert!(error.message().contains("another program"), "{error}");
    assert_eq!(scratch.names(), ["quant_model_description.json"]);
    assert_eq!(std::fs::read_to_string(&description).unwrap(), "{}");
}

#[test]
fn contents_have_the_declared_order_and_size() {
    let scratch = Scratch::new("order");
    let begin = || {
        let mut writer = Writer::new(&scratch.0, WriteOptions { group_size: 2, ..WriteOptions::default() }).unwrap();
        writer.linear("a", 2, 4).unwrap();
        writer.kv("p", 2).unwrap();
        writer
    };
    let refused = |result: mnnkv::status::Result<()>, word: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        assert!(error.message().contains(word), "{error}");
    };
    let mut writer = begin();
    refused(writer.linear("b", 2, 3), "groups of 2");
    refused(writer.linear("b", 0, 4), "0 by 4");
    refused(writer.tensor("a.weight", Tag::Float, FileDtype::F32, &[1]), "declared before");
    refused(writer.tensor("version", Tag::Float, FileDtype::F32, &[1]), "dot");
    refused(writer.tensor("m.c", Tag::Float, FileDtype::F32, &[u64::MAX, 2]), "possible size");
    refused(writer.kv("q", 0), "0 channels");
    refused(writer.linear("", 2, 4), "a layer, a dot and a part");
    refused(writer.tensor("m.\0", Tag::Float, FileDtype::F32, &[1]), "a layer, a dot and a part");
    refused(writer.append_rows("p", &[0.0; 4]), "a as rows is next");
    refused(writer.append("a", &[0; 4]), "a as rows is next");
    refused(writer.append_rows("a", &[0.0; 5]), "whole rows of 4");
    refused(writer.append_rows("a", &[0.0; 12]), "at most 2");
    refused(writer.append_rows("a", &[0.0, 0.0, f32::INFINITY, 0.0]), "row 0, column 2");
    assert!(!scratch.0.exists());
    writer.append_rows("a", &[0.5; 8]).unwrap();
    refused(writer.linear("z", 2, 4), "contents have begun");
    let one: &[f32] = &[1.0, 1.0];
    refused(writer.append_kv("p", (&[1.0], None), (one, None)), "1 key scales given; 2 expected");
    refused(writer.append_kv("p", (one, None), (one, Some(&[0.0]))), "1 value offsets given; 2 expected");
    refused(writer.append_kv("p", (one, None), (&[1.0, 0.0], None)), "value scale 1 is 0");
    refused(writer.append_kv("p", (one, None), (&[1e-31, 1.0], None)), "value scale 0 is 1e-31; a finite");
    refused(writer.append_kv("p", (one, Some(&[0.5, 0.0])), (one, None)), "key offset 0 is 0.5");
    writer.append_kv("p", (one, None), (one, None)).unwrap();
    refused(writer.append("p", &[0]), "complete");
    writer.finish().unwrap();
    std::fs::remove_dir_all(&scratch.0).unwrap();
    refused(Writer::new(&scratch.0, WriteOptions::default()).unwrap().finish(), "nothing was declared");
    let error = Writer::new(&scratch.0.join("deep/er"), WriteOptions::default()).and_then(|mut writer| {
        writer.tensor("m.a", Tag::Float, FileDtype::F32, &[1])?;
        writer.append("m.a", &[0; 4])
    });
    assert_eq!(error.unwrap_err().status(), Status::NotFound);
}

#[test]
fn rows_that_are_refused_can_be_given_again() {
    let options = WriteOptions { symmetric: false, ..WriteOptions::default() };
    let (scratch, plain) = (Scratch::new("refused"), Scratch::new("plain"));
    let good = weights(5, 8);
    for (scratch, with_failures) in [(&scratch, true), (&plain, false)] {
        let mut writer = Writer::new(&scratch.0, options).unwrap();
        writer.linear("m.up", 5, 8).unwrap();
        writer.append_rows("m.up", &good[..16]).unwrap();
        if with_failures {
            // Row 3 reaches further than f32; row 2, before it, is fine.
            let mut far = good[16..].to_vec();
            (far[8], far[9]) = (f32::MAX, f32::MIN);
            let error = writer.append_rows("m.up", &far).unwrap_err();
            assert_eq!(error.status(), Status::InvalidArgument);
            assert!(error.message().starts_with("m.up: "), "{error}");
        }
        writer.append_rows("m.up", &good[16..]).unwrap();
        writer.finish().unwrap();
    }
    assert_eq!(tensors(&scratch), tensors(&plain));
}

#[test]
fn layers_of_other_types_are_copied_under_their_tags() {
    let scratch = Scratch::new("copy");
    let mut writer = Writer::new(&scratch.0, WriteOptions::default()).unwrap();
    let parts: [(&str, FileDtype, &[u64], Vec<u8>); 5] = [
        ("weight", FileDtype::I8, &[1, 2], vec![3, 4]),
        ("input_scale", FileDtype::F32, &[1], f32s(&[0.5])),
        ("input_offset", FileDtype::F32, &[1], f32s(&[0.0])),
        ("deq_scale", FileDtype::I64, &[1], 0x3f80_0000u64.to_le_bytes().to_vec()),
        ("quant_bias", FileDtype::I32, &[1], vec![0; 4]),
    ];
    for (part, dtype, shape, _) in &parts {
        writer.tensor(&format!("a.{part}"), Tag::W8A8, *dtype, shape).unwrap();
    }
    for (part, _, _, bytes) in &parts {
        writer.append(&format!("a.{part}"), bytes).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(json(&scratch, "quant_model_description.json")["model_quant_type"], "W8A8");
    assert_eq!(check_path(&scratch.0).unwrap().findings, []);
    assert_eq!(numbers(&Model::open(&scratch.0).unwrap(), "a"), [6.0, 8.0]);
}
