//! summary.json and summary.md over all cases, in the reference's schema.

use super::toml::Entry;
use super::verdict::{Fact, Verdict, fixed};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// A judged case.
pub struct Case {
    /// Its name, and the paths of a suite.
    pub entry: Entry,
    pub mode: String,
    pub verdict: Verdict,
    /// The case as Markdown.
    pub page: String,
    /// The report of an llm_demo case.
    pub report: Option<Value>,
}

impl Case {
    pub fn passed(&self) -> bool {
        self.entry.return_code == 0 && self.verdict.passed()
    }

    fn failure(&self) -> String {
        let failed = self.verdict.gates.iter().filter(|gate| gate.enabled && !gate.pass);
        let mut causes: Vec<String> = failed.map(|gate| format!("{}: {}", gate.key, gate.reason)).collect();
        if self.entry.return_code != 0 {
            causes.insert(0, format!("return code {}", self.entry.return_code));
        }
        causes.join("; ")
    }

    /// A figure of the verdict. Where the reference prints none, it writes 0 or nothing.
    fn fact(&self, key: &str, otherwise: &Value, faithful: bool) -> Value {
        self.verdict.fact(key).map_or_else(|| otherwise.clone(), |fact| fact.json(faithful))
    }

    fn row(&self, faithful: bool) -> Value {
        let mut row = Map::new();
        let mut add = |key: &str, value: Value| {
            row.insert(key.to_owned(), value);
        };
        add("suite", json!(self.verdict.suite));
        add("case", json!(self.entry.name));
        add("mode", json!(self.mode));
        add("return_code", json!(self.entry.return_code));
        if self.verdict.suite == "runtime" {
            add("summary_exists", json!(true));
            add("quality_gate_found", json!(true));
        }
        add("failure_reason", json!(self.failure()));
        add("overall_pass", json!(self.passed()));
        add("summary", json!(self.entry.summary));
        let (zero, no, none) = (json!(0.0), json!(false), json!(""));
        let keys: &[(&str, &Value)] = if self.verdict.suite == "runtime" {
            add("console_log", json!(self.entry.console_log));
            &[
                ("quality_status", &none),
                ("lossy_best", &zero),
                ("lossless_selected_value", &zero),
                ("decode_aggregation", &none),
                ("decode_gate_tps", &zero),
                ("decode_best", &zero),
                ("decode_baseline", &zero),
                ("decode_drop_ratio", &zero),
                ("decode_drop_target", &zero),
                ("runtime_decomp_best_us", &zero),
                ("runtime_async_wait_best_us", &zero),
                ("runtime_async_wait_headroom_us", &zero),
                ("runtime_async_wait_headroom_ratio", &zero),
                ("runtime_async_wait_headroom_warn", &no),
                ("runtime_queue_peak_best", &zero),
                ("runtime_fallback_best", &zero),
                ("runtime_backpressure_skip_best", &zero),
                ("runtime_decode_cache_hit_best", &zero),
                ("runtime_decode_cache_miss_best", &zero),
                ("kv_content_consistency_pass", &no),
                ("kv_invalid_log_count", &zero),
            ]
        } else {
            add("report_json", json!(self.entry.report_json));
            add("console_log", json!(self.entry.console_log));
            &[
                ("baseline_decode_tps_avg", &zero),
                ("candidate_decode_tps_avg", &zero),
                ("decode_drop_ratio", &zero),
                ("decode_drop_target", &zero),
                ("candidate_lossy_ratio_avg", &zero),
                ("candidate_lossless_ratio_avg", &zero),
                ("candidate_runtime_total_ratio_avg", &zero),
                ("runtime_decomp_best_us", &zero),
                ("decode_cache_hit_best", &zero),
                ("decode_pass", &no),
                ("run_order", &none),
            ]
        };
        // The reference reads runtime figures from its rounded text, and those of llm_demo from JSON.
        let rounded = faithful && self.verdict.suite == "runtime";
        keys.iter().for_each(|(key, otherwise)| add(key, self.fact(key, otherwise, rounded)));
        Value::Object(row)
    }
}

fn count(cases: &[Case], suite: &str) -> usize {
    cases.iter().filter(|case| case.verdict.suite == suite).count()
}

