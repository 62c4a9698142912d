//! Results of ours: metrics of sessions, the bench patch, evaluate, perplexity; threshold files.

use super::Folder;
use serde_json::{Value, json};
use std::fs;

/// Lossless ratios of the front and of the deep layers of a real chat, by the reference's evaluator.
const FRONT: f64 = 1.3853995555726883;
const DEEP: f64 = 1.1816259723703377;

/// Metrics of a session: of six layers two are compressed, the others evict and are compressed.
pub fn metrics(host_wait: f64) -> Value {
    let layer = |layer: u32| {
        let (kept, ratio) = if layer < 2 { (3114, FRONT) } else { (1000, DEEP) };
        json!({ "layer": layer, "h2o_logical_tokens": 3114, "h2o_physical_tokens": kept, "h2o_lossless_ratio": ratio })
    };
    json!({
        "h2o_lossy_ratio": 3.114, "h2o_lossless_ratio": FRONT, "h2o_lossless_decompress_us": 10.0 * host_wait,
        "h2o_lossless_fallback_count": 0, "h2o_lossless_queue_depth_peak": 3, "h2o_host_wait_us_p95": host_wait,
        "layers": (0..6).map(layer).collect::<Vec<_>>(),
    })
}

#[test]
fn the_metrics_of_a_run_decide_and_old_dumps_do_not() {
    let folder = Folder::new("metrics");
    folder.write("alone.json", &metrics(100.0).to_string());
    folder.write("config.json", &json!({ "llm_model": "x", "kv_metrics": metrics(200.0) }).to_string());
    folder.write("runs.jsonl", &format!("{}\n\n{}\n", metrics(50.0), metrics(300.0)));
    folder.write("old.json", r#"{"weighted_lossless_ratio": 1.1, "entry_mode": "chunked_grouped"}"#);
    let all = ["alone.json", "config.json", "runs.jsonl", "old.json", "--suite", "full", "--require-runtime-decomp"];
    let more =
        ["--max-host-wait-p95-us", "299", "--max-lossless-async-wait-us=-1", "--require-kv-content-consistency=false"];
    let result = folder.json(1, &[&all[..], &more].concat());
    let case = &result["mnnkv"]["cases"][0];
    let failed: Vec<&Value> = case["gates"].as_array().unwrap().iter().filter(|gate| gate["pass"] == false).collect();
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert_eq!((&failed[0]["gate"], &failed[0]["value"]), (&json!("host_wait_p95_pass"), &json!(300.0)));
    assert_eq!(failed[0]["reason"], "runs.jsonl:3 is above the limit");
    // By hand: 1 / (2/6 / 1.3854 + 4/6 / (3.114 * 1.1816)).
    let joint = case["figures"]["joint_whole_cache"].as_f64().unwrap();
    assert!((joint - 2.37).abs() < 0.005, "{joint}");
    assert_eq!(case["figures"]["store_decomp_us"], 3000.0);
    let product = case["figures"]["reference_product"].as_f64().unwrap();
    assert!((product - 4.31).abs() < 0.005, "{product}");
}

#[test]
fn a_figure_that_was_not_measured_passes_no_gate() {
    let folder = Folder::new("unmeasured");
    folder
        .write("metrics.json", r#"{"kv_metrics": {"h2o_lossy_ratio": 3.5, "h2o_lossless_ratio": null, "layers": []}}"#);
    let result = folder.json(1, &["metrics.json", "--max-lossless-fallback", "0"]);
    let reason = result["rows"][0]["failure_reason"].as_str().unwrap();
    assert!(reason.contains("lossless_online_pass: metrics.json:kv_metrics, h2o_lossless: not measured"), "{reason}");
    assert!(
        reason.contains("runtime_fallback_pass: metrics.json:kv_metrics, h2o_lossless_fallback: not measured"),
        "{reason}"
    );
    folder.json(0, &["metrics.json", "--lossless-target=-1"]);
    folder.json(0, &["metrics.json", "--suite", "baseline"]);
}

#[test]
fn columns_of_our_bench_patch_are_read_and_a_baseline_has_the_same_aggregation() {
    let folder = Folder::new("bench");
    let bench = |speeds: [&str; 2], ratios: &str| {
        let row = |speed: &str| format!("| m | CPU | 4 | pp512+tg64 | 50.0 ± 1.0<br>{speed} ± 0.1 | {ratios} |\n");
        let heading = "| model | backend | threads | test | speed(tok/s) | h2o_lossy_ratio | h2o_lossless_ratio |\n";
        format!("{heading}| :-- | --: | --: | --: | --: | --: | --: |\n{}log\n{}", row(speeds[0]), row(speeds[1]))
    };
    folder.write("candidate.log", &bench(["9.0", "9.4"], "3.2 | 1.4"));
    folder.write("baseline.log", &bench(["9.0", "10.0"], "- | -"));
    let words = ["candidate.log", "--baseline-results", "baseline.log"];
    let row = |result: &Value| result["rows"][0].clone();
    let mended = row(&folder.json(0, &words));
    assert_eq!((&mended["decode_baseline"], &mended["decode_gate_tps"]), (&json!(9.5), &json!(9.2)));
    let faithful = row(&folder.json(1, &[&words[..], &["--faithful"]].concat()));
    assert_eq!(faithful["decode_baseline"], 10.0);
    folder.write("baseline.log", &bench(["9.0", "nan"], "- | -"));
    assert!(folder.error(3, &words).contains("no baseline: baseline.log:5, decode speed: \"nan"), "{words:?}");
}

#[test]
fn results_of_evaluate_are_judged_by_their_best_setting() {
    let folder = Folder::new("evaluate");
    let whole = |run: &str, ratio: f64, lossy: f64, joint: f64| {
        json!({ "run": run, "cut": "blocks", "target_ratio": ratio, "block_tokens": 64,
                "front_layers": 2, "front_lossless": 1.4,
                "deep_lossy": lossy, "deep_lossless": 1.0, "lossless_only": 1.1, "lossy_only": 2.0, "joint": joint,
                "reference_product": 1.4 * lossy })
    };
    let mut results = json!({ "format": "mnnkv-evaluate", "version": 2, "program": "0.1.0", "dumps": "d", "complete": true,
        "settings": {}, "layers": [], "findings": [], "lossless": [],
        "whole_cache": [whole("a", 2.0, 2.0, 1.8), whole("a", 3.5, 3.4, 2.4), whole("b", 3.5, 3.1, 2.3)] });
    // No session reaches it.
    results["whole_cache"].as_array_mut().unwrap().push(whole("a", 9.0, 9.0, 9.0));
    results["whole_cache"][3]["cut"] = "whole".into();
    folder.write("evaluate.json", &results.to_string());
    let result = folder.json(0, &["evaluate.json", "--joint-target", "2.2"]);
    let figures = &result["mnnkv"]["cases"][0]["figures"];
    assert_eq!(
        (&figures["setting"], &figures["joint_whole_cache"]),
        (&json!("evaluate.json: blocks, target ratio 3.5, eviction blocks of 64"), &json!(2.3))
    );
    folder.json(1, &["evaluate.json", "--lossy-target", "3.2"]);
    folder.write("evaluate.json", &results.to_string().replace("\"version\":2", "\"version\":1"));
    assert!(folder.error(3, &["evaluate.json"]).contains("evaluate.json: version is 1; 2 expected"));
}

pub fn perplexity(mean: f64, text: &str) -> Value {
    json!({ "format": "mnnkv-ppl", "version": 1, "model": "m", "text": text, "tokens": 1024, "scored_tokens": 1023,
            "mean_log_likelihood": mean, "perplexity": (-mean).exp(), "config": {},
            "kv_metrics": { "h2o_total_evict_tokens": 512 } })
}

#[test]
fn perplexity_is_compared_on_equal_texts_only() {
    let folder = Folder::new("ppl");
    let words = ["--ppl", "a.json", "b.json"];
    folder.write("a.json", &perplexity(-2.0, "wiki").to_string());
    folder.write("b.json", &perplexity(-2.04, "wiki").to_string());
    // e^0.04 - 1 = 0.0408
    let result = folder.json(0, &words);
    let increase = result["mnnkv"]["cases"][0]["figures"]["perplexity_increase"].as_f64().unwrap();
    assert!((increase - 0.040810774).abs() < 1e-8, "{increase}");
    assert_eq!(result["mnnkv"]["cases"][0]["warnings"], json!([]));
    folder.json(1, &[&words[..], &["--max-ppl-increase", "0.04"]].concat());
    let mut wrong = perplexity(-2.04, "wiki");
    wrong["perplexity"] = json!(7.7);
    folder.write("b.json", &wrong.to_string());
    assert!(folder.error(3, &words).contains("b.json.perplexity is 7.7; exp(-mean_log_likelihood), which is 7.69"));
    folder.write("b.json", &perplexity(-2.04, "other").to_string());
    assert!(folder.error(3, &words).contains("a.json and b.json cannot be compared: text is \"wiki\" and \"other\""));
}

#[test]
fn flags_win_over_files_and_files_over_presets() {
    let folder = Folder::new("toml");
    folder.write("m.json", &metrics(1.0).to_string());
    let target = |words: &[&str]| {
        let words = [&["m.json", "--lossless-target=-1"], words].concat();
        let result: Value = serde_json::from_slice(&folder.gate(&words).stdout).unwrap();
        result["mnnkv"]["cases"][0]["gates"][0]["target"].clone()
    };
    folder.write("t.toml", "suite = \"baseline\"\n");
    assert_eq!([target(&[]), target(&["--thresholds", "t.toml"])], [json!(3.0), json!(1.0)]);
    folder.write("t.toml", "lossy_target = 2\nsuite = \"baseline\"\n");
    assert_eq!(target(&["--thresholds", "t.toml"]), 2.0);
    assert_eq!(target(&["--thresholds", "t.toml", "--lossy-target", "4"]), 4.0);
    for (text, error) in [
        ("# x\nlossy_targets = 2\n", "t.toml:2: lossy_targets is not a key"),
        ("lossy_target = \"2\"\n", "t.toml:1: lossy_target is string; a number expected"),
        ("\n\nrequire_runtime_decomp = 1\n", "t.toml:3: require_runtime_decomp is integer; true or false expected"),
        ("lossy_target = nan\n", "t.toml:1: lossy_target: \"nan\" is not a finite number"),
        ("a = [\n", "t.toml:1: "),
    ] {
        folder.write("t.toml", text);
        let found = folder.error(3, &["m.json", "--thresholds", "t.toml"]);
        assert!(found.contains(error), "{found}");
    }
}

#[test]
fn nothing_to_judge_is_2_and_no_input_is_3() {
    let folder = Folder::new("nothing");
    folder.write("empty/run.log", "no table\n");
    assert!(folder.error(2, &["empty"]).contains("nothing to judge"));
    assert!(folder.error(2, &["empty", "--lossy-target", "x"]).contains("not a finite number"));
    assert!(folder.error(3, &["absent"]).contains("cannot open absent"));
    folder.write("notes.txt", "hello\n");
    assert!(folder.error(3, &["notes.txt"]).contains("notes.txt: no results"));
}

/// A table of llm_bench with one row.
fn bench(heads: &str, cells: &str) -> String {
    let rule = "| --- ".repeat(heads.matches('|').count() + 4) + "|";
    format!("| model | speed(tok/s) | h2o_lossy | {heads} |\n{rule}\n| m | 50.00<br>6.57 | 3.2 | {cells} |\n")
}

#[test]
fn what_a_row_does_not_have_passes_no_gate() {
    let folder = Folder::new("gate-rows");
    let heads = "h2o_lossless | h2o_lossless_decomp_us | h2o_lossless_fallback";
    folder.write("good.log", &bench(heads, "1.4 | 900 | 0"));
    let words = ["--max-lossless-decomp-us", "1000", "--max-lossless-fallback", "0"];
    folder.json(0, &[&["good.log"], &words[..]].concat());
    for (name, table, reason) in [
        ("dash.log", bench(heads, "1.4 | - | 0"), "dash.log:3, h2o_lossless_decomp_us: not measured"),
        ("negative.log", bench(heads, "1.4 | -100 | 0"), "\"-100\" is below 0; a measurement is at least 0"),
        ("absent.log", bench("h2o_lossless", "1.4"), "absent.log:3, h2o_lossless_decomp_us: not measured"),
    ] {
        folder.write(name, &table);
        let result = folder.json(1, &[&["good.log", name], &words[..]].concat());
        let gates = result["mnnkv"]["cases"][0]["gates"].as_array().unwrap();
        let gate = gates.iter().find(|gate| gate["gate"] == "runtime_decomp_budget_pass").unwrap();
        assert!(gate["pass"] == false && gate["reason"].as_str().unwrap().contains(reason), "{name}: {gate}");
    }
    folder.write("twice.log", &bench("h2o_lossless | h2o_lossless", "1.1 | 9"));
    assert!(folder.error(3, &["twice.log"]).contains("twice.log:1: the heading has h2o_lossless twice"));
}

#[test]
fn an_input_is_never_replaced() {
    let folder = Folder::new("gate-inputs");
    let table = bench("h2o_lossless", "1.4");
    folder.write("in.md", &table);
    fs::create_dir(folder.0.join("results")).unwrap();
    folder.write("results/run.md", &table);
    folder.write("suite.toml", "[[case]]\nname = \"a\"\nresults = [\"results\"]\nsummary = \"results/run.md\"\n");
    for words in [
        &["in.md", "--markdown", "./in.md"][..],
        &["results", "--markdown", "results/run.md"],
        &["in.md", "--baseline-results", "results", "--markdown", "results/run.md"],
        &["--manifest", "suite.toml"],
    ] {
        let output = folder.gate(words);
        let error = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.code() == Some(3) && error.contains("is an input"), "{words:?}: {error}");
    }
    assert_eq!((folder.read("in.md"), folder.read("results/run.md")), (table.clone(), table));
    // Reports of former calls are no inputs.
    for _ in 0..2 {
        folder.json(0, &["results", "--summary", "results/summary.json", "--markdown", "results/summary.md"]);
    }
}
