//! `mnnkv gate` as a process, on the golden results of the reference's scripts and on results of ours.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mnnkv-gate-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn gate(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_mnnkv"))
            .current_dir(&self.0)
            .args(["--json", "gate"])
            .args(words)
            .output()
            .unwrap()
    }

    /// The JSON of a call with exit code `code`.
    #[track_caller]
    fn json(&self, code: i32, words: &[&str]) -> Value {
        let output = self.gate(words);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{words:?}: {e}: {text}"))
    }

    /// The error of a call with exit code `code`, which must write no file.
    #[track_caller]
    fn error(&self, code: i32, words: &[&str]) -> String {
        let outputs = ["--summary", "unwanted.json", "--markdown", "unwanted.md"];
        let error = self.json(code, &[words, &outputs].concat())["error"].as_str().unwrap().to_owned();
        assert!(!self.0.join("unwanted.json").exists() && !self.0.join("unwanted.md").exists());
        error
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn testdata(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/gate").join(name)).unwrap()
}

fn lines(name: &str) -> Vec<Value> {
    testdata(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|v| v.as_str().unwrap().to_owned()).collect()
}

/// A table of llm_bench behind one line of a log.
fn table(columns: &[String], rows: &[Map<String, Value>]) -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = String::from("prepare for tuning\n") + &line(columns.iter().map(String::as_str).collect());
    text += &line(columns.iter().map(|_| "---:").collect());
    for row in rows {
        text += &line(columns.iter().map(|name| row.get(name).map_or("", |cell| cell.as_str().unwrap())).collect());
    }
    text
}

/// One scenario of gates.jsonl in a folder, and its flags.
struct Scenario {
    folder: Folder,
    words: Vec<String>,
    golden: Value,
}

fn scenarios(test: &str) -> Vec<Scenario> {
    let mut lines = lines("gates.jsonl");
    let usual = lines.remove(0);
    lines.into_iter().map(|golden| scenario(test, &usual, golden)).collect()
}

fn scenario(test: &str, usual: &Value, mut golden: Value) -> Scenario {
    let folder = Folder::new(&format!("{test}-{}", golden["name"].as_str().unwrap()));
    let columns = strings(golden.get("columns").unwrap_or(&usual["columns"]));
    let base = usual["base_row"].as_object().unwrap();
    let rows: Vec<_> = golden["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|changes| {
            let mut row = base.clone();
            row.extend(changes.as_object().unwrap().clone());
            row
        })
        .collect();
    folder.write("logs/run_0001.log", &table(&columns, &rows));
    let mut words = vec!["logs".to_owned()];
    for (name, text) in golden["logs"].as_object().into_iter().flatten() {
        folder.write(name, text.as_str().unwrap());
        if !name.starts_with("logs/") {
            words.insert(0, name.clone());
        }
    }
    for which in ["upper", "online"] {
        let offline = golden.get(which).unwrap_or(&usual[which]);
        if !offline.is_null() {
            folder.write(&format!("{which}.json"), &offline.to_string());
            words.extend([format!("--{which}-json"), format!("{which}.json")]);
        }
    }
    match golden.get("args") {
        Some(all) => words.extend(strings(all)),
        None => words.extend([strings(&usual["args"]), strings(&golden["more_args"])].concat()),
    }
    if golden.get("gate").is_some() {
        let mut gate = usual["gate"].as_object().unwrap().clone();
        strings(&golden["no_gate"]).iter().for_each(|key| drop(gate.remove(key)));
        gate.extend(golden["gate"].as_object().unwrap().clone());
        golden["gate"] = gate.into();
    }
    Scenario { folder, words, golden }
}

impl Scenario {
    fn run(&self, more: &[&str]) -> Value {
        let words: Vec<&str> = self.words.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let output = self.folder.gate(&words);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {output:?}"))
    }
}

