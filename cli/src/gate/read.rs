//! Reads results. The content of a file tells its kind.

use super::cells::{Place, Row};
use super::demo::{self, Demo};
use super::metrics;
use super::tables::{self, BadLine};
use super::toml::Entry;
use crate::input;
use crate::results::{self, Figures};
use mnnkv::json::Brief;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders inside folders, at most.
const MAX_DEPTH: usize = 16;

/// The content of all inputs.
#[derive(Default)]
pub struct Inputs {
    /// Where these were read, without links. Reports of former calls, which say nothing, are none of them.
    pub files: Vec<PathBuf>,
    pub rows: Vec<Row>,
    pub upper: Option<Offline>,
    pub online: Option<Offline>,
    pub evaluations: Vec<Figures>,
    pub demos: Vec<Demo>,
    pub bad_lines: Vec<BadLine>,
    pub warnings: Vec<String>,
}

/// A result of the reference's offline evaluator.
#[derive(Clone, Debug)]
pub struct Offline {
    pub file: String,
    pub ratio: f64,
    pub entries: u64,
    pub layers: Vec<i64>,
}

/// Reads the files and folders of a case. A file that is named twice counts once.
pub fn inputs(case: &Entry, faithful: bool) -> Result<Inputs, String> {
    let mut inputs = Inputs::default();
    let mut seen = BTreeSet::new();
    for path in &case.results {
        let inside = path.is_dir();
        let mut files = Vec::new();
        if inside {
            walk(path, 0, &mut files)?
        } else {
            files.push(path.clone())
        }
        for file in files {
            let real = fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
            if seen.insert(real.clone()) {
                let before = inputs.amount();
                inputs.read(&file, inside, faithful)?;
                if inputs.amount() > before || !inside || has_extension(&file, &["log"]) {
                    inputs.files.push(real);
                }
            }
        }
    }
    inputs.files.extend(
        [&case.upper_json, &case.online_json].into_iter().flatten().filter_map(|path| fs::canonicalize(path).ok()),
    );
    let named = |path: &Option<PathBuf>| path.as_deref().map(offline_file).transpose();
    inputs.upper = named(&case.upper_json)?.or(inputs.upper);
    inputs.online = named(&case.online_json)?.or(inputs.online);
    Ok(inputs)
}

fn walk(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot list {}: {e}", input::name(folder));
    if depth > MAX_DEPTH {
        return Err(format!("{}: folders are nested deeper than {MAX_DEPTH}", input::name(folder)));
    }
    let mut entries = fs::read_dir(folder).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            walk(&entry.path(), depth + 1, files)?;
        } else if kind.is_file() && has_extension(&entry.path(), &["log", "md", "json", "jsonl"]) {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e))
}

