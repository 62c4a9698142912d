//! The safetensors files of a folder, with the names of Hugging Face.

use super::weights::{Tensors, all_finite};
use crate::error::{Error, Result};
use mnnkv::dtype::convert::{Endian, widen};
use mnnkv_model::file::{ModelFile, Source};
use mnnkv_model::safetensors::{self, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// The tensors of all files of a folder by name.
pub(super) struct Folder<'a> {
    folder: &'a Path,
    files: Vec<ModelFile>,
    tensors: HashMap<String, (usize, Tensor)>,
}

impl<'a> Folder<'a> {
    pub(super) fn open(folder: &'a Path) -> Result<Self> {
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
                let name = tensor.name.clone();
                if tensors.insert(name.clone(), (files.len(), tensor)).is_some() {
                    return Err(Error::new(
                        path.display(),
                        format!("tensor {name}: another file of the folder has it, too"),
                    ));
                }
            }
            files.push(file);
        }
        Ok(Folder { folder, files, tensors })
    }
}

impl Tensors for Folder<'_> {
    fn names(&self) -> Vec<(&str, String)> {
        self.tensors.keys().map(|own| (own.as_str(), own.clone())).collect()
    }

    fn fail(&self, text: String) -> Error {
        Error::new(self.folder.display(), text)
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
        all_finite(&values).map_err(fail)?;
        Ok(values)
    }
}
