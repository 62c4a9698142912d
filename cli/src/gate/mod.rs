//! `mnnkv gate`: results against thresholds.
//!
//! | file | job |
//! |---|---|
//! | table | every gate and its settings |
//! | flags, toml | their values, from the command line and from files |
//! | read, tables, metrics, demo | inputs, by content |
//! | judge, demo, offline, ppl | pure: inputs and thresholds in, verdict out |
//! | facts, page, summary | verdicts as text and JSON |

mod cells;
mod demo;
mod facts;
mod flags;
mod judge;
mod metrics;
mod offline;
mod page;
mod ppl;
mod read;
mod summary;
mod table;
mod tables;
#[cfg(test)]
mod tests;
mod toml;
mod verdict;

use crate::failure::Failure;
use crate::input;
use crate::output::{Output, refuse_inputs, visible, write_files};
use cells::Column;
use clap::Args;
use clap::error::ErrorKind;
use flags::Flags;
use judge::Runtime;
pub use page::{HEAD, row};
use read::Inputs;
use std::path::{Path, PathBuf};
use summary::Case;
use table::{Thresholds, Value, index};
use toml::{Chosen, Entry, Manifest};
pub use verdict::Gate;
use verdict::Verdict;

const EXAMPLES: &str = "\
Examples:
  mnnkv gate bench.log metrics.json --suite full --baseline-results baseline.log
  mnnkv gate results/ --lossy-target 2.5 --summary summary.json --markdown summary.md
  mnnkv gate --manifest suite.toml --summary summary.json
  mnnkv gate --ppl baseline.json candidate.json

Exit codes: 0 all gates passed, 1 a gate failed, 2 nothing to judge or a wrong command line, 3 an input cannot be read.
";

/// Check results of runs against thresholds.
///
/// Reads tables of llm_bench, kv_metrics, results of evaluate, llm_demo reports and logs, and tells them apart by their
/// content. Folders are searched for *.log, *.md, *.json and *.jsonl. docs/tools.md has every gate.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// Files and folders
    results: Vec<PathBuf>,
    /// Compare two perplexities
    #[arg(long, num_args = 2, value_names = ["BASELINE", "CANDIDATE"], conflicts_with_all = ["results", "manifest", "upper_json",
        "online_json", "baseline_results"])]
    ppl: Vec<PathBuf>,
    /// Judge the cases of a TOML file
    #[arg(long, value_name = "FILE", conflicts_with = "results")]
    manifest: Option<PathBuf>,
    /// Thresholds of a kind of run
    #[arg(long, value_parser = table::SUITES)]
    suite: Option<String>,
    /// TOML file with thresholds; flags win
    #[arg(long, value_name = "FILE")]
    thresholds: Option<PathBuf>,
    /// Judge as the reference's scripts do, their mistakes included
    #[arg(long)]
    faithful: bool,
    /// Result of the reference's offline evaluator for whole groups
    #[arg(long, value_name = "FILE", conflicts_with = "manifest")]
    upper_json: Option<PathBuf>,
    /// Result of the reference's offline evaluator for chunks
    #[arg(long, value_name = "FILE", conflicts_with = "manifest")]
    online_json: Option<PathBuf>,
    /// Results of an uncompressed run, whose decode speed is the baseline; may be repeated
    #[arg(long, value_name = "PATH")]
    baseline_results: Vec<PathBuf>,
    /// Name of the case in the summary
    #[arg(long, value_name = "NAME", conflicts_with = "manifest")]
    case: Option<String>,
    /// Write all figures and verdicts as JSON
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Write them as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let mut files = Files::default();
    let cases = match (&arguments.ppl[..], &arguments.manifest) {
        ([baseline, candidate], _) => vec![perplexity(arguments, baseline, candidate)?],
        (_, Some(path)) => suite(arguments, toml::manifest(path)?, &mut files)?,
        _ => suite(arguments, Manifest { cases: vec![arguments.entry()], ..Manifest::default() }, &mut files)?,
    };
    if cases.is_empty() {
        nothing("nothing to judge: the inputs have no run, report or result of evaluate");
    }
    if !cases.iter().any(|case| case.verdict.gates.iter().any(|gate| gate.enabled)) {
        nothing("nothing to judge: every gate is off");
    }
    let object = summary::object(&cases, arguments.faithful);
    if let Some(path) = &arguments.markdown {
        let json = arguments.summary.as_deref().map(input::name);
        let page = match &cases[..] {
            [case] if arguments.manifest.is_none() => case.page.clone(),
            cases => summary::markdown(cases, json.as_deref()),
        };
        files.outputs.push((path.clone(), page));
    }
    if let Some(path) = &arguments.summary {
        files.outputs.push((path.clone(), format!("{object:#}\n")));
    }
    arguments.refuse_inputs(&files)?;
    write_files(files.outputs.iter().map(|(path, text)| (path.as_path(), text.as_str())))?;
    let clean = cases.iter().all(Case::passed);
    Ok(Output { text: text(&cases), json: object, clean })
}

