//! `mnnkv quality`: what eviction costs in the losses of a language model.

use crate::failure::Failure;
use crate::output::{self, Output};
use crate::progress;
use clap::Args;
use mnnkv_replay::llama::Model;
use mnnkv_replay::quality::{self, Goal, Method, Request, Results, Row, Task, WHOLE};
use mnnkv_replay::watch::Watch;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

const EXAMPLES: &str = "\
Examples:
  mnnkv quality model --tokens tokens.u16
  mnnkv quality model --tokens tokens.u16 --texts 8 --method mass --task recall
  mnnkv quality model --tokens tokens.u16 --method 'mine={\"kv_h2o_block_tokens\":16}'
";

/// Measure what eviction and recall cost in the quality of a language model.
///
/// A Llama or a Qwen2 reads texts through sessions, one for each method. A factor is the perplexity of the scored tokens over that
/// of the whole cache, over texts, with its paired standard error. docs/quality.md has the tasks and the methods. Goals
/// that are missed are RED, and no failure.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Arguments {
    /// A GGUF file, or a folder with config.json and safetensors files, of a Llama or a Qwen2
    model: PathBuf,
    /// Token ids of text, little-endian u16
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Texts of each task
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(2..))]
    texts: u16,
    /// The random numbers that texts are drawn with
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// A method by its name, or NAME={...} with keys of a config; repeatable [default: all]
    #[arg(long = "method", value_name = "METHOD", value_parser = method)]
    methods: Vec<Method>,
    /// A task: recall, needle or plain; repeatable [default: all]
    #[arg(long = "task", value_name = "TASK", value_parser = task)]
    tasks: Vec<Task>,
    /// Tokens per kept token; repeatable [default: 3.5, and 8 for recall and needle]
    #[arg(long = "ratio", value_name = "N", value_parser = crate::evaluate::ratio)]
    ratios: Vec<f64>,
}

/// Parses the name of a built-in method, or `NAME={...}`.
fn method(text: &str) -> Result<Method, String> {
    let known = quality::methods();
    if let Some(method) = known.iter().find(|method| method.name == text) {
        return Ok(method.clone());
    }
    let names = || known.iter().map(|method| format!("{:?}", method.name)).collect::<Vec<_>>().join(", ");
    let (name, keys) = text.split_once('=').ok_or_else(|| format!("one of {} or NAME={{...}} expected", names()))?;
    match serde_json::from_str(keys) {
        Ok(keys) => Ok(Method { name: name.into(), keys, goals: Vec::new() }),
        Err(e) => Err(format!("the keys of {name} are not a JSON object: {e}")),
    }
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
    let tokens = quality::read_tokens(&arguments.tokens, model.shape().vocabulary).map_err(|e| e.to_string())?;
    let request = arguments.request();
    let total = request.tasks.len() * request.methods.len() * request.texts;
    let bar = progress::parts("measuring", total as u64);
    let done = |amount| bar.inc(amount);
    let watch = Watch { stop: &AtomicBool::new(false), done: &done };
    let results = pool.install(|| quality::measure(&model, &tokens, &request, watch));
    bar.finish_and_clear();
    let results = results.map_err(|e| e.to_string())?;
    let json = serde_json::to_value(&results).map_err(|e| e.to_string())?;
    Ok(Output::new(text(&results), json))
}

impl Arguments {
    fn request(&self) -> Request {
        let mut methods = if self.methods.is_empty() { quality::methods() } else { self.methods.clone() };
        if methods.iter().all(|method| method.name != WHOLE) {
            methods.splice(0..0, quality::methods().into_iter().filter(|method| method.name == WHOLE));
        }
        let tasks: Vec<(Task, f64)> = match &self.ratios[..] {
            [] => quality::tasks(),
            ratios => Task::ALL.iter().flat_map(|task| ratios.iter().map(|ratio| (*task, *ratio))).collect(),
        };
        let wanted = |task: &Task| self.tasks.is_empty() || self.tasks.contains(task);
        Request {
            methods,
            tasks: tasks.into_iter().filter(|(task, _)| wanted(task)).collect(),
            texts: usize::from(self.texts),
            seed: self.seed,
        }
    }
}

