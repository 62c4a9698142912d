//! `mnnkv evaluate --reference` against results of the reference system's own script.

mod common;
#[path = "../../replay/tests/support/make.rs"]
mod make;
#[path = "../../replay/tests/support/recipes.rs"]
mod recipes;

use common::Folder;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

impl Folder {
    /// Writes the files of an edge case, and returns the folder of the dump.
    fn edge_case(&self, inputs: &Value, case: &str) -> PathBuf {
        let root = self.0.join(case);
        if root.exists() {
            return root;
        }
        for (name, content) in inputs[case].as_object().unwrap() {
            let bytes = match content["text"].as_str() {
                Some(text) => text.as_bytes().to_vec(),
                None => unhex(content["hex"].as_str().unwrap()),
            };
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), bytes).unwrap();
        }
        root
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// Exit code, standard error, and the result if there is one.
struct Outcome {
    code: i32,
    errors: String,
    result: Option<Map<String, Value>>,
}

impl Outcome {
    fn reasons(&self) -> Vec<&str> {
        let mended = self.result.as_ref().and_then(|result| result.get("mended")).and_then(Value::as_array);
        mended.into_iter().flatten().map(|finding| finding["reason"].as_str().unwrap()).collect()
    }
}

fn evaluate(dump: &Path, options: &[&str]) -> Outcome {
    let output = dump.with_extension("result.json");
    let _ = fs::remove_file(&output);
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnnkv"));
    command.current_dir(dump.parent().unwrap()).args(["evaluate", "--reference"]).arg(dump.file_name().unwrap());
    let run = command.args(options).arg("--output").arg(&output).output().unwrap();
    let errors = String::from_utf8(run.stderr).unwrap();
    let result = fs::read(&output).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap());
    let code = run.status.code().unwrap();
    assert_eq!(code == 0, result.is_some(), "{options:?}: {errors}");
    Outcome { code, errors, result }
}

