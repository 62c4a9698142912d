//! The cost of eviction in quality: a language model reads texts through sessions, one for each policy, and its losses are
//! compared with those of the whole cache, text by text.
//!
//! The prompt of a text is run once; every method begins with its keys and values, and evicts from then on. The tokens
//! behind the prompt are given one by one.

mod attention;
mod chat;
mod items;
mod methods;
mod prompts;
mod results;
mod rounding;
mod run;
mod samples;
mod tasks;

pub use items::{Item, read_items};
pub use methods::{FIRST_EVICTED, Keys, Method, USUAL, WHOLE, methods};
pub use results::{Divergence, Left, Results, Row};
pub use rounding::Rounding;
pub use tasks::{MIN_PROMPT, PROMPT, STEPS, Task, read_tokens};

use crate::error::{Error, Result};
use crate::llama::{Model, Shape};
use crate::watch::Watch;
use mnnkv::session::{Host, Session};
use prompts::{Prompt, Prompts};
use rayon::prelude::*;
use run::{Plan, Start};
use samples::Samples;
use serde_json::Value;
use std::path::PathBuf;

/// The input of [`measure`].
#[derive(Clone, Debug)]
pub struct Request {
    /// The methods; [`WHOLE`] comes first.
    pub methods: Vec<Method>,
    /// The texts; those of a kind are neighbours.
    pub items: Vec<Item>,
    /// Tokens of a chat per token of the budget.
    pub ratios: Vec<f64>,
    /// Tokens to decode behind each question; 0 for none.
    pub generate: usize,
    /// Items that run side by side on a thread.
    pub batch: usize,
    /// Where prompts and results are kept.
    pub cache: Option<Cache>,
}

/// A folder that makes later runs shorter.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The folder; made if it is missing.
    pub folder: PathBuf,
    /// Bytes of prompts.
    pub most: u64,
    /// Results of programs with another text are not used.
    pub program: String,
}

/// Measures all methods. `done` of the watch gets 1 for each item, method and ratio. After a stop the kinds that were
/// complete are returned.
///
/// Fails if a config is refused.
pub fn measure(model: &Model, request: &Request, watch: Watch<'_>) -> Result<Results> {
    let mut left = Vec::new();
    let mut methods = Vec::new();
    for method in &request.methods {
        match unfit(method, model.shape())?.or(unknown_key(method, model.shape())?) {
            Some(reason) => left.push(Left { method: method.name.clone(), reason }),
            None => methods.push(method),
        }
    }
    let mut salt = format!("{} ", request.generate).into_bytes();
    let (mut prompts, mut path) = (None, None);
    if let Some(cache) = &request.cache {
        let fingerprint = model.fingerprint();
        salt.extend(fingerprint.to_le_bytes());
        salt.extend(cache.program.as_bytes());
        prompts = Some(Prompts::new(&cache.folder, cache.most, fingerprint)?);
        path = Some(cache.folder.join("results.jsonl"));
    }
    let samples = Samples::open(path.as_deref(), salt, *model.shape())?;
    let judge = Judge { model, request, methods, prompts, samples, watch };
    batches(request).into_par_iter().with_max_len(1).try_for_each(|batch| judge.run(batch))?;
    Ok(Results::new(request, &judge.methods, left, |item, method, ratio| judge.samples.find(item, method, ratio)))
}

/// Items of one kind that run side by side.
fn batches(request: &Request) -> Vec<&[Item]> {
    let threads = rayon::current_num_threads();
    let kinds = request.items.chunk_by(|a, b| a.kind == b.kind);
    kinds.flat_map(|kind| kind.chunks(request.batch.min(kind.len().div_ceil(threads)).max(1))).collect()
}

/// All that batches share.
struct Judge<'a> {
    model: &'a Model,
    request: &'a Request,
    methods: Vec<&'a Method>,
    prompts: Option<Prompts>,
    samples: Samples,
    watch: Watch<'a>,
}

impl Judge<'_> {
    /// Measures what is missing of a batch.
    fn run(&self, batch: &[Item]) -> Result<()> {
        let mut prompts: Vec<Option<Prompt>> = batch.iter().map(|_| None).collect();
        for (method, ratio) in
            self.methods.iter().flat_map(|m| self.request.ratios.iter().map(move |ratio| (*m, *ratio)))
        {
            if self.watch.is_stopped() {
                return Ok(());
            }
            let missing: Vec<usize> =
                (0..batch.len()).filter(|at| self.samples.find(&batch[*at], method, ratio).is_none()).collect();
            for at in &missing {
                if prompts[*at].is_none() {
                    prompts[*at] = Some(self.prompt(batch[*at].prompt())?);
                }
            }
            let starts: Vec<Start<'_>> = missing
                .iter()
                .filter_map(|at| Some(Start { item: &batch[*at], prompt: prompts[*at].as_ref()? }))
                .collect();
            if !starts.is_empty() {
                let plan = Plan { model: self.model, method, ratio, generate: self.request.generate };
                let measured = plan.run(&starts).map_err(|e| Error::new(&method.name, e))?;
                for (start, sample) in starts.iter().zip(measured) {
                    if !sample.loss.is_finite() {
                        let text = format!("{}: the model gives a scored token no finite likelihood", start.item.id);
                        return Err(Error::new(&method.name, text));
                    }
                    self.samples.keep(start.item, method, ratio, sample)?;
                }
            }
            (self.watch.done)(batch.len() as u64);
        }
        Ok(())
    }

    fn prompt(&self, tokens: &[u32]) -> Result<Prompt> {
        if let Some(prompt) = self.prompts.as_ref().and_then(|prompts| prompts.find(self.model.shape(), tokens)) {
            return Ok(prompt);
        }
        let prompt = Prompt::run(self.model, tokens).map_err(|e| Error::new("the prompt", e))?;
        if let Some(prompts) = &self.prompts {
            // A folder without room costs a later run the time of its prompts, and this one nothing.
            let _ = prompts.keep(tokens, &prompt);
        }
        Ok(prompt)
    }
}

/// Why a model cannot be run with a method.
fn unfit(method: &Method, shape: &Shape) -> Result<Option<String>> {
    let heads = format!("heads have {} elements", shape.dims);
    if method.rounding()? == Some(Rounding::Tq4) && !shape.dims.is_multiple_of(32) {
        return Ok(Some(format!("{heads}; TQ4 is for multiples of 32")));
    }
    let unfit = method.has_least_budget() && !methods::can_be_bounded(shape);
    Ok(unfit.then(|| format!("{heads}, which sessions do not quantise")))
}

/// The warning of a session that does not know a key of a method.
fn unknown_key(method: &Method, shape: &Shape) -> Result<Option<String>> {
    let config = Value::Object(method.config(3.5, PROMPT, shape)).to_string();
    let fail = |e| Error::new(&method.name, e);
    let host = Host { attends: true, ..Host::default() };
    let session = Session::with_host(config.as_bytes(), b"", shape.layers as u32, 1, host).map_err(fail)?;
    let warnings = session.warnings().map_err(fail)?;
    Ok(warnings.lines().find(|warning| warning.contains("is not a key of this version")).map(String::from))
}

#[cfg(test)]
mod tests;
