//! safetensors.

use super::file::NewFile;
use super::{Dump, Error, Layer, Result, Written, check, ends_with_layer, exact_words, file_name};
use mnnkv::dtype::Dtype;
use mnnkv_model::safetensors::{FileDtype, NewTensor, header};
use std::path::Path;

/// Writes the layers `indices` of one run to `<root>/<run>.safetensors`, as `layers.<n>.key` and so on. Rows of Q and of
/// attention are F32.
pub(super) fn write(
    dump: &Dump,
    indices: &[usize],
    root: &Path,
    written: &mut Written,
    done: &mut dyn FnMut(u64),
) -> Result<()> {
    let path = root.join(format!("{}.safetensors", file_name(&dump.layers[indices[0]].run)));
    let mut tensors = Vec::new();
    for index in indices {
        let info = &dump.layers[*index];
        let (query, attention) = dump.score_ranges(*index);
        // Rows of other tokens are left out; a finding says so when the layer is loaded.
        let rows = |range: std::ops::Range<usize>| if range.end == info.tokens { range.len() } else { 0 };
        let shapes = [
            ("key", info.dtype, [info.kv_heads, info.tokens, info.head_dim]),
            ("value", info.dtype, [info.kv_heads, info.tokens, info.head_dim]),
            ("query", Dtype::F32, [info.query_heads, rows(query), info.head_dim]),
            ("attention", Dtype::F32, [info.query_heads, rows(attention), info.tokens]),
        ];
        let present = shapes.into_iter().filter(|(_, _, shape)| !shape.contains(&0));
        tensors.extend(present.map(|(name, dtype, shape)| {
            let bytes = (shape.iter().product::<usize>() * dtype.bytes()) as u64;
            (format!("layers.{}.{name}", info.layer), dtype, shape.map(|length| length as u64), bytes)
        }));
    }
    let header = header(tensors.iter().map(|(name, dtype, shape, bytes)| NewTensor {
        name,
        dtype: FileDtype::of(*dtype),
        shape,
        bytes: *bytes,
    }));
    let mut file = NewFile::create(&path)?;
    file.write(&header.map_err(|e| Error::new(path.display(), e.message()))?)?;
    for index in indices {
        let layer = dump.load(*index)?;
        write_layer(&layer, &mut file, written)?;
        done(2 * layer.info.key_bytes() as u64);
    }
    file.finish(written)
}

fn write_layer(layer: &Layer, file: &mut NewFile, written: &mut Written) -> Result<()> {
    check(layer)?;
    file.write(&layer.key)?;
    file.write(&layer.value)?;
    let query = layer.query.as_ref().map(|query| ("query", query.first, query.rows, &query.values));
    let attention = layer.attention.as_ref().map(|rows| ("attention", rows.first, rows.rows, &rows.values));
    for (name, first, rows, values) in query.into_iter().chain(attention) {
        if ends_with_layer(layer, name, first, rows, written) {
            file.write(&exact_words(values, Dtype::F32).1)?;
        }
    }
    Ok(())
}
