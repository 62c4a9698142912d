//! What `kv_memory_mb` makes of a budget.

use crate::bytes;
use crate::dtype;
use crate::table;
use mnnkv::layout::{Kind, Rows};
use mnnkv::session::Holds;
use mnnkv_model::sizing::{Attention, Kv, LayerShape, ModelConfig, Setup, SizeReport, Span};
use serde_json::{Value, json};

/// What the budget of a session holds.
pub struct Kept {
    budget: u64,
    holds: Holds,
}

impl Kept {
    /// Of each sequence. `None` where there is no session of such a model; the notes say why.
    pub fn new(model: &ModelConfig, budget: u64, report: &mut SizeReport) -> Option<Kept> {
        let caches: Vec<&Attention> = model.layers.iter().filter_map(LayerShape::attention).collect();
        let layers = caches.len() as u32;
        let budget = budget / u64::from(report.setup.batch);
        let windows = caches.iter().filter_map(|cache| match cache.span {
            Span::Sliding(window) => Some(window),
            Span::Full | Span::Chunked(_) => None,
        });
        let windows: Vec<u32> = windows.collect();
        let found = rows(&caches, &report.setup).and_then(|rows| {
            let holds = Holds::of(budget, layers, &rows, &windows).map_err(|error| error.to_string())?;
            holds.ok_or_else(|| format!("{rows} stay as they are"))
        });
        let notes = &mut report.notes;
        match found {
            Err(why) => {
                notes.push(format!("kv_memory_mb: {why}"));
                None
            }
            Ok(holds) => {
                if caches.len() < model.layers.len() {
                    let text =
                        "kv_memory_mb: of a session of the layers that have a cache; others would have shares, too";
                    notes.push(text.into());
                }
                if caches.iter().any(|cache| matches!(cache.span, Span::Chunked(_))) {
                    notes.push("kv_memory_mb: layers with chunks are counted with all tokens".into());
                }
                Some(Kept { budget, holds })
            }
        }
    }

    pub fn json(&self) -> Value {
        let Holds { least_bytes, raw_tokens, quantised_tokens, file_tokens } = self.holds;
        let mut object = json!({ "budget_bytes": self.budget, "least_bytes": least_bytes });
        if self.budget >= least_bytes {
            object["raw_tokens"] = raw_tokens.into();
            object["quantised_tokens"] = quantised_tokens.into();
            object["file_tokens"] = file_tokens.into();
            object["dropped_from"] = (quantised_tokens + 1).into();
        }
        object
    }

    pub fn text(&self) -> String {
        let Holds { least_bytes, raw_tokens, quantised_tokens, file_tokens } = self.holds;
        // The key is rounded up where it is shown as what is enough.
        let least = format!("{:.1} MB", (least_bytes as f64 / 1e5).ceil() / 10.0);
        let mut text = format!("\nTokens of a chat with \"kv_memory_mb\": {}\n", self.budget as f64 / 1e6);
        if self.budget < least_bytes {
            return text + &table::lines([vec![format!("refused: {least} or more expected")]]);
        }
        let tokens = |tokens: u64| format!("{} tokens", bytes::count(tokens));
        let dropped = format!("from {} on tokens are dropped, without a file", bytes::count(quantised_tokens + 1));
        text += &table::lines([
            vec![tokens(raw_tokens), "raw".into()],
            vec![tokens(quantised_tokens), format!("in 8 and 4 bits, then 4 and 4; {dropped}")],
            vec![tokens(file_tokens), "with kv_memory_file".into()],
            vec![least, "the least budget that is accepted".into()],
        ]);
        text
    }
}

/// The rows of every layer, or why a session has none.
fn rows(caches: &[&Attention], setup: &Setup) -> Result<Rows, String> {
    let Some(first) = caches.first() else { return Err("no layer has a cache".into()) };
    if caches.iter().any(|cache| cache.kv != first.kv) {
        return Err("not computed for layers of several sizes".into());
    }
    let Kv::Heads { kv_heads, head_dim } = first.kv else { return Err("latents (MLA) are no K and V of heads".into()) };
    let [key, value] = match &setup.mnn {
        Some(mnn) => mnn.kinds(),
        None => {
            let float = dtype::float(setup.element);
            [Kind::Float(float.ok_or_else(|| format!("{} stays as it is", setup.element.name()))?); 2]
        }
    };
    let heads = (kv_heads / setup.ranks).max(1) as usize;
    Ok(Rows { key, value, heads, dims: head_dim as usize })
}
