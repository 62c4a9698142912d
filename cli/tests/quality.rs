//! `mnnkv quality` on a model whose losses are known: all of its weights are 0, so that every token is as likely.

mod common;

use common::Folder;
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Output};

const VOCABULARY: usize = 16;

impl Folder {
    /// A model of one layer in `model.gguf`, written by the document of the format. Texts may have to begin with a token.
    fn with_model(self, first_token: Option<u32>) -> Self {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        let mut metadata = [text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("llama")].concat();
        for (name, number) in [
            ("block_count", 1u32),
            ("embedding_length", 4),
            ("feed_forward_length", 4),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.key_length", 2),
            ("context_length", 900),
        ] {
            metadata.extend([text(&format!("llama.{name}")), [4, number].map(u32::to_le_bytes).concat()].concat());
        }
        let epsilon = [6u32.to_le_bytes(), 1e-5f32.to_le_bytes()].concat();
        metadata.extend([text("llama.attention.layer_norm_rms_epsilon"), epsilon].concat());
        let adds = [7u32.to_le_bytes().to_vec(), vec![first_token.is_some().into()]].concat();
        metadata.extend([text("tokenizer.ggml.add_bos_token"), adds].concat());
        let token = [4, first_token.unwrap_or(0)].map(u32::to_le_bytes).concat();
        metadata.extend([text("tokenizer.ggml.bos_token_id"), token].concat());
        let maps = [("attn_q", 4u64), ("attn_k", 2), ("attn_v", 2), ("attn_output", 4)];
        let maps = maps.into_iter().chain([("ffn_gate", 4), ("ffn_up", 4), ("ffn_down", 4)]);
        let maps = maps.map(|(name, rows)| (format!("blk.0.{name}"), vec![4, rows]));
        let norms = ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"].map(|name| (name.to_string(), vec![4]));
        let tensors: Vec<_> = maps.chain(norms).chain([("token_embd".into(), vec![4, VOCABULARY as u64])]).collect();
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([tensors.len() as u64, 11].map(u64::to_le_bytes).concat());
        bytes.extend(metadata);
        // All tensors have the same zeros.
        for (name, shape) in &tensors {
            bytes.extend([text(&format!("{name}.weight")), (shape.len() as u32).to_le_bytes().to_vec()].concat());
            bytes.extend(shape.iter().flat_map(|length| length.to_le_bytes()));
            bytes.extend([0; 12]);
        }
        bytes.resize(bytes.len().next_multiple_of(32) + 4 * 4 * VOCABULARY, 0);
        fs::write(self.0.join("model.gguf"), bytes).unwrap();
        self
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn quality(&self, flags: &[&str]) -> Output {
        let model = self.0.join("model.gguf");
        Command::new(env!("CARGO_BIN_EXE_mnnkv")).arg("quality").arg(model).args(flags).output().unwrap()
    }

    /// What is printed for a mistake.
    fn refusal(&self, flags: &[&str]) -> String {
        let run = self.quality(flags);
        assert!(!run.status.success() && run.stdout.is_empty(), "{run:?}");
        String::from_utf8(run.stderr).unwrap()
    }
}

/// Two texts of 120 tokens, a line each.
fn texts() -> String {
    let tokens: Vec<usize> = (0..120).map(|at| at % VOCABULARY).collect();
    let item = |id: &str, from: usize| json!({"kind": "kv", "id": id, "tokens": tokens, "question_from": 100, "score_from": from, "score_to": 120});
    format!("{}\n{}\n", item("a", 100), item("b", 117))
}

#[test]
fn a_model_without_weights_has_the_loss_of_its_vocabulary_with_every_cache() {
    let folder = Folder::new("quality").with_model(None);
    let tasks = folder.file("tasks.jsonl", texts());
    let first = folder.quality(&["--tasks", &tasks, "--method", "k8v4", "--json"]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let results: Value = serde_json::from_slice(&first.stdout).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["method"].as_str().unwrap()).collect::<Vec<_>>(), ["whole cache", "k8v4"]);
    for row in rows {
        assert!((row["loss"].as_f64().unwrap() - (VOCABULARY as f64).ln()).abs() < 1e-6, "{row}");
        assert_eq!((row["factor"].as_f64(), row["items"].as_u64()), (Some(1.0), Some(2)));
    }
    assert_eq!(results["items"].as_array().unwrap().len(), 4);
}

#[test]
fn a_mistake_in_a_file_is_named_by_its_place() {
    let folder = Folder::new("quality").with_model(None);
    let (good, tokens) = (texts(), |count: usize| [[0u8, 0]].concat().repeat(count));
    let far = folder.file("far.jsonl", good.replace("\"score_to\":120", "\"score_to\":121"));
    let twice = folder.file("twice.jsonl", good.replace("\"b\"", "\"a\""));
    let unknown = folder.file("unknown.jsonl", good.replacen("[0,", "[16,", 1));
    let beyond = folder.file("beyond.u16", [tokens(700), vec![16, 0], tokens(700)].concat());
    let odd = folder.file("odd.u16", [tokens(3), vec![1]].concat());
    let short = folder.file("short.u16", tokens(600));
    for (flags, expected) in [
        (&["--tasks", &far][..], "far.jsonl: line 1: score_to: is 121; 101 to 120,"),
        (&["--tasks", &unknown], "unknown.jsonl: line 1: tokens[0]: is 16; 0 to 15, a token of the model, expected"),
        (&["--tasks", &twice], "twice.jsonl: line 2: id \"a\" comes twice"),
        (&["--tasks", "none.jsonl"], "none.jsonl: cannot open:"),
        (&["--tokens", &beyond, "--prompt", "512"], "beyond.u16: token 700 is 16; below vocab_size 16 expected"),
        (&["--tokens", &odd, "--prompt", "512"], "odd.u16: has 7 bytes; 2 for each token expected"),
        (&["--tokens", &short, "--prompt", "512"], "short.u16: has 600 tokens; 672 or more expected"),
        (&["--tokens", &short], "--prompt is 2592; 512 to 740 expected"),
        (&["--tasks", &far, "--method", "no"], "one of \"whole cache\","),
        (&["--tasks", &far, "--method", "k8v4={}"], "k8v4 is built in with keys of its own"),
        (&["--tasks", &far, "--method", "x={}", "--method", "x={}"], "--method x comes twice"),
    ] {
        let error = folder.refusal(flags);
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    let run = folder.quality(&["--tasks", &far, "--json"]);
    let error: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(error.to_string().contains("far.jsonl: line 1: score_to"), "{error}");
    let folder = folder.with_model(Some(3));
    let error = folder.refusal(&["--tokens", &short, "--prompt", "740"]);
    assert!(error.contains("512 to 739 expected, the model's context of 900 less 161"), "{error}");
    let folder = folder.with_model(Some(16));
    let error = folder.refusal(&["--tasks", &far]);
    assert!(error.contains("tokenizer.ggml.bos_token_id is 16; below 16 expected"), "{error}");
    fs::write(folder.0.join("model.gguf"), "GGML").unwrap();
    let error = folder.refusal(&["--tasks", &far]);
    assert!(error.contains("model.gguf: offset 0: begins with"), "{error}");
}
