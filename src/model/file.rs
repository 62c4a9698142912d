//! Files of a model: read by position, written whole or not at all.

use crate::status::{Error, Result, Status, bail};
use crate::sys::memory;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a reader needs of a file: its length, and copies of its bytes.
///
/// Bytes in memory are one, too, so that hosts can read what they hold, and tests what they make.
pub trait Source {
    /// Bytes in all.
    fn len(&self) -> u64;

    /// No bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `to` with the bytes from `offset` on, or fails.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()>;

    /// The `len` bytes from `offset` on. They are there, so that a length from the file cannot ask for more memory than
    /// the file has bytes.
    fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            bail!(Corrupt, "offset {offset}: {len} bytes expected, {} are left", self.len().saturating_sub(offset));
        }
        let len = usize::try_from(len)
            .map_err(|_| Error::new(Status::OutOfMemory, format!("offset {offset}: no memory for {len} bytes")))?;
        let mut bytes = Vec::new();
        memory::resize(&mut bytes, len)?;
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

impl Source for [u8] {
    fn len(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).ok().and_then(|at| self.get(at..)?.get(..to.len()));
        let Some(from) = from else {
            bail!(
                Corrupt,
                "offset {offset}: {} bytes expected, {} are left",
                to.len(),
                Source::len(self).saturating_sub(offset)
            );
        };
        to.copy_from_slice(from);
        Ok(())
    }
}

/// A regular file that is open for reading, and how long it was then. Any thread may read.
#[derive(Debug)]
pub struct ModelFile {
    file: File,
    path: PathBuf,
    len: u64,
}

impl ModelFile {
    /// Opens a regular file; links are followed. NOT_FOUND where there is none, IO where it cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        // Before opening: that would wait for the other end of a pipe.
        let kind = fs::metadata(path).map_err(|e| failed("open", path, &e))?;
        if !kind.is_file() {
            let what = if kind.is_dir() { "a directory" } else { "no regular file" };
            bail!(InvalidArgument, "{} is {what}; a file expected", path.display());
        }
        let file = File::open(path).map_err(|e| failed("open", path, &e))?;
        let len = file.metadata().map_err(|e| failed("look at", path, &e))?.len();
        Ok(ModelFile { file, path: path.to_owned(), len })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Source for ModelFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        read_exact_at(&self.file, offset, to).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => Error::new(
                Status::Io,
                format!(
                    "{} ends within the {} bytes at offset {offset}; it had {} bytes when it was opened",
                    self.path.display(),
                    to.len(),
                    self.len
                ),
            ),
            _ => failed("read", &self.path, &e),
        })
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, to: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut to: &mut [u8]) -> io::Result<()> {
    while !to.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, to, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                to = &mut to[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// What the system said, with what was tried and where.
pub(crate) fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    let status = if error.kind() == io::ErrorKind::NotFound { Status::NotFound } else { Status::Io };
    Error::new(status, format!("cannot {verb} {}: {error}", path.display()))
}

/// A file that takes its name when it is complete: until [`NewFile::finish`] another file of that name stays what it
/// is, and without it nothing is left behind.
#[derive(Debug)]
pub struct NewFile {
    file: io::BufWriter<File>,
    path: PathBuf,
    unfinished: PathBuf,
}

impl NewFile {
    /// Begins a file beside `path`, in a folder that exists.
    pub fn create(path: &Path) -> Result<Self> {
        /// Several threads may write files of one name.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let Some(name) = path.file_name() else {
            bail!(InvalidArgument, "{} names no file", path.display());
        };
        if path.is_dir() {
            bail!(InvalidArgument, "{} is a directory; a file expected", path.display());
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.{}.part", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        let unfinished = path.with_file_name(hidden);
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&unfinished)
            .map_err(|e| failed("create a file beside", path, &e))?;
        Ok(NewFile { file: io::BufWriter::with_capacity(1 << 16, file), path: path.to_owned(), unfinished })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| failed("write", &self.path, &e))
    }

    /// Gives the file its name, once all of it is on the disk.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().and_then(|()| self.file.get_ref().sync_all()).map_err(|e| failed("write", &self.path, &e))?;
        fs::rename(&self.unfinished, &self.path).map_err(|e| failed("write", &self.path, &e))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After `finish` there is no such file.
        let _ = fs::remove_file(&self.unfinished);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for a test, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mnnkv-file-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_open_is_an_error_that_says_so() {
        let folder = Folder::new("shrinks");
        let path = folder.0.join("weights");
        fs::write(&path, [7; 100]).unwrap();
        let file = ModelFile::open(&path).unwrap();
        let mut bytes = [0; 20];
        file.read_at(80, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 20]);
        File::options().write(true).open(&path).unwrap().set_len(90).unwrap();
        let error = file.read_at(80, &mut bytes).unwrap_err();
        assert_eq!(error.status(), Status::Io);
        assert!(error.message().contains("offset 80") && error.message().contains("100 bytes"), "{error}");
    }

    #[test]
    fn lengths_are_checked_before_memory_is_taken() {
        let bytes = [1u8, 2, 3];
        assert_eq!(bytes[..].read_vec(1, 2).unwrap(), [2, 3]);
        for (offset, len) in [(0, 4), (3, 1), (4, 0), (1, u64::MAX), (u64::MAX, 1)] {
            let error = bytes[..].read_vec(offset, len).unwrap_err();
            assert_eq!(error.status(), Status::Corrupt);
            assert!(error.message().contains(&format!("offset {offset}")), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let folder = Folder::new("kinds");
        for (name, status) in [("absent", Status::NotFound), (".", Status::InvalidArgument)] {
            let error = ModelFile::open(&folder.0.join(name)).unwrap_err();
            assert_eq!(error.status(), status);
            assert!(error.message().contains("mnnkv-file-kinds"), "{error}");
        }
        #[cfg(unix)]
        {
            let link = folder.0.join("loop");
            std::os::unix::fs::symlink(&link, &link).unwrap();
            assert_eq!(ModelFile::open(&link).unwrap_err().status(), Status::Io);
        }
    }

    #[test]
    fn a_new_file_appears_when_it_is_complete_and_leaves_nothing_otherwise() {
        let folder = Folder::new("new");
        let path = folder.0.join("out.bin");
        fs::write(&path, "old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"half of it").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(folder.names(), ["out.bin"]);
        let mut file = NewFile::create(&path).unwrap();
        file.write(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(folder.names(), ["out.bin"]);
        assert_eq!(NewFile::create(&folder.0.join("no/such/file")).unwrap_err().status(), Status::NotFound);
        assert_eq!(NewFile::create(&folder.0).unwrap_err().status(), Status::InvalidArgument);
    }
}
