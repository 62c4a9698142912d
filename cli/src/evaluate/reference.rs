//! `mnnkv evaluate --reference`: the offline evaluator of the reference system, with the flags of its script.

use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table;
use clap::Args;
use mnnkv_replay::error::Finding;
use mnnkv_replay::reference::{Evaluation, Options, Profile, Refused, evaluate, profile, python_json};
use serde_json::{Map, Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;

// A doc comment would become the text of the command's help.
#[derive(Args)]
#[command(next_help_heading = "Reference evaluator")]
pub struct ReferenceArguments {
    /// Evaluate as the offline evaluator of the reference system, to the byte, and write its JSON (schema 3)
    ///
    /// Its mistakes are mended; `mended` in the JSON lists where. Exit code 1: no result, as the reference.
    #[arg(long, requires = "output", conflicts_with_all = ["run", "config", "given", "ratios", "block_tokens"])]
    pub reference: bool,
    /// Instead: byte entropies and ZSTD ratios of each entry and head, of all layers, as its analyser of dumps does
    #[arg(long, requires = "reference")]
    per_layer: bool,
    #[command(flatten)]
    options: Options,
    /// Accepted and ignored
    #[arg(long, requires = "reference", hide = true)]
    verbose: bool,
}

/// Evaluates the dumps below `dumps` and writes `output`.
pub fn run(
    arguments: &ReferenceArguments,
    dumps: &Path,
    output: &Path,
    overwrite: bool,
    threads: usize,
) -> Result<Output, Failure> {
    if !overwrite && output.symlink_metadata().is_ok() {
        let text = format!("out-json already exists: {}\nUse a new output path or pass --overwrite.", output.display());
        return Ok(refused(&text));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| e.to_string())?;
    let evaluate = if arguments.per_layer { profiled } else { evaluated };
    let (json, text) = match pool.install(|| evaluate(dumps, &arguments.options)) {
        Ok(evaluated) => evaluated,
        Err(Refused(text)) => return Ok(refused(&text)),
    };
    if let Some(folder) = output.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    }
    crate::output::write_files([(output, python_json(&json).as_str())])?;
    Ok(Output::new(format!("{text}Written: {}\n", output.display()), Value::Object(json)))
}

type Evaluated = Result<(Map<String, Value>, String), Refused>;

fn evaluated(dumps: &Path, options: &Options) -> Evaluated {
    let evaluation = evaluate(dumps, options)?;
    let text = text(&evaluation);
    Ok((evaluation.result, text))
}

fn profiled(dumps: &Path, options: &Options) -> Evaluated {
    let Profile { layers, heads, summary, findings } = profile(dumps, options)?;
    let row =
        |(name, ratio): (&String, &Value)| vec![name.clone(), format!("{:.3}", ratio.as_f64().unwrap_or_default())];
    let rows = summary.iter().map(row);
    let text = format!("{} entries\n{}{}", layers.len(), table::lines(rows), listed("Findings", &findings));
    let mut json = Map::from_iter([("dump_dir".to_owned(), json!(dumps.to_string_lossy()))]);
    json.extend([("layers".into(), json!(layers)), ("heads".into(), json!(heads)), ("summary".into(), json!(summary))]);
    json.insert("findings".into(), json!(findings));
    Ok((json, text))
}

/// The first findings as text.
fn listed(title: &str, findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let shown = findings
        .iter()
        .take(10)
        .map(|f| format!("  {}: {}: {}\n", f.reason, output::visible(&f.place), output::visible(&f.text)));
    let more = findings.len().saturating_sub(10);
    let rest = if more > 0 { format!("  and {more} more\n") } else { String::new() };
    format!("{title}\n{}{rest}", shown.collect::<String>())
}

/// Exit code 1 with a text on standard error, as the script ends.
fn refused(text: &str) -> Output {
    if !std::env::args_os().any(|word| word == "--json") {
        let lines: String = text.lines().map(|line| output::visible(line) + "\n").collect();
        // A failed write has no other channel to be reported on.
        let _ = std::io::stderr().write_all(lines.as_bytes());
    }
    Output { text: String::new(), json: json!({ "error": text }), clean: false }
}

fn text(evaluation: &Evaluation) -> String {
    let result = &evaluation.result;
    let number = |key: &str| result.get(key).and_then(Value::as_u64).unwrap_or_default();
    let ratio = result.get("lossless_ratio").and_then(Value::as_f64).unwrap_or_default();
    let mut text =
        format!("K and V: {} bytes of {}, ratio {ratio:.4}\n", number("compressed_bytes"), number("raw_bytes"));
    text += &format!(
        "{} of {} entries selected, {} skipped\n",
        number("selected_entries"),
        number("scanned_entries"),
        number("skipped_entries"),
    );
    text + &listed("Skipped", &evaluation.skipped) + &listed("Mended", &evaluation.mended)
}