/// Rows of runtime and llm_demo cases in the reference's schema; all cases with gates and figures as `mnnkv`.
pub fn object(cases: &[Case], faithful: bool) -> Value {
    let of_reference = |case: &&Case| ["runtime", "llm_demo"].contains(&case.verdict.suite);
    let rows: Vec<Value> = cases.iter().filter(of_reference).map(|case| case.row(faithful)).collect();
    let ours = cases.iter().map(|case| {
        let mut object = case.verdict.json();
        object["case"] = json!(case.entry.name);
        object["overall_pass"] = json!(case.passed());
        if let Some(report) = &case.report {
            object["report"] = report.clone();
        }
        object
    });
    json!({
        "generated_at": now(),
        "overall_pass": cases.iter().all(Case::passed),
        "total_cases": cases.len(),
        "runtime_cases": count(cases, "runtime"),
        "llm_demo_cases": count(cases, "llm_demo"),
        "rows": rows,
        "mnnkv": { "version": env!("CARGO_PKG_VERSION"), "faithful": faithful, "cases": ours.collect::<Vec<_>>() },
    })
}

/// The summary of several cases as Markdown. `summary_json` is the name of summary.json.
pub fn markdown(cases: &[Case], summary_json: Option<&str>) -> String {
    let mut page = format!(
        "# H2O final Summary\n\n- overall_pass: {}\n- total_cases: {}\n- runtime_cases: {}\n- llm_demo_cases: {}\n",
        cases.iter().all(Case::passed),
        cases.len(),
        count(cases, "runtime"),
        count(cases, "llm_demo"),
    );
    for (title, suite) in [("Runtime", "runtime"), ("llm_demo", "llm_demo"), ("Evaluate", "evaluate")] {
        let of_suite: Vec<&Case> = cases.iter().filter(|case| case.verdict.suite == suite).collect();
        if of_suite.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {title}\n\n");
        for (i, case) in of_suite.iter().enumerate() {
            let _ = writeln!(page, "{}. {}", i + 1, one_line(case));
        }
    }
    if let Some(file) = summary_json {
        let _ = write!(page, "\n- summary_json: `{file}`\n");
    }
    page
}

/// The figures of a runtime case on one line.
const RUNTIME_LINE: &str = ", decode={decode_gate_tps}/{decode_baseline}({decode_aggregation}), \
    drop={decode_drop_ratio}/{decode_drop_target}, lossy={lossy_best}, lossless={lossless_selected_value}, \
    decomp_us={runtime_decomp_best_us}, async_wait_us={runtime_async_wait_best_us}, \
    async_wait_headroom={runtime_async_wait_headroom_ratio}, queue={runtime_queue_peak_best}, \
    fallback={runtime_fallback_best}, cache_hit={runtime_decode_cache_hit_best}, \
    cache_miss={runtime_decode_cache_miss_best}, kv_consistency={kv_content_consistency_pass}, \
    kv_invalid_logs={kv_invalid_log_count}";
/// Those of an llm_demo case.
const DEMO_LINE: &str = ", decode={baseline_decode_tps_avg}->{candidate_decode_tps_avg}, \
    drop={decode_drop_ratio}/{decode_drop_target}, lossy={candidate_lossy_ratio_avg}, \
    lossless={candidate_lossless_ratio_avg}, total={candidate_runtime_total_ratio_avg}, \
    decomp_us={runtime_decomp_best_us}, cache_hit={decode_cache_hit_best}, run_order={run_order}";

fn one_line(case: &Case) -> String {
    let Case { entry, mode, verdict, .. } = case;
    let line = match verdict.suite {
        "runtime" => RUNTIME_LINE,
        "llm_demo" => DEMO_LINE,
        _ => return format!("case={}, pass={}", entry.name, case.passed()),
    };
    // A figure that the case lacks is 0 in the reference.
    let figure = |key: &str| match (key, verdict.fact(key)) {
        ("runtime_async_wait_headroom_ratio", Some(Fact::Number(number, _))) => fixed(*number, 4),
        (_, Some(fact)) => fact.text(),
        ("decode_drop_ratio" | "decode_drop_target", None) => "0.000000".into(),
        (_, None) => "0.0000".into(),
    };
    // Every second part is a key.
    let parts = line.split(['{', '}']).enumerate();
    let figures: String = parts.map(|(i, part)| if i % 2 == 1 { figure(part) } else { part.into() }).collect();
    let head = format!("case={}, mode={mode}, pass={}, rc={}", entry.name, case.passed(), entry.return_code);
    format!("{head}{figures}, summary=`{}`", entry.summary)
}

/// The time as `2026-11-22T01:01:05`, UTC.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (day, time) = (seconds / 86400, seconds % 86400);
    // Years begin in March, so that the leap day is the last; eras have 400 years.
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year + 400 * era) } else { (month - 9, year + 400 * era + 1) };
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}", time / 3600, time / 60 % 60, time % 60)
}
