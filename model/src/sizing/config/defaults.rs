//! Defaults of model types.
//!
//! Nested configs of multimodal models omit values that are their type's defaults in Hugging Face Transformers. The
//! table states those of its version 5.

use super::Notes;
use super::keys::Keys;
use super::kv::HEADS;
use crate::names::Joined;
use mnnkv::json::Short;
use mnnkv::status::{Result, bail};
use std::fmt;

/// The defaults of a model type. `None`: derived from other numbers, or not applicable.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    pub layers: u32,
    pub heads: u32,
    pub width: u32,
    pub kv_heads: Option<u32>,
    pub head_dim: Option<u32>,
    /// Window of sliding layers.
    pub sliding_window: Option<u32>,
    /// Period of the layers with full attention; the others slide.
    pub sliding_window_pattern: Option<u32>,
    pub chunk: Option<u32>,
    pub kv_shared_layers: Option<u32>,
    pub kv_lora_rank: Option<u32>,
    pub multi_query: Option<bool>,
    /// Elements of a key in layers with full attention, if different.
    pub global_head_dim: Option<u32>,
}

/// The defaults of a known model type.
pub(super) fn of(model_type: &str) -> Option<Defaults> {
    let base = |layers, heads, width| Defaults {
        layers,
        heads,
        width,
        kv_heads: None,
        head_dim: None,
        sliding_window: None,
        sliding_window_pattern: None,
        chunk: None,
        kv_shared_layers: None,
        kv_lora_rank: None,
        multi_query: None,
        global_head_dim: None,
    };
    let grouped = |layers, heads, width, kv_heads, head_dim| Defaults {
        kv_heads: Some(kv_heads),
        head_dim: Some(head_dim),
        ..base(layers, heads, width)
    };
    let windowed = |window, pattern, rest| Defaults {
        sliding_window: Some(window),
        sliding_window_pattern: Some(pattern),
        ..rest
    };
    Some(match model_type {
        "llama" | "qwen2" => base(32, 32, 4096),
        "phi3" => base(32, 32, 3072),
        "mistral" => Defaults { kv_heads: Some(8), sliding_window: Some(4096), ..base(32, 32, 4096) },
        "qwen3" => Defaults { head_dim: Some(128), ..base(32, 32, 4096) },
        "gpt2" => base(12, 12, 768),
        "gemma" => grouped(28, 16, 3072, 16, 256),
        "gemma2" => windowed(4096, 2, grouped(26, 8, 2304, 4, 256)),
        "gemma3" | "gemma3_text" => windowed(4096, 6, grouped(26, 8, 2304, 4, 256)),
        "gemma3n" | "gemma3n_text" => {
            Defaults { kv_shared_layers: Some(15), ..windowed(512, 5, grouped(35, 8, 2048, 2, 256)) }
        }
        "gemma4" | "gemma4_text" => {
            Defaults { global_head_dim: Some(512), ..windowed(512, 6, grouped(30, 8, 2304, 4, 256)) }
        }
        "llama4" | "llama4_text" => Defaults { chunk: Some(8192), ..grouped(48, 40, 5120, 8, 128) },
        "qwen3_next" => grouped(48, 16, 2048, 2, 256),
        "olmo3" => windowed(4096, 4, base(32, 32, 4096)),
        "cohere2" => windowed(4096, 4, base(40, 64, 8192)),
        "gpt_oss" => windowed(128, 2, grouped(36, 64, 2880, 8, 64)),
        "falcon" => Defaults { multi_query: Some(true), ..base(32, 71, 4544) },
        "gpt_bigcode" => Defaults { multi_query: Some(true), ..base(12, 12, 768) },
        "deepseek_v2" => Defaults { kv_lora_rank: Some(512), ..base(32, 32, 4096) },
        "deepseek_v3" => Defaults { kv_lora_rank: Some(512), ..base(61, 128, 7168) },
        _ => return None,
    })
}

/// Defaults in place of missing keys.
pub(super) struct Assumed<'a> {
    pub defaults: Option<&'a Defaults>,
    pub family: &'a str,
    pub nested: bool,
    pub notes: &'a mut Notes,
}

impl Assumed<'_> {
    /// The default of the model type, with a note; `None` if the type is unknown or has none.
    pub fn default(&mut self, key: impl fmt::Display, of: impl Fn(&Defaults) -> Option<u32>) -> Result<Option<u32>> {
        let Some(value) = self.defaults.and_then(of) else { return Ok(None) };
        let family = self.family;
        self.notes.add(format_args!("{key} is not given: {value} is assumed, as model type {family} has it"))?;
        Ok(Some(value))
    }

    /// A number that every config has, except nested ones of a known type.
    pub fn required(&mut self, text: &Keys, keys: &[&str], most: u32, of: impl Fn(&Defaults) -> u32) -> Result<u32> {
        if let Some(value) = text.number(keys, most)? {
            return Ok(value);
        }
        if self.nested
            && let Some(value) = self.default(text.path(keys[0]), |d| Some(of(d)))?
        {
            return Ok(value);
        }
        let (key, others, family) = (text.path(keys[0]), Joined(&keys[1..], ", "), Short(self.family));
        let why = if keys == HEADS { "; a model without attention has no KV cache" } else { "" };
        match self.nested {
            true => bail!(InvalidArgument, "the config has no {key} (nor {others}) (model_type is \"{family}\"){why}"),
            false => bail!(InvalidArgument, "the config has no {key} (nor {others}){why}"),
        }
    }
}
