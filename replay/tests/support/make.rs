//! Makes dump folders by recipes.

use super::recipes::{Words, words};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Makes the dump of `recipe` in `root`, which must not exist. Layers outside of `wanted` get metas alone. Fails if the data
/// of a wanted layer is not here.
pub fn make(recipe: &Value, wanted: &[u64], root: &Path) -> Result<(), String> {
    for run in recipe["runs"].as_array().unwrap() {
        let layers = || run["layers"].as_array().unwrap().iter().map(|layer| layer.as_u64().unwrap());
        for layer in layers().filter(|layer| wanted.contains(layer)) {
            words(run, layer).ok_or_else(|| format!("no data of layer {layer} of {}", run["source"]))?;
        }
        for layer in layers() {
            let folder = root.join(run["run_dir"].as_str().unwrap()).join(format!("layer_{layer}"));
            fs::create_dir_all(&folder).unwrap();
            let words = if wanted.contains(&layer) { words(run, layer) } else { None };
            let mut begin = 0;
            for (stage, tokens) in steps(run["steps"].as_str().unwrap()) {
                entry(&folder, run, layer, [begin, begin + tokens], stage, words.as_ref());
                begin += tokens;
            }
        }
    }
    Ok(())
}

/// `832p 2d`: a prefill of 832 tokens, then two tokens alone.
fn steps(text: &str) -> Vec<(&'static str, usize)> {
    let step = |word: &str| {
        let (number, kind) = word.split_at(word.len() - 1);
        let n: usize = number.parse().unwrap();
        if kind == "p" { vec![("prefill", n)] } else { vec![("decode", 1); n] }
    };
    text.split(' ').flat_map(step).collect()
}

fn entry(folder: &Path, run: &Value, layer: u64, tokens: [usize; 2], stage: &str, words: Option<&[Words; 2]>) {
    let base = format!("t{}_{}", tokens[0], tokens[1]);
    let [kv_heads, head_dim, width] = words.map_or([2, 64, 2], |[k, _]| [k.heads, k.dims, k.width]);
    let mut meta = json!({
        "layer_id": layer, "seq_start": tokens[0], "seq_len": tokens[1] - tokens[0], "kv_heads": kv_heads,
        "head_dim": head_dim, "bytes_per_elem": width, "stage": stage,
        "k_file": format!("k_{base}.bin"), "v_file": format!("v_{base}.bin"),
    });
    if let Some(id) = run.get("run_id") {
        meta["run_id"] = id.clone();
    }
    fs::write(folder.join(format!("meta_{base}.json")), meta.to_string()).unwrap();
    for (kind, words) in ["k", "v"].into_iter().zip(words.into_iter().flatten()) {
        let row = words.heads * words.dims * words.width;
        fs::write(folder.join(format!("{kind}_{base}.bin")), &words.bytes[tokens[0] * row..tokens[1] * row]).unwrap();
    }
}