impl Arguments {
    /// The case that the command line names.
    fn entry(&self) -> Entry {
        Entry {
            name: self.case.clone().unwrap_or_default(),
            results: self.results.clone(),
            upper_json: self.upper_json.clone(),
            online_json: self.online_json.clone(),
            summary: self.markdown.as_deref().map(input::name).unwrap_or_default(),
            ..Entry::default()
        }
    }

    /// An output must not take the place of an input.
    fn refuse_inputs(&self, files: &Files) -> Result<(), Failure> {
        let named = [&self.manifest, &self.thresholds].into_iter().flatten().chain(&self.ppl);
        refuse_inputs(files.outputs.iter().map(|(path, _)| path), files.inputs.iter().chain(named))
    }
}

/// Ends the program as a wrong command line does.
fn nothing(text: &str) -> ! {
    crate::misused(&clap::Error::raw(ErrorKind::ValueValidation, format!("{text}\n")));
    std::process::exit(2);
}

/// Defaults, then the preset, files in order, and flags.
fn limits(arguments: &Arguments, files: &[&Chosen]) -> Result<Thresholds, Failure> {
    let file = arguments.thresholds.as_deref().map(toml::thresholds).transpose()?.unwrap_or_default();
    let mut chosen: Vec<&Chosen> = files.to_vec();
    chosen.push(&file);
    let suite = chosen.iter().rev().find_map(|c| c.suite.as_deref());
    let mut limits = Thresholds::preset(arguments.suite.as_deref().or(suite));
    chosen.iter().for_each(|chosen| chosen.apply(&mut limits));
    arguments.flags.0.iter().for_each(|(i, value)| limits.set(*i, value.clone()));
    Ok(limits)
}

fn set(limits: &mut Thresholds, flag: &str, value: Value) {
    limits.set(index(flag).expect("a row of the table"), value);
}

fn perplexity(arguments: &Arguments, baseline: &Path, candidate: &Path) -> Result<Case, Failure> {
    let verdict = ppl::judge([baseline, candidate], &limits(arguments, &[])?)?;
    let entry = Entry { name: arguments.case.clone().unwrap_or_else(|| "perplexity".into()), ..Entry::default() };
    Ok(Case { entry, mode: String::new(), page: page::other(&verdict), verdict, report: None })
}

/// What a call reads and writes.
#[derive(Default)]
struct Files {
    /// Results that were read, without links.
    inputs: Vec<PathBuf>,
    outputs: Vec<(PathBuf, String)>,
}

/// The decode speed without compression.
fn baseline(
    arguments: &Arguments,
    limits: &mut Thresholds,
    key: &str,
    warnings: &mut Vec<String>,
    files: &mut Files,
) -> Result<Option<f64>, Failure> {
    if !arguments.baseline_results.is_empty() {
        let entry = Entry { results: arguments.baseline_results.clone(), ..Entry::default() };
        let mut inputs = read::inputs(&entry, arguments.faithful)?;
        files.inputs.append(&mut inputs.files);
        if let Some(row) = inputs.rows.iter().find(|row| row.key != key && !row.key.is_empty() && !key.is_empty()) {
            warnings.push(format!("{}: the baseline is of {:?}, the run of {key:?}", row.place, row.key));
        }
        let lossy = |row: &&cells::Row| row.number(Column::Lossy).is_some_and(|ratio| ratio > 1.0);
        if let Some(row) = inputs.rows.iter().find(lossy) {
            warnings.push(format!("{}: the baseline is of a run with eviction", row.place));
        }
        return same_batch(&inputs, limits, arguments.faithful);
    }
    Ok(Some(limits.number("decode-baseline")).filter(|baseline| *baseline > 0.0))
}

/// The speed of an uncompressed run. The reference compares the mean of a candidate with the best of the baseline.
fn same_batch(inputs: &Inputs, limits: &mut Thresholds, faithful: bool) -> Result<Option<f64>, Failure> {
    let run = Runtime { inputs, limits, baseline: None, faithful };
    if let Some(bad) = run.bad_speed() {
        return Err(Failure(format!("no baseline: {bad}")));
    }
    let aggregation = if faithful { "best" } else { limits.word("decode-gate-aggregation") };
    let speed = run.speed(aggregation).filter(|speed| *speed > 0.0);
    let samples = if faithful { 1 } else { inputs.rows.len() };
    if speed.is_none() && !faithful {
        let place = inputs.rows.first().map_or_else(String::new, |row| format!("{}: ", row.place));
        return Err(Failure(format!("no baseline: {place}the results of the baseline have no decode speed")));
    }
    set(limits, "decode-baseline-source", Value::Word("same_batch".into()));
    set(limits, "decode-baseline-samples", Value::Number(samples as f64));
    Ok(speed)
}

