//! Threshold files and manifests of suites. Errors name the line.

use super::read;
use super::table::{ROWS, SUITES, Thresholds, Value, index, parse};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Values by row of the table, of a file or of one of its tables.
#[derive(Default)]
pub struct Chosen {
    pub suite: Option<String>,
    pub values: Vec<(usize, Value)>,
}

/// One case of a manifest.
pub struct CaseEntry {
    pub name: String,
    pub chosen: Chosen,
    pub results: Vec<PathBuf>,
    pub upper: Option<PathBuf>,
    pub online: Option<PathBuf>,
    /// As in the summary; the first two are written, relative to the manifest.
    pub summary: String,
    pub report_json: String,
    pub console_log: String,
    pub return_code: i64,
}

/// The cases of a suite.
pub struct Manifest {
    pub chosen: Chosen,
    /// The case whose speed is the baseline of the others.
    pub baseline: Option<String>,
    pub cases: Vec<CaseEntry>,
}

/// A file with its name, for errors.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn error(&self, span: Range<usize>, text: &str) -> String {
        let start = span.start.min(self.text.len());
        let before = self.text.as_bytes()[..start].iter();
        format!("{}:{}: {text}", self.file, before.filter(|b| **b == b'\n').count() + 1)
    }

    fn parse(&self) -> Result<Spanned<DeTable<'_>>, String> {
        DeTable::parse(self.text).map_err(|e| {
            let message = e.message().lines().next().unwrap_or("not TOML").to_owned();
            self.error(e.span().unwrap_or(0..0), &message)
        })
    }

    fn text(&self, key: &str, value: &Spanned<DeValue>) -> Result<String, String> {
        let wrong = || self.error(value.span(), &format!("{key} is {}; a string expected", value.get_ref().type_str()));
        value.get_ref().as_str().map(str::to_owned).ok_or_else(wrong)
    }

    fn path(&self, folder: &Path, key: &str, value: &Spanned<DeValue>) -> Result<PathBuf, String> {
        Ok(folder.join(self.text(key, value)?))
    }

    /// Takes a key of the table of gates, or `suite`.
    fn choose(
        &self,
        chosen: &mut Chosen,
        key: &Spanned<std::borrow::Cow<str>>,
        value: &Spanned<DeValue>,
    ) -> Result<(), String> {
        let name = key.get_ref().as_ref();
        if name == "suite" {
            let suite = self.text(name, value)?;
            if !SUITES.contains(&suite.as_str()) {
                return Err(
                    self.error(value.span(), &format!("suite is {suite:?}; one of {} expected", SUITES.join(", ")))
                );
            }
            chosen.suite = Some(suite);
            return Ok(());
        }
        let Some(i) = index(&name.replace('_', "-")).filter(|_| !name.contains('-')) else {
            return Err(self.error(key.span(), &format!("{name} is not a key; docs/gate.md lists them")));
        };
        use super::table::Kind;
        let text = match (ROWS[i].kind, value.get_ref()) {
            (Kind::Number, DeValue::Integer(number)) => {
                i64::from_str_radix(number.as_str(), number.radix()).map(|n| n.to_string()).ok()
            }
            (Kind::Number, DeValue::Float(number)) => Some(number.as_str().to_owned()),
            (Kind::Switch, DeValue::Boolean(on)) => Some(on.to_string()),
            (Kind::Word(_), DeValue::String(word)) => Some(word.to_string()),
            _ => None,
        };
        let expected = match ROWS[i].kind {
            Kind::Number => "a number",
            Kind::Switch => "true or false",
            Kind::Word(_) => "a string",
        };
        let Some(text) = text else {
            return Err(
                self.error(value.span(), &format!("{name} is {}; {expected} expected", value.get_ref().type_str()))
            );
        };
        let value_ = parse(&ROWS[i], &text).map_err(|e| self.error(value.span(), &format!("{name}: {e}")))?;
        chosen.values.push((i, value_));
        Ok(())
    }

    fn table<'t, 'a>(&self, key: &str, value: &'t Spanned<DeValue<'a>>) -> Result<&'t DeTable<'a>, String> {
        let wrong = || self.error(value.span(), &format!("{key} is {}; a table expected", value.get_ref().type_str()));
        value.get_ref().as_table().ok_or_else(wrong)
    }

    fn case(&self, folder: &Path, span: Range<usize>, table: &DeTable) -> Result<CaseEntry, String> {
        let mut case = CaseEntry {
            name: String::new(),
            chosen: Chosen::default(),
            results: Vec::new(),
            upper: None,
            online: None,
            summary: String::new(),
            report_json: String::new(),
            console_log: String::new(),
            return_code: 0,
        };
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "name" => case.name = self.text("name", value)?,
                "upper_json" => case.upper = Some(self.path(folder, "upper_json", value)?),
                "online_json" => case.online = Some(self.path(folder, "online_json", value)?),
                "summary" => case.summary = self.text("summary", value)?,
                "report_json" => case.report_json = self.text("report_json", value)?,
                "console_log" => case.console_log = self.text("console_log", value)?,
                "return_code" => {
                    let number = value.get_ref().as_integer();
                    let parsed = number.and_then(|n| i64::from_str_radix(n.as_str(), n.radix()).ok());
                    case.return_code = parsed.ok_or_else(|| self.error(value.span(), "return_code is no integer"))?;
                }
                "results" => {
                    let Some(list) = value.get_ref().as_array() else {
                        return Err(self.error(value.span(), "results is no list of paths"));
                    };
                    case.results =
                        list.iter().map(|path| self.path(folder, "results", path)).collect::<Result<_, _>>()?;
                }
                _ => self.choose(&mut case.chosen, key, value)?,
            }
        }
        if case.name.is_empty() || case.results.is_empty() {
            return Err(self.error(span, "a case needs a name and results"));
        }
        Ok(case)
    }
}

