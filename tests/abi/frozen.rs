//! `abi/`: what is frozen. `mnnkv.abi` and `model.abi` list it, a line each, as macros that
//! `cpp-tests/abi/layout.cpp` defines; `abi/<version>/` has the headers that old programs are built with.

use crate::headers::{EXPERIMENTAL, Field, Item, What, without_comment};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// `now` with the versions of `old` where that has the same, else `version`, sorted.
pub fn dated(old: &[Item], now: &[Item], version: &str) -> Vec<Item> {
    let since = |was: Option<&String>, is: &str| match was {
        _ if is == EXPERIMENTAL => is.to_string(),
        Some(was) if was != EXPERIMENTAL => was.clone(),
        _ => version.to_string(),
    };
    let mut items = now.to_vec();
    for item in &mut items {
        let was = old.iter().find(|was| was.name == item.name);
        item.since = since(was.map(|was| &was.since), &item.since);
        if let What::Struct { fields, .. } = &mut item.what {
            for field in fields {
                let was = match was.map(|was| &was.what) {
                    Some(What::Struct { fields, .. }) => fields.iter().find(|was| was.name == field.name),
                    _ => None,
                };
                field.since = since(was.map(|was| &was.since), &field.since);
            }
        }
    }
    // Not in the order of the headers, whose sections may move.
    items.sort_by(|a, b| (rank(&a.what), &a.name).cmp(&(rank(&b.what), &b.name)));
    items
}

fn rank(what: &What) -> u32 {
    match what {
        What::Constant(_) => 0,
        What::Type(_) => 1,
        What::Handle => 2,
        What::Struct { .. } => 3,
        What::Function(_) => 4,
    }
}

/// The list of dated items.
pub fn list(items: &[Item]) -> String {
    let mut out = String::from(
        "// The ABI on LP64, written by `make abi`; docs/abi.md has its rules. KIND(since, name, ...):\n\
         // STRUCT has bytes; FIELD has name, offset, bytes and type.\n",
    );
    let mut last = None;
    for Item { name, since, what } in items {
        if last.replace(rank(what)) != Some(rank(what)) || matches!(what, What::Struct { .. }) {
            out += "\n";
        }
        match what {
            What::Constant(value) => writeln!(out, "CONSTANT({since}, {name}, {value})"),
            What::Type(kind) => writeln!(out, "TYPE({since}, {name}, {kind})"),
            What::Handle => writeln!(out, "HANDLE({since}, {name})"),
            What::Function(kind) => writeln!(out, "FUNCTION({since}, {name}, {kind})"),
            What::Struct { bytes, .. } => writeln!(out, "STRUCT({since}, {name}, {bytes})"),
        }
        .unwrap();
        if let What::Struct { fields, .. } = what {
            for Field { name: field, since, at, bytes, kind } in fields {
                writeln!(out, "FIELD({since}, {name}, {field}, {at}, {bytes}, {kind})").unwrap();
            }
        }
    }
    out
}

/// The items of a list.
pub fn read(list: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for line in list.lines().map(without_comment).filter(|line| !line.is_empty()) {
        let (kind, rest) = line.strip_suffix(')').and_then(|line| line.split_once('(')).expect(line);
        let (since, rest) = rest.split_once(", ").expect(line);
        let (name, rest) = rest.split_once(", ").unwrap_or((rest, ""));
        let what = match kind {
            "CONSTANT" => What::Constant(rest.into()),
            "TYPE" => What::Type(rest.into()),
            "HANDLE" => What::Handle,
            "FUNCTION" => What::Function(rest.into()),
            "STRUCT" => What::Struct { bytes: rest.parse().expect(line), fields: Vec::new() },
            "FIELD" => {
                let parts: Vec<&str> = rest.splitn(4, ", ").collect();
                let [field, at, bytes, kind] = parts[..] else { panic!("{line}") };
                let owner = items.last_mut().filter(|owner| owner.name == name);
                let Some(What::Struct { fields, .. }) = owner.map(|owner| &mut owner.what) else { panic!("{line}") };
                let (at, bytes) = (at.parse().expect(line), bytes.parse().expect(line));
                fields.push(Field { name: field.into(), since: since.into(), at, bytes, kind: kind.into() });
                continue;
            }
            _ => panic!("{line}"),
        };
        items.push(Item { name: name.into(), since: since.into(), what });
    }
    items
}

/// The headers of a folder by their paths in it, without comments, whose prose may still change. load.h is code of the
/// program that has it, and calls the functions of the others.
pub fn headers(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        let name = PathBuf::from(path.file_name().unwrap());
        if path.is_dir() {
            found.extend(headers(&path).into_iter().map(|(inner, code)| (name.join(inner), code)));
        } else if name.as_os_str() != "load.h" {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(without_comment).filter(|line| !line.is_empty());
            found.insert(name, lines.map(|line| format!("{line}\n")).collect());
        }
    }
    found
}

/// Writes headers into a folder.
pub fn write_headers(folder: &Path, headers: &BTreeMap<PathBuf, String>) {
    for (name, code) in headers {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("// Frozen by `make abi`, without comments; see docs/abi.md.\n{code}")).unwrap();
    }
}
