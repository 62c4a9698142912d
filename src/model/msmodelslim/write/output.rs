//! The files of a directory, written one after the other.

use super::plan::Plan;
use crate::model::file::{NewFile, failed};
use crate::model::safetensors::{NewTensor, header};
use crate::status::{Result, bail};
use serde_json::{Map, Value, json};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

const STEM: &str = "quant_model_weights";
const DESCRIPTION: &str = "quant_model_description.json";

/// A directory that is being written. What is in it goes when this is dropped before it is kept.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    made: bool,
    files: Vec<PathBuf>,
    kept: bool,
}

impl Folder {
    /// Fails where a directory of this path could be taken for one that was there before.
    pub(super) fn check(path: &Path) -> Result<()> {
        let kind = match fs::metadata(path) {
            Ok(kind) => kind,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(failed("look at", path, &e)),
        };
        if !kind.is_dir() {
            bail!(InvalidArgument, "{} is no directory", path.display());
        }
        for entry in fs::read_dir(path).map_err(|e| failed("list", path, &e))? {
            let name = entry.map_err(|e| failed("list", path, &e))?.file_name();
            let name = name.to_string_lossy();
            let weights = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
            if !name.starts_with('.') && (weights || name.starts_with("quant_model_description")) {
                bail!(InvalidArgument, "{} has {name}; a directory without quantised weights expected", path.display());
            }
        }
        Ok(())
    }

    fn create(path: &Path) -> Result<Folder> {
        Folder::check(path)?;
        let made = !path.exists();
        if made {
            fs::create_dir(path).map_err(|e| failed("create", path, &e))?;
        }
        Ok(Folder { path: path.to_owned(), made, files: Vec::new(), kept: false })
    }

    fn put(&mut self, name: &str, file: NewFile) -> Result<()> {
        file.finish()?;
        self.files.push(self.path.join(name));
        Ok(())
    }

    fn put_text(&mut self, name: &str, text: &str) -> Result<()> {
        let mut file = NewFile::create(&self.path.join(name))?;
        file.write(text.as_bytes())?;
        self.put(name, file)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// All files with weights, as one stream of the tensors' bytes.
#[derive(Debug)]
pub(super) struct Output {
    // Before the folder, since it is dropped before: a folder that is not empty stays.
    file: Option<NewFile>,
    folder: Folder,
    /// Names and tensors of the parts.
    parts: Vec<(String, Range<usize>)>,
    part: usize,
    /// Bytes of this part that have not come.
    left: u64,
    indexed: bool,
}

impl Output {
    pub(super) fn create(path: &Path, plan: &Plan, part_bytes: u64) -> Result<Output> {
        let begins = plan.parts(part_bytes);
        let ends = begins.iter().skip(1).copied().chain([plan.tensors.len()]);
        let of = begins.len();
        let name = |i: usize| match part_bytes {
            0 => format!("{STEM}.safetensors"),
            _ => format!("{STEM}-{:05}-of-{of:05}.safetensors", i + 1),
        };
        let parts = begins.iter().zip(ends).enumerate().map(|(i, (begin, end))| (name(i), *begin..end)).collect();
        let folder = Folder::create(path)?;
        let mut output = Output { file: None, folder, parts, part: 0, left: 0, indexed: part_bytes > 0 };
        output.begin(plan)?;
        Ok(output)
    }

    /// Opens the part that is due and writes its header.
    fn begin(&mut self, plan: &Plan) -> Result<()> {
        let (name, range) = &self.parts[self.part];
        let tensors = &plan.tensors[range.clone()];
        let mut file = NewFile::create(&self.folder.path.join(name))?;
        file.write(&header(tensors.iter().map(|tensor| NewTensor {
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: &tensor.shape,
            bytes: tensor.bytes,
        })))?;
        self.file = Some(file);
        self.left = tensors.iter().map(|tensor| tensor.bytes).sum();
        self.end(plan)
    }

    /// Closes parts that are complete, and opens the next one.
    fn end(&mut self, plan: &Plan) -> Result<()> {
        if self.left > 0 {
            return Ok(());
        }
        if let Some(file) = self.file.take() {
            self.folder.put(&self.parts[self.part].0.clone(), file)?;
        }
        if self.part + 1 < self.parts.len() {
            self.part += 1;
            self.begin(plan)?;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, plan: &Plan, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            let Some(file) = self.file.as_mut().filter(|_| len > 0) else {
                bail!(Internal, "more bytes than were announced");
            };
            file.write(&bytes[..len])?;
            self.left -= len as u64;
            bytes = &bytes[len..];
            self.end(plan)?;
        }
        Ok(())
    }

    /// Index, then description.
    pub(super) fn finish(mut self, plan: &Plan, description: &str) -> Result<()> {
        if self.file.is_some() {
            bail!(Internal, "fewer bytes than were announced");
        }
        if self.indexed {
            let mut map = Map::new();
            for (name, range) in &self.parts {
                for tensor in &plan.tensors[range.clone()] {
                    map.insert(tensor.name.clone(), name.as_str().into());
                }
            }
            let total: u64 = plan.tensors.iter().map(|tensor| tensor.bytes).sum();
            let index: Value = json!({"metadata": {"total_size": total}, "weight_map": map});
            self.folder.put_text(&format!("{STEM}.safetensors.index.json"), &format!("{index:#}"))?;
        }
        self.folder.put_text(DESCRIPTION, description)?;
        self.folder.kept = true;
        Ok(())
    }
}
