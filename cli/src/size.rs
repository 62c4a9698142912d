//! `mnnkv size`: bytes of a KV cache, savings, and the longest context in a budget.

mod budget;
mod config;

use crate::bytes;
use crate::dtype;
use crate::failure::Failure;
use crate::output::Output;
use crate::table;
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args};
use config::Config;
use mnnkv_model::sizing::{
    Attention, AttentionMode, CacheElement, Group, H2o, Kv, LayerShape, Longest, Lossless, MAX_LAYERS, MnnCache,
    MnnCpu, MnnNumbers, ModelConfig, Request, Savings, Setup, SizeReport, Span,
};
use serde_json::Value;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  mnnkv size --config Qwen2.5-1.5B-Instruct --context 32768 --budget 2GiB
  mnnkv size --config config.json --h2o 3.5 --lossless 1.3
  mnnkv size --config Qwen2.5-1.5B-Instruct-MNN --cpu arm-i8mm
  mnnkv size --config config.json --attention-mode 10
  mnnkv size --layers 32 --kv-heads 8 --head-dim 128 --dtype bf16 --tp 2
";

/// Contexts without `--context`.
const USUAL_CONTEXTS: [u64; 3] = [4096, 32768, 131072];

/// Compute the size of a model's KV cache, savings, and what a budget holds.
///
/// The model is a Hugging Face config.json, MNN's llm_config.json or config.json, a directory with one, or numbers:
/// --layers, --kv-heads and --head-dim, or for MLA --layers, --kv-lora-rank and --rope-head-dim.
///
/// Sizes of MNN's configs, and of others with --attention-mode, are those of the buffers of MNN's CPU backend, with
/// packing, scales and sums, and with room for 64 tokens beyond the context. MNN's exporter writes KV heads and head_dim
/// up to 3.3: for later exports add --kv-heads and --head-dim, or give the Hugging Face config and --attention-mode.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES, group(ArgGroup::new("heads").multiple(true)))]
pub struct Arguments {
    /// A config.json or llm_config.json, or a directory with one
    #[arg(
        long,
        value_name = "PATH",
        group = "heads",
        required_unless_present = "layers",
        conflicts_with = "kv_lora_rank"
    )]
    config: Option<PathBuf>,
    /// Layers with a KV cache, instead of a config, or where one of MNN has none
    #[arg(long, value_name = "N", requires = "heads", value_parser = clap::value_parser!(u32).range(1..=MAX_LAYERS as i64), help_heading = "Model in numbers")]
    layers: Option<u32>,
    /// KV heads of a layer
    #[arg(long, value_name = "N", group = "heads", requires = "head_dim", help_heading = "Model in numbers")]
    kv_heads: Option<u32>,
    /// Length of a head's keys and values
    #[arg(long, value_name = "N", requires = "kv_heads", help_heading = "Model in numbers")]
    head_dim: Option<u32>,
    /// MLA: length of the latent vector
    #[arg(
        long,
        value_name = "N",
        requires = "layers",
        group = "heads",
        requires = "rope_head_dim",
        conflicts_with = "kv_heads",
        help_heading = "Model in numbers"
    )]
    kv_lora_rank: Option<u32>,
    /// MLA: length of the rotated key
    #[arg(long, value_name = "N", requires = "kv_lora_rank", help_heading = "Model in numbers")]
    rope_head_dim: Option<u32>,

    /// Element type of the cache [default: that of the config, else f16; MNN's of the CPU and precision]
    #[arg(long, value_parser = dtype::named(&["f16", "bf16", "f32", "fp8", "int8", "int4"]))]
    dtype: Option<CacheElement>,
    /// MNN's attention_mode: 8 or 15 float, 9 K int8, 10 int8, 11 K TQ3, 12 TQ3, 13 K TQ4, 14 TQ4; 0 to 3, 5 and 7 without
    /// flash attention [default: that of MNN's config, else 8]
    #[arg(long, value_name = "N", value_parser = attention_mode, help_heading = "MNN")]
    attention_mode: Option<AttentionMode>,
    /// CPU whose packing MNN uses [default: avx2]. K and V that are not quantised are f32 on x86; on Arm from sdot on
    /// they are f16, unless precision is not "low" in MNN's config
    #[arg(long, value_parser = PossibleValuesParser::new(MnnCpu::ALL.map(|cpu| cpu.name)), help_heading = "MNN")]
    cpu: Option<String>,
    /// Tensor-parallel ranks; sizes are those of one rank
    #[arg(long, value_name = "RANKS", default_value_t = 1)]
    tp: u32,
    /// Sequences at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: u32,
    /// Tokens of a sequence; a list is separated by commas
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    context: Vec<u64>,
    /// Memory for the cache, such as 64MB; prints the longest context that fits, and what kv_memory_mb makes of it
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    budget: Option<u64>,

    /// Eviction by attention: one token in RATIO stays
    #[arg(long, value_name = "RATIO", help_heading = "Savings")]
    h2o: Option<f64>,
    /// First and last layer to evict from, FIRST or FIRST-LAST [default: 2]
    #[arg(long, value_name = "LAYERS", value_parser = layer_range, requires = "h2o", help_heading = "Savings")]
    h2o_layers: Option<(u32, Option<u32>)>,
    /// Lossless compression of cold tokens by RATIO, as measured on this model
    #[arg(long, value_name = "RATIO", help_heading = "Savings")]
    lossless: Option<f64>,
    /// Number of first layers to compress [default: 2]
    #[arg(long, value_name = "N", requires = "lossless", help_heading = "Savings")]
    lossless_layers: Option<u32>,
    /// Also compress the remaining tokens in layers of --h2o
    #[arg(long, requires = "lossless", requires = "h2o", help_heading = "Savings")]
    lossless_h2o_layers: bool,
}

