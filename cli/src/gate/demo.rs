//! llm_demo cases: real prompts, baseline against candidate.

use super::cells::{Column, Place, Row};
use super::metrics::{self, shown};
use super::table::Thresholds;
use super::verdict::{Fact, Gate, Verdict, best, mean};
use crate::input;
use crate::results::distinct;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

type Object = Map<String, Value>;

/// A run of both sides, or the figures of a report that was made before.
pub struct Demo {
    pub place: Place,
    source: Source,
    run_order: String,
}

enum Source {
    Runs([Vec<Run>; 2]),
    Report(Box<Figures>),
}

/// One prompt.
struct Run {
    prompt: String,
    bucket: String,
    /// A reason, if the run failed.
    failure: Option<String>,
    decode_tps: f64,
    row: Row,
}

const SIDES: [&str; 2] = ["baseline", "candidate"];

/// Baseline, then candidate.
#[derive(Default)]
struct Figures {
    sides: [Side; 2],
    buckets: Vec<(String, [Side; 2])>,
    decomp_best: f64,
    cache_hit_best: f64,
}

/// Means over the runs of a side, or over its runs of one bucket.
#[derive(Default)]
struct Side {
    runs: usize,
    decode_tps: f64,
    keep: Option<f64>,
    lossy: Option<f64>,
    lossless: Option<f64>,
    total: Option<f64>,
    failures: Vec<String>,
}

/// Runs of both sides as JSON.
#[derive(Deserialize)]
struct Runs {
    baseline: Entries,
    candidate: Entries,
}

#[derive(Deserialize)]
struct Entries {
    runs: Vec<Entry>,
}

/// A run as JSON.
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

/// Reads an object with runs of baseline and candidate, or a report. `None` if it is neither.
pub fn read(object: &Object, place: &Place) -> Result<Option<Demo>, String> {
    let run_order = |o: &Object| o.get("run_order").and_then(Value::as_str).map(str::to_owned);
    let of_report = object.get("report").and_then(Value::as_object).and_then(run_order);
    let run_order = of_report.or_else(|| run_order(object)).unwrap_or_else(|| "baseline_first".into());
    let source = if SIDES.iter().all(|side| object.get(*side).is_some_and(|side| side.get("runs").is_some())) {
        let Runs { baseline, candidate } = input::typed(object).map_err(|e| format!("{place}: {e}"))?;
        Source::Runs([baseline.read("baseline", place)?, candidate.read("candidate", place)?])
    } else if object.contains_key("bucket_report") || object.contains_key("candidate_decode_tps_avg") {
        Source::Report(Box::new(report_figures(object, place)?))
    } else {
        return Ok(None);
    };
    Ok(Some(Demo { place: place.clone(), source, run_order }))
}

impl Entries {
    fn read(self, side: &str, place: &Place) -> Result<Vec<Run>, String> {
        let at = |i: usize| format!("{}.{side}.runs[{i}]", place.at).trim_matches('.').into();
        let run = |(i, entry): (usize, Entry)| entry.read(Place { file: place.file.clone(), at: at(i) });
        self.runs.into_iter().enumerate().map(run).collect()
    }
}

impl Entry {
    fn read(self, place: Place) -> Result<Run, String> {
        let metrics = self.metrics.unwrap_or_default();
        let code = self.effective_return_code.or(self.return_code).unwrap_or(0.0);
        let reason = self.reason.filter(|reason| reason != "ok");
        let failure = match (code == 0.0, metrics.is_empty()) {
            (true, false) => None,
            (true, true) => Some(reason.unwrap_or_else(|| "no metrics".into())),
            (false, _) => Some(reason.unwrap_or_else(|| format!("exit code {code}"))),
        };
        let decode_tps = metrics::decode_speed(&metrics, &place)?.or(self.decode_tps).unwrap_or(0.0);
        let bucket = self.bucket.unwrap_or_else(|| bucket_of(&self.prompt));
        Ok(Run { bucket, failure, decode_tps, row: metrics::row(&metrics, &metrics, place)?, prompt: self.prompt })
    }
}

/// `128` of `prompt_128_1.txt`.
fn bucket_of(prompt: &str) -> String {
    prompt.split('_').nth(1).unwrap_or("other").to_owned()
}

