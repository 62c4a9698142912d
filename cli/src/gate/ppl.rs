//! `--ppl`: perplexity of a candidate against a baseline.

use super::metrics::shown;
use super::table::Thresholds;
use super::verdict::{Fact, Gate, Verdict};
use crate::input;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Relative difference between a perplexity and `exp(-mean_log_likelihood)`, at most.
const TOLERANCE: f64 = 1e-6;

/// The result of a perplexity run, format `mnnkv-ppl` version 1.
#[derive(Deserialize)]
struct Perplexity {
    #[serde(skip)]
    file: String,
    #[serde(default)]
    model: String,
    text: String,
    tokens: f64,
    scored_tokens: f64,
    /// Members that the bench patch writes beside these; absent in files of other programs.
    #[serde(default)]
    prompt_tokens: Value,
    #[serde(default)]
    tokens_fnv1a: Value,
    mean_log_likelihood: f64,
    perplexity: f64,
    kv_metrics: Option<Map<String, Value>>,
}

fn read(path: &Path) -> Result<Perplexity, String> {
    let file = input::name(path);
    let object: Value = serde_json::from_str(&input::text(path)?).map_err(|e| format!("{file}: not JSON: {e}"))?;
    for (key, expected) in [("format", json!("mnnkv-ppl")), ("version", json!(1))] {
        if object.get(key) != Some(&expected) {
            let found = object.get(key).map_or("absent".into(), shown);
            return Err(format!("{file}.{key} is {found}; {expected} expected"));
        }
    }
    let read: Perplexity = input::typed(&object).map_err(|e| format!("{file}: {e}"))?;
    let Perplexity { perplexity, tokens, scored_tokens, .. } = read;
    let expected = (-read.mean_log_likelihood).exp();
    // NaN must not pass.
    if !((perplexity - expected).abs() <= TOLERANCE * expected && perplexity >= 1.0) {
        return Err(format!(
            "{file}.perplexity is {perplexity}; exp(-mean_log_likelihood), which is {expected}, and at least 1 expected"
        ));
    }
    if [tokens, scored_tokens].iter().any(|n| *n < 1.0 || n.fract() != 0.0) || scored_tokens > tokens {
        return Err(format!(
            "{file}: tokens is {tokens} and scored_tokens {scored_tokens}; 1 or more, and not more scored, expected"
        ));
    }
    Ok(Perplexity { file, ..read })
}

/// Compares two files.
pub fn judge(paths: [&Path; 2], limits: &Thresholds) -> Result<Verdict, String> {
    let [baseline, candidate] = [read(paths[0])?, read(paths[1])?];
    let pair = format!("{} and {}", baseline.file, candidate.file);
    let compared = |of: &Perplexity| {
        [
            ("text", json!(of.text)),
            ("tokens", json!(of.tokens)),
            ("scored_tokens", json!(of.scored_tokens)),
            ("prompt_tokens", of.prompt_tokens.clone()),
            ("tokens_fnv1a", of.tokens_fnv1a.clone()),
        ]
    };
    for ((what, a), (_, b)) in compared(&baseline).iter().zip(compared(&candidate)) {
        if *a != b {
            return Err(format!("{pair} cannot be compared: {what} is {} and {}", shown(a), shown(&b)));
        }
    }
    let target = limits.number("max-ppl-increase");
    let increase = (candidate.perplexity - baseline.perplexity) / baseline.perplexity;
    let pass = target < 0.0 || increase <= target;
    let figures = format!("{:.4} against {:.4}", candidate.perplexity, baseline.perplexity);
    let reason = if pass { figures } else { format!("{}: {figures}", candidate.file) };
    let mut verdict = Verdict { suite: "perplexity", ..Verdict::default() };
    verdict.gates.push(Gate {
        key: "perplexity_pass".into(),
        flag: "max-ppl-increase".into(),
        value: Some(increase),
        target: (target >= 0.0).then_some(target),
        enabled: target >= 0.0,
        pass,
        reason,
    });
    if baseline.model != candidate.model {
        verdict.warnings.push(format!("{pair}: models {:?} and {:?} differ", baseline.model, candidate.model));
    }
    let evicted = candidate.kv_metrics.as_ref().map(|m| m.get("h2o_total_evict_tokens").and_then(Value::as_f64));
    match evicted {
        None => verdict
            .warnings
            .push(format!("{}: no kv_metrics, so the file does not show that tokens were evicted", candidate.file)),
        Some(evicted) if evicted.is_none_or(|tokens| tokens <= 0.0) => {
            verdict
                .warnings
                .push(format!("{}: no token was evicted, so its perplexity shows nothing of eviction", candidate.file));
        }
        Some(_) => {}
    }
    verdict.facts = [
        ("baseline_perplexity", Fact::Number(Some(baseline.perplexity), 6)),
        ("candidate_perplexity", Fact::Number(Some(candidate.perplexity), 6)),
        ("perplexity_increase", Fact::Number(Some(increase), 6)),
        ("scored_tokens", Fact::Number(Some(candidate.scored_tokens), 0)),
    ]
    .map(|(key, fact)| (key.to_owned(), fact))
    .into();
    verdict.figures = [
        ("baseline_perplexity", json!(baseline.perplexity)),
        ("candidate_perplexity", json!(candidate.perplexity)),
        ("perplexity_increase", json!(increase)),
        ("model", json!(candidate.model)),
        ("tokens", json!(candidate.tokens)),
        ("scored_tokens", json!(candidate.scored_tokens)),
        ("evicted_tokens", json!(evicted.flatten())),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into_iter()
    .collect();
    Ok(verdict)
}
