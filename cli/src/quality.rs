//! `mnnkv quality`: what eviction and fewer bits cost in the losses of a language model.

use crate::evaluate;
use crate::failure::Failure;
use crate::output::Output;
use crate::results::distinct;
use crate::{progress, table};
use clap::Args;
use mnnkv_replay::quality::{self, Item, MIN_PROMPT, Method, PROMPT, Request, Results, STEPS, Task, WHOLE};
use mnnkv_replay::transformer::Model;
use mnnkv_replay::watch::Watch;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

const EXAMPLES: &str = "\
Examples:
  mnnkv quality model.gguf --tokens tokens.u16
  mnnkv quality model.gguf --tasks tasks.jsonl --method k8v4
  mnnkv quality model.gguf --tokens tokens.u16 --texts 8 --method mass --task recall --prompt 768
  mnnkv quality model.gguf --tokens tokens.u16 --method 'mine={\"kv_h2o_block_tokens\":16}'
";

/// Measure what eviction and fewer bits cost in the quality of a language model.
///
/// A Llama, a Qwen2 or a Gemma 3 reads texts through sessions, one for each method. A factor is the perplexity of the scored tokens over
/// that of the whole cache, with its paired standard error over texts; a text is exact if every scored token is the model's
/// first choice. docs/quality.md has the tasks and the methods.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// A GGUF file of a Llama, a Qwen2 or a Gemma 3
    model: PathBuf,
    /// Token ids of text for the built-in tasks, little-endian u16, or u32 in a file *.u32
    #[arg(long, value_name = "FILE", required_unless_present = "items")]
    tokens: Option<PathBuf>,
    /// Texts with scored ranges instead of the built-in tasks, one in JSON on each line
    #[arg(long = "tasks", value_name = "FILE", conflicts_with_all = ["tokens", "tasks", "texts", "seed", "prompt"])]
    items: Option<PathBuf>,
    /// Texts of each built-in task, at least 2
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(2..))]
    texts: u16,
    /// Tokens before the question in the built-in tasks
    #[arg(long, value_name = "TOKENS", default_value_t = PROMPT)]
    prompt: usize,
    /// The random numbers that texts are drawn with
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// A method by its name, or NAME={...} with keys of a config; repeatable [default: the table of docs/quality.md]
    #[arg(long = "method", value_name = "METHOD", value_parser = method)]
    methods: Vec<Method>,
    /// A built-in task: recall, needle or plain; repeatable [default: all]
    #[arg(long = "task", value_name = "TASK", value_parser = task)]
    tasks: Vec<Task>,
    /// Tokens per kept token; repeatable [default: 3.5]
    #[arg(long = "ratio", value_name = "N", value_parser = evaluate::ratio)]
    ratios: Vec<f64>,
    /// Texts that run side by side on a thread; each takes memory for two caches
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
}

/// Parses the name of a built-in method, or `NAME={...}`.
fn method(text: &str) -> Result<Method, String> {
    let known = quality::methods();
    if let Some(method) = known.iter().find(|method| method.name == text) {
        return Ok(method.clone());
    }
    let Some((name, keys)) = text.split_once('=') else {
        let names: Vec<String> = known.iter().map(|method| format!("{:?}", method.name)).collect();
        return Err(format!("one of {} or NAME={{...}} expected", names.join(", ")));
    };
    if known.iter().any(|known| known.name == name) {
        return Err(format!("{name} is built in with keys of its own; another name expected"));
    }
    let keys = serde_json::from_str(keys).map_err(|e| format!("the keys of {name} are not a JSON object: {e}"))?;
    Ok(Method { name: name.into(), keys, rounding: None })
}

fn task(text: &str) -> Result<Task, String> {
    let names = Task::ALL.map(Task::name);
    let found = Task::ALL.into_iter().find(|task| task.name() == text);
    found.ok_or_else(|| format!("one of {} expected", names.join(", ")))
}

/// `mnnkv quality`.
pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let threads = usize::from(arguments.threads.unwrap_or(0));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|e| e.to_string())?;
    let model = Model::open(&arguments.model).map_err(|e| e.to_string())?;
    let request = arguments.request(&model)?;
    let total = request.items.len() * request.methods.len() * request.ratios.len();
    let bar = progress::parts("measuring", total as u64);
    let done = |amount| bar.inc(amount);
    let watch = Watch { stop: &AtomicBool::new(false), done: &done };
    let results = pool.install(|| quality::measure(&model, &request, watch));
    bar.finish_and_clear();
    let results = results.map_err(|e| e.to_string())?;
    let json = serde_json::to_value(&results).map_err(|e| e.to_string())?;
    Ok(Output::new(text(&arguments.conditions(&request), &results), json))
}

