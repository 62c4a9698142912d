//! GGUF files: blocks beside those of another reader, and files that are refused.

use super::blocks::Format;
use super::*;
use serde::Deserialize;
use std::path::PathBuf;

/// Blocks of one type and their numbers, by the package gguf.
#[derive(Deserialize)]
struct Golden {
    name: String,
    number: u32,
    bytes: String,
    values: Vec<f32>,
}

#[test]
fn blocks_have_the_numbers_that_the_package_gguf_reads() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/gguf/blocks.json");
    let goldens: Vec<Golden> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(goldens.len(), 9);
    for golden in goldens {
        let format = Format::of(golden.number).unwrap();
        let digits = |at: usize| u8::from_str_radix(&golden.bytes[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..golden.bytes.len()).step_by(2).map(digits).collect();
        let values = format.read(&bytes);
        assert_eq!((format.name, values.len()), (golden.name.as_str(), golden.values.len()));
        for (at, (found, expected)) in values.iter().zip(&golden.values).enumerate() {
            // Two products may be added in another order.
            assert!(
                (found - expected).abs() <= 1e-6 * expected.abs().max(1.0),
                "{} {at}: {found}, {expected}",
                golden.name
            );
        }
    }
}

/// Writes a GGUF file by the format's document: metadata as (name, type, bytes), tensors as (name, dimensions with the
/// innermost first, type, bytes).
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) metadata: Vec<(String, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Written {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.len() as u64).to_le_bytes());
        for (name, kind, value) in &self.metadata {
            bytes.extend([text(name), kind.to_le_bytes().to_vec(), value.clone()].concat());
        }
        let mut data = Vec::new();
        for (name, dimensions, kind, values) in &self.tensors {
            bytes.extend(text(name));
            bytes.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend((data.len() as u64).to_le_bytes());
            data.extend(values);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        [bytes, data].concat()
    }

    /// A file of a model with the numbers of a config of 3 layers, 4 and 2 heads of 6 and tensors in f32.
    pub(crate) fn new(architecture: &str, tensors: impl Iterator<Item = (String, Vec<usize>, Vec<f32>)>) -> Written {
        let mut metadata = vec![("general.architecture".to_string(), 8, text(architecture))];
        // Passed over: an array of texts.
        let tokens = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &text("a"), &text("bc")].concat();
        metadata.push(("tokenizer.ggml.tokens".into(), 9, tokens));
        for (name, number) in [
            ("block_count", 3u32),
            ("embedding_length", 20),
            ("feed_forward_length", 26),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 6),
            ("context_length", 200),
        ] {
            metadata.push((format!("{architecture}.{name}"), 4, number.to_le_bytes().to_vec()));
        }
        metadata.push((format!("{architecture}.rope.freq_base"), 6, 500f32.to_le_bytes().to_vec()));
        metadata.push((format!("{architecture}.attention.layer_norm_rms_epsilon"), 6, 1e-5f32.to_le_bytes().to_vec()));
        let tensors = tensors.map(|(name, shape, values)| {
            let dimensions = shape.iter().rev().map(|n| *n as u64).collect();
            (name, dimensions, 0, values.iter().flat_map(|x| x.to_le_bytes()).collect())
        });
        Written { metadata, tensors: tensors.collect() }
    }

    /// Sets a value of the metadata.
    pub(crate) fn set(&mut self, name: &str, kind: u32, value: Vec<u8>) {
        self.metadata.retain(|(own, ..)| own != name);
        self.metadata.push((name.into(), kind, value));
    }

    /// The model of the file.
    pub(crate) fn open(&self, name: &str) -> Result<Model> {
        opened(name, &self.bytes())
    }
}

