//! Blocks of figures in the documents, which `make benchmarks` (`cmake/benchmarks.sh`) writes: complete, each of a commit
//! that is told, and the same wherever a table is shown.
//!
//! The check is of the documents alone: the commit may be any.

use std::collections::BTreeMap;

const DOCUMENTS: [(&str, &str); 5] = [
    ("README.md", include_str!("../README.md")),
    ("docs/benchmarks.md", include_str!("../docs/benchmarks.md")),
    ("docs/quality.md", include_str!("../docs/quality.md")),
    ("docs/which.md", include_str!("../docs/which.md")),
    ("integrations/llama.cpp/README.md", include_str!("../integrations/llama.cpp/README.md")),
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
    DOCUMENTS.into_iter().flat_map(of).filter(|(_, name, _)| *name != "commits").collect()
}

/// The commit in the head of a block: "`COMMAND` (CONDITIONS); commit COMMIT, DATE; MACHINE; COMPILERS".
fn commit<'a>(name: &str, lines: &[&'a str]) -> &'a str {
    let parts: Vec<&str> = lines.first().map_or(Vec::new(), |head| head.split("; ").collect());
    let is_head = parts.len() == 4 && parts[0].starts_with('`') && parts[1].starts_with("commit ");
    assert!(is_head, "{name}: no head: {:?}", lines.first());
    parts[1]["commit ".len()..].split_once(", ").unwrap_or_else(|| panic!("{name}: no date: {}", parts[1])).0
}

#[test]
fn each_block_is_a_head_and_a_table() {
    let found = all();
    assert!(found.len() > 10, "{} blocks", found.len());
    for (document, name, lines) in found {
        commit(name, &lines);
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

#[test]
fn the_figures_are_of_one_commit_or_the_page_tells_which_are_not() {
    let page = DOCUMENTS[1].1;
    let told = blocks("docs/benchmarks.md", page).into_iter().find(|(name, _)| *name == "commits").expect("commits").1;
    let told = told.join(" ");
    let told = told.strip_prefix("Tables are of commit ").and_then(|rest| rest.strip_suffix('.')).expect(&told);
    let (most, others) = told.split_once(", except ").unwrap_or((told, ""));
    let exception = |text: &'static str| {
        let (name, commit) = text.strip_suffix(')').and_then(|text| text.split_once(" (")).expect(text);
        (name.trim_matches('`'), commit)
    };
    let others: &'static str = Box::leak(others.to_owned().into_boxed_str());
    let others: BTreeMap<&str, &str> = others.split(", ").filter(|text| !text.is_empty()).map(exception).collect();
    for (document, name, lines) in all() {
        let expected = others.get(name).copied().unwrap_or(most);
        assert_eq!(commit(name, &lines), expected, "{name} of {document}");
    }
}

/// The cells of a row.
fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn the_losses_in_which_to_choose_are_those_of_the_quality_table() {
    let quality = blocks("docs/quality.md", DOCUMENTS[2].1).remove(0).1;
    let needle = cells(quality[2]).iter().position(|head| *head == "needle, 1 of 3.5").expect("needle");
    let mut quoted = 0;
    for row in include_str!("../docs/which.md")
        .lines()
        .map(cells)
        .filter(|row| row.last().is_some_and(|cell| cell.ends_with("quality")))
    {
        let method = row[0].trim_start_matches("h2o, ").replace('"', "");
        let measured = quality[4..].iter().map(|row| cells(row)).find(|row| row[0] == method).expect(&method);
        let factor: f64 = measured[needle].split(' ').next().unwrap().parse().unwrap();
        assert_eq!(row[3], format!("{factor:.2}"), "docs/which.md, {method}");
        quoted += 1;
    }
    assert!(quoted > 2, "{quoted} rows of docs/which.md are of docs/quality.md");
}
