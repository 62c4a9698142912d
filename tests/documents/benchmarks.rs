//! Blocks of figures in the documents, which `make benchmarks` (`cmake/benchmarks.sh`) writes: complete, and the same
//! wherever a table is shown.

use std::collections::BTreeMap;

const DOCUMENTS: [(&str, &str); 4] = [
    ("README.md", include_str!("../../README.md")),
    ("docs/benchmarks.md", include_str!("../../docs/benchmarks.md")),
    ("docs/quality.md", include_str!("../../docs/quality.md")),
    ("integrations/llama.cpp/README.md", include_str!("../../integrations/llama.cpp/README.md")),
];

/// The name in a line of a marker.
fn marker<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    line.strip_prefix("<!-- ")?.strip_prefix(kind)?.strip_prefix(' ')?.strip_suffix(" -->")
}

/// Names and contents of the blocks of a document.
fn blocks(name: &str, document: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, Vec<&str>)> = None;
    for (number, line) in (1..).zip(document.lines()) {
        let at = format!("{name}, line {number}: {line}");
        match (marker(line, "begin"), marker(line, "end"), &mut open) {
            (Some(begun), _, None) => open = Some((begun, Vec::new())),
            (_, Some(ended), Some((begun, _))) if *begun == ended => blocks.extend(open.take()),
            (None, None, Some((_, lines))) => lines.push(line),
            (None, None, None) => {}
            _ => panic!("{at}: begin and end do not alternate, or their names differ"),
        }
    }
    assert!(open.is_none(), "{name}: {} has no end", open.unwrap().0);
    blocks
}

fn all() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let of = |(document, text)| blocks(document, text).into_iter().map(move |(name, lines)| (document, name, lines));
    DOCUMENTS.into_iter().flat_map(of).collect()
}

#[test]
fn each_block_is_a_head_and_a_table() {
    let found = all();
    assert!(found.len() > 10, "{} blocks", found.len());
    for (document, name, lines) in found {
        // "`COMMAND` (CONDITIONS); DATE; MACHINE; COMPILERS"
        let parts: Vec<&str> = lines[0].split("; ").collect();
        assert!(parts.len() == 4 && parts[0].starts_with('`'), "{document}, {name}: no head: {}", lines[0]);
        let rows = lines[2..].iter().filter(|line| line.starts_with('|') && line.ends_with('|')).count();
        let columns = |line: &str| line.matches('|').count();
        assert!(lines[1].is_empty() && rows > 2 && rows == lines.len() - 2, "{document}, {name}: more than a table");
        assert!(lines[2..].iter().all(|line| columns(line) == columns(lines[2])), "{document}, {name}: ragged");
    }
}

#[test]
fn a_table_is_the_same_wherever_it_is_shown() {
    let mut shown: BTreeMap<&str, (&str, Vec<&str>)> = BTreeMap::new();
    for (document, name, lines) in all() {
        let (first, known) = shown.entry(name).or_insert((document, lines.clone()));
        assert_eq!(lines, *known, "{name} in {document} and in {first}");
    }
    for (_, name, _) in all().iter().filter(|(document, ..)| *document == "README.md") {
        let in_docs = all().iter().any(|(document, other, _)| document.starts_with("docs/") && other == name);
        assert!(in_docs, "README.md has a table {name} that no document has");
    }
}