fn layer_range(text: &str) -> Result<(u32, Option<u32>), String> {
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a layer number"));
    match text.split_once('-') {
        None => Ok((number(text)?, None)),
        Some((first, last)) => Ok((number(first)?, Some(number(last)?))),
    }
}

fn attention_mode(text: &str) -> Result<AttentionMode, String> {
    let number = text.parse().map_err(|_| format!("{} expected", AttentionMode::KNOWN))?;
    AttentionMode::new(number, "it").map_err(|e| e.message().to_owned())
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let (model, mnn) = model(arguments)?;
    let mut report = SizeReport::new(&model, &request(arguments, &model, mnn))?;
    if arguments.config.is_some() && arguments.dtype.or(model.element).is_none() {
        report.notes.push("the config has no dtype that is known here: f16 is assumed (--dtype)".into());
    }
    let kept = arguments.budget.and_then(|budget| budget::Kept::new(&model, budget, &mut report));
    let mut json: Value = serde_json::from_str(&report.json()?)?;
    if let Some(kept) = &kept {
        json["kv_memory"] = kept.json();
    }
    Ok(Output::new(text(&report, arguments.budget, kept.as_ref()), json))
}

/// The model, and MNN's cache where one is sized.
fn model(arguments: &Arguments) -> Result<(ModelConfig, Option<MnnCache>), Failure> {
    let (mut model, mode, low_precision) = match &arguments.config {
        None => (by_numbers(arguments), arguments.attention_mode, true),
        Some(path) => match config::read(path, given(arguments), arguments.attention_mode)? {
            Config::Mnn(mnn) => (mnn.model, Some(mnn.mode), mnn.low_precision),
            Config::HuggingFace(_) if arguments.layers.or(arguments.kv_heads).is_some() => {
                let path = path.display();
                return Err(Failure(format!(
                    "{path} is a Hugging Face config, which has all numbers; no --layers, --kv-heads or --head-dim expected"
                )));
            }
            Config::HuggingFace(model) => (model, arguments.attention_mode, true),
        },
    };
    if mode.is_none() && arguments.cpu.is_none() {
        return Ok((model, None));
    }
    let cpu = arguments.cpu.as_deref().unwrap_or("avx2");
    let cpu = MnnCpu::named(cpu).ok_or_else(|| Failure(format!("a bug in mnnkv: no CPU {cpu}")))?;
    let element = arguments.dtype.unwrap_or(cpu.element(low_precision));
    model.keep_all_tokens()?;
    // The element of a Hugging Face config is that of the weights.
    model.element = Some(element);
    let mode = mode.unwrap_or(AttentionMode::DEFAULT);
    let path = arguments.config.as_deref().map(config::file_of).unwrap_or_default();
    mode.check_model_type(model.model_type.as_deref(), format_args!("{}: model_type", path.display()))?;
    Ok((model, Some(MnnCache::new(mode, cpu, element)?)))
}

