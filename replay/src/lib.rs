//! Dumps of KV caches, and what the library would do with them.
//!
//! | room | job |
//! |---|---|
//! | [`dumps`] | reads dumps of every format, as layers |
//! | [`reference`] | the offline evaluator of the reference system, byte for byte |
//! | [`codec`] | gear on dumps, cut as a session cuts |
//! | [`transformer`] | the forward pass of a Llama, a Qwen2 or a Gemma 3 |
//! | [`quality`] | its losses with each policy, beside those of the whole cache |
//! | [`whole_cache`](mod@whole_cache) | ratios over all layers |
//! | [`evaluation`] | the rooms above on each layer of a dump |
//! | [`results`] | the JSON of `mnnkv evaluate` |
//! | [`error`], [`watch`] | failures with their place; progress and cancellation |
//!
//! The crate serves the command line, tests and benchmarks. It has no C ABI and no unsafe code.

#![forbid(unsafe_code)]

pub mod codec;
pub mod dumps;
pub mod error;
pub mod evaluation;
mod head_sums;
pub mod quality;
pub mod reference;
pub mod results;
pub mod transformer;
pub mod watch;
pub mod whole_cache;
