//! `mnnkv report` as a process: the page, its figures, its refusals.

mod common;

use common::{Folder, mnnkv};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

impl Folder {
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, value: &Value) -> String {
        fs::write(self.path(name), value.to_string()).unwrap();
        self.path(name)
    }
}

fn sample() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/report/results.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[track_caller]
fn parsed(page: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(page, options).unwrap_or_else(|e| panic!("{e}"))
}

fn text(node: roxmltree::Node) -> String {
    node.descendants().filter_map(|n| n.text().filter(|_| n.is_text())).collect()
}

fn all<'a>(page: &'a roxmltree::Document, tag: &str) -> Vec<roxmltree::Node<'a, 'a>> {
    page.descendants().filter(|n| n.has_tag_name(tag)).collect()
}

/// Cells of the first table whose caption begins so, without its head.
#[track_caller]
fn table(page: &roxmltree::Document, caption: &str) -> Vec<Vec<String>> {
    let found = all(page, "caption").into_iter().find(|c| text(*c).starts_with(caption));
    let found = found.unwrap_or_else(|| panic!("no table {caption:?}")).parent().unwrap();
    let rows = found.descendants().filter(|n| n.has_tag_name("tr")).skip(1);
    rows.map(|row| row.children().filter(|n| n.is_element()).map(text).collect()).collect()
}

#[test]
fn the_page_is_well_formed_refers_to_nothing_outside_and_has_the_figures_of_the_results() {
    let folder = Folder::new("page");
    let results = sample();
    let page = folder.path("page.html");
    mnnkv(0, &["report", &folder.write("results.json", &results), "-o", &page]);
    let html = fs::read_to_string(page).unwrap();
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<iframe"] {
        assert!(!html.contains(outside), "{outside}");
    }
    let page = parsed(&html);
    let sections: Vec<String> = all(&page, "h2").into_iter().map(text).collect();
    assert_eq!(sections, ["Dump", "Whole cache", "Lossless", "Findings"]);
    for figure in all(&page, "figure") {
        let named = ["title", "desc"].map(|tag| figure.descendants().find(|n| n.has_tag_name(tag)).map(text));
        assert!(named.iter().flatten().filter(|words| words.len() > 1).count() == 2, "{named:?}");
        let lines = figure.descendants().filter(|n| n.has_tag_name("polyline")).count();
        assert_eq!(
            lines,
            figure.descendants().filter(|n| n.has_tag_name("li")).count(),
            "a line for each of the legend"
        );
    }
    assert_eq!(all(&page, "figure").len(), 1);

    let list = |name: &str| results[name].as_array().unwrap().clone();
    let wholes: Vec<Value> =
        list("whole_cache").into_iter().filter(|w| w["cut"] == "blocks" && w["block_tokens"] == 64).collect();
    let rows = table(&page, "Whole cache");
    assert_eq!(rows.len(), wholes.len());
    for (row, whole) in rows.iter().zip(&wholes) {
        for (at, key) in [(2, "lossless_only"), (3, "lossy_only"), (4, "joint"), (5, "reference_product")] {
            assert_eq!(row[at], format!("{:.2}", whole[key].as_f64().unwrap()), "{key}");
        }
    }
    let blocks: Vec<Value> =
        list("lossless").into_iter().filter(|r| r["cut"] == "blocks" && r["tensor"] == "k").collect();
    let sum = |key: &str| blocks.iter().map(|r| r[key].as_f64().unwrap()).sum::<f64>();
    assert_eq!(table(&page, "Codec")[0][1], format!("{:.3}", sum("raw_bytes") / sum("kept_bytes")));
}

#[test]
fn verdicts_of_gate_are_tables_and_names_cannot_leave_their_element() {
    let folder = Folder::new("gates");
    let evil = "</td><script>\u{1b}[31m\u{0}&amp;\"'";
    let mut results = sample();
    results["findings"] = json!([{ "reason": evil, "place": evil, "text": evil }]);
    results["layers"][0]["run"] = evil.into();
    let (results, gates) = (folder.write("results.json", &results), folder.path("gates.json"));
    mnnkv(1, &["gate", &results, "--lossless-target", "1e6", "--lossy-target=-1", "--summary", &gates]);
    let page = folder.path("page.html");
    mnnkv(0, &["report", &results, &gates, "-o", &page]);
    let html = fs::read_to_string(page).unwrap();
    let page = parsed(&html);
    assert!(all(&page, "script").is_empty() && html.contains("&lt;script&gt;\\u{1b}[31m\\u{0}&amp;amp;"), "{html}");
    let gates = table(&page, "Gates");
    assert_eq!((&gates[0][..2], gates.len()), (&["lossless_online_pass".to_owned(), "FAIL".into()][..], 1));
    assert!(text(page.root()).contains("A gate fails."));
}

#[test]
fn a_file_that_is_no_result_is_refused_by_field_and_nothing_is_replaced() {
    let folder = Folder::new("refused");
    let page = folder.path("page.html");
    let set = |pointer: &str, value: Value| {
        let mut results = sample();
        *results.pointer_mut(pointer).unwrap() = value;
        results
    };
    for (results, expected) in [
        (json!({}), "format is missing;"),
        (set("/format", "other".into()), "format is \"other\";"),
        (set("/version", 7.into()), "version is 7; 2 expected"),
        (set("/layers/1/tokens", 0.into()), "layers[1].tokens is 0e0; a number from 1 to 1e12 expected"),
        (set("/lossless/2/kept_bytes", json!(-1)), "lossless[2].kept_bytes: invalid value"),
        (set("/lossless/2/ratio", json!(1e300)), "lossless[2].ratio is 1e300;"),
        (set("/whole_cache/0/joint", json!("2")), "whole_cache[0].joint: invalid type"),
    ] {
        let (_, error) = mnnkv(3, &["report", &folder.write("bad.json", &results), "-o", &page]);
        assert!(error.contains("bad.json: ") && error.contains(expected), "{error}\n{expected}");
        assert!(!Path::new(&page).exists());
    }
    let good = folder.write("good.json", &sample());
    let (_, error) = mnnkv(3, &["report", &good, "-o", &good, "--overwrite"]);
    assert!(error.contains("good.json is an input"), "{error}");
    mnnkv(0, &["report", &good, "-o", &page]);
    let (_, error) = mnnkv(3, &["report", &good, "-o", &page]);
    assert!(error.contains("--overwrite expected"), "{error}");
}
