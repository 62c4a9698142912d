//! The cost of eviction in quality: a language model reads texts through sessions, one for each policy, and its losses are
//! compared with those of the whole cache, text by text.
//!
//! The prompt of a text is run once; every method begins with its keys and values, and evicts from then on. The tokens
//! behind the prompt are given one by one.

mod chat;
mod methods;
mod results;
mod tasks;

pub use methods::{Bound, FIRST_EVICTED, Keys, Method, WHOLE, methods};
pub use results::{Goal, Left, Results, Row};
pub use tasks::{Task, read_tokens};

use crate::error::{Error, Result};
use crate::llama::{Model, Projected, loss};
use crate::watch::Watch;
use chat::{Chat, Measured};
use methods::PROMPT_ROWS;
use mnnkv::session::Session;
use rayon::prelude::*;
use results::Sample;
use serde_json::Value;
use std::time::{Duration, Instant};
use tasks::STEPS;

/// The input of [`measure`].
#[derive(Clone, Debug)]
pub struct Request {
    /// The methods; [`WHOLE`] comes first.
    pub methods: Vec<Method>,
    /// Tasks, each with a ratio of eviction.
    pub tasks: Vec<(Task, f64)>,
    /// Texts of each task, 2 or more.
    pub texts: usize,
    /// The seed of the texts.
    pub seed: u64,
}

/// The tasks and ratios that the goals are of.
pub fn tasks() -> Vec<(Task, f64)> {
    vec![(Task::Recall, 3.5), (Task::Needle, 3.5), (Task::Plain, 3.5), (Task::Recall, 8.0), (Task::Needle, 8.0)]
}

/// Tokens that are replayed at once, no more than there is room for.
const REPLAYED: usize = 96;
const _: () = assert!(REPLAYED <= STEPS);

/// The input of one layer's attention for a prompt: all keys and values, and the queries of its last rows.
struct Rows {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
}

/// A text whose prompt was run.
struct Text {
    tokens: Vec<u32>,
    /// One for each layer.
    prompt: Vec<Rows>,
}

impl Text {
    /// Runs the prompt of a text.
    fn new(model: &Model, tokens: Vec<u32>, prompt: usize) -> mnnkv::status::Result<Text> {
        let shape = model.shape();
        let mut chat = Chat::new(shape, "{}", prompt, shape.layers, 1.0)?;
        let width = shape.heads * shape.dims;
        let mut layers = Vec::with_capacity(shape.layers);
        let positions: Vec<usize> = (0..prompt).collect();
        model.forward(&tokens[..prompt], &positions, |layer, rows, output| {
            let query = rows.query[prompt.saturating_sub(PROMPT_ROWS) * width..].to_vec();
            layers.push(Rows { query, key: rows.key.to_vec(), value: rows.value.to_vec() });
            chat.step(layer, rows, output)
        })?;
        Ok(Text { tokens, prompt: layers })
    }
}

/// Measures all methods. `done` of the watch gets 1 for each text and method; after a stop the tasks that were complete are
/// returned.
///
/// Fails if a config is refused, or `tokens` is shorter than a text.
pub fn measure(model: &Model, tokens: &[u32], request: &Request, watch: Watch<'_>) -> Result<Results> {
    let mut results = Results::new(request);
    let mut methods = Vec::new();
    for method in &request.methods {
        match unknown_key(method, model.shape().layers)? {
            Some(text) => results.left.push(Left { method: method.name.clone(), reason: text }),
            None => methods.push(method),
        }
    }
    let mut ran: Option<(Task, Vec<Text>)> = None;
    for &(task, ratio) in &request.tasks {
        let texts = match ran.take().filter(|(of, _)| *of == task) {
            Some((_, texts)) => texts,
            None => {
                let texts = task.texts(tokens, request.texts, request.seed).map_err(|e| Error::new("the tokens", e))?;
                let run = |text| Text::new(model, text, task.prompt_tokens()).map_err(|e| Error::new("the prompt", e));
                texts.into_par_iter().map(run).collect::<Result<_>>()?
            }
        };
        let mut samples = Vec::new();
        for method in &methods {
            if watch.is_stopped() {
                return Ok(results);
            }
            samples.push((*method, run(model, task, ratio, &texts, method)?));
            (watch.done)(texts.len() as u64);
        }
        results.add(task, ratio, &samples, model.shape());
        ran = Some((task, texts));
    }
    Ok(results)
}