fn given(arguments: &Arguments) -> MnnNumbers {
    MnnNumbers { layers: arguments.layers, heads: arguments.kv_heads.zip(arguments.head_dim) }
}

fn by_numbers(arguments: &Arguments) -> ModelConfig {
    let number = |value: Option<u32>| value.unwrap_or_default();
    let kv = match arguments.kv_lora_rank {
        Some(kv_lora_rank) => Kv::Latent { kv_lora_rank, qk_rope_head_dim: number(arguments.rope_head_dim) },
        None => Kv::Heads { kv_heads: number(arguments.kv_heads), head_dim: number(arguments.head_dim) },
    };
    let layer = LayerShape::Attention(Attention { kv, span: Span::Full });
    let layers = vec![layer; number(arguments.layers) as usize];
    ModelConfig { model_type: None, layers, element: None, max_context: None, notes: Vec::new() }
}

fn request(arguments: &Arguments, model: &ModelConfig, mnn: Option<MnnCache>) -> Request {
    let element = arguments.dtype.or(model.element).unwrap_or(CacheElement::F16);
    let h2o = arguments.h2o.map(|ratio| match arguments.h2o_layers {
        None => H2o::new(ratio),
        Some((first_layer, last_layer)) => H2o { first_layer, last_layer, ..H2o::new(ratio) },
    });
    let lossless = arguments.lossless.map(|ratio| {
        let usual = Lossless::new(ratio);
        let front_layers = arguments.lossless_layers.unwrap_or(usual.front_layers);
        Lossless { front_layers, h2o_layers: arguments.lossless_h2o_layers, ..usual }
    });
    let mut contexts = arguments.context.clone();
    if contexts.is_empty() {
        contexts =
            USUAL_CONTEXTS.into_iter().filter(|tokens| model.max_context.is_none_or(|max| *tokens < max)).collect();
        contexts.extend(model.max_context);
    }
    Request {
        setup: Setup { element, ranks: arguments.tp, batch: arguments.batch, mnn },
        savings: Savings { h2o, lossless },
        contexts,
        budget: arguments.budget,
    }
}

fn text(report: &SizeReport, budget: Option<u64>, kept: Option<&budget::Kept>) -> String {
    let plural = |n: u32, what: &str| bytes::plural(n.into(), what);
    let kind = match &report.setup.mnn {
        None => report.setup.element.name().to_owned(),
        Some(mnn) => {
            let ([key, value], mode) = (mnn.names(), mnn.mode.number());
            format!("K {key}, V {value} (attention_mode {mode} of MNN on {})", mnn.cpu.name)
        }
    };
    let mut text = format!(
        "{}: {}, {kind}, {}, {}\n\n",
        report.model_type.as_deref().unwrap_or("model"),
        plural(report.layers, "layer"),
        plural(report.setup.ranks, "rank"),
        plural(report.setup.batch, "sequence"),
    );
    text += "Layers\n";
    text += &table::lines(report.groups.iter().map(group));
    text += "\nBytes for each token";
    text += if report.setup.ranks > 1 { " on each rank\n" } else { "\n" };
    let per_token = |bytes: u64| format!("{} B ({})", bytes::count(bytes), bytes::format(bytes));
    let mut rows = vec![vec![per_token(report.bytes_per_token)]];
    if report.bytes_per_late_token != report.bytes_per_token {
        rows[0].push("at first".into());
        rows.push(vec![per_token(report.bytes_per_late_token), "once every window is full".into()]);
    }
    text += &table::lines(rows);
    if !report.totals.is_empty() {
        text += "\nBytes of a cache\n";
        text += &totals(report);
    }
    if let (Some(plain), Some(saved), Some(budget)) = (&report.longest_without_savings, &report.longest, budget) {
        text += &format!("\nLongest context in {}\n", bytes::format(budget));
        let mut rows = vec![longest(plain, "as it is")];
        if report.savings != Savings::default() {
            rows.push(longest(saved, "with savings, at the peak of a step"));
        }
        text += &table::lines(rows);
    }
    if let Some(kept) = kept {
        text += &kept.text();
    }
    if !report.notes.is_empty() {
        text += "\nNotes\n";
        report.notes.iter().for_each(|note| text += &format!("  - {note}\n"));
    }
    text
}

