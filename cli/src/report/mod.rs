//! `mnnkv report`: results as one page of HTML. The page is well-formed XML too, and refers to nothing outside.

use crate::chart::{Axis, Series, figure};
use crate::evaluate::summary;
use crate::failure::Failure;
use crate::gate::{self, Gate};
use crate::input;
use crate::output::{self, Output};
use crate::results::{self, Coding, Figures};
use crate::table::{Table, escaped};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  mnnkv report results.json -o report.html
  mnnkv report before.json after.json gates.json -o report.html
";

const STYLE: &str = include_str!("style.css");

/// Write results of `mnnkv evaluate` and `mnnkv gate` as one page that people read.
///
/// The page is one HTML file without scripts and without references to other files: for browsers on desks and phones, in
/// light and dark, and for printers. Results of several files follow each other.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// Files of `mnnkv evaluate --output`, and of `mnnkv gate`
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// The page
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the output file
    #[arg(long)]
    overwrite: bool,
}

/// The gates of one case.
#[derive(Deserialize)]
struct Case {
    /// Absent where the file has one case.
    #[serde(default)]
    case: String,
    overall_pass: bool,
    gates: Vec<Gate>,
    #[serde(default)]
    warnings: Vec<String>,
}

/// The content of one file.
enum Input {
    Evaluation(Box<Figures>),
    Gates(Vec<Case>),
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let Arguments { results, output, overwrite } = arguments;
    output::refuse_existing(output, *overwrite)?;
    output::refuse_inputs([output], results)?;
    let inputs = results.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let page = page(&inputs);
    output::write_files([(output.as_path(), page.as_str())])?;
    let text = format!("{}: {}\n", output.display(), crate::bytes::format(page.len() as u64));
    Ok(Output::new(text, json!({ "written": [{ "file": output.display().to_string(), "bytes": page.len() }] })))
}

fn read(path: &Path) -> Result<Input, String> {
    let text = input::text(path)?;
    let value: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    content(&path.display().to_string(), &value).map_err(|text| format!("{}: {text}", path.display()))
}

/// The content of a file, checked. The error names the field.
fn content(name: &str, value: &Value) -> Result<Input, String> {
    if results::is_one(value) {
        return Ok(Input::Evaluation(Box::new(Figures::new(name.into(), results::read(value)?))));
    }
    if let Some(cases) = value.get("mnnkv").and_then(|own| own.get("cases")) {
        return Ok(Input::Gates(input::typed(cases).map_err(|text| format!("mnnkv.cases: {text}"))?));
    }
    let found = value.get("format").map_or("missing".into(), input::short);
    Err(format!(
        "format is {found}; a result of `mnnkv evaluate --output`, or of `mnnkv gate --json` or `--summary`, expected"
    ))
}

fn page(inputs: &[Input]) -> String {
    let body: String = inputs
        .iter()
        .map(|input| match input {
            Input::Evaluation(figures) => evaluation(figures),
            Input::Gates(cases) => cases.iter().map(gates).collect(),
        })
        .collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<title>mnnkv report</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n<main>\n<h1>KV cache, evaluated by mnn-kv</h1>\n{body}</main>\n\
         <footer><p>Written by mnnkv {}.</p></footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// A section: a heading, a paragraph, and what follows.
fn section(title: &str, text: &str, parts: &[String]) -> String {
    format!("<section>\n<h2>{}</h2>\n<p>{}</p>\n{}</section>\n", escaped(title), escaped(text), parts.concat())
}

fn evaluation(figures: &Figures) -> String {
    let results = &figures.results;
    let state = if results.complete { "" } else { " The evaluation was stopped early: lists are not complete." };
    let about = format!("{}, of {}, by mnn-kv {}.{state}", figures.name, results.dumps, results.program);
    let mut parts = vec![section("Dump", &about, &[summary::dump(results).html()])];
    let whole = summary::whole_cache(figures);
    if !whole.rows.is_empty() {
        let text = "The first layers keep all tokens, encoded; the others keep the tokens that eviction leaves, encoded too. \
                    \"Both\" is the number to plan with. The reference's product multiplies the ratio of the first layers with \
                    that of the others, which are different layers. A ratio of 3.5 keeps one token in 3.5.";
        parts.push(section("Whole cache", text, &[whole.html()]));
    }
    if let Some(coding) = figures.codings.first() {
        let text = "Every bit comes back. In blocks, as a session cuts, the first and the newest tokens stay raw. Speeds are \
                    those of the machine that evaluated.";
        parts.push(section("Lossless", text, &[by_layer(coding), summary::codec(figures).html()]));
    }
    let findings = results.findings.iter().map(|f| [&f.reason, &f.place, &f.text].map(input::short).to_vec());
    let findings = Table::new("Findings", &["kind", "place", "finding"], findings);
    let settings = results.settings.iter().map(|(key, value)| vec![key.clone(), input::short(value)]);
    let settings = Table::new("Settings", &["setting", "value"], settings);
    parts.push(section("Findings", "What a reader of the figures must know.", &[findings.html(), settings.html()]));
    parts.concat()
}

/// A tick, or a ratio in a description: a number without zeros at its end.
fn number(value: f64) -> String {
    let text = if value.abs() < 1e6 { format!("{value:.3}") } else { return format!("{value:.1e}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Raw over kept bytes of K and of V, layer by layer.
fn by_layer(coding: &Coding) -> String {
    let series = ["K", "V"].iter().enumerate().map(|(tensor, name)| Series {
        name: (*name).into(),
        points: coding.layers.iter().map(|(layer, sums)| (f64::from(*layer), sums[tensor].ratio())).collect(),
    });
    let series: Vec<Series> = series.collect();
    let ratios = || series.iter().flat_map(|series| &series.points).map(|point| point.1);
    let (least, most) = (ratios().fold(1.0, f64::min), ratios().fold(1.0, f64::max));
    let last = coding.layers.keys().max().copied().unwrap_or_default();
    let x = Axis::new("layer", 0.0, f64::from(last).max(4.0), number);
    let y = Axis::new("raw over kept bytes", least, most, number);
    let title = format!("Ratio by layer, {}", coding.cut);
    let description = format!("Ratios of {} layers, from {} to {}.", coding.layers.len(), number(least), number(most));
    figure(&title, &description, &x, &y, &series)
}

fn gates(case: &Case) -> String {
    let Case { case, overall_pass, gates, warnings } = case;
    let verdict = if *overall_pass { "All gates pass." } else { "A gate fails." };
    let (on, off): (Vec<&Gate>, Vec<&Gate>) = gates.iter().partition(|gate| gate.enabled);
    let table =
        |title: &str, gates: Vec<&Gate>| Table::new(title, &gate::HEAD, gates.into_iter().map(gate::row)).html();
    let off = if off.is_empty() { String::new() } else { table("Gates that are off", off) };
    let warnings: String = warnings.iter().map(|text| format!("<p>Warning: {}</p>\n", escaped(text))).collect();
    section(&format!("Gates {case}"), verdict, &[table("Gates", on), warnings, off])
}
