use super::cells::{Cell, measured, number};
use super::judge::aggregate;
use super::table::{self, ROWS, Rule, SUITES, Thresholds};
use super::verdict::percentile;
use std::fmt::Write as _;

/// The table as Markdown, for docs/gate.md.
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
    let document = include_str!("../../../docs/gate.md");
    let (_, rest) = document.split_once("<!-- gates -->\n").unwrap();
    let (written, _) = rest.split_once("<!-- end of gates -->").unwrap();
    assert!(written == markdown(), "docs/gate.md must have between its marks:\n{}", markdown());
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

#[test]
fn percentiles_take_the_element_at_the_rounded_up_rank() {
    let sorted: Vec<f64> = (1..=10).map(f64::from).collect();
    let at = |q| percentile(&sorted, q).unwrap();
    assert_eq!([at(0.5), at(0.9), at(0.95), at(0.99), at(1.0)], [5.0, 9.0, 10.0, 10.0, 10.0]);
    assert_eq!([aggregate(&[], "p90"), aggregate(&[], "median"), aggregate(&[], "avg")], [None; 3]);
}

#[test]
fn a_cell_is_a_number_not_measured_or_bad() {
    for (text, expected) in [("3.114 ± 0.002", 3.114), ("1e-05", 1e-5), (" -7 ", -7.0), ("3.2e0 ± nan", 3.2)] {
        assert_eq!(number(text, false), Cell::Number(expected), "{text}");
    }
    assert_eq!([number("", false), number("-", false)], [Cell::Unmeasured, Cell::Unmeasured]);
    for text in ["nan", "inf ± 1", "about 12.5 us", "3,1", "± 2", "1 2"] {
        assert_eq!(number(text, false), Cell::Bad(format!("{text:?} is not a finite number")));
    }
    let negative = "\"-7 ± 1\" is below 0; a measurement is at least 0";
    assert_eq!(measured(" -7 ± 1", false), Cell::Bad(negative.into()));
    assert_eq!([measured("-7", true), measured("7", false)], [Cell::Number(-7.0), Cell::Number(7.0)]);
}