/// Sections of a page: title, and items as key and text, or whole lines.
fn sections(page: &str) -> Map<String, Value> {
    let mut all = Map::new();
    for section in page.split("# ").skip(1) {
        let (title, body) = section.split_once('\n').unwrap();
        let items: Vec<&str> = body.lines().filter(|line| !matches!(line.trim(), "" | "#")).collect();
        let pairs =
            items.iter().map(|line| Some(line.strip_prefix("- ")?.split_once(": ")?)).collect::<Option<Vec<_>>>();
        let value = match pairs {
            Some(pairs) => {
                pairs.into_iter().map(|(key, text)| (key.to_owned(), json!(text))).collect::<Map<_, _>>().into()
            }
            None => json!(items),
        };
        all.insert(title.to_owned(), value);
    }
    all
}

#[test]
fn a_faithful_verdict_is_the_one_of_the_reference_to_the_byte() {
    let scenarios = scenarios("faithful");
    assert_eq!(scenarios.len(), 59);
    for scenario in scenarios {
        let (golden, name) = (&scenario.golden, &scenario.golden["name"]);
        let result = scenario.run(&["--faithful", "--markdown", "summary.md"]);
        if let Some(message) = golden.get("message") {
            assert!(result["error"].as_str().unwrap().starts_with(message.as_str().unwrap()), "{name}: {result}");
            continue;
        }
        let page = scenario.folder.read("summary.md");
        let mut sections = sections(&page);
        let gate = sections.remove("Quality Gate").unwrap();
        let none = json!([]);
        let printed = golden.get("printed").unwrap_or(&none);
        assert_eq!(&result["mnnkv"]["cases"][0]["warnings"], printed, "{name}");
        assert_eq!(gate, golden["gate"], "{name}");
        assert_eq!(result["overall_pass"].to_string(), golden["gate"]["overall_pass"], "{name}");
        if let Some(summary) = golden.get("summary") {
            assert_eq!(&Value::Object(sections), summary, "{name}");
        }
    }
}

#[test]
fn a_mended_verdict_differs_only_where_the_reference_is_wrong() {
    let differs = [
        ("lossy_best_row_decides", "logs/run_0001.log:4 is below the target; the best row has 3.0000"),
        // The run's own ratio decides, not that of old dumps.
        ("lossless_online_below", ""),
        ("only_upper_below", ""),
        ("no_offline_runtime_average", "logs/run_0001.log:4 is below the target; the best row has 1.5000"),
        // An absent column is not 0.
        ("columns_missing_lenient", "h2o_lossless_async_wait_us is no column of any input"),
        ("cells_odd", "logs/run_0001.log:4, h2o_lossless_fallback: not measured"),
        ("cell_nan_lossy_last", "logs/run_0001.log:5, h2o_lossy: \"nan\" is not a finite number"),
        ("cell_nan_pm_lossy", "logs/run_0001.log:4, h2o_lossy: \"nan ± nan\" is not a finite number"),
        ("cell_inf_lossy", "logs/run_0001.log:4, h2o_lossy: \"inf\" is not a finite number"),
    ];
    for scenario in scenarios("mended") {
        let (golden, name) = (&scenario.golden, scenario.golden["name"].as_str().unwrap());
        if golden.get("gate").is_none() {
            continue;
        }
        let result = scenario.run(&["--markdown", "summary.md"]);
        let same = result["overall_pass"].to_string() == golden["gate"]["overall_pass"];
        let Some((_, reason)) = differs.iter().find(|(other, _)| *other == name) else {
            assert!(same, "{name}: {result:#}");
            continue;
        };
        assert!(!same, "{name}");
        assert!(
            reason.is_empty() || result["rows"][0]["failure_reason"].as_str().unwrap().contains(reason),
            "{name}: {result:#}"
        );
        if name == "cells_odd" {
            let page = scenario.folder.read("summary.md");
            assert!(
                page.contains("- Avg codec us: 0.00\n") && page.contains("- Avg keep ratio: not measured\n"),
                "{page}"
            );
            let warning = result["mnnkv"]["cases"][0]["warnings"].to_string();
            assert!(
                warning.contains("logs/run_0001.log:4, h2o_evict_us") && warning.contains("about 12.5 us"),
                "{warning}"
            );
        }
    }
}

