//! Eviction, replayed: sessions that run over the attention of a dump, beside the whole cache.
//!
//! A prompt comes in one step, each later token in a step of its own. A row of softmax over the kept tokens is the row over
//! all tokens, divided by the share of the kept ones; so one row per step serves every policy, and all of them run side by
//! side. A policy is a real [`Session`](mnnkv::session::Session) with a cache of one dim: its words do not matter to
//! eviction.

mod rows;
mod subject;

pub use rows::{RowSource, Rows};
pub use subject::fixed_keys;

use crate::dumps::{Layer, LayerInfo};
use crate::error::{Error, Result};
use crate::results::EvictionResult;
use crate::watch::Watch;
use mnnkv::dtype::convert;
use rayon::prelude::*;
use serde_json::{Map, Value};
use subject::Subject;

/// One policy: the keys of a session's config in which it differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// In results.
    pub name: String,
    /// `kv_h2o_` keys.
    pub keys: Map<String, Value>,
}

/// The input of [`replay`]: every policy with every ratio and block length.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The policies.
    pub policies: Vec<Policy>,
    /// `kv_h2o_target_lossy_ratio`, 1 or more.
    pub ratios: Vec<f64>,
    /// `kv_h2o_block_tokens`, 1 or more.
    pub block_tokens: Vec<u32>,
    /// The keys that hold for all policies.
    pub base: Map<String, Value>,
    /// Tokens of the prompt; `None` is the dump's prompt, or else half of the tokens.
    pub prompt_tokens: Option<usize>,
    /// Factor of Q times K; `None` is the dump's, or else 1 / sqrt(head_dim).
    pub scale: Option<f32>,
}

/// Rows of a dump's attention that count as the end of the prompt, where nothing else is known.
pub const PROMPT_ROWS: usize = 8;

/// The policies that a session has, by its config: each aggregation, scored prompt rows, eviction without scores, both
/// bases of the ratio.
pub fn policies() -> Vec<Policy> {
    let policy = |name: &str, keys: &[(&str, Value)]| Policy {
        name: name.into(),
        keys: keys.iter().map(|(key, value)| (format!("kv_h2o_{key}"), value.clone())).collect(),
    };
    let rows = || ("prefill_queries", Value::from(PROMPT_ROWS));
    vec![
        policy("ema", &[rows()]),
        policy("sum", &[("aggregation", "sum".into()), rows()]),
        policy("norm_sum", &[("aggregation", "norm_sum".into()), rows()]),
        policy("norm_sum, 256 prompt rows", &[("aggregation", "norm_sum".into()), ("prefill_queries", 256.into())]),
        policy("ema, prompt unscored", &[("evict_unscored", true.into())]),
        policy("ema, physical basis", &[("target_basis", "physical".into()), rows()]),
    ]
}

impl Request {
    /// Rows of a prompt that a policy scores.
    fn prompt_rows(&self, policy: &Policy, prompt: usize) -> usize {
        let key = "kv_h2o_prefill_queries";
        let wanted = policy.keys.get(key).or_else(|| self.base.get(key)).and_then(Value::as_i64).unwrap_or(0);
        // -1 is all.
        usize::try_from(wanted).unwrap_or(usize::MAX).min(prompt)
    }

    /// Whether a policy scores no row of the prompt before `first_row`, the first of the dump.
    fn is_served(&self, policy: &Policy, prompt: usize, first_row: usize) -> bool {
        prompt - self.prompt_rows(policy, prompt) >= first_row
    }

    /// The policies that cannot be replayed, since the dump lacks rows that they score; and how many rows they score.
    pub fn left_out(&self, prompt: usize, first_row: usize) -> impl Iterator<Item = (&Policy, usize)> {
        let unserved = self.policies.iter().filter(move |policy| !self.is_served(policy, prompt, first_row));
        unserved.map(move |policy| (policy, self.prompt_rows(policy, prompt)))
    }

    fn config(&self, policy: &Policy, ratio: f64, block_tokens: u32) -> Map<String, Value> {
        let mut config = self.base.clone();
        config.extend(policy.keys.clone());
        config.extend(fixed_keys());
        config.insert("kv_h2o_target_lossy_ratio".into(), ratio.into());
        config.insert("kv_h2o_block_tokens".into(), block_tokens.into());
        config
    }
}

/// The prompt of a layer of which `first` is the first token with a row, where the dump does not tell it: half of the
/// tokens, and at least [`PROMPT_ROWS`] of those with a row.
fn guessed_prompt(tokens: usize, first: usize) -> usize {
    (tokens / 2).max(first + PROMPT_ROWS).min(tokens - 1)
}

/// The tokens that are replayed as the prompt: as given, or the dump's, or guessed; and at least those before the first row.
pub fn prompt(info: &LayerInfo, first_row: usize, given: Option<usize>) -> usize {
    let wanted = match (given, info.prompt_tokens) {
        (Some(given), _) => given,
        (None, 0) => guessed_prompt(info.tokens, first_row),
        (None, known) => known,
    };
    wanted.max(first_row).max(1)
}

