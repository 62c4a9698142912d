//! A report as JSON: the same fields by the same names.

use super::budget::Longest;
use super::report::{Group, Report, Total};
use super::savings::Savings;
use super::shape::{Attention, Kv, Layer, Span};
use super::sizer::Bytes;
use serde_json::{Map, Value, json};

impl Report {
    /// The report as a JSON object with the names of its fields. What was not asked for is absent.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| drop(object.insert(key.into(), value));
        if let Some(model_type) = &self.model_type {
            put("model_type", json!(model_type));
        }
        if let Some(max_context) = self.max_context {
            put("max_context", json!(max_context));
        }
        put("element", json!(self.setup.element.name()));
        put("ranks", json!(self.setup.ranks));
        put("batch", json!(self.setup.batch));
        put("savings", savings(&self.savings));
        put("layers", json!(self.layers));
        put("groups", self.groups.iter().map(group).collect());
        put("bytes_per_token", json!(self.bytes_per_token));
        put("bytes_per_late_token", json!(self.bytes_per_late_token));
        put("c8_scale_bytes", json!(self.c8_scale_bytes));
        put("totals", self.totals.iter().map(total).collect());
        if let Some(saved) = &self.longest {
            put("longest", longest(saved));
        }
        if let Some(plain) = &self.longest_without_savings {
            put("longest_without_savings", longest(plain));
        }
        put("notes", json!(self.notes));
        Value::Object(object)
    }
}

fn savings(savings: &Savings) -> Value {
    let mut object = Map::new();
    if let Some(h2o) = &savings.h2o {
        let mut inner = json!({
            "ratio": h2o.ratio,
            "first_layer": h2o.first_layer,
            "protected_tokens": h2o.protected_tokens,
            "trigger_tokens": h2o.trigger_tokens,
        });
        if let Some(last) = h2o.last_layer {
            inner["last_layer"] = json!(last);
        }
        object.insert("h2o".into(), inner);
    }
    object.insert("c8".into(), json!(savings.c8));
    if let Some(lossless) = &savings.lossless {
        let inner = json!({
            "ratio": lossless.ratio,
            "front_layers": lossless.front_layers,
            "h2o_layers": lossless.h2o_layers,
            "hot_tokens": lossless.hot_tokens,
        });
        object.insert("lossless".into(), inner);
    }
    Value::Object(object)
}

fn group(group: &Group) -> Value {
    let mut object = match group.layer {
        Layer::Shared => json!({ "kind": "shared" }),
        Layer::Recurrent { state_elements: None } => json!({ "kind": "recurrent" }),
        Layer::Recurrent { state_elements: Some(elements) } => {
            json!({ "kind": "recurrent", "state_elements": elements })
        }
        Layer::Attention(Attention { kv, span }) => {
            let mut object = match span {
                Span::Full => json!({ "kind": "full" }),
                Span::Sliding(window) => json!({ "kind": "sliding", "most_tokens": window }),
                Span::Chunked(chunk) => json!({ "kind": "chunked", "most_tokens": chunk }),
            };
            match kv {
                Kv::Heads { kv_heads, head_dim } => {
                    object["kv_heads"] = json!(kv_heads);
                    object["head_dim"] = json!(head_dim);
                }
                Kv::Latent { kv_lora_rank, qk_rope_head_dim } => {
                    object["kv_lora_rank"] = json!(kv_lora_rank);
                    object["qk_rope_head_dim"] = json!(qk_rope_head_dim);
                }
            }
            object
        }
    };
    object["numbers"] = json!(group.numbers);
    object["layer_bytes_per_token"] = json!(group.layer_bytes_per_token);
    object
}

fn bytes(bytes: &Bytes) -> Value {
    Value::Object(bytes.stages().into_iter().map(|(name, value)| (name.to_string(), json!(value))).collect())
}

fn total(total: &Total) -> Value {
    let alone = [("h2o", total.alone.h2o), ("c8", total.alone.c8), ("lossless", total.alone.lossless)];
    let alone: Map<_, _> =
        alone.into_iter().filter_map(|(name, bytes)| Some((name.to_string(), json!(bytes?)))).collect();
    json!({
        "context": total.context,
        "rank": bytes(&total.rank),
        "all_ranks": bytes(&total.all_ranks),
        "alone": alone,
    })
}

fn longest(longest: &Longest) -> Value {
    json!({ "tokens": longest.tokens, "bytes": longest.bytes, "bounded": longest.bounded })
}