#[test]
fn a_heading_in_the_middle_begins_a_table_and_is_a_row_in_the_reference() {
    let scenario = &scenarios("heading")[0];
    let text = scenario.folder.read("logs/run_0001.log");
    let (log, lines) = text.split_once('\n').unwrap();
    scenario.folder.write("logs/run_0001.log", &format!("{log}\n{lines}{lines}"));
    assert_eq!(scenario.run(&[])["mnnkv"]["cases"][0]["figures"]["rows"], 4);
    assert_eq!(scenario.run(&["--faithful"])["mnnkv"]["cases"][0]["figures"]["rows"], 5);
    let twice: Vec<&str> = vec!["logs", "logs/run_0001.log"];
    assert_eq!(scenario.folder.json(0, &twice)["mnnkv"]["cases"][0]["figures"]["rows"], 4);
    scenario.folder.write("logs/cut.log", lines.trim_end().rsplit_once('|').unwrap().0.rsplit_once('|').unwrap().0);
    assert!(scenario.folder.error(3, &["logs"]).contains("logs/cut.log:4: the row has 23 cells, its heading 24"));
}

/// Options of the reference's llm_demo script as flags.
fn demo_flags(options: &Value) -> Vec<String> {
    let flag = |(name, value): (&String, &Value)| {
        // Options that choose prompts have no effect on the verdict.
        let choosing = name.starts_with("MAX_") || name.starts_with("PROMPT_");
        let flag = name.to_lowercase().replace('_', "-");
        (!choosing).then(|| format!("--llm-demo-{flag}={}", value.as_str().unwrap()))
    };
    options.as_object().unwrap().iter().filter_map(flag).collect()
}

#[test]
fn an_llm_demo_report_is_the_one_of_the_reference_to_the_last_digit() {
    let folder = Folder::new("demo");
    let golden = lines("llm_demo.jsonl");
    assert_eq!(golden.len(), 13);
    for case in golden {
        let runs = json!({ "baseline": case["baseline"], "candidate": case["candidate"] });
        folder.write("runs.json", &runs.to_string());
        folder.write("report.json", &case["report"].to_string());
        let flags = demo_flags(&case["options"]);
        for input in ["runs.json", "report.json"] {
            let mut words = vec![input, "--faithful"];
            words.extend(flags.iter().map(String::as_str));
            let result = folder.json(case["exit"].as_i64().unwrap() as i32, &words);
            assert_eq!(result["mnnkv"]["cases"][0]["report"], case["report"], "{}: {input}", case["name"]);
        }
    }
}

#[test]
fn a_failed_prompt_is_named_and_enters_no_mean_of_ratios() {
    let folder = Folder::new("prompt");
    let case =
        lines("llm_demo.jsonl").into_iter().find(|case| case["name"] == "one_prompt_fails_candidate_only").unwrap();
    folder.write("demo.json", &case.to_string());
    let result = folder.json(1, &["demo.json"]);
    let row = &result["rows"][0];
    assert!(row["failure_reason"].as_str().unwrap().contains("candidate.runs[3]: prompt_128_2.txt: rc_3"), "{row}");
    let lossy: Vec<f64> = case["candidate"]["runs"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|run| run["metrics"]["h2o_lossy_ratio"].as_f64())
        .collect();
    let mean = lossy.iter().sum::<f64>() / lossy.len() as f64;
    assert!((row["candidate_lossy_ratio_avg"].as_f64().unwrap() - mean).abs() < 1e-12, "{row}");
}

