//! Golden data of the reference's evaluator, and the KV data of its recipes.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of golden data.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/testdata/evaluator").join(name)
}

/// The objects of a golden file, one a line.
pub fn lines(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(golden(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Words of two or four bytes, `[token][head][dim]`.
#[derive(Clone)]
pub struct Words {
    pub bytes: Vec<u8>,
    pub tokens: usize,
    pub heads: usize,
    pub dims: usize,
    pub width: usize,
}

/// The file of `kind` of a layer: below the folder that the environment variable MNNKV_KV names, with one folder for
/// each source, or in the test data of the project, which has four layers of lm_a.
fn file(source: &str, layer: u64, kind: &str, dtype: &str) -> Option<PathBuf> {
    let folder = match std::env::var_os("MNNKV_KV") {
        Some(folder) => Path::new(&folder).join(source),
        None if source == "lm_a" => Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/kv"),
        None => return None,
    };
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(&format!("l{layer}_{kind}_h")) && name.ends_with(&format!(".{dtype}"))
    };
    fs::read_dir(folder).ok()?.map(|entry| entry.unwrap().path()).find(named)
}

/// Words of a file `[head][token][dim]`, whose name ends with `_h<heads>_t<tokens>_d<dims>`.
fn load(path: &Path, width: usize) -> Words {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let sizes: Vec<usize> = name.rsplit('_').take(3).map(|part| part[1..].parse().unwrap()).collect();
    let [dims, tokens, heads] = sizes[..] else { panic!("{name}") };
    let file = fs::read(path).unwrap();
    let row = dims * width;
    let mut bytes = Vec::with_capacity(file.len());
    for token in 0..tokens {
        (0..heads).for_each(|head| bytes.extend(&file[(head * tokens + token) * row..][..row]));
    }
    Words { bytes, tokens, heads, dims, width }
}

impl Words {
    fn cut(&self, tokens: [usize; 2], heads: [usize; 2], dims: [usize; 2]) -> Words {
        let mut bytes = Vec::new();
        for token in tokens[0]..tokens[1] {
            for head in heads[0]..heads[1] {
                let row = (token * self.heads + head) * self.dims;
                bytes.extend(&self.bytes[(row + dims[0]) * self.width..(row + dims[1]) * self.width]);
            }
        }
        let [tokens, heads, dims] = [tokens, heads, dims].map(|range| range[1] - range[0]);
        Words { bytes, tokens, heads, dims, ..*self }
    }

    /// The edits are of words of two bytes.
    fn edit(&mut self, edit: &Value) {
        let (heads, dims) = (self.heads, self.dims);
        let row = heads * dims * 2;
        let [begin, end] = range(&edit["tokens"]).unwrap();
        for token in begin..end {
            match edit["edit"].as_str().unwrap() {
                "hold" => {
                    let n = edit["n"].as_u64().unwrap() as usize;
                    let from = (begin + (token - begin) / n * n) * row;
                    self.bytes.copy_within(from..from + row, token * row);
                }
                "pairs" => {
                    for head in self.bytes[token * row..][..row].chunks_exact_mut(2 * dims) {
                        head.chunks_exact_mut(4).for_each(|pair| pair.copy_within(0..2, 2));
                    }
                }
                "zero" => self.bytes[token * row..][..row].fill(0),
                "ramp" => {
                    for (i, word) in self.bytes[token * row..][..row].chunks_exact_mut(2).enumerate() {
                        let value = 257 * token + 3 * (i % dims) + 4096 * (i / dims);
                        word.copy_from_slice(&(value as u16).to_le_bytes());
                    }
                }
                other => panic!("{other}"),
            }
        }
    }
}

fn range(value: &Value) -> Option<[usize; 2]> {
    Some([value.get(0)?.as_u64()? as usize, value.get(1)?.as_u64()? as usize])
}

/// K and V of a layer of a run. `None`: the data is not here.
pub fn words(run: &Value, layer: u64) -> Option<[Words; 2]> {
    let dtype = run["dtype"].as_str().unwrap_or("f16");
    let width = if dtype == "f16" { 2 } else { 4 };
    let mut both = Vec::new();
    for kind in ["k", "v"] {
        let whole = load(&file(run["source"].as_str()?, layer, kind, dtype)?, width);
        let cut = |key: &str, length| range(&run[key]).unwrap_or([0, length]);
        let mut words = whole.cut(cut("tokens", whole.tokens), cut("heads", whole.heads), cut("dims", whole.dims));
        run["edits"].as_array().into_iter().flatten().for_each(|edit| words.edit(edit));
        both.push(words);
    }
    both.try_into().ok()
}
