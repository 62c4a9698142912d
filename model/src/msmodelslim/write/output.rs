//! The files of a directory, written one after another.

use super::plan::WritePlan;
use crate::file::{NewFile, NewName};
use crate::json::Writer;
use crate::safetensors::{NewTensor, header};
use mnnkv::status::{Result, bail};
use mnnkv::sys::files::{self, Kind, failed};
use mnnkv::sys::memory;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

const STEM: &str = "quant_model_weights";
const INDEX: &str = "quant_model_weights.safetensors.index.json";
const DESCRIPTION: &str = "quant_model_description.json";

/// A new directory. Dropping it removes its files unless it is kept.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    made: bool,
    files: Vec<PathBuf>,
    kept: bool,
}

impl Folder {
    /// Fails if the path already has a quantised model.
    pub(super) fn check(path: &Path) -> Result<()> {
        match files::kind(path) {
            Ok(Kind::Folder) => {}
            Ok(_) => bail!(InvalidArgument, "{} is not a directory", path.display()),
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

/// The names of the next file, and a copy of its path for [`Folder::files`].
type Due = Option<(NewName, PathBuf)>;

/// A weight file.
#[derive(Debug)]
struct Part {
    name: String,
    tensors: Range<usize>,
    header: Vec<u8>,
    file: Due,
}

/// All weight files as one stream of tensor bytes. All memory is allocated before the first file exists.
#[derive(Debug)]
pub(super) struct Output {
    // Dropped before the folder, since only an empty folder can be removed.
    file: Option<NewFile>,
    folder: Folder,
    parts: Vec<Part>,
    /// Parts that have begun.
    begun: usize,
    /// Missing bytes of the last of them.
    left: u64,
    index: Due,
    description: Due,
    /// For the next file.
    room: Vec<u8>,
}

impl Output {
    pub(super) fn create(path: &Path, plan: &WritePlan, part_bytes: u64) -> Result<Output> {
        let due = |name: &str| {
            let path = files::join(path, name)?;
            Ok((NewName::new(&path)?, path))
        };
        let begins = plan.parts(part_bytes)?;
        let ends = begins.iter().skip(1).copied().chain([plan.tensors.len()]);
        let of = begins.len();
        let parts = begins.iter().zip(ends).enumerate().map(|(i, (begin, end))| {
            let name = match part_bytes {
                0 => memory::format(format_args!("{STEM}.safetensors"))?,
                _ => memory::format(format_args!("{STEM}-{:05}-of-{of:05}.safetensors", i + 1))?,
            };
            let header = header(plan.tensors[*begin..end].iter().map(|tensor| NewTensor {
                name: &tensor.name,
                dtype: tensor.dtype,
                shape: &tensor.shape,
                bytes: tensor.bytes,
            }))?;
            Ok(Part { file: Some(due(&name)?), name, tensors: *begin..end, header })
        });
        let parts = memory::try_collect(parts)?;
        let index = if part_bytes > 0 { Some(due(INDEX)?) } else { None };
        let (description, room) = (Some(due(DESCRIPTION)?), NewFile::room()?);
        let mut folder = Folder::create(path)?;
        memory::reserve(&mut folder.files, parts.len() + 2)?;
        let mut output = Output { file: None, folder, parts, begun: 0, left: 0, index, description, room };
        output.advance(plan)?;
        Ok(output)
    }

    /// Begins a file. Dropping the folder removes it.
    fn begin(&mut self, due: Due) -> Result<NewFile> {
        let Some((name, path)) = due else { bail!(Internal, "a file was begun before") };
        if files::kind(&path).is_ok() {
            bail!(Io, "cannot create {}: another program has created it since the writer began", path.display());
        }
        let file = name.begin(std::mem::take(&mut self.room))?;
        memory::push(&mut self.folder.files, path)?;
        Ok(file)
    }

    /// Closes complete parts and opens the next one.
    fn advance(&mut self, plan: &WritePlan) -> Result<()> {
        while self.left == 0 {
            self.close()?;
            let Some(part) = self.parts.get_mut(self.begun) else { break };
            let (due, header) = (part.file.take(), std::mem::take(&mut part.header));
            self.left = plan.tensors[part.tensors.clone()].iter().map(|tensor| tensor.bytes).sum();
            self.begun += 1;
            let mut file = self.begin(due)?;
            file.write(&header)?;
            self.file = Some(file);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            self.room = file.complete()?;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, plan: &WritePlan, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.advance(plan)?;
            let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            let Some(file) = self.file.as_mut().filter(|_| len > 0) else {
                bail!(Internal, "more bytes than were declared");
            };
            file.write(&bytes[..len])?;
            self.left -= len as u64;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    /// The text of the index.
    pub(super) fn index(&self, plan: &WritePlan) -> Result<String> {
        let total: u64 = plan.tensors.iter().map(|tensor| tensor.bytes).sum();
        Writer::indented(|to| {
            to.object(|to| {
                to.key("metadata")?.object(|to| to.field("total_size", total))?;
                to.key("weight_map")?.object(|to| {
                    self.parts.iter().try_for_each(|part| {
                        let tensors = &plan.tensors[part.tensors.clone()];
                        tensors.iter().try_for_each(|tensor| to.field(&tensor.name, &part.name))
                    })
                })
            })
        })
    }

    /// Writes the index, if any, then the description.
    pub(super) fn finish(mut self, plan: &WritePlan, index: &str, description: &str) -> Result<()> {
        self.advance(plan)?;
        if self.left > 0 {
            bail!(Internal, "fewer bytes than were declared");
        }
        for (due, text) in [(self.index.take(), index), (self.description.take(), description)] {
            if due.is_some() {
                let mut file = self.begin(due)?;
                file.write(text.as_bytes())?;
                self.room = file.complete()?;
            }
        }
        self.folder.kept = true;
        Ok(())
    }
}
