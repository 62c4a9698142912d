//! Files of a dump: found below a folder, and read by position.

use crate::error::{Error, Finding, Result};
use mnnkv::dtype::Dtype;
use mnnkv::json::without_mark;
use mnnkv_model::file::{ModelFile, Source};
use std::path::{Path, PathBuf};

/// The text of an error of the library, without the path, which is the place.
pub(super) fn failure(path: &Path, error: &mnnkv::status::Error) -> Error {
    let shown = path.display().to_string();
    let text = error.message();
    let after = text.strip_prefix(&format!("{shown} ")).map(str::to_owned);
    // "cannot open PATH: reason"
    Error::new(&shown, after.unwrap_or_else(|| text.replacen(&format!(" {shown}:"), ":", 1)))
}

pub(super) fn open(path: &Path) -> Result<ModelFile> {
    ModelFile::open(path).map_err(|e| failure(path, &e))
}

/// The text of a small file, without a byte order mark.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = read_small(path, limit)?;
    let mark = bytes.len() - without_mark(&bytes).len();
    bytes.drain(..mark);
    Ok(bytes)
}

/// The bytes of a small file.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    if file.len() > limit {
        return Err(Error::new(path.display(), format!("has {} bytes; at most {limit} allowed", file.len())));
    }
    file.read_vec(0, file.len()).map_err(|e| failure(path, &e))
}

/// A folder, or one file, and the files of it.
pub(super) struct Tree {
    root: PathBuf,
    /// The root is the folder of the one file that was named.
    pub(super) is_file: bool,
    /// The name of the root itself.
    name: String,
    /// By path.
    pub(super) files: Vec<PathBuf>,
}

impl Tree {
    /// Lists the files below `path`. Links to folders and hidden names are left out.
    pub(super) fn list(path: &Path, findings: &mut Vec<Finding>) -> Result<Tree> {
        let failed = |path: &Path, e: std::io::Error| Error::new(path.display(), format!("cannot read: {e}"));
        let about = std::fs::metadata(path).map_err(|e| failed(path, e))?;
        let absolute = std::fs::canonicalize(path).map_err(|e| failed(path, e))?;
        let folder = if about.is_dir() { Some(absolute.as_path()) } else { absolute.parent() };
        let name = folder.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or("dump".into());
        let mut tree = Tree { root: path.to_owned(), is_file: !about.is_dir(), name, files: Vec::new() };
        if tree.is_file {
            tree.root = path.parent().unwrap_or(Path::new("")).to_owned();
            tree.files.push(path.to_owned());
            return Ok(tree);
        }
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = match std::fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(e) if folder == path => return Err(failed(path, e)),
                Err(e) => {
                    findings.push(Finding::new("folder", folder.display(), format!("cannot read: {e}")));
                    continue;
                }
            };
            for entry in entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(e) => {
                        findings.push(Finding::new("folder", folder.display(), format!("cannot read all of it: {e}")));
                        continue;
                    }
                };
                let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
                match entry.file_type() {
                    _ if hidden => {}
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    _ => tree.files.push(entry.path()),
                }
            }
        }
        tree.files.sort();
        Ok(tree)
    }

    /// The folder itself, or that of the file.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The run of the files in the folder of `file`: its path below the root, or the name of the root.
    pub(super) fn run(&self, file: &Path) -> String {
        let folder = file.parent().and_then(|folder| folder.strip_prefix(&self.root).ok()).unwrap_or(Path::new(""));
        let parts: Vec<_> = folder.components().map(|part| part.as_os_str().to_string_lossy()).collect();
        if parts.is_empty() { self.name.clone() } else { parts.join("/") }
    }

    /// The run of a meta file without a name of a run: its folder, without a last `layer_*`.
    pub(super) fn run_of_meta(&self, meta: &Path) -> String {
        let folder = meta.parent().unwrap_or(Path::new(""));
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        self.run(if folder != self.root && name.starts_with("layer_") { folder } else { meta })
    }
}

/// The product of lengths, where memory can have as many bytes.
pub(super) fn elements(shape: &[usize], dtype: Dtype) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |product, length| product.checked_mul(*length))?;
    elements.checked_mul(dtype.bytes()).filter(|bytes| isize::try_from(*bytes).is_ok())?;
    Some(elements)
}

/// Consecutive words of a file.
#[derive(Clone, Debug)]
pub(super) struct Words {
    pub(super) path: PathBuf,
    pub(super) offset: u64,
    pub(super) elements: usize,
    pub(super) dtype: Dtype,
    pub(super) big_endian: bool,
}

impl Words {
    /// The words of a whole file.
    pub(super) fn whole(path: &Path, shape: &[usize], dtype: Dtype) -> Result<Words> {
        let len = open(path)?.len();
        Words::at(path, (0, len), shape, dtype, false)
    }

    /// The words from `begin` to `end`, which the shape must fill.
    pub(super) fn at(
        path: &Path,
        (begin, end): (u64, u64),
        shape: &[usize],
        dtype: Dtype,
        big_endian: bool,
    ) -> Result<Words> {
        let name = dtype.name();
        let Some(elements) = elements(shape, dtype).filter(|elements| *elements > 0) else {
            let text = format!("the shape {shape:?} of {name} is empty or exceeds the address space");
            return Err(Error::new(path.display(), text));
        };
        let (expected, given) = ((elements * dtype.bytes()) as u64, end.saturating_sub(begin));
        if given != expected {
            let text = format!("has {given} bytes of words; {expected} expected for the shape {shape:?} of {name}");
            return Err(Error::new(path.display(), text));
        }
        Ok(Words { path: path.to_owned(), offset: begin, elements, dtype, big_endian })
    }

    /// Little-endian words.
    pub(super) fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = self.read_part(0, self.elements * self.dtype.bytes())?;
        if self.big_endian {
            bytes.chunks_exact_mut(self.dtype.bytes()).for_each(<[u8]>::reverse);
        }
        Ok(bytes)
    }

    /// `len` bytes as they are, from the byte `begin` on.
    pub(super) fn read_part(&self, begin: usize, len: usize) -> Result<Vec<u8>> {
        let file = open(&self.path)?;
        file.read_vec(self.offset + begin as u64, len as u64).map_err(|e| failure(&self.path, &e))
    }
}
