//! `mnnkv dump` as a process.

mod common;

use common::{Folder, mnnkv};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn sample() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/kv").to_str().unwrap().to_owned()
}

#[test]
fn a_list_has_a_line_for_each_layer_and_the_same_in_json() {
    let (text, _) = mnnkv(0, &["dump", &sample()]);
    assert!(text.starts_with("4 layers in 2.1 MiB, K and V\n"), "{text}");
    assert!(
        text.lines().any(|line| line.split_whitespace().eq("kv 3 1,088 0 2 64 F16 557,056 64".split(' '))),
        "{text}"
    );
    let object: Value = serde_json::from_str(&mnnkv(0, &["dump", &sample(), "--json"]).0).unwrap();
    assert_eq!((&object["bytes"], object["layers"].as_array().unwrap().len()), (&(4 * 557_056).into(), 4));
    assert_eq!(object["layers"][2]["attention_rows"], 64);
    assert_eq!(object["findings"], Value::Array(Vec::new()));
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
    let (text, _) = mnnkv(0, &["dump", folder.0.to_str().unwrap()]);
    assert!(text.contains("a\\nb/l1_k_h1_t2_d2.f16: the layer has no V"), "{text}");
}

#[test]
fn failures_name_the_place_and_the_choice() {
    let (_, error) = mnnkv(3, &["dump", "no-such-folder"]);
    assert!(error.contains("no-such-folder: cannot read"), "{error}");
    let (_, error) = mnnkv(3, &["dump", &sample(), "--run", "x"]);
    assert!(error.contains("no run \"x\"; the runs are kv"), "{error}");
}
