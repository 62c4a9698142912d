//! docs/adopt.md shows each line that a step adds to examples/engine, and no other. `MNNKV_WRITE_ADOPT=1` writes them. Its
//! configs are those that the steps run with.

use std::{env, fs};

const STEPS: u32 = 4;

/// The parts of a source that belong to a step alone, each without its indentation.
fn parts(source: &str, step: u32) -> Vec<String> {
    let mut parts: Vec<Vec<&str>> = Vec::new();
    let mut open: Vec<Option<u32>> = Vec::new();
    for line in source.lines() {
        if let Some(number) = line.strip_prefix("#if STEP >= ") {
            open.push(Some(number.parse().unwrap()));
            if open.last() == Some(&Some(step)) {
                parts.push(Vec::new());
            }
        } else if line.starts_with("#if") {
            open.push(open.last().copied().flatten());
        } else if line == "#endif" {
            open.pop().expect("an #if before each #endif");
        } else if open.last() == Some(&Some(step)) {
            parts.last_mut().unwrap().push(line);
        }
    }
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let least = |part: &[&str]| part.iter().filter(|line| !line.is_empty()).map(indent).min().unwrap_or(0);
    let join = |part: Vec<&str>| {
        let cut = least(&part);
        part.into_iter().map(|line| format!("{}\n", line.get(cut..).unwrap_or_default())).collect()
    };
    parts.into_iter().map(join).collect()
}

#[test]
fn the_document_shows_the_lines_of_each_step() {
    let root = env!("CARGO_MANIFEST_DIR");
    let read = |path: &str| fs::read_to_string(format!("{root}/{path}")).unwrap();
    let sources = ["cache", "engine"].map(|name| read(&format!("examples/engine/{name}.hpp")));
    let document = read("docs/adopt.md");
    let mut written = document.clone();
    for step in 1..=STEPS {
        let lines = sources.iter().flat_map(|source| parts(source, step)).collect::<Vec<_>>().join("\n");
        assert!(!lines.is_empty(), "no line of examples/engine is of step {step}");
        let heading = format!("\n## {step}. ");
        let section = written.find(&heading).unwrap_or_else(|| panic!("no heading {heading:?}")) + 1;
        let rest = &written[section..];
        let end = section + rest.find("\n## ").unwrap_or(rest.len());
        let fence = written[section..end].find("```cpp\n").expect("a fenced block in each step");
        let begin = section + fence + "```cpp\n".len();
        let close = begin + written[begin..end].find("```\n").expect("the end of the block");
        written.replace_range(begin..close, &lines);
    }
    let main = read("examples/engine/main.cpp");
    for config in document.split("`{").skip(1).map(|rest| rest.split("}`").next().unwrap()) {
        assert!(main.contains(config), "no step runs with {config:?}");
    }
    if env::var_os("MNNKV_WRITE_ADOPT").is_some() {
        fs::write(format!("{root}/docs/adopt.md"), written).unwrap();
    } else {
        assert!(written == document, "docs/adopt.md differs from examples/engine; MNNKV_WRITE_ADOPT=1 writes it again");
    }
}
