//! The headers against the ABI that is frozen in `abi/`; docs/abi.md has the rules.
//!
//! `MNNKV_WRITE_ABI=1` (`make abi`) freezes additions. It refuses what breaks programs, unless MNNKV_ABI_VERSION was
//! raised: then the ABI begins anew.

#[path = "abi/examples.rs"]
mod examples;
#[path = "abi/frozen.rs"]
mod frozen;
#[path = "abi/headers.rs"]
mod headers;
#[path = "abi/rules.rs"]
mod rules;

use headers::{Item, Reader, What};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The headers of libmnnkv, and those of libmnnkv_model.
const LISTS: [&str; 2] = ["mnnkv.abi", "model.abi"];

const RELEASED: &str = "Restore what was there, and add beside it: fields at the end of a struct or in reserved bytes, \
    functions and constants under new names. Only if no older program shall run: raise MNNKV_ABI_VERSION \
    (src/ffi/version.rs), ABI in build.rs and model/build.rs, the library version in Cargo.toml and \
    model/Cargo.toml, then run `make header abi`.";
const UNRELEASED: &str = "That version is not released yet: restore what was there, or run `make abi`.";

#[test]
fn the_headers_keep_the_frozen_abi() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Err(failure) = guard(root, env!("CARGO_PKG_VERSION"), std::env::var_os("MNNKV_WRITE_ABI").is_some()) {
        panic!("\n{failure}\n");
    }
}

/// Compares the headers of `root` with its `abi/`, and writes that if asked to and allowed.
fn guard(root: &Path, version: &str, writes: bool) -> Result<(), String> {
    let abi = root.join("abi");
    let now = declared(&root.join("include"));
    let old = LISTS.map(|name| frozen::read(&text(&abi.join(name))));
    let folder = frozen_folder(&abi);
    let first = folder.as_deref().map_or(version, |folder| folder.file_name().unwrap().to_str().unwrap());
    let is_raised = (1..abi_version(&now[0])).contains(&abi_version(&old[0]));
    let is_released = numbers(first) <= numbers(version);

    // The headers as well as the lists, which could be edited.
    let mut broken = breaks(&old, &now);
    broken.extend(folder.as_ref().map(|folder| breaks(&declared(folder), &now)).unwrap_or_default());
    if !broken.is_empty() && !is_raised && (is_released || !writes) {
        let (listed, advice) =
            (broken.into_iter().collect::<Vec<_>>().join("\n  "), if is_released { RELEASED } else { UNRELEASED });
        return Err(format!("Programs built with headers from {first} on would break:\n  {listed}\n{advice}"));
    }

    // Headers of a version follow until the next version.
    let follows = is_raised || numbers(version) <= numbers(first);
    let version = if is_raised || !follows { version } else { first };
    let lists = [0, 1].map(|i| frozen::list(&frozen::dated(&old[i], &now[i], version)));
    let headers = frozen::headers(&root.join("include"));
    if writes {
        if follows {
            folder.iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
            frozen::write_headers(&abi.join(version), &headers);
        }
        LISTS.iter().zip(&lists).for_each(|(name, list)| fs::write(abi.join(name), list).unwrap());
    }
    let committed = LISTS.map(|name| text(&abi.join(name)));
    if committed != lists || follows && frozen::headers(&abi.join(version)) != headers {
        let new = lists.iter().zip(&committed).flat_map(|(now, old)| now.lines().filter(|line| !old.contains(*line)));
        let new: String = new.map(|line| format!("  {line}\n")).collect();
        return Err(format!("abi/ is stale. Run `make abi` and commit it with the change of the headers.\n{new}"));
    }
    Ok(())
}

/// A file, or nothing.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn breaks(old: &[Vec<Item>; 2], now: &[Vec<Item>; 2]) -> BTreeSet<String> {
    old.iter().zip(now).flat_map(|(old, now)| rules::breaks(old, now)).collect()
}

/// The declarations of a folder's headers, by list. `mnnkv.h` includes all that the library has without model files.
fn declared(folder: &Path) -> [Vec<Item>; 2] {
    let names: Vec<PathBuf> =
        frozen::headers(folder).into_keys().filter(|name| name.extension().is_some_and(|end| end == "h")).collect();
    let (main, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.as_os_str() == "mnnkv.h");
    let mut reader = Reader::default();
    [main, others].map(|names| names.into_iter().flat_map(|name| reader.file(&folder.join(name))).collect())
}

/// The folder of the headers of the first version with this ABI, named by it.
fn frozen_folder(abi: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(abi).ok()?;
    let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    assert!(folders.len() <= 1, "abi/ has folders of several versions: {folders:?}");
    folders.pop()
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().expect("a version is three numbers")).collect()
}

fn abi_version(items: &[Item]) -> u32 {
    match items.iter().find(|item| item.name == "MNNKV_ABI_VERSION").map(|item| &item.what) {
        Some(What::Constant(value)) => value.parse().expect("MNNKV_ABI_VERSION is a number"),
        _ => 0,
    }
}
