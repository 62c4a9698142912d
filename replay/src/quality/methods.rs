//! The policies that are compared, each a config of a session.

use super::rounding::{Rounding, Type};
use crate::transformer::Shape;
use mnnkv::dtype::Dtype;
use mnnkv::layout::Rows;
use mnnkv::session::Holds;
use serde_json::{Map, Value, json};

/// Keys of a session's config.
pub type Keys = Map<String, Value>;

/// One policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// In results.
    pub name: String,
    /// The keys in which it differs from [`base`].
    pub keys: Keys,
    /// Rows of K and V are rounded as another program's cache has them, in place of a session's work.
    pub rounding: Option<Rounding>,
}

/// The name of the method that evicts nothing, whose losses are those that others are compared with.
pub const WHOLE: &str = "whole cache";
/// The first layer that tokens are evicted from.
pub const FIRST_EVICTED: usize = 2;
/// Protected tokens.
pub(super) const SINK: usize = 16;
pub(super) const RECENT: usize = 32;
const BLOCK: usize = 16;
/// Last rows of the prompt that policies by mass see.
pub(super) const PROMPT_ROWS: usize = 64;

/// The keys that hold for all methods that evict.
fn base(ratio: f64) -> Keys {
    keys(json!({
        "kv_h2o_enable": true,
        "kv_h2o_policy": "mass",
        "kv_h2o_layer_start": FIRST_EVICTED,
        "kv_h2o_target_lossy_ratio": ratio,
        "kv_h2o_sink_tokens": SINK,
        "kv_h2o_recent_tokens": RECENT,
        "kv_h2o_block_tokens": BLOCK,
        "kv_h2o_trigger_min_tokens": 64,
        "kv_h2o_update_interval": 1,
    }))
}

fn keys(object: Value) -> Keys {
    match object {
        Value::Object(keys) => keys,
        _ => unreachable!("an object is given"),
    }
}

impl Method {
    /// The config of a session for a chat that begins with `prompt` tokens; empty if nothing is evicted.
    pub fn config(&self, ratio: f64, prompt: usize, shape: &Shape) -> Keys {
        if self.quantises() {
            let mut config = self.keys.clone();
            if self.has_least_budget() {
                config.insert(BUDGET_BYTES.into(), least_budget(shape, (prompt as f64 / ratio).ceil() as u64).into());
            }
            return config;
        }
        if !self.evicts() {
            return Keys::new();
        }
        let mut config = base(ratio);
        config.extend(self.keys.clone());
        // A stand-in for the budget less what else stays.
        if config.get(RECENT_KEY).is_some_and(Value::is_null) {
            let budget = (prompt as f64 / ratio).ceil() as usize;
            config.insert(RECENT_KEY.into(), budget.saturating_sub(SINK + 1).into());
        }
        config
    }

    /// Whether sessions keep tokens in fewer bits.
    fn quantises(&self) -> bool {
        self.keys.contains_key(QUANT) || self.is_bounded()
    }

    /// Whether sessions have a budget, and so see the attention of prompts.
    pub(super) fn is_bounded(&self) -> bool {
        self.keys.contains_key(BUDGET) || self.keys.contains_key(BUDGET_BYTES)
    }

    /// Whether the budget is the least that has room for one token in `ratio`.
    pub(super) fn has_least_budget(&self) -> bool {
        self.keys.get(BUDGET_BYTES).is_some_and(Value::is_null)
    }

    /// Whether sessions evict.
    pub(super) fn evicts(&self) -> bool {
        self.name != WHOLE && self.rounding.is_none() && !self.quantises()
    }
}

const RECENT_KEY: &str = "kv_h2o_recent_tokens";
const QUANT: &str = "kv_quant";
const BUDGET: &str = "kv_memory_mb";
const BUDGET_BYTES: &str = "kv_memory_bytes";
pub(super) const FILE: &str = "kv_memory_file";

/// What a budget holds of such a model; `None` where its tokens stay raw.
fn holds(shape: &Shape, bytes: u64) -> Option<Holds> {
    let (kind, heads) = (Dtype::F32.into(), shape.kv_heads);
    let windows: Vec<u32> = (0..shape.layers).filter_map(|layer| shape.window(layer)).collect();
    let rows = Rows { key: kind, value: kind, heads, dims: shape.dims };
    Holds::of(bytes, shape.layers as u32, &rows, &windows).ok().flatten()
}

/// Whether a budget quantises the tokens of a model.
pub(super) fn can_be_bounded(shape: &Shape) -> bool {
    holds(shape, 0).is_some()
}

/// The least budget, in bytes, that holds so many tokens in 8 and 4 bits.
fn least_budget(shape: &Shape, tokens: u64) -> u64 {
    let has_room = |bytes: u64| holds(shape, bytes).is_none_or(|holds| holds.quantised_tokens >= tokens);
    let least = holds(shape, 0).map_or(1, |holds| holds.least_bytes);
    let mut most = least;
    while !has_room(most) {
        most *= 2;
    }
    let (mut low, mut high) = (least, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if has_room(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// The built-in methods.
pub fn methods() -> Vec<Method> {
    let method = |name: &str, object: Value| Method { name: name.into(), keys: keys(object), rounding: None };
    let rounded = |name: &str, kind, is_rotated| Method {
        rounding: Some(Rounding { kind, is_rotated }),
        ..method(name, json!({}))
    };
    vec![
        method(WHOLE, json!({})),
        method("recent", json!({ RECENT_KEY: null, "kv_h2o_block_tokens": 1, "kv_h2o_evict_unscored": true })),
        method("mass", json!({ "kv_h2o_prefill_queries": PROMPT_ROWS })),
        rounded("q8_0", Type::Q8_0, false),
        rounded("q8_0, rotated", Type::Q8_0, true),
        rounded("q4_0", Type::Q4_0, false),
        rounded("q4_0, rotated", Type::Q4_0, true),
        method("k8v4", json!({ QUANT: "k8v4" })),
        method("k4v4", json!({ QUANT: "k4v4" })),
        method("budget", json!({ BUDGET_BYTES: null })),
        // Each chat has a file of its own.
        method("budget, file", json!({ BUDGET_BYTES: null, FILE: "blocks" })),
    ]
}