fn side<'a>(runs: impl Iterator<Item = &'a Run>, faithful: bool) -> Side {
    let runs: Vec<&Run> = runs.collect();
    // The reference counts a failed run as a ratio of 0.
    let ratios = |of: &dyn Fn(&Row) -> Option<f64>| match faithful {
        true => mean(&runs.iter().map(|run| of(&run.row).unwrap_or(0.0)).collect::<Vec<_>>()),
        false => {
            mean(&runs.iter().filter(|run| run.failure.is_none()).filter_map(|run| of(&run.row)).collect::<Vec<_>>())
        }
    };
    let speeds: Vec<f64> = runs.iter().map(|run| run.decode_tps).filter(|tps| *tps > 0.0).collect();
    let failures =
        runs.iter().filter_map(|run| run.failure.as_ref().map(|f| format!("{}: {}: {f}", run.row.place, run.prompt)));
    Side {
        runs: runs.len(),
        decode_tps: mean(&speeds).unwrap_or(0.0),
        keep: ratios(&|row| row.number(Column::Keep)),
        lossy: ratios(&|row| row.number(Column::Lossy)),
        lossless: ratios(&|row| row.number(Column::Lossless)),
        total: ratios(&|row| Some(row.number(Column::Lossy)? * row.number(Column::Lossless)?)),
        failures: failures.collect(),
    }
}

fn figures(runs: &[Vec<Run>; 2], faithful: bool) -> Figures {
    let names = distinct(runs.iter().flatten().map(|run| run.bucket.as_str()));
    let of = |name: Option<&str>| {
        [0, 1].map(|s: usize| side(runs[s].iter().filter(|run| name.is_none_or(|name| run.bucket == name)), faithful))
    };
    let candidate = |column| best(runs[1].iter().filter_map(|run| run.row.number(column))).unwrap_or(0.0);
    Figures {
        sides: of(None),
        buckets: names.into_iter().map(|name| (name.to_owned(), of(Some(name)))).collect(),
        decomp_best: candidate(Column::Decomp),
        cache_hit_best: candidate(Column::CacheHit),
    }
}

fn report_figures(object: &Object, place: &Place) -> Result<Figures, String> {
    let needed = |o: &Object, key: &str, place: &Place| {
        metrics::number(o, key, place)?.ok_or_else(|| format!("{place}.{key} is absent"))
    };
    let mut figures = Figures {
        decomp_best: needed(object, "runtime_decomp_best_us", place)?,
        cache_hit_best: needed(object, "decode_cache_hit_best", place)?,
        ..Figures::default()
    };
    for (name, side) in SIDES.iter().zip(&mut figures.sides) {
        let ratio = |key: &str| metrics::number(object, &format!("{name}_{key}_ratio_avg"), place);
        side.decode_tps = needed(object, &format!("{name}_decode_tps_avg"), place)?;
        (side.keep, side.lossy) = (ratio("keep")?, ratio("lossy")?);
        (side.lossless, side.total) = (ratio("lossless")?, ratio("runtime_total")?);
        let key = format!("{name}_overall_pass");
        match object.get(&key) {
            Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => side.failures.push(format!("{place}.{key} is false")),
            other => {
                return Err(format!(
                    "{place}.{key} is {}; true or false expected",
                    other.map_or("absent".into(), shown)
                ));
            }
        }
    }
    let buckets = match object.get("bucket_report") {
        None => return Ok(figures),
        Some(Value::Object(buckets)) => buckets,
        Some(other) => return Err(format!("{place}.bucket_report is {}; an object expected", shown(other))),
    };
    for (bucket, value) in buckets {
        let place = Place {
            file: place.file.clone(),
            at: format!("{}.bucket_report.{bucket}", place.at).trim_matches('.').into(),
        };
        let Some(object) = value.as_object() else {
            return Err(format!("{place} is {}; an object expected", shown(value)));
        };
        let mut sides: [Side; 2] = Default::default();
        for (name, side) in SIDES.iter().zip(&mut sides) {
            side.runs = needed(object, &format!("{name}_runs"), &place)? as usize;
            side.decode_tps = needed(object, &format!("{name}_decode_tps_avg"), &place)?;
            side.lossy = metrics::number(object, &format!("{name}_lossy_ratio_avg"), &place)?;
            side.total = metrics::number(object, &format!("{name}_runtime_total_ratio_avg"), &place)?;
        }
        figures.buckets.push((bucket.clone(), sides));
    }
    Ok(figures)
}