fn text(results: &Results) -> String {
    let mut text = format!("{} texts of each task, seed {}\n", results.texts, results.seed);
    let mut rows = &results.rows[..];
    while let [first, ..] = rows {
        let count = rows.iter().take_while(|row| (row.task, row.ratio) == (first.task, first.ratio)).count();
        let (group, rest) = rows.split_at(count);
        text += &format!("\n{}, 1 of {}\n", first.task.name(), first.ratio);
        let heading = [
            "method",
            "factor",
            "+-",
            "goal",
            "",
            "tokens",
            "over",
            "kept",
            "parked",
            "back",
            "late",
            "us per layer",
            "tokens/s",
        ];
        let table = std::iter::once(heading.map(String::from).to_vec()).chain(group.iter().map(cells));
        text += &output::table(&table.collect::<Vec<_>>());
        rows = rest;
    }
    for left in &results.left {
        text += &format!("\n{} is left out: {}\n", left.method, left.reason);
    }
    text + &summary(results)
}

/// A table of Markdown, which `make benchmarks` copies into documents: a row of each method, and for each ratio the factors
/// of the tasks and the mean tokens in a cache.
fn summary(results: &Results) -> String {
    let of = |method: &str| results.rows.iter().filter(|row| row.method == method).collect::<Vec<_>>();
    let whole = of(WHOLE);
    let groups = || whole.chunk_by(|a, b| a.ratio == b.ratio);
    let mut methods: Vec<&str> = results.rows.iter().map(|row| row.method.as_str()).collect();
    methods.retain(|method| *method != WHOLE);
    methods.sort_unstable_by_key(|method| results.rows.iter().position(|row| row.method == *method));
    methods.dedup();
    let heads = groups().flat_map(|group| {
        let tasks = group.iter().map(|row| format!("{}, 1 of {}", row.task.name(), row.ratio));
        tasks.chain(["tokens".into()])
    });
    let heads: Vec<String> = heads.collect();
    let mut text = format!("\n## quality: {} texts, seed {}\n\n", results.texts, results.seed);
    text += &format!("| method | {} |\n|---|{}\n", heads.join(" | "), "--:|".repeat(heads.len()));
    for method in methods {
        let rows = of(method);
        let cells = groups().flat_map(|group| {
            let found = |whole: &&Row| rows.iter().find(|row| (row.task, row.ratio) == (whole.task, whole.ratio));
            let factor = |row: &&Row| format!("{:.3} +- {:.3}", row.factor, row.error);
            let factors = group.iter().map(|whole| found(whole).map_or(String::new(), factor));
            let tokens: Vec<f64> = group.iter().filter_map(found).map(|row| row.resident_tokens).collect();
            let mean = tokens.iter().sum::<f64>() / tokens.len() as f64;
            factors.chain([if tokens.is_empty() { String::new() } else { format!("{mean:.0}") }]).collect::<Vec<_>>()
        });
        text += &format!("| {method} | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    text
}

fn cells(row: &Row) -> Vec<String> {
    let verdict = |goal: Goal| if goal.kept { "ok" } else { "RED" };
    vec![
        row.method.clone(),
        format!("{:.3}", row.factor),
        format!("{:.3}", row.error),
        row.goal.map_or(String::new(), |goal| format!("{:.3}", goal.most)),
        row.goal.map_or(String::new(), |goal| verdict(goal).into()),
        format!("{:.0}", row.resident_tokens),
        if row.most_over_budget > 0 { row.most_over_budget.to_string() } else { "never".into() },
        format!("{:.1}%", 100.0 * row.resident_share),
        format!("{:.1}%", 100.0 * row.parked_share),
        format!("{:.2}", row.returned_blocks),
        row.failed_blocks.to_string(),
        format!("{:.1}", row.library_us),
        format!("{:.0}", row.tokens_per_second),
    ]
}