/// The suite of suite.json as files and a manifest.
fn suite(folder: &Folder) -> Value {
    let golden: Value = serde_json::from_str(&testdata("suite.json")).unwrap();
    let mut manifest = String::from("baseline_case = \"runtime_baseline\"\nasync_threads = 2\n");
    for (name, case) in golden["cases"].as_object().unwrap() {
        for row in case["metrics.csv"].as_array().unwrap() {
            let mut row = row.as_object().unwrap().clone();
            let log = row.remove("log_file").unwrap();
            let columns: Vec<String> = row.keys().cloned().collect();
            folder.write(log.as_str().unwrap(), &table(&columns, &[row]));
        }
        let preset = name.strip_prefix("runtime_").unwrap();
        manifest += &format!(
            "[[case]]\nname = \"{name}\"\nsuite = \"{preset}\"\nresults = [\"{name}/logs\"]\nsummary = \"{name}/summary.md\"\n\
             console_log = \"{name}.console.log\"\n"
        );
        if preset != "baseline" {
            // The offline results of the suite's dump.
            for (which, file, ratio) in [
                ("upper", "offline_lossless_upper", 1.467042915250577),
                ("online", "offline_lossless_online_grouped", 1.3853995555726883),
            ] {
                let offline =
                    json!({ "weighted_lossless_ratio": ratio, "selected_entries": 514, "selected_layers": [0, 1] });
                folder.write(&format!("{name}/{file}.json"), &offline.to_string());
                manifest += &format!("{which}_json = \"{name}/{file}.json\"\n");
            }
        }
    }
    let pass = lines("llm_demo.jsonl").remove(0);
    for row in golden["summary.json"]["rows"].as_array().unwrap().iter().filter(|row| row["suite"] == "llm_demo") {
        let mut report = pass["report"].clone();
        for (key, value) in row.as_object().unwrap() {
            if report.get(key).is_some() {
                report[key] = value.clone();
            }
        }
        let text = |key: &str| row[key].as_str().unwrap();
        folder.write(text("report_json"), &report.to_string());
        manifest += &format!(
            "[[case]]\nname = \"{}\"\nruntime_mode = \"{}\"\nresults = [\"{}\"]\nsummary = \"{}\"\nreport_json = \"{}\"\nconsole_log = \"{}\"\n",
            text("case"),
            text("mode"),
            text("report_json"),
            text("summary"),
            text("report_json"),
            text("console_log")
        );
    }
    folder.write("suite.toml", &manifest);
    golden
}

#[test]
fn a_suite_gives_the_summaries_of_the_reference() {
    let folder = Folder::new("suite");
    let golden = suite(&folder);
    let words = ["--manifest", "suite.toml", "--faithful", "--summary", "summary.json", "--markdown", "summary.md"];
    let mut summary = folder.json(0, &words);
    assert_eq!(serde_json::from_str::<Value>(&folder.read("summary.json")).unwrap(), summary);
    summary.as_object_mut().unwrap().remove("mnnkv").unwrap();
    let time = summary["generated_at"].take();
    assert_eq!(time.as_str().unwrap().len(), "2026-11-22T01:01:05".len());
    let mut expected = golden["summary.json"].clone();
    expected["generated_at"].take();
    assert_eq!(summary, expected);
    let page = folder.read("summary.md");
    let mut lines = strings(&golden["summary.md"]);
    // The cases are in summary.json only.
    lines.retain(|line| !line.contains("cases.jsonl"));
    assert_eq!(page.lines().collect::<Vec<_>>(), lines);
    for (name, case) in golden["cases"].as_object().unwrap() {
        assert_eq!(
            folder.read(&format!("{name}/summary.md")).lines().collect::<Vec<_>>(),
            strings(&case["summary.md"]),
            "{name}"
        );
    }
}

