//! `mnnkv gate` as a process: here on golden results of the reference's scripts.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod ours;

use common::Folder;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

impl Folder {
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
        let pairs = items.iter().map(|line| line.strip_prefix("- ")?.split_once(": ")).collect::<Option<Vec<_>>>();
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
        let same = golden["gate"]["overall_pass"] == json!(result["overall_pass"].to_string());
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
