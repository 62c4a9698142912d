//! `mnnkv inspect`: the contents of a file or directory.

use crate::bytes;
use crate::failure::Failure;
use crate::output::{Output, visible};
use crate::table;
use clap::Args;
use mnnkv_model::compressor::{self, Compressor};
use mnnkv_model::file::{ModelFile, Source};
use mnnkv_model::msmodelslim::Model;
use mnnkv_model::safetensors;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Show the contents of a model file or directory.
///
/// Reads learned KV compressors (.bin), safetensors files of any model, and directories quantised by msmodelslim.
/// The content determines the type, not the name. For the KV cache of a config.json see mnnkv size.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    /// The file or directory
    path: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let path = &arguments.path;
    if path.is_dir() {
        return directory(path);
    }
    let file = ModelFile::open(path)?;
    let mut start = [0; 9];
    let len = start.len().min(usize::try_from(file.len()).unwrap_or(start.len()));
    file.read_at(0, &mut start[..len])?;
    if start.starts_with(&compressor::MAGIC.to_le_bytes()) {
        compressor(path, &file)
    } else if start[8] == b'{' {
        tensors(path, &file)
    } else {
        Err(Failure(format!(
            "{} is no learned KV compressor, which begins with the bytes MCVK, and no safetensors file, \
              which has a JSON object behind its first 8 bytes",
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
    text += &notes(file.notes());
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
        "notes": file.notes(),
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

fn directory(path: &Path) -> Result<Output, Failure> {
    let model = Model::open(path).map_err(|e| Failure::of_quantised(path, &e))?;
    let description = model.description();
    let mut text = format!(
        "{}: quantised by msmodelslim, {}, {} in {}\n",
        path.display(),
        visible(description.model_quant_type.as_deref().unwrap_or("of a type that is not given")),
        bytes::format(model.bytes()),
        bytes::plural(model.weight_files() as u64, "file"),
    );
    text += "\nLinears\n";
    let linear = |l: &mnnkv_model::msmodelslim::QuantizedLinear| {
        let size = match l.granularity.group_size() {
            0 => String::new(),
            size => format!(" of {size}"),
        };
        vec![
            l.name.clone(),
            l.tag.word().to_owned(),
            format!("{} x {}", l.n, l.k),
            format!("{}{size}", l.granularity.word()),
            if l.bias { "with bias" } else { "" }.to_owned(),
            bytes::format(l.bytes),
        ]
    };
    text += &table::lines(model.linears().iter().map(linear));
    if !model.norms().is_empty() {
        text += "\nNorms\n";
        let norm = |n: &mnnkv_model::msmodelslim::Norm| {
            vec![
                n.name.clone(),
                n.len.to_string(),
                if n.bias { "with bias" } else { "" }.to_owned(),
                if n.smoothed { "smoothed" } else { "" }.to_owned(),
            ]
        };
        text += &table::lines(model.norms().iter().map(norm));
    }
    if !model.kv_layers().is_empty() {
        text += "\nScales of an int8 KV cache (C8)\n";
        let kv = |l: &mnnkv_model::msmodelslim::KvLayer| {
            vec![
                l.prefix.clone(),
                format!("keys: {} channels", l.key.channels),
                format!("values: {} channels", l.value.channels),
            ]
        };
        text += &table::lines(model.kv_layers().iter().map(kv));
    }
    let mut object: Value = serde_json::from_str(&model.layers_json()?)?;
    object["kind"] = json!("msmodelslim");
    Ok(Output::new(text, object))
}

fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}
