//! Finds metas.

use crate::error::{Error, Finding, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Every `meta_*.json` below `root` that is no folder, and a finding for each folder below it that cannot be read.
pub fn metas(root: &Path) -> Result<(Vec<PathBuf>, Vec<Finding>)> {
    let mut found = Vec::new();
    let mut findings = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        match list(&folder, &mut folders, &mut found) {
            Ok(()) => {}
            Err(e) if folder == root => return Err(Error::new(root.display(), format!("cannot be read: {e}"))),
            Err(e) => findings.push(Finding::new("unreadable_folder", folder.display(), format!("not searched: {e}"))),
        }
    }
    found.sort();
    findings.sort();
    Ok((found, findings))
}

fn list(folder: &Path, folders: &mut Vec<PathBuf>, metas: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // The kind of a link itself, so that a loop of links ends.
        let kind = entry.file_type()?;
        if kind.is_dir() {
            folders.push(entry.path());
            continue;
        }
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(b"meta_") && bytes.ends_with(b".json") && !(kind.is_symlink() && entry.path().is_dir()) {
            metas.push(entry.path());
        }
    }
    Ok(())
}