fn opened(name: &str, bytes: &[u8]) -> Result<Model> {
    let path: PathBuf = std::env::temp_dir().join(format!("mnnkv-{name}-{}.gguf", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let model = Model::open(&path);
    std::fs::remove_file(&path).unwrap();
    model
}

/// A file whose tensors are zeros, in names of llama.cpp.
fn zeros(architecture: &str) -> Written {
    let mut layer = vec![
        ("attn_norm", vec![20]),
        ("attn_q", vec![24, 20]),
        ("attn_k", vec![12, 20]),
        ("attn_v", vec![12, 20]),
        ("attn_output", vec![20, 24]),
        ("ffn_norm", vec![20]),
        ("ffn_gate", vec![26, 20]),
        ("ffn_up", vec![26, 20]),
        ("ffn_down", vec![20, 26]),
    ];
    if architecture == "gemma3" {
        layer.extend([("attn_q_norm", vec![6]), ("attn_k_norm", vec![6])]);
        layer.extend([("post_attention_norm", vec![20]), ("post_ffw_norm", vec![20])]);
    }
    let name = |number: usize| move |(name, shape)| (format!("blk.{number}.{name}"), shape);
    let layers = (0..3).flat_map(|number| layer.clone().into_iter().map(name(number)));
    let all = layers.chain([("token_embd".to_string(), vec![53, 20]), ("output_norm".into(), vec![20])]);
    let all = all.map(|(name, shape)| (format!("{name}.weight"), shape.clone(), vec![0.0; shape.iter().product()]));
    let mut file = Written::new(architecture, all);
    file.set("gemma3.attention.sliding_window", 4, vec![9, 0, 0, 0]);
    file
}

type Change<'a> = &'a dyn Fn(&mut Written);

/// Whether a file of an architecture is read, and refused with these words behind each change.
fn assert_refused(architecture: &str, cases: &[(Change<'_>, &str)]) {
    let good = zeros(architecture);
    assert!(good.open(&format!("{architecture}-good")).is_ok());
    for (number, (change, expected)) in cases.iter().enumerate() {
        let mut changed = good.clone();
        change(&mut changed);
        let error = changed.open(&format!("{architecture}-{number}")).err().expect(expected).to_string();
        assert!(error.contains(expected) && error.contains(".gguf"), "{error}");
    }
}

#[test]
fn files_that_are_not_read_are_refused_by_offset_field_or_tensor() {
    let cases: [(Change<'_>, &str); 8] = [
        (
            &|file| file.set("general.architecture", 8, text("mamba")),
            "general.architecture is \"mamba\"; \"llama\", \"qwen2\" or",
        ),
        (&|file| file.metadata.retain(|(name, ..)| name != "llama.block_count"), "llama.block_count is missing"),
        (&|file| file.set("llama.attention.head_count_kv", 4, vec![3, 0, 0, 0]), "llama.attention.head_count_kv is 3;"),
        (
            &|file| {
                // Blocks of Q8_0, 32 elements behind a scale, which is infinite in the first.
                let rows = file.tensors.iter_mut().find(|(name, ..)| name == "token_embd.weight").unwrap();
                (rows.1, rows.2, rows.3) = (vec![32, 53], 8, vec![0; 53 * 34]);
                rows.3[..3].copy_from_slice(&[0, 0x7c, 1]);
                file.set("llama.embedding_length", 4, vec![32, 0, 0, 0]);
            },
            "tensor token_embd.weight: element 0 is inf; a finite number",
        ),
        (&|file| file.tensors[1].2 = 16, "tensor blk.0.attn_q.weight: has the type 16; F32, F16,"),
        (
            &|file| file.tensors[1].1 = vec![20, 23],
            "tensor blk.0.attn_q.weight: has the shape [23, 20]; [24, 20] expected",
        ),
        (
            &|file| file.tensors[0].0 = "blk.0.attn_q_norm.weight".into(),
            "tensor blk.0.attn_q_norm.weight: is none of a llama of 3 layers",
        ),
        (&|file| drop(file.tensors.pop()), "output_norm.weight: is missing"),
    ];
    assert_refused("llama", &cases);
    let error = opened("magic", b"GGML\x03\0\0\0").err().unwrap().to_string();
    assert!(error.contains("offset 0: begins with [47, 47, 4d, 4c]; \"GGUF\" expected"), "{error}");
}

#[test]
fn files_of_gemma_3_that_compute_something_else_are_refused() {
    let float = |number: f32| number.to_le_bytes().to_vec();
    let cases: [(Change<'_>, &str); 9] = [
        (
            &|file| file.metadata.retain(|(name, ..)| name != "gemma3.attention.sliding_window"),
            "gemma3.attention.sliding_window is missing",
        ),
        (&|file| file.set("gemma3.attention.sliding_window", 4, vec![0; 4]), "gemma3.attention.sliding_window is 0;"),
        (
            &|file| file.set("gemma3.attention.sliding_window_pattern", 4, vec![0; 4]),
            "gemma3.attention.sliding_window_pattern is 0;",
        ),
        (
            &|file| file.set("gemma3.block_count", 4, vec![62, 0, 0, 0]),
            "gemma3.block_count is 62; another number, since",
        ),
        (
            &|file| file.set("gemma3.rope.scaling.type", 8, text("yarn")),
            "gemma3.rope.scaling.type is Text(\"yarn\"); \"none\" or \"linear\" expected",
        ),
        (
            &|file| {
                file.set("gemma3.rope.scaling.type", 8, text("none"));
                file.set("gemma3.rope.scaling.factor", 6, float(8.0));
            },
            "gemma3.rope.scaling.factor is 8; 1 expected",
        ),
        (
            &|file| file.set("gemma3.final_logit_softcapping", 6, float(30.0)),
            "gemma3.final_logit_softcapping is 30; 0 expected",
        ),
        (&|file| drop(file.tensors.remove(9)), "tensor blk.0.attn_q_norm.weight: is missing"),
        (
            &|file| file.tensors[0].0 = "blk.0.attn_q.bias".into(),
            "tensor blk.0.attn_q.bias: is none of a gemma3 of 3 layers",
        ),
    ];
    assert_refused("gemma3", &cases);
}

#[test]
fn texts_begin_with_the_token_that_the_file_says() {
    let first = |adds: Option<u8>, token: Option<u8>| {
        let mut file = zeros("gemma3");
        adds.into_iter().for_each(|adds| file.set("tokenizer.ggml.add_bos_token", 7, vec![adds]));
        token.into_iter().for_each(|token| file.set("tokenizer.ggml.bos_token_id", 4, vec![token, 0, 0, 0]));
        file.open("first").map(|model| model.first_token()).map_err(|e| e.to_string())
    };
    assert_eq!(first(Some(1), Some(52)), Ok(Some(52)));
    assert_eq!(first(Some(0), Some(52)), Ok(None));
    assert_eq!(first(None, Some(52)), Ok(None));
    assert!(first(Some(1), Some(53)).unwrap_err().contains("tokenizer.ggml.bos_token_id is 53; below 53 expected"));
    assert!(first(Some(1), None).unwrap_err().contains("tokenizer.ggml.bos_token_id is missing"));
}