impl Arguments {
    fn request(&self, model: &Model) -> Result<Request, Failure> {
        let mut methods = match &self.methods[..] {
            [] => quality::methods(),
            methods => methods.to_vec(),
        };
        if let Some(at) = (1..methods.len()).find(|at| methods[..*at].iter().any(|m| m.name == methods[*at].name)) {
            return Err(Failure(format!("--method {} comes twice", methods[at].name)));
        }
        if methods.iter().all(|method| method.name != WHOLE) {
            methods.splice(0..0, quality::methods().into_iter().filter(|method| method.name == WHOLE));
        }
        let mut ratios = if self.ratios.is_empty() { vec![3.5] } else { self.ratios.clone() };
        ratios.sort_by(f64::total_cmp);
        ratios.dedup();
        Ok(Request { methods, items: self.texts(model)?, ratios, batch: usize::from(self.batch) })
    }

    /// The texts of the file, or those of the built-in tasks.
    fn texts(&self, model: &Model) -> Result<Vec<Item>, Failure> {
        let shape = model.shape();
        let Some(path) = &self.tokens else {
            let path = self.items.as_deref().unwrap_or(Path::new(""));
            let mut items = quality::read_items(path, shape).map_err(|e| e.to_string())?;
            // Kinds in the order of their first items.
            let kinds: Vec<String> = items.iter().map(|item| item.kind.clone()).collect();
            items.sort_by_key(|item| kinds.iter().position(|kind| *kind == item.kind));
            return Ok(items);
        };
        let first = model.first_token();
        let others = STEPS + first.iter().len();
        let most = shape.context.saturating_sub(others);
        if !(MIN_PROMPT..=most).contains(&self.prompt) {
            return Err(Failure(format!(
                "--prompt is {}; {MIN_PROMPT} to {most} expected, the model's context of {} less {others}",
                self.prompt, shape.context
            )));
        }
        let tokens = quality::read_tokens(path, shape.vocabulary).map_err(|e| e.to_string())?;
        let mut items = Vec::new();
        for task in Task::ALL.into_iter().filter(|task| self.tasks.is_empty() || self.tasks.contains(task)) {
            let drawn = task.items(&tokens, first, self.prompt, usize::from(self.texts), self.seed);
            items.extend(drawn.map_err(|e| format!("{}: {e}", path.display()))?);
        }
        Ok(items)
    }

    fn conditions(&self, request: &Request) -> String {
        match &self.items {
            Some(path) => format!("{} texts of {}", request.items.len(), path.display()),
            None => format!("{} texts of each task, prompts of {} tokens, seed {}", self.texts, self.prompt, self.seed),
        }
    }
}

fn text(conditions: &str, results: &Results) -> String {
    let mut text = summary(conditions, results);
    for left in &results.left {
        text += &format!("\n{} is left out: {}\n", left.method, left.reason);
    }
    text
}

/// A table of Markdown, which `make benchmarks` copies into documents: a row of each method, and for each ratio the factors
/// of the kinds, the divergences, and the mean tokens in a cache.
fn summary(conditions: &str, results: &Results) -> String {
    let rows = &results.rows;
    let mut groups: Vec<(&str, f64)> = rows.iter().map(|row| (row.kind.as_str(), row.ratio)).collect();
    groups.dedup();
    // One table for each ratio, its kinds side by side.
    groups.sort_by(|a, b| a.1.total_cmp(&b.1));
    let methods = distinct(rows.iter().map(|row| row.method.as_str()));
    let heads = groups.iter().flat_map(|(kind, ratio)| [format!("{kind}, 1 of {ratio}"), "divergence".into()]);
    let heads: Vec<String> = std::iter::once("method".into()).chain(heads).chain(["kept".into()]).collect();
    let row = |method: &str| {
        let of = |(kind, ratio): &(&str, f64)| {
            rows.iter().find(|row| row.method == method && row.kind == *kind && row.ratio == *ratio)
        };
        let cells = |group: &(&str, f64)| match of(group) {
            Some(row) if method == WHOLE => [format!("loss {:.3}", row.loss), "0".into()],
            Some(row) => {
                let error = row.error.map_or(String::new(), |error| format!(" +- {error:.3}"));
                [format!("{:.3}{error}", row.factor), format!("{:.4}", row.divergence)]
            }
            None => Default::default(),
        };
        let kept: Vec<f64> = groups.iter().filter_map(of).map(|row| 100.0 * row.resident_share).collect();
        let kept = kept.iter().sum::<f64>() / kept.len() as f64;
        let cells = std::iter::once(method.to_owned()).chain(groups.iter().flat_map(cells));
        cells.chain([format!("{kept:.0} %")]).collect()
    };
    let table = table::markdown(&heads, |column| column > 0, methods.into_iter().map(row));
    format!("## quality: {conditions}\n\n{table}")
}
