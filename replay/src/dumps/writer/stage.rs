//! Runs that appear when all are complete.

use super::{Error, Result};
use crate::dumps::names;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A hidden folder beside the runs of a new dump. Without [`Stage::finish`] nothing else is left.
pub(super) struct Stage {
    root: PathBuf,
    pub(super) folder: PathBuf,
    /// The files and folders of the runs.
    names: Vec<String>,
}

fn failed(what: &str, path: &Path, e: &io::Error) -> Error {
    Error::new(path.display(), format!("cannot {what}: {e}"))
}

impl Stage {
    /// Begins the runs with these names below `root`. Their old dumps are replaced only with `overwrite`, and never where
    /// they are part of the dump `source`.
    pub(super) fn begin(root: &Path, names: Vec<String>, source: &Path, overwrite: bool) -> Result<Stage> {
        for path in names.iter().map(|name| root.join(name)) {
            let old = match path.symlink_metadata() {
                Err(_) => continue,
                Ok(about) if about.is_dir() => files(&path)?.0,
                Ok(about)
                    if about.is_file() && path.extension().is_some_and(|extension| extension == "safetensors") =>
                {
                    vec![path.clone()]
                }
                Ok(_) => return Err(Error::new(path.display(), "is no regular file or folder; one expected")),
            };
            let Some(first) = old.first() else { continue };
            if !overwrite {
                return Err(Error::new(first.display(), "exists; a dump is replaced only on request"));
            }
            let real = |path: &Path| fs::canonicalize(path).map_err(|e| failed("read", path, &e));
            let (path, source) = (real(&path)?, real(source)?);
            if path.starts_with(&source) || (source.is_dir() && source.starts_with(&path)) {
                return Err(Error::new(first.display(), "is an input; another folder expected for the output"));
            }
        }
        fs::create_dir_all(root).map_err(|e| failed("write", root, &e))?;
        let folder = root.join(format!(".{}.part", names.first().map_or("", |name| name)));
        // That of a killed process is replaced. A link there is not followed.
        let _ = fs::remove_file(&folder);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(|e| failed("write", &folder, &e))?;
        Ok(Stage { root: root.to_owned(), folder, names })
    }

    /// Gives the runs their names, in place of older dumps.
    pub(super) fn finish(self) -> Result<()> {
        let old = self.folder.join(".old");
        for name in &self.names {
            let (new, path) = (self.folder.join(name), self.root.join(name));
            let (replaced, others) = if path.is_dir() { files(&path)? } else { Default::default() };
            if !others {
                let _ = fs::rename(&path, &old);
                fs::rename(&new, &path).map_err(|e| {
                    let _ = fs::rename(&old, &path);
                    failed("write", &path, &e)
                })?;
                let _ = fs::remove_file(&old);
                let _ = fs::remove_dir_all(&old);
                continue;
            }
            // Other files stay where they are.
            for file in replaced {
                fs::remove_file(&file).map_err(|e| failed("remove", &file, &e))?;
            }
            for file in files(&new)?.0 {
                let path = path.join(file.strip_prefix(&new).unwrap_or(&file));
                let made = path.parent().map_or(Ok(()), fs::create_dir_all);
                made.and_then(|()| fs::rename(&file, &path)).map_err(|e| failed("write", &path, &e))?;
            }
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The files in the folder of a run that a writer makes, and whether there are others.
fn files(run: &Path) -> Result<(Vec<PathBuf>, bool)> {
    let (mut ours, mut others) = (Vec::new(), false);
    let mut folders = vec![run.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in entries.map_err(|e| failed("read", &folder, &e))? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let of_layer = |name: &str| name.strip_prefix("layer_").is_some_and(|n| n.parse::<u32>().is_ok());
            match folder == run {
                true if is_folder && of_layer(&name) => folders.push(entry.path()),
                true if !is_folder && names::flat(&name).is_some() => ours.push(entry.path()),
                false if !is_folder && super::folder::is_entry(&entry.path()) => ours.push(entry.path()),
                _ => others = true,
            }
        }
    }
    ours.sort();
    Ok((ours, others))
}
