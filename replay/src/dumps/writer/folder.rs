//! The folders of the reference system, with `q_file` and `attention_file` in addition.

use super::{Error, Finding, Layer, LayerInfo, Options, Result, Split, Written, check, exact_words, file, file_name};
use mnnkv::dtype::Dtype;
use serde_json::json;
use std::ops::Range;
use std::path::Path;

/// Writes a layer to `<root>/<run>/layer_<n>/`. The folder of the layer must be without a dump, or is cleared with
/// [`Options::overwrite`]: entries of an older dump would join the new ones.
pub fn write(layer: &Layer, root: &Path, options: &Options, written: &mut Written) -> Result<()> {
    check(layer)?;
    let info = &layer.info;
    let folder = root.join(file_name(&info.run)).join(format!("layer_{}", info.layer));
    let prompt = prompt_tokens(info, options.split)?;
    clear(&folder, options.overwrite)?;
    if info.dtype == Dtype::Bf16 {
        let text = "is BF16; the reference system reads 2 bytes per element as F16";
        written.findings.push(Finding::new("bf16", folder.display(), text));
    }
    let scores = Scores::new(layer);
    entry(layer, &scores, 0..prompt, "prefill", &folder, written)?;
    (prompt..info.tokens).try_for_each(|token| entry(layer, &scores, token..token + 1, "decode", &folder, written))
}

/// Tokens of the prefill entry.
pub(super) fn prompt_tokens(info: &LayerInfo, split: Split) -> Result<usize> {
    match split {
        Split::Prompt(tokens) if tokens > info.tokens || tokens == 0 => {
            let place = format!("prompt of run {:?}, layer {}", info.run, info.layer);
            Err(Error::new(place, format!("is {tokens}; 1 to {} expected", info.tokens)))
        }
        Split::Prompt(tokens) => Ok(tokens),
        Split::Known if (1..info.tokens).contains(&info.prompt_tokens) => Ok(info.prompt_tokens),
        Split::Known | Split::One => Ok(info.tokens),
    }
}

/// Removes the entries of an older dump. Fails if there are some and `overwrite` is false.
fn clear(folder: &Path, overwrite: bool) -> Result<()> {
    let Ok(names) = std::fs::read_dir(folder) else { return Ok(()) };
    for path in names.flatten().map(|name| name.path()).filter(|path| is_entry(path)) {
        if !overwrite {
            return Err(Error::new(path.display(), "exists; a dump is replaced only on request"));
        }
        std::fs::remove_file(&path).map_err(|e| Error::new(path.display(), format!("cannot remove: {e}")))?;
    }
    Ok(())
}

/// Whether a file has a name that [`entry`] gives.
pub(super) fn is_entry(path: &Path) -> bool {
    let (stem, extension) = (path.file_stem().unwrap_or_default(), path.extension().unwrap_or_default());
    let ours = stem.to_string_lossy().split_once("_t").is_some_and(|(kind, range)| {
        matches!(kind, "meta" | "k" | "v" | "q" | "attention") && range.chars().all(|c| c.is_ascii_digit() || c == '_')
    });
    ours && (extension == "json" || extension == "bin")
}

/// Rows as words, `[query head][row][column]`.
struct Rows {
    name: &'static str,
    dtype: Dtype,
    words: Vec<u8>,
    first: usize,
    rows: usize,
    columns: usize,
}

struct Scores(Vec<Rows>);

impl Scores {
    fn new(layer: &Layer) -> Scores {
        let info = &layer.info;
        let query = layer.query.as_ref().map(|query| {
            let (dtype, words) = exact_words(&query.values, info.dtype);
            Rows { name: "q", dtype, words, first: query.first, rows: query.rows, columns: info.head_dim }
        });
        let attention = layer.attention.as_ref().map(|rows| {
            let (dtype, words) = exact_words(&rows.values, Dtype::F16);
            Rows { name: "attention", dtype, words, first: rows.first, rows: rows.rows, columns: info.tokens }
        });
        Scores(query.into_iter().chain(attention).collect())
    }
}

fn name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "fp32",
        Dtype::Bf16 => "bf16",
        _ => "fp16",
    }
}

/// Writes the tokens of one entry. The meta is last, so that it never names a file that is not there.
fn entry(
    layer: &Layer,
    scores: &Scores,
    tokens: Range<usize>,
    stage: &str,
    folder: &Path,
    written: &mut Written,
) -> Result<()> {
    let info = &layer.info;
    let count = tokens.len();
    let range = format!("t{}_{}", info.begin + tokens.start, info.begin + tokens.end);
    let (k_file, v_file) = (format!("k_{range}.bin"), format!("v_{range}.bin"));
    let mut meta = json!({
        "layer_id": info.layer, "seq_start": info.begin + tokens.start, "seq_len": count,
        "seq_end_exclusive": info.begin + tokens.end, "kv_heads": info.kv_heads, "head_dim": info.head_dim,
        "bytes_per_elem": info.dtype.bytes(), "dtype": name(info.dtype), "add": count, "tensor_seq_len": count,
        "quant_key": false, "quant_value": false, "flash_attention": true, "stage": stage, "run_id": info.run,
        "k_file": k_file, "v_file": v_file,
    });
    if let Some(scale) = info.attention_scale {
        meta["attention_scale"] = scale.into();
    }
    let put = |file: &str, words: &[u8], written: &mut Written| file::put(&folder.join(file), words, written);
    let row = info.head_dim * info.dtype.bytes();
    for (file, words) in [(&k_file, &layer.key), (&v_file, &layer.value)] {
        put(file, &by_token(words, info.kv_heads, tokens.clone(), (row, row)), written)?;
    }
    for rows in &scores.0 {
        let (begin, end) = (tokens.start.max(rows.first), tokens.end.min(rows.first + rows.rows));
        if begin >= end {
            continue;
        }
        if end < tokens.end {
            let text =
                format!("{} rows of tokens {begin} to {} are left out; an entry keeps its last", rows.name, end - 1);
            written.findings.push(Finding::new("rows", folder.display(), text));
            continue;
        }
        // Later tokens have no part in the attention of an entry.
        let columns = if rows.name == "attention" { tokens.end } else { rows.columns };
        let lengths = (rows.columns * rows.dtype.bytes(), columns * rows.dtype.bytes());
        let range_of_rows = begin - rows.first..end - rows.first;
        let file = format!("{}_{range}.bin", rows.name);
        put(&file, &by_token(&rows.words, info.query_heads, range_of_rows, lengths), written)?;
        meta["q_heads"] = info.query_heads.into();
        meta[format!("{}_file", rows.name)] = file.into();
        if rows.name == "attention" {
            meta["attention_tokens"] = columns.into();
        }
        if end - begin < count {
            meta[format!("{}_rows", rows.name)] = (end - begin).into();
        }
        if rows.dtype != info.dtype {
            meta[format!("{}_dtype", rows.name)] = name(rows.dtype).into();
        }
    }
    put(&format!("meta_{range}.json"), format!("{meta:#}\n").as_bytes(), written)
}

/// Copies a range of `[head][token]` to `[token][head]`: rows of `lengths.0` bytes, the first `lengths.1` of each.
fn by_token(words: &[u8], heads: usize, tokens: Range<usize>, lengths: (usize, usize)) -> Vec<u8> {
    let mut rows = Vec::with_capacity(tokens.len() * heads * lengths.1);
    for token in tokens {
        for head in words.chunks_exact(words.len() / heads) {
            rows.extend_from_slice(&head[token * lengths.0..][..lengths.1]);
        }
    }
    rows
}
