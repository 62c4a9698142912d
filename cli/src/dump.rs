//! `mnnkv dump`.

use crate::bytes;
use crate::failure::Failure;
use crate::output::{Output, visible};
use crate::{progress, table};
use clap::{Args, ValueEnum};
use mnnkv_replay::dumps::writer::{self, Options, Split};
use mnnkv_replay::dumps::{Dump, LayerInfo};
use serde_json::json;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  mnnkv dump dumps/
  mnnkv dump dumps/ --output copy/ --prompt 512
  mnnkv dump dumps/ --output copy/ --run chat --format safetensors
";

/// List the layers of a KV dump, or convert it.
///
/// A dump is a folder, or a .safetensors file. Its formats are recognised by themselves: folders with meta_*.json,
/// packed caches of MNN (packed_meta_*.json), .npy, .safetensors, and flat files such as l0_k_h2_t1088_d64.f16. Findings
/// tell skipped entries, gaps and overlaps.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// The dump
    source: PathBuf,
    /// The folder to write the dump to
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// The format to write
    #[arg(long, value_enum, default_value = "folder", requires = "output")]
    format: Format,
    /// Tokens of the prompt: one entry for these, then one for each token [default: as in the source, else one entry]
    #[arg(long, value_name = "N", requires = "output", value_parser = clap::value_parser!(u32).range(1..))]
    prompt: Option<u32>,
    /// Only the layers of this run
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Replace a dump of the same name in the output
    #[arg(long, requires = "output")]
    overwrite: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// meta_*.json and words for each step, as the reference's evaluator reads them
    Folder,
    /// A file for each run, with layers.0.key and so on
    Safetensors,
    /// A file of words for each tensor
    Flat,
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let dump = Dump::open(&arguments.source).map_err(|e| Failure(e.to_string()))?;
    let chosen = |layer: &LayerInfo| arguments.run.as_ref().is_none_or(|run| *run == layer.run);
    let indices: Vec<usize> = (0..dump.layers.len()).filter(|index| chosen(&dump.layers[*index])).collect();
    if indices.is_empty() {
        let mut runs: Vec<&str> = dump.layers.iter().map(|layer| layer.run.as_str()).collect();
        runs.dedup();
        return Err(Failure(format!(
            "{}: no run {:?}; the runs are {}",
            arguments.source.display(),
            arguments.run.as_deref().unwrap_or_default(),
            runs.join(", ")
        )));
    }
    match &arguments.output {
        None => Ok(list(&dump, &indices)),
        Some(folder) => convert(arguments, &dump, &indices, folder),
    }
}

fn list(dump: &Dump, indices: &[usize]) -> Output {
    let head =
        ["run", "layer", "tokens", "from", "prompt", "KV heads", "dims", "type", "bytes", "Q rows", "attention rows"];
    let mut rows = Vec::new();
    let mut layers = Vec::new();
    for index in indices {
        let (layer, (query, attention)) = (&dump.layers[*index], dump.score_rows(*index));
        let bytes = 2 * layer.key_bytes() as u64;
        let count = |n: usize| if n == 0 { String::new() } else { bytes::count(n as u64) };
        rows.push(vec![
            layer.run.clone(),
            layer.layer.to_string(),
            bytes::count(layer.tokens as u64),
            bytes::count(layer.begin as u64),
            count(layer.prompt_tokens),
            layer.kv_heads.to_string(),
            layer.head_dim.to_string(),
            layer.dtype.name().into(),
            bytes::count(bytes),
            count(query),
            count(attention),
        ]);
        layers.push(json!({
            "run": layer.run, "layer": layer.layer, "begin": layer.begin, "tokens": layer.tokens,
            "prompt_tokens": layer.prompt_tokens, "kv_heads": layer.kv_heads, "head_dim": layer.head_dim,
            "dtype": layer.dtype.name(), "bytes": bytes, "query_heads": layer.query_heads, "query_rows": query,
            "attention_rows": attention,
        }));
    }
    let total = total(dump, indices);
    let text = format!(
        "{} in {}, K and V\n{}{}",
        bytes::plural(layers.len() as u64, "layer"),
        bytes::format(total),
        table::text(&head, rows),
        findings(&dump.findings)
    );
    Output::new(text, json!({ "layers": layers, "bytes": total, "findings": dump.findings }))
}

fn convert(arguments: &Arguments, dump: &Dump, indices: &[usize], folder: &Path) -> Result<Output, Failure> {
    let options = Options {
        format: match arguments.format {
            Format::Folder => writer::Format::Folder,
            Format::Safetensors => writer::Format::Safetensors,
            Format::Flat => writer::Format::Flat,
        },
        split: arguments.prompt.map_or(Split::Known, |tokens| Split::Prompt(tokens as usize)),
        overwrite: arguments.overwrite,
    };
    if arguments.prompt.is_some() && arguments.format != Format::Folder {
        return Err(Failure("--prompt: only --format folder has entries".into()));
    }
    let bar = progress::bytes("writing", total(dump, indices));
    let written = writer::write(dump, indices, folder, &options, &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let written = written.map_err(|e| Failure(e.to_string()))?;
    let all = [&dump.findings[..], &written.findings].concat();
    let text = format!(
        "{}: {}, {} in {}\n{}",
        folder.display(),
        bytes::plural(indices.len() as u64, "layer"),
        bytes::format(written.bytes),
        bytes::plural(written.files as u64, "file"),
        findings(&all),
    );
    let object = json!({
        "output": folder.display().to_string(), "layers": indices.len(), "files": written.files, "bytes": written.bytes,
        "findings": all,
    });
    Ok(Output::new(text, object))
}

/// Bytes of K and V.
fn total(dump: &Dump, indices: &[usize]) -> u64 {
    indices.iter().map(|index| 2 * dump.layers[*index].key_bytes() as u64).sum()
}

fn findings(findings: &[mnnkv_replay::error::Finding]) -> String {
    let mut text = String::new();
    if !findings.is_empty() {
        text += "\nFindings\n";
    }
    for finding in findings {
        text += &format!("  [{}] {}: {}\n", finding.reason, visible(&finding.place), visible(&finding.text));
    }
    text
}
