//! `mnnkv dump`.

use crate::bytes;
use crate::failure::Failure;
use crate::output::{Output, visible};
use crate::table;
use clap::Args;
use mnnkv_replay::dumps::{Dump, LayerInfo};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  mnnkv dump dumps/
  mnnkv dump chat.safetensors
";

/// List the layers of a KV dump.
///
/// A dump is a folder, or a .safetensors file. Its formats are recognised by themselves: folders with meta_*.json,
/// packed caches of MNN (packed_meta_*.json), .npy, .safetensors, and flat files such as l0_k_h2_t1088_d64.f16. Findings
/// tell skipped entries, gaps and overlaps.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// The dump
    source: PathBuf,
    /// Only the layers of this run
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
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
    Ok(list(&dump, &indices))
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
    let total = indices.iter().map(|index| 2 * dump.layers[*index].key_bytes() as u64).sum();
    let text = format!(
        "{} in {}, K and V\n{}{}",
        bytes::plural(layers.len() as u64, "layer"),
        bytes::format(total),
        table::text(&head, rows),
        findings(&dump.findings)
    );
    Output::new(text, json!({ "layers": layers, "bytes": total, "findings": dump.findings }))
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
