//! `mnnkv convert-compressor`: converts a PyTorch checkpoint to a `.bin` file for runtimes.

mod archive;
mod checkpoint;
mod pickle;
mod select;
mod tensors;

#[cfg(test)]
mod tests;

use crate::bytes;
use crate::dtype;
use crate::failure::Failure;
use crate::output::{self, Output};
use checkpoint::Checkpoint;
use clap::Args;
use mnnkv_model::compressor::Weights;
use mnnkv_model::sizing::CacheElement;
use serde_json::json;
use std::path::PathBuf;

/// Convert a learned KV compressor from a PyTorch checkpoint (.pth) to a weight file (.bin).
///
/// Has the flags and defaults of InfiniLM's converter, and needs no PyTorch. Reads the compressor from
/// model_state_dict.compressor, else from compressor, else from the checkpoint itself. Files are equal byte for byte.
/// Input from which that converter silently writes a file with other results is an error, and no file is written.
#[derive(Args)]
pub struct Arguments {
    /// The checkpoint, as written by torch.save
    #[arg(long, value_name = "PTH")]
    input: PathBuf,
    /// The weight file; an existing one is replaced when the new one is complete
    #[arg(long, value_name = "BIN")]
    output: PathBuf,
    /// Type of all weights and biases in the file
    #[arg(long, default_value = "fp16", value_parser = dtype::named(&["fp16", "bf16", "fp32"]))]
    dtype: CacheElement,
    /// Tokens that become one; 0: from the shape of the first layer
    #[arg(long, value_name = "N", default_value_t = 0)]
    compression_factor: u32,
    /// Least groups of a segment; shorter segments stay unchanged
    #[arg(long, value_name = "GROUPS", default_value_t = 2)]
    min_seq_len: u32,
    /// Names of the MLPs in the file's order: text keys, text values, image keys, image values; two names make a file
    /// without image weights
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "compress_tk,compress_tv,compress_ik,compress_iv"
    )]
    prefix_order: Vec<String>,
    /// Places of the three linear layers in each MLP
    #[arg(long, value_name = "PLACES", value_delimiter = ',', default_value = "0,3,6")]
    slot_order: Vec<u32>,
    /// Number of heads to note in the file; runtimes ignore it
    #[arg(long, value_name = "N", default_value_t = 0)]
    num_heads: u32,
    /// Length of a head's vectors; 0: the rows of the first layer
    #[arg(long, value_name = "N", default_value_t = 0)]
    head_dim: u32,
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    output::refuse_inputs([&arguments.output], [&arguments.input])?;
    let mut checkpoint = Checkpoint::open(&arguments.input)?;
    let (weights, ignored) = select::weights(&mut checkpoint, arguments)?;
    weights.to_file(&arguments.output)?;
    Ok(report(arguments, &weights, &ignored))
}

fn report(arguments: &Arguments, weights: &Weights, ignored: &[String]) -> Output {
    let output = arguments.output.display().to_string();
    let blocks = weights.layers.first().map_or(0, Vec::len);
    let segments = if blocks == 12 { "text and image" } else { "text only" };
    let mut text = format!(
        "{output}: {} layers, {segments}, {} tokens of {} become one, {}, {}\n",
        weights.layers.len(),
        weights.factor,
        weights.head_dim,
        weights.dtype.name(),
        bytes::format(weights.file_bytes()),
    );
    if !ignored.is_empty() {
        text += &format!("left out, since no runtime reads them: {}\n", ignored.join(", "));
    }
    let object = json!({
        "output": output,
        "bytes": weights.file_bytes(),
        "dtype": weights.dtype.name(),
        "layers": weights.layers.len(),
        "weights_per_layer": blocks,
        "compression_factor": weights.factor,
        "head_dim": weights.head_dim,
        "min_seq_len": weights.min_seq_len,
        "left_out": ignored,
    });
    Output::new(text, object)
}
