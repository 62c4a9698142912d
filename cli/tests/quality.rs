//! `mnnkv quality` on a model whose losses are known: all of its weights are 0, so that every token is as likely.

mod common;

use common::Folder;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Output};

const VOCABULARY: usize = 16;

impl Folder {
    /// A model of one layer, as Hugging Face has it, in `model`.
    fn with_model(self) -> Self {
        let model = self.0.join("model");
        fs::create_dir(&model).unwrap();
        let config = json!({
            "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4, "intermediate_size": 4,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "vocab_size": VOCABULARY,
            "max_position_embeddings": 900, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
        });
        fs::write(model.join("config.json"), config.to_string()).unwrap();
        let layer = [
            ("input_layernorm", vec![4]),
            ("self_attn.q_proj", vec![4, 4]),
            ("self_attn.k_proj", vec![2, 4]),
            ("self_attn.v_proj", vec![2, 4]),
            ("self_attn.o_proj", vec![4, 4]),
            ("post_attention_layernorm", vec![4]),
            ("mlp.gate_proj", vec![4, 4]),
            ("mlp.up_proj", vec![4, 4]),
            ("mlp.down_proj", vec![4, 4]),
        ];
        let layer = layer.map(|(name, shape)| (format!("model.layers.0.{name}.weight"), shape));
        let rest = [("model.embed_tokens.weight".into(), vec![VOCABULARY, 4]), ("model.norm.weight".into(), vec![4])];
        let zeros = [0u8; VOCABULARY * 4 * 4];
        let view = |(name, shape): (String, Vec<usize>)| {
            let bytes = &zeros[..4 * shape.iter().product::<usize>()];
            (name, TensorView::new(Dtype::F32, shape, bytes).unwrap())
        };
        let bytes = safetensors::serialize(layer.into_iter().chain(rest).map(view), None).unwrap();
        fs::write(model.join("model.safetensors"), bytes).unwrap();
        self
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn quality(&self, flags: &[&str]) -> Output {
        let model = self.0.join("model");
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
    let folder = Folder::new("quality").with_model();
    let (tasks, cache) = (folder.file("tasks.jsonl", texts()), folder.0.join("cache"));
    let flags =
        ["--tasks", &tasks, "--method", "k8v4", "--generate", "3", "--cache", cache.to_str().unwrap(), "--json"];
    let first = folder.quality(&flags);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let results: Value = serde_json::from_slice(&first.stdout).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["method"].as_str().unwrap()).collect::<Vec<_>>(), ["whole cache", "k8v4"]);
    for row in rows {
        assert!((row["loss"].as_f64().unwrap() - (VOCABULARY as f64).ln()).abs() < 1e-6, "{row}");
        assert_eq!((row["factor"].as_f64(), row["items"].as_u64()), (Some(1.0), Some(2)));
        assert_eq!(row["divergence"]["same_share"], 1.0);
    }
    assert_eq!(results["items"].as_array().unwrap().len(), 4);
    assert_eq!(folder.quality(&flags).stdout, first.stdout, "a second run takes the results of the first");
}

#[test]
fn a_mistake_in_a_file_is_named_by_its_place() {
    let folder = Folder::new("quality").with_model();
    let (good, tokens) = (texts(), |count: usize| [[0u8, 0]].concat().repeat(count));
    let far = folder.file("far.jsonl", good.replace("\"score_to\":120", "\"score_to\":121"));
    let fits = folder.file("fits.jsonl", &good);
    let unknown = folder.file("unknown.jsonl", good.replacen("[0,", "[16,", 1));
    let beyond = folder.file("beyond.u16", [tokens(700), vec![16, 0], tokens(700)].concat());
    let odd = folder.file("odd.u16", [tokens(3), vec![1]].concat());
    let (short, wide) = (folder.file("short.u16", tokens(600)), folder.file("wide.u32", tokens(1400)));
    for (flags, expected) in [
        (&["--tasks", &far][..], "far.jsonl: line 1: score_to: is 121; 101 to 120,"),
        (&["--tasks", &unknown], "unknown.jsonl: line 1: tokens[0]: is 16; 0 to 15, a token of the model, expected"),
        (&["--tasks", "none.jsonl"], "none.jsonl: cannot open:"),
        (&["--tokens", &beyond, "--prompt", "512"], "beyond.u16: token 700 is 16; below vocab_size 16 expected"),
        (&["--tokens", &odd, "--prompt", "512"], "odd.u16: has 7 bytes; 2 for each token expected"),
        (&["--tokens", &short, "--prompt", "512"], "short.u16: has 600 tokens; 672 or more expected"),
        (&["--tokens", &wide, "--prompt", "640"], "wide.u32: has 700 tokens; 800 or more expected"),
        (&["--tokens", &short], "--prompt is 2592; 512 to 740 expected"),
        (&["--tasks", &far, "--method", "no"], "one of \"whole cache\","),
        (&["--tasks", &far, "--method", "x={\"cache\":\"fp4\"}"], "x: key \"cache\": is \"fp4\"; one of"),
        (&["--tasks", &far, "--method", "x={\"rotation\":1}"], "x: key \"rotation\": is 1; true or false expected"),
        (&["--tasks", &far, "--method", "k8v4={}"], "k8v4 is built in with keys of its own"),
        (&["--tasks", &far, "--method", "x={}", "--method", "x={}"], "--method x comes twice"),
        (&["--tasks", &fits, "--generate", "801"], "--generate is 801; a has 100 tokens before"),
    ] {
        let error = folder.refusal(flags);
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    let run = folder.quality(&["--tasks", &far, "--json"]);
    let error: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(error.to_string().contains("far.jsonl: line 1: score_to"), "{error}");
    fs::write(folder.0.join("model/config.json"), "{\"model_type\": \"llama\"").unwrap();
    let error = folder.refusal(&["--tasks", &far]);
    assert!(error.contains("model/config.json: ") && error.contains("line 1"), "{error}");
}
