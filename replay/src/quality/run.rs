//! Items side by side through one method, token by token behind their prompts.

use super::chat::{Chat, Measured};
use super::methods::{FILE, FIRST_EVICTED, PROMPT_ROWS};
use super::results::Sample;
use super::{Item, Method};
use crate::transformer::{Model, Projected, divergence, first_choice, loss};
use mnnkv::status::Result;
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Tokens of a prompt at once where sessions have a budget.
const CHUNK: usize = 256;

/// The input of one layer's attention for a prompt.
pub(super) struct Rows {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
}

/// What a prompt leaves, the same for all methods.
pub(super) struct Prompt {
    /// One for each layer.
    layers: Vec<Rows>,
    /// The last hidden state of the last token.
    state: Vec<f32>,
}

impl Prompt {
    /// Runs a prompt over the whole cache.
    pub(super) fn run(model: &Model, tokens: &[u32]) -> Result<Prompt> {
        let shape = model.shape();
        let mut chat = Chat::new(shape, "{}", tokens.len(), shape.layers)?;
        let mut layers = Vec::with_capacity(shape.layers);
        let positions: Vec<usize> = (0..tokens.len()).collect();
        let states = model.forward(tokens, &positions, |layer, rows, output| {
            layers.push(Rows { query: rows.query.to_vec(), key: rows.key.to_vec(), value: rows.value.to_vec() });
            chat.step(layer, rows, output)
        })?;
        Ok(Prompt { layers, state: states[states.len() - shape.hidden..].to_vec() })
    }
}

/// One item with its prompt.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) item: &'a Item,
    pub(super) prompt: &'a Prompt,
    /// The last hidden states of the scored rows over the whole cache, once they are known.
    pub(super) whole: Option<&'a [f32]>,
}

/// How a method stores and evicts.
pub(super) struct Plan<'a> {
    pub(super) model: &'a Model,
    pub(super) method: &'a Method,
    pub(super) ratio: f64,
}

/// An item that is being read.
struct Reader<'a> {
    item: &'a Item,
    chat: Chat,
    /// The next position to read, and the last one.
    next: usize,
    last: usize,
    losses: Vec<f64>,
    divergences: Vec<f64>,
    missed: bool,
    /// As [`Start::whole`], and those of this method.
    whole: Option<&'a [f32]>,
    states: Vec<f32>,
}

