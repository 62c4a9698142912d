//! The cost of eviction in quality: a language model reads texts through sessions, one for each policy, and its losses are
//! compared with those of the whole cache, text by text.
//!
//! The prompt of a text is run once; every method begins with its keys and values, and evicts from then on. The tokens
//! behind the prompt are given one by one.

mod attention;
mod chat;
mod items;
mod methods;
mod results;
mod rounding;
mod run;
mod tasks;

pub use items::{Item, read_items};
pub use methods::{FIRST_EVICTED, Keys, Method, WHOLE, methods};
pub use results::{Left, Results, Row};
pub use tasks::{MIN_PROMPT, PROMPT, STEPS, Task, read_tokens};

use crate::error::{Error, Result};
use crate::transformer::{Model, Shape};
use crate::watch::Watch;
use mnnkv::session::{Host, Session};
use rayon::prelude::*;
use results::Sample;
use run::{Plan, Prompt, Start};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Mutex;

/// The input of [`measure`].
#[derive(Clone, Debug)]
pub struct Request {
    /// The methods; [`WHOLE`] comes first.
    pub methods: Vec<Method>,
    /// The texts; those of a kind are neighbours.
    pub items: Vec<Item>,
    /// Tokens of a chat per token of the budget.
    pub ratios: Vec<f64>,
    /// Items that run side by side on a thread.
    pub batch: usize,
}

/// Measures all methods. `done` of the watch gets 1 for each item, method and ratio. After a stop the kinds that were
/// complete are returned.
///
/// Fails if a config is refused.
pub fn measure(model: &Model, request: &Request, watch: Watch<'_>) -> Result<Results> {
    let mut left = Vec::new();
    let mut methods = Vec::new();
    for method in &request.methods {
        match unfit(method, model.shape()).or(unknown_key(method, model.shape())?) {
            Some(reason) => left.push(Left { method: method.name.clone(), reason }),
            None => methods.push(method),
        }
    }
    let judge = Judge { model, request, methods, samples: Mutex::default(), watch };
    batches(request).into_par_iter().with_max_len(1).try_for_each(|batch| judge.run(batch))?;
    let samples = judge.samples.into_inner().unwrap_or_else(|e| e.into_inner());
    let find = |item: &Item, method: &Method, ratio: f64| {
        samples.get(&(item.id.clone(), method.name.clone(), ratio.to_bits())).cloned()
    };
    Ok(Results::new(request, &judge.methods, left, find))
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
    /// By id of the item, name of the method, and bits of the ratio.
    samples: Mutex<HashMap<(String, String, u64), Sample>>,
    watch: Watch<'a>,
}

impl Judge<'_> {
    /// Measures a batch.
    fn run(&self, batch: &[Item]) -> Result<()> {
        let failed = |e| Error::new("the prompt", e);
        let prompts: Vec<Prompt> =
            batch.iter().map(|item| Prompt::run(self.model, item.prompt()).map_err(failed)).collect::<Result<_>>()?;
        let mut whole: Vec<Vec<f32>> = Vec::new();
        for (method, ratio) in
            self.methods.iter().flat_map(|m| self.request.ratios.iter().map(move |ratio| (*m, *ratio)))
        {
            if self.watch.is_stopped() {
                return Ok(());
            }
            let plan = Plan { model: self.model, method, ratio };
            let start = |(at, (item, prompt))| Start { item, prompt, whole: whole.get(at).map(Vec::as_slice) };
            let starts: Vec<Start<'_>> = batch.iter().zip(&prompts).enumerate().map(start).collect();
            let measured = plan.run(&starts).map_err(|e| Error::new(&method.name, e))?;
            let (measured, states): (Vec<_>, Vec<_>) = measured.into_iter().unzip();
            if whole.is_empty() && method.name == WHOLE {
                whole = states;
            }
            for (item, sample) in batch.iter().zip(measured) {
                if !sample.loss.is_finite() {
                    let text = format!("{}: the model gives a scored token no finite likelihood", item.id);
                    return Err(Error::new(&method.name, text));
                }
                let mut samples = self.samples.lock().unwrap_or_else(|e| e.into_inner());
                samples.insert((item.id.clone(), method.name.clone(), ratio.to_bits()), sample);
            }
            (self.watch.done)(batch.len() as u64);
        }
        Ok(())
    }
}

/// Why a model cannot be run with a method.
fn unfit(method: &Method, shape: &Shape) -> Option<String> {
    let unit = method.rounding.map_or(1, |rounding| rounding.unit());
    if !shape.dims.is_multiple_of(unit) {
        return Some(format!("heads have {} elements; a multiple of {unit} expected", shape.dims));
    }
    let unfit = method.has_least_budget() && !methods::can_be_bounded(shape);
    unfit.then(|| format!("heads have {} elements, which sessions do not quantise", shape.dims))
}

/// The warning of a session that does not know a key of a method.
fn unknown_key(method: &Method, shape: &Shape) -> Result<Option<String>> {
    let config = Value::Object(method.config(3.5, PROMPT, shape)).to_string();
    let fail = |e| Error::new(&method.name, e);
    let host = Host { attends: true };
    let session = Session::with_host(config.as_bytes(), b"", shape.layers as u32, 1, host).map_err(fail)?;
    let warnings = session.warnings().map_err(fail)?;
    Ok(warnings.lines().find(|warning| warning.contains("is not a key of this version")).map(String::from))
}

#[cfg(test)]
mod tests;
