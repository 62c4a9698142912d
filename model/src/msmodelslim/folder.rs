//! Sources of a directory's files.

use crate::file::{ModelFile, Source};
use mnnkv::status::{Result, bail};
use mnnkv::sys::files::{self, Kind, failed};
use mnnkv::sys::memory;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open file.
pub type OpenFile = Box<dyn Source + Send + Sync>;

/// The files of a folder by plain name, without a path.
pub trait Folder {
    /// The names in the folder, hidden files included.
    fn names(&self) -> Result<Vec<String>>;

    /// Opens a file. NOT_FOUND: if no file has this name.
    fn open(&self, name: &str) -> Result<OpenFile>;
}

/// A folder of the file system. Links are followed; only regular files are accepted.
#[derive(Debug)]
pub struct DiskFolder(PathBuf);

impl DiskFolder {
    /// The folder at this path. NOT_FOUND: if it does not exist. INVALID_ARGUMENT: if it is not a folder.
    pub fn new(path: &Path) -> Result<Self> {
        if files::kind(path).map_err(|e| failed("open", path, &e))? != Kind::Folder {
            bail!(InvalidArgument, "{} is not a directory; one with quantised weights expected", path.display());
        }
        Ok(DiskFolder(files::copied(path)?))
    }
}

impl Folder for DiskFolder {
    fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        files::names(&self.0, |name| memory::push(&mut names, memory::text(name)?))?;
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: &str) -> Result<OpenFile> {
        Ok(memory::boxed(ModelFile::open(&files::join(&self.0, name)?)?)?)
    }
}

/// Files in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryFolder(pub BTreeMap<String, Arc<[u8]>>);

impl Folder for MemoryFolder {
    fn names(&self) -> Result<Vec<String>> {
        memory::try_collect(self.0.keys().map(|name| memory::text(name)))
    }

    fn open(&self, name: &str) -> Result<OpenFile> {
        match self.0.get(name) {
            Some(bytes) => Ok(memory::boxed(Bytes(Arc::clone(bytes)))?),
            None => bail!(NotFound, "file {name} does not exist"),
        }
    }
}

struct Bytes(Arc<[u8]>);

impl Source for Bytes {
    fn len(&self) -> u64 {
        Source::len(&*self.0)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, to)
    }
}

/// Whether a name from a document is a plain file name on every system, without a folder or a parent.
pub(super) fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0', ':'])
}
