//! The program as a process: standard output, standard error, exit codes.

use mnnkv::dtype::Dtype;
use mnnkv::layout::{Cache, Layout, Spec};
use mnnkv::session::{Host, MemoryStats, Session};
use mnnkv::status::Error;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/testdata").join(name)
}

fn mnnkv(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mnnkv")).args(words).output().unwrap()
}

/// Standard output of a run with exit code `code`.
#[track_caller]
fn stdout_of(code: i32, words: &[&str]) -> String {
    let output = mnnkv(words);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{words:?}: {out}{err}");
    out
}

/// Standard error of a run with exit code `code` and empty standard output.
#[track_caller]
fn stderr_of(code: i32, words: &[&str]) -> String {
    let output = mnnkv(words);
    assert_eq!(output.status.code(), Some(code), "{words:?}");
    assert!(output.stdout.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

#[track_caller]
fn json(code: i32, words: &[&str]) -> Value {
    let text = stdout_of(code, &[&["--json"], words].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{words:?}: {e}: {text}"))
}

fn path(name: &str) -> String {
    testdata(name).to_str().unwrap().to_owned()
}

#[test]
fn help_lists_commands_and_exit_codes() {
    let all = stdout_of(0, &["--help"]);
    assert!(all.contains("Exit codes"), "{all}");
    for command in ["convert-compressor", "check", "dequantize", "evaluate", "gate", "quality", "report", "size", "man"]
    {
        let help = stdout_of(0, &[command, "--help"]);
        assert!(all.contains(command) && help.contains("Usage: mnnkv "), "{command}: {help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{command}: {help}");
    }
}

#[test]
fn usage_errors_exit_with_2_and_failures_with_3() {
    stderr_of(2, &["no-such-command"]);
    stderr_of(2, &["size", "--layers", "3"]);
    stderr_of(3, &["size", "--layers", "3", "--config", "no-such-directory"]);
    stderr_of(2, &["size", "--config", "x", "--budget", "8 parsecs"]);
    assert!(stderr_of(3, &["check", "no-such-directory"]).contains("cannot open no-such-directory"));
    assert!(json(2, &["size"])["error"].is_string());
    let failure = json(3, &["check", "no-such-directory"]);
    assert!(failure["error"].as_str().unwrap().contains("no-such-directory"));
}

#[test]
fn check_lists_findings_and_exits_with_1_on_errors() {
    let broken = path("msmodelslim/corrupt/zero_scale");
    let text = stdout_of(1, &["check", &broken]);
    for words in
        ["error: ", "model.layers.0.mlp.down_proj.weight_scale", "element 0 is 0", "[bad_scale_value]", "1 error, "]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let object = json(1, &["check", &broken]);
    assert_eq!(object["errors"], 1);
    assert_eq!(object["findings"][0]["kind"], "bad_scale_value");
    let healthy = path("msmodelslim/w8a16_per_channel");
    assert!(stdout_of(0, &["check", &healthy]).ends_with("no errors, no warnings\n"));
    assert_eq!(json(0, &["check", &healthy])["findings"], serde_json::json!([]));
}

#[test]
fn check_finds_each_damage_of_a_chat_file() {
    let whole = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/chat/golden.kv")).unwrap();
    let path = std::env::temp_dir().join(format!("mnnkv-check-{}.kv", std::process::id()));
    let checked = |code, bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        stdout_of(code, &["check", path.to_str().unwrap()])
    };
    assert!(checked(0, &whole).ends_with(", 0 parts damaged\n"));
    // In the header, in the tokens, and at the end.
    for damaged in [&whole[..20], &whole[..whole.len() / 2], &whole[..whole.len() - 1]] {
        assert!(checked(1, damaged).starts_with("error: "), "{} bytes", damaged.len());
    }
    let mut damaged = whole.clone();
    damaged[12] ^= 1;
    assert!(checked(1, &damaged).ends_with(", 1 part damaged\n"));
    damaged[0] ^= 1;
    assert!(checked(1, &damaged).contains("no chat file begins so"), "a file is no directory of weights");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn size_is_equal_for_a_config_and_for_numbers() {
    let config = path("configs/llama-3-8b.json");
    let by_config = json(0, &["size", "--config", &config, "--context", "1000"]);
    let numbers = ["size", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "bf16"];
    let by_numbers = json(0, &[&numbers[..], &["--context", "1000"]].concat());
    for object in [&by_config, &by_numbers] {
        assert_eq!(object["bytes_per_token"], 131_072);
        assert_eq!(object["totals"][0]["rank"]["raw"], 131_072_000);
        assert_eq!(object["element"], "bf16");
    }
    let mla = json(0, &["size", "--layers", "61", "--kv-lora-rank", "512", "--rope-head-dim", "64"]);
    assert_eq!(mla["bytes_per_token"], 70_272);
}

#[test]
fn size_prints_savings_and_the_longest_context() {
    let config = path("configs/llama-3-8b.json");
    let plain = ["size", "--config", &config, "--context", "8192", "--budget", "1GiB"];
    let text = stdout_of(0, &plain);
    // 2^30 bytes at 131,072 a token.
    assert!(text.contains("Longest context in 1 GiB") && text.contains("8,192 tokens"), "{text}");
    assert!(!text.contains("h2o"), "{text}");
    let saved = [&plain[..], &["--h2o", "4", "--h2o-layers", "0", "--lossless", "1.5"]].concat();
    let text = stdout_of(0, &saved);
    assert!(["h2o", "+ lossless", "ratio", "with savings"].iter().all(|word| text.contains(word)), "{text}");
    let object = json(0, &saved);
    let rank = &object["totals"][0]["rank"];
    assert_eq!(rank["raw"], 1_u64 << 30);
    assert_eq!(rank["after_h2o"], 1_u64 << 28);
    assert!(rank["after_lossless"].as_u64() < Some(1 << 28));
}

/// The memory of a session after its first begin, if that is accepted.
fn session(bytes: u64, layers: u32, dtype: Dtype, kv_heads: u32, head_dim: u32) -> Result<MemoryStats, Error> {
    let config = format!(r#"{{"kv_memory_bytes": {bytes}}}"#);
    let host = Host { attends: true };
    let session = Session::with_host(config.as_bytes(), b"", layers, 1, host).unwrap();
    let layout = Layout::new(&Spec {
        key: dtype.into(),
        value: dtype.into(),
        kv_heads,
        head_dim,
        l_pack: 1,
        h_pack: 8,
        int8: Default::default(),
        flash_block: 64,
        max_tokens: 64,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
    })
    .unwrap();
    let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
    let cache = Cache::new(&layout, &mut key, &mut value).unwrap();
    session.begin(0, Some(cache), 0)?;
    session.memory_stats()
}

#[test]
fn size_says_what_a_session_holds() {
    let config = path("configs/llama-3-8b.json");
    for (words, budget, dtype, heads) in [
        (&["--budget", "200MB", "--dtype", "f32", "--tp", "4"][..], 200_000_000, Dtype::F32, 2),
        (&["--budget", "600MB", "--cpu", "arm-i8mm", "--batch", "2"], 300_000_000, Dtype::F16, 8),
    ] {
        let words = [&["size", "--config", &config], words].concat();
        let object = &json(0, &words)["kv_memory"];
        let number = |key: &str| object[key].as_u64().unwrap_or_else(|| panic!("{words:?} {key}: {object}"));
        let stats = session(budget, 32, dtype, heads, 128).unwrap();
        assert_eq!(number("budget_bytes"), budget);
        assert_eq!((number("raw_tokens"), number("quantised_tokens")), (stats.raw_tokens, stats.quantised_tokens));
        assert_eq!(number("dropped_from"), stats.quantised_tokens + 1);
        assert!(number("file_tokens") > 5 * number("quantised_tokens"), "{object}");
        assert!(session(number("least_bytes"), 32, dtype, heads, 128).is_ok(), "{words:?}");
        assert!(session(number("least_bytes") - 1, 32, dtype, heads, 128).is_err(), "{words:?}");
        let key = format!("\"kv_memory_mb\": {}", budget as f64 / 1e6);
        let text = stdout_of(0, &words);
        assert!(text.contains(&key) && text.contains("with kv_memory_file"), "{text}");
    }
    let refused = stdout_of(0, &["size", "--config", &config, "--budget", "1MB"]);
    assert!(refused.contains("refused: ") && !refused.contains("kv_memory_file"), "{refused}");
}

/// A new folder with these files.
fn folder_of(name: &str, files: &[(&str, &str)]) -> String {
    let folder = std::env::temp_dir().join(format!("mnnkv-size-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    files.iter().for_each(|(file, text)| std::fs::write(folder.join(file), text).unwrap());
    folder.to_str().unwrap().to_owned()
}

#[test]
fn size_reads_mnns_configs_by_folder_or_file() {
    let llm = r#"{"layer_nums": 28, "attention_mask": "float", "key_value_shape": [2, 1, 0, 2, 128]}"#;
    let host = r#"{"llm_model": "llm.mnn", "attention_mode": 10, "precision": "low", "llm_config": "text.json"}"#;
    let folder = folder_of("mnn", &[("text.json", llm), ("config.json", host)]);
    for path in [&folder, &format!("{folder}/config.json"), &format!("{folder}/text.json")] {
        let object = json(0, &["size", "--config", path, "--context", "960"]);
        // Room for 1,024 tokens in 28 layers of 2 heads, and a centre of 512 bytes per head.
        assert_eq!(object["totals"][0]["rank"]["raw"], 28 * 2 * (1024 * (140 + 152) + 512), "{path}");
        assert_eq!(
            object["mnn"],
            serde_json::json!({"attention_mode": 10, "key": "int8", "value": "int8", "cpu": "avx2"})
        );
    }
    let arm = ["size", "--config", &folder, "--attention-mode", "13", "--cpu", "arm-i8mm", "--context", "960"];
    assert!(stdout_of(0, &arm).contains("K TQ4, V f16 (attention_mode 13 of MNN on arm-i8mm)"));
    assert_eq!(json(0, &arm)["totals"][0]["rank"]["raw"], 28 * 2 * 1024 * (72 + 256));
    std::fs::remove_file(format!("{folder}/config.json")).unwrap();
    std::fs::rename(format!("{folder}/text.json"), format!("{folder}/llm_config.json")).unwrap();
    assert_eq!(json(0, &["size", "--config", &folder])["mnn"]["attention_mode"], 8);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn size_refuses_what_is_no_config_of_a_model() {
    assert!(stderr_of(2, &["size", "--config", "x", "--attention-mode", "6"]).contains("14 expected"));
    assert!(stderr_of(2, &["size", "--config", "x", "--cpu", "z80"]).contains("arm-i8mm"));
    let config = path("configs/llama-3-8b.json");
    let message = stderr_of(3, &["size", "--config", &config, "--kv-heads", "8", "--head-dim", "128"]);
    assert!(message.contains("llama-3-8b.json is a Hugging Face config"), "{message}");
    let folder = folder_of(
        "none",
        &[
            ("a.json", r#"{"tokens": 1}"#),
            ("b.json", r#"{"llm_model": "x", "llm_config": 3}"#),
            ("c.json", "{"),
            ("d.json", r#"{"num_hidden_layers": "32"}"#),
        ],
    );
    for (file, words) in [
        ("a.json", "is none of the known configs"),
        ("b.json", "b.json: llm_config is 3; a string expected"),
        ("d.json", "num_hidden_layers"),
        ("c.json", "line 1"),
    ] {
        let message = stderr_of(3, &["size", "--config", &format!("{folder}/{file}")]);
        assert!(message.contains(file) && message.contains(words), "{message}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn completions_and_manual_pages_have_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = stdout_of(0, &["completions", shell]);
        assert!(script.contains("convert-compressor") && script.contains("prefix-order"), "{shell}");
    }
    let folder = std::env::temp_dir().join(format!("mnnkv-man-{}", std::process::id()));
    stdout_of(0, &["man", folder.to_str().unwrap()]);
    for page in ["mnnkv.1", "mnnkv-size.1", "mnnkv-check.1", "mnnkv-convert-compressor.1"] {
        let text = std::fs::read_to_string(folder.join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
        assert!(text.starts_with(".ie") && text.contains(".SH"), "{page}: {text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn control_characters_of_names_are_escaped() {
    let folder = std::env::temp_dir().join(format!("mnnkv-names-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let healthy = testdata("msmodelslim/w8a16_per_channel");
    let weights = "quant_model_weights.safetensors";
    std::fs::copy(healthy.join(weights), folder.join(weights)).unwrap();
    let description = std::fs::read(healthy.join("quant_model_description.json")).unwrap();
    let mut description: Value = serde_json::from_slice(&description).unwrap();
    let file = folder.join("quant_model_description.json");
    let harmless = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
    let steers = |c: char| (c.is_control() && c != '\n') || "\u{200f}\u{202e}\u{2066}\u{feff}".contains(c);
    description["evil\u{1b}[2J\n\u{9b}.weight"] = "W\u{7}".into();
    description["turned\u{7f}\u{200f}\u{202e}\u{2066}\u{feff}.weight"] = "W".into();
    std::fs::write(&file, description.to_string()).unwrap();
    for words in [&["check"][..], &["check", "--all"]] {
        let text = stdout_of(1, &[words, &[folder.to_str().unwrap()]].concat());
        assert!(harmless(&text) && text.contains("has evil\\u{1b}[2J\\n\\u{9b}.weight; no file"), "{text}");
    }
    let object = json(1, &["check", folder.to_str().unwrap()]);
    assert!(object["findings"].as_array().unwrap().iter().any(|f| f["tensor"] == "evil\u{1b}[2J\n\u{9b}.weight"));
    for words in [&["check", folder.to_str().unwrap()][..], &["--json", "check", folder.to_str().unwrap()]] {
        let text = stdout_of(1, words);
        assert!(text.contains("turned") && !text.contains(steers), "{text}");
    }
    assert!(harmless(&stderr_of(3, &["check", "no\u{1b}[31m\nfile"])[..]));
    assert!(!stderr_of(2, &["no\u{1b}[31m\u{9b}command\u{202e}"]).contains(steers));
    assert!(!stdout_of(2, &["--json", "no\u{9b}command\u{202e}"]).contains(steers));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_failed_write_to_standard_output_is_a_failure() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let healthy = path("msmodelslim/w8a16_per_channel");
    let program = || Command::new(env!("CARGO_BIN_EXE_mnnkv"));
    for words in
        [&["check", &healthy][..], &["--json", "check", &healthy], &["--help"], &["size", "-h"], &["--version"]]
    {
        let run = program().args(words).stdout(full()).output().unwrap();
        assert_eq!(run.status.code(), Some(3), "{words:?}");
        assert!(String::from_utf8_lossy(&run.stderr).contains("cannot write to standard output"), "{words:?}");
    }
    let run = program().args(["check", "no-such-directory"]).stderr(full()).status().unwrap();
    assert_eq!(run.code(), Some(3));
    let run = program().arg("no-such-command").stderr(full()).status().unwrap();
    assert_eq!(run.code(), Some(2));
}
