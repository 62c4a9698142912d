//! The policies that are compared, each a config of a session.

use super::Task;
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
    /// Bounds of the factor, each of a task and a ratio.
    pub goals: Vec<(Task, f64, Bound)>,
}

/// A bound of a factor.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// At most this.
    Most(f64),
    /// At most this much above that of the named method.
    Above(&'static str, f64),
}

/// The name of the method that evicts nothing, whose losses are those that others are compared with.
pub const WHOLE: &str = "whole cache";
/// The first layer that tokens are evicted from.
pub const FIRST_EVICTED: usize = 2;
/// Protected tokens.
const SINK: usize = 16;
const RECENT: usize = 32;
const BLOCK: usize = 16;
/// Last rows of the prompt that policies by mass see.
pub(super) const PROMPT_ROWS: usize = 64;

/// The keys that hold for all methods that evict.
fn base(ratio: f64) -> Keys {
    keys(json!({
        "kv_h2o_enable": true,
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
    /// The config of a session for a chat that begins with `prompt` tokens.
    pub fn config(&self, ratio: f64, prompt: usize) -> Keys {
        if self.name == WHOLE {
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

    /// Whether the host names the rotation of the keys: `rotation`, a key of the host.
    pub(super) fn names_rotation(&self) -> bool {
        self.keys.get("rotation").is_none_or(|names| names == true)
    }

    /// Whether the host runs the prompt again.
    pub(super) fn is_replayed(&self) -> bool {
        self.keys.get("kv_h2o_policy").is_some_and(|policy| policy == "replay")
    }

    /// The bound of a task and a ratio.
    pub(super) fn goal(&self, task: Task, ratio: f64) -> Option<&Bound> {
        self.goals.iter().find(|goal| goal.0 == task && goal.1 == ratio).map(|goal| &goal.2)
    }
}

const RECENT_KEY: &str = "kv_h2o_recent_tokens";

/// The built-in methods.
pub fn methods() -> Vec<Method> {
    use Task::{Needle, Plain, Recall};
    let method = |name: &str, object: Value, goals| Method { name: name.into(), keys: keys(object), goals };
    let most = |bounds: &[(Task, f64, f64)]| bounds.iter().map(|(t, r, most)| (*t, *r, Bound::Most(*most))).collect();
    let recall = |summary: &str, tier: &str| {
        json!({
            "kv_recall_enable": true,
            "kv_recall_block_tokens": BLOCK,
            "kv_recall_sink_tokens": SINK,
            "kv_recall_recent_tokens": RECENT,
            "kv_recall_query_window": 4,
            "kv_recall_hysteresis": 1,
            "kv_recall_exchanges": 1,
            "kv_recall_summary": summary,
            "kv_recall_tier": tier,
        })
    };
    let sketch =
        [(Recall, 3.5, 1.03), (Needle, 3.5, 1.06), (Plain, 3.5, 1.02), (Recall, 8.0, 1.10), (Needle, 8.0, 1.18)];
    let gauss = [(Recall, 3.5, 1.03), (Needle, 3.5, 1.22), (Plain, 3.5, 1.04)];
    let ram4 = Task::ALL.iter().map(|task| (*task, 3.5, Bound::Above("recall, sketch", 0.015)));
    vec![
        method(WHOLE, json!({}), vec![]),
        method("mass", json!({ "kv_h2o_policy": "mass", "kv_h2o_prefill_queries": PROMPT_ROWS }), vec![]),
        method("recent", json!({ RECENT_KEY: null, "kv_h2o_block_tokens": 1 }), vec![]),
        method(
            "keydiff",
            json!({ "kv_h2o_policy": "keydiff", "kv_h2o_block_tokens": 8 }),
            most(&[(Recall, 3.5, 1.24), (Needle, 3.5, 1.42)]),
        ),
        method("keydiff, rotated", json!({ "kv_h2o_block_tokens": 8, "rotation": false }), vec![]),
        method(
            "replay",
            json!({ "kv_h2o_policy": "replay", "kv_h2o_block_tokens": 8 }),
            most(&[(Recall, 3.5, 1.20), (Needle, 3.5, 1.25)]),
        ),
        method("recall, gauss", recall("gauss", "ram"), most(&gauss)),
        method("recall, sketch", recall("sketch", "ram"), most(&sketch)),
        method("recall, sketch, ram4", recall("sketch", "ram4"), ram4.collect()),
    ]
}
