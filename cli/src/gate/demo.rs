//! llm_demo cases: real prompts, baseline against candidate.

use super::cells::{Column, Place, Row};
use super::metrics::{self, number, shown};
use super::table::Thresholds;
use super::verdict::{Fact, Gate, Verdict, best, mean};
use crate::input;
use crate::results::distinct;
use serde::Deserialize;
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

const SIDES: [&str; 2] = ["baseline", "candidate"];
/// Ratios of a side, by their names in reports.
const RATIOS: [&str; 4] = ["keep", "lossy", "lossless", "runtime_total"];

/// The figures of runs, or of a report that was made before.
pub struct Demo {
    pub place: Place,
    /// Baseline, then candidate.
    sides: [Side; 2],
    buckets: Vec<(String, [Side; 2])>,
    decomp_best: f64,
    cache_hit_best: f64,
    run_order: String,
}

/// Means over the runs of a side, or over its runs of one bucket.
#[derive(Default)]
struct Side {
    runs: usize,
    decode_tps: f64,
    /// In the order of [`RATIOS`].
    ratios: [Option<f64>; 4],
    failures: Vec<String>,
}

/// One prompt as JSON.
#[derive(Deserialize)]
struct Entry {
    prompt: String,
    bucket: Option<String>,
    effective_return_code: Option<f64>,
    return_code: Option<f64>,
    reason: Option<String>,
    metrics: Option<Object>,
    decode_tps: Option<f64>,
}

/// One prompt.
struct Run {
    bucket: String,
    /// The prompt and a reason, if the run failed.
    failure: Option<String>,
    decode_tps: f64,
    row: Row,
}

/// Reads an object with runs of baseline and candidate, or a report. `None` if it is neither.
pub fn read(object: &Object, place: &Place, faithful: bool) -> Result<Option<Demo>, String> {
    let run_order = |o: &Object| o.get("run_order").and_then(Value::as_str).map(str::to_owned);
    let of_report = object.get("report").and_then(Value::as_object).and_then(run_order);
    let run_order = of_report.or_else(|| run_order(object)).unwrap_or_else(|| "baseline_first".into());
    let runs = SIDES.map(|side| object.get(side).and_then(|side| side.get("runs")));
    let demo = if let [Some(baseline), Some(candidate)] = runs {
        let runs = [entries(baseline, SIDES[0], place)?, entries(candidate, SIDES[1], place)?];
        of_runs(&runs, place, faithful)
    } else if object.contains_key("bucket_report") || object.contains_key("candidate_decode_tps_avg") {
        of_figures(object, place)?
    } else {
        return Ok(None);
    };
    Ok(Some(Demo { run_order, ..demo }))
}

fn entries(runs: &Value, side: &str, place: &Place) -> Result<Vec<Run>, String> {
    let entries: Vec<Entry> = input::typed(runs).map_err(|e| format!("{place}: {side}.runs{e}"))?;
    let run = |(i, entry): (usize, Entry)| {
        let at = format!("{}.{side}.runs[{i}]", place.at).trim_matches('.').into();
        let place = Place { file: place.file.clone(), at };
        let metrics = entry.metrics.unwrap_or_default();
        let code = entry.effective_return_code.or(entry.return_code).unwrap_or(0.0);
        let reason = entry.reason.filter(|reason| reason != "ok");
        let failure = match (code == 0.0, metrics.is_empty()) {
            (true, false) => None,
            (true, true) => Some(reason.unwrap_or_else(|| "no metrics".into())),
            (false, _) => Some(reason.unwrap_or_else(|| format!("exit code {code}"))),
        };
        // 128 of prompt_128_1.txt.
        let bucket = || entry.prompt.split('_').nth(1).unwrap_or("other").to_owned();
        Ok(Run {
            bucket: entry.bucket.unwrap_or_else(bucket),
            failure: failure.map(|failure| format!("{place}: {}: {failure}", entry.prompt)),
            decode_tps: metrics::decode_speed(&metrics, &place)?.or(entry.decode_tps).unwrap_or(0.0),
            row: metrics::row(&metrics, &metrics, place)?,
        })
    };
    entries.into_iter().enumerate().map(run).collect()
}