impl Plan<'_> {
    /// Measures items side by side, so that the weights are read once for all of them. Returns the last hidden states of their
    /// scored rows, too.
    pub(super) fn run(&self, starts: &[Start<'_>]) -> Result<Vec<(Sample, Vec<f32>)>> {
        let mut readers = starts.iter().map(|start| self.reader(*start)).collect::<Result<Vec<_>>>()?;
        self.read(&mut readers)?;
        Ok(readers.into_iter().map(|reader| (reader.sample(), reader.states)).collect())
    }

    /// A chat that has read its prompt.
    fn reader<'a>(&self, start: Start<'a>) -> Result<Reader<'a>> {
        let (shape, Start { item, prompt, whole }) = (self.model.shape(), start);
        let mut config = self.method.config(self.ratio, item.question_from, shape);
        if let Some(file) = config.get_mut(FILE) {
            // Each chat has its own.
            *file = own_file().into();
        }
        let config = Value::Object(config).to_string();
        let last = item.tokens.len() - 1;
        let mut chat = Chat::new(shape, &config, last, FIRST_EVICTED.min(shape.layers))?;
        chat.rounding = self.method.rounding;
        let (width, kv_width) = (shape.heads * shape.dims, shape.kv_heads * shape.dims);
        for (layer, Rows { query, key, value }) in prompt.layers.iter().enumerate() {
            if !self.method.is_bounded() {
                // The model has its output already; policies by mass, and widths of channels, see the last rows.
                let query = &query[query.len().saturating_sub(PROMPT_ROWS * width)..];
                chat.step(layer, &Projected { query, key, value }, &mut vec![0.0; query.len()])?;
                continue;
            }
            let chunks =
                query.chunks(CHUNK * width).zip(key.chunks(CHUNK * kv_width)).zip(value.chunks(CHUNK * kv_width));
            for ((query, key), value) in chunks {
                chat.step(layer, &Projected { query, key, value }, &mut vec![0.0; query.len()])?;
            }
        }
        chat.measured = Measured::default();
        let next = item.question_from;
        let (losses, divergences, states) = (Vec::new(), Vec::new(), Vec::new());
        let mut reader = Reader { item, chat, next, last, losses, divergences, missed: false, whole, states };
        if reader.is_judged(next) {
            reader.states.extend(&prompt.state);
            self.model.predict(&prompt.state, |_, logits| reader.judge(next, logits, logits));
        }
        Ok(reader)
    }

    /// Reads to the end.
    fn read(&self, readers: &mut [Reader<'_>]) -> Result<()> {
        let shape = self.model.shape();
        let (width, kv_width) = (shape.heads * shape.dims, shape.kv_heads * shape.dims);
        loop {
            let mut readers: Vec<&mut Reader<'_>> =
                readers.iter_mut().filter(|reader| reader.next < reader.last).collect();
            if readers.is_empty() {
                return Ok(());
            }
            let tokens: Vec<u32> = readers.iter().map(|reader| reader.item.tokens[reader.next]).collect();
            let positions: Vec<usize> = readers.iter().map(|reader| reader.next).collect();
            let states = self.model.forward(&tokens, &positions, |layer, rows, output| {
                for (at, (reader, output)) in readers.iter_mut().zip(output.chunks_exact_mut(width)).enumerate() {
                    let rows = Projected {
                        query: &rows.query[at * width..][..width],
                        key: &rows.key[at * kv_width..][..kv_width],
                        value: &rows.value[at * kv_width..][..kv_width],
                    };
                    reader.chat.step(layer, &rows, output)?;
                }
                Ok(())
            })?;
            let judged: Vec<usize> =
                (0..readers.len()).filter(|at| readers[*at].is_judged(readers[*at].next + 1)).collect();
            // Of each reader the state over the whole cache, then its own.
            let mut pairs = Vec::new();
            for at in &judged {
                let (reader, own) = (&mut readers[*at], &states[at * shape.hidden..][..shape.hidden]);
                pairs.extend(reader.whole.map_or(own, |whole| &whole[reader.states.len()..][..shape.hidden]));
                pairs.extend(own);
                reader.states.extend(own);
            }
            if !judged.is_empty() {
                let mut whole = Vec::new();
                self.model.predict(&pairs, |row, logits| match row % 2 {
                    0 => logits.clone_into(&mut whole),
                    _ => {
                        let reader = &mut readers[judged[row / 2]];
                        reader.judge(reader.next + 1, logits, &whole);
                    }
                });
            }
            readers.iter_mut().for_each(|reader| reader.next += 1);
        }
    }
}

impl Reader<'_> {
    /// Whether a position is scored.
    fn is_judged(&self, position: usize) -> bool {
        self.item.scored.binary_search(&position).is_ok()
    }

    /// Takes the logits of a position that is scored, and those of the whole cache.
    fn judge(&mut self, position: usize, logits: &[f32], whole: &[f32]) {
        let token = self.item.tokens[position];
        self.losses.push(loss(logits, token));
        self.divergences.push(divergence(whole, logits));
        self.missed |= first_choice(logits) != token;
    }

    fn sample(&self) -> Sample {
        let (measured, mean) = (self.chat.measured, |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64);
        Sample {
            loss: mean(&self.losses),
            divergence: mean(&self.divergences),
            exact: !self.missed,
            resident: measured.resident,
            logical: measured.logical,
        }
    }
}

/// A path for the blocks of a chat, which no other has.
fn own_file() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("mnnkv-quality-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    std::env::temp_dir().join(name).display().to_string()
}