/// The warning of a session that does not know a key of a method.
fn unknown_key(method: &Method, layers: usize) -> Result<Option<String>> {
    let config = Value::Object(method.config(3.5, 768)).to_string();
    let fail = |e| Error::new(&method.name, e);
    let session = Session::new(config.as_bytes(), b"", layers as u32, 1).map_err(fail)?;
    let warnings = session.warnings().map_err(fail)?;
    Ok(warnings.lines().find(|warning| warning.contains("is not a key of this version")).map(String::from))
}

/// Runs the texts with a method, as many at once as there are threads, each thread with an equal share of them.
fn run(model: &Model, task: Task, ratio: f64, texts: &[Text], method: &Method) -> Result<Vec<Sample>> {
    let share = texts.len().div_ceil(rayon::current_num_threads()).max(1);
    let batches = texts.par_chunks(share).map(|batch| run_batch(model, task, ratio, batch, method));
    let batches = batches.collect::<mnnkv::status::Result<Vec<_>>>();
    Ok(batches.map_err(|e| Error::new(&method.name, e))?.concat())
}

/// Runs texts side by side, so that the weights are read once for all of them.
fn run_batch(
    model: &Model,
    task: Task,
    ratio: f64,
    texts: &[Text],
    method: &Method,
) -> mnnkv::status::Result<Vec<Sample>> {
    let (shape, prompt) = (model.shape(), task.prompt_tokens());
    let config = Value::Object(method.config(ratio, prompt)).to_string();
    let (mut chats, mut before) = (Vec::with_capacity(texts.len()), Vec::with_capacity(texts.len()));
    for text in texts {
        let mut chat = Chat::new(shape, &config, prompt + STEPS, FIRST_EVICTED.min(shape.layers), ratio)?;
        if method.names_rotation() {
            chat.name_rotation()?;
        }
        for (layer, rows) in text.prompt.iter().enumerate() {
            let Rows { query, key, value } = rows;
            // The model has its output already.
            chat.step(layer, &Projected { query, key, value }, &mut vec![0.0; query.len()])?;
        }
        if method.is_replayed() {
            replay(model, &mut chat, &text.tokens[..prompt])?;
        }
        chat.measured = Measured::default();
        before.push(chat.session().recall_stats(None)?);
        chats.push(chat);
    }
    let mut samples = vec![Sample::default(); texts.len()];
    let start = Instant::now();
    for step in 0..STEPS - 1 {
        let tokens: Vec<u32> = texts.iter().map(|text| text.tokens[prompt + step]).collect();
        let states = model.forward(&tokens, &vec![prompt + step; texts.len()], |layer, rows, output| {
            let (width, kv_width) = (shape.heads * shape.dims, shape.kv_heads * shape.dims);
            for (at, (chat, output)) in chats.iter_mut().zip(output.chunks_exact_mut(width)).enumerate() {
                let rows = Projected {
                    query: &rows.query[at * width..][..width],
                    key: &rows.key[at * kv_width..][..kv_width],
                    value: &rows.value[at * kv_width..][..kv_width],
                };
                chat.step(layer, &rows, output)?;
            }
            Ok(())
        })?;
        if task.is_scored(step + 1) {
            let next: Vec<u32> = texts.iter().map(|text| text.tokens[prompt + step + 1]).collect();
            model.predict(&states, |row, logits| samples[row].losses.push(loss(logits, next[row])));
        }
    }
    let elapsed: Duration = start.elapsed() / texts.len() as u32;
    for ((sample, chat), before) in samples.iter_mut().zip(&chats).zip(before) {
        sample.elapsed = elapsed;
        sample.measured = chat.measured;
        sample.recall = chat.session().recall_stats(None)?;
        sample.recall.counts.returned -= before.counts.returned;
        sample.metrics = chat.session().metrics(None)?.fields().filter(|(_, value)| value.is_finite()).collect();
    }
    Ok(samples)
}

/// Runs the prompt again behind itself, in chunks, each of which is rolled back.
fn replay(model: &Model, chat: &mut Chat, prompt: &[u32]) -> mnnkv::status::Result<()> {
    chat.session().replay()?;
    for chunk in prompt.chunks(REPLAYED) {
        let positions: Vec<usize> = (prompt.len()..prompt.len() + chunk.len()).collect();
        model.forward(chunk, &positions, |layer, rows, output| chat.step(layer, rows, output))?;
        chat.keep(prompt.len())?;
    }
    chat.session().replan()
}

#[cfg(test)]
mod tests;
