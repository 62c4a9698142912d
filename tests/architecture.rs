//! `docs/architecture.md` against the sources: import direction, unsafe code, system calls, and the files it names.
//!
//! The document is read by headings: `## Direction` (a table `| module | may use |`), `### Path: ...` (numbered lists that
//! begin with a file) and `## Where is what` (a table whose last column is a file). A module is a folder or a file of
//! `src/`. The crate of `model/` is two modules: `model/ffi`, and `model` for the rest. Modules of `replay/` begin with its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Modules that may use each other.
const GROUND_FLOOR: [&str; 4] = ["status", "dtype", "sys", "json"];
/// Modules of std that only `sys` may use.
const SYSTEM: [&str; 4] = ["fs", "thread", "env", "net"];
/// Files outside `sys` that may name a module of the system: they hold the type `File`, and `sys` reads it.
const HOLDS_FILES: [&str; 2] = ["src/model/file.rs", "model/src/file.rs"];

/// The document.
struct Document(String);

impl Document {
    fn read() -> Self {
        Document(text("docs/architecture.md"))
    }

    /// The lines below a heading, up to the next heading of any level.
    fn section(&self, heading: &str) -> Vec<&str> {
        let below = self.0.lines().skip_while(|line| *line != heading).skip(1);
        let lines: Vec<&str> = below.take_while(|line| !line.starts_with('#')).collect();
        assert!(!lines.is_empty(), "docs/architecture.md has no section {heading:?}");
        lines
    }

    /// The cells of a table below a heading, without its header.
    fn table(&self, heading: &str) -> Vec<Vec<String>> {
        let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect();
        let rows: Vec<_> = self.section(heading).into_iter().filter(|line| line.starts_with('|')).map(cells).collect();
        rows.into_iter().skip(2).collect()
    }

    /// Modules and the modules that each may use.
    fn direction(&self) -> Direction {
        let header = self.section("## Direction").into_iter().find(|line| line.starts_with('|'));
        assert_eq!(header, Some("| module | may use |"));
        let set = |cell: &str| cell.split(", ").filter(|module| *module != "—").map(String::from).collect();
        let row = |cells: Vec<String>| (cells[0].trim_matches('`').to_string(), set(&cells[1]));
        Direction(self.table("## Direction").into_iter().map(row).collect())
    }

    /// Titles, files and functions of the data paths.
    fn paths(&self) -> Vec<(&str, Vec<Step>)> {
        let titles = self.0.lines().filter(|line| line.starts_with("### Path: "));
        let step = |line: &str| {
            let (number, rest) = line.split_once(". ")?;
            number.parse::<u32>().ok()?;
            let step = || rest.strip_prefix('`')?.strip_suffix('`')?.split_once("`: `");
            let (file, function) = step().unwrap_or_else(|| panic!("{line:?} is not a number, `file`: `function`"));
            Some(Step { file: file.into(), function: function.into() })
        };
        titles.map(|title| (title, self.section(title).into_iter().filter_map(step).collect())).collect()
    }
}

/// A line of a data path.
#[derive(Debug)]
struct Step {
    file: String,
    function: String,
}

#[derive(Default)]
struct Direction(BTreeMap<String, BTreeSet<String>>);

impl Direction {
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

