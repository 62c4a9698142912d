//! The shape of a model, from its `config.json`.

use crate::dumps::read_text;
use crate::error::{Error, Result};
use mnnkv::json::Brief;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The longest config that is read.
const MAX_CONFIG: u64 = 4 << 20;
/// The greatest numbers of a shape.
const MAX_NUMBER: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 24;

/// The numbers of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Elements between the two linear maps of an MLP.
    pub inner: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head, an even number.
    pub dims: usize,
    /// Tokens that the model knows.
    pub vocabulary: usize,
    /// Tokens of the longest text that it was trained for.
    pub context: usize,
    /// The addend of RMSNorm.
    pub epsilon: f32,
    /// The base of the rotation.
    pub theta: f64,
    /// The head is the embedding.
    pub tied: bool,
}

/// The keys of a config that matter. Models with other values of the later ones compute something else.
#[derive(Deserialize)]
struct Keys {
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_parameters: Option<Rope>,
    rope_scaling: Option<Value>,
    #[serde(default)]
    tie_word_embeddings: bool,
    model_type: Option<String>,
    hidden_act: Option<String>,
    #[serde(default)]
    use_sliding_window: bool,
    partial_rotary_factor: Option<f64>,
}

#[derive(Deserialize)]
struct Rope {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
}

impl Shape {
    /// Reads a config. Fails if it is not that of a Llama or a Qwen2 with plain RoPE.
    pub(super) fn read(path: &Path) -> Result<Shape> {
        let fail = |text: String| Error::new(path.display(), text);
        let text = read_text(path, MAX_CONFIG)?;
        let keys: Keys = serde_json::from_slice(&text).map_err(|e| fail(e.to_string()))?;
        keys.shape().map_err(fail)
    }
}

impl Keys {
    fn shape(&self) -> std::result::Result<Shape, String> {
        let only = |key: &str, given: Option<&str>, expected: &[&str]| match given {
            Some(given) if !expected.contains(&given) => {
                let expected = expected.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" or ");
                Err(format!("{key} is {given:?}; {expected} expected"))
            }
            _ => Ok(()),
        };
        only("model_type", Some(self.model_type.as_deref().unwrap_or("")), &["llama", "qwen2"])?;
        only("hidden_act", self.hidden_act.as_deref(), &["silu"])?;
        let rope = self.rope_parameters.as_ref();
        only("rope_parameters.rope_type", rope.and_then(|rope| rope.rope_type.as_deref()), &["default"])?;
        for (key, given) in [
            ("rope_scaling", self.rope_scaling.is_some()),
            ("use_sliding_window", self.use_sliding_window),
            ("partial_rotary_factor", self.partial_rotary_factor.is_some_and(|factor| factor != 1.0)),
        ] {
            if given {
                return Err(format!("{key} is given; models without it are supported"));
            }
        }
        let heads = self.num_attention_heads;
        let shape = Shape {
            layers: self.num_hidden_layers,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            heads,
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            dims: self.head_dim.unwrap_or(self.hidden_size / heads.max(1)),
            vocabulary: self.vocab_size,
            context: self.max_position_embeddings.unwrap_or(MAX_CONTEXT),
            epsilon: self.rms_norm_eps,
            theta: rope.and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(10_000.0),
            tied: self.tie_word_embeddings,
        };
        shape.check(&Names {
            layers: "num_hidden_layers",
            hidden: "hidden_size",
            inner: "intermediate_size",
            heads: "num_attention_heads",
            kv_heads: "num_key_value_heads",
            dims: "head_dim",
            vocabulary: "vocab_size",
            context: "max_position_embeddings",
            theta: "rope_theta",
            epsilon: "rms_norm_eps",
        })?;
        Ok(shape)
    }
}

/// The keys that a file has the numbers of a shape under, for errors.
pub(super) struct Names<'a> {
    pub(super) layers: &'a str,
    pub(super) hidden: &'a str,
    pub(super) inner: &'a str,
    pub(super) heads: &'a str,
    pub(super) kv_heads: &'a str,
    pub(super) dims: &'a str,
    pub(super) vocabulary: &'a str,
    pub(super) context: &'a str,
    pub(super) theta: &'a str,
    pub(super) epsilon: &'a str,
}

impl Shape {
    /// Fails if a number is out of its range.
    pub(super) fn check(&self, names: &Names<'_>) -> std::result::Result<(), String> {
        for (key, number, most) in [
            (names.layers, self.layers, MAX_NUMBER),
            (names.hidden, self.hidden, MAX_NUMBER),
            (names.inner, self.inner, MAX_NUMBER),
            (names.heads, self.heads, MAX_NUMBER),
            (names.vocabulary, self.vocabulary, MAX_NUMBER),
            (names.context, self.context, MAX_CONTEXT),
        ] {
            if !(1..=most).contains(&number) {
                return Err(format!("{key} is {number}; 1 to {most} expected"));
            }
        }
        let Shape { heads, kv_heads, dims, theta, .. } = *self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!("{} is {kv_heads}; a divisor of {} {heads} expected", names.kv_heads, names.heads));
        }
        if !(2..=1 << 12).contains(&dims) || !dims.is_multiple_of(2) {
            return Err(format!("{} is {dims}; an even number from 2 to {} expected", names.dims, 1 << 12));
        }
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return Err(format!("{} is {}; a number from 0 on expected", names.epsilon, Brief(self.epsilon)));
        }
        if !(theta.is_finite() && theta > 0.0) {
            return Err(format!("{} is {}; a number above 0 expected", names.theta, Brief(theta)));
        }
        Ok(())
    }
}
