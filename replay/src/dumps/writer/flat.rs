//! Flat files.

use super::{Layer, Result, Written, check, ends_with_layer, exact_words, file, file_name};
use crate::dumps::names::EXTENSIONS;
use mnnkv::dtype::Dtype;
use std::path::Path;

/// Writes a layer to `<root>/<run>/l<n>_k_h<heads>_t<tokens>_d<dims>.<type>`, and so on.
pub(super) fn write(layer: &Layer, root: &Path, written: &mut Written) -> Result<()> {
    check(layer)?;
    let info = &layer.info;
    let folder = root.join(file_name(&info.run));
    let put = |stem: String, dtype: Dtype, words: &[u8], written: &mut Written| {
        let extension = EXTENSIONS.iter().find(|(_, of)| *of == dtype).map_or("", |(name, _)| name);
        file::put(&folder.join(format!("{stem}.{extension}")), words, written)
    };
    let (n, heads, tokens, dims) = (info.layer, info.query_heads, info.tokens, info.head_dim);
    for (kind, words) in [("k", &layer.key), ("v", &layer.value)] {
        put(format!("l{n}_{kind}_h{}_t{tokens}_d{dims}", info.kv_heads), info.dtype, words, written)?;
    }
    if let Some(query) = &layer.query
        && ends_with_layer(layer, "query", query.first, query.rows, written)
    {
        let (dtype, words) = exact_words(&query.values, info.dtype);
        put(format!("l{n}_q_h{heads}_t{}_d{dims}", query.rows), dtype, &words, written)?;
    }
    if let Some(attention) = &layer.attention
        && ends_with_layer(layer, "attention", attention.first, attention.rows, written)
    {
        let (dtype, words) = exact_words(&attention.values, Dtype::F16);
        put(format!("attention_l{n}_h{heads}_q{}_t{tokens}", attention.rows), dtype, &words, written)?;
    }
    Ok(())
}