/// Metrics of a session: two front layers that are compressed, four that evict.
fn metrics(host_wait: f64) -> Value {
    let front =
        json!({ "layer": 0, "h2o_logical_tokens": 1088, "h2o_physical_tokens": 1088, "h2o_lossless_ratio": 1.384 });
    let deep = json!({ "layer": 2, "h2o_logical_tokens": 3114, "h2o_physical_tokens": 1000 });
    let scaled = |mut layer: Value| {
        let factor = 3114.0 / layer["h2o_logical_tokens"].as_f64().unwrap();
        for key in ["h2o_logical_tokens", "h2o_physical_tokens"] {
            layer[key] = json!(layer[key].as_f64().unwrap() * factor);
        }
        layer
    };
    let layers: Vec<Value> = [front.clone(), front, deep.clone(), deep.clone(), deep.clone(), deep].map(scaled).into();
    json!({
        "h2o_lossy_ratio": 3.114, "h2o_lossless_ratio": 1.384, "h2o_lossless_decompress_us": 588.5,
        "h2o_lossless_fallback_count": 0, "h2o_lossless_queue_depth_peak": 3, "h2o_host_wait_us_p95": host_wait,
        "layers": layers,
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
    // Facts of lm_a: 1 / (2/6 / 1.384 + 4/6 / 3.114) = 2.199.
    let joint = case["figures"]["joint_whole_cache"].as_f64().unwrap();
    assert!((joint - 1.0 / (2.0 / 6.0 / 1.384 + 4.0 / 6.0 / 3.114)).abs() < 1e-12, "{joint}");
    let product = case["figures"]["reference_product"].as_f64().unwrap();
    assert!((product - 3.114 * 1.384).abs() < 1e-12, "{product}");
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
}

#[test]
fn a_rolling_baseline_counts_passed_uncompressed_runs_of_its_key() {
    let folder = Folder::new("history");
    let run = |tps: f64, passed: bool, compressed: bool| {
        json!({ "key": "m|CPU|4", "decode_tps": tps, "passed": passed, "compressed": compressed }).to_string() + "\n"
    };
    let heading = "| model | backend | threads | test | t/s | h2o_lossy | h2o_lossless |\n";
    folder.write(
        "bench.log",
        &format!("{heading}| m | CPU | 4 | pp512 | 50 | 1 | 1 |\n| m | CPU | 4 | tg64 | 10.0 | 1 | 1 |\n"),
    );
    let words = [
        "bench.log",
        "--suite",
        "baseline",
        "--decode-baseline-source",
        "rolling",
        "--history",
        "h.jsonl",
        "--history-append",
    ];
    let words = [&words[..], &["--decode-drop-target", "0.1"]].concat();
    let wrong =
        [run(99.0, false, false), run(99.0, true, true), run(99.0, true, false).replace("CPU", "CUDA")].concat();
    folder.write("h.jsonl", &[wrong.clone(), run(10.0, true, false), run(11.0, true, false)].concat());
    let first = folder.json(0, &words);
    assert!(first["mnnkv"]["cases"][0]["warnings"][0].as_str().unwrap().contains("too few runs"), "{first:#}");
    let second = folder.json(0, &words);
    assert_eq!(second["rows"][0]["decode_baseline"], 10.0);
    assert_eq!(folder.read("h.jsonl").lines().count(), 7);
    // 9 older runs, of which 8 count: half of them at 8 and half at 20 tokens a second.
    let runs: Vec<String> =
        [50.0, 8.0, 8.0, 8.0, 8.0, 20.0, 20.0, 20.0, 20.0].iter().map(|tps| run(*tps, true, false)).collect();
    folder.write("h.jsonl", &runs.concat());
    let slow = folder.json(1, &words);
    assert_eq!(slow["rows"][0]["decode_baseline"], 14.0);
    assert_eq!(folder.read("h.jsonl").lines().count(), 9, "a failed run was added");
}

#[test]
fn results_of_evaluate_are_judged_by_their_best_setting() {
    let folder = Folder::new("evaluate");
    let whole = |run: &str, ratio: f64, lossy: f64, joint: f64| {
        json!({ "run": run, "lossless": "v2 effort 5", "target_ratio": ratio, "front_layers": 2, "front_lossless": 1.4,
                "deep_lossy": lossy, "deep_lossless": 1.0, "lossless_only": 1.1, "lossy_only": 2.0, "joint": joint,
                "reference_product": 1.4 * lossy })
    };
    let results = json!({ "format": "mnnkv-evaluate", "version": 1, "program": "0.1.0", "dumps": "d", "complete": true,
        "settings": {}, "layers": [], "findings": [], "lossless": [], "eviction": [],
        "whole_cache": [whole("a", 2.0, 2.0, 1.8), whole("a", 3.5, 3.4, 2.4), whole("b", 3.5, 3.1, 2.3)] });
    folder.write("evaluate.json", &results.to_string());
    let result = folder.json(0, &["evaluate.json", "--joint-target", "2.2"]);
    let figures = &result["mnnkv"]["cases"][0]["figures"];
    assert_eq!(
        (&figures["setting"], &figures["joint_whole_cache"]),
        (&json!("evaluate.json: v2 effort 5, target ratio 3.5"), &json!(2.3))
    );
    folder.json(1, &["evaluate.json", "--lossy-target", "3.2"]);
    folder.write("evaluate.json", &results.to_string().replace("\"version\":1", "\"version\":2"));
    assert!(folder.error(3, &["evaluate.json"]).contains("evaluate.json.version is 2; 1 expected"));
}

fn perplexity(mean: f64, text: &str) -> Value {
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
    assert!(folder.error(3, &words).contains("b.json.perplexity is 7.7; exp(-mean_log_likelihood) is 7.69"));
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

/// A generator of random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }
}

fn damaged(random: &mut Random, text: &str) -> Vec<u8> {
    const PIECES: [&str; 14] =
        ["|", "\"", "{", "}", "[", "nan", "-", "1e999", "null", "\n", "=", "\u{0}", "± ", "99999999999999999999"];
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..bytes.len().min(at + 1 + random.below(40)))),
            2 if !bytes.is_empty() => bytes[at] = random.below(256) as u8,
            3 => {
                let piece = bytes[at..bytes.len().min(at + 60)].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].bytes())),
        }
    }
    bytes
}

