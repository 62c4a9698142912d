//! `--ppl`: perplexity of a candidate against a baseline.

use super::cells::Place;
use super::metrics;
use super::read;
use super::table::Thresholds;
use super::verdict::{Fact, Gate, Verdict};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Relative difference between a perplexity and `exp(-mean_log_likelihood)`, at most.
const TOLERANCE: f64 = 1e-6;

/// The result of a perplexity run, format `mnnkv-ppl` version 1.
struct Perplexity {
    file: String,
    model: String,
    text: Value,
    tokens: f64,
    scored_tokens: f64,
    /// Members that the bench patch writes beside these; absent in files of other programs.
    prompt_tokens: Value,
    tokens_hash: Value,
    perplexity: f64,
    metrics: Option<Map<String, Value>>,
}

fn read(path: &Path) -> Result<Perplexity, String> {
    let file = read::name(path);
    let value = read::json(&file, &read::text(path)?)?;
    let place = Place { file: file.clone(), at: String::new() };
    let Some(object) = value.as_object() else { return Err(format!("{file}: not an object")) };
    let shown = |key: &str| object.get(key).map_or("absent".into(), metrics::shown);
    if object.get("format").and_then(Value::as_str) != Some("mnnkv-ppl") {
        return Err(format!("{place}.format is {}; \"mnnkv-ppl\" expected", shown("format")));
    }
    if object.get("version").and_then(Value::as_u64) != Some(1) {
        return Err(format!("{place}.version is {}; 1 expected", shown("version")));
    }
    let number = |key: &str| metrics::number(object, key, &place)?.ok_or_else(|| format!("{place}.{key} is absent"));
    let Some(text) = object.get("text").filter(|text| text.is_string()) else {
        return Err(format!("{place}.text is {}; a string expected", shown("text")));
    };
    let (mean, perplexity) = (number("mean_log_likelihood")?, number("perplexity")?);
    let expected = (-mean).exp();
    // NaN must not pass.
    if !((perplexity - expected).abs() <= TOLERANCE * expected && perplexity >= 1.0) {
        return Err(format!(
            "{place}.perplexity is {perplexity}; exp(-mean_log_likelihood), which is {expected}, and at least 1 expected"
        ));
    }
    let counts = [number("tokens")?, number("scored_tokens")?];
    if counts.iter().any(|n| *n < 1.0 || n.fract() != 0.0) || counts[1] > counts[0] {
        let [tokens, scored] = counts;
        return Err(format!(
            "{place}: tokens is {tokens} and scored_tokens {scored}; 1 or more, and not more scored, expected"
        ));
    }
    Ok(Perplexity {
        file,
        model: object.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
        text: text.clone(),
        tokens: counts[0],
        scored_tokens: counts[1],
        prompt_tokens: object.get("prompt_tokens").cloned().unwrap_or_default(),
        tokens_hash: object.get("tokens_fnv1a").cloned().unwrap_or_default(),
        perplexity,
        metrics: object.get("kv_metrics").and_then(Value::as_object).cloned(),
    })
}

/// Compares two files.
pub fn judge(paths: [&Path; 2], limits: &Thresholds) -> Result<Verdict, String> {
    let [baseline, candidate] = [read(paths[0])?, read(paths[1])?];
    let pair = format!("{} and {}", baseline.file, candidate.file);
    for (what, a, b) in [
        ("text", baseline.text.clone(), candidate.text.clone()),
        ("tokens", json!(baseline.tokens), json!(candidate.tokens)),
        ("scored_tokens", json!(baseline.scored_tokens), json!(candidate.scored_tokens)),
        ("prompt_tokens", baseline.prompt_tokens.clone(), candidate.prompt_tokens.clone()),
        ("tokens_fnv1a", baseline.tokens_hash.clone(), candidate.tokens_hash.clone()),
    ] {
        if a != b {
            return Err(format!(
                "{pair} cannot be compared: {what} is {} and {}",
                metrics::shown(&a),
                metrics::shown(&b)
            ));
        }
    }
    let target = limits.number("max-ppl-increase");
    let increase = (candidate.perplexity - baseline.perplexity) / baseline.perplexity;
    let pass = target < 0.0 || increase <= target;
    let figures = format!("{:.4} against {:.4}", candidate.perplexity, baseline.perplexity);
    let reason = if pass { figures } else { format!("{}: {figures}", candidate.file) };
    let mut verdict = Verdict { suite: "perplexity", ..Verdict::default() };
    verdict.gates.push(Gate {
        key: "perplexity_pass",
        flag: "max-ppl-increase",
        value: Some(increase),
        target: (target >= 0.0).then_some(target),
        enabled: target >= 0.0,
        pass,
        reason,
    });
    if baseline.model != candidate.model {
        verdict.warnings.push(format!("{pair}: models {:?} and {:?} differ", baseline.model, candidate.model));
    }
    let evicted = candidate.metrics.as_ref().map(|m| m.get("h2o_total_evict_tokens").and_then(Value::as_f64));
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
    verdict.facts = vec![
        ("baseline_perplexity", Fact::Number(Some(baseline.perplexity), 6)),
        ("candidate_perplexity", Fact::Number(Some(candidate.perplexity), 6)),
        ("perplexity_increase", Fact::Number(Some(increase), 6)),
        ("scored_tokens", Fact::Number(Some(candidate.scored_tokens), 0)),
    ];
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