fn options(line: &Value) -> Vec<&str> {
    line["options"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// Compares the keys that the golden data has.
#[track_caller]
fn assert_has(outcome: &Outcome, expected: &Value, what: &str) {
    let result = outcome.result.as_ref().unwrap_or_else(|| panic!("{what}: {}", outcome.errors));
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(result.get(key), Some(value), "{what}: {key}");
    }
}

#[test]
fn results_on_real_dumps_are_those_of_the_reference_to_the_byte() {
    let recipes: Value = serde_json::from_slice(&fs::read(recipes::golden("recipes.json")).unwrap()).unwrap();
    let folder = Folder::new("offline");
    let mut skipped = BTreeMap::new();
    let mut run = 0;
    for line in recipes::lines("offline.jsonl") {
        let name = line["dump"].as_str().unwrap();
        let layers: Vec<u64> =
            line["expected"]["selected_layers"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let dump = folder.0.join(format!("{name}-{layers:?}"));
        if !dump.exists()
            && let Err(missing) = make::make(&recipes[name], &layers, &dump)
        {
            *skipped.entry(missing).or_insert(0) += 1;
            let _ = fs::remove_dir_all(&dump);
            continue;
        }
        run += 1;
        let what = format!("{name} {}", line["name"]);
        let faithful = evaluate(&dump, &[&options(&line)[..], &["--faithful"]].concat());
        assert_has(&faithful, &line["expected"], &what);
        assert_eq!(faithful.result.as_ref().unwrap().len(), line["expected"].as_object().unwrap().len() + 1, "{what}");
        let mended = evaluate(&dump, &options(&line));
        assert_has(&mended, &line["expected"], &what);
        // Without any run_id both texts are one run, which is told.
        let reasons: &[&str] = if name == "ab_no_run_id" { &["no_run_id"] } else { &[] };
        assert_eq!(mended.reasons(), reasons, "{what}");
    }
    assert!(run >= 40, "{run} results");
    println!("{run} results compared; set MNNKV_KV to the folder of all KV data for these: {skipped:?}");
}

#[test]
fn faithful_results_on_broken_dumps_are_those_of_the_reference() {
    let inputs: Value = serde_json::from_slice(&fs::read(recipes::golden("edge_inputs.json")).unwrap()).unwrap();
    let folder = Folder::new("faithful");
    folder.edge_case(&inputs, "outside_target");
    for line in recipes::lines("edge.jsonl") {
        let dump = folder.edge_case(&inputs, line["case"].as_str().unwrap());
        let outcome = evaluate(&dump, &[&options(&line)[..], &["--faithful"]].concat());
        let what = format!("{} {}", line["case"], line["options"]);
        assert_eq!(outcome.code, line["exit"].as_i64().unwrap() as i32, "{what}: {}", outcome.errors);
        match line.get("expected") {
            Some(expected) => assert_has(&outcome, expected, &what),
            None => assert_eq!(outcome.errors.trim_end(), line["message"], "{what}"),
        }
        assert!(outcome.reasons().is_empty(), "{what}");
    }
}

/// Whether a row of the result has the values of `golden`, up to the order in which entropies were summed.
fn matches(row: &Value, golden: &Value) -> bool {
    golden.as_object().unwrap().iter().all(|(key, value)| match (value.as_f64(), row[key].as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * a.abs(),
        _ => row[key] == *value,
    })
}

#[test]
fn entropies_and_ratios_of_layers_and_heads_are_those_of_the_reference() {
    let recipes: Value = serde_json::from_slice(&fs::read(recipes::golden("recipes.json")).unwrap()).unwrap();
    let folder = Folder::new("layers");
    for line in recipes::lines("layers.jsonl") {
        let name = line["dump"].as_str().unwrap();
        let dump = folder.0.join(name);
        let whole = make::make(&recipes[name], &[0, 1, 2, 3, 4, 5], &dump).is_ok();
        if !whole && make::make(&recipes[name], &[0, 1, 2, 3], &dump).is_err() {
            println!("{name} needs the folder of all KV data, MNNKV_KV");
            continue;
        }
        let result = Value::from(evaluate(&dump, &["--per-layer"]).result.unwrap());
        for kind in ["layers", "heads"] {
            let rows = result[kind].as_array().unwrap();
            let golden = line[kind].as_array().unwrap().iter();
            for row in golden.filter(|row| whole || row["layer_id"].as_u64() < Some(4)) {
                assert!(rows.iter().any(|ours| matches(ours, row)), "{name} {kind}: {row}");
            }
        }
        let lines = line["summary"].as_array().unwrap().iter().filter_map(Value::as_str);
        for (text, ratio) in lines.filter(|_| whole).filter_map(|text| text.split_once(" ratio: ")) {
            let words: Vec<String> = text.split(&[' ', '+', '-'][..]).map(str::to_lowercase).collect();
            let key = words.join("_").trim_start_matches('_').to_owned() + "_ratio";
            assert_eq!(format!("{:.3}", result["summary"][&key].as_f64().unwrap()), ratio, "{name}: {key}");
        }
    }
}

/// The finding that a case must give, and the metas that it takes away.
fn mend(case: &str) -> (&'static str, &'static [&'static str]) {
    match case {
        "fp32" => ("f16_overflow", &[]),
        "fp32_odd_length" => ("wrong_size", &["r/layer_0/meta_t0_4.json"]),
        "gap_overlap" | "order" => ("gap", &[]),
        "long_file" => ("wrong_size", &["r/layer_0/meta_t0_4.json"]),
        "short_file" => ("wrong_size", &["r/layer_0/meta_t4_6.json"]),
        "meta_list" => ("meta_is_no_object", &["r/layer_0/meta_list.json"]),
        "run_ids" => ("no_run_id", &[]),
        "skips" => ("not_an_integer", &["r/layer_0/meta_strlayer.json", "r/layer_0/meta_floatlayer.json"]),
        other => panic!("{other} is not mended"),
    }
}

#[test]
fn mended_results_on_broken_dumps_leave_out_bad_entries_alone_and_say_so() {
    let inputs: Value = serde_json::from_slice(&fs::read(recipes::golden("edge_inputs.json")).unwrap()).unwrap();
    let folder = Folder::new("mended");
    folder.edge_case(&inputs, "outside_target");
    for line in recipes::lines("edge.jsonl") {
        let case = line["case"].as_str().unwrap();
        let dump = folder.edge_case(&inputs, case);
        let outcome = evaluate(&dump, &options(&line));
        let what = format!("{case} {}", line["options"]);
        if line.get("mend").is_none() {
            assert!(outcome.reasons().is_empty(), "{what}");
            match line.get("expected") {
                Some(expected) => assert_has(&outcome, expected, &what),
                None => assert_eq!(outcome.errors.trim_end(), line["message"], "{what}"),
            }
            continue;
        }
        let none_left = case == "all_fail" || case == "outside" || what.contains("\"decode\"") && outcome.code != 0;
        if none_left {
            assert_eq!(outcome.code, 1, "{what}");
            let named = ["nothing could be compressed", "No entries selected after filtering"];
            assert!(named.iter().any(|text| outcome.errors.starts_with(text)), "{what}: {}", outcome.errors);
            continue;
        }
        if let Some(mended) = line.get("mended") {
            assert_has(&outcome, mended, &what);
        }
        let (reason, bad) = mend(case);
        // The f32 entries of a strict run are skipped for their type.
        if !(what.contains("--strict-fp16") && case.starts_with("fp32")) {
            // A run of one stage has gaps anyway.
            let silent = matches!(case, "gap_overlap" | "order") && what.contains("\"decode\"");
            assert_eq!(outcome.reasons().contains(&reason), !silent, "{what}: {:?}", outcome.reasons());
        }
        // Without the bad entries, the reference gives the same sizes.
        let rest = folder.0.join(format!("{case}-rest"));
        if !rest.exists() {
            folder.edge_case(&inputs, case);
            fs::rename(&dump, &rest).unwrap();
            bad.iter().for_each(|name| fs::remove_file(rest.join(name)).unwrap());
            folder.edge_case(&inputs, case);
        }
        if case == "run_ids" {
            continue;
        }
        let faithful = evaluate(&rest, &[&options(&line)[..], &["--faithful"]].concat());
        for key in ["raw_bytes", "compressed_bytes", "k_chunk_meta_bytes", "online_chunks", "k_hi_mode_counts"] {
            let value = |outcome: &Outcome| outcome.result.as_ref().unwrap()[key].clone();
            assert_eq!(value(&outcome), value(&faithful), "{what}: {key}");
        }
    }
}