#[test]
fn a_damaged_input_is_a_verdict_or_an_error_that_names_the_file() {
    let folder = Folder::new("damage");
    let scenario = &scenarios("damage")[0];
    let demo = lines("llm_demo.jsonl").remove(0).to_string();
    let inputs: [(&str, String, &[&str]); 7] = [
        ("bench.log", scenario.folder.read("logs/run_0001.log"), &["bench.log"]),
        ("metrics.json", metrics(3.0).to_string(), &["metrics.json"]),
        ("runs.jsonl", format!("{}\n{}\n", metrics(3.0), metrics(4.0)), &["runs.jsonl"]),
        ("demo.json", demo, &["demo.json"]),
        (
            "t.toml",
            "suite = \"full\"\nlossy_target = 2.5\nruntime_mode = \"store\"\n".into(),
            &["ok.json", "--thresholds", "t.toml"],
        ),
        (
            "s.toml",
            "async_threads = 2\n[[case]]\nname = \"a\"\nresults = [\"ok.json\"]\n".into(),
            &["--manifest", "s.toml"],
        ),
        ("ppl.json", perplexity(-2.0, "wiki").to_string(), &["--ppl", "ppl.json", "ok-ppl.json"]),
    ];
    folder.write("ok.json", &metrics(1.0).to_string());
    folder.write("ok-ppl.json", &perplexity(-2.0, "wiki").to_string());
    let mut errors = 0;
    for seed in 1..=1000 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let (name, text, words) = &inputs[random.below(inputs.len())];
        fs::write(folder.0.join(name), damaged(&mut random, text)).unwrap();
        let output = folder.gate(&[words, &["--summary", "out.json", "--markdown", "out.md"][..]].concat());
        let code = output.status.code().unwrap_or(-1);
        let object: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("seed {seed}, {name}: {e}: {output:?}"));
        let error = object["error"].as_str().unwrap_or_default();
        assert!((0..=3).contains(&code) && !error.contains("a bug"), "seed {seed}, {name}: {code}: {object}");
        let written = [folder.0.join("out.json"), folder.0.join("out.md")].map(|path| fs::remove_file(path).is_ok());
        assert_eq!(written, [code < 2; 2], "seed {seed}, {name}: {code}: {object}");
        assert!(code != 3 || error.contains(name) || error.contains("cannot open"), "seed {seed}, {name}: {error}");
        errors += usize::from(code == 3);
    }
    assert!(errors > 300, "{errors} of 1000 calls failed");
}
