//! The direction of imports, and where unsafe code and system calls may be.
//!
//! A module is a folder or a file of `src/`. The crate of `model/` is two modules: `model/ffi`, and `model` for the rest; so is that
//! of `llama/`.
//! Modules of `replay/` begin with its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Modules that may use each other.
const GROUND_FLOOR: [&str; 4] = ["status", "dtype", "sys", "json"];
/// Modules of std that only `sys` may use.
const SYSTEM: [&str; 4] = ["fs", "thread", "env", "net"];
/// Files outside `sys` that may name a module of the system: they hold the type `File`, and `sys` reads it.
const HOLDS_FILES: [&str; 1] = ["model/src/file.rs"];

/// A module, and the modules that it may use and does use.
const DIRECTION: &[(&str, &str)] = &[
    ("ffi", "arch attend dtype gear h2o layout session status store sys"),
    ("model/ffi", "dtype ffi layout model status sys"),
    ("llama/ffi", "arch dtype ffi llama status sys"),
    ("session", "attend bytes dtype file h2o json layout run status store sys"),
    ("store", "gear layout run status sys"),
    ("file", "attend bytes gear layout run status sys"),
    ("gear", "arch bytes dtype status sys"),
    ("layout", "arch dtype status"),
    ("attend", "arch bytes dtype layout status sys"),
    ("h2o", "status sys"),
    ("model", "arch dtype json layout status sys"),
    ("llama", "arch attend dtype gear status sys"),
    ("replay/evaluation", "replay/codec replay/dumps replay/error replay/results replay/watch replay/whole_cache"),
    ("replay/whole_cache", "h2o replay/codec replay/error replay/results"),
    ("replay/codec", "gear replay/dumps replay/error replay/results replay/watch session status"),
    (
        "replay/quality",
        "arch attend dtype layout replay/dumps replay/error replay/head_sums replay/transformer replay/watch session status",
    ),
    ("replay/transformer", "arch json replay/error"),
    ("replay/reference", "replay/dumps replay/error"),
    ("replay/dumps", "dtype json replay/error status"),
    ("replay/head_sums", "h2o session status"),
    ("replay/results", "replay/error"),
    ("replay/error", ""),
    ("replay/watch", ""),
    ("arch", "sys"),
    ("json", "status sys"),
    ("bytes", "status sys"),
    ("run", "status sys"),
    ("dtype", "status"),
    ("status", "sys"),
    ("sys", "status"),
];

struct Direction(BTreeMap<String, BTreeSet<String>>);

impl Direction {
    fn new(rows: &[(&str, &str)]) -> Self {
        let set = |used: &str| used.split_whitespace().map(String::from).collect();
        Direction(rows.iter().map(|(module, used)| (module.to_string(), set(used))).collect())
    }

    fn allows(&self, module: &str, used: &str) -> bool {
        module == used || self.0.get(module).is_some_and(|may| may.contains(used))
    }

    /// Modules that use each other by way of others, beside the ground floor.
    fn cycles(&self) -> Vec<String> {
        let mut left: BTreeMap<_, _> = self.0.clone();
        GROUND_FLOOR.iter().for_each(|module| drop(left.remove(*module)));
        while let Some(module) = left.iter().find(|(_, may)| may.iter().all(|m| !left.contains_key(m))).map(|(r, _)| r)
        {
            let module = module.clone();
            left.remove(&module);
        }
        let above = |module: &&String| GROUND_FLOOR.contains(&module.as_str());
        let climbs = self.0.iter().filter(|(module, _)| above(module));
        let climbs = climbs.filter(|(_, may)| may.iter().any(|used| !above(&used)));
        left.into_keys().chain(climbs.map(|(module, _)| module.clone())).collect()
    }
}