fn of_runs(runs: &[Vec<Run>; 2], place: &Place, faithful: bool) -> Demo {
    let names = distinct(runs.iter().flatten().map(|run| run.bucket.as_str()));
    let of = |name: Option<&str>| {
        [0, 1].map(|side: usize| {
            let runs = runs[side].iter().filter(|run| name.is_none_or(|name| run.bucket == name));
            let runs: Vec<&Run> = runs.collect();
            // The reference counts a failed run as a ratio of 0.
            let ratio = |of: &dyn Fn(&Row) -> Option<f64>| match faithful {
                true => mean(&runs.iter().map(|run| of(&run.row).unwrap_or(0.0)).collect::<Vec<_>>()),
                false => {
                    let passed = runs.iter().filter(|run| run.failure.is_none());
                    mean(&passed.filter_map(|run| of(&run.row)).collect::<Vec<_>>())
                }
            };
            let speeds: Vec<f64> = runs.iter().map(|run| run.decode_tps).filter(|tps| *tps > 0.0).collect();
            Side {
                runs: runs.len(),
                decode_tps: mean(&speeds).unwrap_or(0.0),
                ratios: [
                    ratio(&|row| row.number(Column::Keep)),
                    ratio(&|row| row.number(Column::Lossy)),
                    ratio(&|row| row.number(Column::Lossless)),
                    ratio(&|row| Some(row.number(Column::Lossy)? * row.number(Column::Lossless)?)),
                ],
                failures: runs.iter().filter_map(|run| run.failure.clone()).collect(),
            }
        })
    };
    let candidate = |column| best(runs[1].iter().filter_map(|run| run.row.number(column))).unwrap_or(0.0);
    Demo {
        place: place.clone(),
        sides: of(None),
        buckets: names.into_iter().map(|name| (name.to_owned(), of(Some(name)))).collect(),
        decomp_best: candidate(Column::Decomp),
        cache_hit_best: candidate(Column::CacheHit),
        run_order: String::new(),
    }
}

fn of_figures(object: &Object, place: &Place) -> Result<Demo, String> {
    let needed =
        |o: &Object, key: &str, place: &Place| number(o, key, place)?.ok_or_else(|| format!("{place}.{key} is absent"));
    let side = |o: &Object, name: &str, place: &Place| {
        let [keep, lossy, lossless, total] = RATIOS.map(|key| number(o, &format!("{name}_{key}_ratio_avg"), place));
        let decode_tps = needed(o, &format!("{name}_decode_tps_avg"), place)?;
        Ok::<_, String>(Side { decode_tps, ratios: [keep?, lossy?, lossless?, total?], ..Side::default() })
    };
    let mut sides = [side(object, SIDES[0], place)?, side(object, SIDES[1], place)?];
    for (name, side) in SIDES.iter().zip(&mut sides) {
        let key = format!("{name}_overall_pass");
        match object.get(&key) {
            Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => side.failures.push(format!("{place}.{key} is false")),
            other => {
                let found = other.map_or("absent".into(), shown);
                return Err(format!("{place}.{key} is {found}; true or false expected"));
            }
        }
    }
    let none = json!({});
    let report = object.get("bucket_report").unwrap_or(&none);
    let report = report.as_object();
    let report = report.ok_or_else(|| format!("{place}.bucket_report is no object; one expected"))?;
    let mut buckets = Vec::new();
    for (bucket, value) in report {
        let at = format!("{}.bucket_report.{bucket}", place.at).trim_matches('.').into();
        let place = Place { file: place.file.clone(), at };
        let object = value.as_object().ok_or_else(|| format!("{place} is {}; an object expected", shown(value)))?;
        let mut sides = [side(object, SIDES[0], &place)?, side(object, SIDES[1], &place)?];
        for (name, side) in SIDES.iter().zip(&mut sides) {
            side.runs = needed(object, &format!("{name}_runs"), &place)? as usize;
        }
        buckets.push((bucket.clone(), sides));
    }
    Ok(Demo {
        place: place.clone(),
        sides,
        buckets,
        decomp_best: needed(object, "runtime_decomp_best_us", place)?,
        cache_hit_best: needed(object, "decode_cache_hit_best", place)?,
        run_order: String::new(),
    })
}