/// The cases of one set of inputs: a runtime case, llm_demo cases, or what evaluate found.
fn judge(entry: &Entry, run: &Runtime) -> Vec<Case> {
    let Runtime { inputs, limits, faithful, .. } = run;
    let mode = limits.word("runtime-mode");
    let case = |name: &str, verdict: Verdict, page: String| {
        let mut entry = entry.clone();
        if entry.name.is_empty() {
            entry.name = if mode.is_empty() { name.into() } else { format!("{name}_{mode}") };
        }
        Case { entry, mode: mode.into(), verdict, page, report: None }
    };
    let mut cases = Vec::new();
    if !inputs.rows.is_empty() {
        let verdict = run.judge();
        let page = page::runtime(run, &verdict);
        cases.push(case("runtime", verdict, page));
    }
    for demo in &inputs.demos {
        let (verdict, report) = demo.judge(limits, *faithful);
        let page = page::other(&verdict);
        let mut case = Case { report: Some(report), ..case("llm_demo", verdict, page) };
        if case.entry.report_json.is_empty() {
            case.entry.report_json = demo.place.to_string();
        }
        cases.push(case);
    }
    if cases.is_empty() && inputs.has_offline() {
        let verdict = offline::judge(inputs, limits);
        let page = page::other(&verdict);
        cases.push(case("evaluate", verdict, page));
    }
    cases
}

/// Judges all cases. `files` receives what they read, and their summaries.
fn suite(arguments: &Arguments, manifest: Manifest, files: &mut Files) -> Result<Vec<Case>, Failure> {
    let faithful = arguments.faithful;
    let mut read_cases = Vec::new();
    for entry in &manifest.cases {
        let mut inputs = read::inputs(entry, faithful)?;
        files.inputs.append(&mut inputs.files);
        let kinds = usize::from(!inputs.rows.is_empty()) + inputs.demos.len();
        if arguments.manifest.is_some() && (inputs.is_empty() || kinds > 1) {
            let found = if kinds > 1 { "several" } else { "none" };
            return Err(Failure(format!(
                "{}: case {:?}: one runtime or llm_demo case expected in its results, {found} found",
                arguments.manifest.as_deref().map(input::name).unwrap_or_default(),
                entry.name
            )));
        }
        read_cases.push((entry, inputs, limits(arguments, &[&manifest.chosen, &entry.chosen])?));
    }
    let is_baseline = |(entry, ..): &&(&Entry, _, _)| Some(&entry.name) == manifest.baseline_case.as_ref();
    let batch = read_cases.iter().find(is_baseline).map(|(_, inputs, _)| inputs);
    let mut cases = Vec::new();
    for (entry, inputs, limits) in &read_cases {
        let (mut limits, mut warnings) = (limits.clone(), inputs.warnings.clone());
        if let (Some(figures), false) = (inputs.evaluations.first(), inputs.rows.is_empty()) {
            warnings.push(format!("{}: a result of evaluate judges nothing beside a run", figures.name));
        }
        let of_rows = || inputs.rows.first().map(|row| row.key.clone()).unwrap_or_default();
        let key = of_rows();
        let baseline = match batch {
            Some(batch) => same_batch(batch, &mut limits, faithful)?,
            None => baseline(arguments, &mut limits, &key, &mut warnings, files)?,
        };
        let run = Runtime { inputs, limits: &limits, baseline, faithful };
        let mut judged = judge(entry, &run);
        if let Some(case) = judged.first_mut() {
            case.verdict.warnings.splice(0..0, warnings);
        }
        if let (Some(manifest), false) = (&arguments.manifest, entry.summary.is_empty()) {
            let path = manifest.with_file_name(&entry.summary);
            files.outputs.extend(judged.iter().map(|case| (path.clone(), case.page.clone())));
        }
        cases.extend(judged);
    }
    Ok(cases)
}

fn text(cases: &[Case]) -> String {
    let mut text = String::new();
    for case in cases {
        let passed = if case.passed() { "passed" } else { "FAILED" };
        text += &format!("{}: {passed}\n", visible(&case.entry.name));
        let gates = case.verdict.gates.iter().filter(|gate| gate.enabled);
        text += &crate::table::text(&HEAD, gates.map(row));
        for warning in &case.verdict.warnings {
            let lead = if warning.starts_with("[WARN]") { "" } else { "warning: " };
            text += &format!("{lead}{}\n", visible(warning));
        }
        text.push('\n');
    }
    let failed = cases.iter().filter(|case| !case.passed()).count();
    match failed {
        0 => text + "all gates passed\n",
        n => text + &format!("{n} of {} cases failed\n", cases.len()),
    }
}