/// Replays a layer. Returns nothing for a layer without Q and attention rows. `done` of the watch gets the tokens of each
/// finished step; a layer that is stopped has no results.
///
/// Fails if the config is refused, and if the rows or words of the dump are not finite numbers.
pub fn replay(layer: &Layer, request: &Request, watch: Watch<'_>) -> Result<Vec<EvictionResult>> {
    let Some(source) = Rows::new(layer, request.scale)? else { return Ok(Vec::new()) };
    let info = &layer.info;
    if info.tokens < 2 {
        return Ok(Vec::new());
    }
    let prompt = prompt(info, source.first(), request.prompt_tokens);
    if prompt >= info.tokens {
        let text = format!(
            "the prompt has {prompt} tokens and the layer {}; fewer expected, so that steps are left",
            info.tokens
        );
        return Err(Error::new(place(layer), text));
    }

    let mut subjects = Vec::new();
    let served = |policy: &&Policy| request.is_served(policy, prompt, source.first());
    let mut first_row = prompt;
    for policy in request.policies.iter().filter(served) {
        first_row = first_row.min(prompt - request.prompt_rows(policy, prompt));
        for &ratio in &request.ratios {
            for &block_tokens in &request.block_tokens {
                let config = request.config(policy, ratio, block_tokens);
                let subject = Subject::new(&config, info.tokens).map_err(|e| Error::new(&policy.name, e))?;
                subjects.push((policy, ratio, block_tokens, subject));
            }
        }
    }
    let value = Values::of(layer)?;
    let heads = source.heads();
    let mut run = |first: usize, tokens: usize| -> Result<()> {
        let rows = source.rows(first.max(first_row)..first + tokens);
        let step = subject::Step { first, tokens, heads, rows: &rows, counted: first > 0 };
        subjects.par_iter_mut().try_for_each(|(policy, .., subject)| {
            subject.step(&step, &value).map_err(|e| Error::new(format!("{}, {}", place(layer), policy.name), e))
        })?;
        (watch.done)(tokens as u64);
        Ok(())
    };
    run(0, prompt)?;
    for token in prompt..info.tokens {
        if watch.is_stopped() {
            return Ok(Vec::new());
        }
        run(token, 1)?;
    }
    let token_bytes = (2 * info.kv_heads * info.head_dim * info.dtype.bytes()) as f64;
    let results = subjects.iter().map(|(policy, ratio, block_tokens, subject)| {
        let seen = subject.outcome().map_err(|e| Error::new(place(layer), e))?;
        Ok(EvictionResult {
            run: info.run.clone(),
            layer: info.layer,
            policy: policy.name.clone(),
            target_ratio: *ratio,
            block_tokens: *block_tokens,
            tokens: info.tokens,
            kept_tokens: seen.kept_tokens,
            kept_share: seen.kept_share,
            steps: seen.steps as usize,
            kept_mass: seen.kept_mass,
            relative_l2: seen.relative_l2,
            cosine: seen.cosine,
            evictions: seen.evictions,
            moved_tokens: seen.moved_tokens,
            restored_bytes_per_step: seen.restored_tokens_per_step.map(|tokens| tokens * token_bytes),
        })
    });
    results.collect()
}

fn place(layer: &Layer) -> String {
    format!("run {} layer {}", layer.info.run, layer.info.layer)
}

/// V in f32, for the outputs of attention.
pub(crate) struct Values {
    /// `[kv_head][token][dim]`
    words: Vec<f32>,
    kv_heads: usize,
    tokens: usize,
    dims: usize,
}

impl Values {
    fn of(layer: &Layer) -> Result<Self> {
        let info = &layer.info;
        let words = floats(layer, "v", &layer.value)?;
        Ok(Values { words, kv_heads: info.kv_heads, tokens: info.tokens, dims: info.head_dim })
    }

    /// `[token][dim]` of the KV head that a query head reads.
    fn head(&self, query_head: usize, query_heads: usize) -> &[f32] {
        let head = query_head * self.kv_heads / query_heads;
        let words = self.tokens * self.dims;
        &self.words[head * words..][..words]
    }
}

/// Words of K or V in f32.
fn floats(layer: &Layer, tensor: &str, words: &[u8]) -> Result<Vec<f32>> {
    let info = &layer.info;
    if !info.dtype.is_float() {
        return Err(Error::new(place(layer), format!("{tensor} is {}; a float type expected", info.dtype.name())));
    }
    let mut values = vec![0.0; words.len() / info.dtype.bytes()];
    convert::widen(info.dtype, convert::Endian::Little, words, &mut values);
    match convert::first_not_finite(&values) {
        None => Ok(values),
        Some(at) => {
            let row = at / info.head_dim;
            let (head, token) = (row / info.tokens, row % info.tokens);
            let text = format!("{tensor} of head {head}, token {token}, dim {} is {}", at % info.head_dim, values[at]);
            Err(Error::new(place(layer), text + "; a finite number expected"))
        }
    }
}
