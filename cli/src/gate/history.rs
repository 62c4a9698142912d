//! The rolling decode baseline: a file of JSON lines, one per run.

use super::judge::aggregate;
use crate::input;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Runs that the median is taken of, at most and at least.
const LAST: usize = 8;
const LEAST: usize = 3;

/// A run.
#[derive(Deserialize, Serialize)]
pub struct Entry {
    pub key: String,
    pub decode_tps: f64,
    #[serde(default)]
    pub passed: bool,
    #[serde(default)]
    pub compressed: bool,
}

/// The median speed of the key's last runs, with their number; `None` if there are too few.
///
/// Runs that failed or were compressed do not count, except in a faithful reading.
pub fn baseline(path: &Path, key: &str, faithful: bool) -> Result<Option<(f64, usize)>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let mut speeds = Vec::new();
    for (n, line) in input::text(path)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let run: Entry = input::typed(&mut serde_json::Deserializer::from_str(line))
            .map_err(|e| format!("{}:{}: {e}", input::name(path), n + 1))?;
        if run.key == key && run.decode_tps > 0.0 && (faithful || (run.passed && !run.compressed)) {
            speeds.push(run.decode_tps);
        }
    }
    let last = &speeds[speeds.len().saturating_sub(LAST)..];
    Ok(aggregate(last, "median").filter(|_| last.len() >= LEAST).map(|median| (median, last.len())))
}

/// The text of the history with one more run.
pub fn with(path: &Path, run: &Entry) -> Result<String, String> {
    let mut text = if path.exists() { input::text(path)? } else { String::new() };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text + &serde_json::to_string(run).map_err(|e| e.to_string())? + "\n")
}
