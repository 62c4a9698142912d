//! `mnnkv evaluate` as a process, on the bundled cache.

mod common;

use common::Folder;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn dumps() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/kv");
    path.to_str().unwrap().to_owned()
}

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mnnkv")).arg("evaluate").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn results_hold_each_layer_and_the_promised_ratios() {
    let folder = Folder::new("evaluate");
    let output = folder.0.join("results.json");
    let words = ["--output", output.to_str().unwrap(), "--ratios", "2,3.5"];
    let done = run(&[&[dumps().as_str()][..], &words].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let tables = text(&done.stdout);
    assert!(tables.contains("blocks  ") && tables.contains("reference's product"), "{tables}");

    let results: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    assert_eq!((&results["format"], &results["complete"]), (&"mnnkv-evaluate".into(), &true.into()));
    let list = |name: &str| results[name].as_array().unwrap().clone();
    assert_eq!(list("layers").len(), 4);
    let ratio = |layer: u64, tensor: &str| {
        let is_it = |r: &Value| r["layer"] == layer && r["tensor"] == tensor && r["cut"] == "whole";
        list("lossless").into_iter().find(is_it).unwrap()["ratio"].as_f64().unwrap()
    };
    // The reference encoder on the same words: V of layer 0 4.98, K 1.21, V of layer 1 1.29.
    for (layer, tensor, reference) in [(0, "v", 4.98), (0, "k", 1.21), (1, "v", 1.29)] {
        let ours = ratio(layer, tensor);
        assert!(ours > 0.97 * reference && ours < 1.05 * reference, "{layer} {tensor}: {ours}, {reference}");
    }
    for whole in list("whole_cache") {
        let of = |name: &str| whole[name].as_f64().unwrap();
        assert!(of("joint") < of("reference_product") && of("joint") > of("lossy_only"), "{whole}");
    }
}

/// A dump of 400 tokens, of which as many are protected as one token in 3 leaves.
#[test]
fn ratios_without_an_effect_are_findings() {
    let folder = Folder::new("idle");
    for name in ["l0_k", "l0_v", "l1_k", "l1_v"] {
        fs::write(folder.0.join(format!("{name}_h2_t400_d4.f16")), 1_u16.to_le_bytes().repeat(2 * 400 * 4)).unwrap();
    }
    let keys = ["kv_h2o_layer_start=1", "kv_h2o_sink_tokens=32", "kv_h2o_recent_tokens=256", "kv_h2o_sinks=1"];
    let set = keys.map(|key| ["--set", key]).concat();
    let words = ["--json", folder.0.to_str().unwrap(), "--ratios", "1.1,3", "--block-tokens", "32"];
    let done = run(&[&words[..], &set].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let results: Value = serde_json::from_slice(&done.stdout).unwrap();
    let reasons: Vec<&str> =
        results["findings"].as_array().unwrap().iter().map(|f| f["reason"].as_str().unwrap()).collect();
    assert!(reasons.contains(&"unknown_key") && reasons.contains(&"floor"), "{results:#}");
}

#[test]
fn a_file_is_replaced_on_request_only_and_a_mistake_names_its_place() {
    let folder = Folder::new("kept");
    let output = folder.0.join("results.json");
    fs::write(&output, "mine").unwrap();
    let (path, dumps) = (output.to_str().unwrap(), dumps());
    let failed = run(&[&dumps, "--output", path]);
    assert_eq!((failed.status.code(), fs::read_to_string(&output).unwrap().as_str()), (Some(3), "mine"));
    assert!(text(&failed.stderr).contains("--overwrite"));

    for (words, code, part) in [
        (&["--set", "kv_h2o_sink_tokens=many"][..], 3, "kv_h2o_sink_tokens"),
        (&["--ratios", "0.5"], 2, "1 to 1000000"),
        (&["--reference", "--output", "new.json", "--run", "x"], 2, "cannot be used with '--run <NAME>'"),
        (&["--run", "x"], 3, "the runs are kv"),
        (&["--config", "/dev/zero"], 3, "no regular file"),
        (&["--config", "/no/such/file"], 3, "/no/such/file"),
    ] {
        let failed = run(&[&[dumps.as_str()][..], words].concat());
        let error = text(&failed.stderr);
        assert!(failed.status.code() == Some(code) && error.contains(part), "{words:?}: {error}");
    }
    let word = format!("{dumps}/l0_k_h2_t1088_d64.f16");
    let before = fs::read(&word).unwrap();
    for reference in [&[][..], &["--reference"]] {
        let failed = run(&[&[dumps.as_str(), "--overwrite", "--output", word.as_str()], reference].concat());
        assert!(failed.status.code() == Some(3) && text(&failed.stderr).contains("is a file of the dump"));
        assert!(fs::read(&word).unwrap() == before);
    }
    let config = folder.0.join("config.json");
    fs::write(&config, "{}").unwrap();
    let config = config.to_str().unwrap();
    let failed = run(&[&dumps, "--config", config, "--overwrite", "--output", config]);
    assert!(failed.status.code() == Some(3) && text(&failed.stderr).contains("config.json is an input"));
    let failed = run(&["/no/such/dump"]);
    assert!(failed.status.code() == Some(3) && text(&failed.stderr).contains("/no/such/dump"));
}

#[test]
fn a_run_counts_once_in_two_types() {
    let folder = Folder::new("odd");
    let words = |count: usize, bytes: usize| (0..count * bytes).map(|i| (i * 7 % 61) as u8).collect::<Vec<u8>>();
    let chat = folder.0.join("chat");
    fs::create_dir(&chat).unwrap();
    for (layer, dtype, bytes) in [(0, "f16", 2), (1, "f16", 2), (0, "f32", 4)] {
        for tensor in ["k", "v"] {
            fs::write(chat.join(format!("l{layer}_{tensor}_h1_t40_d3.{dtype}")), words(120, bytes)).unwrap();
        }
    }
    let output = folder.0.join("results.json");
    let done = run(&[folder.0.to_str().unwrap(), "--output", output.to_str().unwrap()]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let results: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    let layers = results["layers"].as_array().unwrap();
    assert!(layers.len() == 2 && layers.iter().all(|layer| layer["dtype"] == "F16"), "{layers:?}");
    let reasons: Vec<&str> =
        results["findings"].as_array().unwrap().iter().map(|finding| finding["reason"].as_str().unwrap()).collect();
    for reason in ["twin", "short"] {
        assert!(reasons.contains(&reason), "{reason}: {reasons:?}");
    }
}
