//! `mnnkv dequantize`: writes a quantised directory as a float model.

use crate::bytes;
use crate::dtype;
use crate::failure::Failure;
use crate::input;
use crate::output::{Output, write_files};
use clap::Args;
use mnnkv::dtype::Dtype;
use mnnkv::status::Error;
use mnnkv_model::file::NewFile;
use mnnkv_model::msmodelslim::{DiskFolder, FloatTensor, Model};
use mnnkv_model::safetensors::{self, NewTensor};
use mnnkv_model::sizing::CacheElement;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that one step converts.
const PIECE: u64 = 4 << 20;
/// Limit of a config.json.
const MAX_CONFIG: u64 = 4 << 20;

/// Convert a directory quantised by msmodelslim to a float model.
///
/// Writes model.safetensors, or parts with an index, and the config.json without its keys of quantisation. Reads W8A16,
/// W8A8, W8A8S, W8A8_DYNAMIC and W8A8_MIX linears; another quantised type is an error. The directory appears when it is complete.
/// Other files, such as those of the tokenizer, are not copied. Memory does not grow with the size of the weights.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct Arguments {
    /// The directory with quant_model_description.json and the weights
    directory: PathBuf,
    /// The directory to write; must not exist
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Type of weights, biases and norms [default: that of the config.json, else f16]
    #[arg(long, value_parser = dtype::named(&["f32", "f16", "bf16"]))]
    dtype: Option<CacheElement>,
    /// Largest part in bytes; 0: one file
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, default_value = "4GiB")]
    part_size: u64,
}

pub fn run(arguments: &Arguments) -> Result<Output, Failure> {
    let output = &arguments.output;
    if output.symlink_metadata().is_ok() {
        return Err(Failure(format!("{} exists; a new directory expected", output.display())));
    }
    let input = Input::open(&arguments.directory)?;
    let model = &input.model;
    let config = Config::read(&arguments.directory.join("config.json"))?;
    let of_config = || config.as_ref().and_then(Config::dtype);
    let dtype = arguments.dtype.and_then(dtype::float).or_else(of_config).unwrap_or(Dtype::F16);
    let mut tensors = model.float_tensors(dtype).map_err(|e| input.failure(&e))?;
    // Wide elements first, so that each tensor is aligned, as in other writers of the format.
    tensors.sort_by_key(|t| std::cmp::Reverse(t.dtype.bits()));
    let folder = Folder::create(output)?;
    let files = write_parts(&folder.unfinished, &input, &tensors, arguments.part_size)?;
    if let Some(config) = config {
        write_text(&folder.unfinished.join("config.json"), &config.of_float_model(dtype))?;
    }
    folder.finish()?;
    let total: u64 = tensors.iter().map(FloatTensor::bytes).sum();
    let (read, count) = (model.bytes(), tensors.len());
    let text = format!(
        "{}: {count} tensors, {} in {}, from {}\n",
        output.display(),
        bytes::format(total),
        bytes::plural(files as u64, "file"),
        bytes::format(read),
    );
    let object = json!({
        "output": output.display().to_string(), "dtype": dtype.name(), "tensors": count, "bytes": total,
        "files": files, "bytes_read": read,
    });
    Ok(Output::new(text, object))
}

/// The quantised directory.
struct Input<'a> {
    path: &'a Path,
    model: Model,
}

impl<'a> Input<'a> {
    fn open(path: &'a Path) -> Result<Self, Failure> {
        let folder = DiskFolder::new(path)?;
        let model = Model::open_folder(&folder).map_err(|e| Failure::of_quantised(path, &e))?;
        Ok(Input { path, model })
    }

    fn failure(&self, error: &Error) -> Failure {
        Failure::of_quantised(self.path, error)
    }
}

