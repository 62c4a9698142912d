//! `mnnkv evaluate`: what mnn-kv would save on a dump, and at what price.

mod options;
mod reference;
pub mod summary;

use crate::failure::Failure;
use crate::output::{self, Output};
use crate::progress;
use crate::results::{Figures, distinct};
use clap::Args;
use mnnkv_model::file::NewFile;
use mnnkv_replay::codec::Zones;
use mnnkv_replay::dumps::{Dump, LayerInfo};
use mnnkv_replay::error::Finding;
use mnnkv_replay::evaluation::{Request, evaluate, work};
use mnnkv_replay::results::Results;
use mnnkv_replay::watch::Watch;
use mnnkv_replay::whole_cache::Rules;
use options::SessionKeys;
pub use options::ratio;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const EXAMPLES: &str = "\
Examples:
  mnnkv evaluate dumps --output results.json
  mnnkv evaluate dumps --config config.json --ratios 2,3.5,8
";

/// Compute what mnn-kv would save on dumps of a KV cache, and at what price.
///
/// The codec encodes and decodes K and V of each layer, whole and in blocks as a session cuts them. What eviction leaves
/// follows from the config, whatever the scores. docs/tools.md lists the formats of dumps. Ctrl-C ends early with exit code 1; results that are finished are
/// still written.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// A folder with dumps, or one file
    dumps: PathBuf,
    /// Write the results as JSON, for `mnnkv gate` and `mnnkv report`
    #[arg(long, alias = "out-json", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the output file
    #[arg(long)]
    overwrite: bool,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// One run of the dump [default: all]
    #[arg(long, value_name = "NAME")]
    run: Option<String>,

    /// A host's config.json, for its kv_h2o_ and kv_lossless_ keys
    #[arg(long, value_name = "FILE", help_heading = "Session")]
    config: Option<PathBuf>,
    /// One such key, stronger than the config's
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = options::assignment, help_heading = "Session")]
    given: Vec<(String, Value)>,

    /// Target ratios: one token in RATIO stays
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1.5,2,3,3.5,5,8", value_parser = options::ratio, help_heading = "Eviction")]
    ratios: Vec<f64>,
    /// Tokens per block of eviction
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,32", value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Eviction")]
    block_tokens: Vec<u32>,
    #[command(flatten)]
    reference: reference::ReferenceArguments,
}

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    if let Some(path) = arguments.output.as_ref().filter(|path| is_of_dump(path, &arguments.dumps)) {
        return Err(Failure(format!("{} is a file of the dump; another output expected", path.display())));
    }
    if let (true, Some(output)) = (arguments.reference.reference, &arguments.output) {
        let threads = usize::from(arguments.threads.unwrap_or(0));
        return reference::run(&arguments.reference, &arguments.dumps, output, arguments.overwrite, threads);
    }
    if let Some(path) = &arguments.output {
        output::refuse_existing(path, arguments.overwrite)?;
        output::refuse_inputs([path], &arguments.config)?;
    }
    // A refusal should not take as long as the evaluation.
    let file = arguments.output.as_deref().map(NewFile::create).transpose()?;
    let mut dump = Dump::open(&arguments.dumps).map_err(|e| e.to_string())?;
    choose_runs(&mut dump, arguments.run.as_deref())?;
    let tokens = dump.layers.iter().map(|info| info.tokens).max().unwrap_or(0);
    let session = SessionKeys::read(arguments.config.as_deref(), &arguments.given, tokens)?;
    dump.findings.splice(0..0, findings(&session, tokens));
    let request = arguments.request(&session);
    let results = arguments.evaluate(&dump, &session, &request)?;

    let json = serde_json::to_value(&results).map_err(|e| e.to_string())?;
    if let Some(mut file) = file {
        let text = serde_json::to_string_pretty(&json).map_err(|e| e.to_string())?;
        file.write((text + "\n").as_bytes())?;
        file.finish()?;
    }
    let figures = Figures::new(String::new(), results);
    let text = summary::text(&figures, arguments.output.as_deref());
    Ok(Output { text, json, clean: figures.results.complete })
}

