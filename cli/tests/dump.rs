//! `mnnkv dump` as a process.

mod common;

use common::Folder;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Standard output and standard error of a run with exit code `code`.
#[track_caller]
fn dump(code: i32, words: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mnnkv")).arg("dump").args(words).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(code), "{words:?}: {text:?}");
    text.into()
}

#[track_caller]
fn json(code: i32, words: &[&str]) -> Value {
    let (text, _) = dump(code, &[words, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn sample() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/kv").to_str().unwrap().to_owned()
}

impl Folder {
    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

#[test]
fn a_list_has_a_line_for_each_layer_and_the_same_in_json() {
    let (text, _) = dump(0, &[&sample()]);
    assert!(text.starts_with("4 layers in 2.1 MiB, K and V\n"), "{text}");
    assert!(
        text.lines().any(|line| line.split_whitespace().eq("kv 3 1,088 0 2 64 F16 557,056 64".split(' '))),
        "{text}"
    );
    let object = json(0, &[&sample()]);
    assert_eq!((&object["bytes"], object["layers"].as_array().unwrap().len()), (&(4 * 557_056).into(), 4));
    assert_eq!(object["layers"][2]["attention_rows"], 64);
    assert_eq!(object["findings"], Value::Array(Vec::new()));
}

#[test]
fn a_dump_is_converted_to_a_folder_and_back_without_a_change() {
    let (folder, flat) = (Folder::new("folder"), Folder::new("flat"));
    let made = json(0, &[&sample(), "--output", folder.path(), "--prompt", "1000"]);
    // K, V and the meta of 89 entries in 4 layers, attention rows of the last 64 entries in 2.
    assert_eq!(made["files"], 89 * 3 * 4 + 64 * 2);
    let meta = fs::read(folder.0.join("kv/layer_0/meta_t1000_1001.json")).unwrap();
    let meta: Value = serde_json::from_slice(&meta).unwrap();
    assert_eq!((&meta["stage"], &meta["seq_len"]), (&"decode".into(), &1.into()));
    assert_eq!(json(0, &[folder.path()])["layers"][3]["prompt_tokens"], 1000);

    let (_, error) = dump(3, &[&sample(), "--output", folder.path()]);
    assert!(error.contains("kv/layer_0") && error.contains("exists"), "{error}");
    assert_eq!(json(0, &[&sample(), "--output", folder.path(), "--overwrite"])["files"], 4 * 3 + 2);

    let made = json(0, &[folder.path(), "--output", flat.path(), "--format", "flat"]);
    assert_eq!(made["findings"][0]["reason"], "position");
    let source = PathBuf::from(sample());
    let names: Vec<_> = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), fs::read_dir(flat.0.join("kv")).unwrap().count());
    for name in names {
        assert!(fs::read(source.join(&name)).unwrap() == fs::read(flat.0.join("kv").join(&name)).unwrap(), "{name:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_name_of_a_file_begins_no_line_of_findings() {
    let folder = Folder::new("names");
    let chat = folder.0.join("a\nb");
    fs::create_dir(&chat).unwrap();
    for name in ["l0_k_h1_t2_d2.f16", "l0_v_h1_t2_d2.f16", "l1_k_h1_t2_d2.f16"] {
        fs::write(chat.join(name), [0; 8]).unwrap();
    }
    let (text, _) = dump(0, &[folder.path()]);
    assert!(text.contains("a\\nb/l1_k_h1_t2_d2.f16: the layer has no V"), "{text}");
}

#[test]
fn failures_name_the_place_and_the_choice() {
    let (_, error) = dump(3, &["no-such-folder"]);
    assert!(error.contains("no-such-folder: cannot read"), "{error}");
    let (_, error) = dump(3, &[&sample(), "--run", "x"]);
    assert!(error.contains("no run \"x\"; the runs are kv"), "{error}");
    let out = Folder::new("failures");
    let (_, error) = dump(3, &[&sample(), "--output", out.path(), "--prompt", "2000"]);
    assert!(error.contains("layer 0: is 2000; 1 to 1088 expected"), "{error}");
    dump(3, &[&sample(), "--output", out.path(), "--prompt", "20", "--format", "flat"]);
    assert_eq!(fs::read_dir(&out.0).unwrap().count(), 0);
    dump(2, &[&sample(), "--prompt", "20"]);
}
