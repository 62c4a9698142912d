//! `mnnkv report`: results as one page.

mod advice;
mod chart;
mod charts;
mod content;
mod document;
mod html;
mod markdown;
mod memory;
mod read;

use crate::failure::Failure;
use crate::figures::Figures;
use crate::output::{self, Output};
use clap::Args;
use content::Cases;
use read::Input;
pub use read::evaluation;
use serde_json::json;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  mnnkv report results.json -o report.html
  mnnkv report results.json gates.json -o report.html --markdown report.md
  mnnkv report --compare before.json after.json -o rounds.html
";

/// Files of one report, at most.
const MOST_FILES: usize = 32;

/// Write results of `mnnkv evaluate` and `mnnkv gate` as one page that people read.
///
/// The page is one HTML file without scripts and without references to other files: for browsers on desks and phones, in
/// light and dark, and for printers. Markdown has tables instead of charts.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// Files of `mnnkv evaluate --output`, and of `mnnkv gate`
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// The page: HTML, or Markdown if the name ends in .md
    #[arg(short, long, value_name = "FILE", required_unless_present = "markdown")]
    output: Option<PathBuf>,
    /// The same as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Show the evaluations as rounds, side by side, with changes against the first
    #[arg(long)]
    compare: bool,
    /// Replace the output files
    #[arg(long)]
    overwrite: bool,
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let outputs: Vec<&PathBuf> = arguments.output.iter().chain(&arguments.markdown).collect();
    if let [first, second] = outputs[..]
        && first == second
    {
        return Err(Failure(format!("--output and --markdown are both {}; two files expected", first.display())));
    }
    outputs.iter().try_for_each(|path| output::refuse_existing(path, arguments.overwrite))?;
    output::refuse_inputs(outputs.iter().copied(), &arguments.results)?;
    let (rounds, cases) = arguments.read()?;
    let document =
        if arguments.compare { content::comparison(&rounds, &cases) } else { content::report(&rounds, &cases) };
    let mut text = String::new();
    // All pages are complete before the first is written.
    let pages: Vec<(&PathBuf, String)> = outputs
        .into_iter()
        .map(|path| {
            let is_markdown = arguments.markdown.as_ref() == Some(path) || path.extension().is_some_and(|e| e == "md");
            (path, if is_markdown { markdown::page(&document) } else { html::page(&document) })
        })
        .collect();
    output::write_files(pages.iter().map(|(path, page)| (path.as_path(), page.as_str())))?;
    for (path, page) in &pages {
        text += &format!("{}: {}\n", path.display(), crate::bytes::format(page.len() as u64));
    }
    let written = pages.iter().map(|(path, page)| json!({ "file": path.display().to_string(), "bytes": page.len() }));
    Ok(Output::new(text, json!({ "written": written.collect::<Vec<_>>() })))
}

impl Arguments {
    fn read(&self) -> Result<(Vec<Figures>, Cases), Failure> {
        if self.results.len() > MOST_FILES {
            let text = format!("{} files of results; {MOST_FILES} or fewer expected", self.results.len());
            return Err(Failure(text));
        }
        let mut rounds = Vec::new();
        let mut cases = Cases::new();
        let names = names(&self.results);
        for (path, name) in self.results.iter().zip(names) {
            match read::read(path)? {
                Input::Evaluation(results) => rounds.push(Figures::new(name, *results)),
                Input::Gates(found) => cases.extend(found.into_iter().map(|case| (name.clone(), case))),
            }
        }
        let most = chart::MOST_SERIES;
        if self.compare && !(2..=most).contains(&rounds.len()) {
            let text = format!("--compare: {} files of `mnnkv evaluate`; 2 to {most} expected", rounds.len());
            return Err(Failure(text));
        }
        Ok((rounds, cases))
    }
}

/// The shortest ends of paths that differ: file names, or with their folders.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let end = |path: &Path, parts: usize| {
        let all: Vec<_> = path.components().collect();
        all[all.len().saturating_sub(parts)..].iter().collect::<PathBuf>().display().to_string()
    };
    let of = |parts: usize| paths.iter().map(|path| end(path, parts)).collect::<Vec<_>>();
    let differ = |names: &[String]| names.iter().collect::<std::collections::HashSet<_>>().len() == names.len();
    (1..8).map(of).find(|names| differ(names)).unwrap_or_else(|| of(usize::MAX))
}