/// The drop of a speed; `None` without a baseline.
fn drop(sides: &[Side; 2]) -> Option<f64> {
    let [baseline, candidate] = sides;
    (baseline.decode_tps > 0.0).then(|| (baseline.decode_tps - candidate.decode_tps) / baseline.decode_tps)
}

impl Demo {
    /// The gates, and the report in the reference's schema.
    pub fn judge(&self, limits: &Thresholds, faithful: bool) -> (Verdict, Value) {
        let made;
        let figures = match &self.source {
            Source::Runs(runs) => {
                made = figures(runs, faithful);
                &made
            }
            Source::Report(figures) => figures,
        };
        let target = limits.number("llm-demo-decode-drop-target");
        let need = |what: &str| limits.switch(&format!("llm-demo-require-{what}"));
        let [baseline, candidate] = &figures.sides;
        let mut gates = Vec::new();
        let place = &self.place;
        let mut gate =
            |key, flag, value: Option<f64>, target: Option<f64>, enabled: bool, pass: bool, cause: String| {
                let reason = if pass || !enabled { String::new() } else { format!("{place}: {cause}") };
                let (key, flag) = (Cow::Borrowed(key), Cow::Borrowed(flag));
                gates.push(Gate { key, flag, value, target, enabled, pass, reason });
                pass
            };

        let overall = drop(&figures.sides);
        let decode_pass = overall.map_or(!need("baseline-decode"), |drop| drop <= target);
        let cause = match overall {
            None => "the baseline has no decode speed".into(),
            Some(_) => format!("{:.4} tokens/s against {:.4}", candidate.decode_tps, baseline.decode_tps),
        };
        gate("llm_demo_decode_pass", "llm-demo-decode-drop-target", overall, Some(target), true, decode_pass, cause);

        let slow = |sides: &[Side; 2]| drop(sides).is_none_or(|drop| drop > target);
        let unequal = |sides: &[Side; 2]| sides[0].runs != sides[1].runs;
        let names = |of: &dyn Fn(&[Side; 2]) -> bool| -> Vec<&str> {
            figures.buckets.iter().filter(|(_, sides)| of(sides)).map(|(name, _)| name.as_str()).collect()
        };
        let (slow, unequal) = (names(&slow), names(&unequal));
        let buckets_pass = slow.is_empty() && unequal.is_empty();
        let mut causes = Vec::new();
        if !slow.is_empty() {
            causes.push(format!("slower than the target, or without a baseline: {}", slow.join(", ")));
        }
        if !unequal.is_empty() {
            causes.push(format!("unequal numbers of runs: {}", unequal.join(", ")));
        }
        let worst = best(figures.buckets.iter().filter_map(|(_, sides)| drop(sides)));
        let required = need("bucket-decode-pass");
        let flag = "llm-demo-require-bucket-decode-pass";
        gate("bucket_gate_pass", flag, worst, Some(target), required, buckets_pass, causes.join("; "));

        let active = |what: &str, best: f64| !need(what) || best > 0.0;
        let decomp_pass = active("runtime-decomp", figures.decomp_best);
        let hit_pass = active("decode-cache-hit", figures.cache_hit_best);
        let flags = ["llm-demo-require-runtime-decomp", "llm-demo-require-decode-cache-hit"];
        for (key, flag, best, pass, cause) in [
            ("runtime_decomp_pass", flags[0], figures.decomp_best, decomp_pass, "nothing was decoded"),
            ("decode_cache_hit_pass", flags[1], figures.cache_hit_best, hit_pass, "no block was decoded before"),
        ] {
            gate(key, flag, Some(best), None, limits.switch(flag), pass, cause.into());
        }
        for (key, side) in [("baseline_overall_pass", baseline), ("candidate_overall_pass", candidate)] {
            gate(key, "", None, None, true, side.failures.is_empty(), side.failures.join("; "));
        }
        let mut warnings = Vec::new();
        for (key, flag, usual, value) in [
            ("llm_demo_lossy_pass", "llm-demo-lossy-target", "lossy-target", candidate.lossy),
            ("llm_demo_lossless_pass", "llm-demo-lossless-target", "lossless-target", candidate.lossless),
        ] {
            let (target, usual_target) = (limits.number(flag), limits.number(usual));
            let cause = if value.is_some() { "the mean is below the target" } else { "not measured" };
            let (on, pass) = (target >= 0.0, target < 0.0 || value.is_some_and(|value| value >= target));
            gate(key, flag, value, Some(target).filter(|_| on), on, pass, cause.into());
            if !faithful && target < 0.0 && value.is_some_and(|value| value < usual_target) {
                let mean = value.unwrap_or_default();
                warnings
                    .push(format!("{place}: the mean {mean:.4} is below --{usual} {usual_target}; --{flag} judges it"));
            }
        }

        let mut verdict = Verdict { suite: "llm_demo", gates, warnings, ..Verdict::default() };
        let report = json!({
            "overall_pass": verdict.passed(),
            "baseline_decode_tps_avg": baseline.decode_tps, "candidate_decode_tps_avg": candidate.decode_tps,
            "decode_drop_ratio": overall.unwrap_or(0.0), "decode_drop_target": target,
            "decode_gate_enabled": overall.is_some(), "decode_pass": decode_pass,
            "decode_skip_reason": if overall.is_some() { "" } else { "baseline_decode_tps_avg<=0" },
            "baseline_keep_ratio_avg": baseline.keep, "baseline_lossy_ratio_avg": baseline.lossy,
            "baseline_lossless_ratio_avg": baseline.lossless, "baseline_runtime_total_ratio_avg": baseline.total,
            "candidate_keep_ratio_avg": candidate.keep, "candidate_lossy_ratio_avg": candidate.lossy,
            "candidate_lossless_ratio_avg": candidate.lossless, "candidate_runtime_total_ratio_avg": candidate.total,
            "require_runtime_decomp": need("runtime-decomp"), "runtime_decomp_best_us": figures.decomp_best,
            "runtime_decomp_pass": decomp_pass,
            "require_decode_cache_hit": need("decode-cache-hit"), "decode_cache_hit_best": figures.cache_hit_best,
            "decode_cache_hit_pass": hit_pass,
            "require_baseline_decode": need("baseline-decode"), "require_bucket_decode_pass": required,
            "run_order": self.run_order, "bucket_gate_pass": buckets_pass, "bucket_decode_pass": slow.is_empty(),
            "bucket_sample_alignment_pass": unequal.is_empty(), "bucket_decode_failures": slow,
            "bucket_alignment_failures": unequal, "bucket_report": buckets(&figures.buckets, target),
            "baseline_overall_pass": baseline.failures.is_empty(), "candidate_overall_pass": candidate.failures.is_empty(),
        });
        let number = |n: Option<f64>, decimals| Fact::Number(n, decimals);
        verdict.facts = [
            ("baseline_decode_tps_avg", number(Some(baseline.decode_tps), 4)),
            ("candidate_decode_tps_avg", number(Some(candidate.decode_tps), 4)),
            ("decode_drop_ratio", number(Some(overall.unwrap_or(0.0)), 6)),
            ("decode_drop_target", number(Some(target), 6)),
            ("candidate_lossy_ratio_avg", number(candidate.lossy, 4)),
            ("candidate_lossless_ratio_avg", number(candidate.lossless, 4)),
            ("candidate_runtime_total_ratio_avg", number(candidate.total, 4)),
            ("runtime_decomp_best_us", number(Some(figures.decomp_best), 4)),
            ("decode_cache_hit_best", number(Some(figures.cache_hit_best), 4)),
            ("decode_pass", Fact::Flag(decode_pass)),
            ("run_order", Fact::Text(self.run_order.clone())),
        ]
        .map(|(key, fact)| (key.to_owned(), fact))
        .into();
        (verdict, report)
    }
}

fn buckets(buckets: &[(String, [Side; 2])], target: f64) -> Value {
    let report = |sides: &[Side; 2]| {
        let [baseline, candidate] = sides;
        let drop = drop(sides);
        json!({
            "baseline_runs": baseline.runs, "candidate_runs": candidate.runs, "sample_aligned": baseline.runs == candidate.runs,
            "baseline_decode_tps_avg": baseline.decode_tps, "candidate_decode_tps_avg": candidate.decode_tps,
            // 1 without a baseline, as the reference has it.
            "decode_drop_ratio": drop.unwrap_or(1.0), "decode_gate_enabled": true,
            "decode_pass": drop.is_some_and(|drop| drop <= target),
            "baseline_lossy_ratio_avg": baseline.lossy, "candidate_lossy_ratio_avg": candidate.lossy,
            "baseline_runtime_total_ratio_avg": baseline.total, "candidate_runtime_total_ratio_avg": candidate.total,
        })
    };
    buckets.iter().map(|(name, sides)| (name.clone(), report(sides))).collect::<Map<_, _>>().into()
}