/// The drop of a speed; `None` without a baseline.
fn drop([baseline, candidate]: &[Side; 2]) -> Option<f64> {
    (baseline.decode_tps > 0.0).then(|| (baseline.decode_tps - candidate.decode_tps) / baseline.decode_tps)
}

/// The speeds of both sides, and those of their ratios that the report has, by the reference's names.
fn figures(sides: &[Side; 2], ratios: &[usize]) -> Object {
    let mut object = Object::new();
    for (name, side) in SIDES.iter().zip(sides) {
        object.insert(format!("{name}_decode_tps_avg"), json!(side.decode_tps));
        object.extend(ratios.iter().map(|i| (format!("{name}_{}_ratio_avg", RATIOS[*i]), json!(side.ratios[*i]))));
    }
    object
}

impl Demo {
    /// The gates, and the report in the reference's schema.
    pub fn judge(&self, limits: &Thresholds, faithful: bool) -> (Verdict, Value) {
        let target = limits.number("llm-demo-decode-drop-target");
        let need = |what: &str| limits.switch(&format!("llm-demo-require-{what}"));
        let (Demo { place, sides, .. }, [baseline, candidate]) = (self, &self.sides);
        let mut gates = Vec::new();
        let mut gate =
            |key: &'static str, flag: &'static str, figures: [Option<f64>; 2], on: bool, check: (bool, String)| {
                let ([value, target], (pass, cause)) = (figures, check);
                let reason = if pass || !on { String::new() } else { format!("{place}: {cause}") };
                gates.push(Gate { key: key.into(), flag: flag.into(), value, target, enabled: on, pass, reason });
            };

        let overall = drop(sides);
        let decode_pass = overall.map_or(!need("baseline-decode"), |drop| drop <= target);
        let cause = match overall {
            None => "the baseline has no decode speed".into(),
            Some(_) => format!("{:.4} tokens/s against {:.4}", candidate.decode_tps, baseline.decode_tps),
        };
        let flag = "llm-demo-decode-drop-target";
        // The reference has no way to switch it off.
        let is_on = faithful || target >= 0.0;
        gate("llm_demo_decode_pass", flag, [overall, Some(target)], is_on, (decode_pass, cause));

        let names = |of: &dyn Fn(&[Side; 2]) -> bool| -> Vec<&str> {
            self.buckets.iter().filter(|(_, sides)| of(sides)).map(|(name, _)| name.as_str()).collect()
        };
        let slow = names(&|sides| drop(sides).is_none_or(|drop| drop > target));
        let unequal = names(&|sides| sides[0].runs != sides[1].runs);
        let buckets_pass = slow.is_empty() && unequal.is_empty();
        let (slow_names, unequal_names) = (slow.join(", "), unequal.join(", "));
        let cause =
            format!("slower than the target, or without a baseline: {slow_names}; of unequal runs: {unequal_names}");
        let worst = best(self.buckets.iter().filter_map(|(_, sides)| drop(sides)));
        let required = need("bucket-decode-pass") && is_on;
        let flag = "llm-demo-require-bucket-decode-pass";
        gate("bucket_gate_pass", flag, [worst, Some(target)], required, (buckets_pass, cause));

        let decomp_pass = !need("runtime-decomp") || self.decomp_best > 0.0;
        let hit_pass = !need("decode-cache-hit") || self.cache_hit_best > 0.0;
        let flags = ["llm-demo-require-runtime-decomp", "llm-demo-require-decode-cache-hit"];
        for (key, flag, best, pass, cause) in [
            ("runtime_decomp_pass", flags[0], self.decomp_best, decomp_pass, "nothing was decoded"),
            ("decode_cache_hit_pass", flags[1], self.cache_hit_best, hit_pass, "no block was decoded before"),
        ] {
            gate(key, flag, [Some(best), None], limits.switch(flag), (pass, cause.into()));
        }
        for (key, side) in [("baseline_overall_pass", baseline), ("candidate_overall_pass", candidate)] {
            gate(key, "", [None; 2], true, (side.failures.is_empty(), side.failures.join("; ")));
        }
        let mut warnings = Vec::new();
        let [_, lossy, lossless, total] = candidate.ratios;
        for (key, flag, usual, value) in [
            ("llm_demo_lossy_pass", "llm-demo-lossy-target", "lossy-target", lossy),
            ("llm_demo_lossless_pass", "llm-demo-lossless-target", "lossless-target", lossless),
        ] {
            let (target, usual_target) = (limits.number(flag), limits.number(usual));
            let cause = if value.is_some() { "the mean is below the target" } else { "not measured" };
            let (on, pass) = (target >= 0.0, target < 0.0 || value.is_some_and(|value| value >= target));
            gate(key, flag, [value, Some(target).filter(|_| on)], on, (pass, cause.into()));
            if let Some(mean) = value.filter(|value| !faithful && !on && *value < usual_target) {
                warnings
                    .push(format!("{place}: the mean {mean:.4} is below --{usual} {usual_target}; --{flag} judges it"));
            }
        }

        let mut verdict = Verdict { suite: "llm_demo", gates, warnings, ..Verdict::default() };
        let bucket = |(name, sides): &(String, [Side; 2])| {
            let drop = drop(sides);
            let mut report = figures(sides, &[1, 3]);
            let more = json!({
                "baseline_runs": sides[0].runs, "candidate_runs": sides[1].runs, "sample_aligned": sides[0].runs == sides[1].runs,
                // 1 without a baseline, as the reference has it.
                "decode_drop_ratio": drop.unwrap_or(1.0), "decode_gate_enabled": true,
                "decode_pass": drop.is_some_and(|drop| drop <= target),
            });
            report.extend(more.as_object().cloned().unwrap_or_default());
            (name.clone(), Value::Object(report))
        };
        let mut report = figures(sides, &[0, 1, 2, 3]);
        let more = json!({
            "overall_pass": verdict.passed(), "decode_drop_ratio": overall.unwrap_or(0.0), "decode_drop_target": target,
            "decode_gate_enabled": overall.is_some(), "decode_pass": decode_pass,
            "decode_skip_reason": if overall.is_some() { "" } else { "baseline_decode_tps_avg<=0" },
            "require_runtime_decomp": need("runtime-decomp"), "runtime_decomp_best_us": self.decomp_best,
            "runtime_decomp_pass": decomp_pass,
            "require_decode_cache_hit": need("decode-cache-hit"), "decode_cache_hit_best": self.cache_hit_best,
            "decode_cache_hit_pass": hit_pass,
            "require_baseline_decode": need("baseline-decode"), "require_bucket_decode_pass": required,
            "run_order": self.run_order, "bucket_gate_pass": buckets_pass, "bucket_decode_pass": slow.is_empty(),
            "bucket_sample_alignment_pass": unequal.is_empty(), "bucket_decode_failures": slow,
            "bucket_alignment_failures": unequal, "bucket_report": self.buckets.iter().map(bucket).collect::<Object>(),
            "baseline_overall_pass": baseline.failures.is_empty(), "candidate_overall_pass": candidate.failures.is_empty(),
        });
        report.extend(more.as_object().cloned().unwrap_or_default());
        let number = |n: Option<f64>, decimals| Fact::Number(n, decimals);
        verdict.facts = [
            ("baseline_decode_tps_avg", number(Some(baseline.decode_tps), 4)),
            ("candidate_decode_tps_avg", number(Some(candidate.decode_tps), 4)),
            ("decode_drop_ratio", number(Some(overall.unwrap_or(0.0)), 6)),
            ("decode_drop_target", number(Some(target), 6)),
            ("candidate_lossy_ratio_avg", number(lossy, 4)),
            ("candidate_lossless_ratio_avg", number(lossless, 4)),
            ("candidate_runtime_total_ratio_avg", number(total, 4)),
            ("runtime_decomp_best_us", number(Some(self.decomp_best), 4)),
            ("decode_cache_hit_best", number(Some(self.cache_hit_best), 4)),
            ("decode_pass", Fact::Flag(decode_pass)),
            ("run_order", Fact::Text(self.run_order.clone())),
        ]
        .map(|(key, fact)| (key.to_owned(), fact))
        .into();
        (verdict, Value::Object(report))
    }
}
