//! The shape of a model, from its `config.json`.

use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The longest config that is read.
const MAX_CONFIG: u64 = 4 << 20;

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
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_parameters: Option<Rope>,
    rope_scaling: Option<Value>,
    #[serde(default)]
    tie_word_embeddings: bool,
    model_type: Option<String>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

#[derive(Deserialize)]
struct Rope {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
}

impl Shape {
    /// Reads a config. Fails if it is not that of a Llama with plain RoPE and without biases.
    pub(super) fn read(path: &Path) -> Result<Shape> {
        let fail = |text: String| Error::new(path.display(), text);
        let len = std::fs::metadata(path).map_err(|e| fail(format!("cannot be opened: {e}")))?.len();
        if len > MAX_CONFIG {
            return Err(fail(format!("has {len} bytes; at most {MAX_CONFIG} expected")));
        }
        let text = std::fs::read(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
        let keys: Keys = serde_json::from_slice(&text).map_err(|e| fail(e.to_string()))?;
        keys.shape().map_err(fail)
    }
}

impl Keys {
    fn shape(&self) -> std::result::Result<Shape, String> {
        let only = |key: &str, given: Option<&str>, expected: &str| match given {
            Some(given) if given != expected => Err(format!("{key} is {given:?}; {expected:?} expected")),
            _ => Ok(()),
        };
        only("model_type", self.model_type.as_deref(), "llama")?;
        only("hidden_act", self.hidden_act.as_deref(), "silu")?;
        let rope = self.rope_parameters.as_ref();
        only("rope_parameters.rope_type", rope.and_then(|rope| rope.rope_type.as_deref()), "default")?;
        for (key, given) in [
            ("attention_bias", self.attention_bias),
            ("mlp_bias", self.mlp_bias),
            ("rope_scaling", self.rope_scaling.is_some()),
        ] {
            if given {
                return Err(format!("{key} is given; models without it are supported"));
            }
        }
        let heads = self.num_attention_heads;
        for (key, number) in [
            ("num_hidden_layers", self.num_hidden_layers),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", heads),
            ("vocab_size", self.vocab_size),
        ] {
            if !(1..=1 << 20).contains(&number) {
                return Err(format!("{key} is {number}; 1 to {} expected", 1 << 20));
            }
        }
        let kv_heads = self.num_key_value_heads.unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "num_key_value_heads is {kv_heads}; a divisor of num_attention_heads {heads} expected"
            ));
        }
        let dims = self.head_dim.unwrap_or(self.hidden_size / heads);
        if !(2..=1 << 12).contains(&dims) || !dims.is_multiple_of(2) {
            return Err(format!("head_dim is {dims}; an even number from 2 to {} expected", 1 << 12));
        }
        let theta = rope.and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(format!("rope_theta is {theta}; a number above 0 expected"));
        }
        Ok(Shape {
            layers: self.num_hidden_layers,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            heads,
            kv_heads,
            dims,
            vocabulary: self.vocab_size,
            epsilon: self.rms_norm_eps,
            theta,
            tied: self.tie_word_embeddings,
        })
    }
}
