//! Files that appear when they are complete.

use super::Written;
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file under a hidden name. Without [`NewFile::finish`] none is left.
///
/// A dump has thousands of small files, so none is synced: after a loss of power files may be missing or empty.
pub(super) struct NewFile {
    file: Option<File>,
    unfinished: PathBuf,
    path: PathBuf,
    bytes: u64,
}

fn failed(path: &Path, e: &io::Error) -> Error {
    Error::new(path.display(), format!("cannot write: {e}"))
}

impl NewFile {
    /// Begins a file and makes its folder. A file with its name is replaced.
    pub(super) fn create(path: &Path) -> Result<NewFile> {
        let folder = path.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(|e| failed(folder, &e))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let unfinished = folder.join(format!(".{name}.part"));
        // The file of a killed process is replaced. A link there is not followed.
        let _ = fs::remove_file(&unfinished);
        let file = File::create_new(&unfinished).map_err(|e| failed(path, &e))?;
        Ok(NewFile { file: Some(file), unfinished, path: path.to_owned(), bytes: 0 })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes)).map_err(|e| failed(&self.path, &e))
    }

    /// Closes the file and gives it its name.
    pub(super) fn finish(mut self, written: &mut Written) -> Result<()> {
        drop(self.file.take());
        if let Err(e) = fs::rename(&self.unfinished, &self.path) {
            let _ = fs::remove_file(&self.unfinished);
            return Err(failed(&self.path, &e));
        }
        written.files += 1;
        written.bytes += self.bytes;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

/// Writes a file as a whole.
pub(super) fn put(path: &Path, bytes: &[u8], written: &mut Written) -> Result<()> {
    let mut file = NewFile::create(path)?;
    file.write(bytes)?;
    file.finish(written)
}
