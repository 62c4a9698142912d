//! The files of a directory, written one after the other.

use super::plan::Plan;
use crate::json::Writer;
use crate::model::file::NewFile;
use crate::model::safetensors::{NewTensor, header};
use crate::status::{Result, bail};
use crate::sys::files::{self, Kind, failed};
use crate::sys::memory;
use std::io;
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
        match files::kind(path) {
            Ok(Kind::Folder) => {}
            Ok(_) => bail!(InvalidArgument, "{} is no directory", path.display()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(failed("look at", path, &e)),
        }
        files::names(path, |name| {
            let weights = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
            if !name.starts_with('.') && (weights || name.starts_with("quant_model_description")) {
                bail!(InvalidArgument, "{} has {name}; a directory without quantised weights expected", path.display());
            }
            Ok(())
        })
    }

    fn create(path: &Path) -> Result<Folder> {
        Folder::check(path)?;
        let mut folder = Folder { path: files::copied(path)?, made: false, files: Vec::new(), kept: false };
        match files::create_folder(path) {
            Ok(()) => folder.made = true,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed("create", path, &e)),
        }
        Ok(folder)
    }

    /// Gives `file` its name. An error of memory changes nothing.
    fn put(&mut self, name: &str, file: &mut Option<NewFile>) -> Result<()> {
        // Known before it is there, so that it goes whatever happens.
        memory::push(&mut self.files, files::join(&self.path, name)?)?;
        file.take().map_or(Ok(()), NewFile::finish)
    }

    fn put_text(&mut self, name: &str, text: &str) -> Result<()> {
        let mut file = NewFile::create(&files::join(&self.path, name)?)?;
        file.write(text.as_bytes())?;
        self.put(name, &mut Some(file))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for file in &self.files {
            let _ = files::remove(file);
        }
        if self.made {
            let _ = files::remove_folder(&self.path);
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
    written: u64,
}

impl Output {
    pub(super) fn create(path: &Path, plan: &Plan, part_bytes: u64) -> Result<Output> {
        let begins = plan.parts(part_bytes)?;
        let ends = begins.iter().skip(1).copied().chain([plan.tensors.len()]);
        let of = begins.len();
        let name = |i: usize| match part_bytes {
            0 => memory::format(format_args!("{STEM}.safetensors")),
            _ => memory::format(format_args!("{STEM}-{:05}-of-{of:05}.safetensors", i + 1)),
        };
        let parts = begins.iter().zip(ends).enumerate().map(|(i, (begin, end))| Ok((name(i)?, *begin..end)));
        let parts = memory::try_collect(parts)?;
        let folder = Folder::create(path)?;
        let mut output = Output { file: None, folder, parts, part: 0, left: 0, indexed: part_bytes > 0, written: 0 };
        output.begin(plan)?;
        Ok(output)
    }

    /// Opens the part that is due and writes its header.
    fn begin(&mut self, plan: &Plan) -> Result<()> {
        let (name, range) = &self.parts[self.part];
        let tensors = &plan.tensors[range.clone()];
        let header = header(tensors.iter().map(|tensor| NewTensor {
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: &tensor.shape,
            bytes: tensor.bytes,
        }))?;
        let mut file = NewFile::create(&files::join(&self.folder.path, name)?)?;
        file.write(&header)?;
        self.file = Some(file);
        self.left = tensors.iter().map(|tensor| tensor.bytes).sum();
        Ok(())
    }

    /// Closes the parts that are complete and opens the next one. An error of memory changes nothing.
    fn advance(&mut self, plan: &Plan) -> Result<()> {
        while self.left == 0 {
            self.close()?;
            if self.part + 1 == self.parts.len() {
                break;
            }
            self.part += 1;
            if let Err(e) = self.begin(plan) {
                self.part -= 1;
                return Err(e);
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        match self.file.is_some() {
            true => self.folder.put(&self.parts[self.part].0, &mut self.file),
            false => Ok(()),
        }
    }

    /// Bytes of contents that have come.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn write(&mut self, plan: &Plan, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.advance(plan)?;
            let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            let Some(file) = self.file.as_mut().filter(|_| len > 0) else {
                bail!(Internal, "more bytes than were announced");
            };
            file.write(&bytes[..len])?;
            self.left -= len as u64;
            self.written += len as u64;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    /// Index, then description.
    pub(super) fn finish(mut self, plan: &Plan, description: &str) -> Result<()> {
        self.advance(plan)?;
        if self.file.is_some() || self.part + 1 < self.parts.len() {
            bail!(Internal, "fewer bytes than were announced");
        }
        if self.indexed {
            let total: u64 = plan.tensors.iter().map(|tensor| tensor.bytes).sum();
            let index = Writer::indented(|to| {
                to.object(|to| {
                    to.key("metadata")?.object(|to| to.field("total_size", total))?;
                    to.key("weight_map")?.object(|to| {
                        self.parts.iter().try_for_each(|(name, range)| {
                            plan.tensors[range.clone()].iter().try_for_each(|tensor| to.field(&tensor.name, name))
                        })
                    })
                })
            })?;
            let name = memory::format(format_args!("{STEM}.safetensors.index.json"))?;
            self.folder.put_text(&name, &index)?;
        }
        self.folder.put_text(DESCRIPTION, description)?;
        self.folder.kept = true;
        Ok(())
    }
}
