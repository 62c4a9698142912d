//! The rolling decode baseline: a file of JSON lines, one per run.

use super::cells::Place;
use super::judge::aggregate;
use super::{metrics, read};
use serde_json::{Value, json};
use std::path::Path;

/// Runs that the median is taken of, at most and at least.
const LAST: usize = 8;
const LEAST: usize = 3;

/// The median speed of the key's last runs, with their number; `None` if there are too few.
///
/// Runs that failed or were compressed do not count, except in a faithful reading.
pub fn baseline(path: &Path, key: &str, faithful: bool) -> Result<Option<(f64, usize)>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let file = read::name(path);
    let mut speeds = Vec::new();
    for (n, line) in read::text(path)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = Place { file: file.clone(), at: (n + 1).to_string() };
        let value: Value =
            serde_json::from_str(line).map_err(|e| format!("{place}: not JSON, at column {}", e.column()))?;
        let Some(object) = value.as_object() else { return Err(format!("{place}: not an object")) };
        let Some(speed) = metrics::number(object, "decode_tps", &place)? else {
            return Err(format!("{place}.decode_tps is absent"));
        };
        let Some(own) = object.get("key").and_then(Value::as_str) else {
            return Err(format!("{place}.key is no string"));
        };
        let is = |name: &str| object.get(name).and_then(Value::as_bool).unwrap_or(false);
        if own == key && speed > 0.0 && (faithful || (is("passed") && !is("compressed"))) {
            speeds.push(speed);
        }
    }
    let last = &speeds[speeds.len().saturating_sub(LAST)..];
    Ok(aggregate(last, "median").filter(|_| last.len() >= LEAST).map(|median| (median, last.len())))
}

/// The text of the history with one more run.
pub fn with(path: &Path, key: &str, speed: f64, passed: bool, compressed: bool) -> Result<String, String> {
    let mut text = if path.exists() { read::text(path)? } else { String::new() };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let entry = json!({ "key": key, "decode_tps": speed, "passed": passed, "compressed": compressed });
    Ok(text + &format!("{entry}\n"))
}