/// Writes all tensors, and an index if there is more than one part. Returns the number of files.
fn write_parts(folder: &Path, input: &Input, tensors: &[FloatTensor], limit: u64) -> Result<usize, Failure> {
    let total: u64 = tensors.iter().map(FloatTensor::bytes).sum();
    let mut parts: Vec<&[FloatTensor]> = Vec::new();
    let (mut begin, mut pending) = (0, 0);
    for (i, tensor) in tensors.iter().enumerate() {
        if limit > 0 && pending > 0 && pending + tensor.bytes() > limit {
            parts.push(&tensors[begin..i]);
            (begin, pending) = (i, 0);
        }
        pending += tensor.bytes();
    }
    parts.push(&tensors[begin..]);
    let mut places = Map::new();
    for (i, part) in parts.iter().enumerate() {
        let name = match parts.len() {
            1 => "model.safetensors".to_owned(),
            of => format!("model-{:05}-of-{of:05}.safetensors", i + 1),
        };
        write_part(&folder.join(&name), input, part)?;
        places.extend(part.iter().map(|tensor| (tensor.name.clone(), Value::from(name.as_str()))));
    }
    if parts.len() > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
        write_text(&folder.join("model.safetensors.index.json"), &index)?;
    }
    Ok(parts.len())
}

fn write_part(path: &Path, input: &Input, tensors: &[FloatTensor]) -> Result<(), Failure> {
    let mut file = NewFile::create(path)?;
    let header = safetensors::header(tensors.iter().map(|tensor| NewTensor {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
        bytes: tensor.bytes(),
    }))?;
    file.write(&header)?;
    let mut piece = Vec::new();
    for tensor in tensors {
        let step = (PIECE / tensor.row_bytes().max(1)).max(1);
        let mut row = 0;
        while row < tensor.rows && tensor.row_bytes() > 0 {
            let end = tensor.rows.min(row + step);
            let len = usize::try_from((end - row) * tensor.row_bytes())
                .map_err(|_| Failure(format!("{}: a row exceeds the address space", tensor.name)))?;
            piece.resize(len, 0);
            input.model.read_float(tensor, row..end, &mut piece).map_err(|e| input.failure(&e))?;
            file.write(&piece)?;
            row = end;
        }
    }
    Ok(file.finish()?)
}

fn write_text(path: &Path, object: &Value) -> Result<(), Failure> {
    write_files([(path, format!("{object:#}\n").as_str())])
}

/// A directory that appears under its name when it is complete.
struct Folder<'a> {
    path: &'a Path,
    unfinished: PathBuf,
}

impl<'a> Folder<'a> {
    fn create(path: &'a Path) -> Result<Self, Failure> {
        let Some(name) = path.file_name() else {
            return Err(Failure(format!("{} is not a directory name", path.display())));
        };
        let hidden = format!(".{}.{}.part", name.to_string_lossy(), std::process::id());
        let unfinished = path.with_file_name(hidden);
        let failed = |e| Failure(format!("cannot create a directory beside {}: {e}", path.display()));
        fs::create_dir(&unfinished).map_err(failed)?;
        Ok(Folder { path, unfinished })
    }

    fn finish(&self) -> Result<(), Failure> {
        let failed = |e| Failure(format!("cannot write {}: {e}", self.path.display()));
        fs::rename(&self.unfinished, self.path).map_err(failed)
    }
}

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        // Fails after `finish`, which renamed the directory.
        let _ = fs::remove_dir_all(&self.unfinished);
    }
}

/// The config.json of a quantised model.
struct Config(Map<String, Value>);

impl Config {
    /// `None` where there is none.
    fn read(path: &Path) -> Result<Option<Self>, Failure> {
        // A dangling link is an error: a runtime needs the file.
        if path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let bytes = input::bytes(path, MAX_CONFIG)?;
        let config = serde_json::from_slice(&bytes).map_err(|e| Failure(format!("{}: {e}", path.display())))?;
        Ok(Some(Config(config)))
    }

    fn dtype(&self) -> Option<Dtype> {
        let name = ["dtype", "torch_dtype"].iter().find_map(|key| self.0.get(*key)?.as_str())?;
        dtype::float(CacheElement::from_name(name)?)
    }

    fn of_float_model(mut self, dtype: Dtype) -> Value {
        for key in ["quantize", "quantization_config", "dtype"] {
            self.0.remove(key);
        }
        let name = match dtype {
            Dtype::F32 => "float32",
            Dtype::Bf16 => "bfloat16",
            _ => "float16",
        };
        self.0.insert("torch_dtype".into(), name.into());
        Value::Object(self.0)
    }
}
