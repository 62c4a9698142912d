use super::table::{self, ROWS, Rule, SUITES, Thresholds};
use std::fmt::Write as _;

/// The table as Markdown, for docs/tools.md.
fn markdown() -> String {
    let mut text = String::from(
        "| flag | gate | default | baseline, probe, full, store | passes when, or meaning |\n|---|---|---|---|---|\n",
    );
    let or = |text: &'static str, other: &'static str| if text.is_empty() { other } else { text };
    for row in ROWS {
        let own = |i: usize| or(row.suites[i], or(row.default, "none"));
        let suites =
            if row.suites == table::SAME { String::new() } else { (0..4).map(own).collect::<Vec<_>>().join(", ") };
        let gate = if row.gate.is_empty() { String::new() } else { format!("`{}`", row.gate) };
        let _ =
            writeln!(text, "| `--{}` | {gate} | {} | {suites} | {} |", row.flag, or(row.default, "none"), row.meaning);
    }
    text
}

#[test]
fn the_document_has_the_table_of_gates() {
    let document = include_str!("../../../docs/tools.md");
    let (_, rest) = document.split_once("<!-- gates -->\n").unwrap();
    let (written, _) = rest.split_once("<!-- end of gates -->").unwrap();
    assert!(written == markdown(), "docs/tools.md must have between its marks:\n{}", markdown());
}

#[test]
fn rows_have_flags_and_gates_of_their_own_and_defaults_that_parse() {
    for (i, row) in ROWS.iter().enumerate() {
        let other = |other: &table::Row| other.flag == row.flag || (!row.gate.is_empty() && other.gate == row.gate);
        assert_eq!(ROWS.iter().position(other), Some(i), "{}", row.flag);
        assert_eq!(row.gate.is_empty(), row.rule == Rule::Setting, "{}", row.flag);
    }
    SUITES.iter().for_each(|suite| drop(Thresholds::preset(Some(suite))));
}