impl Inputs {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.demos.is_empty() && !self.has_offline()
    }

    /// Rows, reports, results and lines that were read.
    fn amount(&self) -> usize {
        let offline = usize::from(self.upper.is_some()) + usize::from(self.online.is_some());
        self.rows.len() + self.demos.len() + self.evaluations.len() + self.bad_lines.len() + offline
    }

    pub fn has_offline(&self) -> bool {
        self.upper.is_some() || self.online.is_some() || !self.evaluations.is_empty()
    }

    /// `inside` a folder, files without results are no errors.
    fn read(&mut self, path: &Path, inside: bool, faithful: bool) -> Result<(), String> {
        let (file, text) = (input::name(path), input::text(path)?);
        let known = match values(path, &file, &text)? {
            Some(values) => {
                let mut known = false;
                for (value, at) in &values {
                    known |= self.value(value, Place { file: file.clone(), at: at.clone() }, faithful)?;
                }
                known
            }
            None => {
                let rows = tables::rows(&file, &text, faithful)?;
                // The report of a former call quotes bad lines.
                let bad = if has_extension(path, &["md"]) { Vec::new() } else { tables::bad_lines(&file, &text) };
                let known = !rows.is_empty() || !bad.is_empty() || has_extension(path, &["log"]);
                self.rows.extend(rows);
                self.bad_lines.extend(bad);
                known
            }
        };
        match (known, inside) {
            (true, _) => Ok(()),
            (false, true) if has_extension(path, &["json", "jsonl"]) => {
                self.warnings.push(format!("{file}: no results, ignored"));
                Ok(())
            }
            (false, true) => Ok(()),
            (false, false) => Err(format!(
                "{file}: no results: neither a table of llm_bench, metrics, a result of evaluate, an llm_demo report, nor a log"
            )),
        }
    }

    /// Adds a JSON value; false if it is nothing that gate reads.
    fn value(&mut self, value: &Value, place: Place, faithful: bool) -> Result<bool, String> {
        let Some(object) = value.as_object() else { return Ok(false) };
        let has = |key: &str| object.contains_key(key);
        match object.get("format").and_then(Value::as_str) {
            _ if results::is_one(value) => {
                let results = results::read(value).map_err(|e| format!("{place}: {e}"))?;
                self.evaluations.push(Figures::new(place.file, results));
                return Ok(true);
            }
            Some("mnnkv-tasks") => {
                return Err(format!("{place}: losses of tasks; compare their kinds, no gate reads them"));
            }
            Some("mnnkv-ppl") => return Err(format!("{place}: a perplexity; --ppl BASELINE CANDIDATE reads it")),
            _ => {}
        }
        if has("total_cases") && has("rows") {
            // summary.json of a former call.
            return Ok(true);
        }
        if has("weighted_lossless_ratio") || has("entry_mode") {
            let offline = offline(object, &place)?;
            let aggregate = object.get("entry_mode").and_then(Value::as_str) == Some("aggregate");
            *(if aggregate { &mut self.upper } else { &mut self.online }) = Some(offline);
            return Ok(true);
        }
        if let Some(demo) = demo::read(object, &place, faithful)? {
            self.demos.push(demo);
            return Ok(true);
        }
        if let Some((key, metrics)) = metrics::find(object) {
            let at = if place.at.is_empty() { key.to_owned() } else { format!("{}.{key}", place.at) };
            let place = Place { at, ..place };
            let Some(metrics) = metrics.as_object() else {
                return Err(format!("{place} is {}; an object expected", metrics::shown(metrics)));
            };
            self.rows.push(metrics::row(object, metrics, place)?);
            return Ok(true);
        }
        if metrics::has_metrics(object) {
            self.rows.push(metrics::row(object, object, place)?);
            return Ok(true);
        }
        Ok(false)
    }
}

/// The JSON values of a file with their places: one, the elements of a list, or one per line. `None` if it is no JSON.
fn values(path: &Path, file: &str, text: &str) -> Result<Option<Vec<(Value, String)>>, String> {
    let named = has_extension(path, &["json", "jsonl"]);
    if !named && !text.trim_start().starts_with(['{', '[']) {
        return Ok(None);
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Array(list)) => {
            return Ok(Some(list.into_iter().enumerate().map(|(i, value)| (value, format!("[{i}]"))).collect()));
        }
        Ok(value) => return Ok(Some(vec![(value, String::new())])),
        Err(e) if has_extension(path, &["json"]) => return Err(format!("{file}: not JSON: {e}")),
        Err(_) => {}
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = lines.map(|(n, line)| match serde_json::from_str(line) {
        Ok(value) => Ok((value, (n + 1).to_string())),
        // The line is in the place.
        Err(e) => Err(format!("{file}:{}: not JSON, at column {}: {}", n + 1, e.column(), cause(&e))),
    });
    match parsed.collect() {
        Ok(values) => Ok(Some(values)),
        Err(e) if named => Err(e),
        Err(_) => Ok(None),
    }
}

fn cause(e: &serde_json::Error) -> String {
    let text = e.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

/// A result file that a flag names.
fn offline_file(path: &Path) -> Result<Offline, String> {
    let file = input::name(path);
    let object = serde_json::from_str(&input::text(path)?).map_err(|e| format!("{file}: no JSON object: {e}"))?;
    offline(&object, &Place { file, at: String::new() })
}

fn offline(object: &Map<String, Value>, place: &Place) -> Result<Offline, String> {
    let key = if object.contains_key("weighted_lossless_ratio") { "weighted_lossless_ratio" } else { "lossless_ratio" };
    let ratio = metrics::number(object, key, place)?.unwrap_or(0.0);
    if ratio <= 0.0 {
        return Err(format!("invalid lossless ratio in {}: {key} is {}; above 0 expected", place.file, Brief(ratio)));
    }
    let layers = object.get("selected_layers").and_then(Value::as_array);
    Ok(Offline {
        file: place.file.clone(),
        ratio,
        entries: object.get("selected_entries").and_then(Value::as_u64).unwrap_or(0),
        layers: layers.into_iter().flatten().filter_map(Value::as_i64).collect(),
    })
}
