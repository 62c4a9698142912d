//! `mnnkv evaluate --reference`: the offline evaluator of the reference system, with the flags of its script.

use crate::failure::Failure;
use crate::output::{self, Output, table};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use mnnkv_replay::error::Finding;
use mnnkv_replay::reference::{
    CodecMode, EntryMode, Evaluation, Options, Predictor, Profile, Refused, Scope, Stage, evaluate, profile,
    python_json,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
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
    #[arg(long, requires = "output")]
    pub reference: bool,
    /// Make the mistakes of the reference system, too
    #[arg(long, requires = "reference")]
    faithful: bool,
    /// Instead: byte entropies and ZSTD ratios of each entry and head, of all layers, as its analyser of dumps does
    #[arg(long, requires = "reference")]
    per_layer: bool,
    /// Entries to evaluate, by stage
    #[arg(long, value_name = "STAGE", default_value = "both", value_parser = named::<Stage>(Stage::NAMES), requires = "reference")]
    stage: Stage,
    /// Entries to evaluate, by layer
    #[arg(long, value_name = "SCOPE", default_value = "front_n", value_parser = named::<Scope>(Scope::NAMES), requires = "reference")]
    scope: Scope,
    /// Scope front_n: number of first layers
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, requires = "reference")]
    front_n: i64,
    /// Scope layer_range: first layer
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, requires = "reference")]
    layer_start: i64,
    /// Scope layer_range: last layer; -1: no end
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, requires = "reference")]
    layer_end: i64,
    /// Scope layer_ids: layers, separated by commas
    #[arg(long, value_name = "LIST", default_value = "", value_parser = layer_ids, requires = "reference")]
    layer_ids: BTreeSet<i64>,
    /// Level of ZSTD
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, requires = "reference")]
    zstd_level: i32,
    /// Skip f32 entries instead of rounding them to f16
    #[arg(long, requires = "reference")]
    strict_fp16: bool,
    /// Leave out entries of fewer tokens; 0: off
    #[arg(long, value_name = "TOKENS", default_value_t = 0, allow_negative_numbers = true, requires = "reference")]
    min_seq_len: i64,
    /// Leave out entries of more tokens; 0: off
    #[arg(long, value_name = "TOKENS", default_value_t = 0, allow_negative_numbers = true, requires = "reference")]
    max_seq_len: i64,
    /// Words that are compressed as one
    #[arg(long, value_name = "MODE", default_value = "per_meta", value_parser = named::<EntryMode>(EntryMode::NAMES), requires = "reference")]
    entry_mode: EntryMode,
    /// Modes chunked and chunked_grouped: tokens of a chunk; 0: whole
    #[arg(long, value_name = "TOKENS", default_value_t = 0, allow_negative_numbers = true, requires = "reference")]
    online_chunk_seq: i64,
    /// Modes chunked and chunked_grouped: bytes added for each chunk of K or V
    #[arg(long, value_name = "BYTES", default_value_t = 16, allow_negative_numbers = true, requires = "reference")]
    online_framing_bytes: i64,
    /// Modes aggregate and chunked_grouped: a group for each stage
    #[arg(long, requires = "reference")]
    aggregate_by_stage: bool,
    /// How a plane is compressed
    #[arg(long, value_name = "MODE", default_value = "adaptive_v22", value_parser = named::<CodecMode>(CodecMode::NAMES), requires = "reference")]
    codec_mode: CodecMode,
    /// Tokens of a block with one predictor
    #[arg(long, value_name = "TOKENS", default_value_t = 64, allow_negative_numbers = true, requires = "reference")]
    adaptive_block_seq: i64,
    /// Order bits by significance before ZSTD
    #[arg(long, requires = "reference")]
    bitshuffle: bool,
    /// Predictors of the high bytes of K [default: all five]
    #[arg(long, value_name = "LIST", requires = "reference")]
    k_hi_predictors: Option<String>,
    /// Predictors of the low bytes of K [default: all five]
    #[arg(long, value_name = "LIST", requires = "reference")]
    k_lo_predictors: Option<String>,
    /// Predictors of the high bytes of V [default: raw,delta_seq,xor_seq]
    #[arg(long, value_name = "LIST", requires = "reference")]
    v_hi_predictors: Option<String>,
    /// Predictors of the low bytes of V [default: raw,delta_seq,xor_seq]
    #[arg(long, value_name = "LIST", requires = "reference")]
    v_lo_predictors: Option<String>,
    /// Accepted and ignored
    #[arg(long, requires = "reference", hide = true)]
    verbose: bool,
}

