//! `mnnkv inspect`: the contents of a file.

use crate::bytes;
use crate::failure::Failure;
use crate::output::Output;
use crate::{snapshot, table};
use clap::Args;
use mnnkv_model::compressor::{self, Compressor};
use mnnkv_model::file::{ModelFile, Source};
use mnnkv_model::safetensors;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Show the contents of a model file, or of a snapshot.
///
/// Reads learned KV compressors (.bin), safetensors files of any model, and the snapshot of a chat.
/// The content determines the type, not the name. For the KV cache of a config.json see mnnkv size.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    /// The file
    path: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let path = &arguments.path;
    if path.is_dir() {
        return Err(Failure(format!(
            "{} is a directory; a file expected (mnnkv check reads directories that msmodelslim quantised)",
            path.display()
        )));
    }
    let file = ModelFile::open(path)?;
    let mut start = [0; 9];
    let len = start.len().min(usize::try_from(file.len()).unwrap_or(start.len()));
    file.read_at(0, &mut start[..len])?;
    if start.starts_with(&compressor::MAGIC.to_le_bytes()) {
        compressor(path, &file)
    } else if start.starts_with(snapshot::MAGIC) {
        snapshot::inspect(path)
    } else if start[8] == b'{' {
        tensors(path, &file)
    } else {
        Err(Failure(format!(
            "{} is no learned KV compressor, which begins with the bytes MCVK, no snapshot, which begins with MNKVSNAP, \
             and no safetensors file, which has a JSON object behind its first 8 bytes",
            path.display()
        )))
    }
}

fn compressor(path: &Path, file: &ModelFile) -> Result<Output, Failure> {
    let file = Compressor::read(file).map_err(|e| Failure(format!("{}: {}", path.display(), e.message())))?;
    let header = *file.header();
    let mut text = format!(
        "{}: learned KV compressor, version {}, {}\n",
        path.display(),
        compressor::VERSION,
        bytes::format(file.file_bytes())
    );
    let mut facts = vec![
        ("weights", header.dtype.name().to_owned()),
        ("layers", header.layers.to_string()),
        ("head dimension", file.head_dim().to_string()),
        ("factor", format!("{} tokens of a head become one", header.factor)),
        ("least groups", format!("{}; shorter segments stay unchanged", header.min_seq_len)),
        ("for", if file.has_image() { "text and images" } else { "text; images stay unchanged" }.to_owned()),
    ];
    if header.num_heads != 0 {
        facts.push(("heads", format!("{}, as noted by the converter", header.num_heads)));
    }
    text += &table::lines(facts.into_iter().map(|(name, value)| vec![name.to_owned(), value]));
    text += "\nLayer 0\n";
    let mut rows = Vec::new();
    for (i, block) in file.blocks(0)?.iter().enumerate() {
        rows.push(vec![
            format!("{} slot {}", ["text keys", "text values", "image keys", "image values"][i / 3], i % 3),
            format!("{} x {}", block.rows, block.cols),
            if block.has_bias { "with bias" } else { "no bias" }.to_owned(),
            format!("at byte {}", block.offset),
        ]);
    }
    text += &table::lines(rows);
    let block =
        |b: &compressor::BlockInfo| json!({ "offset": b.offset, "rows": b.rows, "cols": b.cols, "bias": b.has_bias });
    let layers: Result<Vec<Value>, _> =
        (0..file.layers()).map(|layer| Ok::<_, Failure>(file.blocks(layer)?.iter().map(block).collect())).collect();
    let object = json!({
        "kind": "compressor",
        "version": compressor::VERSION,
        "bytes": file.file_bytes(),
        "dtype": header.dtype.name(),
        "layers": header.layers,
        "num_heads": header.num_heads,
        "head_dim": header.head_dim,
        "hidden_size": header.hidden_size,
        "compression_factor": header.factor,
        "min_seq_len": header.min_seq_len,
        "weights_per_layer": header.blocks_per_layer,
        "metadata_bytes": header.metadata_bytes,
        "blocks": layers?,
    });
    Ok(Output::new(text, object))
}

fn tensors(path: &Path, file: &ModelFile) -> Result<Output, Failure> {
    let tensors = safetensors::read(file).map_err(|e| Failure(format!("{}: {}", path.display(), e.message())))?;
    let count = bytes::plural(tensors.len() as u64, "tensor");
    let mut text = format!("{}: safetensors, {count}, {}\n", path.display(), bytes::format(file.len()));
    let row = |t: &safetensors::Tensor| {
        vec![t.name.clone(), t.dtype.name().to_owned(), format!("{:?}", t.shape), bytes::format(t.bytes)]
    };
    text += &table::lines(tensors.iter().map(row));
    let tensor = |t: &safetensors::Tensor| json!({ "name": t.name, "dtype": t.dtype.name(), "shape": t.shape, "offset": t.begin, "bytes": t.bytes });
    let list: Vec<Value> = tensors.iter().map(tensor).collect();
    Ok(Output::new(text, json!({ "kind": "safetensors", "bytes": file.len(), "tensors": list })))
}
