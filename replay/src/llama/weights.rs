//! The tensors of a model folder, widened to f32, and linear maps of them.

use super::Shape;
use crate::error::{Error, Result};
use mnnkv::arch::{self, PANEL, Product};
use mnnkv::dtype::convert::{Endian, widen};
use mnnkv_model::file::{ModelFile, Source};
use mnnkv_model::safetensors::{self, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// A linear map in the order of the kernel.
pub(super) struct Linear {
    depth: usize,
    /// `[panel][depth][PANEL]`
    panels: Vec<[f32; PANEL]>,
    /// `[panel][PANEL]`, zeros.
    bias: Vec<[f32; PANEL]>,
}

impl Linear {
    /// Rearranges a weight `[columns][depth]`.
    fn new(weight: &[f32], depth: usize) -> Self {
        let count = (weight.len() / depth).div_ceil(PANEL);
        let mut panels = vec![[0.0; PANEL]; count * depth];
        arch::pack_panels(weight, depth, &mut panels);
        Linear { depth, panels, bias: vec![[0.0; PANEL]; count] }
    }

    /// From one row of a result to the next: the columns, and padding up to a whole panel.
    pub(super) fn stride(&self) -> usize {
        self.bias.len() * PANEL
    }

    /// Maps rows.
    pub(super) fn apply(&self, rows: &[f32]) -> Vec<f32> {
        let mut result = vec![[0.0; PANEL]; rows.len() / self.depth * self.bias.len()];
        let product =
            Product { a: rows, stride: self.depth, depth: self.depth, panels: &self.panels, bias: &self.bias };
        (arch::model_kernels().product)(&product, &mut result);
        result.into_flattened()
    }
}

/// A layer.
pub(super) struct Layer {
    pub(super) norm: Vec<f32>,
    /// Query, key and value, side by side.
    pub(super) projections: Linear,
    pub(super) output: Linear,
    pub(super) mlp_norm: Vec<f32>,
    /// Gate and up, side by side.
    pub(super) gates: Linear,
    pub(super) down: Linear,
}

/// All weights.
pub(super) struct Weights {
    /// `[token][hidden]`
    pub(super) embedding: Vec<f32>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Vec<f32>,
    pub(super) head: Linear,
}

impl Weights {
    /// Reads the safetensors files of a folder. Fails if a tensor is missing or has another shape than the config says.
    pub(super) fn read(folder: &Path, shape: &Shape) -> Result<Weights> {
        let files = Files::open(folder)?;
        let Shape { hidden, inner, heads, kv_heads, dims, .. } = *shape;
        let vector = |name: String| files.tensor(&name, &[hidden]);
        // Maps of the same rows, side by side.
        let map = |layer: usize, parts: &[(&str, usize)], depth: usize| -> Result<Linear> {
            let mut weight = Vec::new();
            for (name, columns) in parts {
                weight.extend(files.tensor(&format!("model.layers.{layer}.{name}.weight"), &[*columns, depth])?);
            }
            Ok(Linear::new(&weight, depth))
        };
        let embedding = files.tensor("model.embed_tokens.weight", &[shape.vocabulary, hidden])?;
        let layer = |layer: usize| -> Result<Layer> {
            let projections =
                [("self_attn.q_proj", heads), ("self_attn.k_proj", kv_heads), ("self_attn.v_proj", kv_heads)];
            Ok(Layer {
                norm: vector(format!("model.layers.{layer}.input_layernorm.weight"))?,
                projections: map(layer, &projections.map(|(name, heads)| (name, heads * dims)), hidden)?,
                output: map(layer, &[("self_attn.o_proj", hidden)], heads * dims)?,
                mlp_norm: vector(format!("model.layers.{layer}.post_attention_layernorm.weight"))?,
                gates: map(layer, &[("mlp.gate_proj", inner), ("mlp.up_proj", inner)], hidden)?,
                down: map(layer, &[("mlp.down_proj", hidden)], inner)?,
            })
        };
        Ok(Weights {
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            norm: vector("model.norm.weight".into())?,
            head: match shape.tied {
                true => Linear::new(&embedding, hidden),
                false => Linear::new(&files.tensor("lm_head.weight", &[shape.vocabulary, hidden])?, hidden),
            },
            embedding,
        })
    }
}

/// The tensors of all files of a folder by name.
struct Files<'a> {
    folder: &'a Path,
    files: Vec<ModelFile>,
    tensors: HashMap<String, (usize, Tensor)>,
}

impl<'a> Files<'a> {
    fn open(folder: &'a Path) -> Result<Self> {
        let fail = |text: String| Error::new(folder.display(), text);
        let entries = std::fs::read_dir(folder).map_err(|e| fail(format!("cannot be opened: {e}")))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|e| fail(format!("cannot be read: {e}")))?.path();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() {
            return Err(fail("has no .safetensors file".into()));
        }
        let (mut files, mut tensors) = (Vec::new(), HashMap::new());
        for path in paths {
            let file = ModelFile::open(&path).map_err(|e| Error::new(path.display(), e))?;
            for tensor in safetensors::read(&file).map_err(|e| Error::new(path.display(), e))? {
                tensors.insert(tensor.name.clone(), (files.len(), tensor));
            }
            files.push(file);
        }
        Ok(Files { folder, files, tensors })
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let fail = |text: String| Error::new(format!("{}: tensor {name}", self.folder.display()), text);
        let Some((file, tensor)) = self.tensors.get(name) else { return Err(fail("is missing".into())) };
        if !tensor.shape.iter().copied().eq(shape.iter().map(|n| *n as u64)) {
            return Err(fail(format!("has the shape {:?}; {shape:?} expected, as config.json says", tensor.shape)));
        }
        let Some(dtype) = tensor.dtype.native().filter(|dtype| dtype.is_float()) else {
            return Err(fail(format!("has the type {}; F16, BF16 or F32 expected", tensor.dtype.name())));
        };
        let bytes = self.files[*file].read_vec(tensor.begin, tensor.bytes).map_err(|e| fail(e.to_string()))?;
        let mut values = vec![0.0; bytes.len() / dtype.bytes()];
        widen(dtype, Endian::Little, &bytes, &mut values);
        Ok(values)
    }
}