/// Whether an existing file is one of the dump: it is below it, and no earlier result. Input files are never changed.
fn is_of_dump(path: &Path, dumps: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_result = name.ends_with(".json") && !name.contains("meta_");
    !is_result && real(path).zip(real(dumps)).is_some_and(|(path, dumps)| path.starts_with(dumps))
}

/// The findings about the session's keys.
fn findings(session: &SessionKeys, tokens: usize) -> Vec<Finding> {
    let unknown = session.warnings.iter().map(|warning| Finding::new("unknown_key", "--config, --set", warning));
    let mut findings: Vec<Finding> = unknown.collect();
    if !session.shrunk.is_empty() {
        let keys: Vec<String> = session.shrunk.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let text = format!("the dump has {tokens} tokens; keys that are smaller than by default: {}", keys.join(", "));
        findings.push(Finding::new("short", "--set", text));
    }
    findings
}

/// Keeps one run, or else all but those that repeat another one in a second type: their bytes would count twice.
fn choose_runs(dump: &mut Dump, run: Option<&str>) -> Result<(), Failure> {
    let runs: BTreeSet<String> = dump.layers.iter().map(|info| info.run.clone()).collect();
    if let Some(run) = run {
        if !runs.contains(run) {
            let names: Vec<&str> = runs.iter().map(String::as_str).collect();
            return Err(Failure(format!("--run: no run {run:?}; the runs are {}", names.join(", "))));
        }
        dump.retain(|info| info.run == run);
        return Ok(());
    }
    let twin = |info: &LayerInfo| {
        let end = format!(".{}", info.dtype.name().to_lowercase());
        info.run.strip_suffix(&end).filter(|other| runs.contains(*other)).map(str::to_owned)
    };
    let twins: BTreeSet<(String, String)> =
        dump.layers.iter().filter_map(|info| Some((info.run.clone(), twin(info)?))).collect();
    for (run, other) in &twins {
        let text = format!("is {other} in another type, and left out; --run {run} evaluates it");
        dump.findings.push(Finding::new("twin", format!("run {run}"), text));
    }
    dump.retain(|info| twin(info).is_none());
    Ok(())
}

impl Arguments {
    fn request(&self, session: &SessionKeys) -> Request {
        let zones = Zones::of(&session.lossless);
        Request {
            rules: Rules {
                first_evicted_layer: session.eviction.first_layer,
                end_evicted_layer: session.eviction.end_layer,
                sink_tokens: session.eviction.sink_tokens,
                recent_tokens: session.eviction.recent_tokens,
                zones,
            },
            ratios: distinct(self.ratios.iter().copied()),
            block_tokens: distinct(self.block_tokens.iter().copied()),
        }
    }

    fn evaluate(&self, dump: &Dump, session: &SessionKeys, request: &Request) -> Result<Results, Failure> {
        // A second Ctrl-C ends the program at once.
        let handler = || {
            if STOP.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        };
        ctrlc::set_handler(handler).map_err(|e| format!("Ctrl-C cannot be handled: {e}"))?;
        let threads = usize::from(self.threads.unwrap_or(0));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| e.to_string())?;
        let bar = progress::bytes("evaluating", work(dump));
        let done = |amount| bar.inc(amount);
        let watch = Watch { stop: &STOP, done: &done };
        let name = self.dumps.display().to_string();
        let settings = settings(session, request, pool.current_num_threads());
        let results = pool.install(|| evaluate(dump, &name, settings, request, watch));
        bar.finish_and_clear();
        Ok(results.map_err(|e| e.to_string())?)
    }
}

/// The options that results depend on.
fn settings(session: &SessionKeys, request: &Request, threads: usize) -> Map<String, Value> {
    let settings = json!({
        "threads": threads,
        "config": session.keys,
        "front_layers": session.eviction.first_layer,
        "ratios": request.ratios,
        "block_tokens": request.block_tokens,
    });
    let Value::Object(settings) = settings else { unreachable!("an object is given") };
    settings
}