    /// Whether this file defines a function of that name, and whether it calls one.
    fn defines_and_calls(&self, function: &str) -> (bool, bool) {
        let (mut defines, mut calls) = (false, false);
        for (_, line) in &self.lines {
            for (at, _) in line.match_indices(function) {
                let before = &line[..at];
                let is_whole = !before.ends_with(is_word) && !line[at + function.len()..].starts_with(is_word);
                let is_called = line[at + function.len()..].starts_with(['(', ':', ')', ',']);
                let is_defined = before.ends_with("fn ");
                defines |= is_whole && is_defined;
                calls |= is_whole && !is_defined && is_called;
            }
        }
        (defines, calls)
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
        if !self.path.starts_with("model/") {
            // The parent of a module is the root.
            let is_root_of_room =
                self.path.matches('/').count() == 1 || self.path == format!("src/{}/mod.rs", self.module());
            let above = if is_root_of_room { self.named("use super::") } else { Vec::new() };
            return own.chain(above).collect();
        }
        let own = own.map(|(line, name)| (line, if name == "ffi" { "model/ffi".into() } else { "model".into() }));
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

/// The first text in backticks.
fn quoted(text: &str) -> Option<String> {
    let rest = text.strip_prefix('`')?;
    Some(rest.split('`').next()?.to_string())
}

/// The module that a file belongs to; the ABI's headers and other files belong to none.
fn module(path: &str) -> String {
    let first = |rest: &str| rest.split(['/', '.']).next().unwrap_or_default().to_string();
    match path.strip_prefix("model/src/") {
        Some(rest) if first(rest) == "ffi" => "model/ffi".into(),
        Some(_) => "model".into(),
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

fn exists(path: &str) -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).is_file()
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
    ["src", "model/src", "replay/src"].iter().for_each(|folder| walk(folder, &mut found));
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
        if !["arch", "sys", "ffi", "model/ffi"].contains(&module.as_str()) {
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

/// Faults of a path: a file that is missing or comes twice, a function that its file lacks or that no file above calls, a
/// module that is entered twice or that no module above uses.
fn path_faults(title: &str, steps: &[Step], table: &Direction, sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut modules: Vec<String> = Vec::new();
    let source = |step: &Step| sources.iter().find(|source| source.path == step.file);
    for (at, step) in steps.iter().enumerate() {
        let (file, function, above) = (&step.file, &step.function, &steps[..at]);
        match source(step) {
            None => wrong.push(format!("{title}: {file} does not exist")),
            Some(source) if !source.defines_and_calls(function).0 => {
                wrong.push(format!("{title}: {file} has no function {function}"));
            }
            Some(_) if at > 0 && !above.iter().filter_map(source).any(|file| file.defines_and_calls(function).1) => {
                wrong.push(format!("{title}: no file above {file} calls {function}"));
            }
            Some(_) => {}
        }
        if above.iter().any(|step| step.file == *file) {
            wrong.push(format!("{title}: {file} comes twice"));
        }
        let module = module(file);
        if modules.last() == Some(&module) {
            continue;
        }
        if modules.contains(&module) {
            wrong.push(format!("{title}: {module} is entered twice, at {file}"));
        }
        if !modules.is_empty() && !modules.iter().any(|above| table.allows(above, &module)) {
            wrong.push(format!("{title}: no module above {file} may use {module}"));
        }
        modules.push(module);
    }
    wrong
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn rooms_use_each_other_as_the_table_says() {
    let table = Document::read().direction();
    assert_none(&directions(&table, &sources()));
    assert_eq!(table.cycles(), [""; 0], "modules that use each other");
}

#[test]
fn unsafe_code_and_the_system_are_where_they_may_be() {
    assert_none(&outside(&sources()));
}

#[test]
fn paths_go_down_and_enter_each_room_once() {
    let document = Document::read();
    let (table, paths) = (document.direction(), document.paths());
    assert!(paths.len() >= 3, "{} paths", paths.len());
    assert!(paths.iter().all(|(_, files)| files.len() > 2), "{paths:?}");
    let sources = sources();
    let faults = paths.iter().flat_map(|(title, steps)| path_faults(title, steps, &table, &sources));
    assert_none(&faults.collect::<Vec<_>>());
}

#[test]
fn the_walk_names_files_that_exist() {
    let rows = Document::read().table("## Where is what");
    assert!(rows.len() >= 6, "{} rows", rows.len());
    let missing = rows.iter().map(|row| quoted(row.last().unwrap()).unwrap_or_else(|| panic!("{row:?}")));
    assert_none(&missing.filter(|file| !exists(file)).map(|file| format!("{file} does not exist")).collect::<Vec<_>>());
}

/// The checks above report violations.
#[test]
fn every_fault_is_found() {
    let document = Document(
        "## Direction\n\n| module | may use |\n|---|---|\n| `store` | gear, sys |\n| `gear` | store, sys |\n\
         | `sys` | — |\n| `attic` | sys |\n| `model` | sys |\n\n### Path: a\n\n1. `src/store/mod.rs`: `put`\n2. `src/gear/none.rs`: `b`\n\
         3. `src/store/mod.rs`: `take`\n4. `src/layout/mod.rs`: `zero`\n5. `src/sys/mod.rs`: `drop`\n"
            .into(),
    );
    let table = document.direction();
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
    let (title, steps) = document.paths().remove(0);
    let sources = [
        source("src/store/mod.rs", "fn put() {\n    layout.zeroes();\n    self.drop(layout);\n}\n"),
        source("src/layout/mod.rs", "pub fn zero(n: u8) {\n    pages::zero(n)\n}\n"),
        source("src/sys/mod.rs", "fn drop() {}\n"),
    ];
    let expected = [
        "### Path: a: src/gear/none.rs does not exist",
        "### Path: a: src/store/mod.rs has no function take",
        "### Path: a: src/store/mod.rs comes twice",
        "### Path: a: store is entered twice, at src/store/mod.rs",
        "### Path: a: no file above src/layout/mod.rs calls zero",
        "### Path: a: no module above src/layout/mod.rs may use layout",
    ];
    assert_eq!(path_faults(title, &steps, &table, &sources), expected);
}
