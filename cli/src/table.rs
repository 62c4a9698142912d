//! Tables: as aligned lines for terminals, and as Markdown.

use crate::output::visible;

/// Whether a cell is a number, or nothing.
pub fn is_number(cell: &str) -> bool {
    cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '<' | '—'))
}

/// Columns as wide as their longest entry, two spaces apart. Columns of numbers are right-aligned. Nothing without rows.
pub fn text<T: AsRef<str>>(head: &[T], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|cell| visible(cell.as_ref())).collect();
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| visible(cell)).collect::<Vec<_>>());
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let lines = || std::iter::once(&head).filter(|head| !head.is_empty()).chain(&rows);
    let width = |c: usize| lines().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let is_numbers = |c: usize| rows.iter().filter_map(|row| row.get(c)).all(|cell| is_number(cell));
    let columns = lines().map(Vec::len).max().unwrap_or(0);
    let columns: Vec<(usize, bool)> = (0..columns).map(|c| (width(c), is_numbers(c))).collect();
    let mut text = String::new();
    for row in lines() {
        let mut line = String::from("  ");
        for (cell, (width, is_number)) in row.iter().zip(&columns) {
            let fill = " ".repeat(width - cell.chars().count());
            line += &if *is_number { format!("{fill}{cell}  ") } else { format!("{cell}{fill}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// The same without a heading.
pub fn lines(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    text(&[""; 0], rows)
}

/// A table of Markdown, whose cells are Markdown already.
pub fn markdown<T: AsRef<str>>(
    head: &[T],
    is_numbers: impl Fn(usize) -> bool,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rule = (0..head.len()).map(|column| if is_numbers(column) { "---:|" } else { "---|" }).collect::<String>();
    let head = line(head.iter().map(|cell| cell.as_ref().to_owned()).collect());
    format!("{head}|{rule}\n{}", rows.into_iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| cell.to_string()).collect()).collect()
    }

    #[test]
    fn columns_of_numbers_are_set_to_the_right() {
        let sizes = rows(&[&["4,096", "512 MiB", "a"], &["131,072", "16 GiB", "b"]]);
        let text = text(&["context", "raw", "how"], sizes);
        assert_eq!(text, "  context      raw  how\n    4,096  512 MiB  a\n  131,072   16 GiB  b\n");
        let facts = rows(&[&["layers", "2"], &["weights", "F16"]]);
        assert_eq!(lines(facts), "  layers   2\n  weights  F16\n");
        assert_eq!(lines([]), "");
    }

    #[test]
    fn names_from_files_cannot_begin_a_line() {
        let name = "a\u{1b}[31m\nb\u{7}\u{9b}c\u{202e}d é";
        assert_eq!(lines(rows(&[&[name]])), format!("  {}\n", visible(name)));
    }
}
