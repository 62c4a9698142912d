//! Dumps: the words of KV caches in files.

pub mod folder;

use crate::error::{Finding, Result};
use mnnkv::dtype::Dtype;
use std::path::Path;

/// What is known of a layer before its words are read.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerInfo {
    /// The chat that the layer is of; layers of one run belong to the same tokens.
    pub run: String,
    /// The layer's number in its model.
    pub layer: u32,
    /// Position of the first token.
    pub begin: usize,
    /// Tokens.
    pub tokens: usize,
    /// Tokens of the prompt, the first ones; 0 where the dump does not tell.
    pub prompt_tokens: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Dims of a head.
    pub head_dim: usize,
    /// The type of K and V.
    pub dtype: Dtype,
    /// Heads of Q, and of attention rows; 0 without both.
    pub query_heads: usize,
}

/// A layer of a dump.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Shape and place.
    pub info: LayerInfo,
    /// `[kv_head][token][dim]`, little-endian words.
    pub key: Vec<u8>,
    /// `[kv_head][token][dim]`, little-endian words.
    pub value: Vec<u8>,
    /// Q after RoPE, where the dump has it.
    pub query: Option<Query>,
    /// Softmax rows, where the dump has them.
    pub attention: Option<Attention>,
}

/// Q of consecutive tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// The first token with a row, counted from the layer's first.
    pub first: usize,
    /// Rows of a head.
    pub rows: usize,
    /// `[query_head][row][dim]`
    pub values: Vec<f32>,
}

/// Softmax rows of consecutive tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The token of the first row, counted from the layer's first.
    pub first: usize,
    /// Rows of a head.
    pub rows: usize,
    /// `[query_head][row][token]`, over all tokens of the layer; those after the row's own are 0.
    pub values: Vec<f32>,
}

/// A dump on disk.
#[derive(Debug)]
pub struct Dump {
    /// By run, then by layer.
    pub layers: Vec<LayerInfo>,
    /// Skipped entries, gaps, overlaps.
    pub findings: Vec<Finding>,
}

impl Dump {
    /// Reads names and headers of the files below `path`, a folder, or of one file. Every format is recognised by itself.
    pub fn open(_path: &Path) -> Result<Dump> {
        todo!()
    }

    /// Reads the words of `layers[index]`.
    pub fn load(&self, _index: usize) -> Result<Layer> {
        todo!()
    }
}