fn named<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

fn layer_ids(text: &str) -> Result<BTreeSet<i64>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(|_| format!("{part:?} is not a layer number"))).collect()
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
    let evaluated = arguments.options().and_then(|options| {
        pool.install(|| if arguments.per_layer { profiled(dumps, &options) } else { evaluated(dumps, &options) })
    });
    let (json, text) = match evaluated {
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
    let rows: Vec<Vec<String>> = summary
        .iter()
        .map(|(name, ratio)| vec![name.clone(), format!("{:.3}", ratio.as_f64().unwrap_or_default())])
        .collect();
    let text = format!("{} entries\n{}{}", layers.len(), table(&rows), listed("Findings", &findings));
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
    let shown = findings.iter().take(10).map(|f| format!("  {}: {}: {}\n", f.reason, f.place, f.text));
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

impl ReferenceArguments {
    fn options(&self) -> Result<Options, Refused> {
        let usual = Options::default();
        let list = |given: &Option<String>, flag: &str, usual: Vec<Predictor>| match given {
            None => Ok(usual),
            Some(text) => Predictor::list(text, flag),
        };
        Ok(Options {
            stage: self.stage,
            scope: self.scope,
            front_n: self.front_n,
            layer_start: self.layer_start,
            layer_end: self.layer_end,
            layer_ids: self.layer_ids.clone(),
            zstd_level: self.zstd_level,
            strict_fp16: self.strict_fp16,
            min_seq_len: self.min_seq_len,
            max_seq_len: self.max_seq_len,
            entry_mode: self.entry_mode,
            online_chunk_seq: self.online_chunk_seq,
            online_framing_bytes: self.online_framing_bytes,
            aggregate_by_stage: self.aggregate_by_stage,
            codec_mode: self.codec_mode,
            adaptive_block_seq: self.adaptive_block_seq,
            bitshuffle: self.bitshuffle,
            k_hi_predictors: list(&self.k_hi_predictors, "--k-hi-predictors", usual.k_hi_predictors)?,
            k_lo_predictors: list(&self.k_lo_predictors, "--k-lo-predictors", usual.k_lo_predictors)?,
            v_hi_predictors: list(&self.v_hi_predictors, "--v-hi-predictors", usual.v_hi_predictors)?,
            v_lo_predictors: list(&self.v_lo_predictors, "--v-lo-predictors", usual.v_lo_predictors)?,
            faithful: self.faithful,
        })
    }
}

fn text(evaluation: &Evaluation) -> String {
    let result = &evaluation.result;
    let number = |key: &str| result.get(key).and_then(Value::as_u64).unwrap_or_default();
    let row = |name: &str, prefix: &str| {
        let ratio = result.get(&format!("{prefix}lossless_ratio")).and_then(Value::as_f64).unwrap_or_default();
        let bytes = |kind: &str| crate::bytes::count(number(&format!("{prefix}{kind}_bytes")));
        vec![name.to_owned(), bytes("raw"), bytes("compressed"), format!("{ratio:.4}")]
    };
    let head = ["tensors", "raw bytes", "compressed bytes", "ratio"].map(str::to_owned).to_vec();
    let mut text = table(&[head, row("K", "k_"), row("V", "v_"), row("K and V", "")]);
    text += &format!(
        "{} of {} entries selected, {} skipped\n",
        number("selected_entries"),
        number("scanned_entries"),
        number("skipped_entries"),
    );
    text + &listed("Skipped", &evaluation.skipped) + &listed("Mended", &evaluation.mended)
}
