//! How many bytes the KV cache of a model takes, before there is one.
//!
//! [`ModelConfig::from_config`] reads what a Hugging Face `config.json` says about attention: a list of [`LayerShape`]s, and notes
//! about everything that was assumed or left out. A [`Sizer`] is made of it once for an element type, a number of
//! tensor-parallel ranks, a batch and what compression is expected to save; it then answers for any length, and
//! [`Sizer::longest`] for any budget. [`SizeReport`] is all of that in one piece, as plain data.
//!
//! Per token and layer, in elements:
//!
//! | attention | elements | on a rank of `r` |
//! |---|---|---|
//! | MHA, GQA, MQA | 2 x kv_heads x head_dim | kv_heads / r heads, at least one |
//! | MLA | kv_lora_rank + qk_rope_head_dim, K and V together | all of it |
//!
//! MHA is Vaswani et al. 2017, MQA Shazeer 2019, GQA Ainslie et al. 2023, MLA DeepSeek-AI 2024 (DeepSeek-V2).
//!
//! A layer holds `n` tokens at length `n`, or fewer: one with a sliding window holds at most the window, one with
//! chunked attention at most a chunk (engines allocate a whole one), and recurrent layers and layers that read another
//! layer's cache hold none. What is counted is the tokens: the rounding of allocators to pages or blocks is not.
//!
//! Everything here is a pure function; any thread may call it.

mod budget;
mod config;
mod element;
mod report;
mod report_json;
mod savings;
mod shape;
mod sizer;

pub use budget::Longest;
pub use config::{MAX_CONFIG_BYTES, MAX_LAYERS, ModelConfig};
pub use element::CacheElement;
pub use report::{Alone, Group, MAX_CONTEXTS, Request, SizeReport, Total};
pub use savings::{H2o, Lossless, Savings};
pub use shape::{Attention, Kv, LayerShape, Span};
pub use sizer::{Bytes, MAX_TOKENS, Setup, Sizer};

use mnnkv::status::Result;
use mnnkv::sys::memory;
use std::fmt;

/// Sentences for people.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn add(&mut self, text: fmt::Arguments<'_>) -> Result<()> {
        memory::push(&mut self.0, memory::format(text)?)
    }
}
