//! Bytes of a model's KV cache, from its config.
//!
//! [`ModelConfig::from_config`] reads the attention from a Hugging Face `config.json`: a list of [`LayerShape`]s, and
//! notes about assumptions and omissions. A [`Sizer`] holds an element type, a number of tensor-parallel ranks, a batch
//! and expected savings; it returns the bytes of any length and, by [`Sizer::longest`], the length of any budget.
//! [`SizeReport`] is all of that as plain data.
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
//! A layer holds at most `n` tokens at length `n`. A sliding window holds at most the window, chunked attention at most
//! a chunk (engines allocate a whole one). Recurrent layers and layers that read another layer's cache hold none. Sizes
//! count tokens; the rounding of allocators to pages or blocks is not included.
//!
//! With a [`MnnCache`] in the setup, sizes are those of MNN's buffers: packing, scales, sums, and room for the 64 tokens
//! that MNN allocates ahead.
//!
//! All functions are pure; any thread may call them.

mod budget;
mod config;
mod element;
mod mnn;
mod report;
mod report_json;
mod savings;
mod shape;
mod sizer;

pub use budget::Longest;
pub use config::{MAX_CONFIG_BYTES, MAX_LAYERS, ModelConfig};
pub use element::CacheElement;
pub use mnn::{AttentionMode, MnnCache, MnnConfig, MnnCpu, MnnFile, MnnNumbers};
pub use report::{Group, MAX_CONTEXTS, Request, SizeReport, Total};
pub use savings::{H2o, Lossless, Savings};
pub use shape::{Attention, Kv, LayerShape, Span};
pub use sizer::{Bytes, MAX_TOKENS, Setup, Sizer};

use mnnkv::status::Result;
use mnnkv::sys::memory;
use std::fmt;

/// Sentences for the user.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn add(&mut self, text: fmt::Arguments<'_>) -> Result<()> {
        memory::push(&mut self.0, memory::format(text)?)
    }
}
