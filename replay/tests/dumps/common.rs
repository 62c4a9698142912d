//! Layers to write, and folders for them.

use mnnkv::dtype::Dtype;
use mnnkv_replay::dumps::{Attention, Layer, LayerInfo, Query};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// The names in a folder.
pub fn file_names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A folder of its own for a test, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mnnkv-dumps-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A layer 0 of `[heads, tokens, dims]` with distinct words.
pub fn layer(dtype: Dtype, [kv_heads, tokens, head_dim]: [usize; 3]) -> Layer {
    let info = LayerInfo {
        run: "chat".into(),
        layer: 0,
        begin: 0,
        tokens,
        prompt_tokens: 0,
        kv_heads,
        head_dim,
        dtype,
        query_heads: 0,
        attention_scale: None,
    };
    let words: Vec<u8> = (0..info.key_bytes()).map(|i| (i * 7 + i / 251) as u8).collect();
    Layer { value: words.iter().map(|byte| byte ^ 0x55).collect(), key: words, info, query: None, attention: None }
}

/// A layer with Q and attention of all its 4 tokens.
pub fn layer_with_scores() -> Layer {
    let mut layer = layer(Dtype::F16, [2, 4, 2]);
    layer.info.query_heads = 4;
    layer.info.attention_scale = Some(0.125);
    layer.query = Some(Query { first: 0, rows: 4, values: vec![0.5; 4 * 4 * 2] });
    let causal = |i: usize| if i % 4 <= i / 4 % 4 { 0.25 } else { 0.0 };
    layer.attention = Some(Attention { first: 0, rows: 4, values: (0..4 * 4 * 4).map(causal).collect() });
    layer
}

/// Layers of one run and type, as a reader sorts them.
pub fn layers() -> impl Strategy<Value = Vec<Layer>> {
    let dtype = prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32]);
    (dtype, 0usize..40, 1usize..8, "[a-z]{1,3}").prop_flat_map(|(dtype, begin, tokens, run)| {
        vec(one(dtype, begin, tokens, run), 1..4).prop_map(|mut layers| {
            layers.iter_mut().enumerate().for_each(|(i, layer)| layer.info.layer = 3 * i as u32);
            layers
        })
    })
}

fn one(dtype: Dtype, begin: usize, tokens: usize, run: String) -> impl Strategy<Value = Layer> {
    let shape = (1usize..4, 1usize..6, 1usize..4, 0..=tokens, 0..=tokens, 0..tokens);
    shape.prop_flat_map(move |(kv_heads, head_dim, group, query_rows, attention_rows, prompt_tokens)| {
        let query_heads = if query_rows + attention_rows == 0 { 0 } else { kv_heads * group };
        let run = run.clone();
        let info = LayerInfo {
            run,
            layer: 0,
            begin,
            tokens,
            prompt_tokens,
            kv_heads,
            head_dim,
            dtype,
            query_heads,
            attention_scale: None,
        };
        let words = || vec(any::<u8>(), info.key_bytes());
        // Some are exact in two bytes, others are not.
        let values = |len| {
            (vec(-9i8..9, len), prop::bool::ANY).prop_map(|(values, exact)| {
                let scale = if exact { 0.25 } else { 0.1 };
                values.into_iter().map(|value| f32::from(value) * scale).collect::<Vec<_>>()
            })
        };
        let scores = (values(query_heads * query_rows * head_dim), values(query_heads * attention_rows * tokens));
        (words(), words(), scores, Just(info)).prop_map(move |(key, value, (query, mut attention), info)| {
            let first = tokens - attention_rows;
            for (i, row) in attention.chunks_exact_mut(tokens).enumerate() {
                row[first + i % attention_rows + 1..].fill(0.0);
            }
            Layer {
                query: (query_rows > 0).then(|| Query { first: tokens - query_rows, rows: query_rows, values: query }),
                attention: (attention_rows > 0).then_some(Attention { first, rows: attention_rows, values: attention }),
                info,
                key,
                value,
            }
        })
    })
}