/// Reads a file of thresholds.
pub fn thresholds(path: &Path) -> Result<Chosen, String> {
    let (file, text) = (read::name(path), read::text(path)?);
    let source = Source { file: &file, text: &text };
    let mut chosen = Chosen::default();
    for (key, value) in source.parse()?.get_ref() {
        source.choose(&mut chosen, key, value)?;
    }
    Ok(chosen)
}

/// Reads a manifest.
pub fn manifest(path: &Path) -> Result<Manifest, String> {
    let (file, text) = (read::name(path), read::text(path)?);
    let source = Source { file: &file, text: &text };
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut manifest = Manifest { chosen: Chosen::default(), baseline: None, cases: Vec::new() };
    for (key, value) in source.parse()?.get_ref() {
        match key.get_ref().as_ref() {
            "baseline_case" => manifest.baseline = Some(source.text("baseline_case", value)?),
            "case" => {
                let Some(list) = value.get_ref().as_array() else {
                    return Err(source.error(value.span(), "case is no list of tables; [[case]] begins one"));
                };
                for entry in list.iter() {
                    let case = source.case(folder, entry.span(), source.table("case", entry)?)?;
                    if manifest.cases.iter().any(|other| other.name == case.name) {
                        return Err(source.error(entry.span(), &format!("two cases are named {:?}", case.name)));
                    }
                    manifest.cases.push(case);
                }
            }
            _ => source.choose(&mut manifest.chosen, key, value)?,
        }
    }
    if let Some(name) = manifest.baseline.as_ref().filter(|name| !manifest.cases.iter().any(|case| case.name == **name))
    {
        return Err(format!("{file}: baseline_case is {name:?}, which is no case"));
    }
    Ok(manifest)
}

impl Chosen {
    pub fn apply(&self, limits: &mut Thresholds) {
        self.values.iter().for_each(|(i, value)| limits.set(*i, value.clone()));
    }
}
