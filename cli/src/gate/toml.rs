//! Threshold files and manifests of suites. Errors name the line.

use super::table::{Kind, ROWS, SUITES, Thresholds, Value, index, parse};
use crate::input;
use serde::Deserialize;
use std::mem::take;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use toml::{Deserializer, Spanned};

/// Values by row of the table, of a file or of one of its tables.
#[derive(Clone, Default)]
pub struct Chosen {
    pub suite: Option<String>,
    values: Vec<(usize, Value)>,
}

impl Chosen {
    pub fn apply(&self, limits: &mut Thresholds) {
        self.values.iter().for_each(|(i, value)| limits.set(*i, value.clone()));
    }
}

/// One case: of a manifest, or of the command line.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct Entry {
    pub name: String,
    pub results: Vec<PathBuf>,
    pub upper_json: Option<PathBuf>,
    pub online_json: Option<PathBuf>,
    /// As in the summary of all cases. That of a manifest is written, relative to it.
    pub summary: String,
    pub report_json: String,
    pub console_log: String,
    pub return_code: i64,
    #[serde(skip)]
    pub chosen: Chosen,
}

/// The keys of a case that are no thresholds.
const OF_CASE: [&str; 8] =
    ["name", "results", "upper_json", "online_json", "summary", "report_json", "console_log", "return_code"];

/// The cases of a suite.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// The case whose speed is the baseline of the others.
    pub baseline_case: Option<String>,
    #[serde(rename = "case")]
    pub cases: Vec<Entry>,
    #[serde(skip)]
    pub chosen: Chosen,
}

/// A file with its name, for errors.
struct Source {
    file: String,
    text: String,
}

impl Source {
    fn open(path: &Path) -> Result<Self, String> {
        Ok(Source { file: input::name(path), text: input::text(path)? })
    }

    fn error(&self, span: Range<usize>, text: &str) -> String {
        let before = self.text.as_bytes().iter().take(span.start);
        format!("{}:{}: {text}", self.file, before.filter(|b| **b == b'\n').count() + 1)
    }

    fn failed(&self, key: &str, e: &toml::de::Error) -> String {
        let text = e.message().lines().next().unwrap_or("not TOML");
        self.error(e.span().unwrap_or(0..0), &format!("{key}{text}"))
    }

    fn parse(&self) -> Result<Spanned<DeTable<'_>>, String> {
        DeTable::parse(&self.text).map_err(|e| self.failed("", &e))
    }

    /// Reads `suite` and the keys of the table of gates, which all keys but `others` are.
    fn choose(&self, table: &DeTable, others: &[&str]) -> Result<Chosen, String> {
        let mut chosen = Chosen::default();
        for (key, value) in table.iter().filter(|(key, _)| !others.contains(&key.get_ref().as_ref())) {
            let wrong = |text: String| self.error(value.span(), &format!("{} {text}", key.get_ref()));
            if key.get_ref() == "suite" {
                let suite = value.get_ref().as_str().unwrap_or(value.get_ref().type_str());
                if !SUITES.contains(&suite) {
                    return Err(wrong(format!("is {suite:?}; one of {} expected", SUITES.join(", "))));
                }
                chosen.suite = Some(suite.to_owned());
                continue;
            }
            let Some(i) = index(&key.get_ref().replace('_', "-")).filter(|_| !key.get_ref().contains('-')) else {
                let text = format!("{} is not a key; docs/tools.md lists them", key.get_ref());
                return Err(self.error(key.span(), &text));
            };
            let (text, expected) = match (ROWS[i].kind, value.get_ref()) {
                (Kind::Number, DeValue::Integer(number)) => {
                    (i64::from_str_radix(number.as_str(), number.radix()).map(|n| n.to_string()).ok(), "a number")
                }
                (Kind::Number, DeValue::Float(number)) => (Some(number.as_str().to_owned()), "a number"),
                (Kind::Number, _) => (None, "a number"),
                (Kind::Switch, value) => (value.as_bool().map(|on| on.to_string()), "true or false"),
                (Kind::Word(_), value) => (value.as_str().map(str::to_owned), "a string"),
            };
            let text = text.ok_or_else(|| wrong(format!("is {}; {expected} expected", value.get_ref().type_str())))?;
            let parsed =
                parse(&ROWS[i], &text).map_err(|e| self.error(value.span(), &format!("{}: {e}", key.get_ref())));
            chosen.values.push((i, parsed?));
        }
        Ok(chosen)
    }
}

/// Reads a file of thresholds.
pub fn thresholds(path: &Path) -> Result<Chosen, String> {
    let source = Source::open(path)?;
    source.choose(source.parse()?.get_ref(), &[])
}

/// Reads a manifest. Paths of inputs become relative to the working directory.
pub fn manifest(path: &Path) -> Result<Manifest, String> {
    let source = Source::open(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let table = source.parse()?;
    let chosen = source.choose(table.get_ref(), &["baseline_case", "case"])?;
    // Thresholds of the cases, and where these begin.
    let mut of_cases = Vec::new();
    for case in table.get_ref().get("case").and_then(|list| list.get_ref().as_array()).into_iter().flatten() {
        if let Some(table) = case.get_ref().as_table() {
            of_cases.push((source.choose(table, &OF_CASE)?, case.span()));
        }
    }
    let read = serde_path_to_error::deserialize(Deserializer::from(table));
    let mut manifest: Manifest = read.map_err(|e| source.failed(&format!("{}: ", e.path()), e.inner()))?;
    manifest.chosen = chosen;
    let mut names = Vec::new();
    for (case, (chosen, span)) in manifest.cases.iter_mut().zip(of_cases) {
        if case.name.is_empty() || case.results.is_empty() {
            return Err(source.error(span, "a case needs a name and results"));
        }
        if names.contains(&case.name) {
            return Err(source.error(span, &format!("two cases are named {:?}", case.name)));
        }
        names.push(case.name.clone());
        case.chosen = chosen;
        case.results = take(&mut case.results).into_iter().map(|path| folder.join(path)).collect();
        case.upper_json = case.upper_json.take().map(|path| folder.join(path));
        case.online_json = case.online_json.take().map(|path| folder.join(path));
    }
    match &manifest.baseline_case {
        Some(name) if !names.contains(name) => {
            Err(format!("{}: baseline_case is {name:?}, which is no case", source.file))
        }
        _ => Ok(manifest),
    }
}