/// A source file without its comments and tests.
struct Source {
    path: String,
    /// Line numbers, from 1, and code.
    lines: Vec<(usize, String)>,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let mut lines = Vec::new();
        let mut all = text.lines().enumerate();
        while let Some((number, line)) = all.next() {
            let code = line.trim_start();
            if code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test") {
                // The item ends with its line, or where a line of the same indentation begins with a bracket.
                let indent = line.len() - code.len();
                let closes = |line: &str| {
                    let end = line.trim_start();
                    line.len() - end.len() == indent && end.starts_with(['}', ']', ')'])
                };
                let item = all.by_ref().find(|(_, line)| !line.trim_start().starts_with("#["));
                if item.is_some_and(|(_, line)| !line.trim_end().ends_with([';', ',', '}'])) {
                    all.by_ref().find(|(_, line)| closes(line));
                }
            } else if !code.starts_with("//") {
                let code = code.split_once(" // ").map_or(code, |(code, _)| code);
                lines.push((number + 1, code.to_string()));
            }
        }
        Source { path: path.to_string(), lines }
    }

    fn module(&self) -> String {
        module(&self.path)
    }

    /// The names right behind `prefix`, with line numbers: an identifier, or each of a group in braces.
    fn named(&self, prefix: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (at, (number, line)) in self.lines.iter().enumerate() {
            for (place, _) in line.match_indices(prefix) {
                if line[..place].ends_with(is_word) || line[..place].ends_with("::") {
                    continue;
                }
                let rest = &line[place + prefix.len()..];
                let more = self.lines[at + 1..].iter().map(|(_, line)| line.as_str());
                match rest.strip_prefix('{') {
                    Some(group) => {
                        let group = std::iter::once(group).chain(more).collect::<Vec<_>>().join(" ");
                        found.extend(members(&group).into_iter().map(|name| (*number, name)));
                    }
                    None => found.push((*number, word(rest))),
                }
            }
        }
        found
    }

    /// The modules that this file uses.
    fn uses(&self) -> Vec<(usize, String)> {
        let own = self.named("crate::").into_iter();
        if self.path.starts_with("replay/") {
            let own = own.map(|(line, name)| (line, format!("replay/{name}")));
            return self.named("mnnkv::").into_iter().chain(own).collect();
        }
        let Some(package) = ["model", "llama"].into_iter().find(|name| self.path.starts_with(&format!("{name}/")))
        else {
            // The parent of a module is the root.
            let is_root_of_room =
                self.path.matches('/').count() == 1 || self.path == format!("src/{}/mod.rs", self.module());
            let above = if is_root_of_room { self.named("use super::") } else { Vec::new() };
            return own.chain(above).collect();
        };
        let module = |name| if name == "ffi" { format!("{package}/ffi") } else { package.into() };
        let own = own.map(|(line, name)| (line, module(name)));
        self.named("mnnkv::").into_iter().chain(own).collect()
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The identifier at the beginning.
fn word(text: &str) -> String {
    text.chars().take_while(|c| is_word(*c)).collect()
}

/// The first identifiers of a group, up to its closing brace.
fn members(group: &str) -> Vec<String> {
    let (mut depth, mut begins, mut names) = (0, true, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && is_word(c) => {
                names.push(word(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

/// The module that a file belongs to; the ABI's headers and other files belong to none.
fn module(path: &str) -> String {
    let first = |rest: &str| rest.split(['/', '.']).next().unwrap_or_default().to_string();
    let package =
        ["model", "llama"].into_iter().find_map(|name| Some((name, path.strip_prefix(&format!("{name}/src/"))?)));
    match package {
        Some((name, rest)) if first(rest) == "ffi" => format!("{name}/ffi"),
        Some((name, _)) => name.into(),
        None => match path.strip_prefix("replay/src/") {
            Some(rest) => format!("replay/{}", first(rest)),
            None => path.strip_prefix("src/").map(first).unwrap_or_default(),
        },
    }
}

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file of the library that is no test.
fn sources() -> Vec<Source> {
    fn walk(folder: &str, found: &mut Vec<Source>) {
        let Ok(entries) = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) else { return };
        for entry in entries.map(Result::unwrap) {
            let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                if !path.ends_with("/tests") {
                    walk(&path, found);
                }
            } else if path.ends_with(".rs") && !path.ends_with("/tests.rs") && path.matches("/lib.rs").count() == 0 {
                found.push(Source::new(&path, &text(&path)));
            }
        }
    }
    let mut found = Vec::new();
    ["src", "model/src", "llama/src", "replay/src"].iter().for_each(|folder| walk(folder, &mut found));
    assert!(found.len() > 100, "{} files", found.len());
    found
}

/// Imports that the table forbids, modules that it does not name, and names of it that nothing stands for.
fn directions(table: &Direction, sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut unused = table.0.clone();
    let modules: BTreeSet<String> = sources.iter().map(Source::module).collect();
    for module in &modules {
        if !table.0.contains_key(module) {
            wrong.push(format!("{module} is a module that the table does not name"));
        }
    }
    for source in sources.iter().filter(|source| table.0.contains_key(&source.module())) {
        let module = source.module();
        for (line, used) in source.uses() {
            if let Some(left) = unused.get_mut(&module) {
                left.remove(&used);
            }
            if !table.allows(&module, &used) {
                wrong.push(format!("{}:{line}: {module} may not use {used}", source.path));
            }
        }
    }
    for (module, left) in unused {
        if !modules.contains(&module) {
            wrong.push(format!("the table names {module}, which is not a module"));
        }
        wrong.extend(left.iter().map(|used| format!("{module} does not use {used}, which the table allows")));
    }
    wrong
}

/// Lines that contain unsafe code, or name the system, where they may not. `replay` is no part of the library and reads files
/// by itself.
fn outside(sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for source in sources {
        let system = || source.named("std::").into_iter().filter(|(_, name)| SYSTEM.contains(&name.as_str()));
        let (module, path) = (source.module(), &source.path);
        let is_unsafe = |line: &str| line.split(|c| !is_word(c)).any(|word| word == "unsafe");
        if !["arch", "sys", "ffi", "model/ffi", "llama/ffi"].contains(&module.as_str()) {
            let lines = source.lines.iter().filter(|(_, line)| is_unsafe(line));
            wrong.extend(lines.map(|(line, _)| format!("{path}:{line}: unsafe code in {module}")));
        }
        let libc = source.named("libc::").into_iter().map(|(line, name)| (line, format!("libc::{name}")));
        let named: Vec<_> = system().chain(libc).collect();
        if HOLDS_FILES.contains(&path.as_str()) {
            wrong.extend(named.is_empty().then(|| format!("{path} needs no exception")));
        } else if module != "sys" && !module.starts_with("replay/") {
            wrong.extend(named.iter().map(|(line, name)| format!("{path}:{line}: {module} uses {name}; only sys may")));
        }
    }
    wrong
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn rooms_use_each_other_as_the_table_says() {
    let table = Direction::new(DIRECTION);
    assert_none(&directions(&table, &sources()));
    assert_eq!(table.cycles(), [""; 0], "modules that use each other");
}

#[test]
fn unsafe_code_and_the_system_are_where_they_may_be() {
    assert_none(&outside(&sources()));
}

/// The checks above report violations.
#[test]
fn every_fault_is_found() {
    let table = Direction::new(&[
        ("store", "gear sys"),
        ("gear", "store sys"),
        ("sys", ""),
        ("attic", "sys"),
        ("model", "sys"),
    ]);
    let source = |path: &str, text: &str| Source::new(path, text);
    let sources = [
        source(
            "src/store/mod.rs",
            "use crate::gear::{self, v1::{A, B}};\n// crate::cellar\nuse crate::{\n  sys::a,\n  json::{b},\n};\n",
        ),
        source(
            "src/gear.rs",
            "use super::store::A;\n#[cfg(test)]\nmod tests {\n    use crate::ffi;\n}\nlet a = crate::ffi::b();\n",
        ),
        source("src/sys/mod.rs", "use std::fs;\nunsafe {}\n"),
        source(
            "src/loft/a.rs",
            "use std::{cell, thread::spawn};\nfn a() { unsafe { libc::b() } }\n#[cfg(test)]\nuse std::env;\n",
        ),
        source("model/src/a.rs", "use mnnkv::store;\nuse crate::ffi::b;\n"),
        source("model/src/ffi/b.rs", "use crate::a;\nuse mnnkv::ffi::panic;\n"),
        source("replay/src/dumps/a.rs", "use crate::error::A;\nuse mnnkv::store;\nuse std::fs;\n"),
    ];
    let expected = [
        "loft is a module that the table does not name",
        "model/ffi is a module that the table does not name",
        "replay/dumps is a module that the table does not name",
        "src/store/mod.rs:3: store may not use json",
        "src/gear.rs:6: gear may not use ffi",
        "model/src/a.rs:1: model may not use store",
        "model/src/a.rs:2: model may not use model/ffi",
        "the table names attic, which is not a module",
        "attic does not use sys, which the table allows",
        "gear does not use sys, which the table allows",
        "model does not use sys, which the table allows",
    ];
    assert_eq!(directions(&table, &sources), expected);
    assert_eq!(table.cycles(), ["gear", "store"]);
    let expected = [
        "src/loft/a.rs:2: unsafe code in loft",
        "src/loft/a.rs:1: loft uses thread; only sys may",
        "src/loft/a.rs:2: loft uses libc::b; only sys may",
    ];
    assert_eq!(outside(&sources), expected);
}
