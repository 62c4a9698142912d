//! KV-cache sizes: public models against arithmetic by hand, random shapes against a count of every token in every
//! layer, and what a config must say.

#[path = "../../tests/common/mod.rs"]
mod common;

#[path = "sizing/config.rs"]
mod config;
#[path = "sizing/mnn.rs"]
mod mnn;
#[path = "sizing/models.rs"]
mod models;
#[path = "sizing/naive.rs"]
mod naive;
#[path = "sizing/published.rs"]
mod published;
#[path = "sizing/report.rs"]
mod report;
#[path = "sizing/savings.rs"]
mod savings;

use mnnkv::status::{Error, Result};
use mnnkv_model::sizing::{Attention, CacheElement, Kv, LayerShape, ModelConfig, Savings, Setup, Sizer, Span};

/// A model of `testdata/configs`.
fn model(name: &str) -> ModelConfig {
    ModelConfig::from_config(&common::read(&format!("configs/{name}.json"))).unwrap()
}

/// A model of a config in the text.
fn parse(config: serde_json::Value) -> Result<ModelConfig> {
    ModelConfig::from_config(config.to_string().as_bytes())
}

fn refusal(config: serde_json::Value) -> Error {
    parse(config).unwrap_err()
}

/// Layers that are alike.
fn layers(count: usize, kv_heads: u32, head_dim: u32, span: Span) -> Vec<LayerShape> {
    vec![LayerShape::Attention(Attention { kv: Kv::Heads { kv_heads, head_dim }, span }); count]
}

/// One sequence of f16 on one rank without savings.
fn plain(layers: &[LayerShape]) -> Sizer {
    Sizer::new(layers, Setup::new(CacheElement::F16), &Savings::default()).unwrap()
}

/// Asserts that a text has all the words, and names a missing one.
#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "\"{word}\" is not in: {text}");
    }
}

/// Whether one of the notes has all the words.
#[track_caller]
fn notes_say(notes: &[String], words: &[&str]) {
    assert!(notes.iter().any(|note| words.iter().all(|word| note.contains(word))), "{words:?} in {notes:#?}");
}