fn group(group: &Group) -> Vec<String> {
    let mut row = vec![ranges(&group.numbers)];
    match group.layer {
        LayerShape::Attention(Attention { kv, span }) => {
            row.push(match kv {
                Kv::Heads { kv_heads, head_dim } => format!("{kv_heads} KV heads x {head_dim}"),
                Kv::Latent { kv_lora_rank, qk_rope_head_dim } => {
                    format!("latent {kv_lora_rank} + rotated key {qk_rope_head_dim}")
                }
            });
            row.push(match span {
                Span::Full => "all tokens".into(),
                Span::Sliding(window) => format!("last {} tokens", bytes::count(window.into())),
                Span::Chunked(chunk) => format!("chunks of {} tokens", bytes::count(chunk.into())),
            });
            row.push(format!("{} B", bytes::count(group.layer_bytes_per_token)));
            row.push("per token".into());
        }
        LayerShape::Shared => row.extend(["cache of an earlier layer".into(), "none of their own".into()]),
        LayerShape::Recurrent { .. } => row.extend(["recurrent state".into(), "no cache".into()]),
    }
    row
}

/// Ascending numbers as a list of ranges: `0-4, 6, 8-9`.
fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *n => *last = *n,
            _ => runs.push((*n, *n)),
        }
    }
    let shown = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    let mut text = runs.iter().take(4).map(shown).collect::<Vec<_>>().join(", ");
    if runs.len() > 4 {
        text += &format!(", ... ({} layers)", numbers.len());
    }
    text
}

/// A line for each context, with a column for each active saving.
fn totals(report: &SizeReport) -> String {
    let on = &report.savings;
    let stages = [
        ("raw", true),
        ("h2o", on.h2o.is_some()),
        ("lossless", on.lossless.is_some()),
        ("peak in a step", on.lossless.is_some()),
    ];
    let mut head = vec!["context".to_owned()];
    head.extend(stages.iter().filter(|s| s.1).enumerate().map(|(i, s)| {
        let joined = i > 1 && s.0 != "peak in a step";
        if joined { format!("+ {}", s.0) } else { s.0.to_owned() }
    }));
    let saved = *on != Savings::default();
    if saved {
        head.push("ratio".into());
    }
    if report.setup.ranks > 1 {
        head.push("all ranks".into());
    }
    let mut rows = Vec::new();
    for total in &report.totals {
        let mut row = vec![bytes::count(total.context)];
        let amounts = total.rank.stages();
        row.extend(amounts.iter().zip(stages).filter(|(_, s)| s.1).map(|((_, amount), _)| bytes::format(*amount)));
        if saved {
            row.push(match total.rank.peak {
                0 => "-".into(),
                peak => format!("{:.2} : 1", total.rank.raw as f64 / peak as f64),
            });
        }
        if report.setup.ranks > 1 {
            row.push(bytes::format(total.all_ranks.peak));
        }
        rows.push(row);
    }
    table::text(&head, rows)
}

fn longest(longest: &Longest, how: &str) -> Vec<String> {
    let tokens = if longest.bounded {
        format!("{} tokens", bytes::count(longest.tokens))
    } else {
        format!("{} tokens and more", bytes::count(longest.tokens))
    };
    vec![tokens, bytes::format(longest.bytes), how.into()]
}
